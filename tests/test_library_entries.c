/* The library as its owner sees it: what texts are listed, how large they are, and what is left when some are removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "damage.h"
#include "library_tests.h"

struct seen {
    int n;
    struct butler_library_entry entries[17];
};

static bool see(void *user, const struct butler_library_entry *entry)
{
    struct seen *seen = user;
    seen->entries[seen->n++] = *entry;
    return true;
}

static void test_entries(void **state)
{
    struct context c, copy;
    struct butler_error err;
    struct seen seen = {0};
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 0);
    read_text(session, c.text, N_PROMPT);
    butler_session_free(session);
    int32_t other[N_PROMPT];
    memcpy(other, c.text, sizeof other);
    other[300]++;
    usleep(20000);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(session, other, 500), 300);
    butler_session_free(session);
    assert_int_equal(butler_library_list(library, see, &seen, &err), 2);
    assert_int_equal(seen.entries[0].n_tokens, 500);
    assert_int_equal(seen.entries[1].n_tokens, N_PROMPT);
    assert_true(seen.entries[0].shared > 0 && seen.entries[0].shared == seen.entries[1].shared);
    assert_true(seen.entries[0].bytes + seen.entries[1].bytes - seen.entries[0].shared == library->bytes);
    assert_false(seen.entries[0].broken);

    open_model(&copy, &models[0], 0);
    struct butler_library *to = open_library(&copy, 1 << 30);
    assert_int_equal(butler_library_export(library, "", to, &err), BUTLER_ERROR_ARGUMENT); /* two */
    assert_int_equal(butler_library_export(library, seen.entries[1].id, NULL, &err), 3);
    assert_int_equal(to->bytes, 0);
    assert_int_equal(butler_library_export(library, seen.entries[1].id, to, &err), 3);
    session = open_session(&copy, "full", to, 0);
    assert_int_equal(read_text(session, c.text, N_PROMPT), N_PROMPT - 1);
    butler_session_free(session);
    butler_library_free(to);
    close_model(&copy);

    assert_int_equal(butler_library_remove(library, "no such", &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_library_remove(library, seen.entries[1].id, &err), 1);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(butler_session_find_prefix(session, c.text, N_PROMPT, &err), 300);
    assert_int_equal(butler_session_find_prefix(session, other, 501, &err), 500);
    butler_session_free(session);

    assert_int_equal(butler_library_verify(library, &err), 0);
    int n;
    struct butler_library_file *files = files_of(library, &n);
    assert_int_equal(n, 2);
    for (int i = 0; i < n; i++) { /* the first block: then the second cannot be reached */
        char *path = butler_library_path(library, files[i].kind, files[i].name);
        if (strncmp(files[i].name, files[1 - i].name + 33, 32) != 0)
            flip(path, 6000);
        free(path);
    }
    free(files);
    c.n_notes = 0;
    assert_int_equal(butler_library_verify(library, &err), 2);
    assert_int_equal(c.n_notes, 2);
    assert_int_equal(butler_library_remove(library, NULL, &err), 0);
    assert_int_equal(library->bytes, 0);
    butler_library_free(library);
    close_model(&c);
}

/* What several ids begin with names none of them: of 17 texts two have the same first digit. */
static void test_beginning_of_several(void **state)
{
    struct context c;
    struct butler_error err;
    struct seen seen = {0};
    int first[2] = {-1, -1};
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    for (int t = 0; t < 17; t++) {
        struct butler_session *session = open_session(&c, "full", library, 0);
        c.text[0] = 40 + t;
        read_text(session, c.text, 300);
        butler_session_free(session);
    }
    assert_int_equal(butler_library_list(library, see, &seen, &err), 17);
    for (int i = 0; i < 17; i++)
        for (int j = 0; j < i; j++)
            if (seen.entries[i].id[0] == seen.entries[j].id[0])
                first[0] = j, first[1] = i;
    assert_true(first[0] >= 0);
    char digit[2] = {seen.entries[first[0]].id[0]};
    assert_int_equal(butler_library_remove(library, digit, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "several"));
    seen.n = 0;
    assert_int_equal(butler_library_list(library, see, &seen, &err), 17);
    for (int i = 0; i < 2; i++)
        assert_int_equal(butler_library_remove(library, seen.entries[first[i]].id, &err), 1);
    assert_int_equal(butler_library_remove(library, NULL, &err), 15);
    butler_library_free(library);
    close_model(&c);
}

