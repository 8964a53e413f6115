// SPDX-License-Identifier: Apache-2.0

#include "group.h"

#include "account.h"

#include <string.h>

enum { PAST_TEXTS = 4 };

// ---- texts

void text_free(pool *p, pool_text *text) {
    p->stats.tokens -= text->body.size;
    if (text->pins) {
        p->memory.used -= text->body.capacity * sizeof(int32_t) + sizeof(pool_text);
        text->freed = true;
        return;
    }
    sam_resize(&p->memory, text->body.tokens, text->body.capacity * sizeof(int32_t), 0);
    sam_resize(&p->memory, text, sizeof(pool_text), 0);
}

void text_pin(pool_text *text) { text->pins++; }

void text_unpin(pool_text *text) {
    if (--text->pins || !text->freed)
        return;
    sam_memory none = {.used =
                           text->body.capacity * sizeof(int32_t) + sizeof(pool_text)}; // not the pool's now
    sam_resize(&none, text->body.tokens, text->body.capacity * sizeof(int32_t), 0);
    sam_resize(&none, text, sizeof(pool_text), 0);
}

pool_text *text_new(pool *p, uint32_t prompt_size, uint32_t size) {
    pool_text *text = sam_resize(&p->memory, NULL, 0, sizeof(pool_text));
    if (!text)
        return NULL;
    *text =
        (pool_text){.self = &text->body, .prompt_size = prompt_size, .number = SAM_NONE, .slot = SAM_NONE};
    int32_t *tokens = sam_grow(&p->memory, NULL, 0, size, &text->body.capacity, sizeof(int32_t));
    if (size && !tokens) {
        text_free(p, text);
        return NULL;
    }
    text->body.tokens = tokens;
    return text;
}

// ---- groups

uint64_t group_hash(pool_key kind, const void *key, size_t bytes) {
    bool by_prompt = kind == POOL_BY_PROMPT; // token by token: the same on every byte order
    size_t count = by_prompt ? bytes / sizeof(int32_t) : bytes;
    uint64_t hash = (uint64_t)kind;
    for (size_t i = 0; i < count; i++) {
        uint32_t unit = by_prompt ? (uint32_t)((const int32_t *)key)[i] : ((const unsigned char *)key)[i];
        hash = (hash ^ unit) * UINT64_C(0x9E3779B97F4A7C15) + 1;
        hash ^= hash >> 32;
    }
    return hash;
}

pool_group *group_find(const pool *p, pool_key kind, const void *key, size_t bytes) {
    if (!p->groups.bucket_count)
        return NULL;
    uint64_t hash = group_hash(kind, key, bytes);
    pool_group *g = p->groups.buckets[hash & (p->groups.bucket_count - 1)];
    while (g && (g->hash != hash || g->kind != kind || g->key_bytes != bytes ||
                 (bytes && memcmp(g->key, key, bytes) != 0)))
        g = g->chain;
    return g;
}

// From now on the texts before number `past` are older than the group's life: `texts` of them, with `tokens` tokens.
static void set_past(pool *p, pool_group *g, uint32_t past, uint32_t texts, uint64_t tokens) {
    if (has_source(p, RULE_HISTORY)) {
        p->stats.history_texts += texts - (uint64_t)g->past_texts;
        p->stats.history_tokens += tokens - g->past_tokens;
    }
    g->past = past;
    g->past_texts = texts;
    g->past_tokens = tokens;
}

void group_free_text(pool *p, pool_group *g, pool_text *text) {
    uint32_t number = text->number;
    g->texts[number] = NULL;
    g->tokens -= text->body.size;
    g->kept -= !text->removed;
    g->removed -= text->removed;
    if (number < g->past)
        set_past(p, g, g->past, g->past_texts - 1, g->past_tokens - text->body.size);
    text_free(p, text);
}

void group_drop_index(pool *p, pool_group *g) {
    account_discard(p, &g->index);
    g->has_prompt = g->swaps = false;
    g->carrier = g->first_due = g->last_due = NULL;
    g->closed_tokens = 0;
    uint32_t count = 0, past = 0;
    for (uint32_t i = 0; i < g->text_count; i++) {
        pool_text *text = text_of(g, i);
        if (text && text->removed) {
            group_free_text(p, g, text);
            text = NULL;
        }
        if (!text)
            continue;
        past += i < g->past;
        text->number = count;
        text->indexed = text->due = false;
        g->texts[count++] = &text->body;
    }
    g->text_count = count;
    g->past = past;
    g->first_text = 0;
    account_update(p, g);
}

