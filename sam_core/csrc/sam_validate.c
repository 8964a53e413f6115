// SPDX-License-Identifier: Apache-2.0
//
// Checks the invariants that sam.h lists.

#include "sam_private.h"

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
