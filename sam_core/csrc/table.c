// SPDX-License-Identifier: Apache-2.0

#include "table.h"

enum { NO_TOKEN = TABLE_NO_TOKEN, COMMON = 1, MAX_CONFIRMED = 3, CHECK = 0x7FFFFFFF };
enum { AHEAD = 8 }; // tokens; their slots are prefetched
#define UNIT ((uint32_t)TABLE_UNIT)

static const size_t ngrams[TABLE_NGRAMS] = {1, 2, 3, 5, 8};

// A new token, and the slots of the n-grams that end before it.
typedef struct {
    size_t row, at, num_slots;
    struct {
        size_t pair; // first of its cells
        int32_t check;
    } slots[2 * TABLE_NGRAMS];
} new_token;

static void set(ngram_table *t, size_t cell, int32_t value) {
    if (t->memory[cell] == value)
        return;
    t->memory[cell] = value;
    if (!t->is_changed[cell] && t->num_changed < t->size) {
        t->is_changed[cell] = 1;
        t->changed[t->num_changed++] = (int32_t)cell;
    }
}

static size_t pages_end(const ngram_table *t) { return t->size - 2 * t->num_slots; }

// The cell of the next token. Opens a new page if the text's page is full, or was reused for another text.
static size_t place(ngram_table *t, size_t at, int64_t *page) {
    uint64_t behind = t->opened - (uint64_t)*page; // pages opened since the text's, itself included
    if (at % TABLE_PAGE == 0 || *page < 0 || behind == 0 || behind > t->num_pages)
        *page = (int64_t)t->opened++;
    return TABLE_TEXTS + (uint64_t)*page % t->num_pages * (TABLE_PAGE + 1) + at % TABLE_PAGE;
}

// Notes in an n-gram's pair of cells that the token at `position` followed it.
static void follow(ngram_table *t, size_t pair, int32_t check, uint32_t position, int32_t token) {
    uint32_t old = (uint32_t)t->memory[pair], confirmed = 0;
    if (t->memory[pair + 1] == check && old % UNIT < pages_end(t)) {
        confirmed = old / UNIT < MAX_CONFIRMED ? old / UNIT : MAX_CONFIRMED;
        if (t->memory[old % UNIT] == token) {
            confirmed += confirmed < MAX_CONFIRMED;
        } else if (confirmed) {
            confirmed--;
            position = old % UNIT;
        }
    }
    set(t, pair, (int32_t)(position + UNIT * confirmed));
    set(t, pair + 1, check);
}

static void count(ngram_table *t, int32_t token) {
    int64_t times = ++t->counts[token];
    size_t leader = (size_t)t->memory[0];
    if (leader >= t->vocab_size || times > t->counts[leader])
        set(t, 0, token);
}

static void hash(const ngram_table *t, const table_texts *texts, new_token *n) {
    const int32_t *text = texts->tokens + n->row * texts->width;
    uint64_t sums[2 * TABLE_NGRAMS] = {0};
    for (size_t i = 1; i <= TABLE_MAX_NGRAM && i <= n->at; i++)
        for (size_t j = 0; j < 2 * TABLE_NGRAMS; j++)
            sums[j] += (uint64_t)t->factors[1 + TABLE_MAX_NGRAM - i][j] * (uint64_t)text[n->at - i];
    n->num_slots = 0;
    for (int common = !t->of_groups; common <= t->of_all; common++)
        for (size_t j = 0; j < TABLE_NGRAMS && ngrams[j] <= n->at; j++) {
            uint64_t number = (uint64_t)(common ? COMMON : texts->groups[n->row]);
            uint64_t slot = sums[j] + number * (uint64_t)t->factors[0][j];
            uint64_t check = sums[TABLE_NGRAMS + j] + number * (uint64_t)t->factors[0][TABLE_NGRAMS + j];
            size_t pair = pages_end(t) + 2 * (slot & (t->num_slots - 1));
            n->slots[n->num_slots].pair = pair;
            n->slots[n->num_slots++].check = (int32_t)(check & CHECK);
            __builtin_prefetch(&t->memory[pair]);
            __builtin_prefetch(&t->is_changed[pair]);
        }
}

static void add(ngram_table *t, const table_texts *texts, const new_token *n) {
    size_t cell = place(t, n->at, &texts->pages[n->row]);
    int32_t token = texts->tokens[n->row * texts->width + n->at];
    if (token < 0 || (size_t)token >= t->vocab_size)
        token = NO_TOKEN;
    set(t, cell, token);
    set(t, cell + 1, NO_TOKEN);
    for (size_t i = 0; i < n->num_slots; i++)
        follow(t, n->slots[i].pair, n->slots[i].check, (uint32_t)cell, token);
    if (t->of_all && token != NO_TOKEN)
        count(t, token);
}

void table_append(ngram_table *t, const table_texts *texts) {
    new_token queue[AHEAD];
    size_t hashed = 0, added = 0;
    for (size_t row = 0; row < texts->rows; row++)
        for (int32_t at = texts->starts[row]; at < texts->ends[row]; at++) {
            if (hashed - added == AHEAD)
                add(t, texts, &queue[added++ % AHEAD]);
            new_token *n = &queue[hashed++ % AHEAD];
            n->row = row;
            n->at = (size_t)at;
            hash(t, texts, n);
        }
    while (added < hashed)
        add(t, texts, &queue[added++ % AHEAD]);
}

void table_take_changes(ngram_table *t, int64_t *cells, int32_t *values) {
    for (size_t i = 0; i < t->num_changed; i++) {
        int32_t cell = t->changed[i];
        cells[i] = cell;
        values[i] = t->memory[cell];
        t->is_changed[cell] = 0;
    }
    t->num_changed = 0;
}
