// SPDX-License-Identifier: Apache-2.0
//
// Checks the automaton against brute force, also while allocations fail.

#include "failing_memory.h"

#include "sam.h"

#include <string.h>

#include "check.h"

// ---- texts and an index over them

enum { TEXTS = 4, MOST = 700, TOKENS = 64 };

typedef struct {
    uint32_t text, position;
    bool older;
} token_place;

typedef struct {
    sam_memory memory;
    sam_index index;
    int32_t tokens[TEXTS][MOST];
    sam_text text[TEXTS];
    sam_text *texts[TEXTS];
    sam_cursor cursor[TEXTS];
    uint32_t count;                     // texts that have begun
    token_place appended[TEXTS * MOST]; // in order
    uint32_t size;
    bool failed; // an allocation did
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

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// A number that depends on all that an index holds, but not on where or in how much room.
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
    return hash_bytes(hash, index->frequent, index->frequent_count * sizeof(sam_frequent));
}

// Appends a token. A failed allocation must change nothing; then there is memory again.
static void append(world *w, uint32_t t, int32_t token) {
    sam_text *text = &w->text[t];
    text->tokens[text->size++] = token;
    sam_cursor before = w->cursor[t];
    uint64_t hash = fail_at < 0 ? 0 : contents(&w->index);
    if (!sam_index_append(&w->index, &w->cursor[t], t, text->size - 1)) {
        CHECK(fail_at >= 0);
        w->failed = true;
        CHECK(memcmp(&before, &w->cursor[t], sizeof before) == 0);
        CHECK(contents(&w->index) == hash && w->memory.used == sam_index_bytes(&w->index));
        check_sound(w);
        fail_at = -1;
        CHECK(sam_index_append(&w->index, &w->cursor[t], t, text->size - 1));
    }
    w->appended[w->size++] = (token_place){t, text->size - 1, before.older};
}

// Lets one more text begin as text `from`.
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

// ---- brute force

// Tokens that the ends of two strings have in common.
static uint32_t agree(const int32_t *a, uint32_t a_size, const int32_t *b, uint32_t b_size) {
    uint32_t n = 0;
    while (n < a_size && n < b_size && a[a_size - 1 - n] == b[b_size - 1 - n])
        n++;
    return n;
}

// The state of a string, by its edges; SAM_NONE if it does not stand in the texts.
static sam_state walk(const sam_index *index, const int32_t *tokens, uint32_t size) {
    sam_state s = SAM_ROOT;
    for (uint32_t i = 0; i < size && s != SAM_NONE; i++)
        s = sam_child(index, s, tokens[i]);
    return s;
}

static void check_place(const world *w, uint32_t place, token_place expected) {
    const sam_chunk *chunk = &w->index.chunks[place / SAM_CHUNK];
    uint32_t left;
    CHECK(chunk->text == expected.text && chunk->first + place % SAM_CHUNK == expected.position);
    CHECK(*sam_place_token(&w->index, place, &left) == w->tokens[expected.text][expected.position]);
    CHECK(left == w->text[expected.text].size - expected.position);
}

// What followed the strings of a state: `counts` by token.
static void check_candidates(const world *w, sam_state state, const uint32_t *counts, int32_t best,
                             int32_t newest, uint32_t different) {
    int32_t tokens[TOKENS], fewer[TOKENS];
    uint32_t found[TOKENS], fewer_found[TOKENS];
    CHECK(sam_candidates(&w->index, state, TOKENS, tokens, found) == different);
    CHECK(!different || tokens[0] == best);
    CHECK(different < 2 || best == newest || tokens[1] == newest);
    for (uint32_t i = 0; i < different; i++) {
        CHECK(found[i] == counts[tokens[i]]);
        for (uint32_t j = 0; j < i; j++)
            CHECK(tokens[j] != tokens[i]);
    }
    uint32_t most = draw(different + 2);
    CHECK(sam_candidates(&w->index, state, most, fewer, fewer_found) ==
          (most < different ? most : different));
    for (uint32_t i = 0; i < most && i < different; i++)
        CHECK(fewer[i] == tokens[i] && fewer_found[i] == found[i]);
}

