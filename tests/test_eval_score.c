/* Scores of answers against what the published scorers gave (tests/data/scores.json, from tools/fixtures/make_score_fixture.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "eval/eval.h"
#include "eval/score.h"
#include "eval/words.h"
#include "fixtures.h"

static double score_of(const json_t *row, const char *kind, const char *answer, const char *right)
{
    struct butler_error err = {0};
    const char *names[16];
    double score = NAN;
    int code = -1, n = 0;
    if (strcmp(kind, "f1") == 0)
        code = eval_score_f1(answer, right, &score, &err);
    else if (strcmp(kind, "rouge_l") == 0)
        code = eval_score_rouge_l(answer, right, &score, &err);
    else if (strcmp(kind, "edit") == 0)
        code = eval_score_edit(answer, right, &score, &err);
    else if (strcmp(kind, "number") == 0) {
        const char *before = json_string_value(json_object_get(row, "before"));
        code = eval_score_number(answer, right, *before ? before : NULL, &score, &err);
    } else if (strcmp(kind, "class") == 0) {
        const json_t *classes = json_object_get(row, "classes");
        for (; n < (int)json_array_size(classes) && n < BUTLER_COUNT(names); n++)
            names[n] = json_string_value(json_array_get(classes, (size_t)n));
        code = eval_score_class(answer, right, names, n, &score, &err);
    }
    if (code < 0)
        fail_msg("%s: '%s' against '%s': %s", kind, answer, right, err.message);
    return score;
}

/* Three scores at once. */
static void check_rouge(size_t i, const json_t *row, const char *answer, const char *right)
{
    struct butler_error err = {0};
    double scores[EVAL_N_ROUGE];
    assert_int_equal(eval_score_rouge(answer, right, scores, &err), 0);
    for (size_t k = 0; k < EVAL_N_ROUGE; k++) {
        const double expected = json_number_value(json_array_get(json_object_get(row, "score"), k));
        if (!(fabs(scores[k] - expected) <= 1e-12))
            fail_msg("row %zu, rouge %zu: '%s' against '%s' scores %.17g, the published scorer says %.17g", i, k, answer, right,
                     scores[k], expected);
    }
}

static void test_published(void **state)
{
    char path[FIXTURE_PATH];
    json_error_t fault;
    size_t i, n_rouge = 0;
    json_t *row;
    (void)state;
    fixture_path(path, "scores.json");
    json_t *rows = json_load_file(path, 0, &fault);
    assert_true(json_array_size(rows) > 300);
    json_array_foreach(rows, i, row)
    {
        const char *kind = json_string_value(json_object_get(row, "kind"));
        const char *answer = json_string_value(json_object_get(row, "answer"));
        const char *right = json_string_value(json_object_get(row, "right"));
        if (strcmp(kind, "rouge") == 0) {
            check_rouge(i, row, answer, right);
            n_rouge++;
            continue;
        }
        const double expected = json_number_value(json_object_get(row, "score")), score = score_of(row, kind, answer, right);
        if (!(fabs(score - expected) <= 1e-12))
            fail_msg("row %zu, %s: '%s' against '%s' scores %.17g, the published scorer says %.17g", i, kind, answer, right, score,
                     expected);
    }
    assert_true(n_rouge > 70);
    json_decref(rows);
}

/* If the data's answers name no paragraph, that is an error in the data, and reported as such. */
static void test_bad_truth(void **state)
{
    struct butler_error err = {0};
    double score;
    (void)state;
    assert_true(eval_score_number("3", "Paragraph three", "Paragraph ", &score, &err) < 0);
    assert_non_null(strstr(err.message, "Paragraph three"));
}

/* Bytes that are not UTF-8 count as characters: a model may write anything. */
static void test_any_bytes(void **state)
{
    struct butler_error err;
    double score;
    (void)state;
    assert_int_equal(eval_score_f1("\xff\xfe the \xc3", "cat", &score, &err), 0);
    assert_int_equal(eval_score_rouge_l("\xff. \xc3", "cat", &score, &err), 0);
    assert_int_equal(eval_score_edit("\xff\xc3", "\xe2\x82", &score, &err), 0);
    assert_true(score == 1); /* U+FFFD on both sides */
    assert_int_equal(eval_count_characters("a\xff\xc3\xa9"), 3);
}

/* Probabilities 1/2, 1/4, 1/4 and 1/4, 1/2, 1/4, from logits that are shifted: KL = 1/2 ln 2 - 1/4 ln 2. */
static void test_divergence(void **state)
{
    const float p[] = {1 + 0.6931472f, 1, 1}, q[] = {-3, -3 + 0.6931472f, -3};
    (void)state;
    assert_float_equal(eval_divergence(p, q, 3), 0.25 * log(2), 1e-6);
    assert_float_equal(eval_divergence(p, p, 3), 0, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_bad_truth),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_divergence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
