/* The library as its owner sees it: texts that are listed, removed, checked and copied. No model is needed. See library.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "engine/library.h"

/* A state is of texts that have the block: its tokens are the block's first ones, or stand behind it where rows of them were not
 * worth a file. */
struct owner {
    int state, block; /* files */
};

/* All files of a library as forests of blocks. */
struct forest {
    struct butler_library_file *files; /* blocks, sorted by kind and id; behind them states */
    int n, n_states;
    int *parents;    /* [n] the file before it; -1: there is none */
    int *n_children; /* [n] */
    int *n_texts;    /* [n] texts that go through it */
    struct owner *owners;
    int n_owners;
};

static void forest_free(struct forest *forest)
{
    free(forest->files);
    free(forest->parents);
    free(forest->owners);
}

/* The file of this kind and id, or NULL. */
static const struct butler_library_file *block_of(const struct forest *forest, const char *kind, const struct butler_block_id *id)
{
    struct butler_library_file key = {.id = *id};
    snprintf(key.kind, sizeof key.kind, "%s", kind);
    return forest->n > 0 ? bsearch(&key, forest->files, (size_t)forest->n, sizeof key, butler_library_by_id) : NULL;
}

static int forest_make(const struct butler_library *library, struct forest *forest, struct butler_error *err)
{
    *forest = (struct forest){0};
    int n = 0;
    const int n_files = butler_library_files(library, NULL, true, &forest->files, err);
    if (n_files < 0)
        return n_files;
    for (int i = 0; i < n_files; i++)
        if (!forest->files[i].state) {
            const struct butler_library_file block = forest->files[i];
            forest->files[i] = forest->files[n];
            forest->files[n++] = block;
        }
    forest->n = n;
    forest->n_states = n_files - n;
    if (!(forest->parents = butler_alloc((size_t)(3 * n + 1) * sizeof *forest->parents, err))) {
        forest_free(forest);
        return BUTLER_ERROR_MEMORY;
    }
    forest->n_children = forest->parents + n;
    forest->n_texts = forest->n_children + n;
    if (n > 0)
        qsort(forest->files, (size_t)n, sizeof *forest->files, butler_library_by_id);
    for (int i = 0; i < n; i++) {
        const struct butler_library_file *parent = block_of(forest, forest->files[i].kind, &forest->files[i].parent);
        forest->parents[i] = parent ? (int)(parent - forest->files) : -1;
        if (parent)
            forest->n_children[forest->parents[i]]++;
    }
    for (int i = 0; i < n; i++)
        for (int at = i, depth = 0; forest->n_children[i] == 0 && at >= 0 && depth <= n; at = forest->parents[at], depth++)
            forest->n_texts[at]++;
    return 0;
}

static bool add_owner(struct forest *forest, size_t *capacity, int state, int block)
{
    if (!butler_grow(&forest->owners, (size_t)forest->n_owners + 1, capacity, sizeof *forest->owners))
        return false;
    forest->owners[forest->n_owners++] = (struct owner){state, block};
    return true;
}

/* Finds the blocks of state s. False: no memory. */
static bool find_owners(struct butler_library *library, struct forest *forest, size_t *capacity, int s)
{
    const struct butler_library_file *files = forest->files, *state = &files[s];
    struct butler_block_file tokens, block;
    const int before = forest->n_owners;
    bool good = true;
    if (!butler_library_open_block(library, state, &tokens))
        return true;
    for (int i = 0; i < forest->n && good; i++) {
        if (strcmp(files[i].kind, state->kind) != 0 || !butler_block_same(&files[i].parent, &state->parent) ||
            !butler_library_open_block(library, &files[i], &block))
            continue;
        const int n = tokens.header.n;
        if (block.header.n >= n && memcmp(block.tokens, tokens.tokens, (size_t)n * sizeof *tokens.tokens) == 0)
            good = add_owner(forest, capacity, s, i);
        butler_block_close(&block);
    }
    const struct butler_library_file *before_it = block_of(forest, state->kind, &state->parent);
    if (forest->n_owners == before && good && before_it)
        good = add_owner(forest, capacity, s, (int)(before_it - files));
    butler_block_close(&tokens);
    return good;
}

