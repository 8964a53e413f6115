// SPDX-License-Identifier: Apache-2.0
//
// Prefetching for an automaton, and the searches in steps that rely on it.

#include "sam_private.h"

// The first node at or above a state.
static uint32_t node_above(const sam_index *index, sam_state state) {
    state = sam_resolve(index, state);
    return (state & SAM_NODE ? state : sam_link(index, state)) & ~SAM_NODE;
}

static void prefetch_edge(const sam_index *index, uint32_t number, int32_t token) {
    uint32_t hash = edge_hash(number, token);
    if (index->table_size) {
        const sam_edge *edge = home(index, table_of(index, hash), hash);
        sam_prefetch(edge);
        sam_prefetch(edge + 3); // the search may go on to the next line
    }
}

static void prefetch_node(const sam_index *index, uint32_t number) {
    sam_prefetch(&index->nodes[number]);
    if (index->counts)
        sam_prefetch(&index->counts[number]);
}

static void prefetch_link(const sam_index *index, sam_state state) {
    if (!(state & SAM_NODE))
        sam_prefetch(&index->links[state]);
}

// Prefetches where an edge leads.
static void prefetch_end(const sam_index *index, sam_state end) {
    prefetch_link(index, end);
    if (end & SAM_NODE)
        prefetch_node(index, end & ~SAM_NODE);
    else
        sam_prefetch(&index->chunks[end / SAM_CHUNK]);
}

void sam_prefetch_append(const sam_index *index, const sam_cursor *cursor, int32_t token, unsigned stage,
                         sam_prefetched *prefetched) {
    enum { WALK = SAM_APPEND_STAGES - 3 }; // nodes of the walk
    uint32_t number = prefetched->node;
    sam_state end = prefetched->end;
    if (stage == 0) {
        prefetch_edge(index, 0, token);
        prefetch_link(index, cursor->last);
        prefetch_link(index, cursor->near);
        if (cursor->place != SAM_NONE)
            sam_prefetch(&index->chunks[cursor->place / SAM_CHUNK]);
    } else if (stage == 1) {
        number = node_above(index, cursor->last);
        prefetch_node(index, number);
        prefetch_edge(index, number, token);
        *prefetched = (sam_prefetched){number, SAM_NONE};
    } else if (stage <= WALK + 1) {
        if (end == SAM_NONE)
            prefetched->end = end = edge_end(index, number, token);
        if (number && stage <= WALK) {
            prefetched->node = number = index->nodes[number].link;
            prefetch_node(index, number);
            if (end == SAM_NONE)
                prefetch_edge(index, number, token);
        }
        if (stage == WALK + 1 && end != SAM_NONE)
            prefetch_end(index, end);
    } else if (end != SAM_NONE) {
        prefetch_node(index, end & SAM_NODE ? index->nodes[end & ~SAM_NODE].link : node_above(index, end));
    }
}

void sam_prefetch_match(const sam_index *index, sam_state near, unsigned stage, sam_prefetched *prefetched) {
    enum { NODES = SAM_MATCH_STAGES - 2 }; // of the link path
    uint32_t place = SAM_NONE, number = prefetched->node, left;
    if (stage == 0) {
        prefetch_link(index, near);
        return;
    }
    if (stage == 1) {
        near = sam_resolve(index, near);
        place = near & SAM_NODE ? SAM_NONE : near;
        number = node_above(index, near);
    } else {
        if (prefetched->end != SAM_NONE && !index->plain)
            sam_prefetch(sam_place_token(index, prefetched->end, &left));
        if (number) {
            const sam_count *count = index->counts ? &index->counts[number] : NULL;
            if (!count ||
                count->best_count != count->followed) // else sam_follow does not read the place's token
                place = index->nodes[number].place;
            number = index->nodes[number].link;
        }
    }
    if (place != SAM_NONE && index->plain)
        sam_prefetch(sam_place_token(index, place, &left));
    else if (place != SAM_NONE)
        sam_prefetch(&index->chunks[place / SAM_CHUNK]);
    if (number && stage <= NODES)
        prefetch_node(index, number);
    *prefetched = (sam_prefetched){number, place};
}

void sam_prefetch_edge(const sam_index *index, sam_state node, int32_t token) {
    if (sam_node_of(index, node)->token != token)
        prefetch_edge(index, node & ~SAM_NODE, token);
}

sam_state sam_edge_end(const sam_index *index, sam_state node, int32_t token) {
    sam_state end = edge_end(index, node & ~SAM_NODE, token);
    if (end == SAM_NONE)
        return end;
    prefetch_link(index, end);
    if (end & SAM_NODE)
        sam_prefetch(&index->counts[end & ~SAM_NODE]);
    return end;
}

// ---- searches

void sam_search_begin(sam_search *search, const sam_index *index, const sam_cursor *cursor,
                      const int32_t *tokens, uint32_t count) {
    sam_state state = index->kind == SAM_OLDEST ? cursor->last : cursor->near;
    *search = (sam_search){index, tokens, count, cursor->length, state, .found = true};
    prefetch_end(index, state);
}

// Prefetches what the search for the next token reads of a state that is resolved.
static void prefetch_search(const sam_search *search, sam_state state) {
    const sam_index *index = search->index;
    uint32_t node = node_above(index, state), left;
    sam_prefetch(&index->nodes[node]);
    if (!search->count)
        return;
    prefetch_edge(index, node, *search->tokens);
    if (!(state & SAM_NODE))
        sam_prefetch(sam_place_token(index, state, &left) + 1);
}

// The target of the edge for the next token, or SAM_NONE if there is none. After the last token: SAM_NONE if no token
// followed `state`, otherwise any other value.
static sam_state search_end(const sam_search *search, sam_state state) {
    const sam_index *index = search->index;
    if (state & SAM_NODE)
        return search->count ? edge_end(index, state & ~SAM_NODE, *search->tokens)
                             : sam_node_of(index, state)->place;
    uint32_t next = next_place(index, state);
    bool differs = search->count && next != SAM_NONE && place_token(index, next) != *search->tokens;
    return differs ? SAM_NONE : next;
}

// Resolves the state that the previous step found. Otherwise tries the state's edge for the next token and, if there is
// none, shortens the match by one link.
bool sam_search_step(sam_search *search) {
    const sam_index *index = search->index;
    sam_state state = search->state, end;
    if (search->found) {
        search->state = state = sam_resolve(index, state);
        search->found = false;
        prefetch_search(search, state);
        return true;
    }
    if (search->shortened)
        search->length = sam_node_of(index, state)->length;
    else
        state = sam_near(index, state, &search->length);
    while ((end = search_end(search, state)) == SAM_NONE && state != SAM_ROOT) {
        bool is_leaf = !(state & SAM_NODE);
        search->state = state = sam_link(index, state);
        if (!is_leaf) {
            search->shortened = true;
            prefetch_search(search, state);
            return true;
        }
        search->length = sam_node_of(index, state)->length; // it was prefetched with the leaf
    }
    search->state = state;
    if (!search->count)
        return false;
    if (end != SAM_NONE) {
        search->state = end;
        search->length++;
        prefetch_end(index, end);
    }
    search->found = true;
    search->shortened = false;
    search->tokens++;
    search->count--;
    return true;
}
