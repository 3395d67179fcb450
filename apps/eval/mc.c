/* Multiple choice as lm-evaluation-harness scores it: a question's answers are compared by the logarithm of their
 * probability after the context. The common beginning of the choices is read once; then the session is copied for each choice.
 * Decode simulation (TokenButler, section 4.3): every token is decoded under the policy. Mode prefill: the common context is
 * read densely and its last token decoded again, so that every probability comes from a step under the policy. With
 * --set reads=prompt there are no steps: texts are read as prompts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mc.h"
#include "words.h"

enum { CORRECT, CORRECT_NORM, LOG_PROB, N_VALUES = LOG_PROB + MC_MAX_CHOICES };

/* One context and one answer. ids[n_ids] is owned by the item; ids[first] is the answer's first token. */
struct choice {
    int32_t *ids;
    int n_ids, first, n_characters;
};

struct question {
    int n_choices, gold;
    struct choice choices[MC_MAX_CHOICES];
};

static void free_question(void *own)
{
    struct question *question = own;
    for (int i = 0; question && i < question->n_choices; i++)
        free(question->choices[i].ids);
    free(question);
}

/* eval_run.own. */
struct set {
    enum mc_kind kind;
    bool as_prompt;
};

/* ------------------------------------------------------------------------------------------------- loading */

#define KINDS "hellaswag, piqa, arc_easy, winogrande, boolq, lambada, bbh, mmlu_pro"
static int find_kind(const struct eval_run *run, enum mc_kind *kind, struct butler_error *err)
{
    static const char *const parts[MC_N_KINDS] = {"hellaswag", "piqa", "arc", "winogrande", "boolq", "lambada", "bbh", "mmlu"};
    const char *name = eval_option_text(run, "subset"), *path = run->params->data;
    if (!path)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--data: mc needs a file of questions");
    const char *slash = strrchr(path, '/');
    for (int i = 0; i < MC_N_KINDS; i++)
        if (*name ? strcmp(name, mc_kind_name((enum mc_kind)i)) == 0 : strcasestr(slash ? slash + 1 : path, parts[i]) != NULL) {
            *kind = (enum mc_kind)i;
            return 0;
        }
    return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                       *name ? "--set subset: '%s' is none of " KINDS
                             : "--set subset=NAME: %s does not name its set, one of " KINDS,
                       *name ? name : path);
}

/* Whether texts are read as prompts, which attend densely under every policy. */
static int find_reading(const struct eval_run *run, bool *as_prompt, struct butler_error *err)
{
    const char *reads = eval_option_text(run, "reads");
    *as_prompt = strcmp(reads, "prompt") == 0;
    if (!*as_prompt && strcmp(reads, "steps") != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set reads: '%s' is neither steps nor prompt", reads);
    for (int p = 0; *as_prompt && p < run->n_policies; p++)
        if (run->policies[p].parts.metric)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                               "--set reads=prompt: prompts are read densely, so %s would change nothing",
                               run->policies[p].parts.name);
    return 0;
}

/* Tokens of context + answer. The answer begins after the tokens of the context alone, as the harness counts: spaces at the end
 * of the context belong to the answer. */
static int encode(const struct eval_run *run, const char *context, const char *answer, struct choice *choice,
                  struct butler_error *err)
{
    struct eval_ids ids = {0}, whole = {0};
    char *text = NULL;
    size_t n = strlen(context);
    const struct eval_span stripped = eval_strip((struct eval_span){context, n});
    n = stripped.n ? (size_t)(stripped.bytes - context) + stripped.n : 0;
    int code = eval_ids_begin(&ids, run->model, err);
    const int n_begin = ids.n;
    if (code == 0 && (asprintf(&text, "%s%s", context, answer) < 0 || !text))
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a text");
    if (code == 0)
        code = eval_ids_text(&whole, run->model, text, err);
    if (code == 0) {
        text[n] = 0;
        code = eval_ids_text(&ids, run->model, text, err);
    }
    const int first = ids.n, after = first - n_begin;
    if (code == 0 && first == 0)
        code = butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "there is no token before the answer, and the model has no beginning-of-text token");
    else if (code == 0 && after >= whole.n)
        code = butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "an answer of no token: the context alone has %d, both together %d",
                           after, whole.n);
    if (code == 0)
        code = eval_ids_append(&ids, whole.ids + after, whole.n - after, err);
    if (code == 0 && ids.n - first > run->length)
        code = butler_fail(err, BUTLER_ERROR_LENGTH, "an answer of %d tokens, more than --length %d", ids.n - first, run->length);
    if (code == 0) { /* what does not fit is cut off at the beginning; the last token is never decoded */
        const int cut = BUTLER_MAX(0, ids.n - (run->length + 1));
        memmove(ids.ids, ids.ids + cut, (size_t)(ids.n - cut) * sizeof *ids.ids);
        choice->ids = ids.ids;
        choice->n_ids = ids.n - cut;
        choice->first = first - cut;
        ids.ids = NULL;
    }
    eval_ids_free(&ids);
    eval_ids_free(&whole);
    free(text);
    return code;
}

