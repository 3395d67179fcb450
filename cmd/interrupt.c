/* Ctrl-C: see cmd.h. */
#include <signal.h>
#include <time.h>

#include "cmd.h"

static void ignore_signal(int signal_number)
{
    (void)signal_number;
}

void cmd_interrupts_block(bool block)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

void cmd_interrupts_start(void)
{
    struct sigaction action = {.sa_handler = ignore_signal}; /* no SA_RESTART: reading returns */
    sigaction(SIGINT, &action, NULL);
    cmd_interrupts_block(true);
}

bool cmd_interrupted(void)
{
    sigset_t set;
    struct timespec none = {0};
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    return sigtimedwait(&set, NULL, &none) == SIGINT;
}
