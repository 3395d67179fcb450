/* The CUDA host code, and the kernels of src/gpu as plain C, against the CPU, also for sanitizers: on stand-ins for libcuda.so.1,
 * libnvrtc.so.12 and libcublas.so.12 (fake_*.c), which are opened as a machine's would be. And what comes of calls that fail. */
#define GPU_DRIVER butler_gpu_cuda
#define GPU_DEVICE "cuda"
#define GPU_FEW 1
#include "gpu_tests.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "gpu/cuda_api.h"
#include "gpu/cuda_compile.h"
#include "simt_opencl.h"

static struct fake_cuda *cuda;
static struct fake_nvrtc *nvrtc;
static struct fake_cublas *cublas;

/* The stand-ins as they are without faults; whatever ended before left nothing behind. */
static void begin_faults(void)
{
    assert_int_equal(cuda->n_contexts + cuda->n_streams + cuda->n_modules + cuda->n_buffers + cuda->n_graphs, 0);
    assert_int_equal(nvrtc->n_programs, 0);
    assert_int_equal(cuda->n_left, 0);
    cuda->calls = nvrtc->calls = (struct fake_calls){.fail_at = -1};
    cuda->version = 12040;
    cuda->n_devices = 1;
    cuda->capability = 90;
    cuda->memory = 0;
    cuda->kernels_left = -1;
    nvrtc->does_not_compile = false;
    nvrtc->minor = 4;
    nvrtc->newest = 90;
    butler_cuda_hide(false, false);
    assert_int_equal(cublas->n_handles, 0);
    cublas->calls = (struct fake_calls){.fail_at = -1};
    butler_cublas_hide(true); /* but where it is tested */
}

static void test_no_driver(void **state)
{
    (void)state;
    begin_faults();
    butler_cuda_hide(true, false);
    refused(BUTLER_ERROR_UNSUPPORTED, "cuda:0: there is no CUDA driver (libcuda.so.1)",
            "no device of CUDA or OpenCL here is a GPU");
    butler_cuda_hide(false, false);
    cuda->n_devices = 0;
    refused(BUTLER_ERROR_UNSUPPORTED, "the CUDA driver has no device here", "no device of CUDA or OpenCL here is a GPU");
    begin_faults();
    cuda->version = 11080;
    refused(BUTLER_ERROR_IO, "too old: it is of CUDA 11.8, 12.0 is needed", "too old: it is of CUDA 11.8, 12.0 is needed");
    begin_faults();
}

static void test_compiler(void **state)
{
    (void)state;
    begin_faults();
    butler_cuda_hide(false, true);
    refused(BUTLER_ERROR_UNSUPPORTED, "no compiler for its kernels (libnvrtc.so.12", "no compiler for its kernels (libnvrtc.so.12");
    begin_faults();
    cuda->capability = 89; /* for which nothing was compiled yet */
    nvrtc->does_not_compile = true;
    refused(
        BUTLER_ERROR_UNSUPPORTED,
        "device cuda:0 (fake): NVRTC does not compile the kernels (NVRTC_ERROR_COMPILATION) butler.cu(9): error: identifier \"b\"",
        "NVRTC does not compile the kernels");
    static const char *const calls[] = {"CreateProgram", "CompileProgram", "GetCUBINSize", "GetCUBIN"};
    nvrtc->does_not_compile = false;
    for (int i = 0; i < N(calls); i++) {
        struct butler_error err = {0};
        nvrtc->calls = (struct fake_calls){.only = calls[i], .fail_code = 1};
        assert_null(engine_on(usual_model, "cuda:0", 0, &err));
        assert_int_equal(nvrtc->calls.n, 1);
        assert_non_null(strstr(err.message, "NVRTC does not compile"));
    }
}