// All about the suffixes of one text.
static void check_text(const world *w, uint32_t t) {
    static uint32_t before[TEXTS * MOST], after[TEXTS * MOST]; // the place's token: common ends
    const sam_index *index = &w->index;
    const int32_t *own = w->tokens[t];
    uint32_t size = w->text[t].size, longest = 0;
    for (uint32_t i = 0; i < w->size; i++) {
        const int32_t *other = w->tokens[w->appended[i].text];
        uint32_t position = w->appended[i].position;
        before[i] = agree(other, position, own, size);
        after[i] = agree(other, position + 1, own, size);
    }
    bool oldest = index->kind == SAM_OLDEST, counted = index->kind == SAM_COUNTED;
    uint32_t most = oldest ? size : SAM_MAX_MATCH + 1;
    sam_state s = sam_resolve(index, w->cursor[t].last);
    CHECK(w->cursor[t].length == size && walk(index, own, size) == s && sam_length(index, s) == size);
    for (uint32_t length = size; length; length--) {
        if (sam_node_of(index, sam_link(index, s))->length >= length)
            s = sam_link(index, s);
        if (length > most)
            continue;
        uint32_t counts[TOKENS] = {0}, occurrences = 0, followed = 0, different = 0;
        token_place place = {0};
        int32_t best = 0;
        for (uint32_t i = 0; i < w->size; i++) {
            occurrences += after[i] >= length;
            if (before[i] < length)
                continue;
            token_place at = w->appended[i];
            bool same = at.text == place.text;
            bool takes = !followed++ || (oldest ? at.older && !same : !at.older || same);
            place = takes ? at : place;
            int32_t token = w->tokens[at.text][at.position];
            different += !counts[token]++;
            best = counts[token] + takes > counts[best] ? token : best;
        }
        if (counted && s & SAM_NODE)
            CHECK(index->counts[s & ~SAM_NODE].occurrences == occurrences);
        else if (counted)
            CHECK(occurrences == 1);
        if (!oldest && length > SAM_MAX_MATCH)
            continue;
        if (followed && !longest)
            longest = length;
        if (length % 8 == 1)
            CHECK(walk(index, own + size - length, length) == s);
        sam_following f;
        sam_follow(index, s, &f);
        CHECK(!f.followed == !followed);
        if (!followed)
            continue;
        check_place(w, f.place, place);
        CHECK(f.newest == w->tokens[place.text][place.position]);
        if (!counted)
            continue;
        CHECK(f.followed == followed && f.best == best && f.best_count == counts[best]);
        check_candidates(w, s, counts, best, f.newest, different);
    }
    uint32_t length;
    s = sam_match(index, &w->cursor[t], &length);
    CHECK(length == longest && s == walk(index, own + size - length, length));
}

static void check_frequent(const world *w) {
    uint32_t counts[TOKENS] = {0};
    int32_t latest[TOKENS] = {0}; // the larger, the newer
    for (uint32_t i = 0; i < w->size; i++) {
        token_place at = w->appended[i];
        counts[w->tokens[at.text][at.position]]++;
        latest[w->tokens[at.text][at.position]] = at.older ? -1 - (int32_t)i : (int32_t)i;
    }
    for (uint32_t rank = 0; rank < SAM_FREQUENT; rank++) {
        uint32_t best = 0;
        for (uint32_t c = 1; c < TOKENS; c++)
            if (counts[c] > counts[best] || (counts[c] == counts[best] && latest[c] > latest[best]))
                best = c;
        CHECK((rank < w->index.frequent_count) == (counts[best] > 0));
        if (!counts[best])
            break;
        CHECK(w->index.frequent[rank].token == (int32_t)best &&
              w->index.frequent[rank].count == counts[best]);
        counts[best] = 0;
    }
}

// The longest suffix of a string, of at most SAM_MAX_MATCH tokens, that stands in the texts; followed: with a token behind it.
static uint32_t longest_suffix(const world *w, const int32_t *tokens, uint32_t size, bool followed) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < w->size; i++) {
        uint32_t end = w->appended[i].position + !followed,
                 n = agree(w->tokens[w->appended[i].text], end, tokens, size);
        longest = n > longest ? n : longest;
    }
    return smaller(longest, SAM_MAX_MATCH);
}

// Matches another text, made of pieces of the texts, in the finished index.
static void check_advance(const world *w, uint32_t alphabet) {
    int32_t text[3 * SAM_MAX_MATCH];
    uint32_t length = 0, size = 0;
    sam_state state = SAM_ROOT;
    while (size < 3 * SAM_MAX_MATCH) {
        const sam_text *from = &w->text[draw(w->count)];
        uint32_t at = draw(from->size + 1), piece = draw(SAM_MAX_MATCH + 10);
        for (uint32_t i = 0; i <= piece && size < 3 * SAM_MAX_MATCH; i++) {
            bool copied = i < piece && at + i < from->size;
            text[size++] = copied ? from->tokens[at + i] : (int32_t)draw(alphabet + 1);
            sam_advance(&w->index, &state, &length, text[size - 1]);
            CHECK(length == longest_suffix(w, text, size, false) &&
                  state == walk(&w->index, text + size - length, length));
            if (!copied)
                break;
        }
    }
}

