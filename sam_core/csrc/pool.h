// SPDX-License-Identifier: Apache-2.0
//
// A pool of requests that draft from their own text, from the answers to the same prompt and from a corpus.
//
//   slot ----> text (prompt + answer so far)              group ----> texts of its members, in order of
//   opening
//     |------> request index: automaton of the text         '-------> one automaton over all these texts
//     |------> where the corpus matches
//     '------> group (none if private)
//
// A group belongs to a prompt (equal tokens, not only an equal hash) or to a name. In the automaton of a
// prompt's group the prompt stands once, and the answers branch off. A group's life starts when a slot opens
// and ends when its last slot is closed; then it lingers, so that the next life finds the answers. If history
// is a source, the texts that a life finds are its history: drafts that copy them are counted apart.
//
// Automata are fed bit by bit, so that no call takes long: a token is stored with its text at once, and what
// an automaton lacks is caught up by later calls, POOL_SLICE tokens or so a step (group.h). A slot drafts
// from an automaton once that has all of the slot's own text.
//
// A match in the corpus depends only on a text's last tokens. It is brought up to date when the slot drafts.
//
// Memory. Texts, groups, automata, records of drafts and what was learned count against the limit; the slot
// table (under 1 KiB a slot) does not. room.h tells what is freed when the limit is reached. A slot that gets
// no memory for its automata does not draft, and tries again when there is some; one whose tokens cannot be
// stored never drafts again. A failed allocation counts as no memory. Nothing else ever fails.
//
// Not thread-safe; the owner serialises the calls on one pool.

#ifndef POOL_H
#define POOL_H

#include "rules.h"

enum {
    POOL_SPARE_SLOTS = 64, // closed slot numbers that wait at least before one is used again
    POOL_SLICE = 2048,     // work of a step beside that for its new tokens; a token in a large automaton is
    POOL_LARGE_COST = 3,   // this much work, for want of cache, in any other 1
    POOL_LARGE = 1 << 15,  // nodes of a large automaton
    POOL_OFF_SLICE = 512,  // work of a step that drafts nothing
    POOL_DYING = 8,
    POOL_LIVES = 1 << 13,
};

typedef enum { POOL_PRIVATE, POOL_BY_PROMPT, POOL_NAMED } pool_key;

// For whom memory is wanted: what may be freed for it.
typedef enum {
    POOL_FOR_ALL,   // tokens of open slots, and an automaton without which a slot could not draft
    POOL_FOR_BUILD, // a group's automaton
    POOL_FOR_SPARE, // what can be done without: only automata of closed groups
} pool_power;

typedef enum {
    POOL_OK,
    POOL_NO_MEMORY,      // the slot table could not grow
    POOL_BAD_TOKEN,      // value: a token id below 0
    POOL_BAD_SLOT,       // value: no open slot
    POOL_REPEATED_SLOT,  // value: stands in an earlier row too
    POOL_BAD_COUNT,      // value: below 0
    POOL_BAD_COUNT_SUM,  // value: sum of the counts
    POOL_BAD_START,      // value: below 0
    POOL_BAD_END,        // value: start + count, beyond the row
    POOL_BAD_DRAFT_SIZE, // value: k outside 0 .. the largest allowed
    POOL_GROUP_IN_USE,   // value: open slots of the group
    POOL_BAD_SIZE,       // value: tokens of the text; a truncated one keeps its prompt and grows by nothing
} pool_status;

// Where and what a refused argument is; written only when a function returns something else than POOL_OK.
typedef struct {
    size_t at;     // index of the token or row
    int64_t value; // the offending value
} pool_error;