/* As forest_make, and finds whose the states are. */
static int forest_make_all(struct butler_library *library, struct forest *forest, struct butler_error *err)
{
    size_t capacity = 0;
    const int code = forest_make(library, forest, err);
    for (int s = forest->n; code == 0 && s < forest->n + forest->n_states; s++)
        if (!find_owners(library, forest, &capacity, s)) {
            forest_free(forest);
            return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to list it", library->folder);
        }
    return code;
}

/* Texts that have state s. */
static int n_texts_of(const struct forest *forest, int s)
{
    int n = 0;
    for (int i = 0; i < forest->n_owners; i++)
        n += forest->owners[i].state == s ? forest->n_texts[forest->owners[i].block] : 0;
    return n;
}

static bool is_text(const struct forest *forest, int i)
{
    return forest->n_children[i] == 0;
}

static void print_id(const struct butler_block_id *id, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)id->high, (unsigned long long)id->low);
}

/* The text that ends with file i. False: the file cannot be used. */
static bool describe(struct butler_library *library, const struct forest *forest, int i, struct butler_library_entry *entry)
{
    struct butler_block_file block;
    int first = i;
    *entry = (struct butler_library_entry){.struct_size = sizeof *entry, .used_ns = forest->files[i].used_ns};
    if (!butler_library_open_block(library, &forest->files[i], &block))
        return false;
    print_id(&block.header.id, entry->id);
    memcpy(entry->model, block.header.model, sizeof entry->model);
    memcpy(entry->isa, block.header.isa, sizeof entry->isa);
    memcpy(entry->end, block.header.text, sizeof entry->end);
    entry->model_fingerprint = block.header.fingerprint;
    entry->kv_type = block.header.kv_type;
    entry->n_tokens = block.header.first + block.header.n;
    butler_block_close(&block);
    for (int at = i, depth = 0; at >= 0 && depth <= forest->n; first = at, at = forest->parents[at], depth++) {
        entry->bytes += forest->files[at].bytes;
        entry->shared += forest->n_texts[at] > 1 ? forest->files[at].bytes : 0;
        for (int o = 0; o < forest->n_owners; o++) {
            const int s = forest->owners[o].state;
            if (forest->owners[o].block != at)
                continue;
            entry->bytes += forest->files[s].bytes;
            entry->shared += n_texts_of(forest, s) > 1 ? forest->files[s].bytes : 0;
        }
    }
    if (!butler_library_open_block(library, &forest->files[first], &block))
        return false;
    entry->broken = block.header.first > 0;
    memcpy(entry->text, block.header.text, sizeof entry->text);
    butler_block_close(&block);
    return true;
}

static int latest_first(const void *a, const void *b)
{
    const int64_t x = ((const struct butler_library_entry *)a)->used_ns, y = ((const struct butler_library_entry *)b)->used_ns;
    return (x < y) - (x > y);
}

int butler_library_list(struct butler_library *library, butler_library_entry_fn *fn, void *user, struct butler_error *err)
{
    struct forest forest;
    int n = 0;
    if (BUTLER_IS_NULL(library, err) || BUTLER_IS_NULL(fn, err))
        return BUTLER_ERROR_ARGUMENT;
    const int code = forest_make_all(library, &forest, err);
    if (code < 0)
        return code;
    struct butler_library_entry *entries = butler_alloc((size_t)(forest.n + 1) * sizeof *entries, err);
    for (int i = 0; entries && i < forest.n; i++)
        if (is_text(&forest, i) && describe(library, &forest, i, &entries[n]))
            n++;
    if (entries && n > 0)
        qsort(entries, (size_t)n, sizeof *entries, latest_first);
    for (int i = 0; entries && i < n; i++)
        if (!fn(user, &entries[i]))
            break;
    forest_free(&forest);
    const bool failed = !entries;
    free(entries);
    return failed ? BUTLER_ERROR_MEMORY : n;
}

