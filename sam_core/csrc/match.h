// SPDX-License-Identifier: Apache-2.0
//
// Matches: suffixes of a text that occur in its sources, and the tokens that followed them.

#ifndef MATCH_H
#define MATCH_H

#include "draft.h"

// A suffix of the text that occurs in a source.
typedef struct {
    uint32_t source, rank, length, followed, best_count;
    uint32_t bins; // the first of its bins
    int32_t best, newest;
    sam_state state;
    uint32_t listed; // tokens that followed it and are looked up, in the corpus
    int32_t tokens[MORE];
    uint32_t counts[MORE];
} match;

// The matches of one index at a node, up to MODEL_RANKS: the longest with a continuation, then shorter ones with more
// occurrences. Returns their number.
uint32_t match_index(const sam_index *index, uint32_t source, sam_state state, uint32_t length,
                     match *matches);

// The same for the corpus.
uint32_t match_corpus(const corpus *c, const node *n, match *matches);

// The bin of a candidate for `token`, which followed the match `count` times.
static inline uint32_t match_bin(const match *m, int32_t token, uint32_t count) {
    return model_counted_bin(m->bins, count, m->followed, token == m->newest);
}

// The state after the longest suffix of a match that `token` followed; SAM_NONE: none. *length, the match's, becomes
// the suffix's.
sam_state match_continued(const sam_index *index, sam_state state, int32_t token, uint32_t *length);

// Whether a place of the group's index is in its history.
bool match_is_past(const rule_context *context, uint32_t place);

// Whether the last occurrence of `token` after a match in the group's index, or after the next shorter match that it
// followed, is in the history.
bool match_followed_in_past(const rule_context *context, sam_state state, int32_t token);

// Whether the number of times that `token` followed a match is known without a look-up (corpus: 0 if it is not
// among the most frequent ones).
static inline bool match_knows(const match *m, int32_t token, uint32_t *count) {
    *count = 0;
    if (token == m->best) {
        *count = m->best_count;
        return true;
    }
    for (uint32_t i = 1; i < m->listed; i++)
        if (m->tokens[i] == token) {
            *count = m->counts[i];
            return true;
        }
    if (m->best_count == m->followed || m->source == RULE_CORPUS)
        return true;
    if (m->best_count + 1 == m->followed && m->newest != m->best) {
        *count = token == m->newest; // the only other one
        return true;
    }
    return false;
}

#endif
