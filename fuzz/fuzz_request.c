/* Any bytes as the body of a request, the first byte as its endpoint: it is refused with a status and a reason, or becomes jobs
 * whose numbers are in their ranges, or an answer that can be written. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "serve/api_parts.h"

enum { N_CTX = 64 };

static struct serve_api api;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    api.model = fuzz_model("tests/data/models/llama-gqa.gguf");
    api.info = butler_model_get_info(api.model);
    api.n_ctx = N_CTX;
    serve_measure_tokens(&api);
    api.config.model_name = "model";
    return 0;
}

static void check_error(const struct serve_error *error)
{
    fuzz_require(error->status == 400, "a refusal has this status");
    fuzz_require(*error->message && memchr(error->message, 0, sizeof error->message) && error->type, "and a reason");
    json_t *body = serve_error_json(&api, error);
    fuzz_require(body != NULL, "a reason can be written as JSON");
    json_decref(body);
}

static void check_job(const struct serve_request *request, const struct serve_job *job)
{
    const struct butler_sampler_params *p = &job->sampling;
    struct butler_error err = {0};
    fuzz_require(job->n_prompt >= 1 && job->n_prompt <= N_CTX, "a prompt fits");
    for (int i = 0; i < job->n_prompt; i++)
        fuzz_require(job->prompt[i] >= 0 && job->prompt[i] < api.info->n_vocab, "a prompt has tokens of the model");
    fuzz_require(job->n_choices >= 1 && job->n_choices <= SERVE_MAX_CHOICES, "choices are within their limit");
    fuzz_require(job->n_choices == request->n_choices && job->max_tokens >= 0, "an answer has a length");
    fuzz_require(job->n_top >= -1 && job->n_top <= SERVE_MAX_TOP, "so have lists of probable tokens");
    fuzz_require(job->n_stops >= 0 && job->n_stops <= SERVE_MAX_STOPS, "stop texts are within their limit");
    for (int i = 0; i < job->n_stops; i++)
        fuzz_require(job->stops[i][0] != 0, "no stop text is empty");
    for (int i = 0; i < p->n_logit_bias; i++)
        fuzz_require(p->logit_bias[i].id >= 0 && p->logit_bias[i].id < api.info->n_vocab, "biases are of tokens of the model");
    struct butler_sampler *sampler = butler_sampler_new(p, &err);
    fuzz_require(sampler != NULL, "a sampler takes the parameters");
    butler_sampler_free(sampler);
}

static void check_request(struct serve_request *request)
{
    fuzz_require(request->n_jobs >= 1 && request->n_jobs <= SERVE_MAX_PROMPTS, "jobs are within their limit");
    for (int j = 0; j < request->n_jobs; j++)
        check_job(request, request->jobs[j]);
    fuzz_require(!request->surface || !request->surface->begin || request->n_jobs * request->n_choices == 1,
                 "a surface has one answer");
    serve_request_free(request);
}

static void check_answer(json_t *answer)
{
    char *text = json_dumps(answer, JSON_COMPACT);
    fuzz_require(text != NULL, "an answer can be written as JSON");
    free(text);
    json_decref(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        json_t *(*post)(struct serve_api *, json_t *, struct serve_error *);
        enum serve_kind kind; /* of those without post */
        const struct serve_surface *surface;
    } endpoints[] = {{serve_post_tokenize, 0, NULL},
                     {serve_post_detokenize, 0, NULL},
                     {serve_post_apply_template, 0, NULL},
                     {NULL, SERVE_COMPLETION, NULL},
                     {NULL, SERVE_CHAT, NULL},
                     {NULL, SERVE_NATIVE, NULL},
                     {NULL, SERVE_CHAT, &serve_messages},
                     {NULL, SERVE_CHAT, &serve_responses},
                     {NULL, SERVE_COMPLETION, &serve_embeddings},
                     {serve_post_count_tokens, 0, NULL},
                     {NULL, SERVE_NATIVE, &serve_infill}};
    struct serve_error error = {0};
    struct serve_request *request = NULL;
    json_t *answer = NULL;
    if (size == 0)
        return 0;
    const size_t i = data[0] % (sizeof endpoints / sizeof *endpoints);
    json_t *body = serve_parse_body((const char *)data + 1, size - 1, &error);
    if (!error.status && endpoints[i].post)
        answer = endpoints[i].post(&api, body, &error);
    else if (!error.status)
        request = serve_parse(&api, endpoints[i].surface, endpoints[i].kind, body,
                              &(struct serve_client){.key = size % 2 ? "key" : "", .owner = size % 2}, &error);
    json_decref(body);
    fuzz_require((error.status != 0) == (!answer && !request), "there is an error, or an answer");
    if (error.status)
        check_error(&error);
    else if (answer)
        check_answer(answer);
    else
        check_request(request);
    return 0;
}