/* Length of the common beginning of all choices, without tokens that are predicted. */
static int common_prefix(const struct question *question)
{
    const struct choice *a = &question->choices[0];
    int n = a->first;
    for (int i = 1; i < question->n_choices; i++) {
        const struct choice *b = &question->choices[i];
        int same = 0;
        while (same < n && same < b->first && a->ids[same] == b->ids[same])
            same++;
        n = same;
    }
    return n;
}

/* shots: text of solved questions before every context. */
static int add_question(struct eval_run *run, const struct mc_question *from, const char *shots, struct butler_error *err)
{
    struct question *question = butler_alloc(sizeof *question, err);
    int code = question ? 0 : BUTLER_ERROR_MEMORY, longest = 0;
    for (int i = 0; i < from->n_choices && code == 0; i++) {
        struct choice *choice = &question->choices[question->n_choices++];
        choice->n_characters = from->n_characters[i];
        char *context = NULL;
        if (asprintf(&context, "%s%s", shots, from->contexts[i]) < 0)
            code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a text");
        else {
            code = encode(run, context, from->answers[i], choice, err);
            free(context);
        }
        longest = BUTLER_MAX(longest, choice->n_ids - 1);
    }
    struct eval_item *item = NULL;
    if (code == 0) {
        question->gold = from->gold;
        const int n = common_prefix(question);
        item = eval_item_add(run, question->choices[0].ids, n, n, err);
        code = item ? 0 : BUTLER_ERROR_MEMORY;
        if (item) {
            item->n_extra = longest - n;
            item->repeats_last = true;
            item->own = question;
        }
    }
    if (code < 0)
        free_question(question);
    return code;
}

/* The text `before`, then the reader's next n questions with their right answers, each followed by an empty line, as the harness
 * writes them. *out is owned. */
static int read_shots(struct mc_reader *reader, const char *before, int n, char **out, struct butler_error *err)
{
    struct mc_question question;
    size_t n_out = 0;
    FILE *text = open_memstream(out, &n_out);
    if (text)
        fputs(before, text);
    int code = text ? 1 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for examples");
    for (int i = 0; i < n && code > 0; i++) {
        code = mc_reader_next(reader, &question, err);
        if (code == 0)
            code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %d questions, but --set shots is %d", reader->lines.path, i, n);
        if (code > 0)
            fprintf(text, "%s%s\n\n", question.contexts[question.gold], question.answers[question.gold]);
        mc_question_clear(&question);
    }
    if (text && fclose(text) != 0 && code > 0)
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for examples");
    return BUTLER_MIN(code, 0);
}

/* The text before every question: option shots questions of file examples, or the first of the data, which are then not asked. */
static int load_shots(struct eval_run *run, enum mc_kind kind, struct mc_reader *data, char **out, struct butler_error *err)
{
    const char *path = eval_option_text(run, "examples"), *before = eval_option_text(run, "before");
    struct mc_reader other;
    int n = 0;
    int code = eval_option_int(run, "shots", 0, 1000, &n, err);
    if (code < 0 || !*path)
        return code < 0 ? code : read_shots(data, before, n, out, err);
    if ((code = mc_reader_open(run, &other, kind, path, err)) < 0)
        return code;
    code = read_shots(&other, before, n, out, err);
    mc_reader_close(&other);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct mc_reader reader;
    struct mc_question question;
    char *shots = NULL;
    struct set *set = run->own = butler_alloc(sizeof *set, err);
    if (!set)
        return BUTLER_ERROR_MEMORY;
    int code = find_kind(run, &set->kind, err), flag;
    if (code == 0)
        code = eval_option_int(run, "items", 0, 1, &flag, err);
    if (code == 0)
        code = find_reading(run, &set->as_prompt, err);
    if (code == 0)
        code = mc_reader_open(run, &reader, set->kind, run->params->data, err);
    if (code < 0)
        return code;
    run->length = run->length ? run->length : run->info->n_ctx_train;
    run->subset = mc_kind_name(set->kind);
    run->n_values = N_VALUES;
    code = load_shots(run, set->kind, &reader, &shots, err);
    while (code >= 0 && (run->limit == 0 || run->items.n < run->limit) && (code = mc_reader_next(&reader, &question, err)) > 0) {
        struct butler_error fault = {0};
        code = add_question(run, &question, shots, &fault);
        mc_question_clear(&question);
        if (code < 0) {
            butler_fail(err, code, "%s:%d: %s", reader.lines.path, reader.lines.line, fault.message);
            break;
        }
    }
    mc_reader_close(&reader);
    free(shots);
    return BUTLER_MIN(code, 0);
}