void group_free(pool *p, pool_group *g) {
    set_past(p, g, 0, 0, 0);
    account_discard(p, &g->index);
    for (uint32_t i = 0; i < g->text_count; i++)
        if (g->texts[i])
            text_free(p, text_of(g, i));
    sam_resize(&p->memory, g->texts, g->text_capacity * sizeof(sam_text *), 0);
    sam_resize(&p->memory, g->key, g->key_bytes, 0);
    sam_resize(&p->memory, g, sizeof(pool_group), 0);
}

void group_remove(pool *p, pool_group *g) {
    account_remove(p, g);
    pool_group **place = &p->groups.buckets[g->hash & (p->groups.bucket_count - 1)];
    while (*place != g)
        place = &(*place)->chain;
    *place = g->chain;
    group_free(p, g);
    if (--p->stats.groups == 0) {
        sam_resize(&p->memory, p->groups.buckets, p->groups.bucket_count * sizeof(pool_group *), 0);
        p->groups.buckets = NULL;
        p->groups.bucket_count = 0;
    }
}

static bool reserve_bucket(pool *p) {
    if (p->stats.groups < p->groups.bucket_count)
        return true;
    size_t count = p->groups.bucket_count ? 2 * p->groups.bucket_count : 16;
    pool_group **buckets = sam_resize(&p->memory, NULL, 0, count * sizeof(pool_group *));
    if (!buckets)
        return false;
    memset(buckets, 0, count * sizeof(pool_group *));
    for (size_t i = 0; i < p->groups.bucket_count; i++)
        for (pool_group *g = p->groups.buckets[i], *next; g; g = next) {
            next = g->chain;
            g->chain = buckets[g->hash & (count - 1)];
            buckets[g->hash & (count - 1)] = g;
        }
    sam_resize(&p->memory, p->groups.buckets, p->groups.bucket_count * sizeof(pool_group *), 0);
    p->groups.buckets = buckets;
    p->groups.bucket_count = count;
    return true;
}

pool_group *group_new(pool *p, pool_key kind, size_t key_bytes) {
    pool_group *g = sam_resize(&p->memory, NULL, 0, sizeof(pool_group));
    if (!g)
        return NULL;
    *g = (pool_group){.kind = kind, .max_closed_tokens = UINT64_MAX};
    if (key_bytes) {
        g->key = sam_resize(&p->memory, NULL, 0, key_bytes);
        if (!g->key) {
            group_free(p, g);
            return NULL;
        }
        g->key_bytes = key_bytes;
    }
    return g;
}

bool group_add(pool *p, pool_group *g) {
    if (!reserve_bucket(p))
        return false;
    g->hash = group_hash(g->kind, g->key, g->key_bytes);
    pool_group **bucket = &p->groups.buckets[g->hash & (p->groups.bucket_count - 1)];
    g->chain = *bucket;
    *bucket = g;
    p->stats.groups++;
    account_update(p, g);
    return true;
}

pool_group *group_join(pool *p, pool_key kind, const void *key, size_t bytes) {
    pool_group *g = group_find(p, kind, key, bytes);
    if (!g) {
        g = group_new(p, kind, bytes);
        if (!g)
            return NULL;
        if (bytes)
            memcpy(g->key, key, bytes);
        if (!group_add(p, g)) {
            group_free(p, g);
            return NULL;
        }
    }
    if (!g->open++)
        account_count_life(p, g);
    account_update(p, g);
    return g;
}

void group_leave(pool *p, pool_group *g) {
    if (--g->open)
        return;
    if (g->removed)
        group_drop_index(p, g);
    set_past(p, g, g->text_count, g->kept, g->tokens);
    g->lost = false;
    g->needs = 0;
    g->max_closed_tokens = UINT64_MAX;
    g->accepted /= 2;
    g->appended /= 2;
    if (g->kept && has_source(p, RULE_HISTORY))
        account_update(p, g);
    else
        group_remove(p, g);
}

static bool list_text(pool *p, pool_group *g, pool_text *text) {
    sam_text **texts =
        sam_grow(&p->memory, g->texts, g->text_count, 1, &g->text_capacity, sizeof(sam_text *));
    if (!texts)
        return false;
    g->texts = texts;
    g->index.texts = texts;
    text->number = g->text_count++;
    g->texts[text->number] = &text->body;
    g->tokens += text->body.size;
    g->kept++;
    return true;
}

bool group_add_closed_text(pool *p, pool_group *g, pool_text *text) {
    p->stats.tokens += text->body.size;
    if (!list_text(p, g, text)) {
        text_free(p, text);
        return false;
    }
    set_past(p, g, g->past + 1, g->past_texts + 1, g->past_tokens + text->body.size);
    return true;
}

// Puts a text into the automaton's queue, if the automaton is begun.
static void queue(pool_group *g, pool_text *text) {
    if (!g->index.memory || text->due)
        return;
    text->due = true;
    text->next_due = NULL;
    *(g->first_due ? &g->last_due->next_due : &g->first_due) = text;
    g->last_due = text;
}