/* How many programs are compiled for an image of a process that has none yet: 0 or 1. */
static int n_compiled_for(const char *folder, int version, int capability)
{
    struct butler_error err = {0};
    const struct butler_gpu gpu = {.label = "a device", .folder = folder};
    const int before = nvrtc->n_compiled;
    char expected[32];
    butler_cuda_forget_images();
    const char *image = butler_cuda_image(&gpu, version, capability, &err);
    if (!image)
        fail_msg("%s", err.message);
    snprintf(expected, sizeof expected, "FAKE_CUBIN sm_%d", capability);
    assert_string_equal(image, expected);
    return nvrtc->n_compiled - before;
}

/* The one file in a folder. */
static const char *only_file(const char *folder)
{
    static char path[512];
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
            n++;
        }
    closedir(dir);
    assert_int_equal(n, 1);
    return path;
}

static void write_file(const char *path, const unsigned char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* A file that is damaged anywhere, too short, too long, or of something else is compiled and written again. */
static void test_damaged_kernels(void **state)
{
    char folder[200], path[512];
    struct stat st;
    (void)state;
    begin_faults();
    snprintf(folder, sizeof folder, "%s", tiny_path("damaged"));
    assert_int_equal(n_compiled_for(folder, 12040, 90), 1);
    snprintf(path, sizeof path, "%s", only_file(folder));
    struct tiny_bytes bytes = tiny_read(path);
    unsigned char *wrong = malloc(bytes.size + 1);
    memcpy(wrong, bytes.data, bytes.size);
    wrong[bytes.size] = 0;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (size_t i = 0; i < bytes.size; i++) {
        wrong[i] ^= 0x10;
        write_file(path, wrong, bytes.size);
        wrong[i] ^= 0x10;
        assert_int_equal(n_compiled_for(folder, 12040, 90), 1);
        assert_int_equal(n_compiled_for(folder, 12040, 90), 0);
    }
    for (size_t n = 0; n <= bytes.size + 1; n++) {
        write_file(path, wrong, n);
        assert_int_equal(n_compiled_for(folder, 12040, 90), n != bytes.size);
    }
    struct tiny_bytes again = tiny_read(only_file(folder));
    assert_int_equal(again.size, bytes.size);
    assert_memory_equal(again.data, bytes.data, bytes.size);
    assert_int_equal(n_compiled_for(folder, 12040, 89), 1); /* a file of another device under this one's name */
    unlink(path);
    assert_int_equal(rename(only_file(folder), path), 0);
    assert_int_equal(n_compiled_for(folder, 12040, 90), 1);
    free(wrong), free(bytes.data), free(again.data);
}

/* Each driver, NVRTC and architecture has its own; a folder that cannot be used is none. */
static void test_kept_kernels(void **state)
{
    char folder[200];
    (void)state;
    begin_faults();
    snprintf(folder, sizeof folder, "%s", tiny_path("kept"));
    for (int again = 0; again < 2; again++) {
        const int n = !again;
        nvrtc->minor = 4;
        assert_int_equal(n_compiled_for(folder, 12040, 90), n);
        assert_int_equal(n_compiled_for(folder, 12080, 90), n);
        assert_int_equal(n_compiled_for(folder, 12040, 80), n);
        nvrtc->minor = 9;
        assert_int_equal(n_compiled_for(folder, 12040, 90), n);
        assert_int_equal(n_compiled_for(NULL, 12040, 90), 1);
        assert_int_equal(n_compiled_for("/dev/null/no/folder", 12040, 90), 1);
    }
    begin_faults();
}

/* The second of two processes compiles nothing, and an engine runs on what the first one left. */
static void test_second_start(void **state)
{
    struct butler_error err = {0};
    char path[FIXTURE_PATH];
    const int before = nvrtc->n_compiled;
    (void)state;
    begin_faults();
    fixture_path(path, usual_model);
    for (int i = 0; i < 2; i++) {
        const struct butler_model_params params = {BUTLER_INIT(butler_model_params), .cache_folder = tiny_path("second")};
        struct butler_model *model = butler_model_load(path, &params, &err);
        struct butler_engine *engine = butler_engine_new(
            model, &(struct butler_engine_params){BUTLER_INIT(butler_engine_params), .n_threads = 1, .device = "cuda:0"}, &err);
        if (!engine)
            fail_msg("%s", err.message);
        assert_int_equal(nvrtc->n_compiled, before + 1);
        struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
        read_prompt(session, 3);
        butler_session_free(session);
        free_engine(engine);
        butler_cuda_forget_images();
    }
    begin_faults();
}

/* Where NVRTC is older than the device the driver gets PTX of the newest architecture that both know. */
static void test_ptx(void **state)
{
    struct butler_error err = {0};
    (void)state;
    begin_faults();
    butler_cuda_forget_images();
    cuda->capability = 103;
    struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
    if (!engine)
        fail_msg("%s", err.message);
    assert_true(cuda->loads_ptx);
    struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
    read_prompt(session, 3);
    butler_session_free(session);
    free_engine(engine);
    cuda->capability = 100; /* which a newer NVRTC knows */
    nvrtc->newest = 100;
    engine = engine_on(usual_model, "cuda:0", 0, &err);
    assert_non_null(engine);
    assert_false(cuda->loads_ptx);
    free_engine(engine);
    cuda->capability = 75; /* older than all */
    assert_null(engine_on(usual_model, "cuda:0", 0, &err));
    assert_non_null(strstr(err.message, "no compiler here makes kernels for its compute capability 7.5"));
    static const char *const calls[] = {"GetPTXSize", "GetPTX"};
    for (int i = 0; i < N(calls); i++) {
        begin_faults();
        butler_cuda_forget_images();
        cuda->capability = 103;
        nvrtc->calls = (struct fake_calls){.only = calls[i], .fail_code = 1};
        assert_null(engine_on(usual_model, "cuda:0", 0, &err));
        assert_int_equal(nvrtc->calls.n, 1);
    }
    begin_faults();
}

/* The first of two engines may have to compile, the second has not. A device's architecture is compiled for. */
static void test_auto(void **state)
{
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    struct butler_device_info device = {BUTLER_INIT(butler_device_info)};
    (void)state;
    begin_faults();
    const int before = nvrtc->n_compiled;
    cuda->capability = 86;
    struct butler_engine *engines[2];
    for (int i = 0; i < 2; i++)
        engines[i] = engine_on(usual_model, "auto", 0, &err);
    assert_int_equal(nvrtc->n_compiled, before + 1);
    butler_engine_get_info(engines[1], &info);
    assert_string_equal(info.device, "cuda");
    assert_string_equal(info.isa, "fake");
    assert_string_equal(err.message, "");
    assert_int_equal(cuda->n_contexts, 2);
    free_engine(engines[0]), free_engine(engines[1]);
    assert_true(butler_device_describe(0, &device));
    assert_string_equal(device.device, "cuda:0");
    assert_string_equal(device.driver, "CUDA 12.4, no cuBLAS");
    assert_true(device.is_gpu);
    assert_false(butler_device_describe(1, &device));
}

/* Where CUDA does not start auto takes OpenCL, and says why. */
static void test_auto_falls_back(void **state)
{
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    (void)state;
    begin_faults();
    butler_opencl_use(&simt_opencl);
    butler_cuda_hide(false, true);
    struct butler_engine *engine = engine_on(usual_model, "auto", 0, &err);
    butler_engine_get_info(engine, &info);
    assert_string_equal(info.device, "opencl");
    assert_int_equal(err.code, 0);
    assert_non_null(strstr(err.message, "device cuda:0 (fake): there is no compiler"));
    free_engine(engine);
    butler_cuda_hide(true, false); /* no driver: nothing that would be worth a note */
    err = (struct butler_error){0};
    engine = engine_on(usual_model, "auto", 0, &err);
    butler_engine_get_info(engine, &info);
    assert_string_equal(info.device, "opencl");
    assert_string_equal(err.message, "");
    free_engine(engine);
    assert_int_equal(simt_driver.n_objects, 0);
    butler_opencl_use(&(struct butler_opencl){0});
    begin_faults();
}

/* An engine, a session, a prompt of 3 tokens and a step, all freed; 0, or *err. *n_work: calls counted until it is freed. */
static int run_once(const char *model, const char *policy, int *n_work, struct butler_error *err)
{
    const int32_t ids[] = {1, 2, 3};
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 64, .policy = policy};
    struct butler_engine *engine = engine_of(model, "cuda:0", 8, err);
    struct butler_session *session = engine ? butler_session_new(engine, &params, err) : NULL;
    int status = session ? butler_prefill(session, ids, 3, NULL, NULL, err) : -1;
    if (status == 0)
        status = butler_step(session, 4, err);
    *n_work = cuda->calls.n;
    butler_session_free(session);
    if (engine)
        free_engine(engine);
    return status;
}

