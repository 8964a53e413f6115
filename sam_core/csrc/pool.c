// SPDX-License-Identifier: Apache-2.0

#include "pool.h"

#include <string.h>

static bool has_source(const pool *p, int source) { return p->sources >> source & 1; }

static sam_kind index_kind(const pool *p) {
    return p->rule == RULE_OLDEST ? SAM_OLDEST : p->rule == RULE_NEWEST ? SAM_NEWEST : SAM_COUNTED;
}

// ---- texts

void pool_free_text(pool *p, pool_text *text) {
    p->tokens -= text->body.size;
    sam_resize(&p->memory, text->body.tokens, text->body.capacity * sizeof(int32_t), 0);
    sam_resize(&p->memory, text, sizeof(pool_text), 0);
}

pool_text *pool_new_text(pool *p, uint32_t prompt_size, uint32_t size) {
    pool_text *text = sam_resize(&p->memory, NULL, 0, sizeof(pool_text));
    if (!text)
        return NULL;
    *text = (pool_text){.self = &text->body, .prompt_size = prompt_size, .number = SAM_NONE};
    int32_t *tokens = sam_grow(&p->memory, NULL, 0, size, &text->body.capacity, sizeof(int32_t));
    if (size && !tokens) {
        pool_free_text(p, text);
        return NULL;
    }
    text->body.tokens = tokens;
    return text;
}

static pool_text *text_of(const pool_group *g, uint32_t number) { return (pool_text *)g->texts[number]; }

// ---- lists of groups

static void move_to(pool_group *g, size_t link_at, pool_list *list) {
#define LINK(group) ((pool_link *)((char *)(group) + link_at))
    pool_link *link = LINK(g);
    if (link->list == list)
        return;
    if (link->list) {
        *(link->older ? &LINK(link->older)->newer : &link->list->oldest) = link->newer;
        *(link->newer ? &LINK(link->newer)->older : &link->list->newest) = link->older;
    }
    *link = (pool_link){.list = list};
    if (list) {
        link->older = list->newest;
        *(list->newest ? &LINK(list->newest)->newer : &list->oldest) = g;
        list->newest = g;
    }
#undef LINK
}

// The lists where a group with a key belongs.
static pool_list *list_by_state(pool *p, const pool_group *g) {
    return !g->open ? &p->closed : has_source(p, RULE_HISTORY) && g->past ? &p->remembering : NULL;
}

static pool_list *list_by_index(pool *p, const pool_group *g) {
    if (!g->index.memory)
        return NULL;
    return g->open ? &p->live : has_source(p, RULE_HISTORY) ? &p->idle : NULL;
}

static void relist(pool *p, pool_group *g) {
    move_to(g, offsetof(pool_group, by_state), list_by_state(p, g));
    move_to(g, offsetof(pool_group, by_index), list_by_index(p, g));
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

// Counts the texts before number `past` as older than the group's life.
static void set_past(pool *p, pool_group *g, uint32_t past) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < past; i++)
        tokens += g->texts[i]->size;
    if (has_source(p, RULE_HISTORY)) {
        p->history_texts += past - (uint64_t)g->past;
        p->history_tokens += tokens - g->past_tokens;
    }
    g->past = past;
    g->past_tokens = tokens;
}

static void free_index(pool_group *g) {
    sam_index_free(&g->index);
    g->has_prompt = false;
}

void pool_free_group(pool *p, pool_group *g) {
    set_past(p, g, 0);
    for (uint32_t i = 0; i < g->text_count; i++)
        pool_free_text(p, text_of(g, i));
    sam_resize(&p->memory, g->texts, g->text_capacity * sizeof(sam_text *), 0);
    free_index(g);
    sam_resize(&p->memory, g->key, g->key_bytes, 0);
    sam_resize(&p->memory, g, sizeof(pool_group), 0);
}

// Frees a group without open slots and takes it out of the table and the lists.
static void remove_group(pool *p, pool_group *g) {
    move_to(g, offsetof(pool_group, by_state), NULL);
    move_to(g, offsetof(pool_group, by_index), NULL);
    pool_group **place = &p->buckets[g->hash & (p->bucket_count - 1)];
    while (*place != g)
        place = &(*place)->chain;
    *place = g->chain;
    pool_free_group(p, g);
    if (--p->groups == 0) {
        sam_resize(&p->memory, p->buckets, p->bucket_count * sizeof(pool_group *), 0);
        p->buckets = NULL;
        p->bucket_count = 0;
    }
}

