/* Hooks into the forward pass: they see what each layer is given and what its attention compares and gives, while tokens are read.
 * The trainer and the evaluation use them; buffers are host memory, valid during the call. */
#ifndef BUTLER_CAPTURE_H
#define BUTLER_CAPTURE_H

#include <stdbool.h>

/* Of a block of n tokens of the session from position `first` on; a function may be NULL. */
struct butler_capture {
    /* Before attention: x[n][n_embd] is the layer's input, h[n][n_embd] the same after its first norm, q[n][n_heads][head_dim]
     * and k[n][n_kv_heads][head_dim] are rotated. */
    void (*layer)(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k);
    void *user;
    /* What attention gave for q, o[n][n_heads][head_dim], before it is used: the callback may overwrite o to steer the model. */
    void (*attended)(void *user, int layer, int first, int n, const float *q, float *o);
    /* h[n][n_embd], what the feed-forward part takes in. */
    void (*fed)(void *user, int layer, int first, int n, const float *h);
};

#endif
