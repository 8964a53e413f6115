// SPDX-License-Identifier: Apache-2.0
//
// Reading an automaton: edges, matches and what followed them.

#include "sam_private.h"

sam_state sam_child(const sam_index *index, sam_state state, int32_t token) {
    if (!(state & SAM_NODE)) {
        uint32_t next = next_place(index, state);
        return next != SAM_NONE && place_token(index, next) == token ? sam_resolve(index, next) : SAM_NONE;
    }
    sam_state target = edge_end(index, state & ~SAM_NODE, token);
    return target == SAM_NONE ? SAM_NONE : sam_resolve(index, target);
}

uint32_t sam_occurrences(const sam_index *index, sam_state end) {
    sam_state child = sam_resolve(index, end);
    return child & SAM_NODE ? index->counts[child & ~SAM_NODE].occurrences : 1;
}

void sam_follow(const sam_index *index, sam_state state, sam_following *following) {
    *following = (sam_following){0};
    if (!(state & SAM_NODE)) {
        uint32_t next = next_place(index, state);
        if (next == SAM_NONE)
            return;
        uint32_t left;
        int32_t token = *sam_place_token(index, next, &left);
        *following = (sam_following){1, token, 1, token, next};
        return;
    }
    const sam_node *node = sam_node_of(index, state);
    if (node->place == SAM_NONE || state == SAM_ROOT)
        return;
    following->place = node->place;
    following->followed = 1;
    if (index->counts) {
        const sam_count *count = &index->counts[state & ~SAM_NODE];
        following->followed = count->followed;
        following->best = count->best;
        following->best_count = count->best_count;
        following->newest = count->best;
        if (count->best_count == count->followed)
            return;
    }
    uint32_t left;
    following->newest = *sam_place_token(index, node->place, &left);
}

sam_state sam_near(const sam_index *index, sam_state state, uint32_t *length) {
    if (*length <= SAM_MAX_MATCH)
        return state;
    *length = SAM_MAX_MATCH;
    return shortened(index, state, SAM_MAX_MATCH);
}

// The first state on the link path of a string that was followed by a token, and the string's length there.
static sam_state first_followed(const sam_index *index, sam_state s, uint32_t *length) {
    while (s != SAM_ROOT &&
           (s & SAM_NODE ? sam_node_of(index, s)->place : next_place(index, s)) == SAM_NONE) {
        s = sam_link(index, s);
        *length = sam_node_of(index, s)->length;
    }
    return s;
}

sam_state sam_match(const sam_index *index, const sam_cursor *cursor, uint32_t *length) {
    bool oldest = index->kind == SAM_OLDEST;
    *length = smaller(cursor->length, oldest ? UINT32_MAX : SAM_MAX_MATCH);
    sam_state s = sam_resolve(index, oldest ? cursor->last : cursor->near);
    return first_followed(index, shortened(index, s, *length), length);
}

void sam_advance(const sam_index *index, sam_state *state, uint32_t *length, int32_t token) {
    sam_state s = *state, next;
    while ((next = sam_child(index, s, token)) == SAM_NONE && s != SAM_ROOT) {
        s = sam_link(index, s);
        *length = sam_node_of(index, s)->length;
    }
    if (next != SAM_NONE) {
        s = next;
        ++*length;
    }
    *state = sam_near(index, s, length);
}