// Frees the history of a group with open slots. Its automaton names texts by their numbers, which change.
static void forget_past(pool *p, pool_group *g) {
    uint32_t gone = g->past;
    set_past(p, g, 0);
    for (uint32_t i = 0; i < gone; i++)
        pool_free_text(p, text_of(g, i));
    g->text_count -= gone;
    for (uint32_t i = 0; i < g->text_count; i++) {
        g->texts[i] = g->texts[i + gone];
        text_of(g, i)->number = i;
    }
    free_index(g);
    g->skips_past = false;
    if (g->state == POOL_READY)
        g->state = POOL_STALE;
    p->evicted_history++;
    relist(p, g);
}

// Takes the automaton from a group with open slots for the rest of this life.
static void lose(pool *p, pool_group *g) {
    free_index(g);
    g->state = POOL_LOST;
    p->evicted_groups++;
    relist(p, g);
}

// Frees what can be spared most easily; asked for by sam_resize.
static bool make_room(void *owner) {
    pool *p = owner;
    pool_group *g;
    if ((g = p->idle.oldest)) {
        free_index(g);
        g->state = POOL_STALE;
        relist(p, g);
        return true;
    }
    if ((g = p->closed.oldest)) {
        remove_group(p, g);
        p->evicted_groups++;
        return true;
    }
    if (p->closed_only)
        return false;
    for (g = p->remembering.oldest; g; g = g->by_state.newer)
        if (g != p->uses) {
            forget_past(p, g);
            return true;
        }
    for (g = p->live.oldest; g; g = g->by_index.newer)
        if (g != p->uses) {
            lose(p, g);
            return true;
        }
    return false;
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

pool_group *pool_new_group(pool *p, pool_key kind, size_t key_bytes) {
    pool_group *g = sam_resize(&p->memory, NULL, 0, sizeof(pool_group));
    if (!g)
        return NULL;
    *g = (pool_group){.kind = kind};
    if (key_bytes) {
        g->key = sam_resize(&p->memory, NULL, 0, key_bytes);
        if (!g->key) {
            pool_free_group(p, g);
            return NULL;
        }
        g->key_bytes = key_bytes;
    }
    return g;
}

pool_status pool_add_group(pool *p, pool_group *g) {
    g->hash = hash_key(g->kind, g->key, g->key_bytes);
    if (find_group(p, g->hash, g->kind, g->key, g->key_bytes))
        return POOL_GROUP_IN_USE;
    if (!reserve_bucket(p))
        return POOL_NO_MEMORY;
    pool_group **bucket = &p->buckets[g->hash & (p->bucket_count - 1)];
    g->chain = *bucket;
    *bucket = g;
    p->groups++;
    relist(p, g);
    return POOL_OK;
}

// The group of a key with one more open slot. NULL: no memory.
static pool_group *join(pool *p, pool_key kind, const void *key, size_t bytes) {
    pool_group *g = find_group(p, hash_key(kind, key, bytes), kind, key, bytes);
    if (!g) {
        g = pool_new_group(p, kind, bytes);
        if (!g)
            return NULL;
        if (bytes)
            memcpy(g->key, key, bytes);
        if (pool_add_group(p, g) != POOL_OK) {
            pool_free_group(p, g);
            return NULL;
        }
    }
    g->open++;
    relist(p, g);
    return g;
}

// Ends a slot's membership.
static void leave(pool *p, pool_group *g) {
    if (--g->open)
        return;
    if (g->state == POOL_LOST)
        g->state = POOL_STALE;
    if (g->skips_past) {
        free_index(g);
        g->state = POOL_STALE;
        g->skips_past = false;
    }
    set_past(p, g, g->text_count);
    if (g->text_count)
        relist(p, g);
    else
        remove_group(p, g);
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
    return true;
}

// Takes a text out of its group's list.
static void unlist_text(pool_group *g, pool_text *text) {
    g->text_count--;
    for (uint32_t i = text->number; i < g->text_count; i++) {
        g->texts[i] = g->texts[i + 1];
        text_of(g, i)->number = i;
    }
    text->number = SAM_NONE;
    if (g->state != POOL_READY)
        return;
    sam_index_clear(&g->index);
    g->has_prompt = false;
    g->state = POOL_STALE;
}

// Appends what the automaton lacks of a text, up to `size` tokens.
static bool feed(pool_group *g, sam_cursor *cursor, uint32_t number, uint32_t size) {
    while (cursor->length < size)
        if (!sam_index_append(&g->index, cursor, number, cursor->length))
            return false;
    return true;
}

// Inserts a text into the automaton. On failure a part of it may be there.
static bool insert(pool_group *g, pool_text *text) {
    text->cursor = SAM_START;
    if (g->has_prompt) {
        if (!sam_index_branch(&g->index, &g->prompt, &text->cursor))
            return false;
    } else if (g->kind == POOL_BY_PROMPT) {
        if (!feed(g, &text->cursor, text->number, text->prompt_size))
            return false;
        g->prompt = text->cursor;
        g->has_prompt = true;
    }
    return feed(g, &text->cursor, text->number, text->body.size);
}

// Builds the automaton over the texts from number `first` on.
static bool build(pool *p, pool_group *g, uint32_t first) {
    bool done = g->index.memory || sam_index_init(&g->index, &p->memory, index_kind(p), g->texts);
    for (uint32_t i = first; done && i < g->text_count; i++)
        done = insert(g, text_of(g, i));
    if (!done)
        free_index(g);
    return done;
}

// Makes the automaton of a group with open slots ready if that is possible.
static void refresh(pool *p, pool_group *g) {
    if (g->state != POOL_STALE)
        return;
    bool history = has_source(p, RULE_HISTORY) && g->past, done = false;
    p->uses = g;
    if (history && !g->skips_past) {
        p->closed_only = true;
        done = build(p, g, 0);
        p->closed_only = false;
        g->skips_past = !done;
        p->evicted_history += !done;
    }
    if (!done)
        done = build(p, g, history ? g->past : 0);
    p->uses = NULL;
    if (done) {
        g->state = POOL_READY;
        relist(p, g);
    } else {
        lose(p, g);
    }
}

// Lists the text of a slot that has joined the group, and inserts it unless that is to be done later. False:
// no memory for the list.
static bool enter(pool *p, pool_group *g, pool_text *text) {
    p->uses = g;
    bool done = list_text(p, g, text);
    p->uses = NULL;
    if (!done)
        return false;
    text->open = true;
    if (g->text_count == 1) // nothing is saved by waiting
        refresh(p, g);
    else if (g->state == POOL_READY) {
        p->uses = g;
        done = insert(g, text);
        p->uses = NULL;
        if (!done)
            lose(p, g);
    }
    return true;
}

bool pool_add_text(pool *p, pool_group *g, pool_text *text) {
    p->tokens += text->body.size;
    if (!list_text(p, g, text)) {
        pool_free_text(p, text);
        return false;
    }
    g->past++;
    g->past_tokens += text->body.size;
    if (has_source(p, RULE_HISTORY)) {
        p->history_texts++;
        p->history_tokens += text->body.size;
    }
    return true;
}

// ---- slots

size_t pool_least_bytes(void) { return rule_model_bytes(); }

bool pool_init(pool *p, size_t memory_bytes, rule_name rule, unsigned sources, const corpus *c, float least) {
    *p = (pool){.rule = rule, .sources = sources, .least = least};
    p->memory = (sam_memory){.limit = memory_bytes, .make_room = make_room, .owner = p};
    p->model = sam_resize(&p->memory, NULL, 0, rule_model_bytes());
    if (!p->model)
        return false;
    rule_model_init(p->model, rule);
    if (c)
        p->corpus = *c;
    return true;
}

static void free_slot(pool *p, pool_slot *slot) {
    slot->drafts = false;
    sam_index_free(&slot->request);
    rule_record_free(&slot->record, &p->memory);
    sam_resize(&p->memory, slot->corpus_at, slot->corpus_at ? sizeof(corpus_context) : 0, 0);
    slot->corpus_at = NULL;
}

void pool_free(pool *p) {
    if (!p->model)
        return;
    for (uint32_t i = 0; i < p->slot_count; i++)
        if (p->slots[i].open)
            pool_close(p, i, false, NULL);
    while (p->closed.oldest)
        remove_group(p, p->closed.oldest);
    sam_resize(&p->memory, p->model, rule_model_bytes(), 0);
    SAM_FREE(p->slots);
    SAM_FREE(p->rows);
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

// Ends the drafting of a slot for lack of memory. What its group has of the text stays.
static void exhaust(pool *p, pool_slot *slot) {
    free_slot(p, slot);
    if (slot->text && !slot->group) {
        pool_free_text(p, slot->text);
        slot->text = NULL;
    }
    p->exhausted++;
}

// Appends one token to the slot's text and its indexes. On failure nothing has changed.
static bool append_token(pool *p, pool_slot *slot, int32_t token) {
    token &= INT32_MAX; // sound even if another thread writes to the caller's checked array meanwhile
    pool_text *text = slot->text;
    sam_text *body = &text->body;
    if (body->size == body->capacity) {
        int32_t *tokens = sam_grow(&p->memory, body->tokens, body->size, 1, &body->capacity, sizeof(int32_t));
        if (!tokens)
            return false;
        body->tokens = tokens;
    }
    body->tokens[body->size++] = token;
    if (slot->request.memory && !sam_index_append(&slot->request, &slot->cursor, 0, body->size - 1)) {
        body->size--;
        return false;
    }
    p->tokens++;
    pool_group *g = slot->group;
    if (g && g->state == POOL_READY) {
        p->uses = g;
        bool done = feed(g, &text->cursor, text->number, body->size);
        p->uses = NULL;
        if (!done)
            lose(p, g);
    }
    return true;
}

// Builds the text and indexes of a new slot. On failure the slot has no group.
static bool fill_slot(pool *p, pool_slot *slot, const int32_t *prompt, uint32_t size, pool_key kind,
                      const void *name, size_t name_bytes) {
    bool grouped = kind != POOL_PRIVATE && has_source(p, RULE_GROUP);
    if (!grouped && !has_source(p, RULE_REQUEST) && !p->corpus.file)
        return true;
    slot->drafts = true;
    slot->text = pool_new_text(p, size, size);
    if (!slot->text)
        return false;
    if (p->corpus.file) {
        slot->corpus_at = sam_resize(&p->memory, NULL, 0, sizeof(corpus_context));
        if (!slot->corpus_at)
            return false;
        corpus_start(&p->corpus, slot->corpus_at);
    }
    if (has_source(p, RULE_REQUEST)) {
        if (!sam_index_init(&slot->request, &p->memory, index_kind(p), &slot->text->self))
            return false;
        sam_index_reserve(&slot->request, size);
    }
    for (uint32_t i = 0; i < size; i++)
        if (!append_token(p, slot, prompt[i]))
            return false;
    if (grouped) {
        const void *key = kind == POOL_NAMED ? name : prompt;
        pool_group *g = join(p, kind, key, kind == POOL_NAMED ? name_bytes : size * sizeof(int32_t));
        if (!g)
            return false;
        if (!enter(p, g, slot->text)) {
            leave(p, g);
            return false;
        }
        slot->group = g;
    }
    return true;
}

pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *number) {
    if (!take_slot(p, number))
        return POOL_NO_MEMORY;
    pool_slot *slot = &p->slots[*number];
    *slot = (pool_slot){.open = true, .cursor = SAM_START};
    p->slots_open++;
    if (size >= SAM_MAX_PLACES || !fill_slot(p, slot, prompt, (uint32_t)size, kind, name, name_bytes))
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

// Gives back what a closed text does not need; if it cannot, the room stays.
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
    pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    pool_group *g = slot->group;
    pool_text *text = slot->text;
    free_slot(p, slot);
    if (text && keep && g) {
        shrink_text(p, text);
        text->open = false;
    } else if (text) {
        if (g)
            unlist_text(g, text);
        pool_free_text(p, text);
    }
    if (g)
        leave(p, g);
    release_slot(p, (uint32_t)number);
    p->slots_open--;
    return POOL_OK;
}

pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error) {
    pool_group *g = find_group(p, hash_key(kind, key, key_bytes), kind, key, key_bytes);
    *found = g != NULL;
    if (!g)
        return POOL_OK;
    if (g->open)
        return refuse(error, POOL_GROUP_IN_USE, 0, g->open);
    remove_group(p, g);
    return POOL_OK;
}

