// SPDX-License-Identifier: Apache-2.0
//
// A suffix automaton over one or several texts of token ids, built online, with exact statistics of the
// tokens that follow every string that occurred in the texts more than once.
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
// The longest suffix of ABCBC that occurred before is link(ABCBC) = BC. It was followed by B once:
// best(BC) = B. Its first occurrence ends at the C of ABC, hence the article's draft "B C". No search is
// needed: the state of the whole text is known, the answer is one link away.
//
// Leaves and nodes. A string that occurred once is determined by its place. Such a state is a *leaf*, and
// costs one link: leaf x is the text up to the token at place x, its length is that of the text so far, its
// only edge leads to the leaf of the next place. Here A, AB, ABC, ABCB and ABCBC are leaves. A state whose
// strings occurred at least twice is a *node* (here B and BC) and has a record. Every link leads to a node. A
// leaf that occurs again becomes a node for good: its place refers to the node.
//
//   places   0    1    2    3     4            nodes  0 root   1 "B"           2 "BC"
//   token    A    B    C    B     C                   length 0 length 1        length 2
//   links    root B    BC   B     BC                  link  -  link root       link root
//                                                              followed 2      followed 1
//                                                              best C          best B
//
// Places. Every appended token has a place; 32 places in a row form a chunk, all of one text, so that several
// texts may grow at once. Several texts share one automaton (a generalised suffix automaton): each keeps a
// cursor and is extended from there, in any interleaving.
//
// Statistics. An occurrence of a string is *followed* once the token after it is known. `followed` counts these,
// `best` is the token that followed most often (the one that did so most recently on a tie), `place` is the
// token that followed last (SAM_OLDEST: first). Appending a token counts for all suffixes of the text so far,
// which are the states on one link path. Strings of more than SAM_MAX_MATCH tokens are left out (but for
// SAM_OLDEST), so the path has at most SAM_MAX_MATCH nodes, also when a text repeats one token 34,000 times;
// on recorded answers it has 3 to 10. For shorter strings the figures are exact at any time.
//
// Older texts. A text whose cursor is `older` counts as older than the whole index, although it is appended
// later, so texts may be inserted from the newest to the oldest. An occurrence in such a text sets the
// `place` of a string only if it has none or one in the same text (SAM_OLDEST: none or one in another text).
// So `place` is the same as if the texts, each as a whole, had been appended in their order. On a tie of
// counts `best` changes only if the text set `place`, and an older token does not replace an equally `frequent` one.
// Lists of edges are in the order of appending.
//
// Costs: at most 1 leaf, 1 node and 3 edges per token (about 0.6 nodes and 0.5 edges in tables on recorded
// answers). Extending takes amortised O(1) hash operations per token, counting at most SAM_MAX_MATCH steps.
//
// Edges. The first edge of a node is stored in it. All further edges of all nodes are in hash tables keyed by
// (node, token): open addressing, linear probing, at most 3/4 full. A small index has one table, which
// doubles until it has more than SAM_TABLE / 2 entries. After that a full table is split into two of that
// size by the next bit of the hash, and a directory maps the lowest bits of a hash to its table (extendible
// hashing). The further edges of one node form a list that is linked by *token* (not by address), so moving
// entries does not break it.
//
// Pauses. However large the index is, a call copies and clears at most SAM_LARGE bytes of an array and the
// tables that it adds to: arrays grow in place (memory.h), tables one by one, and sam_index_free_some frees
// in portions. Only two calls take long: a walk along the strings of a long repetition that a token ends, and
// a split of a node with very many edges.
//
// Invariants (sam_index_validate checks all of them):
//   length(link(s)) < length(s); an edge s -c-> t has length(t) > length(s); if s has an edge by c, so has
//   link(s), and its target is an ancestor of t or t itself; the table holds exactly the listed edges;
//   occurrences(s) is the number of places of the texts where the strings of s end, followed(s) the number of those
//   that are followed by a token, best_count(s) the largest count of one following token.
//
// Not thread-safe: the owner serialises all calls on one index and on one sam_memory. With integer arithmetic
// of fixed width only, the same calls give the same results on every platform.

#ifndef SAM_H
#define SAM_H

#include "memory.h"

#define SAM_MAX_MATCH 64u // tokens; longer matches count as matches of their last 64 tokens
#define SAM_NO_TOKEN (-1) // end of an edge list, no following token
#define SAM_NONE UINT32_MAX
#define SAM_NODE (1u << 31) // flag of a state that is a node; without it a state is a leaf's place
#define SAM_ROOT SAM_NODE   // the state of the empty string: node 0
#define SAM_CHUNK 32u       // places in a chunk
#ifndef SAM_TABLE
#define SAM_TABLE 32768u // entries, at most, of a table of edges
#endif
#define SAM_TABLE_BITS 20u // maximum bits of the hash that select a table: an index that needs more is full

typedef enum { SAM_OLDEST, SAM_NEWEST, SAM_COUNTED } sam_kind; // what an index keeps about its strings