// Searches for the matches of the texts as they might go on, in the finished index.
static void check_search(const world *w, uint32_t alphabet) {
    enum { AHEAD = 12 };
    for (uint32_t t = 0; t < w->count; t++) {
        int32_t text[MOST + AHEAD];
        const sam_text *from = &w->text[draw(w->count)];
        uint32_t size = w->text[t].size, at = draw(from->size + 1), ahead = 1 + draw(AHEAD);
        memcpy(text, w->tokens[t], size * sizeof *text);
        while (size && at < from->size && from->tokens[at] != text[size - 1])
            at++; // to where it may go on as that text did
        for (uint32_t i = 1; i <= ahead; i++) {
            bool copied = at + i < from->size && draw(8);
            text[size + i - 1] = copied ? from->tokens[at + i] : (int32_t)draw(alphabet + 1);
        }
        sam_search search;
        sam_search_begin(&search, &w->index, &w->cursor[t], text + size, ahead);
        while (sam_search_step(&search))
            ;
        size += ahead;
        uint32_t longest = longest_suffix(w, text, size, true);
        CHECK(search.length == longest && search.state == walk(&w->index, text + size - longest, longest));
    }
}

static void check_all(const world *w) {
    check_sound(w);
    for (uint32_t t = 0; t < w->count; t++)
        check_text(w, t);
    if (w->index.kind == SAM_COUNTED)
        check_frequent(w);
}

// ---- the automaton

// A token that lets texts repeat themselves and each other.
static int32_t likely_token(const world *w, uint32_t t, uint32_t alphabet) {
    const sam_text *from = &w->text[draw(w->count)], *own = &w->text[t];
    if (!own->size || !from->size || draw(6) == 0)
        return (int32_t)draw(alphabet);
    // what followed the text's last token elsewhere
    for (uint32_t i = draw(from->size), n = 0; n < 20 && i + 1 < from->size; i++, n++)
        if (from->tokens[i] == own->tokens[own->size - 1])
            return from->tokens[i + 1];
    return from->tokens[draw(from->size)];
}

static void grow(world *w, uint32_t alphabet, uint32_t size, uint32_t every) {
    for (uint32_t i = 0; i < size; i++) {
        if (w->count < TEXTS && draw(size) < 4)
            branch(w, draw(w->count));
        else if (w->count < TEXTS && draw(size) < 2)
            w->count++; // one that shares nothing
        uint32_t t = draw(w->count);
        if (w->text[t].size < MOST)
            append(w, t, likely_token(w, t, alphabet));
        if (i % every == every - 1 || i == size - 1)
            check_all(w);
        else if (w->size < 80)
            check_sound(w);
    }
}

static void test_texts_in_any_interleaving(uint32_t turns) {
    static world w;
    for (uint32_t turn = 0; turn < turns; turn++) {
        random_state = turn;
        bool large = turn % 10 == 9;
        uint32_t alphabet = large ? 40 : 1 + draw(4);
        begin(&w, (sam_kind)(turn % 3));
        grow(&w, alphabet, large ? 600 : 1 + draw(60), large ? 150 : 5);
        check_advance(&w, alphabet);
        for (uint32_t i = 0; i < 8; i++)
            check_search(&w, alphabet);
        end(&w);
    }
}

// Texts that are older than what is there already: in turn, while another one grows.
static void test_older_texts(uint32_t turns) {
    static world w;
    for (uint32_t turn = 0; turn < turns; turn++) {
        random_state = turn;
        uint32_t alphabet = turn % 10 ? 1 + draw(4) : 40, shared = draw(2) * draw(20);
        begin(&w, (sam_kind)(turn % 3));
        for (uint32_t i = draw(30) + shared; i; i--)
            append(&w, 0, likely_token(&w, 0, alphabet));
        for (uint32_t t = 1; t < TEXTS; t++) {
            if (shared)
                branch(&w, 0);
            else
                w.count++;
            w.cursor[t].older = true;
            for (uint32_t i = draw(40); i; i--)
                append(&w, draw(5) ? t : 0, likely_token(&w, t, alphabet));
            check_all(&w);
        }
        end(&w);
    }
}

// Runs of a short period whose length is about SAM_MAX_MATCH or more, in several texts, with breaks.
static void test_runs_at_the_longest_match(void) {
    static world w;
    static const uint32_t lengths[] = {127, 128, 129, 130, 131, 257, 300};
    for (uint32_t period = 1; period <= 3; period++)
        for (int kind = SAM_OLDEST; kind <= SAM_COUNTED; kind++)
            for (uint32_t turn = 0; turn < 7; turn++) {
                begin(&w, (sam_kind)kind);
                random_state = turn + 1;
                uint32_t size = lengths[turn], next = lengths[(turn + 3) % 7];
                for (uint32_t i = 0; i < size; i++) {
                    append(&w, 0, (int32_t)(i % period));
                    if (i + 4 > SAM_MAX_MATCH && i < SAM_MAX_MATCH + 5)
                        check_all(&w);
                }
                branch(&w, 0);
                w.count++;
                check_all(&w);
                append(&w, 0, 7);
                append(&w, 1, draw(2) ? 7 : 8);
                for (uint32_t i = 0; i < next; i++) {
                    append(&w, i % 3, (int32_t)((i / 3 + turn) % period));
                    if (i % 64 == 63) {
                        check_all(&w);
                        check_search(&w, period);
                    }
                }
                for (uint32_t t = 0; t < 3; t++)
                    append(&w, t, 9);
                CHECK(w.memory.work <= (SAM_MAX_MATCH + 4) * (uint64_t)w.size);
                check_advance(&w, period);
                check_search(&w, period);
                end(&w);
            }
}

