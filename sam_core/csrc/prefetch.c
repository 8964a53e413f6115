// SPDX-License-Identifier: Apache-2.0

#include "prefetch.h"

enum { KEPT_LINES = 12 }; // of a record's block, which are mostly used

void prefetch_bytes(const void *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += CACHE_LINE)
        sam_prefetch((const char *)block + at);
}

void prefetch_store(const pool *p, const pool_row *row, unsigned stage) {
    const pool_slot *slot = &p->slots.items[row->slot];
    if (stage == 0) {
        sam_prefetch(slot);
        prefetch_bytes(&slot->record, sizeof(rule_record));
        return;
    }
    if (!slot->drafts || !row->count)
        return;
    const pool_text *text = slot->text;
    if (stage == 1) {
        prefetch_bytes(text, sizeof(pool_text));
    } else if (text->body.tokens) {
        sam_prefetch(&text->body.tokens[text->body.size]);
    }
}

void prefetch_learn(const pool *p, const pool_row *row, unsigned stage, int first, int end) {
    const pool_slot *slot = &p->slots.items[row->slot];
    const rule_record *record = &slot->record;
    if (stage == 0) {
        sam_prefetch(slot);
        prefetch_bytes(record, sizeof(rule_record));
    } else if (stage == 1) {
        bool only_successors = end == RULE_SUCCESSORS + 1; // which need nothing of the block
        prefetch_bytes(record->block, record->kept && !only_successors ? KEPT_LINES * CACHE_LINE : 0);
    } else {
        for (int lesson = first; lesson < end; lesson++)
            rule_prefetch_lesson(p->model, record, lesson);
    }
}

void prefetch_feed(const pool *p, pool_row *row, unsigned stage) {
    const pool_slot *slot = &p->slots.items[row->slot];
    if (!slot->drafts)
        return;
    const pool_text *text = slot->text;
    const pool_group *g = slot->group;
    if (slot->request.memory && slot->cursor.length < text->body.size && stage < SAM_APPEND_STAGES)
        sam_prefetch_append(&slot->request, &slot->cursor, text->body.tokens[slot->cursor.length], stage,
                            &row->prefetched[RULE_REQUEST]);
    if (stage && g && g->index.memory && text->indexed && text->cursor.length < text->body.size)
        sam_prefetch_append(&g->index, &text->cursor, text->body.tokens[text->cursor.length], stage - 1,
                            &row->prefetched[RULE_GROUP]);
}

static void prefetch_match(const sam_index *index, const sam_cursor *cursor, pool_row *row, int source,
                           unsigned stage) {
    sam_state state = row->matched ? row->states[source] : cursor->near;
    if (state != SAM_NONE)
        sam_prefetch_match(index, state, stage, &row->prefetched[source]);
}

void prefetch_draft(const pool *p, pool_row *row, unsigned stage) {
    const pool_slot *slot = &p->slots.items[row->slot];
    if (stage == 0) {
        prefetch_bytes(slot, sizeof(pool_slot));
        sam_prefetch(slot->text); // the row's tokens were stored in this step: reading the slot does not wait
        return;
    }
    if (!slot->drafts || !row->k)
        return;
    if (slot->request.memory)
        prefetch_match(&slot->request, &slot->cursor, row, RULE_REQUEST, stage - 1);
    if (slot->group && slot->group->index.memory && slot->text->indexed)
        prefetch_match(&slot->group->index, &slot->text->cursor, row, RULE_GROUP, stage - 1);
}
