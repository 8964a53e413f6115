// SPDX-License-Identifier: Apache-2.0

#include "group.h"
#include "room.h"
#include "rows.h"

#include <string.h>

enum { MAX_RESERVED = 1 << 16 }; // tokens of a text for which memory is reserved at once

// ---- slots

size_t pool_min_bytes(void) { return rule_model_bytes() + POOL_LIVES; }

bool pool_init(pool *p, size_t memory_bytes, rule_name rule, unsigned sources, const corpus *c,
               float min_prob) {
    *p = (pool){.rule = rule, .sources = sources, .min_prob = min_prob, .slice = POOL_SLICE};
    p->off_slice = POOL_OFF_SLICE;
    p->num_threads = 1;
    p->many_rows = MANY_ROWS;
    p->memory = (sam_memory){.limit = memory_bytes, .make_room = room_make, .owner = p};
    p->model = sam_resize(&p->memory, NULL, 0, pool_min_bytes());
    if (!p->model)
        return false;
    p->lives = (uint8_t *)p->model + rule_model_bytes();
    memset(p->lives, 0, POOL_LIVES);
    rule_model_init(p->model, rule);
    if (c)
        p->corpus = *c;
    return true;
}

static void free_slot(pool *p, pool_slot *slot) {
    slot->drafts = false;
    room_discard(p, &slot->request);
    rule_record_free(&slot->record, &p->memory);
    sam_resize(&p->memory, slot->corpus_at, slot->corpus_at ? sizeof(corpus_context) : 0, 0);
    slot->corpus_at = NULL;
}

void pool_free(pool *p) {
    if (!p->model)
        return;
    rows_end(p);
    p->left = 0;
    for (uint32_t i = 0; i < p->slot_count; i++)
        if (p->slots[i].open)
            pool_close(p, i, false, NULL);
    while (p->fresh.oldest)
        group_remove(p, p->fresh.oldest);
    while (p->settled.oldest)
        group_remove(p, p->settled.oldest);
    for (int i = 0; i < POOL_DYING; i++)
        sam_index_free(&p->dying[i]);
    sam_resize(&p->memory, p->model, pool_min_bytes(), 0);
    SAM_FREE(p->slots);
    SAM_FREE(p->rows);
    SAM_FREE(p->order);
    corpus_close(&p->corpus);
    p->model = NULL;
}

// Takes a slot number that has been free for a while, or a new one.
static bool take_slot(pool *p, uint32_t *number) {
    if (p->free_count > POOL_SPARE_SLOTS) {
        *number = p->first_free;
        p->first_free = p->slots[*number].next;
        p->free_count--;
        return true;
    }
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
    *number = p->slot_count++;
    return true;
}

static void release_slot(pool *p, uint32_t number) {
    p->slots[number] = (pool_slot){0};
    *(p->free_count++ ? &p->slots[p->last_free].next : &p->first_free) = number;
    p->last_free = number;
}

static void count_exhausted(pool *p, pool_slot *slot) {
    p->exhausted += !slot->exhausted;
    slot->exhausted = true;
}

// Stops the drafting of a slot whose tokens cannot be stored. The part of its text in the group stays.
static void exhaust(pool *p, pool_slot *slot) {
    free_slot(p, slot);
    if (slot->text && !slot->group) {
        pool_free_text(p, slot->text);
        slot->text = NULL;
    }
    count_exhausted(p, slot);
}

// Appends tokens to the slot's text. Returns false without memory; nothing has changed then.
static bool store(pool *p, pool_slot *slot, const int32_t *tokens, uint32_t count) {
    sam_text *body = &slot->text->body;
    if (count > body->capacity - body->size) {
        p->uses = slot->group;
        int32_t *grown =
            sam_grow(&p->memory, body->tokens, body->size, count, &body->capacity, sizeof(int32_t));
        p->uses = NULL;
        if (!grown)
            return false;
        body->tokens = grown;
    }
    for (uint32_t i = 0; i < count; i++) // sound even if another thread writes to the checked array meanwhile
        body->tokens[body->size++] = tokens[i] & INT32_MAX;
    p->tokens += count;
    if (slot->group)
        group_grew(slot->group, slot->text, count);
    return true;
}