bool group_add_text(pool *p, pool_group *g, pool_text *text) {
    if (!list_text(p, g, text))
        return false;
    queue(g, text);
    return true;
}

void group_grew(pool_group *g, pool_text *text, uint32_t count) {
    g->tokens += count;
    queue(g, text);
}

pool_text *group_find_start(const pool_group *g, const int32_t *prompt, size_t size) {
    pool_text *start = NULL;
    uint32_t most = 0;
    for (uint32_t i = g->text_count; i-- > 0 && g->kind == POOL_NAMED;) {
        pool_text *text = text_of(g, i);
        if (!text || text->slot != SAM_NONE || text->removed)
            continue;
        const sam_text *body = &text->body;
        uint32_t shared = 0;
        while (shared < body->size && shared < size && body->tokens[shared] == prompt[shared])
            shared++;
        if (shared < body->size && (shared <= text->prompt_size || body->size - shared > GROUP_MAX_LOST))
            continue;
        if (!start || shared > most || (shared == most && body->size < start->body.size)) {
            start = text;
            most = shared;
        }
    }
    return start;
}

void group_forget_text(pool *p, pool_group *g, pool_text *text) {
    text->removed = true;
    g->kept--;
    g->removed++;
    if (!text->indexed && !text->due)
        group_free_text(p, g, text);
}

void group_reopen(pool *p, pool_group *g, pool_text *text, uint32_t slot) {
    if (text->due || (text->indexed && text->cursor.length == text->body.size))
        g->closed_tokens -= text->body.size;
    text->slot = slot;
    text->cursor.older = false;
    queue(g, text);
    if (text->number >= g->past)
        return;
    uint32_t texts = g->past_texts;
    uint64_t tokens = g->past_tokens;
    for (uint32_t i = text->number; i < g->past; i++)
        if (g->texts[i]) {
            texts--;
            tokens -= g->texts[i]->size;
        }
    set_past(p, g, text->number, texts, tokens);
}

void group_close_text(pool *p, pool_group *g, pool_text *text, bool keep) {
    text->slot = SAM_NONE;
    if (g->lost) { // what has no memory is smaller now
        size_t bytes = (size_t)text->body.size * INDEX_TOKEN_BYTES, min = account_needed(p, 0);
        g->needs = g->needs > min + bytes ? g->needs - bytes : min;
    }
    if (text->number < g->first_text)
        g->first_text = text->number;
    if (text->indexed || text->due)
        g->closed_tokens += text->body.size;
    if (!keep)
        group_forget_text(p, g, text);
}

// ---- the automaton

bool index_feed(pool *p, sam_index *index, sam_cursor *cursor, uint32_t number, uint32_t size) {
    while (cursor->length < size && p->step.work > 0) {
        p->step.work -= index->node_count < POOL_LARGE ? 1 : POOL_LARGE_COST;
        if (!sam_index_append(index, cursor, number, cursor->length))
            return false;
    }
    return true;
}

// Feeds the prompt.
static bool feed_prompt(pool *p, pool_group *g) {
    pool_text *text = g->carrier;
    if (!index_feed(p, &g->index, &text->cursor, text->number, text->prompt_size))
        return false;
    if (text->cursor.length == text->prompt_size) {
        g->prompt = text->cursor;
        g->has_prompt = true;
    }
    return true;
}

// Feeds a text until the work is used up; older: everything in the automaton is newer. False: no memory.
static bool feed_text(pool *p, pool_group *g, pool_text *text, bool older) {
    if (!g->has_prompt) {
        if (!g->carrier) {
            g->carrier = text;
            text->cursor = SAM_START;
            text->indexed = true;
        }
        if (!feed_prompt(p, g))
            return false;
        if (!g->has_prompt)
            return true;
    }
    if (!text->indexed) {
        text->indexed = true;
        text->cursor = SAM_START;
        const pool_text *first = g->carrier;
        if (begins_with(text->body.tokens, text->body.size, first->body.tokens, first->prompt_size) &&
            !sam_index_branch(&g->index, &g->prompt, &text->cursor)) {
            text->indexed = false;
            return false;
        }
        text->cursor.older = older;
    }
    return index_feed(p, &g->index, &text->cursor, text->number, text->body.size);
}

// feed_text with the given power to free memory.
static bool feed_with(pool *p, pool_group *g, pool_text *text, bool older, pool_purpose purpose) {
    p->freeing.purpose = purpose;
    p->freeing.protected_group = p->freeing.building = g;
    bool done = feed_text(p, g, text, older);
    p->freeing.purpose = POOL_FOR_ALL;
    p->freeing.protected_group = p->freeing.building = NULL;
    return done;
}

