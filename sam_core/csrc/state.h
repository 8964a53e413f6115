// SPDX-License-Identifier: Apache-2.0
//
// The state of a pool: structs that the files from account.c to pool.c share. pool.h describes the whole.
//
//   slot --> text (prompt + answer so far)             group --> texts of its members, in order of opening
//     |----> request index: automaton of the text         '----> one automaton over all these texts
//     |----> where the corpus matches
//     '----> group (none if private)

#ifndef STATE_H
#define STATE_H

#include "rules.h"

enum {
    POOL_SPARE_SLOTS = 64, // closed slots, at least, before a slot number is used again
    POOL_SLICE = 2048,     // work of a step in addition to its new tokens
    POOL_LARGE_COST = 3,   // work of a token in a large automaton, which misses the cache; else 1
    POOL_LARGE = 1 << 15,  // nodes of a large automaton
    POOL_OFF_SLICE = 512,  // work of a step that drafts nothing
    POOL_AHEAD = 64,       // tokens that an automaton may lack of a text that drafts from it
    POOL_DISCARDED = 8,    // large automata that are being freed
    POOL_LIVES = 1 << 13,  // counters of lives
    POOL_MAX_THREADS = 16, // of a step
};

typedef enum { POOL_PRIVATE, POOL_BY_PROMPT, POOL_NAMED } pool_key;

// The purpose of an allocation, which decides what may be freed for it.
typedef enum {
    POOL_FOR_ALL,   // tokens of open slots, and an automaton without which a slot could not draft
    POOL_FOR_BUILD, // a group's automaton
    POOL_FOR_SPARE, // something dispensable: frees only automata of closed groups
} pool_purpose;

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
    pool_link by_state;       // in `opened`, `window` or `main`
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

    uint64_t accepted, appended;     // tokens of its slots while they could draft from it, decaying
    size_t closed_bytes, idle_bytes; // of a closed group, and of its automaton, as counted in the pool's

    uint64_t step;                // the latest large step in which slots of the group drafted (threads.h)
    uint32_t first_row, last_row; // of these slots in that step
} pool_group;

typedef struct {
    bool open;
    bool drafts;               // false: never drafts (no source, or its tokens could not be stored)
    bool isolated;             // see pool_isolate
    bool lacks_memory;         // the last feeding left it without an index, for lack of memory
    bool exhausted;            // counted in the pool's stats.exhausted
    uint32_t next;             // next free slot in the queue
    uint64_t step;             // the latest step with this slot: detects a slot that is given twice
    pool_text *text;           // NULL if no source uses it
    pool_group *group;         // NULL if private
    sam_index request;         // zeroed: none
    sam_cursor cursor;         // end of the part of the text in the request index
    size_t needs;              // bytes that must be available before the request index is built; 0: none
    corpus_context *corpus_at; // NULL without a corpus
    uint32_t corpus_size;      // tokens of the text that corpus_at includes
    rule_record record;
} pool_slot;

typedef struct {
    const int32_t *tokens; // count of them
    uint32_t slot, count, k;
    uint32_t next;     // row of the same group (threads.h)
    bool fed, drafted; // in this step
    bool left;         // to the loops: the row, or if it is the first of a group, that group (threads.h)
    bool in_group;     // its group has an index (threads.h)
    bool behind;       // its indexes lack more than the tokens of this step
    sam_prefetched prefetched[RULE_INDEXES]; // how far it is prefetched
    bool matched;                            // `states` and `lengths` are known
    sam_state states[RULE_INDEXES];          // of its matches, SAM_NONE: it does not draft from the automaton
    uint32_t lengths[RULE_INDEXES];
} pool_row;

typedef struct {
    sam_memory memory;
    corpus corpus; // zeroed: none
    rule_model *model;
    struct {
        rule_name rule;
        unsigned sources;    // bits 1 << RULE_REQUEST, ...; not RULE_CORPUS; history only with group
        float min_prob;      // drafts end before their probability falls below
        uint32_t vocab_size; // drafts end before a token of at least this; 0: unknown
        uint64_t tokenizer;  // fingerprint of the tokens' tokenizer; 0: unknown
    } options;
    struct {
        pool_slot *items;
        uint32_t count, capacity;
        uint32_t free_count, first_free, last_free; // closed slots, a queue
    } slots;
    struct { // of the current or the latest step
        uint64_t number;
        pool_row *rows;           // its arguments, copied once checked
        uint32_t *order;          // numbers of rows (threads.h)
        size_t capacity;          // of both
        bool drafting;            // a row drafts
        size_t left;              // rows that pool_catch_up is to feed
        int64_t work;             // work left for this call
        int64_t slice, off_slice; // POOL_SLICE and POOL_OFF_SLICE; tests change them
    } step;
    struct {                      // of large steps
        uint32_t count;           // up to POOL_MAX_THREADS
        uint32_t many_rows;       // rows of a large step: MANY_ROWS; tests change it
        struct thread_team *team; // once there were some
    } threads;
    struct {
        pool_group **buckets;
        size_t bucket_count;         // 0 or a power of two
        pool_list opened;            // groups with open slots
        pool_list window, main;      // closed groups, recent and older ones (evict.h)
        pool_list idle;              // closed groups with an automaton
        size_t window_bytes;         // sum over `window`
        size_t closed_bytes;         // sum over `window` and `main`; see pool_group
        size_t idle_bytes;           // sum over `idle`
        uint8_t *lives;              // [POOL_LIVES] recent lives, by the hash of a group's key
        uint32_t lives_count;        // since they were halved
        uint64_t accepted, appended; // sums over the groups, decaying
    } groups;
    struct {
        pool_purpose purpose;                // what may be freed now
        const pool_group *protected_group;   // its automaton must not be freed now
        const pool_slot *protected_slot;     // its request index must not be freed now
        const pool_group *building;          // the group whose automaton is being built
        uint32_t scan_slot;                  // where evict.c goes on to look for redundant request indexes
        sam_index discarded[POOL_DISCARDED]; // large automata that are freed in portions; zeroed: none
    } freeing;
    struct {
        uint64_t slots_open, groups;
        uint64_t tokens;                        // in texts now
        uint64_t history_texts, history_tokens; // older than their group's life, if history is a source
        uint64_t appended;                      // tokens passed to pool_step and pool_append
        uint64_t drafts[RULE_SOURCES];          // drafts whose first token came from the source
        uint64_t drafted[RULE_SOURCES];         // draft tokens from the source
        uint64_t accepted[RULE_SOURCES];        // those that the appended tokens confirmed
        uint64_t evicted_groups, evicted_history, exhausted;
    } stats;
} pool;

// Where pool_step writes: row i of each array is at i * width.
typedef struct {
    int32_t *tokens;
    float *scores;    // NULL: not written
    int32_t *lengths; // one per row
    size_t width;
    int32_t *sources, *match_lengths; // NULL: not written
    bool index_later;                 // drafts come before the new tokens are fed, see pool.h
} pool_drafts;

static inline bool has_source(const pool *p, int source) { return p->options.sources >> source & 1; }

static inline sam_kind index_kind(const pool *p) {
    return p->options.rule == RULE_OLDEST   ? SAM_OLDEST
           : p->options.rule == RULE_NEWEST ? SAM_NEWEST
                                            : SAM_COUNTED;
}

// The text with this number, NULL if it was freed.
static inline pool_text *text_of(const pool_group *g, uint32_t number) {
    return (pool_text *)g->texts[number];
}

// The smallest memory limit of a pool, in bytes.
static inline size_t pool_min_bytes(void) { return rule_model_bytes() + POOL_LIVES; }

#endif