typedef uint32_t sam_state; // SAM_NODE | number of a node, or the place of a leaf

typedef struct {
    int32_t *tokens;
    uint32_t size;
    uint32_t capacity;
} sam_text;

typedef struct {
    uint32_t text;  // number of the text
    uint32_t first; // position in the text of the token at the chunk's first place
    uint32_t next;  // chunk in which the text goes on, or SAM_NONE
} sam_chunk;

typedef struct {
    uint32_t link;    // node of the longest proper suffix that ends at more places; the root: SAM_NONE
    uint32_t length;  // tokens in the longest string of this state
    int32_t token;    // label of the first edge, if there is a target
    sam_state target; // where the first edge leads; SAM_NONE: the node has no edge at all
    int32_t more;     // label of the first edge in the table, or SAM_NO_TOKEN
    uint32_t place;   // of the token that followed an occurrence last (SAM_OLDEST: first), or SAM_NONE
} sam_node;

// One for each node if the index is SAM_COUNTED.
typedef struct {
    uint32_t followed; // occurrences that are followed by a token of their text
    uint32_t occurrences;
    int32_t best;        // the most frequent following token, the newest on a tie, or SAM_NO_TOKEN
    uint32_t best_count; // how often it followed
} sam_count;

typedef struct {
    uint32_t node;    // source
    int32_t token;    // label
    sam_state target; // SAM_NONE: this entry of a table is empty
    int32_t more;     // label of the next edge of the same node, or SAM_NO_TOKEN
} sam_edge;

// A table of edges. The directory has it at each number whose lowest `bits` bits are those of its hashes.
typedef struct {
    sam_edge *edges;
    uint16_t count; // edges in it, at its lowest number; 0 elsewhere
    uint16_t bits;
} sam_table;

typedef struct {
    int32_t token;
    uint32_t count;
} sam_frequent;

typedef struct {
    sam_memory *memory;
    sam_text *const *texts; // the owner's array; read for the texts in the index
    sam_node *nodes;
    sam_count *counts; // NULL unless SAM_COUNTED
    uint32_t *links;   // by place: node of the leaf's link; SAM_NODE | node that the leaf became; SAM_NONE
    sam_chunk *chunks;
    sam_edge *edges;                 // the only table, NULL while no node has a second edge
    sam_table *tables;               // or the directory, of table_mask + 1 tables
    uint32_t table_size, table_mask; // table_size: entries of each table
    uint32_t fullest;                // no table has more edges
    uint32_t node_count, node_capacity, count_capacity;
    uint32_t chunk_count, chunk_capacity, link_capacity; // link_capacity in chunks
    uint32_t edge_count, edge_capacity;                  // edge_capacity: entries of all tables
    sam_kind kind;
    bool plain;            // every place x is that of token x of text 0
    uint32_t appended;     // tokens
    sam_frequent frequent; // SAM_COUNTED: the most frequent token, the newest on a tie
} sam_index;

// The end of the appended part of one text.
typedef struct {
    sam_state last;  // state of the whole text
    sam_state near;  // state of its last SAM_MAX_MATCH tokens, or one below it
    uint32_t length; // tokens of the whole text
    uint32_t place;  // of the last token, SAM_NONE before the first
    bool older;      // older than all other texts in the index; the owner may change it at any time
} sam_cursor;

#define SAM_START ((sam_cursor){SAM_ROOT, SAM_ROOT, 0, SAM_NONE, false}) // the empty text

// Initializes an index with the root. Returns false on failure: nothing has to be freed.
bool sam_index_init(sam_index *index, sam_memory *memory, sam_kind kind, sam_text *const *texts);

// Reserves the usual memory of a text with this many tokens in a new index, without calling reclaim, so
// that appending is faster. Does nothing for less than a chunk.
void sam_index_reserve(sam_index *index, uint32_t tokens);

// Frees everything the index owns; a zeroed index is allowed.
void sam_index_free(sam_index *index);

// Frees about max_bytes of what the index owns (up to SAM_LARGE more at the end of an array). Returns whether
// that was all: the index is zeroed then. Until then it must only be freed.
bool sam_index_free_some(sam_index *index, size_t max_bytes);

// Appends the token at `position` of text number `text` (which contains it already) to the text of the
// cursor, and counts it for the strings that it follows. Returns false on failure (memory, SAM_MAX_PLACES): nothing
// has changed.
bool sam_index_append(sam_index *index, sam_cursor *cursor, uint32_t text, uint32_t position);

// How far prefetching for a cursor has got; zeroed at first.
typedef struct {
    uint32_t node; // that was prefetched last
    sam_state end; // where the edge that ends the walk leads, or a place that was prefetched last
} sam_prefetched;

// Prefetch the memory for appending `token` to the text of the cursor, or for sam_match and drafting from there
// (`near` is the cursor's, or the state of a match), in this many stages: each reads what the stage before it has
// prefetched. If the owner does something else in between, the memory arrives in time. They change nothing but
// *prefetched.
enum { SAM_APPEND_STAGES = 7, SAM_MATCH_STAGES = 4 };
void sam_prefetch_append(const sam_index *index, const sam_cursor *cursor, int32_t token, unsigned stage,
                         sam_prefetched *prefetched);