/* ----------------------------------------------------------------------------------------------- measuring */

/* Decodes the rest of a choice; ln p of its answer. */
static int follow(struct eval_trial *trial, const struct choice *choice, double *log_prob, bool *greedy, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    struct butler_session *session = trial->session;
    *log_prob = 0;
    *greedy = true;
    for (int i = butler_n_past(session);; i++) {
        if (i >= choice->first) {
            const float *logits = butler_logits(session);
            *log_prob += eval_log_prob(logits, run->info->n_vocab, choice->ids[i]);
            *greedy = *greedy && eval_argmax(logits, run->info->n_vocab) == choice->ids[i];
        }
        if (i + 1 == choice->n_ids)
            return 0;
        const int code = eval_step(trial, choice->ids[i], err);
        if (code < 0)
            return code;
    }
}

/* A choice whose logits come while it is read as a prompt. */
struct scored {
    const struct choice *choice;
    int n_vocab;
    double log_prob;
    bool greedy;
};

static bool on_logits(void *user, int position, const float *logits)
{
    struct scored *scored = user;
    const int next = position + 1;
    if (next >= scored->choice->first && next < scored->choice->n_ids) {
        const int32_t id = scored->choice->ids[next];
        scored->log_prob += eval_log_prob(logits, scored->n_vocab, id);
        scored->greedy = scored->greedy && eval_argmax(logits, scored->n_vocab) == id;
    }
    return true;
}

/* ln p of every answer, its text read as a prompt. What all texts begin with is read once: but for its last token, whose logits
 * each of them needs. */
static int read_choices(struct eval_trial *trial, bool *greedy, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct question *question = trial->item->own;
    for (int i = 0; i < question->n_choices; i++) {
        const struct choice *choice = &question->choices[i];
        struct scored scored = {choice, run->info->n_vocab, 0, true};
        const int n_kept = i > 0 ? BUTLER_MAX(trial->item->n_ids - 1, 0) : 0;
        int code = eval_check_stop(run, err);
        if (code == 0)
            code = butler_session_truncate(trial->session, n_kept, err);
        if (code == 0)
            code = butler_prefill(trial->session, choice->ids + n_kept, choice->n_ids - 1 - n_kept, on_logits, &scored, err);
        if (code < 0)
            return code;
        trial->values[LOG_PROB + i] = scored.log_prob;
        *greedy = scored.greedy;
    }
    return 0;
}

/* ln p of every answer, each of its tokens after a step under the policy. */
static int decode_choices(struct eval_trial *trial, bool *greedy, struct butler_error *err)
{
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    const struct question *question = item->own;
    struct butler_session *beginning = NULL, *dense = NULL; /* the common beginning of all choices */
    int code = 0;
    for (int i = butler_n_past(session); i < item->n_ids && code == 0; i++)
        code = eval_step(trial, item->ids[i], err);
    if (code == 0 && question->n_choices > 1) {
        beginning = butler_session_fork(session, err);
        code = beginning ? 0 : BUTLER_ERROR_MEMORY;
        if (code == 0 && trial->dense && !(dense = butler_session_fork(trial->dense, err)))
            code = BUTLER_ERROR_MEMORY;
    }
    for (int i = 0; i < question->n_choices && code == 0; i++) {
        if (i > 0 && butler_n_past(session) != item->n_ids) {
            code = butler_session_copy(session, beginning, err);
            if (code == 0 && dense)
                code = butler_session_copy(trial->dense, dense, err);
        }
        if (code == 0)
            code = follow(trial, &question->choices[i], &trial->values[LOG_PROB + i], greedy, err);
    }
    butler_session_free(beginning);
    butler_session_free(dense);
    return code;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct question *question = trial->item->own;
    const struct choice *choices = question->choices;
    const struct set *set = trial->run->own;
    double *values = trial->values;
    int best = 0, best_norm = 0;
    bool greedy = false;
    const int code = set->as_prompt ? read_choices(trial, &greedy, err) : decode_choices(trial, &greedy, err);
    for (int i = 1; i < question->n_choices; i++) {
        best = values[LOG_PROB + i] > values[LOG_PROB + best] ? i : best;
        if (values[LOG_PROB + i] / choices[i].n_characters > values[LOG_PROB + best_norm] / choices[best_norm].n_characters)
            best_norm = i;
    }
    values[CORRECT] = set->kind == MC_LAMBADA ? greedy : best == question->gold;
    values[CORRECT_NORM] = best_norm == question->gold;
    return code;
}

