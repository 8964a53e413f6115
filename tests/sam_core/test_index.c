// SPDX-License-Identifier: Apache-2.0
//
// Checks the automaton against brute force, and what the rules draft from it, also while allocations fail.
// test_c.py compiles this, also with the sanitizers, and runs it. A check that fails ends the program
// with a line on stderr.

#include "failing_memory.h"

#include "corpus.c" // for small_corpus.h
#include "model.h"
#include "rules.h"

#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "small_corpus.h"

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

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

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
        uint32_t counts[TOKENS] = {0}, arrivals = 0, marks = 0, different = 0;
        token_place place = {0};
        int32_t best = 0;
        for (uint32_t i = 0; i < w->size; i++) {
            arrivals += after[i] >= length;
            if (before[i] < length)
                continue;
            token_place at = w->appended[i];
            bool same = at.text == place.text;
            bool takes = !marks++ || (oldest ? at.older && !same : !at.older || same);
            place = takes ? at : place;
            int32_t token = w->tokens[at.text][at.position];
            different += !counts[token]++;
            best = counts[token] + takes > counts[best] ? token : best;
        }
        if (counted && s & SAM_NODE)
            CHECK(index->counts[s & ~SAM_NODE].arrivals == arrivals);
        else if (counted)
            CHECK(arrivals == 1);
        if (!oldest && length > SAM_MAX_MATCH)
            continue;
        if (marks && !longest)
            longest = length;
        if (length % 8 == 1)
            CHECK(walk(index, own + size - length, length) == s);
        sam_following f;
        sam_follow(index, s, &f);
        CHECK(!f.marks == !marks);
        if (!marks)
            continue;
        check_place(w, f.place, place);
        CHECK(f.newest == w->tokens[place.text][place.position]);
        if (!counted)
            continue;
        CHECK(f.marks == marks && f.best == best && f.best_count == counts[best]);
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
            uint32_t longest = 0;
            for (uint32_t j = 0; j < w->size; j++) {
                uint32_t n = agree(w->tokens[w->appended[j].text], w->appended[j].position + 1, text, size);
                longest = n > longest ? n : longest;
            }
            longest = longest < SAM_MAX_MATCH ? longest : SAM_MAX_MATCH;
            CHECK(length == longest && state == walk(&w->index, text + size - length, length));
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
        uint32_t longest = 0;
        size += ahead;
        for (uint32_t i = 0; i < w->size; i++) {
            uint32_t n = agree(w->tokens[w->appended[i].text], w->appended[i].position, text, size);
            longest = n > longest ? n : longest;
        }
        longest = smaller(longest, SAM_MAX_MATCH);
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

