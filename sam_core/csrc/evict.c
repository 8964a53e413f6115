// SPDX-License-Identifier: Apache-2.0

#include "evict.h"

#include "account.h"
#include "group.h"

enum {
    WINDOW_SHARE = 8,  // 1/8 of the memory of closed groups is for the window
    MIN_APPENDED = 64, // tokens after which a group is judged by its own acceptance
    CANDIDATES = 8,    // the oldest groups of the main list, among which a victim is chosen
    MIN_SHARE = 16,    // of 1,024 tokens: assumed acceptance of a group without accepted tokens
    MAX_LAG = 64,      // tokens of a text that may be missing in an automaton that replaces its index
};

// ---- closed groups

static bool free_idle(pool *p) {
    pool_group *g = p->groups.idle.oldest;
    if (!g)
        return false;
    group_drop_index(p, g);
    return true;
}

static void shrink_window(pool *p) {
    while (p->groups.window_bytes > p->groups.closed_bytes / WINDOW_SHARE) {
        pool_group *g = p->groups.window.oldest;
        p->groups.window_bytes -= g->closed_bytes;
        account_move(g, offsetof(pool_group, by_state), &p->groups.main);
    }
}

// Expected accepted tokens per token of the part to be freed, in fixed point: recent lives, times the share
// that they accepted from their group, or half of the share of all groups. The more texts there are, the less
// their older half contributes.
static uint64_t worth(const pool *p, const pool_group *g) {
    bool judged = g->appended >= MIN_APPENDED;
    uint64_t accepted =
        judged
            ? g->accepted
            : p->groups.accepted / 2; // half: a group of known acceptance is kept rather than an unknown one
    uint64_t appended = judged ? g->appended : p->groups.appended;
    return account_lives(p, g) * (1024 * accepted / (appended + 1) + MIN_SHARE) * 16 / g->kept;
}

// Frees the older half of a closed group's texts, or the group with its last text.
static void forget(pool *p, pool_group *g) {
    uint32_t more = g->kept / 2;
    if (!more) {
        group_remove(p, g);
        p->stats.evicted_groups++;
        return;
    }
    for (uint32_t i = 0; more; i++)
        if (g->texts[i]) {
            group_free_text(p, g, text_of(g, i));
            more--;
        }
    group_drop_index(p, g); // has none: renumbers the texts
    p->stats.evicted_history++;
}

static bool evict_closed_group(pool *p) {
    shrink_window(p);
    pool_group *victim = p->groups.main.newest, *g = p->groups.main.oldest;
    if (!victim)
        victim = p->groups.window.oldest;
    if (!victim)
        return false;
    uint64_t lowest = worth(p, victim);
    for (int i = 0; i < CANDIDATES && g; i++, g = g->by_state.newer) {
        uint64_t its = worth(p, g);
        if (lowest ? its >= lowest : its > 0)
            continue;
        victim = g;
        lowest = its;
        if (!lowest) // nothing is known about it: of such groups take the oldest
            break;
    }
    // The candidates queue again, so that each group meets others: all are thinned before one is forgotten.
    for (int i = 0; i < CANDIDATES && p->groups.main.oldest && lowest; i++) {
        pool_group *candidate = p->groups.main.oldest;
        account_move(candidate, offsetof(pool_group, by_state), NULL);
        account_move(candidate, offsetof(pool_group, by_state), &p->groups.main);
    }
    forget(p, victim);
    return true;
}

// ---- open groups and slots

// Frees the oldest closed text that does not fit into its group's automaton.
static bool free_unused_text(pool *p) {
    for (pool_group *g = p->groups.opened.oldest; g; g = g->by_state.newer) {
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

// Whether the group's automaton contains the slot's text, so that the slot can draft without its request index.
static bool is_redundant(const pool *p, const pool_slot *slot) {
    const pool_group *g = slot->group;
    const pool_text *text = slot->text;
    if (!slot->open || !slot->request.memory || !g || slot == p->freeing.protected_slot)
        return false;
    return (g == p->freeing.building && g->swaps) ||
           (g->index.memory && text->indexed && text->body.size - text->cursor.length <= MAX_LAG);
}

static bool free_redundant_index(pool *p) {
    for (uint32_t i = 0; i < p->slots.count; i++) {
        p->freeing.scan_slot = p->freeing.scan_slot + 1 < p->slots.count ? p->freeing.scan_slot + 1 : 0;
        pool_slot *slot = &p->slots.items[p->freeing.scan_slot];
        if (!is_redundant(p, slot))
            continue;
        account_discard(p, &slot->request);
        slot->needs = account_needed(p, slot->text->body.size);
        return true;
    }
    return false;
}

// Accepted tokens per step and MiB of a group's automaton, in fixed point.
static uint64_t density(const pool *p, const pool_group *g) {
    bool judged = g->appended >= MIN_APPENDED;
    uint64_t accepted = judged ? g->accepted : p->groups.accepted;
    uint64_t appended = judged ? g->appended : p->groups.appended;
    return (accepted << 20) / (appended + 1) * g->open / ((sam_index_bytes(&g->index) >> 10) + 1);
}

static bool shrink_least(pool *p) {
    pool_group *victim = NULL;
    uint64_t lowest = UINT64_MAX;
    for (pool_group *g = p->groups.opened.oldest; g; g = g->by_state.newer)
        if (g != p->freeing.protected_group && g->index.memory && g->closed_tokens &&
            density(p, g) < lowest) {
            victim = g;
            lowest = density(p, g);
        }
    if (!victim || (p->freeing.purpose == POOL_FOR_BUILD && p->freeing.building &&
                    lowest > density(p, p->freeing.building) / 2))
        return false;
    group_shrink(p, victim);
    return true;
}

bool evict(pool *p) {
    if (account_free_discarded(p) || free_idle(p))
        return true;
    if (p->freeing.purpose == POOL_FOR_SPARE)
        return false;
    bool many_closed = p->groups.closed_bytes > p->memory.used / 2;
    return (many_closed && evict_closed_group(p)) || free_redundant_index(p) || evict_closed_group(p) ||
           free_unused_text(p) || shrink_least(p);
}