static bool is_named(const struct forest *forest, int i, const char *id)
{
    char text[33];
    print_id(&forest->files[i].id, text);
    return is_text(forest, i) && (!id || strncmp(text, id, strlen(id)) == 0);
}

static int fail_id(const struct butler_library *library, const char *id, bool several, struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: %s '%s'", library->folder,
                       several ? "several texts' ids begin with" : "has no text", id);
}

static void remove_file(struct butler_library *library, const struct butler_library_file *file)
{
    char *path = butler_library_path(library, file->kind, file->name);
    if (path)
        butler_library_unlink(library, path, file->bytes);
    free(path);
}

/* Removes the text that ends with file i: its files from the end on, up to the first that another text has. */
static void remove_text(struct butler_library *library, struct forest *forest, int i)
{
    for (int at = i, depth = 0; at >= 0 && depth <= forest->n; at = forest->parents[at], depth++) {
        if (--forest->n_texts[at] == 0)
            remove_file(library, &forest->files[at]);
        for (int o = 0; o < forest->n_owners; o++)
            if (forest->owners[o].block == at && n_texts_of(forest, forest->owners[o].state) == 0)
                remove_file(library, &forest->files[forest->owners[o].state]);
    }
}

int butler_library_remove(struct butler_library *library, const char *id, struct butler_error *err)
{
    struct forest forest;
    int n = 0;
    if (BUTLER_IS_NULL(library, err))
        return BUTLER_ERROR_ARGUMENT;
    if (id && !*id)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: which text is to be removed? The id is empty", library->folder);
    const int code = forest_make_all(library, &forest, err);
    if (code < 0)
        return code;
    const struct butler_library_file *first = NULL; /* several kinds may have a text of the same id */
    bool several = false;
    for (int i = 0; i < forest.n && id; i++)
        if (is_named(&forest, i, id)) {
            first = first ? first : &forest.files[i];
            several |= !butler_block_same(&first->id, &forest.files[i].id);
        }
    for (int i = 0; i < forest.n && !several; i++)
        if (is_named(&forest, i, id)) {
            remove_text(library, &forest, i);
            n++;
        }
    for (int s = forest.n; !id && s < forest.n + forest.n_states; s++) /* of texts whose rows are gone, too */
        remove_file(library, &forest.files[s]);
    forest_free(&forest);
    if (id && n == 0)
        return fail_id(library, id, several, err);
    return n;
}

/* Whether all chunks of the file are as they were written; what is not is removed. */
static bool check_rows(struct butler_library *library, const struct butler_library_file *file)
{
    struct butler_block_file block;
    struct butler_error err = {0};
    if (!butler_library_open_block(library, file, &block))
        return false;
    int code = butler_library_reserve(library, (size_t)block.header.chunk_bytes, &err) ? 0 : err.code;
    for (int i = 0; i < block.header.n_chunks && code == 0; i++)
        code = butler_block_read(&block, i, library->buffer, &err);
    if (code < 0)
        butler_library_drop(library, block.path, file->bytes, &err);
    butler_block_close(&block);
    return code == 0;
}

/* Removes a file if it begins behind what is gone. */
static int remove_behind(struct butler_library *library, const struct butler_library_file *file)
{
    struct butler_block_file block;
    if (!butler_library_open_block(library, file, &block))
        return 0;
    bool gone = false;
    if (block.header.first > 0) {
        butler_library_say(library, "%s: what stands before it is gone; it is removed", block.path);
        butler_library_unlink(library, block.path, block.bytes);
        gone = access(block.path, F_OK) != 0;
    }
    butler_block_close(&block);
    return gone;
}

