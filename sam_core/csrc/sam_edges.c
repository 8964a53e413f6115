// SPDX-License-Identifier: Apache-2.0
//
// The edges of nodes, and the tables that hold them.

#include "sam_private.h"

#include <string.h>

// ---- edges

// The empty entry of a table for a new edge.
static sam_edge *free_entry(const sam_index *index, sam_edge *table, uint32_t hash) {
    const sam_edge *end = table + index->table_size;
    sam_edge *edge = home(index, table, hash);
    while (edge->target != SAM_NONE)
        if (++edge == end)
            edge = table;
    return edge;
}

// The number of edges in the table of a hash.
static uint16_t *table_count(sam_index *index, uint32_t hash) {
    const sam_table *table = &index->tables[hash & index->table_mask];
    return &index->tables[hash & ((1u << table->bits) - 1)].count;
}

void edge_add(sam_index *index, uint32_t number, int32_t token, sam_state target, sam_edge *entry) {
    sam_node *node = &index->nodes[number];
    if (node->target == SAM_NONE) {
        node->token = token;
        node->target = target;
        return;
    }
    uint32_t hash = edge_hash(number, token), count = ++index->edge_count;
    sam_edge *table = index->edges;
    if (index->tables) {
        table = table_of(index, hash);
        count = ++*table_count(index, hash);
    }
    if (count > index->fullest)
        index->fullest = count;
    if (!entry)
        entry = home(index, table, hash);
    entry = edge_entry_from(index, table, entry, number, token); // another edge may have taken the entry
    *entry = (sam_edge){.node = number, .token = token, .target = target, .more = node->more};
    node->more = token;
}

uint32_t edges_of(const sam_index *index, sam_state state) {
    if (!(state & SAM_NODE))
        return 1;
    uint32_t number = state & ~SAM_NODE, count = 1;
    for (int32_t c = index->nodes[number].more; c != SAM_NO_TOKEN; c = edge_entry(index, number, c)->more)
        count++;
    return count;
}

// ---- tables

// An empty table, NULL on failure.
static sam_edge *new_table(sam_index *index, uint32_t size) {
    if (size > SAM_MAX_PLACES - index->edge_capacity)
        return NULL;
    sam_edge *edges = sam_resize(index->memory, NULL, 0, size * sizeof(sam_edge));
    if (!edges)
        return NULL;
    memset(edges, 0xff, size * sizeof(sam_edge));
    index->edge_capacity += size;
    return edges;
}

static void free_table(sam_index *index, sam_edge *edges, uint32_t size) {
    sam_resize(index->memory, edges, size * sizeof(sam_edge), 0);
    index->edge_capacity -= size;
}

// Makes the only table larger.
static bool grow_table(sam_index *index, uint32_t size) {
    sam_edge *edges = new_table(index, size), *from = index->edges;
    uint32_t old = index->table_size;
    if (!edges)
        return false;
    index->edges = edges;
    index->table_size = size;
    for (uint32_t i = 0; i < old; i++)
        if (from[i].target != SAM_NONE)
            *free_entry(index, edges, edge_hash(from[i].node, from[i].token)) = from[i];
    free_table(index, from, old);
    return true;
}

// Doubles the directory, or creates it.
static bool grow_directory(sam_index *index) {
    uint32_t old = index->tables ? index->table_mask + 1 : 0, size = old ? 2 * old : 1;
    sam_table *tables =
        sam_resize(index->memory, index->tables, old * sizeof(sam_table), size * sizeof(sam_table));
    if (!tables)
        return false;
    for (uint32_t i = 0; i < old; i++)
        tables[old + i] = (sam_table){.edges = tables[i].edges, .bits = tables[i].bits};
    if (!old) {
        tables[0] = (sam_table){.edges = index->edges, .count = (uint16_t)index->edge_count};
        index->edges = NULL;
    }
    index->tables = tables;
    index->table_mask = size - 1;
    return true;
}

