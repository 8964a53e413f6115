// SPDX-License-Identifier: Apache-2.0

#include "row.h"

#include "account.h"
#include "group.h"

enum { MAX_RESERVED = 1 << 16 }; // tokens of a text for which memory is reserved at once

// ---- learning

// Adds to two counts, which are halved when the second exceeds `limit`.
static void count_decaying(uint64_t *accepted, uint64_t *appended, uint64_t more_accepted, uint64_t more,
                           uint64_t limit) {
    *accepted += more_accepted;
    *appended += more;
    if (*appended > limit) {
        *accepted /= 2;
        *appended /= 2;
    }
}

void row_learn(pool *p, pool_slot *slot, const int32_t *tokens, size_t count, int first, int end,
               bool in_group) {
    uint32_t size = count < SAM_MAX_PLACES ? (uint32_t)count : SAM_MAX_PLACES;
    for (int lesson = first; lesson < end && size && slot->drafts; lesson++) {
        if (!slot->record.due[lesson])
            continue;
        uint64_t accepted[RULE_SOURCES] = {0};
        rule_learn(p->model, p->options.rule, &slot->record, lesson, tokens, size, accepted);
        if (lesson != RULE_BINS)
            continue;
        for (int i = 0; i < RULE_SOURCES; i++)
            p->stats.accepted[i] += accepted[i];
        if (!in_group)
            continue;
        pool_group *g = slot->group;
        uint64_t from_group = accepted[RULE_GROUP] + accepted[RULE_HISTORY];
        count_decaying(&g->accepted, &g->appended, from_group, size, 1 << 12);
        count_decaying(&p->groups.accepted, &p->groups.appended, from_group, size, 1 << 16);
    }
}

// ---- feeding

bool row_is_behind(const pool *p, const pool_row *row) {
    const pool_slot *slot = &p->slots.items[row->slot];
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

// Feeds the rest of the text to the request index. If the slot can do without the index, nothing that others
// use is freed for it.
static void feed_request(pool *p, pool_slot *slot) {
    const pool_text *text = slot->text;
    uint32_t size = text->body.size;
    pool_purpose purpose =
        slot->group && slot->group->index.memory && text->indexed ? POOL_FOR_SPARE : POOL_FOR_ALL;
    if (!slot->request.memory) {
        if (slot->needs && account_available(p, purpose) < slot->needs)
            return;
        slot->needs = 0;
    }
    p->freeing.purpose = purpose;
    p->freeing.protected_slot = slot;
    bool done = slot->request.memory != NULL;
    if (!done) {
        done = sam_index_init(&slot->request, &p->memory, index_kind(p), &text->self);
        slot->cursor = SAM_START;
        if (done)
            sam_index_reserve(&slot->request, size < MAX_RESERVED ? size : MAX_RESERVED);
    }
    done = done && index_feed(p, &slot->request, &slot->cursor, 0, size);
    p->freeing.purpose = POOL_FOR_ALL;
    p->freeing.protected_slot = NULL;
    if (done)
        return;
    account_discard(p, &slot->request);
    slot->needs = account_needed(p, size);
}

void row_feed(pool *p, pool_slot *slot) {
    if (has_source(p, RULE_REQUEST))
        feed_request(p, slot);
    if (slot->group)
        group_catch_up(p, slot->group, slot->text, slot->request.memory ? POOL_FOR_BUILD : POOL_FOR_ALL);
}

void row_count_exhausted(pool *p, pool_slot *slot) {
    p->stats.exhausted += !slot->exhausted;
    slot->exhausted = true;
}

void row_catch_up(pool *p, pool_slot *slot) {
    if (!slot->drafts || p->step.work <= 0)
        return;
    row_feed(p, slot);
    const pool_group *g = slot->group;
    bool lacks_memory = !slot->request.memory && (slot->needs || (g && g->lost)) && !(g && g->index.memory);
    if (lacks_memory &&
        slot->lacks_memory) // for two steps: an automaton that is being rebuilt is missing for one
        row_count_exhausted(p, slot);
    slot->lacks_memory = lacks_memory;
}

// ---- drafting

// Brings the match in the corpus up to date. It depends only on the last CORPUS_MAX_MATCH tokens: earlier ones are
// skipped.
static void match_corpus(const pool *p, pool_slot *slot) {
    const sam_text *body = &slot->text->body;
    if (body->size - slot->corpus_size > CORPUS_MAX_MATCH)
        slot->corpus_size = body->size - CORPUS_MAX_MATCH;
    while (slot->corpus_size < body->size)
        corpus_advance(&p->corpus, slot->corpus_at, body->tokens[slot->corpus_size++]);
}

// Begins to find the match of a text, or finds it at once: SAM_NONE if the index lacks too many of its tokens. Returns
// whether it began.
static bool begin_match(const sam_index *index, const sam_cursor *cursor, const sam_text *body, pool_row *row,
                        int source, row_search *search) {
    uint32_t lacks = body->size - cursor->length;
    if (lacks && lacks <= POOL_AHEAD) {
        *search = (row_search){.row = row, .source = source};
        sam_search_begin(&search->search, index, cursor, &body->tokens[cursor->length], lacks);
        return true;
    }
    row->states[source] = lacks ? SAM_NONE : sam_match(index, cursor, &row->lengths[source]);
    return false;
}

uint32_t row_begin_match(const pool *p, pool_row *row, row_search *searches) {
    const pool_slot *slot = &p->slots.items[row->slot];
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

bool row_search_step(row_search *search) {
    if (sam_search_step(&search->search))
        return true;
    search->row->states[search->source] = search->search.state;
    search->row->lengths[search->source] = search->search.length;
    return false;
}

// Finds the matches of a row's text in the indexes.
static void match(const pool *p, pool_row *row) {
    row_search searches[RULE_INDEXES];
    for (uint32_t left = row_begin_match(p, row, searches); left; left--)
        while (row_search_step(&searches[left - 1]))
            ;
}

// The matches of a row's text in its sources.
static rule_context context_of(const pool *p, pool_row *row) {
    pool_slot *slot = &p->slots.items[row->slot];
    const pool_text *text = slot->text;
    uint32_t size = text->body.size;
    rule_context context = {.common = has_source(p, RULE_COMMON) && !slot->isolated,
                            .isolated = slot->isolated,
                            .vocab_size = p->options.vocab_size};
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

uint32_t row_draft(const pool *p, const uint32_t *rows, uint32_t count, const pool_drafts *out,
                   rule_work *work, sam_memory *memory, draft_counts *counts) {
    rule_task tasks[RULE_BATCH];
    for (uint32_t i = 0; i < count; i++) {
        pool_slot *slot = &p->slots.items[p->step.rows[rows[i]].slot];
        size_t at = rows[i] * out->width;
        tasks[i] = (rule_task){.context = context_of(p, &p->step.rows[rows[i]]),
                               .k = p->step.rows[rows[i]].k,
                               .tokens = out->tokens + at,
                               .scores = out->scores ? out->scores + at : NULL,
                               .match_lengths = out->match_lengths ? out->match_lengths + at : NULL,
                               .record = &slot->record};
    }
    uint32_t done = rule_draft(p->model, work, memory, p->options.rule, p->options.min_prob, tasks, count);
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

void row_count_drafts(pool *p, const draft_counts *counts) {
    for (int i = 0; i < RULE_SOURCES; i++) {
        p->stats.drafts[i] += counts->drafts[i];
        p->stats.drafted[i] += counts->drafted[i];
    }
}