// Owned by its group if that lists it, else by its slot.
typedef struct pool_text {
    sam_text body;              // comes first: arrays of sam_text * lead here
    sam_text *self;             // the body: an array of texts for the request index
    sam_cursor cursor;          // how far the group's automaton has it, if indexed
    struct pool_text *next_due; // in the group's queue
    uint32_t prompt_size;       // the first tokens of the text are the prompt
    uint32_t number;            // among the group's texts; SAM_NONE: not listed
    uint32_t slot;              // that has it; SAM_NONE: closed
    bool indexed;               // the group's automaton has its beginning
    bool due;                   // in the group's queue
    bool removed;               // the group forgets it when its automaton is freed
    bool freed;                 // by the pool, while it was pinned
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
    uint32_t kept;    // texts that are there and not removed
    uint32_t removed; // texts that are there still
    uint32_t past;    // texts of smaller numbers are older than this life; all of a closed group's are
    uint32_t past_texts;
    uint64_t past_tokens, tokens; // in texts of the past; in all texts
    uint32_t open;                // slots that belong to the group
    uint32_t first_text;          // texts of smaller numbers were freed, or are in use

    sam_index index;   // zeroed: none
    sam_cursor prompt; // POOL_BY_PROMPT: end of the prompt in the automaton, if has_prompt
    bool has_prompt;
    pool_text *carrier;              // the text by which the prompt is fed
    pool_text *first_due, *last_due; // texts that the automaton is to get, or to get more of
    uint32_t
        next_past; // closed texts of smaller numbers are to be indexed, the newest first, if they are not
    uint64_t closed_tokens;     // in the automaton, of closed texts
    uint64_t max_closed_tokens; // that the automaton may have; UINT64_MAX: all
    size_t needs;               // bytes that must be available before more is indexed
    bool lost;  // there was no memory for open texts: it is not begun before there are `needs`
    bool swaps; // it was worth its slots' request indexes when it was begun

    uint64_t accepted, appended; // tokens of its slots while they could draft from it, fading
    size_t spare;                // bytes that a closed group could give, as counted in the pool's
} pool_group;

typedef struct {
    bool open;
    bool drafts;               // false: never drafts (no source, or its tokens could not be stored)
    bool waits;                // there was no memory for an automaton
    bool exhausted;            // it was counted
    uint32_t next;             // free slot that was closed after this one
    uint64_t step;             // the latest step that named this slot: finds a slot named twice
    pool_text *text;           // NULL if nothing needs it
    pool_group *group;         // NULL if private
    sam_index request;         // zeroed: none
    sam_cursor cursor;         // how far the request index has the text
    size_t needs;              // bytes that must be available before the request index is built; 0: none
    corpus_context *corpus_at; // NULL without a corpus
    uint32_t matched;          // tokens of the text that it has seen
    rule_record record;
} pool_slot;

typedef struct {
    const int32_t *tokens; // count of them
    uint32_t slot, count, k;
} pool_row;

typedef struct {
    sam_memory memory;
    rule_name rule;
    unsigned sources;    // bits 1 << RULE_REQUEST, RULE_GROUP, RULE_HISTORY; history only with group
    float least;         // drafts end before their probability falls below
    uint32_t vocab_size; // drafts end before a token of at least this; 0: unknown
    uint64_t tokenizer;  // fingerprint of the one whose ids the tokens are; 0: unknown
    corpus corpus;       // zeroed: none
    rule_model *model;
    pool_slot *slots;
    uint32_t slot_count, slot_capacity;
    uint32_t free_count, first_free, last_free; // closed slots, a queue
    pool_row *rows;                             // the step's arguments, copied once checked
    size_t row_capacity;
    pool_group **buckets;
    size_t bucket_count;         // 0 or a power of two
    pool_list opened;            // groups with open slots
    pool_list fresh, settled;    // groups without: closed lately, and before (room.h)
    pool_list idle;              // groups without that have an automaton
    size_t fresh_bytes, spare;   // of the groups in `fresh`; in that and `settled`: see pool_group
    sam_index dying[POOL_DYING]; // large automata that are freed bit by bit; zeroed: none
    uint8_t *lives;              // by hash of a group's key, how many lives began lately: POOL_LIVES counts
    uint32_t lives_count;        // since they were halved
    uint64_t accepted_in_groups, appended_in_groups; // sums of the groups', fading
    pool_power power;                                // what may be freed now
    const pool_group *uses;                          // whose automaton may not be freed now
    const pool_slot *uses_slot;                      // whose request index may not be freed now
    const pool_group *builds;                        // for whose automaton memory is wanted
    int64_t slice, off_slice;                        // POOL_SLICE and POOL_OFF_SLICE, but in tests
    int64_t work;                                    // what may still be done in this call
    uint32_t hand;                                   // slot where free_double looked last
    uint64_t steps;
    uint64_t slots_open, groups;
    uint64_t tokens;                        // held in texts now
    uint64_t history_texts, history_tokens; // of them older than their group's life, if history is a source
    uint64_t appended;                      // tokens passed to pool_step and pool_append
    uint64_t drafts[RULE_SOURCES];          // whose first token came from the source
    uint64_t drafted[RULE_SOURCES];         // tokens
    uint64_t accepted[RULE_SOURCES];        // of them those that came true
    uint64_t evicted_groups, evicted_history, exhausted;
} pool;

