// SPDX-License-Identifier: Apache-2.0
//
// What the rules share: a draft in the making, the probability of a path, and what is kept of a draft to learn from.
// rules.h describes the rules. The files that implement them:
//
//   rules.c          the interface: drafts of a batch, the model
//   match.c          matches of a text in its sources, and what followed them
//   rule_blend.c     `blend`: chains that match again at every drafted token
//   rule_copy.c      `oldest` and `newest`
//   rule_suffix.c    `suffix`
//   learn.c          records of drafts, and what is learned from them

#ifndef DRAFT_H
#define DRAFT_H

#include "model.h"
#include "rules.h"

#include <string.h>

enum {
    MAX_NODES = RULE_MAX_DRAFT + 1, // of a draft, the end of the text included
    MAX_MATCHES = MODEL_SOURCES * MODEL_RANKS,
    MAX_CANDIDATES = 2 * MAX_MATCHES + 1, // of a node: two of each match and the successor
    DEEP_CANDIDATES = 5,                  // of a node below the first
    MORE = 6,                             // tokens after a match in a corpus that are looked up
    ALL_CANDIDATES = MAX_CANDIDATES + RULE_MAX_DRAFT * DEEP_CANDIDATES,
};

_Static_assert((int)RULE_LAST == (int)MODEL_LAST, "successors are looked up by the last tokens");

#define PATH_ONE (1u << 30) // probability 1 of a path

// A candidate for the token after a node, with the inputs of its probability.
typedef struct {
    int32_t token;
    uint16_t probability; // of MODEL_ONE
    uint16_t set;         // of weights
    uint8_t source;
    uint8_t bins;   // used of `bin`
    uint32_t share; // occurrences of the token overall, if it is the most frequent one
    uint16_t bin[MAX_MATCHES + 2];
    uint16_t hash[MODEL_TOKENS];
    int16_t stretch[MODEL_INPUTS]; // 0: the candidate lacks this input
} candidate;

_Static_assert(sizeof(candidate) == 64, "a candidate takes a cache line");

// What is kept of a step of a draft, to learn from. The block of a rule_record has the steps, then their candidates.
typedef struct {
    int32_t token;       // the drafted one; SAM_NO_TOKEN: there is none
    uint16_t bin;        // of its probability, if that was not mixed
    uint16_t candidates; // considered for it
} kept_step;

typedef struct {
    int32_t token;         // SAM_NO_TOKEN: the end of the text
    uint32_t first, count; // of its candidates
    uint32_t path;         // probability of the path to the node, of PATH_ONE
    uint32_t depth;
    uint32_t best;           // the most probable candidate, the first on a tie
    uint32_t best_path;      // its path's probability; 0: there is none
    int32_t last[RULE_LAST]; // tokens before its candidates
    sam_state state[RULE_INDEXES];
    uint32_t length[RULE_INDEXES];
    corpus_match corpus[MODEL_RANKS];
    uint32_t corpus_count;
} node;

struct rule_work {
    node nodes[MAX_NODES]; // of the current drafts
    candidate candidates[ALL_CANDIDATES];
};

struct rule_model {
    model model;
    rule_work work;
};

typedef struct {
    const rule_model *model;
    const rule_context *context;
    node *nodes; // a part of a rule_work
    candidate *candidates;
    rule_name rule;
    uint32_t node_count, candidate_count;
} draft;

// A draft that is being built.
typedef struct {
    uint32_t k, min_prob; // min_prob: of a path, of PATH_ONE
    uint32_t size;
    bool below_min_prob; // the last token is too improbable: it is not drafted, only learned from
    bool with_lengths;
    int32_t tokens[RULE_MAX_DRAFT];
    uint32_t paths[RULE_MAX_DRAFT];
    uint16_t bins[RULE_MAX_DRAFT];
    uint8_t sources[RULE_MAX_DRAFT];
    uint32_t lengths[RULE_MAX_DRAFT]; // of matches
} output;

static inline uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// The probability of a path that goes on by a token of this probability.
static inline uint32_t times(uint32_t path, uint32_t probability) {
    return (uint32_t)((uint64_t)path * probability / MODEL_ONE);
}

// Adds a token to a draft; `path` is the probability of the path to it, `bin` where its own probability is from.
static inline void emit(output *o, int32_t token, uint32_t path, uint32_t source, uint32_t bin,
                        uint32_t length) {
    uint32_t at = o->size++;
    o->tokens[at] = token;
    o->paths[at] = path;
    o->sources[at] = (uint8_t)source;
    o->bins[at] = (uint16_t)bin;
    o->lengths[at] = length;
    o->below_min_prob = path < o->min_prob;
}

// `oldest` and `newest`.
void draft_copy(const draft *d, output *o);

void draft_suffix(const draft *d, output *o);

// Keeps what rule_learn needs of a draft. Returns false if there is no memory.
bool draft_keep(const draft *d, sam_memory *memory, const output *o, rule_record *record);

#endif