// ---- step

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
    size_t most = width < RULE_MAX_DRAFT ? width : RULE_MAX_DRAFT;
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
        if (size < 0 || (size_t)size > most)
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

static void append(pool *p, pool_slot *slot, const int32_t *tokens, size_t count) {
    p->appended += count;
    if (!slot->drafts || !count)
        return;
    if (slot->record.kept)
        rule_learn(p->model, p->rule, &slot->record, tokens, count < INT32_MAX ? (uint32_t)count : INT32_MAX,
                   p->accepted);
    for (size_t i = 0; i < count; i++)
        if (!append_token(p, slot, tokens[i])) {
            exhaust(p, slot);
            return;
        }
}

// Brings the match in the corpus up to date. It depends on the last CORPUS_MAX_MATCH tokens alone.
static void match_corpus(const pool *p, pool_slot *slot) {
    const sam_text *body = &slot->text->body;
    if (body->size - slot->matched > CORPUS_MAX_MATCH)
        slot->matched = body->size - CORPUS_MAX_MATCH;
    while (slot->matched < body->size)
        corpus_advance(&p->corpus, slot->corpus_at, body->tokens[slot->matched++]);
}

static uint32_t draft(pool *p, pool_slot *slot, uint32_t k, int32_t *tokens, int32_t *parents,
                      float *scores) {
    const pool_text *text = slot->text;
    uint32_t size = text->body.size;
    rule_context context = {0};
    for (uint32_t i = 0; i < RULE_LAST; i++)
        context.last[i] = i < size ? text->body.tokens[size - 1 - i] : SAM_NO_TOKEN;
    if (slot->request.memory) {
        context.index[RULE_REQUEST] = &slot->request;
        context.state[RULE_REQUEST] = sam_match(&slot->request, &slot->cursor, &context.length[RULE_REQUEST]);
    }
    pool_group *g = slot->group;
    if (g)
        refresh(p, g);
    if (g && g->state == POOL_READY) {
        context.index[RULE_GROUP] = &g->index;
        context.state[RULE_GROUP] = sam_match(&g->index, &text->cursor, &context.length[RULE_GROUP]);
        context.past = has_source(p, RULE_HISTORY) ? g->past : 0;
    }
    if (slot->corpus_at) {
        match_corpus(p, slot);
        context.corpus = &p->corpus;
        context.corpus_at = slot->corpus_at;
    }
    p->uses = g;
    uint32_t drafted = rule_draft(p->model, &p->memory, p->rule, &context, k, p->least, tokens, parents,
                                  scores, &slot->record);
    p->uses = NULL;
    if (drafted)
        p->drafts[slot->record.source[0]]++;
    for (uint32_t i = 0; i < drafted; i++)
        p->drafted[slot->record.source[i]]++;
    return drafted;
}

pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const int32_t *tokens, size_t token_count,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error) {
    pool_status status =
        check_rows(p, slots, rows, tokens, token_count, counts, k, uniform_k, out->width, error);
    if (status != POOL_OK)
        return status;
    for (size_t i = 0; i < rows; i++) {
        append(p, &p->slots[p->rows[i].slot], tokens, p->rows[i].count);
        tokens += p->rows[i].count;
    }
    for (size_t i = 0; i < rows; i++) {
        pool_slot *slot = &p->slots[p->rows[i].slot];
        size_t at = i * out->width;
        out->lengths[i] = slot->drafts && p->rows[i].k
                              ? (int32_t)draft(p, slot, p->rows[i].k, out->tokens + at,
                                               out->parents ? out->parents + at : NULL,
                                               out->scores ? out->scores + at : NULL)
                              : 0;
    }
    return POOL_OK;
}

pool_status pool_append(pool *p, int64_t number, const int32_t *tokens, size_t count, pool_error *error) {
    pool_slot *slot = find_slot(p, number);
    if (!slot)
        return refuse(error, POOL_BAD_SLOT, 0, number);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0)
            return refuse(error, POOL_BAD_TOKEN, i, tokens[i]);
    append(p, slot, tokens, count);
    return POOL_OK;
}

