// SPDX-License-Identifier: Apache-2.0

#include "pool.h"

#include <string.h>

#define NO_SLOT UINT32_MAX
#define MAX_TOKENS (1u << 30) // of one text and of one group's log

// Grows an array of `size` elements of `element` bytes to hold one more. Returns the array, NULL on failure.
static void *grow(sam_memory *memory, void *array, uint32_t size, uint32_t *capacity, size_t element) {
    if (size < *capacity)
        return array;
    if (size >= MAX_TOKENS)
        return NULL;
    uint32_t larger = *capacity + *capacity / 2 + 4;
    void *grown = sam_resize(memory, array, *capacity * element, larger * element);
    if (grown)
        *capacity = larger;
    return grown;
}

// ---- groups

static uint64_t hash_key(pool_key kind, const void *key, size_t bytes) {
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

static pool_group *find_group(const pool *p, uint64_t hash, pool_key kind, const void *key, size_t bytes) {
    if (!p->bucket_count)
        return NULL;
    pool_group *g = p->buckets[hash & (p->bucket_count - 1)];
    while (g && (g->hash != hash || g->kind != kind || g->key_bytes != bytes ||
                 (bytes && memcmp(g->key, key, bytes) != 0)))
        g = g->chain;
    return g;
}

static void free_text(pool *p, pool_text *text) {
    p->tokens -= text->size;
    sam_resize(&p->memory, text->tokens, text->capacity * sizeof(int32_t), 0);
    sam_resize(&p->memory, text, sizeof(pool_text), 0);
}

static void free_group(pool *p, pool_group *g) {
    for (uint32_t i = 0; i < g->text_count; i++)
        free_text(p, g->texts[i]);
    sam_resize(&p->memory, g->texts, g->text_capacity * sizeof(pool_text *), 0);
    sam_resize(&p->memory, g->log, g->log_capacity * sizeof(pool_occurrence), 0);
    sam_resize(&p->memory, g->key, g->key_bytes, 0);
    sam_index_free(&g->index);
    sam_resize(&p->memory, g, sizeof(pool_group), 0);
}

// Takes a group out of the list of closed groups.
static void unlist_group(pool *p, pool_group *g) {
    *(g->older ? &g->older->newer : &p->oldest) = g->newer;
    *(g->newer ? &g->newer->older : &p->newest) = g->older;
    g->older = g->newer = NULL;
}

// Removes a group without open slots that is not in the list of closed groups.
static void remove_group(pool *p, pool_group *g) {
    pool_group **place = &p->buckets[g->hash & (p->bucket_count - 1)];
    while (*place != g)
        place = &(*place)->chain;
    *place = g->chain;
    free_group(p, g);
    if (--p->groups == 0) {
        sam_resize(&p->memory, p->buckets, p->bucket_count * sizeof(pool_group *), 0);
        p->buckets = NULL;
        p->bucket_count = 0;
    }
}

// Frees the group that was closed longest ago; asked for by sam_resize.
static bool evict_group(void *owner) {
    pool *p = owner;
    pool_group *g = p->oldest;
    if (!g)
        return false;
    unlist_group(p, g);
    remove_group(p, g);
    p->evicted_groups++;
    return true;
}

static bool reserve_bucket(pool *p) {
    if (p->groups < p->bucket_count)
        return true;
    size_t count = p->bucket_count ? 2 * p->bucket_count : 16;
    pool_group **buckets = sam_resize(&p->memory, NULL, 0, count * sizeof(pool_group *));
    if (!buckets)
        return false;
    memset(buckets, 0, count * sizeof(pool_group *));
    for (size_t i = 0; i < p->bucket_count; i++)
        for (pool_group *g = p->buckets[i], *next; g; g = next) {
            next = g->chain;
            g->chain = buckets[g->hash & (count - 1)];
            buckets[g->hash & (count - 1)] = g;
        }
    sam_resize(&p->memory, p->buckets, p->bucket_count * sizeof(pool_group *), 0);
    p->buckets = buckets;
    p->bucket_count = count;
    return true;
}

// A new group without members, in the table. NULL on failure, and then nothing has changed but for evicted
// groups.
static pool_group *add_group(pool *p, uint64_t hash, pool_key kind, const void *key, size_t bytes) {
    pool_group *g = sam_resize(&p->memory, NULL, 0, sizeof(pool_group));
    if (!g)
        return NULL;
    *g = (pool_group){.hash = hash, .kind = kind};
    if (bytes) {
        g->key = sam_resize(&p->memory, NULL, 0, bytes);
        if (!g->key)
            goto fail;
        memcpy(g->key, key, bytes);
        g->key_bytes = bytes;
    }
    if (!sam_index_init(&g->index, &p->memory, p->rule) || !reserve_bucket(p))
        goto fail;
    pool_group **bucket = &p->buckets[hash & (p->bucket_count - 1)];
    g->chain = *bucket;
    *bucket = g;
    p->groups++;
    return g;
fail:
    free_group(p, g);
    return NULL;
}

// Adds `token` to the group's index after `state`; it stands at `position` of text `number`. On failure
// nothing changes.
static bool group_append(pool_group *g, uint32_t *state, uint32_t number, uint32_t position, int32_t token) {
    sam_memory *memory = g->index.memory;
    pool_occurrence *log = grow(memory, g->log, g->log_size, &g->log_capacity, sizeof(pool_occurrence));
    if (!log)
        return false;
    g->log = log;
    uint32_t longer;
    if (!sam_index_extend(&g->index, *state, token, &longer))
        return false;
    g->log[g->log_size++] = (pool_occurrence){number, position};
    sam_index_mark(&g->index, *state, g->log_size);
    *state = longer;
    return true;
}

// Frees a text and makes the group as if the text had never been in it: what the other texts said is inserted
// again in the order in which it came. The prompt of a prompt's group stays while there is any other member.
// Cannot fail: the index and the log need no more room than they have.
static void group_forget(pool *p, pool_group *g, pool_text *text) {
    uint32_t gone = text->number;
    for (uint32_t i = gone + 1; i < g->text_count; i++) {
        g->texts[i - 1] = g->texts[i];
        g->texts[i - 1]->number = i - 1;
    }
    g->text_count--;
    bool said_nothing = g->has_prompt && text->size <= text->prompt_size && g->text_count > 0;
    free_text(p, text);
    uint32_t entries = g->log_size;
    if (said_nothing) { // the log has no token of its answer; the prompt, if it was text 0's, is the new text
                        // 0's
        for (uint32_t i = 0; i < entries; i++)
            g->log[i].text -= g->log[i].text > gone;
        return;
    }
    sam_index_clear(&g->index);
    g->log_size = 0;
    if (g->text_count == 0) {
        g->has_prompt = false;
        return;
    }
    for (uint32_t i = 0; i < g->text_count; i++)
        g->texts[i]->state = SAM_ROOT;
    uint32_t prompt_state = SAM_ROOT;
    for (uint32_t i = 0; i < entries; i++) {
        pool_occurrence o = g->log[i];
        bool in_prompt = g->kind == POOL_BY_PROMPT && o.position < g->texts[0]->prompt_size;
        if (o.text == gone && !in_prompt)
            continue;
        o.text = o.text == gone ? 0 : o.text - (o.text > gone);
        pool_text *from = g->texts[o.text];
        uint32_t *state = in_prompt ? &prompt_state : &from->state;
        group_append(g, state, o.text, o.position, from->tokens[o.position]);
        if (in_prompt && o.position + 1 == from->prompt_size) {
            g->prompt_state = prompt_state;
            for (uint32_t j = 0; j < g->text_count; j++)
                g->texts[j]->state = prompt_state;
        }
    }
}

// Ends a slot's membership.
static void leave_group(pool *p, pool_group *g) {
    if (--g->open)
        return;
    if (g->text_count == 0) {
        remove_group(p, g);
        return;
    }
    g->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = g;
    p->newest = g;
}

// ---- slots

void pool_init(pool *p, size_t memory_bytes, sam_rule rule, unsigned sources) {
    *p = (pool){.rule = rule, .sources = sources, .free_slot = NO_SLOT};
    p->memory = (sam_memory){.limit = memory_bytes, .make_room = evict_group, .owner = p};
}

void pool_free(pool *p) {
    for (uint32_t i = 0; i < p->slot_count; i++)
        if (p->slots[i].open)
            pool_close(p, i, true, NULL);
    while (evict_group(p))
        ;
}

static bool reserve_slot(pool *p) {
    if (p->free_slot != NO_SLOT)
        return true;
    if (p->slot_count == p->slot_capacity) {
        uint32_t capacity = p->slot_capacity + p->slot_capacity / 2 + 16;
        if (capacity > INT32_MAX)
            return false;
        pool_slot *slots = SAM_REALLOC(p->slots, capacity * sizeof(pool_slot));
        if (!slots)
            return false;
        p->slots = slots;
        p->slot_capacity = capacity;
    }
    p->slots[p->slot_count] = (pool_slot){.next_free = NO_SLOT};
    p->free_slot = p->slot_count++;
    return true;
}

// Ends the drafting of a slot and frees what it owns alone: its index and, unless the group has it, its text.
static void stop_indexing(pool *p, pool_slot *slot) {
    slot->indexed = false;
    sam_index_free(&slot->request);
    if (slot->text && !slot->group) {
        free_text(p, slot->text);
        slot->text = NULL;
    }
}

// Appends one token to the slot's text, its own index and, if with_group, the index of its group.
// On failure the own index may be one token ahead, the text and the group have not changed.
static bool append_token(pool *p, pool_slot *slot, int32_t token, bool with_group) {
    token &= INT32_MAX; // sound even if another thread writes to the caller's checked array meanwhile
    pool_text *text = slot->text;
    int32_t *tokens = grow(&p->memory, text->tokens, text->size, &text->capacity, sizeof(int32_t));
    if (!tokens)
        return false;
    text->tokens = tokens;
    if (slot->request.memory) {
        uint32_t longer;
        if (!sam_index_extend(&slot->request, slot->last, token, &longer))
            return false;
        sam_index_mark(&slot->request, slot->last, text->size);
        slot->last = longer;
    }
    if (with_group && !group_append(slot->group, &text->state, text->number, text->size, token))
        return false;
    text->tokens[text->size++] = token;
    p->tokens++;
    return true;
}

// Builds the text and indexes of a new slot. On failure the group, if any, has forgotten the text again.
static bool index_prompt(pool *p, pool_slot *slot, const int32_t *prompt, uint32_t size) {
    pool_group *g = slot->group;
    pool_text *text = sam_resize(&p->memory, NULL, 0, sizeof(pool_text));
    if (!text)
        return false;
    *text = (pool_text){.prompt_size = size};
    slot->text = text;
    if (g) {
        pool_text **texts = grow(&p->memory, g->texts, g->text_count, &g->text_capacity, sizeof(pool_text *));
        if (!texts) {
            free_text(p, text);
            slot->text = NULL;
            return false;
        }
        g->texts = texts;
        text->number = g->text_count;
        g->texts[g->text_count++] = text;
        if (g->has_prompt)
            text->state = g->prompt_state;
    }
    bool insert = g && !g->has_prompt;
    bool done = !(p->sources & POOL_REQUEST) || sam_index_init(&slot->request, &p->memory, p->rule);
    for (uint32_t i = 0; done && i < size; i++)
        done = append_token(p, slot, prompt[i], insert);
    if (!done) {
        if (g) {
            group_forget(p, g, text);
            slot->text = NULL;
        }
        return false;
    }
    if (insert && g->kind == POOL_BY_PROMPT) {
        g->prompt_state = text->state;
        g->has_prompt = true;
    }
    return true;
}

pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *number) {
    if (!reserve_slot(p))
        return POOL_NO_MEMORY;
    *number = p->free_slot;
    pool_slot *slot = &p->slots[*number];
    p->free_slot = slot->next_free;
    *slot = (pool_slot){.open = true};
    p->slots_open++;
    bool wanted = p->sources & POOL_REQUEST, fits = size < MAX_TOKENS;
    if (fits && p->sources & POOL_GROUP && kind != POOL_PRIVATE) {
        wanted = true;
        const void *key = kind == POOL_NAMED ? name : prompt;
        size_t bytes = kind == POOL_NAMED ? name_bytes : size * sizeof(int32_t);
        uint64_t hash = hash_key(kind, key, bytes);
        pool_group *g = find_group(p, hash, kind, key, bytes);
        if (g && g->open == 0)
            unlist_group(p, g);
        if (!g)
            g = add_group(p, hash, kind, key, bytes);
        if (g)
            g->open++;
        slot->group = g;
        fits = g != NULL;
    }
    slot->indexed = wanted && fits && index_prompt(p, slot, prompt, (uint32_t)size);
    if (wanted && !slot->indexed) {
        stop_indexing(p, slot);
        p->exhausted++;
    }
    return POOL_OK;
}