/* Removes what cannot be reached any more: each round takes the files behind what the one before took. */
static int remove_broken(struct butler_library *library, struct butler_error *err)
{
    struct forest forest;
    int n = 0, n_round;
    do {
        const int code = forest_make(library, &forest, err);
        if (code < 0)
            return code;
        n_round = 0;
        for (int i = 0; i < forest.n + forest.n_states; i++)
            if (!block_of(&forest, forest.files[i].kind, &forest.files[i].parent))
                n_round += remove_behind(library, &forest.files[i]);
        forest_free(&forest);
        n += n_round;
    } while (n_round > 0);
    return n;
}

int butler_library_verify(struct butler_library *library, struct butler_error *err)
{
    struct forest forest;
    int n = 0;
    if (BUTLER_IS_NULL(library, err))
        return BUTLER_ERROR_ARGUMENT;
    const int code = forest_make(library, &forest, err);
    if (code < 0)
        return code;
    for (int i = 0; i < forest.n + forest.n_states; i++)
        n += !check_rows(library, &forest.files[i]);
    forest_free(&forest);
    const int n_broken = remove_broken(library, err);
    return n_broken < 0 ? n_broken : n + n_broken;
}

/* ------------------------------------------------------------------------------------------------ exporting */

static int copy_chunk(void *block, int i, void *buffer, struct butler_error *err)
{
    return butler_block_read(block, i, buffer, err);
}

static int copy_block(struct butler_library *library, const struct butler_library_file *file, struct butler_library *to,
                      struct butler_error *err)
{
    struct butler_block_file block;
    if (!butler_library_open_block(library, file, &block))
        return butler_fail(err, BUTLER_ERROR_IO, "%s: %s cannot be read", library->folder, file->name);
    struct butler_block_header header = block.header;
    char *path = butler_library_path(to, file->kind, file->name), *folder = butler_library_path(to, "", file->kind);
    int code = path && folder ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a name", to->folder);
    if (code == 0 && mkdir(folder, 0700) != 0 && errno != EEXIST)
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", folder, strerror(errno));
    if (code == 0 && to->bytes + block.bytes > to->max_bytes) /* no other text goes for it */
        code = butler_fail(err, BUTLER_ERROR_LENGTH, "%s: full: it may have %llu bytes (--cache-size)", to->folder,
                           (unsigned long long)to->max_bytes);
    if (code == 0 && !butler_library_reserve(to, (size_t)header.chunk_bytes, err))
        code = BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = butler_block_write(path, &header, block.tokens, copy_chunk, &block, to->buffer, err);
    to->bytes += code == 0 ? block.bytes : 0;
    free(folder);
    free(path);
    butler_block_close(&block);
    return code;
}

int butler_library_export(struct butler_library *library, const char *id, struct butler_library *to, struct butler_error *err)
{
    struct forest forest;
    int n = 0, found = -1, n_found = 0;
    if (BUTLER_IS_NULL(library, err) || BUTLER_IS_NULL(id, err))
        return BUTLER_ERROR_ARGUMENT;
    int code = forest_make_all(library, &forest, err);
    if (code < 0)
        return code;
    for (int i = 0; i < forest.n; i++)
        if (is_named(&forest, i, id)) {
            found = i;
            n_found++;
        }
    if (n_found != 1)
        code = fail_id(library, id, n_found > 1, err);
    for (int at = found, depth = 0; code == 0 && at >= 0 && depth <= forest.n; at = forest.parents[at], depth++) {
        code = to ? copy_block(library, &forest.files[at], to, err) : 0;
        n++;
        for (int o = 0; o < forest.n_owners && code == 0; o++)
            if (forest.owners[o].block == at) {
                code = to ? copy_block(library, &forest.files[forest.owners[o].state], to, err) : 0;
                n++;
            }
    }
    forest_free(&forest);
    return code < 0 ? code : n;
}
