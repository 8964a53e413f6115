// SPDX-License-Identifier: Apache-2.0
//
// A pool of requests that draft from their own text, from the answers to the same prompt and from a corpus.
//
//   slot --> text (prompt + answer so far)             group --> texts of its members, in order of opening
//     |----> request index: automaton of the text         '----> one automaton over all these texts
//     |----> where the corpus matches
//     '----> group (none if private)
//
// A group belongs to a prompt (equal tokens, not only an equal hash) or to a name. In its automaton the prompt
// stands once, and the answers branch off. A slot of a named group whose prompt begins with a closed text of the
// group, the last few tokens aside, continues that text: an answer that is resumed, or the next turn of a
// conversation. Its prompt remains that of the first slot. A group's life starts when a slot opens
// and ends when its last slot is closed. If history is a source, the group lingers, so that the next life finds
// the answers: drafts that copy them are counted apart. Else it is freed with its texts.
//
// Automata are fed in portions, so that no call takes long: a token is stored in its text at once, and later
// calls feed it to the automata, about POOL_SLICE tokens per step (group.h). A slot drafts from an automaton
// that lacks at most POOL_AHEAD tokens at the end of the slot's own text: a walk along these finds the match.
//
// An early step drafts before its tokens are fed, so that the caller gets its drafts sooner. Feeding is left to
// pool_catch_up, or to the next call. Only automata that lack more than the new tokens are fed at once, and these
// only in a step of few rows.
//
// A match in the corpus depends only on a text's last tokens. It is brought up to date when the slot drafts.
//
// Memory. Texts, groups, automata, records of drafts and what was learned count against the limit; the slot
// table (less than 1 KiB per slot) does not. When the limit is reached, memory is freed as room.h says. A
// slot without memory for its automata does not draft until there is some; a slot whose tokens cannot be
// stored never drafts again. A failed allocation counts as reaching the limit. Nothing else can fail.
//
// Not thread-safe; the owner serialises the calls on one pool.

#ifndef POOL_H
#define POOL_H

#include "rules.h"

enum {
    POOL_SPARE_SLOTS = 64, // closed slots, at least, before a slot number is used again
    POOL_SLICE = 2048,     // work of a step in addition to its new tokens
    POOL_LARGE_COST = 3,   // work of a token in a large automaton, which misses the cache; else 1
    POOL_LARGE = 1 << 15,  // nodes of a large automaton
    POOL_OFF_SLICE = 512,  // work of a step that drafts nothing
    POOL_AHEAD = 64,       // tokens that an automaton may lack of a text that drafts from it
    POOL_DYING = 8,        // large automata that are being freed
    POOL_LIVES = 1 << 13,  // counters of lives
    POOL_MAX_THREADS = 16, // of a step
};

typedef enum { POOL_PRIVATE, POOL_BY_PROMPT, POOL_NAMED } pool_key;

// The purpose of an allocation, which decides what may be freed for it.
typedef enum {
    POOL_FOR_ALL,   // tokens of open slots, and an automaton without which a slot could not draft
    POOL_FOR_BUILD, // a group's automaton
    POOL_FOR_SPARE, // something dispensable: frees only automata of closed groups
} pool_power;

typedef enum {
    POOL_OK,
    POOL_NO_MEMORY,      // the slot table could not grow
    POOL_BAD_TOKEN,      // value: a token id below 0
    POOL_BAD_SLOT,       // value: no open slot
    POOL_REPEATED_SLOT,  // value: the slot, which an earlier row has as well
    POOL_BAD_COUNT,      // value: below 0
    POOL_BAD_COUNT_SUM,  // value: sum of the counts
    POOL_BAD_START,      // value: below 0
    POOL_BAD_END,        // value: start + count, beyond the row
    POOL_BAD_DRAFT_SIZE, // value: k outside 0 .. the largest allowed
    POOL_GROUP_IN_USE,   // value: open slots of the group
    POOL_BAD_SIZE,       // value: tokens of the text; a truncated one keeps its prompt and grows by nothing
} pool_status;

