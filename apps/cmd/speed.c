/* How long prompts take on this machine: seconds a token = a + b position, by least squares over passes; what an earlier reading
 * found is kept in the user's folder, a file for each model, an entry for each processor, number of threads, precision and type of
 * cache. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval/eval.h"

#include "cmd.h"
#include "base/util.h"

void cmd_speed_add(struct cmd_speed *speed, double position, double seconds_a_token)
{
    speed->n++;
    speed->x += position;
    speed->xx += position * position;
    speed->y += seconds_a_token;
    speed->xy += position * seconds_a_token;
}

/* b: attention makes later tokens slower, never faster. Few passes lie too close together to say, so before eight the kept one. */
static double slope(const struct cmd_speed *speed)
{
    const double det = speed->n * speed->xx - speed->x * speed->x;
    if (speed->kept_a > 0 && speed->n < 8)
        return speed->kept_b;
    return fmax(speed->n >= 3 && det > 0 ? (speed->n * speed->xy - speed->x * speed->y) / det : 0, 0);
}

double cmd_speed_predict(const struct cmd_speed *speed, double from, double to)
{
    if (speed->n == 0)
        return (to - from) * (speed->kept_a + speed->kept_b * (from + to) / 2);
    return (to - from) * (speed->y / speed->n + slope(speed) * ((from + to) / 2 - speed->x / speed->n));
}

/* Where speeds of this model are kept: a path to be freed, and the name of the entry. NULL: nowhere. */
static char *place(const struct cmd_options *options, struct butler_engine *engine, char *entry, size_t n_entry)
{
    char machine[EVAL_MACHINE];
    uint64_t fingerprint;
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    char *user = cmd_user_folder();
    if (!user || butler_model_fingerprint(butler_engine_model(engine), &fingerprint, NULL) < 0) {
        free(user);
        return NULL;
    }
    butler_engine_get_info(engine, &info);
    eval_machine(engine, info.n_threads, machine, sizeof machine);
    snprintf(entry, n_entry, "%s, %d bits, %s", machine, options->precision,
             cmd_kv_type_name((enum butler_kv_type)options->kv_type));
    char *path = cmd_alloc(strlen(user) + 64, 1);
    sprintf(path, "%s/speed-%016" PRIx64 ".json", user, fingerprint);
    free(user);
    return path;
}

void cmd_speed_load(const struct cmd_options *options, struct butler_engine *engine, struct cmd_speed *speed)
{
    char entry[EVAL_MACHINE + 64];
    char *path = place(options, engine, entry, sizeof entry);
    json_t *all = path ? json_load_file(path, 0, NULL) : NULL, *own = json_object_get(all, entry);
    const double a = json_number_value(json_object_get(own, "seconds_a_token")),
                 b = json_number_value(json_object_get(own, "more_a_position"));
    if (isfinite(a) && isfinite(b) && a > 0 && b >= 0) {
        speed->kept_a = a;
        speed->kept_b = b;
    }
    json_decref(all);
    free(path);
}

void cmd_speed_store(const struct cmd_options *options, struct butler_engine *engine, double a, double b)
{
    char entry[EVAL_MACHINE + 64], part[PATH_MAX];
    char *path = place(options, engine, entry, sizeof entry);
    if (!path)
        return;
    json_t *all = json_load_file(path, 0, NULL);
    if (!json_is_object(all)) {
        json_decref(all);
        all = json_object();
    }
    json_object_set_new(all, entry, json_pack("{s:f, s:f}", "seconds_a_token", a, "more_a_position", b));
    /* An estimate that cannot be kept is no reason to stop. */
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    if (json_dump_file(all, part, JSON_INDENT(1)) < 0 || rename(part, path) < 0)
        unlink(part);
    json_decref(all);
    free(path);
}

void cmd_speed_keep(const struct cmd_options *options, struct butler_engine *engine, const struct cmd_speed *speed)
{
    const double b = slope(speed);
    if (speed->n >= 8)
        cmd_speed_store(options, engine, fmax(speed->y / speed->n - b * speed->x / speed->n, 1e-9), b);
}
