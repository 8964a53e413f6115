// SPDX-License-Identifier: Apache-2.0
//
// What an automaton owns: creating, reserving and freeing it.

#include "sam_private.h"

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

bool reserve_nodes(sam_index *index, uint32_t more) {
    uint32_t capacity = index->node_capacity;
    if (index->kind == SAM_COUNTED && index->count_capacity < capacity)
        capacity = index->count_capacity;
    return more <= capacity - index->node_count || grow_nodes(index, more);
}

bool reserve_chunks(sam_index *index, uint32_t more) {
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

bool sam_index_free_some(sam_index *index, size_t max_bytes) {
    sam_memory *memory = index->memory;
    if (!memory)
        return true;
    index->nodes = free_end(memory, index->nodes, &index->node_capacity, sizeof(sam_node), &max_bytes);
    index->counts = free_end(memory, index->counts, &index->count_capacity, sizeof(sam_count), &max_bytes);
    index->links =
        free_end(memory, index->links, &index->link_capacity, SAM_CHUNK * sizeof(uint32_t), &max_bytes);
    index->chunks = free_end(memory, index->chunks, &index->chunk_capacity, sizeof(sam_chunk), &max_bytes);
    free_tables(index, &max_bytes);
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