// Texts that come from the newest back, each as a whole, leave the same places as texts in their order.
static void test_older_texts_are_as_in_order(uint32_t turns) {
    static world forth, back;
    for (uint32_t turn = 0; turn < turns; turn++) {
        random_state = turn;
        begin(&forth, (sam_kind)(turn % 3));
        forth.count = TEXTS;
        for (uint32_t t = 0; t < TEXTS; t++)
            for (uint32_t i = draw(turn % 10 ? 30 : 200); i; i--)
                append(&forth, t, likely_token(&forth, t, 3));
        begin(&back, (sam_kind)(turn % 3));
        for (uint32_t t = TEXTS; t--; back.count = TEXTS) {
            back.cursor[t].older = t < TEXTS - 1;
            for (uint32_t i = 0; i < forth.text[t].size; i++)
                append(&back, t, forth.tokens[t][i]);
        }
        check_all(&back);
        for (uint32_t i = 0; i < forth.size; i++) {
            token_place at = forth.appended[i];
            for (uint32_t size = 1; size <= at.position + 1 && size <= SAM_MAX_MATCH; size++) {
                const int32_t *string = &forth.tokens[at.text][at.position + 1 - size];
                sam_following a, b;
                sam_follow(&forth.index, walk(&forth.index, string, size), &a);
                sam_follow(&back.index, walk(&back.index, string, size), &b);
                CHECK(a.marks == b.marks && a.best_count == b.best_count);
                if (!a.marks)
                    continue;
                const sam_chunk *chunk = &forth.index.chunks[a.place / SAM_CHUNK];
                check_place(
                    &back, b.place,
                    (token_place){.text = chunk->text, .position = chunk->first + a.place % SAM_CHUNK});
            }
        }
        sam_index_free(&forth.index);
        end(&back);
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

// A text comes again as a whole, longer than the longest match.
static void test_long_texts_that_come_again(void) {
    static world w;
    for (uint32_t period = 1; period <= 3; period++)
        for (int kind = SAM_OLDEST; kind <= SAM_COUNTED; kind++) {
            begin(&w, (sam_kind)kind);
            for (uint32_t t = 0; t < TEXTS; t++) {
                w.count = t + 1;
                for (uint32_t i = 0; i < SAM_MAX_MATCH + 5; i++) {
                    append(&w, t, (int32_t)(i % period));
                    if (t && i > SAM_MAX_MATCH - 2)
                        check_all(&w);
                }
                append(&w, t, 5 + (int32_t)t / 2);
                check_all(&w);
            }
            check_search(&w, period);
            end(&w);
        }
}

// Everything about tables that the validation promises to notice.
static void test_validation_of_tables(void) {
    static world w;
    begin(&w, SAM_COUNTED);
    random_state = 4;
    grow(&w, 60, 1500, 1500);
    sam_index *index = &w.index;
    CHECK(index->tables && index->table_mask > 3);
    uint32_t same = 0; // a number whose table is at a lower number too
    while (same <= index->table_mask && same >> index->tables[same].bits == 0)
        same++;
    CHECK(same <= index->table_mask);
    const char *reason;
#define NOTICES(type, field, value)                                                                          \
    do {                                                                                                     \
        type good = field;                                                                                   \
        field = value;                                                                                       \
        CHECK(!sam_index_validate(index, &reason));                                                          \
        field = good;                                                                                        \
        CHECK(sam_index_validate(index, &reason));                                                           \
    } while (0)
    NOTICES(uint16_t, index->tables[0].count, 0);
    NOTICES(uint16_t, index->tables[0].bits, 9);
    NOTICES(uint16_t, index->tables[same].bits, 0);
    NOTICES(sam_edge *, index->tables[same].edges, index->tables[same == 1 ? 0 : 1].edges);
    NOTICES(uint32_t, index->fullest, 0);
    NOTICES(uint32_t, index->edge_capacity, index->edge_capacity + index->table_size);
    NOTICES(uint32_t, index->table_size, SAM_TABLE + 1);
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

// ---- the rules

// Text 0 with an index of its own, in a world that is its group's.
typedef struct {
    world group;
    sam_index own;
    sam_cursor cursor;
    corpus corpus;
    corpus_context at[TEXTS];
    bool present[TOKENS]; // tokens that stand in a source
    rule_model *model;
    rule_name rule;
    rule_record record;
    uint64_t drafted, accepted[RULE_SOURCES];
} sources;

static void begin_sources(sources *s, rule_name rule, const corpus *c) {
    sam_kind kind = rule == RULE_OLDEST ? SAM_OLDEST : rule == RULE_NEWEST ? SAM_NEWEST : SAM_COUNTED;
    memset(s, 0, sizeof *s);
    begin(&s->group, kind);
    CHECK(sam_index_init(&s->own, &s->group.memory, kind, s->group.texts));
    s->cursor = SAM_START;
    s->rule = rule;
    s->model = malloc(rule_model_bytes());
    CHECK(s->model);
    rule_model_init(s->model, rule);
    CHECK(rule_model_valid(s->model));
    s->corpus = *c;
    for (uint32_t i = 0; i < c->size; i++)
        if (c->tokens[i] != CORPUS_END)
            s->present[c->tokens[i]] = true;
    for (uint32_t t = 0; t < TEXTS; t++)
        corpus_start(c, &s->at[t]);
}

static void end_sources(sources *s) {
    CHECK(rule_model_valid(s->model));
    rule_record_free(&s->record, &s->group.memory);
    sam_index_free(&s->own);
    free(s->model);
    end(&s->group);
}

static void append_to_sources(sources *s, uint32_t t, int32_t token) {
    append(&s->group, t, token);
    if (t == 0)
        CHECK(sam_index_append(&s->own, &s->cursor, 0, s->group.text[0].size - 1));
    corpus_advance(&s->corpus, &s->at[t], token);
    s->present[token] = true;
}

typedef struct {
    uint32_t size, k;
    bool tree;
    float least;
    int32_t *tokens, *parents; // blocks of exactly k entries, for the sanitizers
    float *scores;
    int32_t *match_lengths;
    uint8_t source[RULE_MAX_DRAFT];
} draft;

static draft make_draft(sources *s, const rule_context *context, uint32_t k, float least, bool tree) {
    draft d = {.k = k, .tree = tree, .least = least};
    d.tokens = malloc(k * sizeof(int32_t));
    d.parents = malloc(k * sizeof(int32_t));
    d.scores = malloc(k * sizeof(float));
    d.match_lengths = malloc(k * sizeof(int32_t));
    rule_task task = {*context, &s->record,     k, 0, d.tokens, tree ? d.parents : NULL,
                      d.scores, d.match_lengths};
    uint32_t made =
        rule_draft(s->model, rule_model_work(s->model), &s->group.memory, s->rule, least, &task, 1);
    d.size = task.size;
    CHECK(made == 1 || d.size == 0); // without memory
    CHECK(d.size <= k && s->record.drafted == d.size);
    memcpy(d.source, s->record.source, sizeof d.source);
    CHECK(s->group.memory.used ==
          sam_index_bytes(&s->group.index) + sam_index_bytes(&s->own) + s->record.bytes);
    for (uint32_t i = 0; !tree && i < d.size; i++)
        d.parents[i] = (int32_t)i - 1;
    return d;
}

static void free_draft(draft *d) {
    free(d->tokens);
    free(d->parents);
    free(d->scores);
    free(d->match_lengths);
}

static void check_draft(const sources *s, const rule_context *context, const draft *d) {
    for (uint32_t i = 0; i < d->size; i++) {
        int32_t parent = d->parents[i], token = d->tokens[i];
        CHECK(token >= 0 && token < TOKENS && s->present[token]);
        CHECK(parent >= -1 && parent < (int32_t)i);
        CHECK(d->scores[i] >= 0 && d->scores[i] <= (parent < 0 ? 1 : d->scores[parent]));
        CHECK(d->scores[i] >= d->least);
        for (uint32_t j = 0; j < i; j++)
            CHECK(d->parents[j] != parent || d->tokens[j] != token);
        uint32_t from = d->source[i] == RULE_HISTORY ? (uint32_t)RULE_GROUP : d->source[i];
        CHECK(from == RULE_COMMON   ? context->common && !d->match_lengths[i]
              : from == RULE_CORPUS ? context->corpus != NULL
                                    : from < RULE_INDEXES && context->index[from]);
        CHECK(d->source[i] != RULE_HISTORY || context->past);
        CHECK(d->match_lengths[i] >= 0);
    }
}

// With the same sources a draft is the same, and a shorter chain the beginning of it.
static void check_again(sources *s, const rule_context *context, const draft *d) {
    if (s->rule == RULE_SUFFIX && draw(2))
        return;
    uint32_t k = s->rule == RULE_SUFFIX || d->tree ? d->k : draw(d->k + 1);
    draft again = make_draft(s, context, k, d->least, d->tree);
    CHECK(again.size == smaller(d->size, k));
    CHECK(!again.size || memcmp(again.tokens, d->tokens, again.size * sizeof(int32_t)) == 0);
    CHECK(!again.size || memcmp(again.parents, d->parents, again.size * sizeof(int32_t)) == 0);
    CHECK(!again.size || memcmp(again.scores, d->scores, again.size * sizeof(float)) == 0);
    free_draft(&again);
}

// Without memory for the record nothing is drafted, and all is as before.
static void check_failure(sources *s, const rule_context *context, const draft *d) {
    rule_record_free(&s->record, &s->group.memory);
    fail_at = allocations;
    fail_on = true;
    draft none = make_draft(s, context, d->k, d->least, d->tree);
    CHECK(none.size == 0 && !s->record.block && !s->record.bytes && (!d->size || allocations > fail_at));
    fail_at = -1;
    free_draft(&none);
    uint64_t accepted[RULE_SOURCES] = {0};
    for (int lesson = 0; lesson < RULE_LESSONS; lesson++) // nothing to learn from
        rule_learn(s->model, s->rule, &s->record, lesson, d->tokens, d->size, accepted);
    for (uint32_t i = 0; i < RULE_SOURCES; i++)
        CHECK(!accepted[i]);
    none = make_draft(s, context, d->k, d->least, d->tree);
    CHECK(none.size == d->size &&
          (!d->size || memcmp(none.tokens, d->tokens, d->size * sizeof(int32_t)) == 0));
    free_draft(&none);
}

// Drafts for text t, then appends tokens to it of which some were drafted.
static void draft_and_learn(sources *s, uint32_t t, uint32_t alphabet) {
    static const float thresholds[] = {0, 0, 0.01f, 0.3f, 0.9f, 1};
    world *w = &s->group;
    rule_context context = {.past = draw(w->count), .common = draw(2)};
    for (uint32_t i = 0; i < RULE_LAST; i++)
        context.last[i] = i < w->text[t].size ? w->tokens[t][w->text[t].size - 1 - i] : SAM_NO_TOKEN;
    if (t == 0 && draw(8)) {
        context.index[RULE_REQUEST] = &s->own;
        context.state[RULE_REQUEST] = sam_match(&s->own, &s->cursor, &context.length[RULE_REQUEST]);
    }
    if (draw(8)) {
        context.index[RULE_GROUP] = &w->index;
        context.state[RULE_GROUP] = sam_match(&w->index, &w->cursor[t], &context.length[RULE_GROUP]);
    }
    if (draw(3)) {
        context.corpus = &s->corpus;
        context.corpus_at = &s->at[t];
    }
    draft d =
        make_draft(s, &context, draw(4) ? draw(9) : draw(RULE_MAX_DRAFT + 1), thresholds[draw(6)], draw(2));
    check_draft(s, &context, &d);
    if (draw(4) == 0)
        check_failure(s, &context, &d);
    check_again(s, &context, &d);
    s->drafted += d.size;
    uint64_t sum = 0;
    int32_t at = -1, tokens[8];
    uint32_t count = draw(9), expected = 0, drafted = s->record.drafted;
    for (uint32_t i = 0, j; i < count; i++) {
        tokens[i] = likely_token(w, t, alphabet);
        for (j = 0; j < d.size && draw(4); j++)
            if (d.parents[j] == at)
                tokens[i] = d.tokens[j];
        for (j = 0; j < drafted && (d.parents[j] != at || d.tokens[j] != tokens[i]); j++)
            ;
        at = j < drafted ? (int32_t)j : -2; // -2: beside the draft
        expected += at >= 0;
    }
    for (uint32_t i = 0; i < RULE_SOURCES; i++)
        sum -= s->accepted[i];
    for (int lesson = 0; lesson < RULE_LESSONS; lesson++)
        rule_learn(s->model, s->rule, &s->record, lesson, tokens, count, s->accepted);
    for (uint32_t i = 0; i < RULE_SOURCES; i++)
        sum += s->accepted[i];
    for (int lesson = 0; lesson < RULE_LESSONS; lesson++)
        CHECK(!s->record.due[lesson]);
    CHECK(sum == expected);
    for (uint32_t i = 0; i < count; i++) {
        s->present[tokens[i]] = true; // as a follower
        if (w->text[t].size < MOST)
            append_to_sources(s, t, tokens[i]);
    }
    free_draft(&d);
}

// What a model can come to, and what it learns from there, is a model that may be loaded.
static void set_extreme_weights(sources *s) {
    size_t bytes;
    model_learned *learned = rule_model_learned(s->model, &bytes);
    for (uint32_t set = 0; set < MODEL_SETS; set++)
        for (uint32_t i = 0; i < MODEL_INPUTS; i++)
            learned->weights[set][i] = draw(2) ? MODEL_MOST_WEIGHT : -MODEL_MOST_WEIGHT;
}

static void test_drafts(uint32_t turns) {
    static sources s;
    int32_t stream[400];
    for (uint32_t turn = 0; turn < turns; turn++) {
        random_state = turn;
        uint32_t alphabet = turn % 5 ? 2 + draw(4) : 40, size = 100 + draw(300);
        for (uint32_t i = 0; i < size; i++)
            stream[i] = i == size - 1 || (i && draw(30) == 0) ? CORPUS_END
                        : i > 9 && draw(4)                    ? stream[i - 7]
                                                              : (int32_t)draw(alphabet + 2);
        stream[0] = 0;
        size_t bytes;
        void *file = make_corpus(stream, size, &bytes);
        corpus c = {0};
        CHECK(file && !lay_out(&c, file, bytes));
        for (int rule = RULE_OLDEST; rule <= RULE_BLEND; rule++) {
            begin_sources(&s, (rule_name)rule, &c);
            bool extreme = rule == RULE_BLEND && turn % 4 == 3;
            if (extreme)
                set_extreme_weights(&s);
            for (uint32_t i = 0; i < 60; i++) {
                if (s.group.count < TEXTS && draw(10) == 0) {
                    uint32_t from = draw(s.group.count), to = s.group.count;
                    branch(&s.group, from);
                    s.at[to] = s.at[from];
                }
                draft_and_learn(&s, draw(s.group.count), alphabet);
            }
            uint64_t accepted = 0;
            for (uint32_t i = 0; i < RULE_SOURCES; i++)
                accepted += s.accepted[i];
            CHECK(extreme || (s.drafted > 20 && accepted > 5));
            end_sources(&s);
        }
        free(file);
    }
}

// With an argument only a part of the work is done, for slow machines.
int main(int count, char **arguments) {
    (void)arguments;
    uint32_t part = count > 1 ? 10 : 1;
    test_large = 1 << 14;
    test_table = 32;
    test_texts_in_any_interleaving(3000 / part);
    test_older_texts(2000 / part);
    test_older_texts_are_as_in_order(500 / part);
    if (part == 1)
        test_runs_at_the_longest_match();
    test_long_texts_that_come_again();
    test_append_is_all_or_nothing();
    test_validation_of_tables();
    test_blocks();
    test_freeing_in_portions();
    test_split_of_a_node_with_many_edges();
    if (part == 1)
        test_edges_of_one_hash();
    test_drafts(100 / part);
    return 0;
}
