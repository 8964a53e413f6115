// SPDX-License-Identifier: Apache-2.0
//
// Checks the automaton while allocations fail, and its validation; test_twin.py compares what it holds.

#include "failing_memory.h"

#include "sam.h"

#include <string.h>

#include "check.h"

// ---- texts and an index over them

enum { TEXTS = 4, MOST = 1000 };

typedef struct {
    sam_memory memory;
    sam_index index;
    int32_t tokens[TEXTS][MOST];
    sam_text text[TEXTS];
    sam_text *texts[TEXTS];
    sam_cursor cursor[TEXTS];
    uint32_t count; // texts that have begun
    uint32_t size;  // tokens appended
    bool failed;    // whether an allocation failed
} world;

static void begin(world *w, sam_kind kind) {
    memset(w, 0, sizeof *w);
    w->memory.limit = SIZE_MAX;
    for (uint32_t t = 0; t < TEXTS; t++) {
        w->text[t] = (sam_text){w->tokens[t], 0, MOST};
        w->texts[t] = &w->text[t];
        w->cursor[t] = SAM_START;
    }
    w->count = 1;
    CHECK(sam_index_init(&w->index, &w->memory, kind, w->texts));
}

static void end(world *w) {
    CHECK(w->memory.used == sam_index_bytes(&w->index));
    sam_index_free(&w->index);
    sam_index_free(&w->index); // zeroed: allowed
    CHECK(w->memory.used == 0 && live_blocks == 0);
}

static void check_sound(const world *w) {
    const char *reason = NULL;
    if (!sam_index_validate(&w->index, &reason)) {
        fprintf(stderr, "after %u tokens: %s\n", w->size, reason);
        exit(1);
    }
}

// A hash of the index's contents, independent of addresses and capacities.
static uint64_t contents(const sam_index *index) {
    uint64_t hash = hash_bytes(7, index->nodes, index->node_count * sizeof(sam_node)), edges = 0;
    if (index->counts)
        hash = hash_bytes(hash, index->counts, index->node_count * sizeof(sam_count));
    hash = hash_bytes(hash, index->links, index->chunk_count * SAM_CHUNK * sizeof(uint32_t));
    hash = hash_bytes(hash, index->chunks, index->chunk_count * sizeof(sam_chunk));
    for (uint32_t t = 0; t <= index->table_mask; t++) {
        const sam_edge *table = index->tables ? index->tables[t].edges : index->edges;
        bool again = index->tables && t >> index->tables[t].bits;
        for (uint32_t i = 0; i < index->table_size && !again; i++)
            if (table[i].target != SAM_NONE)
                edges += hash_bytes(3, &table[i], sizeof(sam_edge));
    }
    hash = hash_bytes(hash, &edges, sizeof edges);
    hash = hash_bytes(hash, &index->appended, sizeof index->appended);
    return hash_bytes(hash, &index->frequent, sizeof index->frequent);
}

// Appends a token to a text. Returns whether it could; if not, nothing has changed.
static bool try_append(world *w, uint32_t t, int32_t token) {
    sam_text *text = &w->text[t];
    text->tokens[text->size++] = token;
    sam_cursor before = w->cursor[t];
    uint64_t hash = fail_at < 0 ? 0 : contents(&w->index);
    if (sam_index_append(&w->index, &w->cursor[t], t, text->size - 1)) {
        w->size++;
        return true;
    }
    CHECK(memcmp(&before, &w->cursor[t], sizeof before) == 0);
    CHECK((fail_at < 0 || contents(&w->index) == hash) && w->memory.used == sam_index_bytes(&w->index));
    check_sound(w);
    text->size--;
    return false;
}

// Appends a token. If an allocation fails, lets the next ones succeed and appends it again.
static void append(world *w, uint32_t t, int32_t token) {
    if (try_append(w, t, token))
        return;
    CHECK(fail_at >= 0);
    w->failed = true;
    fail_at = -1;
    CHECK(try_append(w, t, token));
}

// Begins one more text with the tokens of text `from`.
static void branch(world *w, uint32_t from) {
    uint32_t t = w->count++;
    uint64_t hash = contents(&w->index);
    if (!sam_index_branch(&w->index, &w->cursor[from], &w->cursor[t])) {
        CHECK(fail_at >= 0 && contents(&w->index) == hash);
        w->failed = true;
        fail_at = -1;
        CHECK(sam_index_branch(&w->index, &w->cursor[from], &w->cursor[t]));
    }
    memcpy(w->tokens[t], w->tokens[from], w->text[from].size * sizeof(int32_t));
    w->text[t].size = w->text[from].size;
}

// ---- the automaton

