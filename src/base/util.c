/* Errors, memory, time, random numbers. Nothing here knows about models. */
#include "base/util.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)

int butler_fail(struct butler_error *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return code;
}

bool butler_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool butler_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

void butler_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ------------------------------------------------------------------------------------------------ memory */

static bool round_up(size_t n, size_t unit, size_t *out)
{
    size_t sum;
    if (!butler_add_size(n, unit - 1, &sum))
        return false;
    *out = sum / unit * unit;
    return true;
}

void *butler_alloc(size_t n_bytes, struct butler_error *err)
{
    size_t size;
    void *p = NULL;
    if (round_up(BUTLER_MAX(n_bytes, 1), ALIGNMENT, &size))
        p = aligned_alloc(ALIGNMENT, size);
    if (!p) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot allocate %zu bytes", n_bytes);
        return NULL;
    }
    memset(p, 0, size);
    return p;
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *butler_reserve(size_t n_bytes, bool huge, struct butler_error *err)
{
    size_t size, mapped;
    /* A huge page must start at a multiple of its size, which mmap does not guarantee. So map more and unmap both ends. */
    if (!round_up(BUTLER_MAX(n_bytes, 1), page_size(), &size) ||
        !butler_add_size(size, size >= HUGE_PAGE ? HUGE_PAGE : 0, &mapped)) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot reserve %zu bytes", n_bytes);
        return NULL;
    }
    unsigned char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot reserve %zu bytes: %s", n_bytes, strerror(errno));
        return NULL;
    }
    if (mapped > size) {
        size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (head)
            munmap(p, head);
        if (HUGE_PAGE - head)
            munmap(p + head + size, HUGE_PAGE - head);
        p += head;
    }
    madvise(p, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return p;
}

void butler_unreserve(void *base, size_t n_bytes)
{
    if (base)
        munmap(base, BUTLER_MAX(n_bytes, 1));
}

void butler_reserve_discard(void *base, size_t n_bytes)
{
    size_t page = page_size();
    uintptr_t begin = (uintptr_t)base, end = begin + n_bytes;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void butler_arena_want(struct butler_arena *arena, void *where, size_t count, size_t element)
{
    size_t bytes, end;
    if (arena->n_pieces == BUTLER_COUNT(arena->pieces) || !butler_mul_size(count, element, &bytes) ||
        !round_up(bytes, ALIGNMENT, &bytes) || !butler_add_size(arena->size, bytes, &end)) {
        arena->overflow = true;
        return;
    }
    arena->pieces[arena->n_pieces++] = (struct butler_arena_piece){where, arena->size};
    arena->size = end;
}

int butler_arena_make(struct butler_arena *arena, struct butler_error *err)
{
    if (arena->overflow)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "the sizes of an arena overflow after %d pieces, %zu bytes", arena->n_pieces,
                           arena->size);
    arena->base = butler_reserve(arena->size, false, err); /* no huge pages: much of it is used only by the longest texts */
    if (!arena->base)
        return BUTLER_ERROR_MEMORY;
    butler_arena_place(arena);
    return 0;
}

void butler_arena_place(struct butler_arena *arena)
{
    for (int i = 0; i < arena->n_pieces; i++) {
        /* memcpy because `where` points to a T *, which may not be written through a void **. */
        void *piece = arena->base + arena->pieces[i].offset;
        memcpy(arena->pieces[i].where, &piece, sizeof piece);
    }
}

void butler_arena_free(struct butler_arena *arena)
{
    if (!arena)
        return;
    butler_unreserve(arena->base, arena->size);
    memset(arena, 0, sizeof *arena);
}

/* -------------------------------------------------------------------------------- time and random numbers */

bool butler_find_file(const char *name, const char *const *folders, int n, char *path, size_t n_path)
{
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (int i = 0; i < n; i++) {
        const int written = snprintf(path, n_path, "%s/%s/%s", self, folders[i], name);
        if (written > 0 && (size_t)written < n_path && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

int butler_n_processors(void)
{
    cpu_set_t set;
    const long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

double butler_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t butler_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float butler_random_float(uint64_t *state)
{
    return (float)(butler_random(state) >> 40) * 0x1p-24f;
}

float butler_random_normal(uint64_t *state)
{
    /* Box-Muller; 1 - u lies in (0, 1], so the logarithm is finite. */
    float radius = sqrtf(-2.0f * logf(1.0f - butler_random_float(state)));
    return radius * cosf(6.28318530717958648f * butler_random_float(state));
}

/* -------------------------------------------------------------------------------------------- misspelt words */

enum { WORD_MAX = 40 };

/* How many letters must be inserted, left out, replaced or exchanged with their neighbour to make b[n_b] of a[n_a]. */
static int edit_distance(const char *a, int n_a, const char *b, int n_b)
{
    int rows[3][WORD_MAX + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= n_b; j++)
        above[j] = j;
    for (int i = 1; i <= n_a; i++) {
        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            row[j] = BUTLER_MIN(BUTLER_MIN(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = BUTLER_MIN(row[j], before[j - 2] + 1);
        }
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[n_b];
}

const char *butler_did_you_mean(char *out, size_t n_out, const char *word, const char *list)
{
    const size_t n_word = strlen(word);
    int least = (int)BUTLER_MIN(n_word, 6) / 3 + 1; /* one error in a short word, two in a longer one */
    *out = 0;
    while (*list && n_word > 1 && n_word <= WORD_MAX) {
        const size_t n = strcspn(list, ",");
        const int distance = n <= WORD_MAX ? edit_distance(word, (int)n_word, list, (int)n) : least;
        if (distance < least) {
            least = distance;
            snprintf(out, n_out, " did you mean %.*s?", (int)n, list);
        }
        list += n;
        list += strspn(list, ", ");
    }
    return out;
}

float butler_kth_largest(float *x, int n, int k)
{
    int first = 0, last = n - 1;
    while (first < last) {
        const float pivot = x[first + (last - first) / 2];
        int i = first, j = last;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                const float other = x[i];
                x[i++] = x[j];
                x[j--] = other;
            }
        }
        if (k - 1 <= j)
            last = j;
        else if (k - 1 >= i)
            first = i;
        else
            break;
    }
    return x[k - 1];
}
