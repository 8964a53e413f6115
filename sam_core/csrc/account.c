// SPDX-License-Identifier: Apache-2.0

#include "account.h"

enum {
    DISCARDED_PART = 4 << 20, // bytes of a portion
    SMALL_INDEX = 1 << 20,    // bytes of an index that is freed at once
    SLACK_SHARE = 16,         // 1/16 of the memory stays free when something is freed
};

size_t account_available(const pool *p, pool_purpose purpose) {
    size_t bytes = p->memory.limit - p->memory.used;
    for (int i = 0; i < POOL_DISCARDED; i++)
        bytes += p->freeing.discarded[i].memory ? sam_index_bytes(&p->freeing.discarded[i]) : 0;
    return bytes + (purpose == POOL_FOR_SPARE ? p->groups.idle_bytes : p->groups.closed_bytes);
}

size_t account_needed(const pool *p, uint64_t tokens) {
    return (size_t)(tokens * INDEX_TOKEN_BYTES + (p->memory.limit - pool_min_bytes()) / SLACK_SHARE);
}

void account_discard(pool *p, sam_index *index) {
    if (index->memory && sam_index_bytes(index) > SMALL_INDEX)
        for (int i = 0; i < POOL_DISCARDED; i++)
            if (!p->freeing.discarded[i].memory) {
                p->freeing.discarded[i] = *index;
                *index = (sam_index){0};
                return;
            }
    sam_index_free(index);
}

bool account_free_discarded(pool *p) {
    for (int i = 0; i < POOL_DISCARDED; i++)
        if (p->freeing.discarded[i].memory) {
            sam_index_free_some(&p->freeing.discarded[i], DISCARDED_PART);
            return true;
        }
    return false;
}

void account_move(pool_group *g, size_t link_at, pool_list *list) {
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

void account_update(pool *p, pool_group *g) {
    const size_t by_state = offsetof(pool_group, by_state), by_index = offsetof(pool_group, by_index);
    bool in_window = g->by_state.list == &p->groups.window;
    if (g->open)
        account_move(g, by_state, &p->groups.opened);
    else if (g->by_state.list == &p->groups.opened || !g->by_state.list)
        account_move(g, by_state, &p->groups.window);
    size_t idle = g->open ? 0 : sam_index_bytes(&g->index);
    p->groups.idle_bytes += idle - g->idle_bytes;
    g->idle_bytes = idle;
    size_t closed = g->open ? 0 : idle + g->tokens * sizeof(int32_t);
    p->groups.closed_bytes += closed - g->closed_bytes;
    p->groups.window_bytes -= in_window ? g->closed_bytes : 0;
    p->groups.window_bytes += g->by_state.list == &p->groups.window ? closed : 0;
    g->closed_bytes = closed;
    account_move(g, by_index, !g->open && g->index.memory ? &p->groups.idle : NULL);
}

void account_remove(pool *p, pool_group *g) {
    p->groups.closed_bytes -= g->closed_bytes;
    p->groups.idle_bytes -= g->idle_bytes;
    p->groups.window_bytes -= g->by_state.list == &p->groups.window ? g->closed_bytes : 0;
    account_move(g, offsetof(pool_group, by_state), NULL);
    account_move(g, offsetof(pool_group, by_index), NULL);
}

void account_count_life(pool *p, const pool_group *g) {
    uint8_t *lives = &p->groups.lives[g->hash % POOL_LIVES];
    if (*lives < UINT8_MAX)
        ++*lives;
    if (++p->groups.lives_count < 10 * (p->stats.groups + 16))
        return;
    p->groups.lives_count = 0;
    for (int i = 0; i < POOL_LIVES; i++)
        p->groups.lives[i] /= 2;
}