// A token that lets texts repeat themselves and each other.
static int32_t likely_token(const world *w, uint32_t t, uint32_t alphabet) {
    const sam_text *from = &w->text[draw(w->count)], *own = &w->text[t];
    if (!own->size || !from->size || draw(6) == 0)
        return (int32_t)draw(alphabet);
    // a token that followed the text's last token elsewhere
    for (uint32_t i = draw(from->size), n = 0; n < 20 && i + 1 < from->size; i++, n++)
        if (from->tokens[i] == own->tokens[own->size - 1])
            return from->tokens[i + 1];
    return from->tokens[draw(from->size)];
}

static void grow(world *w, uint32_t alphabet, uint32_t size) {
    for (uint32_t i = 0; i < size; i++) {
        if (w->count < TEXTS && draw(size) < 4)
            branch(w, draw(w->count));
        else if (w->count < TEXTS && draw(size) < 2)
            w->count++; // a text that shares nothing
        uint32_t t = draw(w->count);
        if (w->text[t].size < 700)
            append(w, t, likely_token(w, t, alphabet));
        if (i % 150 == 149 || i == size - 1 || w->size < 80)
            check_sound(w);
    }
}

// The validation notices all damage that it promises to notice.
static void test_validation_notices_damage(void) {
    static world w;
    begin(&w, SAM_COUNTED);
    random_state = 4;
    grow(&w, 60, 1500);
    sam_index *index = &w.index;
    CHECK(index->tables && index->table_mask > 3);
    uint32_t same = 0, deep = 0; // a number whose table is at a lower number too; a node with a long string
    while (same <= index->table_mask && same >> index->tables[same].bits == 0)
        same++;
    for (uint32_t i = 1; i < index->node_count; i++)
        if (index->nodes[i].length > index->nodes[deep].length && index->nodes[i].length < SAM_MAX_MATCH)
            deep = i;
    sam_node *node = &index->nodes[deep];
    CHECK(same <= index->table_mask && node->length > 3 && node->place != SAM_NONE);
    const char *reason;
#define NOTICES(field, value)                                                                                \
    do {                                                                                                     \
        uint32_t good = field;                                                                               \
        field = value;                                                                                       \
        CHECK(!sam_index_validate(index, &reason));                                                          \
        field = (__typeof__(field))good;                                                                     \
        CHECK(sam_index_validate(index, &reason));                                                           \
    } while (0)
    NOTICES(node->link, deep);
    NOTICES(node->link, index->node_count + 9);
    NOTICES(node->length, 0);
    NOTICES(node->target, SAM_ROOT);
    NOTICES(node->target, SAM_NODE | index->node_count);
    NOTICES(node->place, index->chunk_count * SAM_CHUNK);
    NOTICES(index->nodes[node->link].place, SAM_NONE);
    NOTICES(index->nodes[0].link, 0);
    NOTICES(index->counts[deep].followed, 6000);
    NOTICES(index->counts[deep].best_count, 6000);
    NOTICES(index->counts[deep].occurrences, 0);
    NOTICES(index->links[index->chunk_count * SAM_CHUNK - SAM_CHUNK], index->node_count);
    NOTICES(index->edge_count, index->edge_count - 1);
    NOTICES(index->node_count, index->node_capacity + 1);
    NOTICES(index->tables[0].count, 0);
    NOTICES(index->tables[0].bits, 9);
    NOTICES(index->tables[same].bits, 0);
    NOTICES(index->fullest, 0);
    NOTICES(index->edge_capacity, index->edge_capacity + index->table_size);
    NOTICES(index->table_size, SAM_TABLE + 1);
#undef NOTICES
    end(&w);
}

static void test_append_is_all_or_nothing(void) {
    static world w;
    for (int kind = SAM_OLDEST; kind <= SAM_COUNTED; kind++)
        for (long long at = 2;; at++) { // allocations 0 and 1 create the root
            random_state = 11;
            allocations = 0;
            fail_at = at;
            keep_failing = at % 2;
            begin(&w, (sam_kind)kind);
            grow(&w, 3, 400);
            bool failed = w.failed;
            end(&w);
            if (!failed) {
                CHECK(at > 15); // enough allocations were made to fail
                break;
            }
        }
    fail_at = 0;
    allocations = 0;
    sam_memory memory = {.limit = SIZE_MAX};
    sam_index index;
    CHECK(!sam_index_init(&index, &memory, SAM_COUNTED, NULL) && memory.used == 0 && live_blocks == 0);
    fail_at = -1;
    memory.limit = sizeof(sam_node);
    CHECK(!sam_index_init(&index, &memory, SAM_COUNTED, NULL) && memory.used == 0 && live_blocks == 0);
}

// ---- memory