void sam_prefetch_match(const sam_index *index, sam_state near, unsigned stage, sam_prefetched *prefetched);

// Begins another text with the text of `cursor`: *branch becomes its cursor. Returns false without memory:
// nothing has changed.
bool sam_index_branch(sam_index *index, sam_cursor *cursor, sam_cursor *branch);

// Bytes that the index has in the account.
size_t sam_index_bytes(const sam_index *index);

// Checks every invariant; slow, for tests. Returns false, with a sentence in *reason, if one does not hold.
bool sam_index_validate(const sam_index *index, const char **reason);

// ---- reading

// Statistics of the tokens that followed a string.
typedef struct {
    uint32_t followed;   // occurrences that are followed by a token; 0: the rest is undefined
    int32_t best;        // most frequent following token (SAM_COUNTED)
    uint32_t best_count; // how often it followed
    int32_t newest;      // the token that followed last (SAM_OLDEST: first)
    uint32_t place;      // its place
} sam_following;

static inline const int32_t *sam_place_token(const sam_index *index, uint32_t place, uint32_t *left) {
    if (index->plain) { // saves a memory access
        const sam_text *text = index->texts[0];
        *left = text->size - place;
        return &text->tokens[place];
    }
    const sam_chunk *chunk = &index->chunks[place / SAM_CHUNK];
    const sam_text *text = index->texts[chunk->text];
    uint32_t position = chunk->first + place % SAM_CHUNK;
    *left = text->size - position;
    return &text->tokens[position];
}

// The state at a place that has one: a leaf, or the node that it became.
static inline sam_state sam_resolve(const sam_index *index, sam_state state) {
    if (state & SAM_NODE)
        return state;
    uint32_t link = index->links[state];
    return link & SAM_NODE ? link : state;
}

static inline const sam_node *sam_node_of(const sam_index *index, sam_state node) {
    return &index->nodes[node & ~SAM_NODE];
}

// The node of the longest proper suffix that ends at more places. Not for the root.
static inline sam_state sam_link(const sam_index *index, sam_state state) {
    return SAM_NODE | (state & SAM_NODE ? sam_node_of(index, state)->link : index->links[state]);
}

// Tokens in the longest string of a state.
static inline uint32_t sam_length(const sam_index *index, sam_state state) {
    if (state & SAM_NODE)
        return sam_node_of(index, state)->length;
    return index->chunks[state / SAM_CHUNK].first + state % SAM_CHUNK + 1;
}

// The target of the edge by `token`, SAM_NONE if there is none.
sam_state sam_child(const sam_index *index, sam_state state, int32_t token);

// How often `token` followed the strings of a node, in three parts, so that the cache misses of several such
// questions overlap: prefetch; find where its edge leads, SAM_NONE if there is none; count.
void sam_prefetch_edge(const sam_index *index, sam_state node, int32_t token);
sam_state sam_edge_end(const sam_index *index, sam_state node, int32_t token);
uint32_t sam_occurrences(const sam_index *index, sam_state end);

// Statistics of the tokens that followed the strings of a state.
void sam_follow(const sam_index *index, sam_state state, sam_following *following);

// The state of the longest suffix, of at most SAM_MAX_MATCH tokens, of the string of `length` tokens in
// `state`, and its length in *length.
sam_state sam_near(const sam_index *index, sam_state state, uint32_t *length);

// The first state on a text's link path that was followed by a token, and the length of its match (at most
// SAM_MAX_MATCH unless SAM_OLDEST); SAM_ROOT and 0 if there is none.
sam_state sam_match(const sam_index *index, const sam_cursor *cursor, uint32_t *length);

// A search for the match of a text that continues after a cursor: as sam_match, for the cursor's text and `count` > 0
// more tokens, which are not in the index; the match has at most SAM_MAX_MATCH tokens. It has found `state` and
// `length` when sam_search_step returns false. Each step reads what the one before it has prefetched, so steps of
// many searches are to be taken in turn.
typedef struct {
    const sam_index *index;
    const int32_t *tokens; // that are left
    uint32_t count;        // of them
    uint32_t length;       // of the match so far
    sam_state state;       // of the match so far
    bool found;            // `state` was found by the last step, and may be a place that has become a node
    bool shortened;        // `length` is to be that of `state`
} sam_search;

void sam_search_begin(sam_search *search, const sam_index *index, const sam_cursor *cursor,
                      const int32_t *tokens, uint32_t count);
bool sam_search_step(sam_search *search);

// Extends a match in a finished index by one token of the matched text: *state and *length become those of
// the longest suffix in the index.
void sam_advance(const sam_index *index, sam_state *state, uint32_t *length, int32_t token);

// Returns from a validating function with parameter `reason`.
#define SAM_REQUIRE(condition, sentence)                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            *reason = sentence;                                                                              \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

#endif