static pool_slot *find_slot(const pool *p, int64_t slot) {
    return slot >= 0 && slot < p->slot_count && p->slots[slot].open ? &p->slots[slot] : NULL;
}

pool_status pool_close(pool *p, int64_t number, bool keep, pool_error *error) {
    pool_slot *slot = find_slot(p, number);
    if (!slot) {
        *error = (pool_error){0, number};
        return POOL_BAD_SLOT;
    }
    pool_group *g = slot->group;
    stop_indexing(p, slot);
    pool_text *text = slot->text;
    if (g) {
        if (text && !keep)
            group_forget(p, g, text);
        else if (text && text->size) { // gives back what the text will not need; if it cannot, the room stays
            int32_t *tokens = sam_resize(&p->memory, text->tokens, text->capacity * sizeof(int32_t),
                                         text->size * sizeof(int32_t));
            if (tokens) {
                text->tokens = tokens;
                text->capacity = text->size;
            }
        }
        leave_group(p, g);
    }
    *slot = (pool_slot){.next_free = p->free_slot};
    p->free_slot = (uint32_t)number;
    if (--p->slots_open == 0) {
        SAM_FREE(p->slots);
        SAM_FREE(p->rows);
        p->slots = NULL;
        p->rows = NULL;
        p->slot_count = p->slot_capacity = 0;
        p->row_capacity = 0;
        p->free_slot = NO_SLOT;
    }
    return POOL_OK;
}

pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error) {
    pool_group *g = find_group(p, hash_key(kind, key, key_bytes), kind, key, key_bytes);
    *found = g != NULL;
    if (!g)
        return POOL_OK;
    if (g->open) {
        *error = (pool_error){0, g->open};
        return POOL_GROUP_IN_USE;
    }
    unlist_group(p, g);
    remove_group(p, g);
    return POOL_OK;
}

// ---- step

static pool_status refuse(pool_error *error, pool_status status, size_t at, int64_t value) {
    *error = (pool_error){at, value};
    return status;
}

// Checks the arguments and copies them to p->rows.
static pool_status check_rows(pool *p, const int32_t *slots, size_t rows, const int32_t *tokens,
                              size_t token_count, const int32_t *counts, const int32_t *k, bool uniform_k,
                              size_t width, pool_error *error) {
    if (rows > p->row_capacity) {
        pool_row *grown = SAM_REALLOC(p->rows, rows * sizeof(pool_row));
        if (!grown)
            return POOL_NO_MEMORY;
        p->rows = grown;
        p->row_capacity = rows;
    }
    p->steps++;
    int64_t sum = 0;
    for (size_t i = 0; i < rows; i++) {
        int32_t number = slots[i], count = counts[i], size = k[uniform_k ? 0 : i];
        pool_slot *slot = find_slot(p, number);
        if (!slot)
            return refuse(error, POOL_BAD_SLOT, i, number);
        if (slot->step == p->steps)
            return refuse(error, POOL_REPEATED_SLOT, i, number);
        if (count < 0)
            return refuse(error, POOL_BAD_COUNT, i, count);
        if (size < 0 || (size_t)size > width)
            return refuse(error, POOL_BAD_DRAFT_SIZE, i, size);
        slot->step = p->steps;
        p->rows[i] = (pool_row){(uint32_t)number, (uint32_t)count, (uint32_t)size};
        sum += count;
    }
    if ((uint64_t)sum != token_count)
        return refuse(error, POOL_BAD_COUNT_SUM, 0, sum);
    for (size_t i = 0; i < token_count; i++)
        if (tokens[i] < 0)
            return refuse(error, POOL_BAD_TOKEN, i, tokens[i]);
    return POOL_OK;
}