// ---- validation

// Whether the index reads the text from the root to the cursor.
static bool reads(const sam_index *index, const sam_text *text, const sam_cursor *cursor) {
    sam_state s = SAM_ROOT;
    for (uint32_t i = 0; i < text->size; i++)
        if ((s = sam_child(index, s, text->tokens[i])) == SAM_NONE)
            return false;
    return cursor->length == text->size && sam_resolve(index, cursor->last) == s;
}

typedef struct {
    size_t bytes;
    uint64_t tokens, past_texts, past_tokens;
} pool_totals;

static bool validate_text(const pool_text *text, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(text->self == &text->body, "a text does not know itself");
    totals->bytes += sizeof(pool_text) + text->body.capacity * sizeof(int32_t);
    totals->tokens += text->body.size;
    return true;
}

static bool validate_group(pool *p, const pool_group *g, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(find_group(p, g->hash, g->kind, g->key, g->key_bytes) == g,
                "a group is not found by its key");
    SAM_REQUIRE(g->open || (g->text_count && g->past == g->text_count),
                "a closed group has no texts or not all of them are its history");
    SAM_REQUIRE(g->by_state.list == list_by_state(p, g) && g->by_index.list == list_by_index(p, g),
                "a group is in a wrong list");
    SAM_REQUIRE(g->state == POOL_READY ? g->index.memory && g->index.texts == g->texts
                                       : g->state == POOL_STALE || (!g->index.memory && g->open),
                "a group's automaton is not what its state says");
    SAM_REQUIRE(!g->skips_past || (g->open && g->past), "a closed group's automaton lacks its history");
    uint32_t open = 0;
    for (uint32_t i = 0; i < g->text_count; i++) {
        const pool_text *text = text_of(g, i);
        if (!validate_text(text, totals, reason))
            return false;
        SAM_REQUIRE(text->number == i, "a text does not know its number");
        SAM_REQUIRE(text->body.size >= text->prompt_size, "a text of a group lacks a part of its prompt");
        SAM_REQUIRE(g->state != POOL_READY || (g->skips_past && i < g->past) ||
                        reads(&g->index, &text->body, &text->cursor),
                    "a group's automaton does not read one of its texts");
        SAM_REQUIRE(!text->open || i >= g->past, "an open text is in the history");
        open += text->open;
        totals->past_texts += i < g->past;
        totals->past_tokens += i < g->past ? text->body.size : 0;
    }
    SAM_REQUIRE(open == g->open, "a group has other open texts than open slots");
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

static bool validate_slot(const pool_slot *slot, pool_totals *totals, const char **reason) {
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
    return !slot->text || slot->group || validate_text(slot->text, totals, reason);
}

bool pool_validate(pool *p, const char **reason) {
    pool_totals totals = {.bytes = rule_model_bytes() + p->bucket_count * sizeof(pool_group *)};
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
    if (!validate_list(&p->closed, by_state, &listed, reason) ||
        !validate_list(&p->remembering, by_state, &listed, reason) ||
        !validate_list(&p->idle, by_index, &listed, reason) ||
        !validate_list(&p->live, by_index, &listed, reason))
        return false;
    SAM_REQUIRE(listed == found, "the lists have other groups than the table");
    for (uint32_t i = 0; i < p->slot_count; i++) {
        const pool_slot *slot = &p->slots[i];
        if (!slot->open)
            continue;
        slots++;
        members -= slot->group != NULL;
        if (!validate_slot(slot, &totals, reason))
            return false;
    }
    SAM_REQUIRE(slots == p->slots_open && slots + p->free_count == p->slot_count,
                "the number of open slots is wrong");
    SAM_REQUIRE(members == 0, "groups and slots disagree on who belongs to whom");
    SAM_REQUIRE(totals.tokens == p->tokens, "the number of tokens is wrong");
    if (!has_source(p, RULE_HISTORY))
        totals.past_texts = totals.past_tokens = 0;
    SAM_REQUIRE(totals.past_texts == p->history_texts && totals.past_tokens == p->history_tokens,
                "the number of the history's texts or tokens is wrong");
    SAM_REQUIRE(totals.bytes == p->memory.used, "the account of memory is wrong");
    SAM_REQUIRE(totals.bytes <= p->memory.limit, "the memory limit is exceeded");
    return true;
}
