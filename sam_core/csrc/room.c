// SPDX-License-Identifier: Apache-2.0

#include "room.h"

#include "group.h"
#include "rows.h"

enum {
    DYING_PART = 4 << 20,  // bytes of a portion
    SMALL_INDEX = 1 << 20, // bytes of an index that is freed at once
    FRESH_SHARE = 8,       // 1/8 of the memory of closed groups is for fresh ones
    SLACK_SHARE = 16,      // 1/16 of it stays free when something is freed
    MIN_APPENDED = 64,     // tokens after which a group is judged by its own acceptance
    CANDIDATES = 8,        // groups that settled first, among which a victim is chosen
    MIN_SHARE = 16,        // of 1,024 tokens: assumed acceptance of a group without accepted tokens
    MAX_LAG = 64,          // tokens of a text that may be missing in an automaton that replaces its index
};

size_t room_for(const pool *p, pool_power power) {
    size_t bytes = p->memory.limit - p->memory.used;
    for (int i = 0; i < POOL_DYING; i++)
        bytes += p->dying[i].memory ? sam_index_bytes(&p->dying[i]) : 0;
    return bytes + (power == POOL_FOR_SPARE ? p->idle_bytes : p->spare);
}

size_t room_needed(const pool *p, uint64_t tokens) {
    return (size_t)(tokens * ROOM_TOKEN_BYTES + (p->memory.limit - pool_min_bytes()) / SLACK_SHARE);
}

// ---- large indexes

void room_discard(pool *p, sam_index *index) {
    if (index->memory && sam_index_bytes(index) > SMALL_INDEX)
        for (int i = 0; i < POOL_DYING; i++)
            if (!p->dying[i].memory) {
                p->dying[i] = *index;
                *index = (sam_index){0};
                return;
            }
    sam_index_free(index);
}

bool room_free_dying(pool *p) {
    for (int i = 0; i < POOL_DYING; i++)
        if (p->dying[i].memory) {
            sam_index_free_some(&p->dying[i], DYING_PART);
            return true;
        }
    return false;
}

// ---- closed groups

static uint8_t *lives_of(const pool *p, const pool_group *g) { return &p->lives[g->hash % POOL_LIVES]; }

void room_note_life(pool *p, const pool_group *g) {
    uint8_t *lives = lives_of(p, g);
    if (*lives < UINT8_MAX)
        ++*lives;
    if (++p->lives_count < 10 * (p->groups + 16))
        return;
    p->lives_count = 0;
    for (int i = 0; i < POOL_LIVES; i++)
        p->lives[i] /= 2;
}

void room_relist(pool *p, pool_group *g) {
    const size_t by_state = offsetof(pool_group, by_state), by_index = offsetof(pool_group, by_index);
    bool fresh = g->by_state.list == &p->fresh;
    if (g->open)
        group_move(g, by_state, &p->opened);
    else if (g->by_state.list == &p->opened || !g->by_state.list)
        group_move(g, by_state, &p->fresh);
    size_t idle = g->open ? 0 : sam_index_bytes(&g->index);
    p->idle_bytes += idle - g->idle_bytes;
    g->idle_bytes = idle;
    size_t spare = g->open ? 0 : idle + g->tokens * sizeof(int32_t);
    p->spare += spare - g->spare;
    p->fresh_bytes -= fresh ? g->spare : 0;
    p->fresh_bytes += g->by_state.list == &p->fresh ? spare : 0;
    g->spare = spare;
    group_move(g, by_index, !g->open && g->index.memory ? &p->idle : NULL);
}

static bool free_idle(pool *p) {
    pool_group *g = p->idle.oldest;
    if (!g)
        return false;
    group_drop_index(p, g);
    return true;
}

static void settle(pool *p) {
    while (p->fresh_bytes > p->spare / FRESH_SHARE) {
        pool_group *g = p->fresh.oldest;
        p->fresh_bytes -= g->spare;
        group_move(g, offsetof(pool_group, by_state), &p->settled);
    }
}

// Expected accepted tokens per token of the part to be freed, in fixed point: recent lives, times the share
// that they accepted from their group, or half of the share of all groups. The more texts there are, the less
// their older half contributes.
static uint64_t worth(const pool *p, const pool_group *g) {
    bool judged = g->appended >= MIN_APPENDED;
    uint64_t accepted = judged ? g->accepted : p->accepted_in_groups / 2; // what is known is kept
    uint64_t appended = judged ? g->appended : p->appended_in_groups;
    return *lives_of(p, g) * (1024 * accepted / (appended + 1) + MIN_SHARE) * 16 / g->kept;
}

