// SPDX-License-Identifier: Apache-2.0
//
// Drafts of `blend`, which matches again at every drafted token. A node is the end of the text or a drafted token. The
// rule names candidates for the token after it, with their probabilities. The best one is drafted and becomes the next
// node.

#ifndef RULE_BLEND_H
#define RULE_BLEND_H

#include "match.h"

// A question how often a candidate followed a match.
typedef struct {
    uint8_t candidate, match;
    sam_state end; // of the candidate's edge, SAM_NONE: there is none
} lookup;

// What names the candidates of a node and votes on them.
typedef struct {
    uint32_t match_count, lookup_count;
    uint32_t named; // candidates that a match or the successor names; the others are only frequent
    int32_t successor;
    uint32_t successor_order, successor_times; // its table, and how often it came
    match matches[MAX_MATCHES];
    uint32_t counts[MAX_CANDIDATES][MAX_MATCHES]; // how often a named candidate followed a match
    lookup lookups[MAX_CANDIDATES * MAX_MATCHES];
} vote;

// A chain that is drafted in turn with others.
typedef struct {
    draft draft;
    output output;
    node *at; // the node to be considered
    vote vote;
    sam_prefetched prefetched[RULE_INDEXES];
} chain;

// Makes the end of the text the first node of a draft.
void blend_start(draft *d);

// Drafts chains in turn, a token of each, so that their cache misses overlap.
void blend_chains(chain *chains, uint32_t count);

#endif
