/* See http_access.h. */
#include "serve/http_access.h"

#include <string.h>
#include <strings.h>
#include <xxhash.h>

static bool is_key(const char *key, const char *given)
{
    const size_t n = strlen(key), n_given = strlen(given);
    unsigned char differ = n != n_given;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(key[i] ^ given[i < n_given ? i : n_given]);
    return !differ;
}

/* Without its port. */
static size_t name_length(const char *host)
{
    return *host == '[' ? strcspn(host, "]") : strcspn(host, ":");
}

/* Whether a Host names this machine itself. A page whose own name resolves to 127.0.0.1 (DNS rebinding) is of the same origin to a
 * browser; its name gives it away. */
static bool is_own_name(const struct http_params *params, const char *host)
{
    static const char local[] = "localhost";
    const size_t n = name_length(host), n_local = sizeof local - 1;
    const bool is_address = *host == '[' || strspn(host, "0123456789.") == n;
    return is_address || (n == strlen(params->host) && strncasecmp(host, params->host, n) == 0) ||
           (n >= n_local && strncasecmp(host + n - n_local, local, n_local) == 0 && (n == n_local || host[n - n_local - 1] == '.'));
}

/* Whether a browser sends the request for a page that is not the server's own. */
static bool is_foreign(const struct http_params *params, const struct http_head *head, bool loopback)
{
    const char *site = head->fetch_site, *scheme_end = head->origin ? strstr(head->origin, "://") : NULL;
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0) /* "none": the user typed the address */
        return true;
    if (head->origin && (!scheme_end || !head->host || strcasecmp(scheme_end + 3, head->host) != 0))
        return true;
    return loopback && head->host && !is_own_name(params, head->host);
}

enum http_access http_check_access(const struct http_params *params, const struct http_head *head, bool loopback,
                                   struct http_client *client)
{
    const enum http_open open = params->open_to(head->path);
    const bool has_keys = params->n_keys > 0 || params->admin_key;
    *client = (struct http_client){.admin = !has_keys};
    for (int i = 0; i < params->n_keys; i++)
        client->owner = is_key(params->keys[i], head->key) ? 1 + i : client->owner;
    if (params->admin_key && is_key(params->admin_key, head->key))
        *client = (struct http_client){.owner = 1 + params->n_keys, .admin = true};
    if (!has_keys)
        return open == HTTP_SHOWS_TEXTS && is_foreign(params, head, loopback) ? HTTP_FOREIGN_PAGE : HTTP_ALLOWED;
    return client->owner > 0 || open == HTTP_OPEN || strcmp(head->method, "OPTIONS") == 0 ? HTTP_ALLOWED : HTTP_WRONG_KEY;
}

void http_name_key(const struct http_client *client, const char *key, char name[9])
{
    static const char digits[] = "0123456789abcdef";
    const XXH64_hash_t hash = XXH64(key, strlen(key), 0);
    strcpy(name, "-");
    for (int i = 0; i < 8 && client->owner > 0; i++)
        name[i] = digits[hash >> (60 - 4 * i) & 15];
    name[client->owner > 0 ? 8 : 1] = 0;
}
