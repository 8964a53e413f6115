// SPDX-License-Identifier: Apache-2.0

#include "pool.h"

#include "account.h"
#include "evict.h"
#include "group.h"
#include "prefetch.h"
#include "row.h"
#include "threads.h"

#include <string.h>

// ---- slots

// `reclaim` of the pool's memory.
static bool free_some(void *owner) {
    threads_wait_until_learned(owner);
    return evict(owner);
}

bool pool_init(pool *p, size_t memory_bytes, rule_name rule, unsigned sources, const corpus *c,
               float min_prob) {
    *p = (pool){.options = {.rule = rule, .sources = sources, .min_prob = min_prob}};
    p->step.slice = POOL_SLICE;
    p->step.off_slice = POOL_OFF_SLICE;
    p->threads.count = 1;
    p->threads.many_rows = MANY_ROWS;
    p->memory = (sam_memory){.limit = memory_bytes, .reclaim = free_some, .owner = p};
    p->model = sam_resize(&p->memory, NULL, 0, pool_min_bytes());
    if (!p->model)
        return false;
    p->groups.lives = (uint8_t *)p->model + rule_model_bytes();
    memset(p->groups.lives, 0, POOL_LIVES);
    rule_model_init(p->model, rule);
    if (c)
        p->corpus = *c;
    return true;
}

static void free_slot(pool *p, pool_slot *slot) {
    slot->drafts = false;
    account_discard(p, &slot->request);
    rule_record_free(&slot->record, &p->memory);
    sam_resize(&p->memory, slot->corpus_at, slot->corpus_at ? sizeof(corpus_context) : 0, 0);
    slot->corpus_at = NULL;
}

void pool_free(pool *p) {
    if (!p->model)
        return;
    threads_end(p);
    p->step.left = 0;
    for (uint32_t i = 0; i < p->slots.count; i++)
        if (p->slots.items[i].open)
            pool_close(p, i, false, NULL);
    while (p->groups.window.oldest)
        group_remove(p, p->groups.window.oldest);
    while (p->groups.main.oldest)
        group_remove(p, p->groups.main.oldest);
    for (int i = 0; i < POOL_DISCARDED; i++)
        sam_index_free(&p->freeing.discarded[i]);
    sam_resize(&p->memory, p->model, pool_min_bytes(), 0);
    SAM_FREE(p->slots.items);
    SAM_FREE(p->step.rows);
    SAM_FREE(p->step.order);
    corpus_close(&p->corpus);
    p->model = NULL;
}

// Takes a slot number that has been free for a while, or a new one.
static bool take_slot(pool *p, uint32_t *number) {
    if (p->slots.free_count > POOL_SPARE_SLOTS) {
        *number = p->slots.first_free;
        p->slots.first_free = p->slots.items[*number].next;
        p->slots.free_count--;
        return true;
    }
    if (p->slots.count == p->slots.capacity) {
        uint32_t capacity = p->slots.capacity + p->slots.capacity / 2 + 16;
        if (capacity > INT32_MAX)
            return false;
        pool_slot *slots = SAM_REALLOC(p->slots.items, capacity * sizeof(pool_slot));
        if (!slots)
            return false;
        p->slots.items = slots;
        p->slots.capacity = capacity;
    }
    *number = p->slots.count++;
    return true;
}

static void release_slot(pool *p, uint32_t number) {
    p->slots.items[number] = (pool_slot){0};
    *(p->slots.free_count++ ? &p->slots.items[p->slots.last_free].next : &p->slots.first_free) = number;
    p->slots.last_free = number;
}

// Stops the drafting of a slot whose tokens cannot be stored. The part of its text in the group stays.
static void exhaust(pool *p, pool_slot *slot) {
    free_slot(p, slot);
    if (slot->text && !slot->group) {
        text_free(p, slot->text);
        slot->text = NULL;
    }
    row_count_exhausted(p, slot);
}

// Appends tokens to the slot's text. Returns false without memory; nothing has changed then.
static bool store(pool *p, pool_slot *slot, const int32_t *tokens, uint32_t count) {
    sam_text *body = &slot->text->body;
    if (count > body->capacity - body->size) {
        p->freeing.protected_group = slot->group;
        int32_t *grown =
            sam_grow(&p->memory, body->tokens, body->size, count, &body->capacity, sizeof(int32_t));
        p->freeing.protected_group = NULL;
        if (!grown)
            return false;
        body->tokens = grown;
    }
    // & keeps ids nonnegative even if another thread changes the checked array.
    for (uint32_t i = 0; i < count; i++)
        body->tokens[body->size++] = tokens[i] & INT32_MAX;
    p->stats.tokens += count;
    if (slot->group)
        group_grew(slot->group, slot->text, count);
    return true;
}