/* States belong to the texts that have their tokens: they are counted, copied and removed with them. */
static void test_entries_with_states(void **state)
{
    struct context c, copy;
    struct butler_error err;
    struct seen seen = {0};
    int32_t texts[2][N_PROMPT];
    int n;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    for (int t = 0; t < 2; t++) { /* the same document of 400 tokens */
        memcpy(texts[t], c.text, sizeof texts[t]);
        texts[t][450] += t;
        struct butler_session *session = open_session(&c, "h2o:budget=64", library, 0);
        assert_int_equal(butler_session_keep_at(session, 400, &err), 0);
        assert_int_equal(read_text(session, texts[t], N_PROMPT), t == 0 ? 0 : 400);
        butler_session_free(session);
    }
    struct butler_library_file *files = files_of(library, &n);
    uint64_t bytes_states = 0;
    int n_states = 0;
    for (int i = 0; i < n; i++) {
        n_states += files[i].state;
        bytes_states += files[i].state ? files[i].bytes : 0;
    }
    free(files);
    assert_int_equal(n_states, 3);
    assert_int_equal(butler_library_list(library, see, &seen, &err), 2);
    const struct butler_library_entry *one = &seen.entries[0], *other = &seen.entries[1];
    assert_true(one->shared > 0 && one->shared == other->shared && one->shared > bytes_states / 4);
    assert_true(one->bytes + other->bytes - one->shared == library->bytes);
    assert_int_equal(butler_library_verify(library, &err), 0);

    open_model(&copy, &models[0], 0);
    struct butler_library *to = open_library(&copy, 1 << 30);
    const int n_files = butler_library_export(library, one->id, to, &err);
    free(files_of(to, &n));
    assert_int_equal(n, n_files);
    assert_true(to->bytes == one->bytes);
    butler_library_free(to);
    close_model(&copy);

    /* The other text's state is left, and with it the document's; then nothing. */
    const uint64_t left = other->bytes;
    char id[33];
    memcpy(id, other->id, sizeof id);
    assert_int_equal(butler_library_remove(library, one->id, &err), 1);
    assert_true(library->bytes == left);
    struct butler_session *session = open_session(&c, "h2o:budget=64", library, 0);
    int longest = 0;
    for (int t = 0; t < 2; t++)
        longest = BUTLER_MAX(longest, butler_session_find_prefix(session, texts[t], N_PROMPT, &err));
    assert_int_equal(longest, N_PROMPT - 1);
    texts[0][410]++;
    assert_int_equal(butler_session_find_prefix(session, texts[0], N_PROMPT, &err), 400);
    butler_session_free(session);
    assert_int_equal(butler_library_remove(library, id, &err), 1);
    assert_int_equal(library->bytes, 0);

    /* Where the beginning of a text is gone, so is what its state is good for. */
    session = open_session(&c, "h2o:budget=64", library, 0);
    read_text(session, c.text, N_PROMPT);
    butler_session_free(session);
    files = files_of(library, &n);
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int j = 0; j < n; j++)
            before += butler_block_same(&files[j].id, &files[i].parent);
        char *path = butler_library_path(library, files[i].kind, files[i].name);
        if (!files[i].state && before == 0)
            unlink(path);
        free(path);
    }
    free(files);
    assert_int_equal(butler_library_verify(library, &err), n - 1);
    free(files_of(library, &n));
    assert_int_equal(n, 0);
    butler_library_free(library);
    close_model(&c);
}

/* The limit is one of all files: what a text's state takes is missing for the next text's rows. */
static void test_limit_with_states(void **state)
{
    struct context c;
    uint64_t bytes = 0;
    int n, n_states = 0;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "h2o:budget=64", library, 0);
    read_text(session, c.text, N_PROMPT);
    butler_session_free(session);
    const uint64_t one = library->bytes;
    butler_library_free(library);

    library = open_library(&c, one); /* full to the byte */
    assert_true(library->bytes == one);
    usleep(20000); /* times of files are as coarse as the system's clock ticks */
    c.text[0]++;
    session = open_session(&c, "h2o:budget=64", library, 0);
    assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
    butler_session_free(session);
    struct butler_library_file *files = files_of(library, &n);
    for (int i = 0; i < n; i++) {
        bytes += files[i].bytes;
        n_states += files[i].state;
    }
    free(files);
    assert_int_equal(n_states, 1); /* the second text's: the first one's went */
    assert_true(bytes == library->bytes && bytes <= one);
    butler_library_free(library);
    close_model(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_entries), cmocka_unit_test(test_beginning_of_several),
                                       cmocka_unit_test(test_entries_with_states), cmocka_unit_test(test_limit_with_states)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
