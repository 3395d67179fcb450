/* Memory that grows (base/buffer.h). */
#include "fixtures.h"
#include "base/buffer.h"

static void test_appends(void **state)
{
    struct butler_buffer buffer = {0};
    (void)state;
    butler_buffer_append(&buffer, NULL, 0);
    assert_null(buffer.bytes);
    for (int i = 0; i < 1000; i++)
        butler_buffer_printf(&buffer, "%d,", i);
    butler_buffer_append(&buffer, "end", 3);
    assert_int_equal(buffer.n, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    char *text = butler_buffer_take(&buffer);
    assert_int_equal(strlen(text), 10 * 2 + 90 * 3 + 900 * 4 + 3);
    assert_memory_equal(text, "0,1,2,3,", 8);
    assert_string_equal(text + strlen(text) - 8, ",999,end");
    free(text);
    assert_int_equal(buffer.n, 0);
    text = butler_buffer_take(&buffer);
    assert_string_equal(text, "");
    free(text);
}

/* Memory that there is not: the error stays, and nothing is lost or leaks. */
static void test_no_memory(void **state)
{
    struct butler_buffer buffer = {0};
    (void)state;
    butler_buffer_append(&buffer, "abc", 3);
    assert_false(butler_buffer_reserve(&buffer, SIZE_MAX - 2));
    butler_buffer_append(&buffer, "def", 3);
    butler_buffer_printf(&buffer, "%d", 5);
    assert_true(buffer.failed);
    assert_int_equal(buffer.n, 3);
    assert_null(butler_buffer_take(&buffer));
    assert_false(buffer.failed);
    int *array = NULL;
    size_t capacity = 0;
    assert_true(butler_grow(&array, 5, &capacity, sizeof *array));
    array[4] = 7;
    const size_t before = capacity;
    assert_false(butler_grow(&array, SIZE_MAX / 2, &capacity, sizeof *array));
    assert_int_equal(capacity, before);
    assert_true(butler_grow(&array, before + 1, &capacity, sizeof *array));
    assert_true(capacity > before);
    assert_int_equal(array[4], 7);
    free(array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_appends), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