// Bytes without which no pool can be made.
size_t pool_least_bytes(void);

// Makes a pool, which must not move, and takes over the corpus; NULL: none. On failure false is returned and
// there is nothing to free; the corpus is the caller's still.
bool pool_init(pool *p, size_t memory_bytes, rule_name rule, unsigned sources, const corpus *c, float least);

// Frees everything, open slots included.
void pool_free(pool *p);

// Opens a slot for a prompt of tokens >= 0 and stores its number. `name` is read for POOL_NAMED only.
// POOL_NO_MEMORY (the slot table) leaves the pool as it was. O(prompt).
pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *slot);

// What pool_step appends: packed tokens, row after row, or parts of the rows of a table.
typedef struct {
    const int32_t *tokens;
    size_t size;           // packed: tokens of all rows; table: tokens a row
    const int32_t *starts; // NULL: packed; else those of row i begin at tokens + i * stride + starts[i]
    ptrdiff_t stride;      // from row to row of a table, in tokens
} pool_tokens;

// Where pool_step writes: row i of each array is at i * width.
typedef struct {
    int32_t *tokens;
    int32_t *parents; // NULL: chains
    float *scores;    // NULL: not wanted
    int32_t *lengths; // one a row
    size_t width;
    int32_t *sources, *match_lengths; // NULL: not wanted
} pool_drafts;

// Appends counts[i] of the tokens to each slots[i], all rows first, then writes a draft of at most k tokens
// for each row; the rest of a row of `out` is left alone. `k` has one value a row, or only one if uniform_k,
// at most the width and RULE_MAX_DRAFT. Any status but POOL_OK: nothing has changed. The error of a token of
// a table is at row * size + column.
pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error);

// Appends to one slot. Any status but POOL_OK: nothing has changed.
pool_status pool_append(pool *p, int64_t slot, const int32_t *tokens, size_t count, pool_error *error);

// Closes a slot. keep: its text stays with its group, else the group forgets it, at the latest when its life
// ends. POOL_BAD_SLOT changes
// nothing.
pool_status pool_close(pool *p, int64_t slot, bool keep, pool_error *error);

// Takes the tokens of a slot's text behind the first `size` back: at least those of its prompt stay, at most
// all. Its automata are fed again, bit by bit. POOL_BAD_SLOT and POOL_BAD_SIZE change nothing.
pool_status pool_truncate(pool *p, int64_t slot, size_t size, pool_error *error);

// Frees the group of a prompt or name with its texts; *found tells whether there was one.
// POOL_GROUP_IN_USE changes nothing.
pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error);

// Checks every invariant of the pool and its indexes. Returns false and a sentence in *reason if one is
// broken.
bool pool_validate(pool *p, const char **reason);

// ---- for persist.c

// A new closed group, in no table or list, whose key is still to be written. NULL: no memory.
pool_group *pool_new_group(pool *p, pool_key kind, size_t key_bytes);

// Makes a new group, which has a key and texts, the most recently closed one. POOL_GROUP_IN_USE: its key is
// in use. POOL_NO_MEMORY and POOL_GROUP_IN_USE change nothing.
pool_status pool_add_group(pool *p, pool_group *g);

// Frees a new group that was not added.
void pool_free_group(pool *p, pool_group *g);

// A new text with room for `size` tokens, to be filled and its body.size to be set. NULL: no memory.
pool_text *pool_new_text(pool *p, uint32_t prompt_size, uint32_t size);

// Gives a text to a new group. False: no memory, and the text is freed.
bool pool_add_text(pool *p, pool_group *g, pool_text *text);

// Frees a text that was not given to a group and has body.size 0 still.
void pool_free_text(pool *p, pool_text *text);

// Keeps the tokens of a closed text, which never change, where they are until it is unpinned as often, also
// if the pool frees the text before. Its memory then is beyond the pool's limit.
void pool_pin(pool_text *text);
void pool_unpin(pool_text *text);

#endif
