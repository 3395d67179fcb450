/* Step plug-ins: what is called around the decode steps of a session (struct butler_step_plugin of butler.h). */
#ifndef BUTLER_STEPS_H
#define BUTLER_STEPS_H

#include <stdbool.h>

#include "engine/metric.h"

enum { BUTLER_MAX_STEPS = 8, BUTLER_MAX_STEP_STATE = 1 << 20 };

/* Those that an engine knows, and its clones. */
struct butler_step_registry {
    int n;
    struct butler_step_entry {
        const struct butler_step_plugin *plugin;
        void *handle; /* dlopen, or NULL */
    } * entries;
};
void butler_step_registry_free(struct butler_step_registry *registry); /* may be NULL */
/* handle: closed with the registry; who names the plug-in in errors. */
int butler_step_add_entry(struct butler_engine *engine, const struct butler_step_plugin *plugin, const char *who, void *handle,
                          struct butler_error *err);

/* Those of a session, in the order of their calls. */
struct butler_steps {
    int n;
    float *raw; /* [n_vocab] the logits as the model gave them */
    struct butler_step {
        const struct butler_step_plugin *plugin;
        double values[BUTLER_METRIC_MAX_PARAMS];
        void *state; /* or NULL */
    } list[BUTLER_MAX_STEPS];
};
void butler_steps_free(struct butler_steps *steps);
/* *to becomes a copy of from, which may be NULL. */
int butler_steps_copy(struct butler_steps **to, const struct butler_steps *from, int n_vocab, struct butler_error *err);

/* Around a decode step of a session that has some; after also where a prompt ends. < 0: a plug-in asked for what cannot be. */
int butler_steps_before(struct butler_session *session, struct butler_error *err);
int butler_steps_after(struct butler_session *session, struct butler_error *err);

#endif