// Gives a slot a text of these tokens, of which the first `prompt_size` are its prompt.
static bool new_text(pool *p, pool_slot *slot, uint32_t number, uint32_t prompt_size, const int32_t *tokens,
                     uint32_t size) {
    slot->text = text_new(p, prompt_size, size);
    if (!slot->text || !store(p, slot, tokens, size))
        return false;
    slot->text->slot = number;
    return true;
}

// Lets a new slot continue a closed text of the named group (group_find_start). Returns whether there is one; *stored
// is then whether memory sufficed.
static bool continue_text(pool *p, pool_slot *slot, uint32_t number, const int32_t *prompt, uint32_t size,
                          const void *name, size_t name_bytes, bool *stored) {
    pool_group *g = group_find(p, POOL_NAMED, name, name_bytes);
    pool_text *text = g ? group_find_start(g, prompt, size) : NULL;
    if (!text)
        return false;
    bool whole = !text->pins && begins_with(prompt, size, text->body.tokens, text->body.size);
    if (!whole && !g->open)
        group_drop_index(p, g); // it has tokens that the new text lacks; with open slots it is in use
    group_join(p, POOL_NAMED, name, name_bytes);
    if (whole) {
        group_reopen(p, g, text, number);
        slot->text = text;
        slot->group = g;
        uint32_t known = text->body.size;
        *stored = size == known || store(p, slot, prompt + known, size - known);
        return true;
    }
    uint32_t old = text->number;
    p->freeing.protected_group = g;
    *stored = new_text(p, slot, number, text->prompt_size, prompt, size) && group_add_text(p, g, slot->text);
    p->freeing.protected_group = NULL;
    if (!*stored) {
        group_leave(p, g);
        return true;
    }
    if (text_of(g, old)) // not freed for lack of memory
        group_forget_text(p, g, text_of(g, old));
    slot->group = g;
    return true;
}

// Creates the text of a new slot. On failure the slot has no group, or continues a text without its new tokens.
static bool fill_slot(pool *p, pool_slot *slot, uint32_t number, const int32_t *prompt, uint32_t size,
                      pool_key kind, const void *name, size_t name_bytes) {
    bool grouped = kind != POOL_PRIVATE && has_source(p, RULE_GROUP);
    if (!grouped && !has_source(p, RULE_REQUEST) && !has_source(p, RULE_COMMON) && !p->corpus.file)
        return true;
    slot->drafts = true;
    if (p->corpus.file) {
        slot->corpus_at = sam_resize(&p->memory, NULL, 0, sizeof(corpus_context));
        if (!slot->corpus_at)
            return false;
        corpus_start(&p->corpus, slot->corpus_at);
    }
    bool stored;
    if (grouped && kind == POOL_NAMED &&
        continue_text(p, slot, number, prompt, size, name, name_bytes, &stored))
        return stored;
    if (!new_text(p, slot, number, size, prompt, size))
        return false;
    if (grouped) {
        const void *key = kind == POOL_NAMED ? name : prompt;
        pool_group *g = group_join(p, kind, key, kind == POOL_NAMED ? name_bytes : size * sizeof(int32_t));
        if (!g)
            return false;
        if (!group_add_text(p, g, slot->text)) {
            group_leave(p, g);
            return false;
        }
        slot->group = g;
    }
    return true;
}

pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *number) {
    pool_catch_up(p);
    if (!take_slot(p, number))
        return POOL_NO_MEMORY;
    pool_slot *slot = &p->slots.items[*number];
    *slot = (pool_slot){.open = true, .cursor = SAM_START};
    p->stats.slots_open++;
    if (size >= SAM_MAX_PLACES ||
        !fill_slot(p, slot, *number, prompt, (uint32_t)size, kind, name, name_bytes))
        exhaust(p, slot);
    return POOL_OK;
}

void pool_isolate(pool *p, uint32_t slot) { p->slots.items[slot].isolated = true; }

static pool_slot *find_slot(const pool *p, int64_t slot) {
    return slot >= 0 && slot < p->slots.count && p->slots.items[slot].open ? &p->slots.items[slot] : NULL;
}

static pool_status refuse(pool_error *error, pool_status status, size_t at, int64_t value) {
    *error = (pool_error){at, value};
    return status;
}

pool_status pool_prompt_size(const pool *p, int64_t number, uint32_t *size, pool_error *error) {
    const pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    *size = slot->text ? slot->text->prompt_size : 0;
    return POOL_OK;
}

// Frees the unused capacity of a closed text, if possible.
static void shrink_text(pool *p, pool_text *text) {
    sam_text *body = &text->body;
    int32_t *tokens =
        sam_resize(&p->memory, body->tokens, body->capacity * sizeof(int32_t), body->size * sizeof(int32_t));
    if (tokens || !body->size) {
        body->tokens = tokens;
        body->capacity = body->size;
    }
}

