/* Ctrl-C and SIGTERM: see cmd.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "cmd.h"

static void ignore_signal(int signal_number)
{
    (void)signal_number;
}

static sigset_t signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    return set;
}

void cmd_interrupts_block(bool block)
{
    const sigset_t set = signals();
    sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

int cmd_open_input(const char *path)
{
    const sigset_t set = signals();
    sigset_t before;
    sigprocmask(SIG_UNBLOCK, &set, &before);
    const int fd = open(path, O_RDONLY | O_CLOEXEC), error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return fd;
}

bool cmd_wait_readable(int fd)
{
    struct pollfd input = {.fd = fd, .events = POLLIN};
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    sigdelset(&mask, SIGINT);
    sigdelset(&mask, SIGTERM);
    sigdelset(&mask, SIGHUP);
    return ppoll(&input, 1, NULL, &mask) >= 0;
}

void cmd_interrupts_start(void)
{
    struct sigaction action = {.sa_handler = ignore_signal}; /* no SA_RESTART: reading returns */
    sigaction(SIGINT, &action, NULL);
    cmd_interrupts_block(true);
}

bool cmd_terminated(void)
{
    sigset_t set;
    return sigpending(&set) == 0 && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGHUP) == 1);
}

bool cmd_interrupted(void)
{
    sigset_t set;
    struct timespec none = {0};
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    return cmd_terminated() || sigtimedwait(&set, NULL, &none) == SIGINT;
}