// Frees the older half of a closed group's texts, or the group with its last text.
static void forget(pool *p, pool_group *g) {
    uint32_t more = g->kept / 2;
    if (!more) {
        group_remove(p, g);
        p->evicted_groups++;
        return;
    }
    for (uint32_t i = 0; more; i++)
        if (g->texts[i]) {
            group_free_text(p, g, text_of(g, i));
            more--;
        }
    group_drop_index(p, g); // has none: renumbers the texts
    p->evicted_history++;
}

static bool evict(pool *p) {
    settle(p);
    pool_group *victim = p->settled.newest, *g = p->settled.oldest;
    if (!victim)
        victim = p->fresh.oldest;
    if (!victim)
        return false;
    uint64_t lowest = worth(p, victim);
    for (int i = 0; i < CANDIDATES && g; i++, g = g->by_state.newer) {
        uint64_t its = worth(p, g);
        if (lowest ? its >= lowest : its > 0)
            continue;
        victim = g;
        lowest = its;
        if (!lowest) // nothing is known: take the oldest
            break;
    }
    // The candidates queue again, so that each group meets others: all are thinned before one is forgotten.
    for (int i = 0; i < CANDIDATES && p->settled.oldest && lowest; i++) {
        pool_group *candidate = p->settled.oldest;
        group_move(candidate, offsetof(pool_group, by_state), NULL);
        group_move(candidate, offsetof(pool_group, by_state), &p->settled);
    }
    forget(p, victim);
    return true;
}

// ---- open groups and slots

// Frees the oldest closed text that does not fit into its group's automaton.
static bool free_unused_text(pool *p) {
    for (pool_group *g = p->opened.oldest; g; g = g->by_state.newer) {
        if (g->max_closed_tokens == UINT64_MAX)
            continue;
        uint32_t end = g->index.memory ? g->next_past : g->text_count;
        while (g->first_text < end) {
            pool_text *text = text_of(g, g->first_text);
            g->first_text++;
            if (text && text->slot == SAM_NONE && !text->indexed && !text->due) {
                group_free_text(p, g, text);
                return true;
            }
        }
    }
    return false;
}

// Whether the group's automaton replaces the slot's request index.
static bool is_double(const pool *p, const pool_slot *slot) {
    const pool_group *g = slot->group;
    const pool_text *text = slot->text;
    if (!slot->open || !slot->request.memory || !g || slot == p->uses_slot)
        return false;
    return (g == p->builds && g->swaps) ||
           (g->index.memory && text->indexed && text->body.size - text->cursor.length <= MAX_LAG);
}

static bool free_double(pool *p) {
    for (uint32_t i = 0; i < p->slot_count; i++) {
        p->hand = p->hand + 1 < p->slot_count ? p->hand + 1 : 0;
        pool_slot *slot = &p->slots[p->hand];
        if (!is_double(p, slot))
            continue;
        room_discard(p, &slot->request);
        slot->needs = room_needed(p, slot->text->body.size);
        return true;
    }
    return false;
}

// Accepted tokens per step and MiB of a group's automaton, in fixed point.
static uint64_t density(const pool *p, const pool_group *g) {
    bool judged = g->appended >= MIN_APPENDED;
    uint64_t accepted = judged ? g->accepted : p->accepted_in_groups;
    uint64_t appended = judged ? g->appended : p->appended_in_groups;
    return (accepted << 20) / (appended + 1) * g->open / ((sam_index_bytes(&g->index) >> 10) + 1);
}

static bool shrink_least(pool *p) {
    pool_group *victim = NULL;
    uint64_t lowest = UINT64_MAX;
    for (pool_group *g = p->opened.oldest; g; g = g->by_state.newer)
        if (g != p->uses && g->index.memory && g->closed_tokens && density(p, g) < lowest) {
            victim = g;
            lowest = density(p, g);
        }
    if (!victim || (p->power == POOL_FOR_BUILD && p->builds && lowest > density(p, p->builds) / 2))
        return false;
    group_shrink(p, victim);
    return true;
}

bool room_make(void *owner) {
    pool *p = owner;
    rows_wait_until_learned(p); // what groups are worth
    if (room_free_dying(p) || free_idle(p))
        return true;
    if (p->power == POOL_FOR_SPARE)
        return false;
    bool many_closed = p->spare > p->memory.used / 2;
    return (many_closed && evict(p)) || free_double(p) || evict(p) || free_unused_text(p) || shrink_least(p);
}
