// SPDX-License-Identifier: Apache-2.0

#include "validate.h"

#include "group.h"

// Whether the text up to the cursor leads from the root of the index to the cursor's state.
static bool reads(const sam_index *index, const sam_text *text, const sam_cursor *cursor) {
    sam_state s = SAM_ROOT;
    for (uint32_t i = 0; i < cursor->length; i++)
        if ((s = sam_child(index, s, text->tokens[i])) == SAM_NONE)
            return false;
    return cursor->length <= text->size && sam_resolve(index, cursor->last) == s;
}

typedef struct {
    size_t bytes;
    size_t closed_bytes, window, idle;
    uint64_t tokens, past_texts, past_tokens;
} pool_totals;

static bool validate_text(const pool_text *text, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(text->self == &text->body, "a text does not know itself");
    totals->bytes += sizeof(pool_text) + text->body.capacity * sizeof(int32_t);
    totals->tokens += text->body.size;
    return true;
}

static bool validate_group(pool *p, const pool_group *g, pool_totals *totals, const char **reason) {
    SAM_REQUIRE(group_find(p, g->kind, g->key, g->key_bytes) == g, "a group is not found by its key");
    SAM_REQUIRE(g->open || has_source(p, RULE_HISTORY), "a group without history has outlived its slots");
    SAM_REQUIRE(g->open || (g->kept && !g->removed && g->past == g->text_count),
                "a closed group has no texts, removed ones, or some that are not its history");
    SAM_REQUIRE(g->by_state.list == &p->groups.opened ? g->open > 0
                                                      : !g->open && (g->by_state.list == &p->groups.window ||
                                                                     g->by_state.list == &p->groups.main),
                "a group is in a wrong list");
    SAM_REQUIRE(g->by_index.list == (!g->open && g->index.memory ? &p->groups.idle : NULL),
                "a group's automaton is in a wrong list");
    SAM_REQUIRE(!g->index.memory || g->index.texts == g->texts, "an automaton does not know its texts");
    SAM_REQUIRE(!g->open || (!g->closed_bytes && !g->idle_bytes),
                "an open group is counted among the closed ones");
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
    totals->closed_bytes += g->closed_bytes;
    totals->idle += g->idle_bytes;
    totals->window += g->by_state.list == &p->groups.window ? g->closed_bytes : 0;
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
    SAM_REQUIRE(!slot->text || p->slots.items + slot->text->slot == slot, "a text does not know its slot");
    return !slot->text || slot->group || validate_text(slot->text, totals, reason);
}

bool pool_validate(pool *p, const char **reason) {
    pool_totals totals = {.bytes = pool_min_bytes() + p->groups.bucket_count * sizeof(pool_group *)};
    for (int i = 0; i < POOL_DISCARDED; i++)
        totals.bytes += p->freeing.discarded[i].memory ? sam_index_bytes(&p->freeing.discarded[i]) : 0;
    uint64_t groups = 0, members = 0, slots = 0, listed = 0, found = 0;
    for (size_t i = 0; i < p->groups.bucket_count; i++)
        for (const pool_group *g = p->groups.buckets[i]; g; g = g->chain) {
            if (!validate_group(p, g, &totals, reason))
                return false;
            groups++;
            members += g->open;
            found += g->by_state.list ? 1 : 0;
            found += g->by_index.list ? 1 : 0;
        }
    SAM_REQUIRE(groups == p->stats.groups, "the number of groups is wrong");
    const size_t by_state = offsetof(pool_group, by_state), by_index = offsetof(pool_group, by_index);
    if (!validate_list(&p->groups.opened, by_state, &listed, reason) ||
        !validate_list(&p->groups.window, by_state, &listed, reason) ||
        !validate_list(&p->groups.main, by_state, &listed, reason) ||
        !validate_list(&p->groups.idle, by_index, &listed, reason))
        return false;
    SAM_REQUIRE(listed == found, "the lists have other groups than the table");
    for (uint32_t i = 0; i < p->slots.count; i++) {
        const pool_slot *slot = &p->slots.items[i];
        if (!slot->open)
            continue;
        slots++;
        members -= slot->group != NULL;
        if (!validate_slot(p, slot, &totals, reason))
            return false;
    }
    SAM_REQUIRE(slots == p->stats.slots_open && slots + p->slots.free_count == p->slots.count,
                "the number of open slots is wrong");
    SAM_REQUIRE(members == 0, "groups and slots disagree on who belongs to whom");
    SAM_REQUIRE(totals.tokens == p->stats.tokens, "the number of tokens is wrong");
    SAM_REQUIRE(totals.closed_bytes == p->groups.closed_bytes && totals.window == p->groups.window_bytes &&
                    totals.idle == p->groups.idle_bytes,
                "the bytes of closed groups are miscounted");
    if (!has_source(p, RULE_HISTORY))
        totals.past_texts = totals.past_tokens = 0;
    SAM_REQUIRE(totals.past_texts == p->stats.history_texts && totals.past_tokens == p->stats.history_tokens,
                "the number of the history's texts or tokens is wrong");
    SAM_REQUIRE(totals.bytes == p->memory.used, "the account of memory is wrong");
    SAM_REQUIRE(totals.bytes <= p->memory.limit, "the memory limit is exceeded");
    return true;
}