/* A pass on a thread of its own. */
static void *step_there(void *session)
{
    struct butler_error err = {0};
    return butler_step(session, 4, &err) == 0 ? session : NULL;
}

/* An engine may be used by another thread than the one that made it: with the same results, and neither is left a context. */
static void test_threads(void **state)
{
    struct butler_error err = {0};
    (void)state;
    begin_faults();
    struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
    struct butler_session *here = session_on(engine, "full", BUTLER_KV_F16), *there = session_on(engine, "full", BUTLER_KV_F16);
    read_prompt(here, 3), read_prompt(there, 3);
    pthread_t thread;
    void *done;
    assert_int_equal(pthread_create(&thread, NULL, step_there, there), 0);
    assert_int_equal(pthread_join(thread, &done), 0);
    assert_non_null(done);
    assert_int_equal(butler_step(here, 4, &err), 0);
    compare_logits(here, there, n_vocab_of(engine), 0, "threads");
    assert_int_equal(cuda->n_current, 0);
    butler_session_free(here), butler_session_free(there);
    free_engine(engine);
    begin_faults();
}

/* However much memory the device has, it is enough, or an error says that it is not. */
static void test_out_of_memory(void **state)
{
    int n_failed = 0, n_work;
    bool works = false;
    char path[FIXTURE_PATH];
    (void)state;
    begin_faults();
    fixture_path(path, usual_model);
    for (uint64_t memory = 1; !works; memory += memory / 2 + (1 << 15)) {
        struct butler_error err = {0};
        cuda->memory = memory;
        works = run_once(path, "quest:dense=0", &n_work, &err) == 0;
        if (!works && (err.code != BUTLER_ERROR_MEMORY || !strstr(err.message, "memory")))
            fail_msg("%llu bytes: %d %s", (unsigned long long)memory, err.code, err.message);
        n_failed += !works;
        cuda->memory = 0;
        begin_faults();
    }
    assert_true(n_failed > 5);
}