// Everything that the validation promises to notice.
static void test_validation_notices_damage(void) {
    static world w;
    begin(&w, SAM_COUNTED);
    random_state = 4;
    grow(&w, 60, 1500, 1500);
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
        for (long long at = 2;; at++) { // those before are the root's
            random_state = 11;
            allocations = 0;
            fail_at = at;
            fail_on = at % 2;
            begin(&w, (sam_kind)kind);
            grow(&w, 3, 400, 200);
            bool failed = w.failed;
            end(&w);
            if (!failed) {
                CHECK(at > 15);
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

// A block is resized small and large, in place and not; each allocation fails in turn, moving too.
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
        fail_on = at % 2;
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
        grow(&w, 60, turn < 3 ? 50 : 2600, 3000);
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

// Appends a token to the only text of a world that is longer than a world's. Returns whether it could.
static bool append_to_long(world *w, int32_t *tokens, int32_t token) {
    sam_text *text = &w->text[0];
    text->tokens = tokens;
    tokens[text->size++] = token;
    sam_cursor before = w->cursor[0];
    uint64_t hash = fail_at < 0 ? 0 : contents(&w->index);
    if (sam_index_append(&w->index, &w->cursor[0], 0, text->size - 1))
        return true;
    CHECK(memcmp(&before, &w->cursor[0], sizeof before) == 0);
    CHECK((fail_at < 0 || contents(&w->index) == hash) && w->memory.used == sam_index_bytes(&w->index));
    text->size--;
    return false;
}

// A node is split that has more edges than a table; each allocation fails in turn.
static void test_split_of_a_node_with_many_edges(void) {
    enum { EDGES = 300 };
    static world w;
    static int32_t tokens[3 * EDGES + 9];
    bool failed = true;
    for (long long at = 0; failed; at++) {
        begin(&w, SAM_COUNTED);
        for (int32_t i = 0; i < EDGES; i++) {
            CHECK(append_to_long(&w, tokens, 1) && append_to_long(&w, tokens, 2));
            CHECK(append_to_long(&w, tokens, 9 + i));
        }
        CHECK(append_to_long(&w, tokens, 3));
        uint32_t nodes = w.index.node_count;
        allocations = 0;
        fail_at = at;
        fail_on = at % 2;
        failed = !append_to_long(&w, tokens, 2);
        fail_at = -1;
        check_sound(&w);
        CHECK(!failed || append_to_long(&w, tokens, 2));
        CHECK(w.index.node_count == nodes + 1 && w.index.edge_count > 2 * EDGES && w.index.table_mask > 16);
        check_sound(&w);
        CHECK(at < 9 || failed || allocations > 9);
        end(&w);
    }
}

// Edges whose hashes agree in so many bits that no directory tells them apart: the index is full, no more.
static void test_edges_of_one_hash(void) {
    static world w;
    static int32_t tokens[100];
    begin(&w, SAM_NEWEST);
    uint32_t size = 0;
    bool full = false;
    for (int32_t token = 1; size < 2 * SAM_TABLE && !full; token++) {
        uint64_t key = (uint64_t)token * UINT64_C(0x9E3779B97F4A7C15) >> 32; // of an edge of the root
        if (key % (1u << SAM_TABLE_BITS))
            continue;
        full = !append_to_long(&w, tokens, token);
        size += !full;
    }
    CHECK(full && size > SAM_TABLE / 4 && w.index.table_mask == (1u << SAM_TABLE_BITS) - 1);
    check_sound(&w);
    CHECK(append_to_long(&w, tokens, tokens[0])); // no edge of that table
    check_sound(&w);
    end(&w);
}

// With an argument only a part of the work is done, for slow machines.
int main(int count, char **arguments) {
    (void)arguments;
    uint32_t part = count > 1 ? 10 : 1;
    test_large = 1 << 14;
    test_table = 32;
    test_texts_in_any_interleaving(3000 / part);
    test_older_texts(2000 / part);
    test_runs_at_the_longest_match();
    test_append_is_all_or_nothing();
    test_validation_notices_damage();
    test_blocks();
    test_freeing_in_portions();
    test_split_of_a_node_with_many_edges();
    test_edges_of_one_hash();
    return 0;
}