static void *resize(sam_memory *memory, unsigned char *block, size_t old, size_t new) {
    size_t used = memory->used;
    for (size_t i = 0; i < old && i < new; i += 997)
        block[i] = (unsigned char)(i * 7);
    unsigned char *resized = sam_resize(memory, block, old, new);
    bool done = resized || !new;
    CHECK(memory->used == (done ? used - old + new : used));
    for (size_t i = 0; i < old && i < new; i += 997)
        CHECK((done ? resized : block)[i] == (unsigned char)(i * 7));
    return resized;
}

// Small and large blocks are resized, in place or not; each allocation fails in turn, also when a block moves.
static void test_blocks(void) {
    const size_t large = SAM_LARGE, reserved = 64 * large;
    const size_t sizes[] = {100,          large,         large + 1, 9 * large,        reserved - 1,
                            reserved + 1, 20 * reserved, 5 * large, 2 * reserved + 5, 3 * reserved,
                            reserved / 2, 1000,          7 * large, 7 * large + 1};
    bool failed = true;
    for (long long at = -1; failed; at++) {
        sam_memory memory = {.limit = SIZE_MAX};
        unsigned char *block = NULL;
        size_t size = 0;
        allocations = 0;
        fail_at = at;
        keep_failing = at % 2;
        failed = at < 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *resized = resize(&memory, block, size, sizes[i]);
            if (!resized) {
                CHECK(fail_at >= 0);
                failed = true;
                fail_at = -1;
                resized = resize(&memory, block, size, sizes[i]);
            }
            block = resized;
            size = sizes[i];
        }
        failed = failed || allocations > at;
        fail_at = -1;
        resize(&memory, block, size, 0);
        CHECK(memory.used == 0 && live_blocks == 0);
    }
}

static void test_freeing_in_portions(void) {
    static world w;
    for (uint32_t turn = 0; turn < 9; turn++) {
        random_state = turn;
        begin(&w, (sam_kind)(turn % 3));
        grow(&w, 60, turn < 3 ? 50 : 2600);
        CHECK(turn < 3 || (w.index.tables && w.memory.used > 2 * SAM_LARGE));
        size_t most = 1 + draw(3000), used, directory = (w.index.table_mask + 1) * sizeof(sam_table);
        bool done;
        do {
            used = w.memory.used;
            done = sam_index_free_some(&w.index, most);
            CHECK(w.memory.used == (done ? 0 : sam_index_bytes(&w.index)));
            CHECK(used - w.memory.used <= most + SAM_LARGE + directory && w.memory.used < used);
        } while (!done);
        CHECK(!w.index.memory && live_blocks == 0);
    }
}

// ---- tables of edges

// A node with more edges than a table holds is split; each allocation fails in turn.
static void test_split_of_a_node_with_many_edges(void) {
    enum { EDGES = 300 };
    static world w;
    bool failed = true;
    for (long long at = 0; failed; at++) {
        begin(&w, SAM_COUNTED);
        for (int32_t i = 0; i < EDGES; i++) {
            CHECK(try_append(&w, 0, 1) && try_append(&w, 0, 2));
            CHECK(try_append(&w, 0, 9 + i));
        }
        CHECK(try_append(&w, 0, 3));
        uint32_t nodes = w.index.node_count;
        allocations = 0;
        fail_at = at;
        keep_failing = at % 2;
        append(&w, 0, 2);
        failed = w.failed;
        fail_at = -1;
        CHECK(w.index.node_count == nodes + 1 && w.index.edge_count > 2 * EDGES && w.index.table_mask > 16);
        check_sound(&w);
        CHECK(at < 9 || failed || allocations > 9);
        end(&w);
    }
}

// The hashes of edges agree in so many bits that no directory can separate them. The index is then merely full.
static void test_edges_of_one_hash(void) {
    static world w;
    begin(&w, SAM_NEWEST);
    bool full = false;
    for (int32_t token = 1; w.size < 2 * SAM_TABLE && !full; token++) {
        uint64_t key = (uint64_t)token * UINT64_C(0x9E3779B97F4A7C15) >> 32; // key of an edge of the root
        if (key % (1u << SAM_TABLE_BITS))
            continue;
        full = !try_append(&w, 0, token);
    }
    CHECK(full && w.size > SAM_TABLE / 4 && w.index.table_mask == (1u << SAM_TABLE_BITS) - 1);
    check_sound(&w);
    CHECK(try_append(&w, 0, w.tokens[0][0])); // an edge outside that table
    check_sound(&w);
    end(&w);
}

int main(void) {
    test_large = 1 << 14;
    test_table = 32;
    test_append_is_all_or_nothing();
    test_validation_notices_damage();
    test_blocks();
    test_freeing_in_portions();
    test_split_of_a_node_with_many_edges();
    test_edges_of_one_hash();
    return 0;
}
