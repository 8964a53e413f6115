// SPDX-License-Identifier: Apache-2.0
//
// Extending an automaton by a token, and counting the token for the strings that it follows.

#include "sam_private.h"

#include <string.h>

// ---- states

// A new node for the strings of `state` up to `length` tokens, with the edges, link and statistics of
// `state`. The occurrence before place `uncounted` is not in the statistics yet.
static uint32_t add_node(sam_index *index, sam_state state, uint32_t length, uint32_t uncounted) {
    uint32_t number = index->node_count++;
    sam_node *node = &index->nodes[number];
    if (state & SAM_NODE) {
        uint32_t from = state & ~SAM_NODE;
        *node = index->nodes[from];
        if (index->counts)
            index->counts[number] = index->counts[from];
        node->more = SAM_NO_TOKEN;
        for (int32_t c = index->nodes[from].more; c != SAM_NO_TOKEN;) {
            sam_edge edge = *edge_entry(index, from, c);
            edge_add(index, number, c, edge.target, NULL);
            c = edge.more;
        }
    } else {
        uint32_t next = next_place(index, state);
        int32_t token = next == SAM_NONE ? SAM_NO_TOKEN : place_token(index, next);
        bool is_followed = next != SAM_NONE && next != uncounted;
        *node = (sam_node){.link = index->links[state],
                           .token = token,
                           .target = next,
                           .more = SAM_NO_TOKEN,
                           .place = is_followed ? next : SAM_NONE};
        if (index->counts)
            index->counts[number] =
                (sam_count){is_followed, 1, is_followed ? token : SAM_NO_TOKEN, is_followed};
    }
    node->length = length;
    return number;
}

// The node of a state that occurred again.
static uint32_t promote(sam_index *index, sam_state state, uint32_t uncounted) {
    if (state & SAM_NODE)
        return state & ~SAM_NODE;
    uint32_t number = add_node(index, state, sam_length(index, state), uncounted);
    index->links[state] = SAM_NODE | number;
    return number;
}

// Splits the strings that end with an edge from `p` by `token` off `q`, the target of these edges. Returns
// their node.
static uint32_t split(sam_index *index, sam_state p, int32_t token, sam_state q, uint32_t uncounted) {
    uint32_t clone = add_node(index, q, sam_length(index, p) + 1, uncounted);
    if (q & SAM_NODE)
        index->nodes[q & ~SAM_NODE].link = clone;
    else
        index->links[q] = clone;
    for (uint32_t s = p & ~SAM_NODE; s != SAM_NONE; s = index->nodes[s].link) {
        sam_state *target = edge_target(index, s, token);
        if (sam_resolve(index, *target) != q)
            break;
        *target = SAM_NODE | clone;
        index->memory->work++;
    }
    return clone;
}

// ---- a token

// The child of a node, as sam_child. *entry: the entry of its edge in the table, or the one where it belongs;
// NULL: not in the table, or there is no table.
static sam_state find_child(const sam_index *index, sam_state state, int32_t token, sam_edge **entry) {
    const sam_node *node = sam_node_of(index, state);
    sam_state target = SAM_NONE;
    *entry = NULL;
    if (node->token == token) {
        target = node->target;
    } else if (node->target != SAM_NONE && index->table_size) {
        *entry = edge_entry(index, state & ~SAM_NODE, token);
        target = (*entry)->target;
    }
    return target == SAM_NONE ? SAM_NONE : sam_resolve(index, target);
}

// Whether the place after the cursor's is free for its text; otherwise it needs a new chunk.
static bool has_next_place(const sam_index *index, const sam_cursor *cursor, uint32_t text,
                           uint32_t position) {
    uint32_t place = cursor->place;
    if (place == SAM_NONE || place % SAM_CHUNK == SAM_CHUNK - 1)
        return false;
    const sam_chunk *chunk = &index->chunks[place / SAM_CHUNK];
    return chunk->text == text && chunk->first + place % SAM_CHUNK + 1 == position;
}

// Extends the cursor's text by one token; changes only `last` and `place` of the cursor. Returns false on
// failure.
static bool extend(sam_index *index, sam_cursor *cursor, uint32_t text, uint32_t position) {
    // First find out which nodes lack an edge, where the walk ends and what must be split. Then reserve
    // memory, then change the index.
    int32_t token = index->texts[text]->tokens[position];
    sam_state last = sam_resolve(index, cursor->last), p = last, q;
    enum { KEPT = 8 };
    sam_edge *entry, *entries[KEPT]; // of the walk's first nodes
    uint32_t capacity = index->edge_capacity, more = 0, kept = 0;
    if (!(p & SAM_NODE)) // the end of a text: no edge
        p = sam_link(index, p);
    while ((q = find_child(index, p, token, &entry)) == SAM_NONE) {
        if (kept < KEPT)
            entries[kept++] = entry;
        more += sam_node_of(index, p)->target != SAM_NONE;
        index->memory->work++;
        if (p == SAM_ROOT)
            break;
        p = sam_link(index, p);
    }
    bool known = q != SAM_NONE && p == last; // another text already contains the extended text
    bool must_split = q != SAM_NONE && sam_length(index, q) != sam_length(index, p) + 1;
    bool new_chunk = !has_next_place(index, cursor, text, position);
    uint32_t from = (last & SAM_NODE ? last : sam_link(index, last)) & ~SAM_NODE;
    uint32_t end = q == SAM_NONE ? SAM_NONE : p & ~SAM_NODE;
    if (must_split)
        more += edges_of(index, q);
    if (!reserve_nodes(index, 1) ||
        (!tables_fit(index, more) &&
         !reserve_edges(index, more, &(new_edges){from, end, token, must_split ? q : SAM_ROOT})) ||
        (new_chunk && !reserve_chunks(index, 1)))
        return false;
    uint32_t place = new_chunk ? index->chunk_count * SAM_CHUNK : cursor->place + 1;
    if (new_chunk) {
        if (text || position != place)
            index->plain = false;
        index->chunks[index->chunk_count] = (sam_chunk){text, position, SAM_NONE};
        memset(&index->links[place], 0xff, SAM_CHUNK * sizeof(uint32_t));
        if (cursor->place != SAM_NONE && index->chunks[cursor->place / SAM_CHUNK].text == text)
            index->chunks[cursor->place / SAM_CHUNK].next = index->chunk_count;
        index->chunk_count++;
    }
    cursor->place = place;
    if (known) {
        cursor->last = SAM_NODE | (must_split ? split(index, p, token, q, place) : promote(index, q, place));
        return true;
    }
    index->links[place] = 0;              // from here on the place follows `last`
    if (index->edge_capacity != capacity) // edges have moved
        kept = 0;
    uint32_t i = 0;
    for (uint32_t s = from; s != end; s = index->nodes[s].link, i++)
        edge_add(index, s, token, place, i < kept ? entries[i] : NULL);
    if (q != SAM_NONE)
        index->links[place] = must_split ? split(index, p, token, q, place) : promote(index, q, place);
    cursor->last = place;
    return true;
}