/* ---------------------------------------------------------------------------------------------------- rows */

static struct eval_row share_row(const struct eval_run *run, const char *metric, const double *values, int which)
{
    struct eval_row row = {.metric = metric, .n = run->items.n};
    double right = 0;
    for (int i = 0; i < run->items.n; i++)
        right += values[i * N_VALUES + which];
    row.value = right / run->items.n;
    eval_wilson(right, run->items.n, &row.lo, &row.hi);
    return row;
}

/* Every item's log-likelihoods, in order. */
static json_t *items_of(const struct eval_run *run, const double *values)
{
    json_t *out = json_array();
    for (int i = 0; i < run->items.n; i++) {
        const struct question *question = run->items.items[i].own;
        json_t *item = json_array();
        for (int c = 0; c < question->n_choices; c++)
            json_array_append_new(item, json_real(values[i * N_VALUES + LOG_PROB + c]));
        json_array_append_new(out, item);
    }
    return json_pack("{s:o}", "items", out);
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    const enum mc_kind kind = ((const struct set *)run->own)->kind;
    const int n_items = run->items.n;
    int n = 0, with_items;
    out[n++] = share_row(run, "accuracy", values, CORRECT);
    if (kind == MC_HELLASWAG || kind == MC_PIQA || kind == MC_ARC_EASY || kind == MC_BBH)
        out[n++] = share_row(run, "acc_norm", values, CORRECT_NORM);
    if (kind == MC_LAMBADA) {
        double *nll = butler_alloc((size_t)n_items * 2 * sizeof *nll, err), sum = 0, lo, hi;
        if (!nll)
            return BUTLER_ERROR_MEMORY;
        for (int i = 0; i < n_items; i++) {
            nll[2 * i] = -values[i * N_VALUES + LOG_PROB];
            nll[2 * i + 1] = 1;
            sum += nll[2 * i];
        }
        eval_ratio_interval(nll, nll + 1, 2, n_items, &lo, &hi);
        free(nll);
        out[n++] = (struct eval_row){"ppl", exp(sum / n_items), exp(lo), exp(hi), n_items, NULL};
    }
    if (eval_option_int(run, "items", 0, 1, &with_items, err) == 0 && with_items)
        out[0].detail = items_of(run, values);
    return n;
}

static const struct eval_option options[] = {
    {"subset", "", KINDS "; without it, from the file's name"},
    {"shots", "0", "solved questions before each: the first of examples, or of the data, where they are then not asked"},
    {"before", "", "a text before all of that, such as the harness's description of a BBH task"},
    {"examples", "", "a file of the same form for shots"},
    {"items", "0", "1: the first row's detail has the log-likelihood of every choice"},
    {"reads", "steps", "prompt: every text is read as a prompt, as a server scores it; only under dense policies"},
    EVAL_COMMON_OPTIONS,
    {NULL, NULL, NULL},
};

const struct eval_task eval_mc = {
    .name = "mc",
    .summary = "HellaSwag, PIQA, ARC, WinoGrande, BoolQ, LAMBADA, BBH, MMLU-Pro, scored as lm-evaluation-harness does",
    .data = "a file of HellaSwag, BBH or MMLU-Pro (MIT), PIQA (AFL-3.0), ARC (CC BY-SA), WinoGrande (CC BY), BoolQ (CC BY-SA) or "
            "LAMBADA (CC BY)",
    .work = "decodes the question and every choice; --mode prefill reads the question",
    .details = "--data is one set's file, --length the longest text (what is longer loses its beginning), --limit questions.\n",
    .options = options,
    .simulate = true,
    .load = load,
    .run = measure,
    .rows = rows,
    .free_own = free_question,
};