void group_shrink(pool *p, pool_group *g) {
    g->max_closed_tokens = g->closed_tokens / 2;
    g->needs = account_needed(p, g->closed_tokens - g->max_closed_tokens);
    p->stats.evicted_history++;
    group_drop_index(p, g);
}

// Gives up the automaton: there is no memory for the open texts, which have this many tokens.
static void lose(pool *p, pool_group *g, uint64_t tokens) {
    g->lost = true;
    g->max_closed_tokens = 0;
    g->needs = account_needed(p, tokens);
    group_drop_index(p, g);
}

// There is no memory for a text of an open slot.
static void give_up(pool *p, pool_group *g) {
    if (g->closed_tokens) {
        group_shrink(p, g);
        return;
    }
    p->stats.evicted_groups++;
    lose(p, g, g->tokens - g->past_tokens);
}

// Begins the automaton if it is worthwhile and there is memory. Returns whether the group has one.
static bool begin(pool *p, pool_group *g) {
    if (g->index.memory)
        return true;
    if (!group_is_worthwhile(p, g))
        return false;
    size_t available = account_available(p, POOL_FOR_BUILD), requests = 0;
    if (g->lost && available < g->needs)
        return false;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < g->text_count; i++) {
        const pool_text *text = text_of(g, i);
        if (!text || text->slot == SAM_NONE)
            continue;
        tokens += text->body.size;
        requests += sam_index_bytes(&p->slots.items[text->slot].request);
    }
    // It may replace its slots' request indexes, whose texts it contains.
    size_t needed = (size_t)(tokens * INDEX_TOKEN_BYTES);
    bool fits = needed <= available + requests;
    if (fits) {
        p->freeing.purpose = POOL_FOR_BUILD;
        p->freeing.protected_group = g;
        fits = sam_index_init(&g->index, &p->memory, index_kind(p), g->texts);
        p->freeing.purpose = POOL_FOR_ALL;
        p->freeing.protected_group = NULL;
    }
    if (!fits) {
        p->stats.evicted_groups += !g->lost;
        lose(p, g, tokens);
        return false;
    }
    if (g->lost) {
        g->max_closed_tokens = UINT64_MAX;
        g->needs = 0;
    }
    g->lost = false;
    g->swaps = needed > available;
    g->next_past = g->text_count;
    for (uint32_t i = 0; i < g->text_count; i++)
        if (g->texts[i] && text_of(g, i)->slot != SAM_NONE)
            queue(g, text_of(g, i));
    return true;
}

void group_catch_up(pool *p, pool_group *g, pool_text *text, pool_purpose purpose) {
    if (begin(p, g) && !feed_with(p, g, text, false, purpose))
        give_up(p, g);
}

// Feeds closed texts, the newest first.
static void feed_past(pool *p, pool_group *g) {
    while (g->next_past && p->step.work > 0) {
        pool_text *text = text_of(g, g->next_past - 1);
        if (!text || text->slot != SAM_NONE || text->due || text->removed ||
            (text->indexed && text->cursor.length == text->body.size)) {
            g->next_past--;
            continue;
        }
        // A few of the newest texts for each open slot may displace other groups' texts; the others may not.
        bool few = g->closed_tokens * g->kept < PAST_TEXTS * g->open * g->tokens;
        pool_purpose purpose = few ? POOL_FOR_BUILD : POOL_FOR_SPARE;
        if (g->closed_tokens + text->body.size > g->max_closed_tokens) {
            if (account_available(p, purpose) < g->needs)
                return;
            g->max_closed_tokens = UINT64_MAX;
            g->needs = 0;
        }
        if (!feed_with(p, g, text, true, purpose)) {
            g->max_closed_tokens = g->closed_tokens;
            g->needs = account_needed(p, text->body.size);
            return;
        }
        if (!text->indexed || text->cursor.length < text->body.size)
            return;
        g->closed_tokens += text->body.size;
        g->next_past--;
    }
}

bool group_drop_fed(pool_group *g) {
    if (!g->index.memory)
        return true;
    pool_text *text;
    while ((text = g->first_due) && !text->removed && text->indexed &&
           text->cursor.length == text->body.size) {
        g->first_due = text->next_due;
        text->due = false;
    }
    return !text && !g->next_past;
}

void group_feed_others(pool *p, pool_group *g) {
    // Called even if no work is left, so that the queue is the same as in a step with threads.
    if (group_drop_fed(g))
        return;
    pool_text *text;
    while ((text = g->first_due) && p->step.work > 0) {
        if (!text->removed) {
            if (!feed_with(p, g, text, false, POOL_FOR_BUILD)) {
                give_up(p, g);
                return;
            }
            if (!text->indexed || text->cursor.length < text->body.size)
                return;
        }
        g->first_due = text->next_due;
        text->due = false;
    }
    feed_past(p, g);
}