pool_status pool_close(pool *p, int64_t number, bool keep, pool_error *error) {
    pool_catch_up(p);
    pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    pool_group *g = slot->group;
    pool_text *text = slot->text;
    keep = keep && !slot->isolated;
    free_slot(p, slot);
    if (g) {
        if (keep)
            shrink_text(p, text);
        group_close_text(p, g, text, keep);
        group_leave(p, g);
    } else if (text) {
        text_free(p, text);
    }
    release_slot(p, (uint32_t)number);
    p->stats.slots_open--;
    return POOL_OK;
}

pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error) {
    pool_catch_up(p);
    pool_group *g = group_find(p, kind, key, key_bytes);
    *found = g != NULL;
    if (!g)
        return POOL_OK;
    if (g->open)
        return refuse(error, POOL_GROUP_IN_USE, 0, g->open);
    group_remove(p, g);
    return POOL_OK;
}

// ---- step

// Locates the tokens of each row and checks them; the number of packed tokens must be the sum of the counts.
static pool_status check_tokens(pool *p, size_t rows, const pool_tokens *tokens, pool_error *error) {
    const int32_t *next = tokens->tokens;
    for (size_t i = 0; i < rows; i++) {
        pool_row *row = &p->step.rows[i];
        size_t at = (size_t)(next - tokens->tokens);
        if (tokens->starts) {
            int32_t start = tokens->starts[i];
            if (start < 0)
                return refuse(error, POOL_BAD_START, i, start);
            if ((size_t)start + row->count > tokens->size)
                return refuse(error, POOL_BAD_END, i, (int64_t)start + row->count);
            next = tokens->tokens + (ptrdiff_t)i * tokens->stride + start;
            at = i * tokens->size + (size_t)start;
        }
        for (size_t j = 0; j < row->count; j++)
            if (next[j] < 0)
                return refuse(error, POOL_BAD_TOKEN, at + j, next[j]);
        row->tokens = next;
        next += row->count;
    }
    return POOL_OK;
}

// Checks the arguments and copies them to p->step.rows. Sets p->step.work and p->step.drafting.
static pool_status check_rows(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                              const int32_t *counts, const int32_t *k, bool uniform_k, size_t width,
                              pool_error *error) {
    if (rows > p->step.capacity) {
        pool_row *grown = SAM_REALLOC(p->step.rows, rows * sizeof(pool_row));
        if (!grown)
            return POOL_NO_MEMORY;
        p->step.rows = grown;
        uint32_t *order = SAM_REALLOC(p->step.order, rows * sizeof(uint32_t));
        if (!order)
            return POOL_NO_MEMORY;
        p->step.order = order;
        p->step.capacity = rows;
    }
    size_t max_size = width < RULE_MAX_DRAFT ? width : RULE_MAX_DRAFT;
    p->step.number++;
    p->step.work = 0;
    p->step.drafting = false;
    int64_t sum = 0;
    for (size_t i = 0; i < rows; i++) {
        int32_t number = slots[i], count = counts[i], size = k[uniform_k ? 0 : i];
        if (i + ROWS_AHEAD < rows && (uint32_t)slots[i + ROWS_AHEAD] < p->slots.count)
            sam_prefetch(&p->slots.items[slots[i + ROWS_AHEAD]].step);
        pool_slot *slot = find_slot(p, number);
        if (!slot)
            return refuse(error, POOL_BAD_SLOT, i, number);
        if (slot->step == p->step.number)
            return refuse(error, POOL_REPEATED_SLOT, i, number);
        if (count < 0)
            return refuse(error, POOL_BAD_COUNT, i, count);
        if (size < 0 || (size_t)size > max_size)
            return refuse(error, POOL_BAD_DRAFT_SIZE, i, size);
        slot->step = p->step.number;
        p->step.rows[i] = (pool_row){.slot = (uint32_t)number, .count = (uint32_t)count, .k = (uint32_t)size};
        p->step.work += size ? 2 * POOL_LARGE_COST * (int64_t)count : 0;
        p->step.drafting |= size > 0;
        sum += count;
    }
    if (!tokens->starts && (uint64_t)sum != tokens->size)
        return refuse(error, POOL_BAD_COUNT_SUM, 0, sum);
    return check_tokens(p, rows, tokens, error);
}

// Appends tokens to a slot. Returns whether the slot can draft.
static bool append(pool *p, pool_slot *slot, const int32_t *tokens, size_t count) {
    p->stats.appended += count;
    if (!slot->drafts || !count)
        return slot->drafts;
    if (count < SAM_MAX_PLACES && store(p, slot, tokens, (uint32_t)count))
        return true;
    threads_wait_until_learned(p); // from the record that is freed now
    exhaust(p, slot);
    return false;
}

