/* Another budget in the middle of a text (butler_session_set_policy). What a session keeps, records and buffers, does not depend on
 * the budget of a policy that retrieves; anything else stays as it was when the session was made. */
#include <string.h>

#include "engine/session.h"

/* Whether "key=" may change. */
static bool is_free(const char *item)
{
    static const char *const keys[] = {"budget=", "sinks=", "recent="};
    for (int i = 0; i < BUTLER_COUNT(keys); i++)
        if (strncmp(item, keys[i], strlen(keys[i])) == 0)
            return true;
    return false;
}

/* Compares two canonical texts, "name:key=value,...", which have all keys, without the values that may change. */
static bool is_like(const char *a, const char *b)
{
    for (;;) {
        while (is_free(a))
            a += strcspn(a, ",") + (a[strcspn(a, ",")] == ',');
        while (is_free(b))
            b += strcspn(b, ",") + (b[strcspn(b, ",")] == ',');
        const size_t n = strcspn(a, ",:");
        if (strcspn(b, ",:") != n || strncmp(a, b, n) != 0)
            return false;
        if (!a[n] || !b[n])
            return a[n] == b[n];
        a += n + 1;
        b += n + 1;
    }
}

void butler_session_follow_policy(struct butler_session *session, const struct butler_policy *last)
{
    const int n = session->n_past;
    bool late = false;
    for (int l = 0; l < session->shape.n_layers; l++)
        late = late || (butler_policy_defers(last, l, session->shape.n_layers, n) &&
                        !butler_policy_defers(&session->policy, l, session->shape.n_layers, n));
    if (late && n > 0)
        butler_session_summarise(session, 0, n);
}

int butler_session_set_policy(struct butler_session *session, const char *policy, struct butler_error *err)
{
    struct butler_policy next;
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(policy, err))
        return BUTLER_ERROR_ARGUMENT;
    if (session->policy.method == BUTLER_RETRIEVE && strcmp(policy, session->policy.text) == 0 &&
        !session->policy.budget_set) /* a plug-in may ask for the same one after every step */
        return 0;
    int code = butler_policy_parse(session->engine, policy, &next, err);
    if (code < 0 || (code = butler_policy_compile(&next, &session->shape, err)) < 0)
        return code;
    if (session->policy.method != BUTLER_RETRIEVE || !is_like(next.text, session->policy.text))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%.150s cannot become %.150s in the middle of a text: only budget, sinks and recent of a policy that "
                           "retrieves can change",
                           session->policy.text, next.text);
    next.layers = session->policy.layers;
    if (session->policy.plan.guided)
        butler_plan_guide(&next.plan);
    const struct butler_policy last = session->policy;
    session->policy = next;
    butler_session_follow_policy(session, &last);
    return 0;
}

const char *butler_policy_of(const struct butler_session *session)
{
    return session ? session->policy.text : NULL;
}