// Gives a slot a text of these tokens, of which the first `prompt_size` are its prompt.
static bool new_text(pool *p, pool_slot *slot, uint32_t number, uint32_t prompt_size, const int32_t *tokens,
                     uint32_t size) {
    slot->text = pool_new_text(p, prompt_size, size);
    if (!slot->text || !store(p, slot, tokens, size))
        return false;
    slot->text->slot = number;
    return true;
}

// Lets a new slot continue a closed text that its prompt begins with; *stored: without failure. Returns whether there
// is such a text.
static bool continue_text(pool *p, pool_slot *slot, uint32_t number, const int32_t *prompt, uint32_t size,
                          const void *name, size_t name_bytes, bool *stored) {
    pool_group *g = group_find(p, group_hash(POOL_NAMED, name, name_bytes), POOL_NAMED, name, name_bytes);
    pool_text *text = g ? group_find_start(g, prompt, size) : NULL;
    if (!text)
        return false;
    bool whole = !text->pins && begins_with(prompt, size, text->body.tokens, text->body.size);
    if (!whole && !g->open)
        group_drop_index(p, g); // which would have tokens that the text does not have
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
    p->uses = g;
    *stored = new_text(p, slot, number, text->prompt_size, prompt, size) && group_enter(p, g, slot->text);
    p->uses = NULL;
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
        if (!group_enter(p, g, slot->text)) {
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
    pool_slot *slot = &p->slots[*number];
    *slot = (pool_slot){.open = true, .cursor = SAM_START};
    p->slots_open++;
    if (size >= SAM_MAX_PLACES ||
        !fill_slot(p, slot, *number, prompt, (uint32_t)size, kind, name, name_bytes))
        exhaust(p, slot);
    return POOL_OK;
}

static pool_slot *find_slot(const pool *p, int64_t slot) {
    return slot >= 0 && slot < p->slot_count && p->slots[slot].open ? &p->slots[slot] : NULL;
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
    free_slot(p, slot);
    if (g) {
        if (keep)
            shrink_text(p, text);
        group_close_text(p, g, text, keep);
        group_leave(p, g);
    } else if (text) {
        pool_free_text(p, text);
    }
    release_slot(p, (uint32_t)number);
    p->slots_open--;
    return POOL_OK;
}

pool_status pool_truncate(pool *p, int64_t number, size_t size, pool_error *error) {
    pool_catch_up(p);
    pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    pool_text *old = slot->text;
    if (!old || !slot->drafts)
        return POOL_OK;
    if (size < old->prompt_size || size > old->body.size)
        return refuse(error, POOL_BAD_SIZE, old->prompt_size, old->body.size);
    if (size == old->body.size)
        return POOL_OK;
    pool_group *g = slot->group;
    memset(slot->record.due, 0, sizeof slot->record.due);
    room_discard(p, &slot->request);
    slot->cursor = SAM_START;
    if (slot->corpus_at) {
        corpus_start(&p->corpus, slot->corpus_at);
        slot->matched = 0;
    }
    pool_text *cut = pool_new_text(p, old->prompt_size, (uint32_t)size);
    if (cut) {
        if (size)
            memcpy(cut->body.tokens, old->body.tokens, size * sizeof(int32_t));
        cut->body.size = (uint32_t)size;
        cut->slot = (uint32_t)number;
        p->tokens += size;
    }
    if (cut && g && !group_enter(p, g, cut)) {
        pool_free_text(p, cut);
        cut = NULL;
    }
    if (!cut) {
        exhaust(p, slot);
        return POOL_OK;
    }
    slot->text = cut;
    if (g)
        group_close_text(p, g, old, false);
    else
        pool_free_text(p, old);
    return POOL_OK;
}

pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error) {
    pool_catch_up(p);
    pool_group *g = group_find(p, group_hash(kind, key, key_bytes), kind, key, key_bytes);
    *found = g != NULL;
    if (!g)
        return POOL_OK;
    if (g->open)
        return refuse(error, POOL_GROUP_IN_USE, 0, g->open);
    group_remove(p, g);
    return POOL_OK;
}

// ---- step