// Feeds the automata of the rows that draft in this step, or of those that do not, until the work is used up. Drafting
// rows that are behind come last, so that they do not hold up the others.
static void feed_rows(pool *p, size_t rows, bool drafting) {
    for (size_t i = 0; i < rows && drafting; i++)
        p->step.rows[i].behind =
            p->step.rows[i].k && !p->step.rows[i].fed && row_is_behind(p, &p->step.rows[i]);
    for (int behind = 0; behind <= drafting; behind++) {
        for (staged_walk walk = walk_rows(rows, FEED_STAGES, 1); p->step.work > 0 && next_stage(&walk);) {
            pool_row *row = &p->step.rows[walk.item];
            if ((row->k > 0) != drafting || row->fed || row->behind != behind)
                continue;
            if (walk.stage < FEED_STAGES)
                prefetch_feed(p, row, walk.stage);
            else
                row_catch_up(p, &p->slots.items[row->slot]);
        }
    }
    for (size_t i = 0; i < rows; i++)
        if ((p->step.rows[i].k > 0) == drafting && !p->step.rows[i].drafted &&
            p->slots.items[p->step.rows[i].slot].group)
            group_feed_others(p, p->slots.items[p->step.rows[i].slot].group);
}

// Drafts the rows that are not drafted yet.
static void draft_rows(pool *p, size_t rows, const pool_drafts *out) {
    draft_counts counts = {0};
    for (staged_walk walk = walk_rows(rows, DRAFT_STAGES, 1); next_stage(&walk);) {
        const uint32_t number = (uint32_t)walk.item;
        pool_row *row = &p->step.rows[number];
        pool_slot *slot = &p->slots.items[row->slot];
        if (row->drafted)
            continue;
        if (walk.stage < DRAFT_STAGES) {
            prefetch_draft(p, row, walk.stage);
            continue;
        }
        out->lengths[number] = 0;
        if (!slot->drafts || !row->k)
            continue;
        p->freeing.protected_group = slot->group;
        p->freeing.protected_slot = slot;
        row->matched = false; // memory of the states may have been freed since they were found
        row_draft(p, &number, 1, out, rule_model_work(p->model), &p->memory, &counts);
        p->freeing.protected_group = NULL;
        p->freeing.protected_slot = NULL;
    }
    row_count_drafts(p, &counts);
}

// Feeds a step's tokens. With `out`, drafts some of the rows.
static void feed_all(pool *p, size_t rows, const pool_drafts *out) {
    if (p->step.drafting)
        threads_feed(p, rows, out);
    feed_rows(p, rows, true);
    feed_rows(p, rows, false);
}

// Feeds drafting rows whose automata lack more than the new tokens.
static void feed_behind(pool *p, size_t rows) {
    for (size_t i = 0; i < rows && p->step.work > 0; i++)
        if (p->step.rows[i].k && row_is_behind(p, &p->step.rows[i]))
            row_feed(p, &p->slots.items[p->step.rows[i].slot]);
}

pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error) {
    pool_catch_up(p);
    pool_status status = check_rows(p, slots, rows, tokens, counts, k, uniform_k, out->width, error);
    if (status != POOL_OK)
        return status;
    p->step.work += p->step.drafting ? p->step.slice : p->step.off_slice;
    threads_learn(p, rows);
    for (staged_walk walk = walk_rows(rows, STORE_STAGES, ROWS_AHEAD); next_stage(&walk);) {
        const pool_row *row = &p->step.rows[walk.item];
        if (walk.stage < STORE_STAGES)
            prefetch_store(p, row, walk.stage);
        else
            append(p, &p->slots.items[row->slot], row->tokens, row->count);
    }
    account_free_discarded(p);
    if (!out->index_later)
        feed_all(p, rows, out);
    else if (rows < MANY_ROWS)
        feed_behind(p, rows);
    if (p->step.drafting)
        threads_draft(p, rows, out);
    threads_end_step(p);
    draft_rows(p, rows, out);
    p->step.left = out->index_later ? rows : 0;
    return POOL_OK;
}

void pool_catch_up(pool *p) {
    size_t rows = p->step.left;
    p->step.left = 0;
    for (size_t i = 0; i < rows; i++)
        p->step.rows[i].drafted = false; // its group may have other texts to feed
    if (rows)
        feed_all(p, rows, NULL);
}

pool_status pool_append(pool *p, int64_t number, const int32_t *tokens, size_t count, pool_error *error) {
    pool_catch_up(p);
    pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0)
            return refuse(error, POOL_BAD_TOKEN, i, tokens[i]);
    p->step.work = p->step.slice + 2 * POOL_LARGE_COST * (int64_t)count;
    row_learn(p, slot, tokens, count, 0, RULE_LESSONS, has_group_index(slot));
    if (append(p, slot, tokens, count))
        row_catch_up(p, slot);
    return POOL_OK;
}
