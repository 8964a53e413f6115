// SPDX-License-Identifier: Apache-2.0

#include "sam.h"

#include <string.h>

// ---- places

// The place after `place` in its text, or SAM_NONE if the text ends there.
static uint32_t next_place(const sam_index *index, uint32_t place) {
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
static int32_t place_token(const sam_index *index, uint32_t place) {
    const sam_chunk *chunk = &index->chunks[place / SAM_CHUNK];
    return index->texts[chunk->text]->tokens[chunk->first + place % SAM_CHUNK];
}

uint32_t sam_length(const sam_index *index, sam_state state) {
    if (state & SAM_NODE)
        return sam_node_of(index, state)->length;
    return index->chunks[state / SAM_CHUNK].first + state % SAM_CHUNK + 1;
}

// ---- edges

static uint32_t edge_hash(uint32_t node, int32_t token) {
    uint64_t key = (uint64_t)node << 32 | (uint32_t)token;
    return (uint32_t)((key ^ key >> 32) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

// The entries of the table of a hash.
static sam_edge *table_of(const sam_index *index, uint32_t hash) {
    return index->tables ? index->tables[hash & index->table_mask].edges : index->edges;
}

// The entry of edge (node, token) in `table`, or the empty entry where it belongs; the search begins at
// `edge`.
static sam_edge *edge_entry_from(const sam_index *index, sam_edge *table, sam_edge *edge, uint32_t node,
                                 int32_t token) {
    const sam_edge *end = table + index->table_size;
    while (edge->target != SAM_NONE && (edge->node != node || edge->token != token))
        if (++edge == end)
            edge = table;
    return edge;
}

// The first entry to probe for an edge: spreads the highest bits of the hash over the table.
static sam_edge *home(const sam_index *index, sam_edge *table, uint32_t hash) {
    return table + ((uint64_t)hash * index->table_size >> 32);
}

static sam_edge *edge_entry(const sam_index *index, uint32_t node, int32_t token) {
    uint32_t hash = edge_hash(node, token);
    sam_edge *table = table_of(index, hash);
    return edge_entry_from(index, table, home(index, table, hash), node, token);
}

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

sam_state sam_child(const sam_index *index, sam_state state, int32_t token) {
    if (!(state & SAM_NODE)) {
        uint32_t next = next_place(index, state);
        return next != SAM_NONE && place_token(index, next) == token ? sam_resolve(index, next) : SAM_NONE;
    }
    const sam_node *node = sam_node_of(index, state);
    sam_state target = SAM_NONE;
    if (node->token == token)
        target = node->target;
    else if (node->more != SAM_NO_TOKEN)
        target = edge_entry(index, state & ~SAM_NODE, token)->target;
    return target == SAM_NONE ? SAM_NONE : sam_resolve(index, target);
}

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

// Adds a new edge; its table has room for it. entry: what find_child returned, if the tables have not changed
// since, or NULL.
static void edge_add(sam_index *index, uint32_t number, int32_t token, sam_state target, sam_edge *entry) {
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

// The address of an existing edge's target.
static sam_state *edge_target(sam_index *index, uint32_t number, int32_t token) {
    sam_node *node = &index->nodes[number];
    return node->token == token ? &node->target : &edge_entry(index, number, token)->target;
}

static uint32_t edges_of(const sam_index *index, sam_state state) {
    if (!(state & SAM_NODE))
        return 1;
    uint32_t number = state & ~SAM_NODE, count = 1;
    for (int32_t c = index->nodes[number].more; c != SAM_NO_TOKEN; c = edge_entry(index, number, c)->more)
        count++;
    return count;
}

// ---- capacity

static bool grow_nodes(sam_index *index, uint32_t more) {
    sam_node *nodes = sam_grow(index->memory, index->nodes, index->node_count, more, &index->node_capacity,
                               sizeof(sam_node));
    if (!nodes)
        return false;
    index->nodes = nodes;
    if (index->kind != SAM_COUNTED)
        return true;
    sam_count *counts = sam_grow(index->memory, index->counts, index->node_count, more,
                                 &index->count_capacity, sizeof(sam_count));
    if (!counts)
        return false;
    index->counts = counts;
    return true;
}

static bool reserve_nodes(sam_index *index, uint32_t more) {
    uint32_t capacity = index->node_capacity;
    if (index->kind == SAM_COUNTED && index->count_capacity < capacity)
        capacity = index->count_capacity;
    return more <= capacity - index->node_count || grow_nodes(index, more);
}

static uint32_t table_limit(const sam_index *index) { return index->table_size - index->table_size / 4; }

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

// The edges that a token may add to tables: from the nodes of a walk, by the token, and those of a clone.
typedef struct {
    uint32_t from, end; // of the walk
    int32_t token;
    sam_state cloned; // SAM_ROOT: none
} new_edges;

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

// Whether every table has room for this number of edges.
static bool tables_fit(const sam_index *index, uint32_t more) {
    return (uint64_t)index->fullest + more <= table_limit(index);
}

// Reserves entries for at most `more` new edges.
static bool reserve_edges(sam_index *index, uint32_t more, const new_edges *new) {
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

// Whether the place after the cursor's is free for its text; otherwise it needs a new chunk.
static bool has_next_place(const sam_index *index, const sam_cursor *cursor, uint32_t text,
                           uint32_t position) {
    uint32_t place = cursor->place;
    if (place == SAM_NONE || place % SAM_CHUNK == SAM_CHUNK - 1)
        return false;
    const sam_chunk *chunk = &index->chunks[place / SAM_CHUNK];
    return chunk->text == text && chunk->first + place % SAM_CHUNK + 1 == position;
}

static bool reserve_chunks(sam_index *index, uint32_t more) {
    sam_chunk *chunks = sam_grow(index->memory, index->chunks, index->chunk_count, more,
                                 &index->chunk_capacity, sizeof(sam_chunk));
    if (!chunks)
        return false;
    index->chunks = chunks;
    uint32_t *links = sam_grow(index->memory, index->links, index->chunk_count, more, &index->link_capacity,
                               SAM_CHUNK * sizeof(uint32_t));
    if (!links)
        return false;
    index->links = links;
    return (index->chunk_count + (uint64_t)more) * SAM_CHUNK <= SAM_MAX_PLACES;
}

bool sam_index_init(sam_index *index, sam_memory *memory, sam_kind kind, sam_text *const *texts) {
    *index = (sam_index){.memory = memory, .kind = kind, .texts = texts};
    if (!reserve_nodes(index, 1)) {
        sam_index_free(index);
        return false;
    }
    index->nodes[0] = (sam_node){
        .link = SAM_NONE, .token = SAM_NO_TOKEN, .target = SAM_NONE, .more = SAM_NO_TOKEN, .place = SAM_NONE};
    if (index->counts)
        index->counts[0] = (sam_count){.best = SAM_NO_TOKEN};
    index->node_count = 1;
    index->plain = true;
    return true;
}

// Creates tables for this many edges in a new index, as far as memory allows.
static void make_tables(sam_index *index, uint32_t edges) {
    uint32_t entries = edges + edges / 2 + 8, bits = 0;
    while (entries >> bits >= SAM_TABLE)
        bits++;
    bool done = grow_table(index, bits ? (entries >> bits) + 1 : entries);
    for (uint32_t b = 0; b < bits; b++)
        for (uint32_t hash = 0; done && hash >> b == 0; hash++)
            done = split_table(index, hash);
}

void sam_index_reserve(sam_index *index, uint32_t tokens) {
    enum { MAX_TOKENS = 1 << 16 }; // clearing tables takes time
    if (tokens < SAM_CHUNK)
        return;
    if (tokens > MAX_TOKENS)
        tokens = MAX_TOKENS;
    bool (*reclaim)(void *) = index->memory->reclaim;
    index->memory->reclaim = NULL;
    if (reserve_chunks(index, tokens / SAM_CHUNK + 1) && grow_nodes(index, tokens / 2))
        make_tables(index, tokens / 4 * 3);
    index->memory->reclaim = reclaim;
}

static size_t directory_bytes(const sam_index *index) {
    return index->tables ? (index->table_mask + 1) * sizeof(sam_table) : 0;
}

// Frees *max_bytes of an array from its end, or all of it if little would be left, and subtracts them.
// Returns the array.
static void *free_end(sam_memory *memory, void *array, uint32_t *capacity, size_t element,
                      size_t *max_bytes) {
    size_t bytes = *capacity * element,
           kept = *max_bytes < bytes ? (bytes - *max_bytes) / element * element : 0;
    if (!*max_bytes)
        return array;
    if (kept <= SAM_LARGE)
        kept = 0;
    *max_bytes -= bytes - kept < *max_bytes ? bytes - kept : *max_bytes;
    *capacity = (uint32_t)(kept / element);
    return sam_resize(memory, array, bytes, kept);
}

// Whether a number of the directory is the lowest one of its table.
static bool is_lowest(const sam_index *index, uint32_t number) {
    return !(number >> index->tables[number].bits);
}

static void free_tables(sam_index *index, size_t *max_bytes) {
    size_t bytes = index->table_size * sizeof(sam_edge);
    for (uint32_t i = 0; i <= index->table_mask && *max_bytes; i++)
        if (is_lowest(index, i) && index->tables[i].edges) {
            sam_give_back(index->tables[i].edges, bytes);
            free_table(index, index->tables[i].edges, index->table_size);
            index->tables[i].edges = NULL;
            *max_bytes -= bytes < *max_bytes ? bytes : *max_bytes;
        }
}

bool sam_index_free_some(sam_index *index, size_t max_bytes) {
    sam_memory *memory = index->memory;
    if (!memory)
        return true;
    index->nodes = free_end(memory, index->nodes, &index->node_capacity, sizeof(sam_node), &max_bytes);
    index->counts = free_end(memory, index->counts, &index->count_capacity, sizeof(sam_count), &max_bytes);
    index->links =
        free_end(memory, index->links, &index->link_capacity, SAM_CHUNK * sizeof(uint32_t), &max_bytes);
    index->chunks = free_end(memory, index->chunks, &index->chunk_capacity, sizeof(sam_chunk), &max_bytes);
    if (index->tables)
        free_tables(index, &max_bytes);
    else if (max_bytes)
        free_table(index, index->edges, index->table_size);
    if (index->edge_capacity || index->nodes || index->counts || index->links || index->chunks ||
        (index->tables && !max_bytes))
        return false;
    sam_resize(memory, index->tables, directory_bytes(index), 0);
    *index = (sam_index){0};
    return true;
}

void sam_index_free(sam_index *index) { sam_index_free_some(index, SIZE_MAX); }

size_t sam_index_bytes(const sam_index *index) {
    return index->node_capacity * sizeof(sam_node) + index->count_capacity * sizeof(sam_count) +
           index->link_capacity * SAM_CHUNK * sizeof(uint32_t) + index->chunk_capacity * sizeof(sam_chunk) +
           index->edge_capacity * sizeof(sam_edge) + directory_bytes(index);
}

// ---- automaton

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

// The state of the longest suffix, of at most max_length tokens, of a string in `state`.
static sam_state shortened(const sam_index *index, sam_state state, uint32_t max_length) {
    while (state != SAM_ROOT) {
        sam_state link = sam_link(index, state);
        if (sam_node_of(index, link)->length < max_length)
            break;
        state = link;
    }
    return state;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Updates the list of the most frequent tokens: `token` has occurred `count` times now. It goes before
// equally frequent tokens, or after them in an older text.
static void rank_frequent(sam_index *index, int32_t token, uint32_t count, bool older) {
    sam_frequent *frequent = index->frequent;
    uint32_t size = index->frequent_count, to = 0;
    if (size == SAM_FREQUENT && count < frequent[size - 1].count + older)
        return;
    for (uint32_t i = 0; i < SAM_FREQUENT; i++) // counts after `size` are 0; without a branch this is quick
        to += frequent[i].count + older > count;
    uint32_t from = to;
    while (from < size && frequent[from].token != token)
        from++;
    if (from == SAM_FREQUENT)
        from--;
    else if (from == size)
        index->frequent_count++;
    for (; from > to; from--)
        frequent[from] = frequent[from - 1];
    frequent[to] = (sam_frequent){token, count};
}

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
    rank_frequent(index, token, shortest ? counts[shortest].occurrences : 1, older);
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

// Where an edge leads: to a node, or to a place that may have become one. SAM_NONE: there is no edge.
static sam_state edge_end(const sam_index *index, uint32_t number, int32_t token) {
    const sam_node *node = &index->nodes[number];
    if (node->token == token)
        return node->target;
    return node->more == SAM_NO_TOKEN ? SAM_NONE : edge_entry(index, number, token)->target;
}

void sam_prefetch_append(const sam_index *index, const sam_cursor *cursor, int32_t token, unsigned step,
                         sam_prefetched *prefetched) {
    enum { WALK = SAM_APPEND_STAGES - 3 }; // nodes of the walk
    uint32_t number = prefetched->node;
    sam_state end = prefetched->end;
    if (step == 0) {
        prefetch_edge(index, 0, token);
        prefetch_link(index, cursor->last);
        prefetch_link(index, cursor->near);
        if (cursor->place != SAM_NONE)
            sam_prefetch(&index->chunks[cursor->place / SAM_CHUNK]);
    } else if (step == 1) {
        number = node_above(index, cursor->last);
        prefetch_node(index, number);
        prefetch_edge(index, number, token);
        *prefetched = (sam_prefetched){number, SAM_NONE};
    } else if (step <= WALK + 1) {
        if (end == SAM_NONE)
            prefetched->end = end = edge_end(index, number, token);
        if (number && step <= WALK) {
            prefetched->node = number = index->nodes[number].link;
            prefetch_node(index, number);
            if (end == SAM_NONE)
                prefetch_edge(index, number, token);
        }
        if (step == WALK + 1 && end != SAM_NONE)
            prefetch_end(index, end);
    } else if (end != SAM_NONE) {
        prefetch_node(index, end & SAM_NODE ? index->nodes[end & ~SAM_NODE].link : node_above(index, end));
    }
}

void sam_prefetch_match(const sam_index *index, sam_state near, unsigned step, sam_prefetched *prefetched) {
    enum { NODES = SAM_MATCH_STAGES - 2 }; // of the link path
    uint32_t place = SAM_NONE, number = prefetched->node, left;
    if (step == 0) {
        prefetch_link(index, near);
        return;
    }
    if (step == 1) {
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
    if (number && step <= NODES)
        prefetch_node(index, number);
    *prefetched = (sam_prefetched){number, place};
}

bool sam_index_branch(sam_index *index, sam_cursor *cursor, sam_cursor *branch) {
    if (!reserve_nodes(index, 1))
        return false;
    if (cursor->length)
        promote(index, sam_resolve(index, cursor->last), SAM_NONE);
    *branch = *cursor;
    return true;
}

// ---- reading

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

// Where the next token leads, or without one, where any token led; SAM_NONE: nowhere.
static sam_state search_end(const sam_search *search, sam_state state) {
    const sam_index *index = search->index;
    if (state & SAM_NODE)
        return search->count ? edge_end(index, state & ~SAM_NODE, *search->tokens)
                             : sam_node_of(index, state)->place;
    uint32_t next = next_place(index, state);
    bool differs = search->count && next != SAM_NONE && place_token(index, next) != *search->tokens;
    return differs ? SAM_NONE : next;
}

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

uint32_t sam_candidates(const sam_index *index, sam_state state, uint32_t max_count, int32_t *tokens,
                        uint32_t *counts) {
    sam_following f;
    sam_follow(index, state, &f);
    if (!f.followed || !max_count)
        return 0;
    uint32_t count = 0;
    tokens[count] = f.best;
    counts[count++] = f.best_count;
    if (!(state & SAM_NODE) || f.best_count == f.followed)
        return count;
    uint32_t number = state & ~SAM_NODE, left = f.followed - f.best_count;
    int32_t more = index->nodes[number].more, c = f.newest;
    for (bool first = true; left && count < max_count; first = false) {
        if (!first) {
            if (more != SAM_NO_TOKEN) {
                c = more;
                more = edge_entry(index, number, c)->more;
            } else {
                c = index->nodes[number].token;
                left = 0;
            }
            if (c == f.newest)
                continue;
        }
        if (c == f.best)
            continue;
        sam_state child = sam_child(index, state, c);
        uint32_t n = child & SAM_NODE ? index->counts[child & ~SAM_NODE].occurrences : 1;
        tokens[count] = c;
        counts[count++] = n;
        left -= left ? n : 0;
    }
    return count;
}

// ---- validation

static bool is_ancestor(const sam_index *index, sam_state ancestor, sam_state state) {
    while (sam_length(index, state) > sam_length(index, ancestor))
        state = sam_link(index, state);
    return state == ancestor;
}

typedef struct {
    uint64_t occurrences;
    uint32_t best_count;
    bool has_best;
} edge_totals;

static bool validate_edge(const sam_index *index, uint32_t s, int32_t token, sam_state target,
                          edge_totals *totals, const char **reason) {
    SAM_REQUIRE(token >= 0, "an edge has a negative label");
    SAM_REQUIRE(target & SAM_NODE ? (target & ~SAM_NODE) < index->node_count && target != SAM_ROOT
                                  : target / SAM_CHUNK < index->chunk_count,
                "an edge leads to no state");
    target = sam_resolve(index, target);
    SAM_REQUIRE(sam_length(index, target) > index->nodes[s].length,
                "an edge leads to a string that is not longer");
    uint32_t occurrences = 1;
    if (target & SAM_NODE && index->counts)
        occurrences = index->counts[target & ~SAM_NODE].occurrences;
    totals->occurrences += occurrences;
    if (occurrences > totals->best_count)
        totals->best_count = occurrences;
    if (index->counts && index->counts[s].best == token && index->counts[s].best_count == occurrences)
        totals->has_best = true;
    uint32_t link = index->nodes[s].link;
    if (link == SAM_NONE)
        return true;
    sam_state shorter = sam_child(index, SAM_NODE | link, token);
    SAM_REQUIRE(shorter != SAM_NONE, "a node has an edge that its link lacks");
    SAM_REQUIRE(is_ancestor(index, shorter, target),
                "edges of a node and of its link lead to unrelated states");
    return true;
}

static bool validate_node(const sam_index *index, uint32_t s, uint64_t *listed, const char **reason) {
    const sam_node *node = &index->nodes[s];
    edge_totals totals = {0};
    SAM_REQUIRE(node->target != SAM_NONE || node->more == SAM_NO_TOKEN,
                "a node has table edges but no first edge");
    if (node->target != SAM_NONE && !validate_edge(index, s, node->token, node->target, &totals, reason))
        return false;
    for (int32_t c = node->more; c != SAM_NO_TOKEN;) {
        const sam_edge *edge = edge_entry(index, s, c);
        SAM_REQUIRE(edge->target != SAM_NONE, "an edge list names an edge that the table lacks");
        SAM_REQUIRE(c != node->token, "a node has two edges with one label");
        SAM_REQUIRE(++*listed <= index->edge_count, "edge lists are longer than the table");
        if (!validate_edge(index, s, c, edge->target, &totals, reason))
            return false;
        c = edge->more;
    }
    if (s == 0)
        return true;
    if (node->place != SAM_NONE) {
        SAM_REQUIRE(node->place / SAM_CHUNK < index->chunk_count, "the place of a node is none");
        SAM_REQUIRE(sam_child(index, SAM_NODE | s, place_token(index, node->place)) != SAM_NONE,
                    "the place of a node has a token that does not follow");
        const sam_node *link = &index->nodes[node->link];
        SAM_REQUIRE(!node->link || link->place != SAM_NONE ||
                        (index->kind != SAM_OLDEST && index->nodes[link->link].length >= SAM_MAX_MATCH),
                    "a node is followed by a token, but its link is not");
    }
    if (index->counts && node->length < SAM_MAX_MATCH) {
        const sam_count *count = &index->counts[s];
        SAM_REQUIRE(count->followed == totals.occurrences,
                    "a node is not followed as often as the states of its edges occur");
        SAM_REQUIRE(count->best_count == totals.best_count, "a node's best count is not the largest");
        SAM_REQUIRE(!count->followed || totals.has_best, "a node's best token does not have the best count");
        SAM_REQUIRE(count->occurrences >= count->followed || count->occurrences > 0, "a node never occurred");
    }
    return true;
}

static bool validate_table(const sam_index *index, const sam_edge *edges, uint32_t count,
                           const char **reason) {
    uint32_t stored = 0;
    for (uint32_t i = 0; i < index->table_size; i++)
        stored += edges[i].target != SAM_NONE;
    SAM_REQUIRE(stored == count && stored <= index->fullest, "a table's count is wrong");
    SAM_REQUIRE(stored <= table_limit(index), "a table is too full");
    return true;
}

bool sam_index_validate(const sam_index *index, const char **reason) {
    SAM_REQUIRE(index->node_count >= 1 && index->node_count <= index->node_capacity, "more nodes than fit");
    SAM_REQUIRE(!index->counts || index->node_count <= index->count_capacity, "more counts than fit");
    SAM_REQUIRE(index->chunk_count <= index->chunk_capacity && index->chunk_count <= index->link_capacity,
                "more places than fit");
    SAM_REQUIRE(index->nodes[0].link == SAM_NONE && index->nodes[0].length == 0, "the root is damaged");
    for (uint32_t s = 1; s < index->node_count; s++) {
        uint32_t link = index->nodes[s].link;
        SAM_REQUIRE(link < index->node_count, "a link leads to no node");
        SAM_REQUIRE(index->nodes[link].length < index->nodes[s].length,
                    "a link leads to a string that is not shorter");
    }
    for (uint32_t x = 0; x < index->chunk_count * SAM_CHUNK; x++) {
        uint32_t link = index->links[x];
        if (link == SAM_NONE)
            continue;
        SAM_REQUIRE((link & ~SAM_NODE) < index->node_count, "a place refers to no node");
        SAM_REQUIRE(link & SAM_NODE ? index->nodes[link & ~SAM_NODE].length > 0
                                    : index->nodes[link].length < sam_length(index, x),
                    "a leaf's link is not shorter");
    }
    for (uint32_t i = 0; index->plain && i < index->chunk_count; i++)
        SAM_REQUIRE(index->chunks[i].text == 0 && index->chunks[i].first == i * SAM_CHUNK,
                    "a plain index has a place that is not its token's");
    uint64_t listed = 0;
    for (uint32_t s = 0; s < index->node_count; s++)
        if (!validate_node(index, s, &listed, reason))
            return false;
    SAM_REQUIRE(listed == index->edge_count, "tables hold edges that no node lists");
    SAM_REQUIRE(index->table_size <= SAM_TABLE, "a table is too large");
    if (!index->tables) {
        SAM_REQUIRE(index->edge_capacity == index->table_size, "there are tables without a directory");
        return validate_table(index, index->edges, index->edge_count, reason);
    }
    uint32_t tables = 0;
    uint64_t stored = 0;
    for (uint32_t i = 0; i <= index->table_mask; i++) {
        const sam_table *table = &index->tables[i], *lowest;
        SAM_REQUIRE(1u << table->bits <= index->table_mask + 1, "a table has more bits than the directory");
        lowest = &index->tables[i & ((1u << table->bits) - 1)];
        SAM_REQUIRE(table->edges == lowest->edges && table->bits == lowest->bits,
                    "the directory has two tables for one hash");
        if (!is_lowest(index, i))
            continue;
        tables++;
        stored += table->count;
        if (!validate_table(index, table->edges, table->count, reason))
            return false;
    }
    SAM_REQUIRE(tables * index->table_size == index->edge_capacity, "the directory lacks a table");
    SAM_REQUIRE(stored == index->edge_count, "the tables' counts do not add up");
    return true;
}
