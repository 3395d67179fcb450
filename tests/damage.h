/* Kinds of damage to a file of the library. */
#ifndef BUTLER_TEST_DAMAGE_H
#define BUTLER_TEST_DAMAGE_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "file/block_file.h"

static off_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void flip(const char *path, off_t at)
{
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void copy_file(const char *from, const char *to)
{
    char buffer[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
        assert_int_equal(fwrite(buffer, 1, n, out), n);
    fclose(in);
    fclose(out);
}

enum { N_FAULTS = 12, GONE = 11 };

static inline void damage(const char *path, const char *other, int fault)
{
    const off_t size = size_of(path), bits[] = {20, sizeof(struct butler_block_header) + 9, 5000, size / 2, size - 4},
                sizes[] = {size - 1, size / 2, 0, size + 1};
    if (fault < 5)
        flip(path, bits[fault]);
    else if (fault < 9)
        assert_int_equal(truncate(path, sizes[fault - 5]), 0);
    else if (fault == GONE)
        unlink(path);
    else
        copy_file(fault == 9 ? other : "/proc/self/exe", path);
}

#endif
