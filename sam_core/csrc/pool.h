// SPDX-License-Identifier: Apache-2.0
//
// A pool of requests that draft from their own text and from the answers to the same prompt.
//
//   slot ----> text (prompt + answer so far)             group ----> texts of all members, open or closed
//     |------> request index: automaton of the text        |-------> one automaton over all these texts
//     '------> group (none if private)                     '-------> log: occurrence -> (text, position)
//
// An occurrence is named by the token that follows it, so it exists once that token is known: in a request
// index it is the token's position (a suffix of length 0 is never matched, so 0 is free to mean "none"), in a
// group index the place in the log, counted from 1. A draft copies the text from the named token on, at most
// to the end of that text.
//
// A group matches in the whole texts of its members, the drafting slot's own included: an own occurrence is
// just as long in the request index, and a tie goes to the request, so what the group adds is what other
// texts know.
//
// A group belongs to a prompt (equal tokens, not only an equal hash) or to a name. Members of a prompt's
// group share the states of the prompt, which is inserted once. When its last slot is closed the group
// lingers, so that a later request for the prompt finds the answers, until it is dropped or its memory is
// needed (least recently closed first).
//
// Memory: texts, groups, logs and indexes count against the limit; the slot table (about 100 bytes a slot)
// does not. A request that cannot grow because of the limit or a failed allocation stops drafting for good:
// its own index is freed, later tokens are only counted, what its group already has of it stays. Nothing else
// fails.
//
// Not thread-safe; the owner serialises the calls on one pool.

#ifndef POOL_H
#define POOL_H

#include "sam.h"

enum { POOL_REQUEST = 1, POOL_GROUP = 2 }; // sources of drafts, a bit each
enum { POOL_SOURCES = 2 };                 // counters are indexed by source - 1

typedef enum { POOL_PRIVATE, POOL_BY_PROMPT, POOL_NAMED } pool_key;

typedef enum {
    POOL_OK,
    POOL_NO_MEMORY,      // the slot table could not grow
    POOL_BAD_TOKEN,      // value: a token id below 0
    POOL_BAD_SLOT,       // value: no open slot
    POOL_REPEATED_SLOT,  // value: stands in an earlier row too
    POOL_BAD_COUNT,      // value: below 0
    POOL_BAD_COUNT_SUM,  // value: sum of the counts
    POOL_BAD_DRAFT_SIZE, // value: k outside 0 .. width of out
    POOL_GROUP_IN_USE,   // value: open slots of the group
} pool_status;

// Where and what a refused argument is; written only when a function returns something else than POOL_OK.
typedef struct {
    size_t at;     // index of the token or row
    int64_t value; // the offending value
} pool_error;

typedef struct {
    uint64_t drafts; // rows with a draft
    uint64_t tokens; // drafted tokens
} pool_drafted;

// One text, owned by its group if it has one, else by its slot.
typedef struct {
    int32_t *tokens;
    uint32_t size;
    uint32_t capacity;
    uint32_t prompt_size; // the first tokens of the text are the prompt
    uint32_t number;      // place in the group's texts, in order of opening
    uint32_t state;       // state of the whole text in the group's index
} pool_text;

typedef struct {
    uint32_t text;     // number of the text
    uint32_t position; // of the token that follows the occurrence
} pool_occurrence;

typedef struct pool_group {
    struct pool_group *chain;         // next group of the same bucket
    struct pool_group *older, *newer; // neighbours among the closed groups
    uint64_t hash;
    pool_key kind;
    void *key; // POOL_BY_PROMPT: the prompt as int32_t, POOL_NAMED: the name
    size_t key_bytes;
    sam_index index;
    pool_text **texts;
    pool_occurrence *log;
    uint32_t text_count, text_capacity;
    uint32_t log_size, log_capacity;
    uint32_t open;         // slots that belong to the group; 0: it is among the closed groups
    uint32_t prompt_state; // POOL_BY_PROMPT, state of the whole prompt, valid if has_prompt
    bool has_prompt;       // POOL_BY_PROMPT: the index holds the whole prompt
} pool_group;

typedef struct {
    bool open;
    bool indexed; // false: never drafts (no source, or out of memory)
    uint32_t next_free;
    uint32_t last;     // state of the whole text in the request index
    uint64_t step;     // the latest step that named this slot: finds a slot named twice
    pool_text *text;   // NULL if nothing needs it
    pool_group *group; // NULL if private
    sam_index request; // zeroed if not selected or out of memory
} pool_slot;

typedef struct {
    uint32_t slot, count, k;
} pool_row;

typedef struct {
    sam_memory memory;
    sam_rule rule;
    unsigned sources; // POOL_REQUEST | POOL_GROUP
    pool_slot *slots;
    uint32_t slot_count, slot_capacity, free_slot;
    pool_row *rows; // the step's arguments, copied once checked
    size_t row_capacity;
    pool_group **buckets;
    size_t bucket_count;         // 0 or a power of two
    pool_group *oldest, *newest; // ends of the list of closed groups
    uint64_t steps;
    uint64_t slots_open, groups, tokens; // tokens: held in texts now
    uint64_t appended;                   // tokens passed to pool_step
    uint64_t evicted_groups, exhausted;
    pool_drafted drafted[POOL_SOURCES];
} pool;

void pool_init(pool *p, size_t memory_bytes, sam_rule rule, unsigned sources);

// Frees everything, open slots included.
void pool_free(pool *p);

// Opens a slot for a prompt of tokens >= 0 and stores its number. `name` is read for POOL_NAMED only.
// POOL_NO_MEMORY (the slot table) leaves the pool as it was. O(prompt).
pool_status pool_open(pool *p, const int32_t *prompt, size_t size, pool_key kind, const void *name,
                      size_t name_bytes, uint32_t *slot);

// Appends counts[i] of the tokens to each slots[i], all rows first, then writes a draft of at most k tokens
// for each row to out + i * width and its length to lengths[i]; the rest of a row of `out` is left alone. `k`
// has one value a row, or only one if uniform_k. Any status but POOL_OK: nothing has changed.
pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const int32_t *tokens, size_t token_count,
                      const int32_t *counts, const int32_t *k, bool uniform_k, int32_t *out, size_t width,
                      int32_t *lengths, pool_error *error);

// Closes a slot. keep: the text stays with its group. Else the group forgets it as if it had never been,
// which rebuilds the group's index in its present memory: linear in the tokens of the group. POOL_BAD_SLOT
// changes nothing.
pool_status pool_close(pool *p, int64_t slot, bool keep, pool_error *error);

// Frees the group of a prompt or name; *found tells whether there was one. POOL_GROUP_IN_USE changes nothing.
pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error);

// Checks every invariant of the pool and its indexes. Returns false and a sentence in *reason if one is
// broken.
bool pool_validate(pool *p, const char **reason);

#endif