// ---- statistics

static bool same_text(const sam_index *index, uint32_t a, uint32_t b) {
    return index->chunks[a / SAM_CHUNK].text == index->chunks[b / SAM_CHUNK].text;
}

// Counts that the token at `place` follows the suffixes of the old text, and the occurrences of those of the new
// text. `from` and `to` are the states of the last SAM_MAX_MATCH tokens of the old text and of the new one.
static void count_token(sam_index *index, sam_state from, sam_state to, int32_t token, uint32_t place,
                        bool older) {
    sam_count *counts = index->counts;
    sam_node *nodes = index->nodes;
    if (counts && to & SAM_NODE)
        counts[to & ~SAM_NODE].occurrences++;
    for (uint32_t p = (from & SAM_NODE ? from : sam_link(index, from)) & ~SAM_NODE; p; p = nodes[p].link) {
        bool newest = !older || nodes[p].place == SAM_NONE || same_text(index, nodes[p].place, place);
        if (newest)
            nodes[p].place = place;
        index->memory->work++;
        if (!counts)
            continue;
        uint32_t length = smaller(nodes[p].length, SAM_MAX_MATCH) + 1; // of its longest string and the token
        for (sam_state link; to != SAM_ROOT; to = link) {
            link = sam_link(index, to);
            if (sam_node_of(index, link)->length < length)
                break;
            counts[link & ~SAM_NODE].occurrences++;
        }
        uint32_t count = to & SAM_NODE ? counts[to & ~SAM_NODE].occurrences : 1;
        sam_count *c = &counts[p];
        c->followed++;
        if (c->best == token || count + newest > c->best_count) {
            c->best = token;
            c->best_count = count;
        }
    }
    if (!counts)
        return;
    // The node of the token alone, if it occurred before.
    uint32_t shortest = to & SAM_NODE ? to & ~SAM_NODE : 0;
    for (uint32_t t = sam_link(index, to) & ~SAM_NODE; t; t = nodes[t].link) {
        counts[t].occurrences++;
        shortest = t;
    }
    uint32_t count = shortest ? counts[shortest].occurrences : 1;
    if (count >= index->frequent.count + older)
        index->frequent = (sam_frequent){token, count};
}

// SAM_OLDEST: sets `place` of the nodes that have none, in an older text also of those that another text has
// set. If a text has set a node's, then its link's is set as well, in an older text by the same text.
static void mark_oldest(sam_index *index, sam_state state, uint32_t place, bool older) {
    sam_node *nodes = index->nodes;
    for (uint32_t p = (state & SAM_NODE ? state : sam_link(index, state)) & ~SAM_NODE; p; p = nodes[p].link) {
        if (nodes[p].place != SAM_NONE && (!older || same_text(index, nodes[p].place, place)))
            return;
        nodes[p].place = place;
        index->memory->work++;
    }
}

// ---- a text

bool sam_index_append(sam_index *index, sam_cursor *cursor, uint32_t text, uint32_t position) {
    sam_cursor next = *cursor;
    if (!extend(index, &next, text, position))
        return false;
    sam_state last = sam_resolve(index, cursor->last);
    uint32_t length = next.length++;
    index->appended++;
    if (index->kind == SAM_OLDEST) {
        mark_oldest(index, last, next.place, next.older);
    } else {
        int32_t token = index->texts[text]->tokens[position];
        sam_state from = shortened(index, sam_resolve(index, cursor->near), smaller(length, SAM_MAX_MATCH));
        sam_state to = from == last ? next.last : sam_child(index, from, token);
        to = shortened(index, to, smaller(length, SAM_MAX_MATCH) + 1);
        count_token(index, from, to, token, next.place, next.older);
        next.near = shortened(index, to, SAM_MAX_MATCH);
    }
    *cursor = next;
    return true;
}

bool sam_index_branch(sam_index *index, sam_cursor *cursor, sam_cursor *branch) {
    if (!reserve_nodes(index, 1))
        return false;
    if (cursor->length)
        promote(index, sam_resolve(index, cursor->last), SAM_NONE);
    *branch = *cursor;
    return true;
}