// A refused argument; written only if a function does not return POOL_OK.
typedef struct {
    size_t at;     // index of the token or row
    int64_t value; // the offending value
} pool_error;

// Owned by its group if that lists it, else by its slot.
typedef struct pool_text {
    sam_text body;              // must be first: arrays of sam_text * point here
    sam_text *self;             // points to body: the request index's array of texts
    sam_cursor cursor;          // end of the part in the group's automaton, if indexed
    struct pool_text *next_due; // in the group's queue
    uint32_t prompt_size;       // the first tokens of the text are the prompt
    uint32_t number;            // among the group's texts; SAM_NONE: not listed
    uint32_t slot;              // its slot; SAM_NONE: closed
    bool indexed;               // its beginning is in the group's automaton
    bool due;                   // in the group's queue
    bool removed;               // the group forgets it when its automaton is freed
    bool freed;                 // freed by the pool while it was pinned
    uint32_t pins;
} pool_text;

typedef struct {
    struct pool_group *oldest, *newest;
} pool_list;

typedef struct {
    pool_list *list; // NULL: in none
    struct pool_group *older, *newer;
} pool_link;

typedef struct pool_group {
    struct pool_group *chain; // next group of the same bucket
    pool_link by_state;       // in `opened`, `fresh` or `settled`
    pool_link by_index;       // in `idle`
    uint64_t hash;
    pool_key kind;
    void *key; // POOL_BY_PROMPT: the prompt as int32_t, POOL_NAMED: the name
    size_t key_bytes;
    sam_text **texts; // NULL: freed
    uint32_t text_count, text_capacity;
    uint32_t kept;    // texts that are neither freed nor removed
    uint32_t removed; // texts that are removed and not freed yet
    uint32_t past;    // texts with smaller numbers are older than this life; in a closed group all are
    uint32_t past_texts;
    uint64_t past_tokens, tokens; // in texts older than this life; in all texts
    uint32_t open;                // slots that belong to the group
    uint32_t first_text;          // texts with smaller numbers are freed or in use

    sam_index index;   // zeroed: none
    sam_cursor prompt; // end of the carrier's prompt in the automaton, if has_prompt
    bool has_prompt;
    pool_text *carrier;              // the text from which the prompt is fed
    pool_text *first_due, *last_due; // queue of texts with tokens to be fed to the automaton
    uint32_t next_past;              // closed texts with smaller numbers are fed next, the newest first
    uint64_t closed_tokens;          // tokens of closed texts in the automaton
    uint64_t max_closed_tokens;      // limit of closed_tokens; UINT64_MAX: none
    size_t needs;                    // bytes that must be available before more is indexed
    bool lost;                       // no memory for open texts: not begun before `needs` are available
    bool swaps;                      // it was begun for the memory of its slots' request indexes

    uint64_t accepted, appended; // tokens of its slots while they could draft from it, decaying
    size_t spare, idle_bytes;    // bytes of a closed group, and of its automaton, as counted in the pool's

    uint64_t step;                // the latest large step with drafting rows (rows.h)
    uint32_t first_row, last_row; // these
} pool_group;

typedef struct {
    bool open;
    bool drafts;               // false: never drafts (no source, or its tokens could not be stored)
    bool waits;                // there was no memory for an automaton
    bool exhausted;            // counted in the pool's `exhausted`
    uint32_t next;             // next free slot in the queue
    uint64_t step;             // the latest step with this slot: detects a slot that is given twice
    pool_text *text;           // NULL if no source uses it
    pool_group *group;         // NULL if private
    sam_index request;         // zeroed: none
    sam_cursor cursor;         // end of the part of the text in the request index
    size_t needs;              // bytes that must be available before the request index is built; 0: none
    corpus_context *corpus_at; // NULL without a corpus
    uint32_t matched;          // tokens of the text that corpus_at includes
    rule_record record;
} pool_slot;

