// SPDX-License-Identifier: Apache-2.0
//
// What the files sam*.c share.

#ifndef SAM_PRIVATE_H
#define SAM_PRIVATE_H

#include "sam.h"

// ---- places: the only edge of a leaf leads to the next one

// The place after `place` in its text, or SAM_NONE if the text ends there.
static inline uint32_t next_place(const sam_index *index, uint32_t place) {
    uint32_t next = place + 1;
    if (next % SAM_CHUNK == 0) {
        next = index->chunks[place / SAM_CHUNK].next;
        if (next == SAM_NONE)
            return SAM_NONE;
        next *= SAM_CHUNK;
    }
    return index->links[next] == SAM_NONE ? SAM_NONE : next;
}

// As sam_place_token, for appending, which reads the chunk anyway.
static inline int32_t place_token(const sam_index *index, uint32_t place) {
    const sam_chunk *chunk = &index->chunks[place / SAM_CHUNK];
    return index->texts[chunk->text]->tokens[chunk->first + place % SAM_CHUNK];
}

// ---- edges of nodes

static inline uint32_t edge_hash(uint32_t node, int32_t token) {
    uint64_t key = (uint64_t)node << 32 | (uint32_t)token;
    return (uint32_t)((key ^ key >> 32) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

// The entries of the table of a hash.
static inline sam_edge *table_of(const sam_index *index, uint32_t hash) {
    return index->tables ? index->tables[hash & index->table_mask].edges : index->edges;
}

// The first entry to probe for an edge: spreads the highest bits of the hash over the table.
static inline sam_edge *home(const sam_index *index, sam_edge *table, uint32_t hash) {
    return table + ((uint64_t)hash * index->table_size >> 32);
}

// The entry of edge (node, token) in `table`, or the empty entry where it belongs; the search begins at
// `edge`.
static inline sam_edge *edge_entry_from(const sam_index *index, sam_edge *table, sam_edge *edge,
                                        uint32_t node, int32_t token) {
    const sam_edge *end = table + index->table_size;
    while (edge->target != SAM_NONE && (edge->node != node || edge->token != token))
        if (++edge == end)
            edge = table;
    return edge;
}

static inline sam_edge *edge_entry(const sam_index *index, uint32_t node, int32_t token) {
    uint32_t hash = edge_hash(node, token);
    sam_edge *table = table_of(index, hash);
    return edge_entry_from(index, table, home(index, table, hash), node, token);
}

// Where an edge leads: to a node, or to a place that may have become one. SAM_NONE: there is no edge.
static inline sam_state edge_end(const sam_index *index, uint32_t number, int32_t token) {
    const sam_node *node = &index->nodes[number];
    if (node->token == token)
        return node->target;
    return node->more == SAM_NO_TOKEN ? SAM_NONE : edge_entry(index, number, token)->target;
}

// The address of an existing edge's target.
static inline sam_state *edge_target(sam_index *index, uint32_t number, int32_t token) {
    sam_node *node = &index->nodes[number];
    return node->token == token ? &node->target : &edge_entry(index, number, token)->target;
}

// The number of edges of a state.
uint32_t edges_of(const sam_index *index, sam_state state);

// Adds a new edge to a node; its table has room for it. entry: the entry where it belongs, if that was found since the
// tables changed last, or NULL.
void edge_add(sam_index *index, uint32_t number, int32_t token, sam_state target, sam_edge *entry);

// ---- tables

// Whether a number of the directory is the lowest one of its table.
static inline bool is_lowest(const sam_index *index, uint32_t number) {
    return !(number >> index->tables[number].bits);
}

static inline uint32_t table_limit(const sam_index *index) {
    return index->table_size - index->table_size / 4;
}

// Whether every table has room for this number of edges.
static inline bool tables_fit(const sam_index *index, uint32_t more) {
    return (uint64_t)index->fullest + more <= table_limit(index);
}

// The edges that a token may add to tables: from the nodes of a walk, by the token, and those of a clone.
typedef struct {
    uint32_t from, end; // of the walk
    int32_t token;
    sam_state cloned; // SAM_ROOT: none
} new_edges;

// Reserves entries for at most `more` new edges.
bool reserve_edges(sam_index *index, uint32_t more, const new_edges *new);

// Creates tables for this many edges in a new index, as far as memory allows.
void make_tables(sam_index *index, uint32_t edges);

// Frees tables until *max_bytes are freed, and subtracts what they had. The directory stays.
void free_tables(sam_index *index, size_t *max_bytes);

// ---- nodes and chunks

// Reserve room for this many more.
bool reserve_nodes(sam_index *index, uint32_t more);
bool reserve_chunks(sam_index *index, uint32_t more);

// ---- suffixes

static inline uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// The state of the longest suffix, of at most max_length tokens, of a string in `state`.
static inline sam_state shortened(const sam_index *index, sam_state state, uint32_t max_length) {
    while (state != SAM_ROOT) {
        sam_state link = sam_link(index, state);
        if (sam_node_of(index, link)->length < max_length)
            break;
        state = link;
    }
    return state;
}

#endif