/* Pages get a part of what weights, other pages and other programs leave of a device: here pages of two types want half each. */
static void test_memory_left(void **state)
{
    static const enum butler_kv_type types[] = {BUTLER_KV_F16, BUTLER_KV_F32};
    struct butler_error err = {0};
    struct butler_session *sessions[N(types)];
    char path[FIXTURE_PATH];
    (void)state;
    begin_faults();
    cuda->memory = 160 << 20; /* of 256 */
    fixture_path(path, usual_model);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine = butler_engine_new(
        model, &(struct butler_engine_params){BUTLER_INIT(butler_engine_params), .n_threads = 1, .device = "cuda:0"}, &err);
    for (int i = 0; i < N(types); i++) {
        sessions[i] = session_on(engine, "full", types[i]);
        read_prompt(sessions[i], 3);
    }
    for (int i = 0; i < N(types); i++)
        butler_session_free(sessions[i]);
    free_engine(engine);
    begin_faults();
}

/* The call `at` of a function fails: so does what was asked for, and the error names the code; but not where it only undoes what
 * others did. Nothing is left then that could be freed. */
static void call_fails(const char *model, const char *name, int code, int at, bool undoes)
{
    struct butler_error err = {0};
    char expected[32];
    int n_work;
    begin_faults();
    cuda->calls = (struct fake_calls){.only = name, .fail_at = at, .fail_code = code};
    const int status = run_once(model, "tinyserve:budget=16", &n_work, &err);
    snprintf(expected, sizeof expected, "(CUDA error %d, CUDA_ERROR_", code);
    const bool named = strstr(err.message, expected) && strstr(err.message, "device cuda:0");
    if (undoes ? status != 0 : status == 0 || !named || (code == 2) != (err.code == BUTLER_ERROR_MEMORY))
        fail_msg("%s fails for the %d. time: %d %d %s", name, at + 1, status, err.code, err.message);
    if (undoes || code == 719) /* a lost context frees nothing before its end */
        cuda->n_left = 0;
    if (cuda->n_left > 0)
        fail_msg("%s fails for the %d. time: %d objects are left", name, at + 1, cuda->n_left);
}