typedef struct {
    const int32_t *tokens; // count of them
    uint32_t slot, count, k;
    uint32_t next;                  // row of the same group (rows.h)
    bool fed, drafted;              // in this step
    bool left;                      // the row, or a group if it is its first, is not ready (rows.h)
    bool in_group;                  // its group has an index (rows.h)
    bool behind;                    // its indexes lack more than the tokens of this step
    sam_asked asked[RULE_INDEXES];  // how far it is prefetched (rows.h)
    bool matched;                   // `states` and `lengths` are known
    sam_state states[RULE_INDEXES]; // of its matches, SAM_NONE: it does not draft from the automaton
    uint32_t lengths[RULE_INDEXES];
} pool_row;

typedef struct {
    sam_memory memory;
    rule_name rule;
    unsigned sources;    // bits 1 << RULE_REQUEST, ...; not RULE_CORPUS; history only with group
    float min_prob;      // drafts end before their probability falls below
    uint32_t vocab_size; // drafts end before a token of at least this; 0: unknown
    uint64_t tokenizer;  // fingerprint of the tokens' tokenizer; 0: unknown
    corpus corpus;       // zeroed: none
    rule_model *model;
    pool_slot *slots;
    uint32_t slot_count, slot_capacity;
    uint32_t free_count, first_free, last_free; // closed slots, a queue
    pool_row *rows;                             // the step's arguments, copied once checked
    uint32_t *order;                            // numbers of rows (rows.h)
    size_t row_capacity;                        // of both
    bool drafting;                              // a row of this step drafts
    size_t left;                                // rows that pool_catch_up is to feed
    uint32_t num_threads;                       // of large steps, up to POOL_MAX_THREADS
    struct rows_team *team;                     // these, once there was one
    uint32_t many_rows;                         // of a large step: MANY_ROWS; tests change it
    pool_group **buckets;
    size_t bucket_count;         // 0 or a power of two
    pool_list opened;            // groups with open slots
    pool_list fresh, settled;    // closed groups, recent and older ones (room.h)
    pool_list idle;              // closed groups with an automaton
    size_t fresh_bytes, spare;   // sums over `fresh`, and over `fresh` and `settled`; see pool_group
    size_t idle_bytes;           // sum over `idle`
    sam_index dying[POOL_DYING]; // large automata that are freed in portions; zeroed: none
    uint8_t *lives;              // [POOL_LIVES] recent lives, by the hash of a group's key
    uint32_t lives_count;        // since they were halved
    uint64_t accepted_in_groups, appended_in_groups; // sums over the groups, decaying
    pool_power power;                                // what may be freed now
    const pool_group *uses;                          // its automaton must not be freed now
    const pool_slot *uses_slot;                      // its request index must not be freed now
    const pool_group *builds;                        // the group whose automaton is being built
    int64_t slice, off_slice;                        // POOL_SLICE and POOL_OFF_SLICE; tests change them
    int64_t work;                                    // work left for this call
    uint32_t hand;                                   // the slot at which free_double stopped
    uint64_t steps;
    uint64_t slots_open, groups;
    uint64_t tokens;                        // in texts now
    uint64_t history_texts, history_tokens; // older than their group's life, if history is a source
    uint64_t appended;                      // tokens passed to pool_step and pool_append
    uint64_t drafts[RULE_SOURCES];          // drafts whose first token came from the source
    uint64_t drafted[RULE_SOURCES];         // draft tokens from the source
    uint64_t accepted[RULE_SOURCES];        // those that the appended tokens confirmed
    uint64_t evicted_groups, evicted_history, exhausted;
} pool;

// The smallest memory limit of a pool, in bytes.
size_t pool_min_bytes(void);

// Initializes a pool, which must not move, and takes ownership of the corpus (NULL: none). Returns false on
// failure: nothing has to be freed, and the caller still owns the corpus.
bool pool_init(pool *p, size_t memory_bytes, rule_name rule, unsigned sources, const corpus *c,
               float min_prob);

