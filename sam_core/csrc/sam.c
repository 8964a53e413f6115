// SPDX-License-Identifier: Apache-2.0

#include "sam.h"

#include <string.h>

void *sam_resize(sam_memory *memory, void *block, size_t old_bytes, size_t new_bytes) {
    if (new_bytes == 0) {
        if (block)
            SAM_FREE(block);
        memory->used -= old_bytes;
        return NULL;
    }
    while (new_bytes > old_bytes &&
           (memory->used > memory->limit || new_bytes - old_bytes > memory->limit - memory->used)) {
        if (!memory->make_room || !memory->make_room(memory->owner))
            return NULL;
    }
    void *resized = SAM_REALLOC(block, new_bytes);
    if (resized)
        memory->used = memory->used - old_bytes + new_bytes;
    return resized;
}

// ---- edges

static uint32_t edge_home(const sam_index *index, uint32_t state, int32_t token) {
    uint64_t key = (uint64_t)state << 32 | (uint32_t)token;
    key = (key ^ key >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(key >> index->edge_shift);
}

// The place of edge (state, token) in the table, or the empty place where it belongs.
static sam_edge *edge_place(const sam_index *index, uint32_t state, int32_t token) {
    uint32_t mask = index->edge_capacity - 1;
    uint32_t i = edge_home(index, state, token);
    while (index->edges[i].target && (index->edges[i].state != state || index->edges[i].token != token))
        i = (i + 1) & mask;
    return &index->edges[i];
}

// Where the edge leads, 0 if there is none.
static uint32_t edge_target(const sam_index *index, uint32_t state, int32_t token) {
    const sam_state *s = &index->states[state];
    if (s->target && s->token == token)
        return s->target;
    if (s->more == SAM_NO_TOKEN)
        return 0;
    return edge_place(index, state, token)->target;
}

// Adds an edge that does not exist yet; the table has room for it.
static void edge_add(sam_index *index, uint32_t state, int32_t token, uint32_t target) {
    sam_state *s = &index->states[state];
    if (!s->target) {
        s->token = token;
        s->target = target;
        return;
    }
    sam_edge *edge = edge_place(index, state, token);
    *edge = (sam_edge){.state = state, .token = token, .target = target, .more = s->more};
    s->more = token;
    index->edge_count++;
}

static void edge_redirect(sam_index *index, uint32_t state, int32_t token, uint32_t target) {
    sam_state *s = &index->states[state];
    if (s->token == token)
        s->target = target;
    else
        edge_place(index, state, token)->target = target;
}

static uint32_t edges_of(const sam_index *index, uint32_t state) {
    uint32_t count = index->states[state].target != 0;
    for (int32_t c = index->states[state].more; c != SAM_NO_TOKEN; c = edge_place(index, state, c)->more)
        count++;
    return count;
}

// ---- capacity

static size_t state_bytes(const sam_index *index, uint32_t capacity) {
    return capacity * (sizeof(sam_state) + (index->rule == SAM_NEWEST ? sizeof(sam_path) : 0));
}

static bool reserve_states(sam_index *index, uint32_t more) {
    uint32_t old = index->state_capacity;
    uint32_t needed = index->state_count + more;
    if (needed <= old)
        return true;
    if (needed > SAM_MAX_STATES)
        return false;
    uint32_t capacity = old + old / 2 + 16;
    if (capacity < needed)
        capacity = needed;
    sam_state *states =
        sam_resize(index->memory, index->states, state_bytes(index, old), state_bytes(index, capacity));
    if (!states)
        return false;
    if (index->rule == SAM_NEWEST) {
        sam_path *paths = (sam_path *)(states + capacity);
        memmove(paths, states + old, old * sizeof(sam_path));
        index->paths = paths;
    }
    index->states = states;
    index->state_capacity = capacity;
    return true;
}

static bool reserve_edges(sam_index *index, uint32_t more) {
    uint32_t old = index->edge_capacity;
    uint64_t needed = (uint64_t)index->edge_count + more;
    if (needed <= old - old / 4)
        return true;
    uint32_t capacity = old ? old : 8;
    while (needed > capacity - capacity / 4) {
        if (capacity >= SAM_MAX_STATES)
            return false;
        capacity *= 2;
    }
    sam_edge *edges = sam_resize(index->memory, NULL, 0, capacity * sizeof(sam_edge));
    if (!edges)
        return false;
    memset(edges, 0, capacity * sizeof(sam_edge));
    sam_edge *from = index->edges;
    index->edges = edges;
    index->edge_capacity = capacity;
    index->edge_shift = 64;
    for (uint32_t size = capacity; size > 1; size /= 2)
        index->edge_shift--;
    for (uint32_t i = 0; i < old; i++)
        if (from[i].target)
            *edge_place(index, from[i].state, from[i].token) = from[i];
    sam_resize(index->memory, from, old * sizeof(sam_edge), 0);
    return true;
}

bool sam_index_init(sam_index *index, sam_memory *memory, sam_rule rule) {
    *index = (sam_index){.memory = memory, .rule = rule};
    if (!reserve_states(index, 1))
        return false;
    sam_index_clear(index);
    return true;
}

void sam_index_free(sam_index *index) {
    if (!index->memory)
        return;
    sam_resize(index->memory, index->states, state_bytes(index, index->state_capacity), 0);
    sam_resize(index->memory, index->edges, index->edge_capacity * sizeof(sam_edge), 0);
    *index = (sam_index){0};
}

void sam_index_clear(sam_index *index) {
    index->states[SAM_ROOT] = (sam_state){.link = SAM_NO_STATE, .more = SAM_NO_TOKEN};
    if (index->paths)
        index->paths[SAM_ROOT] = (sam_path){0};
    index->state_count = 1;
    index->edge_count = 0;
    if (index->edges)
        memset(index->edges, 0, index->edge_capacity * sizeof(sam_edge));
}

size_t sam_index_bytes(const sam_index *index) {
    return state_bytes(index, index->state_capacity) + index->edge_capacity * sizeof(sam_edge);
}

// ---- paths (SAM_NEWEST)

static bool is_tree_root(const sam_path *paths, uint32_t x) { return paths[x].above & SAM_HANGS; }

// The state that the path of a tree's root hangs from.
static uint32_t hangs_from(const sam_path *paths, uint32_t root) { return paths[root].above & ~SAM_HANGS; }

// Moves x one level up. `seen` is kept where the tree's root is.
static void rotate(sam_index *index, uint32_t x) {
    sam_path *paths = index->paths;
    uint32_t y = paths[x].above, z = paths[y].above;
    if (z & SAM_HANGS)
        index->states[x].seen = index->states[y].seen;
    else if (paths[z].left == y)
        paths[z].left = x;
    else
        paths[z].right = x;
    uint32_t moved;
    if (paths[y].left == x) {
        moved = paths[x].right;
        paths[x].right = y;
        paths[y].left = moved;
    } else {
        moved = paths[x].left;
        paths[x].left = y;
        paths[y].right = moved;
    }
    if (moved)
        paths[moved].above = y;
    paths[x].above = z;
    paths[y].above = x;
    index->memory->work++;
}

static void splay(sam_index *index, uint32_t x) {
    const sam_path *paths = index->paths;
    while (!is_tree_root(paths, x)) {
        uint32_t y = paths[x].above;
        if (!is_tree_root(paths, y)) {
            uint32_t z = paths[y].above;
            rotate(index, (paths[z].left == y) == (paths[y].left == x) ? y : x);
        }
        rotate(index, x);
    }
}

// ---- automaton

static uint32_t add_state(sam_index *index, uint32_t length, uint32_t link) {
    uint32_t state = index->state_count++;
    index->states[state] = (sam_state){.link = link, .length = length, .more = SAM_NO_TOKEN};
    if (index->paths)
        index->paths[state] = (sam_path){.above = SAM_HANGS | link};
    return state;
}

// Splits the strings that end with an edge from `p` by `token` off `q`, where those edges lead, and returns
// their state.
static uint32_t split(sam_index *index, uint32_t p, int32_t token, uint32_t q) {
    uint32_t clone = add_state(index, index->states[p].length + 1, index->states[q].link);
    index->states[clone].token = index->states[q].token;
    index->states[clone].target = index->states[q].target;
    for (int32_t c = index->states[q].more; c != SAM_NO_TOKEN;) {
        sam_edge edge = *edge_place(index, q, c);
        edge_add(index, clone, c, edge.target);
        c = edge.more;
    }
    index->states[q].link = clone;
    if (index->paths) { // the clone occurs where q does: it joins the path of q, right above it
        splay(index, q);
        uint32_t left = index->paths[q].left;
        index->paths[clone] = (sam_path){.above = q, .left = left};
        index->paths[q].left = clone;
        if (left)
            index->paths[left].above = clone;
    } else {
        index->states[clone].seen = index->states[q].seen;
    }
    while (p != SAM_NO_STATE && edge_target(index, p, token) == q) {
        edge_redirect(index, p, token, clone);
        p = index->states[p].link;
        index->memory->work++;
    }
    return clone;
}

bool sam_index_extend(sam_index *index, uint32_t last, int32_t token, uint32_t *next) {
    // Look first: which states lack an edge, where the walk ends, what must be split. Then reserve, then
    // change.
    uint32_t p = last, q, new_edges = 0;
    while (!(q = edge_target(index, p, token))) {
        new_edges += index->states[p].target != 0;
        index->memory->work++;
        p = index->states[p].link;
        if (p == SAM_NO_STATE)
            break;
    }
    bool must_split = q && index->states[q].length != index->states[p].length + 1;
    if (p == last && !must_split) {
        *next = q;
        return true;
    }
    // The walk may give q itself one more edge before it is copied, hence not edges_of(q) - 1.
    if (!reserve_states(index, 2) || !reserve_edges(index, new_edges + (must_split ? edges_of(index, q) : 0)))
        return false;
    if (p == last) {
        *next = split(index, p, token, q);
        return true;
    }
    uint32_t state = add_state(index, index->states[last].length + 1, SAM_ROOT);
    for (uint32_t s = last; s != p; s = index->states[s].link)
        edge_add(index, s, token, state);
    uint32_t link = !q ? SAM_ROOT : must_split ? split(index, p, token, q) : q;
    index->states[state].link = link;
    if (index->paths)
        index->paths[state].above = SAM_HANGS | link;
    *next = state;
    return true;
}

void sam_index_mark(sam_index *index, uint32_t state, uint32_t occurrence) {
    sam_state *states = index->states;
    if (state == SAM_ROOT)
        return;
    if (index->rule == SAM_OLDEST) {
        for (; state != SAM_ROOT && !states[state].seen; state = states[state].link) {
            states[state].seen = occurrence;
            index->memory->work++;
        }
        return;
    }
    sam_path *paths = index->paths;
    for (uint32_t lower = 0, s = state; s; lower = s, s = hangs_from(paths, s)) {
        splay(index, s);
        uint32_t cut = paths[s].right;
        if (cut) { // what is longer keeps its mark and becomes a path of its own
            states[cut].seen = states[s].seen;
            paths[cut].above = SAM_HANGS | s;
        }
        paths[s].right = lower;
        if (lower)
            paths[lower].above = s;
        index->memory->work++;
    }
    splay(index, state);
    states[state].seen = occurrence;
}

uint32_t sam_index_match(sam_index *index, uint32_t state, uint32_t *length) {
    while (state != SAM_ROOT) {
        index->memory->work++;
        if (index->paths)
            splay(index, state);
        if (index->states[state].seen) {
            *length = index->states[state].length;
            return index->states[state].seen;
        }
        // A whole path is unmarked if one of its states is.
        state = index->paths ? hangs_from(index->paths, state) : index->states[state].link;
    }
    *length = 0;
    return 0;
}

// ---- validation

static bool is_ancestor(const sam_index *index, uint32_t ancestor, uint32_t state) {
    while (index->states[state].length > index->states[ancestor].length)
        state = index->states[state].link;
    return state == ancestor;
}

static bool validate_edge(const sam_index *index, uint32_t s, int32_t token, uint32_t target,
                          const char **reason) {
    SAM_REQUIRE(token >= 0, "an edge has a negative label");
    SAM_REQUIRE(target > SAM_ROOT && target < index->state_count, "an edge leads to no state");
    SAM_REQUIRE(index->states[target].length > index->states[s].length,
                "an edge leads to a string that is not longer");
    uint32_t link = index->states[s].link;
    if (link == SAM_NO_STATE)
        return true;
    uint32_t shorter = edge_target(index, link, token);
    SAM_REQUIRE(shorter, "a state has an edge that its link lacks");
    SAM_REQUIRE(is_ancestor(index, shorter, target),
                "edges of a state and of its link lead to unrelated states");
    return true;
}

static bool validate_states(const sam_index *index, const char **reason) {
    SAM_REQUIRE(index->state_count >= 1 && index->state_count <= index->state_capacity,
                "more states than room");
    SAM_REQUIRE(index->states[SAM_ROOT].link == SAM_NO_STATE && index->states[SAM_ROOT].length == 0,
                "the root is damaged");
    for (uint32_t s = 1; s < index->state_count; s++) {
        uint32_t link = index->states[s].link;
        SAM_REQUIRE(link < index->state_count, "a link leads to no state");
        SAM_REQUIRE(index->states[link].length < index->states[s].length,
                    "a link leads to a string that is not shorter");
    }
    uint64_t listed = 0;
    for (uint32_t s = 0; s < index->state_count; s++) {
        const sam_state *state = &index->states[s];
        SAM_REQUIRE(state->target || state->more == SAM_NO_TOKEN,
                    "a state has table edges but no first edge");
        if (state->target && !validate_edge(index, s, state->token, state->target, reason))
            return false;
        for (int32_t c = state->more; c != SAM_NO_TOKEN;) {
            const sam_edge *edge = edge_place(index, s, c);
            SAM_REQUIRE(edge->target, "an edge list names an edge that the table lacks");
            SAM_REQUIRE(c != state->token, "a state has two edges with one label");
            SAM_REQUIRE(++listed <= index->edge_count, "edge lists are longer than the table");
            if (!validate_edge(index, s, c, edge->target, reason))
                return false;
            c = edge->more;
        }
    }
    SAM_REQUIRE(listed == index->edge_count, "the table holds edges that no state lists");
    uint64_t stored = 0;
    for (uint32_t i = 0; i < index->edge_capacity; i++)
        stored += index->edges[i].target != 0;
    SAM_REQUIRE(stored == index->edge_count, "the table's count is wrong");
    return true;
}

// The state before s in the order of its splay tree (0: s is the topmost of its path).
static uint32_t path_before(const sam_path *paths, uint32_t s) {
    uint32_t x = paths[s].left;
    if (x) {
        while (paths[x].right)
            x = paths[x].right;
        return x;
    }
    for (x = s; !is_tree_root(paths, x); x = paths[x].above)
        if (paths[paths[x].above].right == x)
            return paths[x].above;
    return 0;
}

static bool validate_paths(const sam_index *index, const char **reason) {
    const sam_path *paths = index->paths;
    for (uint32_t s = 1; s < index->state_count; s++) {
        SAM_REQUIRE(hangs_from(paths, s) < index->state_count && paths[s].left < index->state_count &&
                        paths[s].right < index->state_count,
                    "a path leads to no state");
        SAM_REQUIRE(!paths[s].left || paths[paths[s].left].above == s,
                    "a left child does not know its parent");
        SAM_REQUIRE(!paths[s].right || paths[paths[s].right].above == s,
                    "a right child does not know its parent");
        uint32_t above = paths[s].above;
        SAM_REQUIRE(above & SAM_HANGS || paths[above].left == s || paths[above].right == s,
                    "a parent does not know its child");
        uint32_t root = s;
        while (!is_tree_root(paths, root))
            root = paths[root].above;
        uint32_t before = path_before(paths, s);
        SAM_REQUIRE(index->states[s].link == (before ? before : hangs_from(paths, root)),
                    "a path is not a piece of a link path");
    }
    return true;
}

bool sam_index_validate(sam_index *index, const char **reason) {
    if (!validate_states(index, reason) || (index->paths && !validate_paths(index, reason)))
        return false;
    for (uint32_t s = 1; s < index->state_count; s++) {
        uint32_t root[2] = {s, index->states[s].link};
        if (root[1] == SAM_ROOT)
            continue;
        for (int i = 0; i < 2; i++)
            while (index->paths && !is_tree_root(index->paths, root[i]))
                root[i] = index->paths[root[i]].above;
        uint32_t seen = index->states[root[0]].seen, of_link = index->states[root[1]].seen;
        SAM_REQUIRE(!seen || of_link, "a marked state has an unmarked link");
        SAM_REQUIRE(!seen || (index->rule == SAM_OLDEST ? of_link <= seen : of_link >= seen),
                    "marks are out of order");
    }
    return true;
}
