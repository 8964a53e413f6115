// SPDX-License-Identifier: Apache-2.0
//
// A suffix automaton over one or several texts of token ids, built online.
//
// Strings that end at exactly the same places of the texts form one state. A state stands for a range of
// lengths of suffixes of its longest string; `link` leads to the state of the next shorter ones, so the links
// form a tree whose root is the empty string. For the text A B C B C, each state named by its longest string:
//
//   edges     root -A-> A -B-> AB -C-> ABC -B-> ABCB -C-> ABCBC        links    root <-+- A
//             root -B-> B -C-> BC -B-> ABCB                                            +- B <--+- AB
//             root -C-> BC                                                             |       +- ABCB
//                                                                                      +- BC <-+- ABC
//                                                                                              +- ABCBC
//
// The longest suffix of ABCBC that stood in the text before is link(ABCBC) = BC. Its first occurrence ends at
// the C of ABC, hence the draft "B C". No search is needed: the state of the whole text is known, the answer
// is one link away.
//
// Several texts share one automaton (a generalised suffix automaton): each keeps the state of its own whole
// text and is extended from there, in any interleaving.
//
// Occurrences. The caller numbers occurrences 1, 2, 3, ... and marks the state of a text with such a number
// once the token after that text is known. The mark holds for the state and for everything on its link path.
// A state remembers either its first mark (SAM_OLDEST) or its latest one (SAM_NEWEST); marked states are
// closed under `link`.
//
//   SAM_OLDEST  walks up until it meets a marked state: every state is set once, amortised O(1).
//   SAM_NEWEST  recolours the whole path from the root. States of one colour in a row form a vertical path,
//               and each path is a splay tree ordered by depth (`access` of a link-cut tree): amortised
//               O(log states), also when a text repeats one token 34,000 times and a link path is as long as
//               the text. A path never mixes marked and unmarked states.
//
// Costs: at most 2 states and 3 edges a token; extending is amortised O(1) hash operations a token.
//
// Edges. The first edge of a state is stored in the state. All further edges of all states are in one
// open-addressing table keyed by (state, token), linear probing, at most 3/4 full, power-of-two size. The
// further edges of one state form a list threaded by *token* (not by address), so growing the table leaves it
// intact.
//
// Invariants (sam_index_validate checks all of them):
//   length(link(s)) < length(s); an edge s -c-> t has length(t) > length(s); if s has an edge by c, so has
//   link(s), and its target is an ancestor of t or t itself; the table holds exactly the listed edges; a
//   splay tree in order is a piece of one link path and hangs from the link of its topmost state; marks never
//   get lost on the way to the root.
//
// Not thread-safe: the owner serialises all calls on one index and on one sam_memory. Everything is integer
// arithmetic of fixed width: the same calls give the same results on every platform.

#ifndef SAM_H
#define SAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The only two places where memory comes from; a test may define both to make allocations fail.
#ifndef SAM_REALLOC
#include <stdlib.h>
#define SAM_REALLOC realloc
#define SAM_FREE free
#endif

#define SAM_ROOT 0u             // the state of the empty string; also "no state" where the root cannot stand
#define SAM_NO_STATE UINT32_MAX // the link of the root
#define SAM_NO_TOKEN (-1)       // end of an edge list
#define SAM_MAX_STATES (1u << 31) // an index refuses to grow beyond this
#define SAM_HANGS (1u << 31)      // flag beside a state number

// What the indexes of one owner may use together.
typedef struct {
    size_t used;                    // bytes allocated now
    size_t limit;                   // bytes that may be allocated
    bool (*make_room)(void *owner); // frees something the owner can spare, or returns false; may be NULL
    void *owner;                    // passed to make_room
    uint64_t work; // states visited and rotations made so far: lets a test see the complexity
} sam_memory;

// Resizes `block` from old_bytes to new_bytes (0: frees it and returns NULL), keeping the account and asking
// make_room while the limit is exceeded. On failure NULL is returned and the block is still valid and
// accounted as before.
void *sam_resize(sam_memory *memory, void *block, size_t old_bytes, size_t new_bytes);

typedef enum { SAM_OLDEST, SAM_NEWEST } sam_rule;

typedef struct {
    uint32_t link;   // state of the longest proper suffix that ends at more places; the root: SAM_NO_STATE
    uint32_t length; // tokens in the longest string of this state
    int32_t token;   // label of the first edge, meaningful if target is not 0
    uint32_t target; // where the first edge leads; 0: the state has no edge at all
    int32_t more;    // label of the first edge in the table, or SAM_NO_TOKEN
    uint32_t seen;   // the mark, 0: none. SAM_NEWEST: valid in the root of a splay tree, for the whole tree
} sam_state;

// Splay tree of a path, SAM_NEWEST only; 0 = none (the root state is in no path).
typedef struct {
    uint32_t above; // parent in the splay tree; in its root SAM_HANGS | link of the path's topmost state
    uint32_t left;  // towards the root state
    uint32_t right; // towards longer strings
} sam_path;

typedef struct {
    uint32_t state;  // source
    int32_t token;   // label
    uint32_t target; // 0: this place of the table is empty (no edge leads to the root)
    int32_t more;    // label of the next edge of the same state, or SAM_NO_TOKEN
} sam_edge;

typedef struct {
    sam_memory *memory;
    sam_state *states; // one block: state_capacity states, then as many paths if the rule is SAM_NEWEST
    sam_path *paths;   // NULL for SAM_OLDEST
    sam_edge *edges;   // edge_capacity places, NULL while no state has a second edge
    uint32_t state_count;
    uint32_t state_capacity;
    uint32_t edge_count;
    uint32_t edge_capacity; // 0 or a power of two
    uint32_t edge_shift;    // 64 - log2(edge_capacity)
    sam_rule rule;
} sam_index;

// Makes an index that holds the root. On failure false is returned and there is nothing to free.
bool sam_index_init(sam_index *index, sam_memory *memory, sam_rule rule);

// Frees everything the index owns; a zeroed index is allowed.
void sam_index_free(sam_index *index);

// Back to the root alone, keeping the capacity. Inserting any part of what was inserted before, in any order,
// then needs no memory: the states and edges of fewer texts are never more.
void sam_index_clear(sam_index *index);

// Appends `token` (0 or more) to the text whose state is `last` (SAM_ROOT: the empty text) and stores the
// state of the longer text in *next. On failure (memory, SAM_MAX_STATES) false is returned and nothing has
// changed.
bool sam_index_extend(sam_index *index, uint32_t last, int32_t token, uint32_t *next);

// Marks `state`, the state of a whole text, and its link path with `occurrence` (above every earlier one).
// Never fails.
void sam_index_mark(sam_index *index, uint32_t state, uint32_t occurrence);

// Finds the longest suffix of the text of `state` that is marked. Returns its mark and stores its length, or
// returns 0 if there is none. Changes the shape of splay trees but nothing that can be observed. Never fails.
uint32_t sam_index_match(sam_index *index, uint32_t state, uint32_t *length);

// Bytes accounted for the index.
size_t sam_index_bytes(const sam_index *index);

// Checks every invariant; slow, for tests. Returns false and a sentence in *reason if one is broken.
bool sam_index_validate(sam_index *index, const char **reason);

// How the validating functions, which have `reason`, return.
#define SAM_REQUIRE(condition, sentence)                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            *reason = sentence;                                                                              \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

#endif