/* Pages in host memory: a pool that cannot be made is named, and can be made later; a copy that fails in a step is named. */
static void test_host_fails(void **state)
{
    static const char *const names[] = {"MemAlloc", "MemHostAlloc", "MemcpyHtoD"};
    struct butler_error err = {0};
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 128,
                                                 .policy = "quest:budget=16,dense=0"};
    (void)state;
    begin_faults();
    struct butler_engine *engine = host_engine(16 * HOST_PAGE, &err);
    for (int i = 0; i < 2; i++)
        for (int at = 0; at < (i == 0 ? 3 : 1); at++) { /* copies, places, what is packed */
            cuda->calls = (struct fake_calls){.only = names[i], .fail_at = at, .fail_code = 2};
            assert_null(butler_session_new(engine, &params, &err));
            if (err.code != BUTLER_ERROR_MEMORY || !strstr(err.message, "device cuda:0"))
                fail_msg("%s: %d %s", names[i], err.code, err.message);
        }
    cuda->calls = (struct fake_calls){.fail_at = -1};
    struct butler_session *session = session_on(engine, params.policy, BUTLER_KV_F16);
    read_long(session, HOST_LONG);
    cuda->calls = (struct fake_calls){.only = names[2], .fail_at = 6, .fail_code = 999};
    assert_int_equal(butler_step(session, 3, &err), BUTLER_ERROR_IO);
    assert_non_null(strstr(err.message, "device cuda:0 (fake)"));
    cuda->calls = (struct fake_calls){.fail_at = -1};
    butler_session_free(session);
    free_engine(engine);
    begin_faults();
}

/* Each function of the driver fails: at its first call, and at some later ones. */
static void test_each_call(void **state)
{
    static const struct {
        const char *name;
        int code;
        bool undoes;
    } calls[] = {{"Init", 999, false},
                 {"DriverGetVersion", 999, false},
                 {"DeviceGetCount", 999, false},
                 {"DeviceGet", 999, false},
                 {"DeviceGetName", 999, false},
                 {"DeviceTotalMem", 999, false},
                 {"DeviceGetAttribute", 999, false},
                 {"DevicePrimaryCtxRetain", 2, false},
                 {"CtxPushCurrent", 201, false},
                 {"ModuleLoadData", 2, false},
                 {"ModuleGetFunction", 400, false},
                 {"StreamCreate", 2, false},
                 {"MemAlloc", 2, false},
                 {"MemAlloc", 999, false},
                 {"MemcpyHtoD", 999, false},
                 {"MemcpyDtoH", 2, false},
                 {"MemsetD8", 999, false},
                 {"LaunchKernel", 2, false},
                 {"LaunchKernel", 999, false},
                 {"StreamSynchronize", 719, false},
                 {"MemGetInfo", 999, true},
                 {"CtxPopCurrent", 999, true},
                 {"MemFree", 999, true},
                 {"ModuleUnload", 999, true},
                 {"StreamDestroy", 999, true}};
    struct tiny tiny = tiny_default;
    tiny.n_layers = 1;
    (void)state;
    const char *path = tiny_path("calls.gguf");
    tiny_write(path, &tiny);
    for (int c = 0; c < N(calls); c++) {
        struct butler_error err = {0};
        int n_work;
        begin_faults();
        cuda->calls.only = calls[c].name;
        assert_int_equal(run_once(path, "tinyserve:budget=16", &n_work, &err), 0);
        const int n = calls[c].undoes ? cuda->calls.n : n_work;
        assert_true(n > 0);
        for (int at = 0; at < n; at += 1 + at + n / 6)
            call_fails(path, calls[c].name, calls[c].code, at, calls[c].undoes);
    }
    begin_faults();
}