// Splits the table of a hash in two.
static bool split_table(sam_index *index, uint32_t hash) {
    if (!index->tables && !grow_directory(index))
        return false;
    sam_table table = index->tables[hash & index->table_mask];
    uint32_t bit = 1u << table.bits, lowest = hash & (bit - 1), size = index->table_size;
    if (table.bits == SAM_TABLE_BITS || (bit > index->table_mask && !grow_directory(index)))
        return false;
    sam_table upper = {.edges = new_table(index, size), .bits = (uint16_t)(table.bits + 1)};
    if (!upper.edges)
        return false;
    for (uint32_t i = lowest; i <= index->table_mask; i += bit) {
        index->tables[i].bits = upper.bits;
        if (i & bit)
            index->tables[i] = upper;
    }
    // After an empty entry, an edge that is removed and inserted again goes to its old entry or an earlier
    // one.
    sam_edge *halves[] = {table.edges, upper.edges};
    uint32_t empty = 0, moved = 0;
    while (table.edges[empty].target != SAM_NONE)
        empty++;
    for (uint32_t left = size, i = empty; left; left--, i = i == size - 1 ? 0 : i + 1) {
        sam_edge edge = table.edges[i];
        if (edge.target == SAM_NONE)
            continue;
        table.edges[i].target = SAM_NONE;
        uint32_t of = edge_hash(edge.node, edge.token), half = (of & bit) != 0;
        *free_entry(index, halves[half], of) = edge;
        moved += half;
    }
    index->tables[lowest | bit].count = (uint16_t)moved;
    index->tables[lowest].count = (uint16_t)(index->tables[lowest].count - moved);
    index->fullest = 0;
    for (uint32_t i = 0; i <= index->table_mask; i++)
        if (index->tables[i].count > index->fullest)
            index->fullest = index->tables[i].count;
    return true;
}

void make_tables(sam_index *index, uint32_t edges) {
    uint32_t entries = edges + edges / 2 + 8, bits = 0;
    while (entries >> bits >= SAM_TABLE)
        bits++;
    bool done = grow_table(index, bits ? (entries >> bits) + 1 : entries);
    for (uint32_t b = 0; b < bits; b++)
        for (uint32_t hash = 0; done && hash >> b == 0; hash++)
            done = split_table(index, hash);
}

void free_tables(sam_index *index, size_t *max_bytes) {
    if (!index->tables) {
        if (*max_bytes)
            free_table(index, index->edges, index->table_size);
        return;
    }
    size_t bytes = index->table_size * sizeof(sam_edge);
    for (uint32_t i = 0; i <= index->table_mask && *max_bytes; i++)
        if (is_lowest(index, i) && index->tables[i].edges) {
            sam_give_back(index->tables[i].edges, bytes);
            free_table(index, index->tables[i].edges, index->table_size);
            index->tables[i].edges = NULL;
            *max_bytes -= bytes < *max_bytes ? bytes : *max_bytes;
        }
}

// ---- room for new edges

static bool count_edge(sam_index *index, uint32_t hash, int by) {
    uint16_t *count = table_count(index, hash);
    *count = (uint16_t)(*count + by);
    return *count <= table_limit(index);
}

// Adds `by` to the counts of the tables of the first *count new edges, until a table is too full. Returns
// whether none is. *count becomes the number of edges that were counted, *hash the hash of the last one.
static bool count_edges(sam_index *index, const new_edges *new, int by, uint32_t *count, uint32_t *hash) {
    uint32_t max_edges = *count;
    *count = 0;
    for (uint32_t s = new->from; s != new->end && *count < max_edges; s = index->nodes[s].link)
        if (index->nodes[s].target != SAM_NONE) {
            ++*count;
            *hash = edge_hash(s, new->token);
            if (!count_edge(index, *hash, by))
                return false;
        }
    if (!(new->cloned & SAM_NODE) || new->cloned == SAM_ROOT)
        return true;
    uint32_t cloned = new->cloned & ~SAM_NODE;
    int32_t c = new->token, more = index->nodes[cloned].more; // the walk may have added the token's edge
    while (c != SAM_NO_TOKEN && *count < max_edges) {
        ++*count;
        *hash = edge_hash(index->node_count, c);
        if (!count_edge(index, *hash, by))
            return false;
        c = more;
        if (c != SAM_NO_TOKEN)
            more = edge_entry(index, cloned, c)->more;
    }
    return true;
}

bool reserve_edges(sam_index *index, uint32_t more, const new_edges *new) {
    uint64_t needed = (uint64_t)index->edge_count + more;
    if (!index->tables) {
        if (index->table_size <= SAM_TABLE / 2) {
            uint64_t size = needed + needed / 2 + 8;
            if (size < 2 * index->table_size)
                size = 2 * index->table_size;
            if (!grow_table(index, size < SAM_TABLE ? (uint32_t)size : SAM_TABLE))
                return false;
            if (tables_fit(index, more))
                return true;
        }
        if (!split_table(index, 0))
            return false;
    }
    // Below, a table that is too full costs two passes over the new edges: with many of them there should be
    // none.
    for (uint32_t i = 0; more > index->table_size / 4 && i <= index->table_mask; i++)
        while (needed >> index->tables[i].bits > table_limit(index) / 16 * 15)
            if (!split_table(index, i))
                return false;
    for (;;) {
        uint32_t count = UINT32_MAX, hash = 0, full;
        bool fits = count_edges(index, new, 1, &count, &full);
        count_edges(index, new, -1, &count, &hash);
        if (fits)
            return true;
        if (!split_table(index, full))
            return false;
    }
}
