/* Answers and earlier turns of /v1/messages and /v1/responses, which are lists: of text, reasoning and calls, in the order in which
 * the model wrote them. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* -------------------------------------------------------------------------------------------------- the answer */

static void end_block(struct serve_answer *answer)
{
    const struct serve_request *request = answer->request;
    if (answer->in_block)
        answer->blocks[answer->n_blocks - 1].cut =
            answer->finish == SERVE_FINISH_LENGTH ||
            (answer->blocks[answer->n_blocks - 1].kind == SERVE_CALL_BEGIN && !serve_parser_has_whole_calls(answer->parser));
    if (answer->in_block && request->stream)
        request->surface->end_block(answer->request, &answer->blocks[answer->n_blocks - 1]);
    answer->in_block = false;
}

static struct serve_block *begin_block(struct serve_answer *answer, enum serve_part_kind kind)
{
    end_block(answer);
    struct serve_block *grown = serve_alloc((size_t)answer->n_blocks + 1, sizeof *grown), *block = &grown[answer->n_blocks];
    if (answer->n_blocks)
        memcpy(grown, answer->blocks, (size_t)answer->n_blocks * sizeof *grown);
    free(answer->blocks);
    answer->blocks = grown;
    *block = (struct serve_block){.kind = kind, .index = answer->n_blocks++};
    answer->in_block = true;
    return block;
}

static void announce(struct serve_answer *answer, const struct serve_block *block)
{
    if (answer->request->stream)
        answer->request->surface->begin_block(answer->request, block);
}

void serve_add_part(struct serve_answer *answer, const struct serve_part *part)
{
    struct serve_request *request = answer->request;
    struct serve_block *block = answer->n_blocks ? &answer->blocks[answer->n_blocks - 1] : NULL;
    if (part->kind == SERVE_CALL_BEGIN) {
        block = begin_block(answer, SERVE_CALL_BEGIN);
        block->name = serve_alloc(part->n + 1, 1);
        memcpy(block->name, part->bytes, part->n);
        block->name[part->n] = 0;
        serve_call_id(request, (int)(answer - request->answers), part->call, block->id);
        announce(answer, block);
        return;
    }
    if (part->kind == SERVE_CALL_END) {
        end_block(answer);
        return;
    }
    if (part->kind != SERVE_CALL_ARGUMENTS && !(answer->in_block && block->kind == part->kind)) {
        block = begin_block(answer, part->kind);
        announce(answer, block);
    }
    serve_text_append(&block->text, part->bytes, part->n);
    if (request->stream)
        request->surface->piece(request, block, part->bytes, part->n);
}

void serve_end_blocks(struct serve_answer *answer)
{
    if (answer->n_blocks == 0)
        announce(answer, begin_block(answer, SERVE_CONTENT));
    end_block(answer);
}

void serve_free_blocks(struct serve_answer *answer)
{
    for (int i = 0; i < answer->n_blocks; i++) {
        butler_buffer_free(&answer->blocks[i].text);
        free(answer->blocks[i].name);
    }
    free(answer->blocks);
}

/* ----------------------------------------------------------------------------------------------- earlier turns */

json_t *serve_assistant_message(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0)
        return last;
    last = json_pack("{s:s, s:[]}", "role", "assistant", "content");
    json_array_append_new(messages, last);
    return last;
}

void serve_add_call(json_t *messages, json_t *id, json_t *name, json_t *arguments)
{
    json_t *message = serve_assistant_message(messages), *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                                           "arguments", arguments));
}

void serve_add_result(json_t *messages, json_t *id, json_t *content)
{
    json_array_append_new(messages, json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", content));
}

void serve_add_reasoning(json_t *messages, const char *text)
{
    json_t *message = serve_assistant_message(messages), *pieces = json_object_get(message, "reasoning_content");
    if (!pieces)
        json_object_set_new(message, "reasoning_content", pieces = json_array());
    json_array_append_new(pieces, json_string(text));
}

void serve_join_reasoning(json_t *message)
{
    json_t *pieces = json_object_get(message, "reasoning_content"), *piece;
    struct butler_buffer text = {0};
    size_t i;
    if (!json_is_array(pieces))
        return;
    json_array_foreach(pieces, i, piece) serve_text_append(&text, json_string_value(piece), json_string_length(piece));
    json_object_set_new(message, "reasoning_content", serve_text_json(&text));
    butler_buffer_free(&text);
}