// Frees everything, open slots included.
void pool_free(pool *p);

// The tokens of a slot that are its prompt; 0 for one that stores none.
pool_status pool_prompt_size(const pool *p, int64_t slot, uint32_t *size, pool_error *error);

// Opens a slot for a prompt of tokens >= 0 and stores its number. `name` is read for POOL_NAMED only.
// POOL_NO_MEMORY (the slot table) leaves the pool unchanged. O(prompt).
pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *slot);

// What pool_step appends: packed tokens, row after row, or parts of the rows of a table.
typedef struct {
    const int32_t *tokens;
    size_t size;           // packed: tokens of all rows; table: tokens a row
    const int32_t *starts; // NULL: packed; else row i's tokens begin at tokens + i * stride + starts[i]
    ptrdiff_t stride;      // from row to row of a table, in tokens
} pool_tokens;

// Where pool_step writes: row i of each array is at i * width.
typedef struct {
    int32_t *tokens;
    int32_t *parents; // NULL: chains
    float *scores;    // NULL: not written
    int32_t *lengths; // one per row
    size_t width;
    int32_t *sources, *match_lengths; // NULL: not written
    bool early;                       // they come before the new tokens are fed, see above
} pool_drafts;

// Appends counts[i] tokens to slots[i] for all rows, then writes a draft of at most k tokens for each row and
// leaves the rest of a row of `out` unchanged. `k` has one value per row, or only one if uniform_k, at most
// the width and RULE_MAX_DRAFT. With any status but POOL_OK nothing has changed. The error of a token in a
// table is at row * size + column.
pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error);

// Feeds what an early step has left. All other calls do that first.
void pool_catch_up(pool *p);

// Appends to one slot. With any status but POOL_OK nothing has changed.
pool_status pool_append(pool *p, int64_t slot, const int32_t *tokens, size_t count, pool_error *error);

// Closes a slot. If `keep`, its text stays with its group, else the group forgets it, at the latest when its
// life ends. POOL_BAD_SLOT changes nothing.
pool_status pool_close(pool *p, int64_t slot, bool keep, pool_error *error);

// Truncates a slot's text to `size` tokens, from the size of its prompt to that of the text. Its automata are
// fed again, in portions. POOL_BAD_SLOT and POOL_BAD_SIZE change nothing.
pool_status pool_truncate(pool *p, int64_t slot, size_t size, pool_error *error);

// Frees the group of a prompt or name with its texts; *found: whether it existed. POOL_GROUP_IN_USE changes
// nothing.
pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error);

// Checks every invariant of the pool and its indexes. Returns false, with a sentence in *reason, if one does
// not hold.
bool pool_validate(pool *p, const char **reason);

// ---- for persist.c

// A new closed group, in no table or list; the caller writes its key. NULL: no memory.
pool_group *pool_new_group(pool *p, pool_key kind, size_t key_bytes);

// Adds a new group with its key and texts as the most recently closed one. POOL_GROUP_IN_USE: the key is in
// use. POOL_NO_MEMORY and POOL_GROUP_IN_USE change nothing.
pool_status pool_add_group(pool *p, pool_group *g);

// Frees a new group that was not added.
void pool_free_group(pool *p, pool_group *g);

// A new text with room for `size` tokens; the caller writes them and body.size. NULL: no memory.
pool_text *pool_new_text(pool *p, uint32_t prompt_size, uint32_t size);

// Adds a text to a new group. Returns false without memory; the text is freed then.
bool pool_add_text(pool *p, pool_group *g, pool_text *text);

// Frees a text that was not added to a group and whose body.size is still 0.
void pool_free_text(pool *p, pool_text *text);

// Keeps the tokens of a closed text, which never change, in place until it is unpinned as often, even if the
// pool frees the text. Its memory then does not count against the pool's limit.
void pool_pin(pool_text *text);
void pool_unpin(pool_text *text);

#endif