static void append(pool *p, pool_slot *slot, const int32_t *tokens, uint32_t count) {
    p->appended += count;
    for (uint32_t i = 0; slot->indexed && i < count; i++) {
        if (!append_token(p, slot, tokens[i], slot->group != NULL)) {
            stop_indexing(p, slot);
            p->exhausted++;
        }
    }
}

static uint32_t propose(pool *p, pool_slot *slot, uint32_t k, int32_t *out) {
    const pool_text *text = slot->text;
    uint32_t position = 0, length = 0;
    unsigned source = POOL_REQUEST;
    if (slot->request.memory)
        position = sam_index_match(&slot->request, slot->last, &length);
    if (slot->group) {
        pool_group *g = slot->group;
        uint32_t group_length, occurrence = sam_index_match(&g->index, text->state, &group_length);
        if (group_length > length) {
            source = POOL_GROUP;
            length = group_length;
            text = g->texts[g->log[occurrence - 1].text];
            position = g->log[occurrence - 1].position;
        }
    }
    if (!length)
        return 0;
    uint32_t left = text->size - position, size = k < left ? k : left;
    memcpy(out, text->tokens + position, size * sizeof(int32_t));
    p->drafted[source - 1].drafts++;
    p->drafted[source - 1].tokens += size;
    return size;
}

pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const int32_t *tokens, size_t token_count,
                      const int32_t *counts, const int32_t *k, bool uniform_k, int32_t *out, size_t width,
                      int32_t *lengths, pool_error *error) {
    pool_status status = check_rows(p, slots, rows, tokens, token_count, counts, k, uniform_k, width, error);
    if (status != POOL_OK)
        return status;
    for (size_t i = 0; i < rows; i++) {
        append(p, &p->slots[p->rows[i].slot], tokens, p->rows[i].count);
        tokens += p->rows[i].count;
    }
    for (size_t i = 0; i < rows; i++) {
        pool_slot *slot = &p->slots[p->rows[i].slot];
        uint32_t size = p->rows[i].k;
        lengths[i] = slot->indexed && size ? (int32_t)propose(p, slot, size, out + i * width) : 0;
    }
    return POOL_OK;
}

// ---- validation

// Whether the index reads the text from the root to `state`.
static bool reads(sam_index *index, const pool_text *text, uint32_t state) {
    uint32_t s = SAM_ROOT, states = index->state_count;
    for (uint32_t i = 0; i < text->size; i++)
        if (!sam_index_extend(index, s, text->tokens[i], &s) || index->state_count != states)
            return false;
    return s == state && index->states[s].length == text->size;
}

static size_t text_bytes(const pool_text *text) {
    return sizeof(pool_text) + text->capacity * sizeof(int32_t);
}

static bool validate_group(const pool *p, pool_group *g, size_t *bytes, uint64_t *tokens,
                           const char **reason) {
    SAM_REQUIRE(g->open || g->text_count, "a group has neither slots nor texts");
    SAM_REQUIRE(find_group(p, g->hash, g->kind, g->key, g->key_bytes) == g,
                "a group is not found by its key");
    if (!sam_index_validate(&g->index, reason))
        return false;
    for (uint32_t i = 0; i < g->text_count; i++) {
        const pool_text *text = g->texts[i];
        SAM_REQUIRE(text->number == i, "a text does not know its number");
        SAM_REQUIRE(text->size >= text->prompt_size, "a text of a group lacks a part of its prompt");
        SAM_REQUIRE(reads(&g->index, text, text->state), "a group's index does not read a text of the group");
        *bytes += text_bytes(text);
        *tokens += text->size;
    }
    for (uint32_t i = 0; i < g->log_size; i++)
        SAM_REQUIRE(g->log[i].text < g->text_count && g->log[i].position < g->texts[g->log[i].text]->size,
                    "the log names a token that no text has");
    *bytes += sizeof(pool_group) + g->key_bytes + sam_index_bytes(&g->index);
    *bytes += g->text_capacity * sizeof(pool_text *) + g->log_capacity * sizeof(pool_occurrence);
    return true;
}

bool pool_validate(pool *p, const char **reason) {
    size_t bytes = p->bucket_count * sizeof(pool_group *);
    uint64_t tokens = 0, groups = 0, open_groups = 0, closed_groups = 0, members = 0, slots = 0;
    for (size_t i = 0; i < p->bucket_count; i++)
        for (pool_group *g = p->buckets[i]; g; g = g->chain) {
            if (!validate_group(p, g, &bytes, &tokens, reason))
                return false;
            groups++;
            open_groups += g->open != 0;
            members += g->open;
        }
    for (const pool_group *g = p->oldest; g; g = g->newer) {
        SAM_REQUIRE(!g->open, "a group with open slots is listed as closed");
        SAM_REQUIRE((g->newer ? g->newer->older : p->newest) == g, "the list of closed groups is broken");
        closed_groups++;
    }
    SAM_REQUIRE(groups == p->groups && open_groups + closed_groups == groups,
                "the number of groups is wrong");
    for (uint32_t i = 0; i < p->slot_count; i++) {
        pool_slot *slot = &p->slots[i];
        if (!slot->open)
            continue;
        slots++;
        members -= slot->group != NULL;
        if (slot->request.memory) {
            if (!sam_index_validate(&slot->request, reason))
                return false;
            SAM_REQUIRE(reads(&slot->request, slot->text, slot->last),
                        "a request's index does not read its text");
            bytes += sam_index_bytes(&slot->request);
        }
        if (slot->text && !slot->group) {
            bytes += text_bytes(slot->text);
            tokens += slot->text->size;
        }
    }
    SAM_REQUIRE(slots == p->slots_open, "the number of open slots is wrong");
    SAM_REQUIRE(members == 0, "groups and slots disagree on who belongs to whom");
    SAM_REQUIRE(tokens == p->tokens, "the number of tokens is wrong");
    SAM_REQUIRE(bytes == p->memory.used, "the account of memory is wrong");
    SAM_REQUIRE(bytes <= p->memory.limit, "the memory limit is exceeded");
    return true;
}
