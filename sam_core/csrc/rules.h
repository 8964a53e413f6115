// SPDX-License-Identifier: Apache-2.0
//
// Drafting rules: from where a request's text matched earlier text to the tokens that may come next.
//
//   oldest   copies what followed the first occurrence of the longest match (the article; its min_endpos)
//   newest   copies what followed its latest occurrence
//   suffix   SuffixDecoding: for every match length p a greedy chain of at most ALPHA * p tokens, with C(N)
//            and D(N) as in its section 3; the one with the best score of all lengths and sources
//   blend    all sources and several lengths of match vote on every candidate; see below
//
// Each drafts a chain, with the probability that the path to each token is accepted.
//
// Probabilities. A candidate token c that came after n of the N followed occurrences of a match of length l,
// the latest of them or not, falls into the bin (source, rank of the match within the source,
// length, n, N - n, newest) of a table. The bin holds the share of such candidates that were confirmed: an
// adaptive mean, updated by each outcome. An outcome needs no verification: the tokens that are appended next
// confirm or refute the drafted candidates and those that were only considered. `oldest`, `newest`
// and `suffix` take the probability of their drafts from the table. They also learn from the first token that
// is too improbable to be drafted, so that an underrated bin recovers.
//
// Blend. For each token to be drafted, up to MODEL_RANKS matches of each source (the longest, then the next
// shorter ones with more occurrences) name candidates: their best and their newest; without any, the most
// frequent token overall does. If no match is long, the successor is one more candidate:
// the token that came after the last 5, 3, 2 or 1 tokens in any text of the pool, according to small tables.
// Where it may be one that no source of the request contains, it is the source RULE_COMMON.
// The probability of a candidate is a logistic mix,
//
//   stretch(p) = ln(p / (1 - p)),    P(c) = squash(sum over inputs i of weight[set][i] * stretch(p_i(c))),
//
// whose inputs are the candidate's bins, one for whether it is the successor, and three more adaptive tables
// keyed by hashes of the candidate and none, one and two tokens before it (some tokens are easier to predict
// than others). The set of weights is chosen by the lengths of the longest matches and the depth in the
// draft; candidates that are only frequent, which no match names, use no match and have sets of their own.
// Weights follow the gradient of the coding cost, as in context-mixing data compressors, so sources are
// weighted by their past success: a static source that misleads loses its weight.
//
// Everything, tables included, is integer arithmetic of fixed width: the same calls give the same drafts and
// scores on every platform.
//
// A chain takes the most probable candidate each time. It ends before the product of its probabilities falls below
// min_prob.

#ifndef RULES_H
#define RULES_H

#include "corpus.h"
#include "sam.h"

// Saved pools have these numbers; 2 is that of a former rule.
typedef enum { RULE_OLDEST, RULE_NEWEST, RULE_SUFFIX = 3, RULE_BLEND } rule_name;

// Sources. A group's history, the answers of earlier steps or epochs, is in the group's index as its first
// texts, so it is a separate source in counters only.
// RULE_COMMON has no texts: the tables of successors.
enum { RULE_REQUEST, RULE_GROUP, RULE_CORPUS, RULE_HISTORY, RULE_COMMON, RULE_SOURCES };

enum {
    RULE_INDEXES = 2,    // sources that are a sam_index: request and group
    RULE_MATCHED = 3,    // sources with matches: these and the corpus
    RULE_LAST = 5,       // last tokens of the text, by which successors are looked up
    RULE_MAX_DRAFT = 64, // tokens of a draft
    RULE_BATCH = 8       // chains that are drafted in turn, so that their cache misses overlap
};

// The matches of a request's text in each source.
typedef struct {
    const sam_index *index[RULE_INDEXES]; // NULL: not a source, or nothing in it
    sam_state state[RULE_INDEXES];        // of the longest match that something followed
    uint32_t length[RULE_INDEXES];        // of that match; 0: none
    uint32_t past;                        // the group's texts with smaller numbers are its history
    const corpus *corpus;                 // NULL: not a source
    const corpus_context *corpus_at;      // of the text
    bool common;   // successors are a source; else only those in a source of the request are used
    bool isolated; // successors are not used, and nothing is learned that names tokens: only bins and weights
    int32_t last[RULE_LAST]; // the text's last tokens, the latest first; SAM_NO_TOKEN: none
    uint32_t vocab_size;     // a draft ends before a token of at least this; 0: unlimited
} rule_context;

// What a pool has learned (model.h), and a rule_work.
typedef struct rule_model rule_model;

// Working memory of a call of rule_draft. Calls with their own may read one model at the same time.
typedef struct rule_work rule_work;

size_t rule_model_bytes(void);                              // to allocate
void rule_model_init(rule_model *model, rule_name rule);    // the prior
void *rule_model_learned(rule_model *model, size_t *bytes); // the part to save: uint32_t only
bool rule_model_valid(const rule_model *model);             // whether that part, read from a file, is valid
rule_work *rule_model_work(rule_model *model);              // the model's
size_t rule_work_bytes(void);                               // to allocate another one

// What is learned from a draft: the successors, the token tables, the bins and weights. A lesson changes nothing that
// another reads or changes, so threads may learn them at the same time.
enum { RULE_SUCCESSORS, RULE_TOKENS, RULE_BINS, RULE_LESSONS };

// A slot's last draft and all considered candidates, to learn from; zeroed at first.
typedef struct {
    void *block;                    // NULL until the first draft
    size_t bytes;                   // accounted
    uint32_t drafted;               // tokens of the draft
    uint32_t kept;                  // these and possibly one that was too improbable
    uint32_t steps, candidates;     // in the block
    uint8_t source[RULE_MAX_DRAFT]; // where each came from
    bool due[RULE_LESSONS];         // to be learned from what comes next
    int32_t last[RULE_LAST];        // tokens before the draft
} rule_record;

void rule_record_free(rule_record *record, sam_memory *memory);

// A draft to be made. The arrays have room for k tokens.
typedef struct {
    rule_context context;
    rule_record *record;    // of the slot
    uint32_t k;             // tokens at most, up to RULE_MAX_DRAFT
    uint32_t size;          // becomes the number of drafted tokens
    int32_t *tokens;        // become the draft
    float *scores;          // may be NULL
    int32_t *match_lengths; // may be NULL
} rule_task;

// Makes drafts. scores[i] is the probability that the path to token i is accepted.
// match_lengths[i] is the number of tokens of the longest match in record->source[i] that token i continues, drafted
// tokens included; in a copy (`oldest`, `newest`, `suffix`) that of the copied match. 0: the token is a successor or
// only frequent. min_prob: see above, 0 .. 1. Keeps in each record what rule_learn needs. Without memory for that, a
// task's draft is empty and the later tasks are left as they are. Returns the number of those before it. Those of `blend`
// are drafted RULE_BATCH at a time.
uint32_t rule_draft(const rule_model *model, rule_work *work, sam_memory *memory, rule_name rule,
                    float min_prob, rule_task *tasks, uint32_t count);

// Prefetches what a lesson reads of the model.
void rule_prefetch_lesson(const rule_model *model, const rule_record *record, int lesson);

// Learns a lesson, if it is due, from the tokens that came after the drafted text. RULE_BINS adds the confirmed tokens
// of the draft to accepted[source]. Never fails.
void rule_learn(rule_model *model, rule_name rule, rule_record *record, int lesson, const int32_t *tokens,
                uint32_t count, uint64_t accepted[RULE_SOURCES]);

#endif