// Locates the tokens of each row and checks them; packed tokens are as many as the sum of the counts.
static pool_status check_tokens(pool *p, size_t rows, const pool_tokens *tokens, pool_error *error) {
    const int32_t *next = tokens->tokens;
    for (size_t i = 0; i < rows; i++) {
        pool_row *row = &p->rows[i];
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

// Checks the arguments and copies them to p->rows. Sets p->work and p->drafting.
static pool_status check_rows(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                              const int32_t *counts, const int32_t *k, bool uniform_k, size_t width,
                              pool_error *error) {
    if (rows > p->row_capacity) {
        pool_row *grown = SAM_REALLOC(p->rows, rows * sizeof(pool_row));
        if (!grown)
            return POOL_NO_MEMORY;
        p->rows = grown;
        uint32_t *order = SAM_REALLOC(p->order, rows * sizeof(uint32_t));
        if (!order)
            return POOL_NO_MEMORY;
        p->order = order;
        p->row_capacity = rows;
    }
    size_t max_size = width < RULE_MAX_DRAFT ? width : RULE_MAX_DRAFT;
    p->steps++;
    p->work = 0;
    p->drafting = false;
    int64_t sum = 0;
    for (size_t i = 0; i < rows; i++) {
        int32_t number = slots[i], count = counts[i], size = k[uniform_k ? 0 : i];
        if (i + ROWS_AHEAD < rows && (uint32_t)slots[i + ROWS_AHEAD] < p->slot_count)
            sam_ask(&p->slots[slots[i + ROWS_AHEAD]].step);
        pool_slot *slot = find_slot(p, number);
        if (!slot)
            return refuse(error, POOL_BAD_SLOT, i, number);
        if (slot->step == p->steps)
            return refuse(error, POOL_REPEATED_SLOT, i, number);
        if (count < 0)
            return refuse(error, POOL_BAD_COUNT, i, count);
        if (size < 0 || (size_t)size > max_size)
            return refuse(error, POOL_BAD_DRAFT_SIZE, i, size);
        slot->step = p->steps;
        p->rows[i] = (pool_row){.slot = (uint32_t)number, .count = (uint32_t)count, .k = (uint32_t)size};
        p->work += size ? 2 * POOL_LARGE_COST * (int64_t)count : 0;
        p->drafting |= size > 0;
        sum += count;
    }
    if (!tokens->starts && (uint64_t)sum != tokens->size)
        return refuse(error, POOL_BAD_COUNT_SUM, 0, sum);
    return check_tokens(p, rows, tokens, error);
}

// Adds to two counts, which are halved when the second exceeds `limit`.
static void note(uint64_t *accepted, uint64_t *appended, uint64_t more, uint64_t of, uint64_t limit) {
    *accepted += more;
    *appended += of;
    if (*appended > limit) {
        *accepted /= 2;
        *appended /= 2;
    }
}

static uint32_t bounded(size_t count) { return count < SAM_MAX_PLACES ? (uint32_t)count : SAM_MAX_PLACES; }

// Learns a lesson from what came after the last draft. in_group: the slot's group has an index.
static void learn(pool *p, pool_slot *slot, int lesson, const int32_t *tokens, uint32_t count,
                  bool in_group) {
    if (!count || !slot->drafts || !slot->record.due[lesson])
        return;
    uint64_t accepted[RULE_SOURCES] = {0};
    rule_learn(p->model, p->rule, &slot->record, lesson, tokens, count, accepted);
    if (lesson != RULE_CELLS)
        return;
    for (int i = 0; i < RULE_SOURCES; i++)
        p->accepted[i] += accepted[i];
    if (!in_group)
        return;
    pool_group *g = slot->group;
    uint64_t from_group = accepted[RULE_GROUP] + accepted[RULE_HISTORY];
    note(&g->accepted, &g->appended, from_group, count, 1 << 12);
    note(&p->accepted_in_groups, &p->appended_in_groups, from_group, count, 1 << 16);
}

static bool has_group_index(const pool_slot *slot) { return slot->group && slot->group->index.memory; }

void pool_mark_groups(pool *p, size_t rows) {
    for (size_t i = 0; i < rows; i++)
        p->rows[i].in_group = has_group_index(&p->slots[p->rows[i].slot]);
}

void pool_learn(pool *p, size_t rows, int first, int end, bool marked) {
    size_t ahead = rows < MANY_ROWS ? 0 : LEARN_ASKS * ROWS_AHEAD;
    for (size_t i = 0; i < rows + ahead; i++) {
        for (size_t at = 0; at < ahead; at += ROWS_AHEAD)
            if (i - at < rows)
                rows_ask_learn(p, &p->rows[i - at], (unsigned)(at / ROWS_AHEAD), first, end);
        if (i < ahead)
            continue;
        const pool_row *row = &p->rows[i - ahead];
        pool_slot *slot = &p->slots[row->slot];
        bool in_group = marked ? row->in_group : has_group_index(slot);
        for (int lesson = first; lesson < end; lesson++)
            learn(p, slot, lesson, row->tokens, bounded(row->count), in_group);
    }
}

// Appends tokens to a slot. Returns whether the slot can draft.
static bool append(pool *p, pool_slot *slot, const int32_t *tokens, size_t count) {
    p->appended += count;
    if (!slot->drafts || !count)
        return slot->drafts;
    uint32_t size = bounded(count);
    if (size < SAM_MAX_PLACES && store(p, slot, tokens, size))
        return true;
    rows_wait_until_learned(p); // from the record that is freed now
    exhaust(p, slot);
    return false;
}

// Feeds the rest of the text to the request index. If the slot can do without the index, nothing that others
// use is freed for it.
static void feed_request(pool *p, pool_slot *slot) {
    const pool_text *text = slot->text;
    uint32_t size = text->body.size;
    pool_power power =
        slot->group && slot->group->index.memory && text->indexed ? POOL_FOR_SPARE : POOL_FOR_ALL;
    if (!slot->request.memory) {
        if (slot->needs && room_for(p, power) < slot->needs)
            return;
        slot->needs = 0;
    }
    p->power = power;
    p->uses_slot = slot;
    bool done = slot->request.memory != NULL;
    if (!done) {
        done = sam_index_init(&slot->request, &p->memory, index_kind(p), &text->self);
        slot->cursor = SAM_START;
        if (done)
            sam_index_reserve(&slot->request, size < MAX_RESERVED ? size : MAX_RESERVED);
    }
    done = done && feed(p, &slot->request, &slot->cursor, 0, size);
    p->power = POOL_FOR_ALL;
    p->uses_slot = NULL;
    if (done)
        return;
    room_discard(p, &slot->request);
    slot->needs = room_needed(p, size);
}

// Feeds the rest of the slot's text to its automata.
static void feed_slot(pool *p, pool_slot *slot) {
    if (has_source(p, RULE_REQUEST))
        feed_request(p, slot);
    if (slot->group)
        group_catch_up(p, slot->group, slot->text, slot->request.memory ? POOL_FOR_BUILD : POOL_FOR_ALL);
}

// As feed_slot, and counts a slot that waits for memory.
static void catch_up(pool *p, pool_slot *slot) {
    if (!slot->drafts || p->work <= 0)
        return;
    feed_slot(p, slot);
    const pool_group *g = slot->group;
    bool waits = !slot->request.memory && (slot->needs || (g && g->lost)) && !(g && g->index.memory);
    if (waits && slot->waits) // for two steps: an automaton that is being rebuilt is missing for one
        count_exhausted(p, slot);
    slot->waits = waits;
}

// Brings the match in the corpus up to date. It depends on the last CORPUS_MAX_MATCH tokens alone.
static void match_corpus(const pool *p, pool_slot *slot) {
    const sam_text *body = &slot->text->body;
    if (body->size - slot->matched > CORPUS_MAX_MATCH)
        slot->matched = body->size - CORPUS_MAX_MATCH;
    while (slot->matched < body->size)
        corpus_advance(&p->corpus, slot->corpus_at, body->tokens[slot->matched++]);
}

// Begins to find the match of a text, or finds it at once: SAM_NONE if the index lacks too many of its tokens. Returns
// whether it began.
static bool begin_match(const sam_index *index, const sam_cursor *cursor, const sam_text *body, pool_row *row,
                        int source, pool_search *search) {
    uint32_t lacks = body->size - cursor->length;
    if (lacks && lacks <= POOL_AHEAD) {
        *search = (pool_search){.row = row, .source = source};
        sam_search_begin(&search->search, index, cursor, &body->tokens[cursor->length], lacks);
        return true;
    }
    row->states[source] = lacks ? SAM_NONE : sam_match(index, cursor, &row->lengths[source]);
    return false;
}

uint32_t pool_begin_match(const pool *p, pool_row *row, pool_search *searches) {
    const pool_slot *slot = &p->slots[row->slot];
    const pool_text *text = slot->text;
    const pool_group *g = slot->group;
    uint32_t begun = 0;
    row->matched = true;
    row->states[RULE_REQUEST] = row->states[RULE_GROUP] = SAM_NONE;
    if (slot->request.memory)
        begun += begin_match(&slot->request, &slot->cursor, &text->body, row, RULE_REQUEST, searches);
    if (g && g->index.memory && text->indexed)
        begun += begin_match(&g->index, &text->cursor, &text->body, row, RULE_GROUP, &searches[begun]);
    return begun;
}

bool pool_search_step(pool_search *search) {
    if (sam_search_step(&search->search))
        return true;
    search->row->states[search->source] = search->search.state;
    search->row->lengths[search->source] = search->search.length;
    return false;
}

// Finds the matches of a row's text in the indexes.
static void match(const pool *p, pool_row *row) {
    pool_search searches[RULE_INDEXES];
    for (uint32_t left = pool_begin_match(p, row, searches); left; left--)
        while (pool_search_step(&searches[left - 1]))
            ;
}

// The matches of a row's text in its sources.
static rule_context context_of(const pool *p, pool_row *row) {
    pool_slot *slot = &p->slots[row->slot];
    const pool_text *text = slot->text;
    uint32_t size = text->body.size;
    rule_context context = {.common = has_source(p, RULE_COMMON), .vocab_size = p->vocab_size};
    for (uint32_t i = 0; i < RULE_LAST; i++)
        context.last[i] = i < size ? text->body.tokens[size - 1 - i] : SAM_NO_TOKEN;
    if (!row->matched)
        match(p, row);
    for (int i = 0; i < RULE_INDEXES; i++)
        if (row->states[i] != SAM_NONE) {
            context.index[i] = i == RULE_REQUEST ? &slot->request : &slot->group->index;
            context.state[i] = row->states[i];
            context.length[i] = row->lengths[i];
        }
    if (context.index[RULE_GROUP])
        context.past = has_source(p, RULE_HISTORY) ? slot->group->past : 0;
    if (slot->corpus_at) {
        match_corpus(p, slot);
        context.corpus = &p->corpus;
        context.corpus_at = slot->corpus_at;
    }
    return context;
}

uint32_t pool_draft(const pool *p, const uint32_t *rows, uint32_t count, const pool_drafts *out,
                    rule_work *work, sam_memory *memory, rows_counts *counts) {
    rule_task tasks[RULE_BESIDE];
    for (uint32_t i = 0; i < count; i++) {
        pool_slot *slot = &p->slots[p->rows[rows[i]].slot];
        size_t at = rows[i] * out->width;
#define ROW(array) (out->array ? out->array + at : NULL)
        tasks[i] = (rule_task){.context = context_of(p, &p->rows[rows[i]]),
                               .k = p->rows[rows[i]].k,
                               .tokens = ROW(tokens),
                               .parents = ROW(parents),
                               .scores = ROW(scores),
                               .match_lengths = ROW(match_lengths),
                               .record = &slot->record};
#undef ROW
    }
    uint32_t done = rule_draft(p->model, work, memory, p->rule, p->min_prob, tasks, count);
    for (uint32_t i = 0; i < done; i++) {
        const uint8_t *source = tasks[i].record->source;
        uint32_t drafted = tasks[i].size;
        if (drafted)
            counts->drafts[source[0]]++;
        for (uint32_t j = 0; j < drafted; j++)
            counts->drafted[source[j]]++;
        for (uint32_t j = 0; out->sources && j < drafted; j++)
            out->sources[rows[i] * out->width + j] = source[j];
        out->lengths[rows[i]] = (int32_t)drafted;
    }
    return done;
}

void pool_count(pool *p, const rows_counts *counts) {
    for (int i = 0; i < RULE_SOURCES; i++) {
        p->drafts[i] += counts->drafts[i];
        p->drafted[i] += counts->drafted[i];
    }
}

bool pool_is_behind(const pool *p, const pool_row *row) {
    const pool_slot *slot = &p->slots[row->slot];
    const pool_text *text = slot->text;
    const pool_group *g = slot->group;
    if (!slot->drafts)
        return false;
    uint32_t old = text->body.size - row->count;
    if (has_source(p, RULE_REQUEST) && !slot->needs && (slot->request.memory ? slot->cursor.length : 0) < old)
        return true;
    if (!g || !g->index.memory)
        return g && group_is_worthwhile(p, g) && !g->lost;
    return !text->indexed || text->cursor.length < old;
}

// Feeds the automata of the rows that draft in this step, or of those that do not, until the work is used up. Drafting
// rows that are behind come last, so that they do not hold up the others.
static void feed_rows(pool *p, size_t rows, bool drafting) {
    unsigned asks = rows < MANY_ROWS ? 0 : FEED_ASKS;
    for (size_t i = 0; i < rows && drafting; i++)
        p->rows[i].behind = p->rows[i].k && !p->rows[i].fed && pool_is_behind(p, &p->rows[i]);
#define IS_DUE(row) (((row)->k > 0) == drafting && !(row)->fed && (row)->behind == behind)
    for (int behind = 0; behind <= drafting; behind++)
        for (size_t i = 0; i < rows + asks && p->work > 0; i++) {
            for (unsigned step = 0; step < asks; step++)
                if (i - step < rows && IS_DUE(&p->rows[i - step]))
                    rows_ask_feed(p, &p->rows[i - step], step);
            if (i >= asks && IS_DUE(&p->rows[i - asks]))
                catch_up(p, &p->slots[p->rows[i - asks].slot]);
        }
#undef IS_DUE
    for (size_t i = 0; i < rows; i++)
        if ((p->rows[i].k > 0) == drafting && !p->rows[i].drafted && p->slots[p->rows[i].slot].group)
            group_feed_others(p, p->slots[p->rows[i].slot].group);
}

// Drafts the rows that are not drafted yet.
static void draft_rows(pool *p, size_t rows, const pool_drafts *out) {
    unsigned asks = rows < MANY_ROWS ? 0 : DRAFT_ASKS;
    rows_counts counts = {0};
    for (size_t i = 0; i < rows + asks; i++) {
        for (unsigned step = 0; step < asks; step++)
            if (i - step < rows && !p->rows[i - step].drafted)
                rows_ask_draft(p, &p->rows[i - step], step);
        if (i < asks || p->rows[i - asks].drafted)
            continue;
        pool_row *row = &p->rows[i - asks];
        pool_slot *slot = &p->slots[row->slot];
        out->lengths[i - asks] = 0;
        if (!slot->drafts || !row->k)
            continue;
        p->uses = slot->group;
        p->uses_slot = slot;
        row->matched = false; // memory may have been freed since then
        const uint32_t number = (uint32_t)(i - asks);
        pool_draft(p, &number, 1, out, rule_model_work(p->model), &p->memory, &counts);
        p->uses = NULL;
        p->uses_slot = NULL;
    }
    pool_count(p, &counts);
}

// Feeds a step's tokens. With `out`, drafts some of the rows.
static void feed_all(pool *p, size_t rows, const pool_drafts *out) {
    if (p->drafting)
        rows_feed(p, rows, out);
    feed_rows(p, rows, true);
    feed_rows(p, rows, false);
}

// Feeds drafting rows whose automata lack more than the new tokens.
static void feed_behind(pool *p, size_t rows) {
    for (size_t i = 0; i < rows && p->work > 0; i++)
        if (p->rows[i].k && pool_is_behind(p, &p->rows[i]))
            feed_slot(p, &p->slots[p->rows[i].slot]);
}

pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error) {
    pool_catch_up(p);
    pool_status status = check_rows(p, slots, rows, tokens, counts, k, uniform_k, out->width, error);
    if (status != POOL_OK)
        return status;
    p->work += p->drafting ? p->slice : p->off_slice;
    if (!p->drafting || !rows_learn(p, rows))
        pool_learn(p, rows, 0, RULE_LESSONS, false);
    size_t ahead = rows < MANY_ROWS ? 0 : STORE_ASKS * ROWS_AHEAD;
    for (size_t i = 0; i < rows + ahead; i++) {
        for (size_t at = 0; at < ahead; at += ROWS_AHEAD)
            if (i - at < rows)
                rows_ask_store(p, &p->rows[i - at], (unsigned)(at / ROWS_AHEAD));
        if (i < ahead)
            continue;
        const pool_row *row = &p->rows[i - ahead];
        append(p, &p->slots[row->slot], row->tokens, row->count);
    }
    room_free_dying(p);
    if (!out->early)
        feed_all(p, rows, out);
    else if (rows < MANY_ROWS)
        feed_behind(p, rows);
    if (p->drafting)
        rows_draft(p, rows, out);
    rows_end_step(p);
    draft_rows(p, rows, out);
    p->left = out->early ? rows : 0;
    return POOL_OK;
}

void pool_catch_up(pool *p) {
    size_t rows = p->left;
    p->left = 0;
    for (size_t i = 0; i < rows; i++)
        p->rows[i].drafted = false; // its group may have other texts to feed
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
    p->work = p->slice + 2 * POOL_LARGE_COST * (int64_t)count;
    for (int lesson = 0; lesson < RULE_LESSONS; lesson++)
        learn(p, slot, lesson, tokens, bounded(count), has_group_index(slot));
    if (append(p, slot, tokens, count))
        catch_up(p, slot);
    return POOL_OK;
}

// ---- validation

// Whether the index reads the beginning of the text from the root to the cursor.
static bool reads(const sam_index *index, const sam_text *text, const sam_cursor *cursor) {
    sam_state s = SAM_ROOT;
    for (uint32_t i = 0; i < cursor->length; i++)
        if ((s = sam_child(index, s, text->tokens[i])) == SAM_NONE)
            return false;
    return cursor->length <= text->size && sam_resolve(index, cursor->last) == s;
}

typedef struct {
    size_t bytes;
    size_t spare, fresh, idle;
    uint64_t tokens, past_texts, past_tokens;
} pool_totals;

static bool validate_text(const pool_text *text, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(text->self == &text->body, "a text does not know itself");
    totals->bytes += sizeof(pool_text) + text->body.capacity * sizeof(int32_t);
    totals->tokens += text->body.size;
    return true;
}

static bool validate_group(pool *p, const pool_group *g, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(group_find(p, g->hash, g->kind, g->key, g->key_bytes) == g,
                "a group is not found by its key");
    SAM_REQUIRE(g->open || has_source(p, RULE_HISTORY), "a group without history has outlived its slots");
    SAM_REQUIRE(g->open || (g->kept && !g->removed && g->past == g->text_count),
                "a closed group has no texts, removed ones, or some that are not its history");
    SAM_REQUIRE(g->by_state.list == &p->opened
                    ? g->open > 0
                    : !g->open && (g->by_state.list == &p->fresh || g->by_state.list == &p->settled),
                "a group is in a wrong list");
    SAM_REQUIRE(g->by_index.list == (!g->open && g->index.memory ? &p->idle : NULL),
                "a group's automaton is in a wrong list");
    SAM_REQUIRE(!g->index.memory || g->index.texts == g->texts, "an automaton does not know its texts");
    SAM_REQUIRE(!g->open || (!g->spare && !g->idle_bytes), "a group is counted wrongly among what is spare");
    SAM_REQUIRE(g->has_prompt || !g->carrier || g->carrier->cursor.length <= g->carrier->prompt_size,
                "the end of a group's prompt was missed");
    uint32_t open = 0, kept = 0, removed = 0, past = 0, due = 0;
    uint64_t tokens = 0, past_tokens = 0;
    for (uint32_t i = 0; i < g->text_count; i++) {
        const pool_text *text = text_of(g, i);
        if (!text)
            continue;
        if (!validate_text(text, totals, reason))
            return false;
        SAM_REQUIRE(text->number == i, "a text does not know its number");
        SAM_REQUIRE(text->body.size >= text->prompt_size, "a text of a group lacks a part of its prompt");
        SAM_REQUIRE(g->index.memory || !(text->indexed || text->due), "a text is in no automaton");
        SAM_REQUIRE(!text->indexed || reads(&g->index, &text->body, &text->cursor),
                    "a group's automaton does not read one of its texts");
        SAM_REQUIRE(text->slot == SAM_NONE || (i >= g->past && !text->removed && !g->index.memory) ||
                        text->due || group_is_ready(g, text),
                    "an open text is in the history, or will not be fed");
        open += text->slot != SAM_NONE;
        kept += !text->removed;
        removed += text->removed;
        due += text->due;
        tokens += text->body.size;
        past += i < g->past;
        past_tokens += i < g->past ? text->body.size : 0;
    }
    SAM_REQUIRE(open == g->open, "a group has other open texts than open slots");
    SAM_REQUIRE(kept == g->kept && removed == g->removed && tokens == g->tokens,
                "a group's texts are miscounted");
    SAM_REQUIRE(past == g->past_texts && past_tokens == g->past_tokens, "a group's history is miscounted");
    for (const pool_text *text = g->first_due; text; text = text->next_due, due--)
        SAM_REQUIRE(text->due && (text->next_due || text == g->last_due), "a queue of texts is broken");
    SAM_REQUIRE(due == 0, "a text is not in the queue");
    totals->past_texts += past;
    totals->past_tokens += past_tokens;
    totals->spare += g->spare;
    totals->idle += g->idle_bytes;
    totals->fresh += g->by_state.list == &p->fresh ? g->spare : 0;
    totals->bytes += sizeof(pool_group) + g->key_bytes + g->text_capacity * sizeof(sam_text *);
    totals->bytes += g->index.memory ? sam_index_bytes(&g->index) : 0;
    return !g->index.memory || sam_index_validate(&g->index, reason);
}

static bool validate_list(const pool_list *list, size_t link_at, uint64_t *count, const char **reason) {
#define LINK(group) ((const pool_link *)((const char *)(group) + link_at))
    const pool_group *older = NULL;
    for (const pool_group *g = list->oldest; g; older = g, g = LINK(g)->newer, ++*count)
        SAM_REQUIRE(LINK(g)->list == list && LINK(g)->older == older, "a list of groups is broken");
    SAM_REQUIRE(list->newest == older, "a list of groups does not know its end");
#undef LINK
    return true;
}

static bool validate_slot(const pool *p, const pool_slot *slot, pool_totals *totals, const char **reason) {
    if (slot->request.memory) {
        if (!sam_index_validate(&slot->request, reason))
            return false;
        SAM_REQUIRE(reads(&slot->request, &slot->text->body, &slot->cursor),
                    "a request's index does not read its text");
        totals->bytes += sam_index_bytes(&slot->request);
    }
    totals->bytes += slot->record.bytes + (slot->corpus_at ? sizeof(corpus_context) : 0);
    SAM_REQUIRE(!slot->group || slot->group->texts[slot->text->number] == &slot->text->body,
                "a slot's text is not listed by its group");
    SAM_REQUIRE(!slot->text || p->slots + slot->text->slot == slot, "a text does not know its slot");
    return !slot->text || slot->group || validate_text(slot->text, totals, reason);
}

bool pool_validate(pool *p, const char **reason) {
    pool_totals totals = {.bytes = pool_min_bytes() + p->bucket_count * sizeof(pool_group *)};
    for (int i = 0; i < POOL_DYING; i++)
        totals.bytes += p->dying[i].memory ? sam_index_bytes(&p->dying[i]) : 0;
    uint64_t groups = 0, members = 0, slots = 0, listed = 0, found = 0;
    for (size_t i = 0; i < p->bucket_count; i++)
        for (const pool_group *g = p->buckets[i]; g; g = g->chain) {
            if (!validate_group(p, g, &totals, reason))
                return false;
            groups++;
            members += g->open;
            found += g->by_state.list ? 1 : 0;
            found += g->by_index.list ? 1 : 0;
        }
    SAM_REQUIRE(groups == p->groups, "the number of groups is wrong");
    const size_t by_state = offsetof(pool_group, by_state), by_index = offsetof(pool_group, by_index);
    if (!validate_list(&p->opened, by_state, &listed, reason) ||
        !validate_list(&p->fresh, by_state, &listed, reason) ||
        !validate_list(&p->settled, by_state, &listed, reason) ||
        !validate_list(&p->idle, by_index, &listed, reason))
        return false;
    SAM_REQUIRE(listed == found, "the lists have other groups than the table");
    for (uint32_t i = 0; i < p->slot_count; i++) {
        const pool_slot *slot = &p->slots[i];
        if (!slot->open)
            continue;
        slots++;
        members -= slot->group != NULL;
        if (!validate_slot(p, slot, &totals, reason))
            return false;
    }
    SAM_REQUIRE(slots == p->slots_open && slots + p->free_count == p->slot_count,
                "the number of open slots is wrong");
    SAM_REQUIRE(members == 0, "groups and slots disagree on who belongs to whom");
    SAM_REQUIRE(totals.tokens == p->tokens, "the number of tokens is wrong");
    SAM_REQUIRE(totals.spare == p->spare && totals.fresh == p->fresh_bytes && totals.idle == p->idle_bytes,
                "what is spare is miscounted");
    if (!has_source(p, RULE_HISTORY))
        totals.past_texts = totals.past_tokens = 0;
    SAM_REQUIRE(totals.past_texts == p->history_texts && totals.past_tokens == p->history_tokens,
                "the number of the history's texts or tokens is wrong");
    SAM_REQUIRE(totals.bytes == p->memory.used, "the account of memory is wrong");
    SAM_REQUIRE(totals.bytes <= p->memory.limit, "the memory limit is exceeded");
    return true;
}
