// SPDX-License-Identifier: Apache-2.0
//
// A pool of requests that draft from their own text, from the answers to the same prompt and from a corpus.
// state.h draws its parts.
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
// A step with index_later drafts before its tokens are fed, so that the caller gets its drafts sooner. Feeding is
// left to pool_catch_up, or to the next call. Only automata that lack more than the new tokens are fed at once, and
// these only in a step of few rows.
//
// A match in the corpus depends only on a text's last tokens. It is brought up to date when the slot drafts.
//
// Memory. Texts, groups, automata, records of drafts and what was learned count against the limit; the slot
// table (less than 1 KiB per slot) does not. When the limit is reached, memory is freed as evict.h says. A
// slot without memory for its automata does not draft until there is some; a slot whose tokens cannot be
// stored never drafts again. A failed allocation counts as reaching the limit. Nothing else can fail.
//
// Not thread-safe; the owner serialises the calls on one pool.

#ifndef POOL_H
#define POOL_H

#include "state.h"

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
} pool_status;

// A refused argument; written only if a function does not return POOL_OK.
typedef struct {
    size_t at;     // index of the token or row
    int64_t value; // the offending value
} pool_error;

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

// Isolates an open slot that has no tokens yet: its text is forgotten as if closed without `keep`, all slots learn
// nothing of its tokens, and it does not draft from what they learned. It still shares drafts with its group, whose
// slots must all be isolated.
void pool_isolate(pool *p, uint32_t slot);

// What pool_step appends: packed tokens, row after row, or parts of the rows of a table.
typedef struct {
    const int32_t *tokens;
    size_t size;           // packed: tokens of all rows; table: tokens a row
    const int32_t *starts; // NULL: packed; else row i's tokens begin at tokens + i * stride + starts[i]
    ptrdiff_t stride;      // from row to row of a table, in tokens
} pool_tokens;

// Appends counts[i] tokens to slots[i] for all rows, then writes a draft of at most k tokens for each row and
// leaves the rest of a row of `out` unchanged. `k` has one value per row, or only one if uniform_k, at most
// the width and RULE_MAX_DRAFT. With any status but POOL_OK nothing has changed. The error of a token in a
// table is at row * size + column.
pool_status pool_step(pool *p, const int32_t *slots, size_t rows, const pool_tokens *tokens,
                      const int32_t *counts, const int32_t *k, bool uniform_k, const pool_drafts *out,
                      pool_error *error);

// Feeds what a step with index_later has left. All other calls do that first.
void pool_catch_up(pool *p);

// Appends to one slot. With any status but POOL_OK nothing has changed.
pool_status pool_append(pool *p, int64_t slot, const int32_t *tokens, size_t count, pool_error *error);

// Closes a slot. If `keep`, its text stays with its group, else the group forgets it, at the latest when its
// life ends. POOL_BAD_SLOT changes nothing.
pool_status pool_close(pool *p, int64_t slot, bool keep, pool_error *error);

// Frees the group of a prompt or name with its texts; *found: whether it existed. POOL_GROUP_IN_USE changes
// nothing.
pool_status pool_drop(pool *p, pool_key kind, const void *key, size_t key_bytes, bool *found,
                      pool_error *error);

#endif
