/* The OpenCL host code, and kernels of src/gpu as plain C, for sanitizers; and what comes of a driver that fails. test_cuda.c has
 * the same kernels against the CPU. */
#define GPU_DRIVER butler_gpu_opencl
#define GPU_DEVICE "opencl"
#define GPU_FEW 2
#include "gpu_tests.h"

#include "gpu/cuda_api.h"
#include "simt_opencl.h"

/* The next engine's driver: without faults. */
static void begin_faults(void)
{
    if (!SIMT_CALLS)
        skip();
    assert_int_equal(simt_driver.n_objects, 0);
    simt_driver = (struct simt_driver){.n_devices = 1, .launches_left = -1};
}

static void end_faults(void)
{
    assert_int_equal(simt_driver.n_objects, 0);
    assert_int_equal(simt_driver.held, 0);
    simt_driver = (struct simt_driver){.n_devices = 1, .launches_left = -1};
    butler_opencl_use(&simt_opencl);
}

static void test_no_driver(void **state)
{
    (void)state;
    begin_faults();
    butler_opencl_use(&(struct butler_opencl){0});
    refused(BUTLER_ERROR_UNSUPPORTED, "there is no OpenCL driver", "no device of CUDA or OpenCL here is a GPU");
    butler_opencl_use(&simt_opencl);
    simt_driver.n_devices = 0;
    refused(BUTLER_ERROR_UNSUPPORTED, "OpenCL has no such device", "no device of CUDA or OpenCL here is a GPU");
    end_faults();
}

static void test_does_not_compile(void **state)
{
    (void)state;
    begin_faults();
    simt_driver.does_not_compile = true;
    refused(BUTLER_ERROR_UNSUPPORTED, "does not compile the kernels (OpenCL error -11) kernels.cl:1: no such type",
            "does not compile the kernels");
    end_faults();
}

static void test_auto(void **state)
{
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    (void)state;
    begin_faults();
    struct butler_engine *engine = engine_on(usual_model, "auto", 0, &err);
    butler_engine_get_info(engine, &info);
    assert_string_equal(info.device, "opencl");
    assert_string_equal(err.message, "");
    free_engine(engine);
    end_faults();
}

/* However much memory the device has: an engine and a session are made and read a prompt, or one of the three says that there is
 * not enough, and nothing is left behind. */
static void test_out_of_memory(void **state)
{
    int n_failed[3] = {0, 0, 0};
    bool works = false;
    (void)state;
    begin_faults();
    simt_driver.memory = 1;
    refused(BUTLER_ERROR_MEMORY, "has no memory for", "has no memory for");
    for (uint64_t memory = 1 << 16; !works; memory += memory / 2) {
        struct butler_error err = {0};
        const int32_t ids[] = {1, 2, 3};
        const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 64, .policy = "quest:dense=0"};
        simt_driver.memory = memory;
        struct butler_engine *engine = engine_on(usual_model, "opencl:0", 8, &err);
        struct butler_session *session = engine ? butler_session_new(engine, &params, &err) : NULL;
        works = session && butler_prefill(session, ids, 3, NULL, NULL, &err) == 0;
        if (!works && (err.code != BUTLER_ERROR_MEMORY || !strstr(err.message, "memory")))
            fail_msg("%llu bytes: %d %s", (unsigned long long)memory, err.code, err.message);
        n_failed[!engine ? 0 : !session ? 1 : 2] += !works;
        butler_session_free(session);
        if (engine)
            free_engine(engine);
        assert_int_equal(simt_driver.n_objects, 0);
    }
    assert_true(n_failed[0] > 0 && n_failed[1] > 0);
    end_faults();
}

/* A device that is lost, at any launch of a prompt and a step: that pass fails and says so, and so does every later one. */
static void test_lost(void **state)
{
    (void)state;
    begin_faults();
    for (int launches = 0, works = 0; !works; launches += 7) {
        struct butler_error err = {0};
        const int32_t ids[] = {1, 2, 3};
        struct butler_engine *engine = engine_on(usual_model, "opencl:0", 8, &err);
        struct butler_session *session = session_on(engine, "tinyserve:budget=16", BUTLER_KV_F16);
        simt_driver.launches_left = launches;
        works = butler_prefill(session, ids, 3, NULL, NULL, &err) == 0 && butler_step(session, 4, &err) == 0;
        if (!works) {
            if (err.code != BUTLER_ERROR_IO || !strstr(err.message, "the device was lost (OpenCL error -36)"))
                fail_msg("%d launches: %d %s", launches, err.code, err.message);
            simt_driver.launches_left = -1;
            assert_true(butler_step(session, 4, &err) < 0);
            struct butler_session *other = session_on(engine, "full", BUTLER_KV_F16);
            err = (struct butler_error){0};
            assert_true(butler_prefill(other, ids, 3, NULL, NULL, &err) < 0);
            assert_non_null(strstr(err.message, "the device was lost"));
            butler_session_free(other);
        }
        butler_session_free(session);
        free_engine(engine);
        assert_int_equal(simt_driver.n_objects, 0);
    }
    end_faults();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_driver), cmocka_unit_test(test_does_not_compile),
                                       cmocka_unit_test(test_auto), cmocka_unit_test(test_out_of_memory),
                                       cmocka_unit_test(test_lost)};
    butler_cuda_hide(true, true);
    butler_opencl_use(SIMT_CALLS ? &simt_opencl : &(struct butler_opencl){0});
    const int failed = run_gpu_tests() + cmocka_run_group_tests(tests, NULL, NULL);
    simt_free();
    return failed;
}