/* A kernel that fails while it runs, any of a prompt and a step: that pass fails and says so, and so does every later one, until
 * there is a new engine. */
static void test_lost(void **state)
{
    (void)state;
    for (int kernels = 0, works = 0; !works; kernels += 7) {
        struct butler_error err = {0};
        const int32_t ids[] = {1, 2, 3};
        begin_faults();
        struct butler_engine *engine = engine_on(usual_model, "cuda:0", 8, &err);
        struct butler_session *session = session_on(engine, "tinyserve:budget=16", BUTLER_KV_F16);
        cuda->kernels_left = kernels;
        works = butler_prefill(session, ids, 3, NULL, NULL, &err) == 0 && butler_step(session, 4, &err) == 0;
        if (!works) {
            if (err.code != BUTLER_ERROR_IO || !strstr(err.message, "lost (CUDA error 719, CUDA_ERROR_LAUNCH_FAILED)"))
                fail_msg("%d kernels: %d %s", kernels, err.code, err.message);
            cuda->kernels_left = -1;
            assert_true(butler_step(session, 4, &err) < 0);
        }
        butler_session_free(session);
        free_engine(engine);
        assert_int_equal(cuda->n_contexts, 0);
        assert_true(works || cuda->n_left > 0); /* which a lost context does not free */
        cuda->n_left = 0;
    }
    begin_faults();
}

#include "cublas_tests.h"
#include "cuda_graph_tests.h"

/* The variable of a stand-in. */
static void *find_variable(const char *library, const char *name)
{
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL), *found = opened ? dlsym(opened, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s is no stand-in: %s\n", library, dlerror());
        exit(1);
    }
    return found;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_driver),
                                       cmocka_unit_test(test_compiler),
                                       cmocka_unit_test(test_damaged_kernels),
                                       cmocka_unit_test(test_kept_kernels),
                                       cmocka_unit_test(test_second_start),
                                       cmocka_unit_test(test_ptx),
                                       cmocka_unit_test(test_auto),
                                       cmocka_unit_test(test_auto_falls_back),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_out_of_memory),
                                       cmocka_unit_test(test_each_call),
                                       cmocka_unit_test(test_lost),
                                       cmocka_unit_test(test_graphs),
                                       cmocka_unit_test(test_waits),
                                       cmocka_unit_test(test_graphs_of_many_layers),
                                       cmocka_unit_test(test_graphs_of_pieces),
                                       cmocka_unit_test(test_graphs_fail),
                                       cmocka_unit_test(test_graphs_lost),
                                       cmocka_unit_test(test_prompts),
                                       cmocka_unit_test(test_prompts_fail),
                                       cmocka_unit_test(test_no_cublas),
                                       cmocka_unit_test(test_host_fails),
                                       cmocka_unit_test(test_memory_left),
                                       cmocka_unit_test(test_cublas_does_not_start)};
    cuda = find_variable("libcuda.so.1", "fake_cuda");
    nvrtc = find_variable("libnvrtc.so.12", "fake_nvrtc");
    cublas = find_variable("libcublas.so.12", "fake_cublas");
    butler_opencl_use(&(struct butler_opencl){0});
    if (cuda->n_devices == 0) {
        print_message("skipped: simt.h does not know how functions are called here\n");
        return 0;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += run_gpu_tests(); /* after those: until its end it has an engine on the device */
    butler_cuda_forget_images();
    simt_free();
    return failed;
}
