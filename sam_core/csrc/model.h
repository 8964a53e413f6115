// SPDX-License-Identifier: Apache-2.0
//
// What a pool has learned from its drafts: adaptive probabilities, the weights that mix them, and successors.
// See rules.h.
//
// A probability is an adaptive mean in 32 bits: the upper 22 are the mean, the lower 10 the number of its
// outcomes, up to MODEL_LIMIT. An outcome moves the mean by 1/(outcomes + 1.5): quickly at first, later like
// a window of about MODEL_LIMIT outcomes.
//
// Mixing works on stretch(p) = ln(p/(1-p)) with 8 fractional bits on probabilities of 12 bits, with weights
// of 16 fractional bits, as in the lpaq compressors.

#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MODEL_SOURCES = 3,  // request, group, corpus
    MODEL_RANKS = 2,    // matches of one source that are used
    MODEL_LENGTHS = 12, // classes of match lengths
    MODEL_COUNTS = 8,   // classes of counts
    MODEL_BINS = MODEL_SOURCES * MODEL_RANKS * MODEL_LENGTHS * MODEL_COUNTS * MODEL_COUNTS * 2,
    MODEL_SHARES = 16, // classes of the share of a token among all
    MODEL_ORDERS = 4,  // tables of successors, keyed by the last 1, 2, 3 or 5 tokens
    MODEL_LAST = 5,    // the most of these
    MODEL_SUCCESSORS = 1 << 14,
    MODEL_MAX_TIMES = 15, // times that a successor came, as far as they are counted
    MODEL_PATIENCE = 4,   // how often other contexts ask in vain for the entry of a successor that came twice
    MODEL_SUCCESSOR_BINS = MODEL_BINS + MODEL_SHARES,
    MODEL_ALL_BINS = MODEL_SUCCESSOR_BINS + MODEL_ORDERS * (MODEL_MAX_TIMES + 1) * 2,
    MODEL_TOKENS = 3, // tables keyed by a candidate and 0, 1 or 2 tokens before it
    MODEL_HASHES = 1 << 13,
    MODEL_CLASSES = 7,        // coarser classes of match lengths
    MODEL_CORPUS_CLASSES = 4, // pairs of them, for matches in the corpus
    MODEL_KINDS =
        4, // of candidates: named by matches at depth 0, 1 .. 2 or more of a draft, or only frequent
    MODEL_FREQUENT = 3,
    MODEL_SETS = MODEL_CLASSES * MODEL_CLASSES * MODEL_CORPUS_CLASSES * MODEL_KINDS,
    // inputs of the mix: a bin of each match, the share, the token tables, the successor, a constant
    MODEL_SHARE_INPUT = MODEL_SOURCES * MODEL_RANKS,
    MODEL_TOKEN_INPUT = MODEL_SHARE_INPUT + 1,
    MODEL_SUCCESSOR_INPUT = MODEL_TOKEN_INPUT + MODEL_TOKENS,
    MODEL_CONSTANT = MODEL_SUCCESSOR_INPUT + 1,
    MODEL_INPUTS = MODEL_CONSTANT + 1,
    MODEL_LIMIT = 255,
    MODEL_MAX_WEIGHT = 1 << 20, // either way
    MODEL_ONE = 1 << 12,        // probability 1
};

// The token that followed a context: the last 1, 2, 3 or 5 tokens of a text.
typedef struct {
    int32_t token;
    // 16 bits: a hash of the context; 8 bits: how often other contexts asked for the entry; 8 bits: how often the
    // successor came, up to MODEL_MAX_TIMES. 0: the entry is empty.
    uint32_t seen;
} model_successor;

typedef struct {
    uint32_t bins[MODEL_ALL_BINS];
    uint32_t tokens[MODEL_TOKENS][MODEL_HASHES];
    int32_t weights[MODEL_SETS][MODEL_INPUTS];
    model_successor successors[MODEL_ORDERS][MODEL_SUCCESSORS];
} model_learned;

typedef struct {
    model_learned learned;
    // Derived from constants:
    int16_t stretch[MODEL_ONE];      // ln(p / (1 - p)) of each probability
    uint16_t trust[MODEL_LIMIT + 1]; // seen / (seen + 1), of 256
} model;

// Probability of `stretched`, 1 .. MODEL_ONE - 1: 4096 / (1 + exp(-x)) between multiples of 1/2 from -8 to 8.
static inline uint32_t model_squash(int32_t stretched) {
    static const uint16_t at[33] = {1,    2,    4,    6,    10,   17,   27,   45,   74,   120,  194,
                                    310,  488,  747,  1101, 1546, 2048, 2550, 2995, 3349, 3608, 3786,
                                    3902, 3976, 4022, 4051, 4069, 4079, 4086, 4090, 4092, 4094, 4095};
    if (stretched > 2047)
        return MODEL_ONE - 1;
    if (stretched < -2047)
        return 1;
    uint32_t x = (uint32_t)(stretched + 2048), low = x / 128, part = x % 128;
    return (at[low] * (128 - part) + at[low + 1] * part + 64) / 128;
}

// The prior for copied (what `oldest` and `newest` draft) or counted candidates.
void model_init(model *m, bool copied);

bool model_valid(const model *m);

// Class of a match length, and the coarse class of one.
static inline uint32_t model_length_class(uint32_t length) {
    if (length <= 6)
        return length ? length - 1 : 0;
    return length <= 8 ? 6 : length <= 12 ? 7 : length <= 16 ? 8 : length <= 24 ? 9 : length <= 48 ? 10 : 11;
}

static inline uint32_t model_coarse_class(uint32_t length) {
    if (length <= 2)
        return length;
    return length <= 4 ? 3 : length <= 8 ? 4 : length <= 16 ? 5 : 6;
}

static inline uint32_t model_count_class(uint32_t count) {
    static const uint8_t classes[32] = {0, 1, 2, 3, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6,
                                        6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7};
    return classes[count < 31 ? count : 31];
}

// Number of the first bin of a match of `length` tokens.
static inline uint32_t model_match_bins(uint32_t source, uint32_t rank, uint32_t length) {
    uint32_t match = (source * MODEL_RANKS + rank) * MODEL_LENGTHS + model_length_class(length);
    return match * MODEL_COUNTS * MODEL_COUNTS * 2;
}

// Number of the bin of a candidate that came after `count` of the `followed` occurrences of a match, whose first bin is
// `first`. newest: it came after the latest of them.
static inline uint32_t model_counted_bin(uint32_t first, uint32_t count, uint32_t followed, bool newest) {
    uint32_t rest = followed > count ? followed - count : 0;
    return first + (model_count_class(count) * MODEL_COUNTS + model_count_class(rest)) * 2 + newest;
}

// Number of the bin of the token that comes `depth` tokens after the first one in a copy of what followed a match.
static inline uint32_t model_copied_bin(uint32_t source, uint32_t length, uint32_t depth) {
    uint32_t class = depth < MODEL_COUNTS ? depth : MODEL_COUNTS - 1; // in place of a count's class
    return model_match_bins(source, 0, length) + class * MODEL_COUNTS * 2;
}

// Number of the bin for the share count / total of a token.
uint32_t model_share_bin(uint32_t count, uint32_t total);

// Entry of token table `order` (tokens before the candidate) for a candidate.
static inline uint32_t model_hash(uint32_t order, int32_t candidate, int32_t last, int32_t before) {
    uint32_t hash = (uint32_t)candidate * 0x9E3779B1u;
    if (order >= 1)
        hash = (hash ^ (uint32_t)last) * 0x85EBCA6Bu;
    if (order >= 2)
        hash = (hash ^ hash >> 15 ^ (uint32_t)before) * 0xC2B2AE35u;
    return hash >> 19;
}

// The successor of the last tokens (last[0] is the latest) in table `order`, and how often it came in *times. -1: none
// is known.
int32_t model_find_successor(const model *m, uint32_t order, const int32_t last[MODEL_LAST], uint32_t *times);

// Prefetches what model_find_successor reads for all tables.
void model_prefetch_successors(const model *m, const int32_t last[MODEL_LAST]);

// Learns that `token` came after last[0 .. MODEL_LAST - 1], and puts it before them.
void model_learn_successor(model *m, int32_t last[MODEL_LAST], int32_t token);

// Number of the bin of a candidate where the successor in table `order` came `times` times. is_successor: the candidate
// is that successor.
static inline uint32_t model_successor_bin(uint32_t order, uint32_t times, bool is_successor) {
    return MODEL_SUCCESSOR_BINS + (order * (MODEL_MAX_TIMES + 1) + times) * 2 + is_successor;
}

// Probability of 12 bits that a bin holds, 1 .. MODEL_ONE - 1.
static inline uint32_t model_probability(uint32_t bin) {
    uint32_t p = bin >> 20;
    return p ? p : 1;
}

static inline void model_update(uint32_t *bin, bool outcome) {
    uint32_t seen = *bin & 1023;
    int32_t mean = (int32_t)(*bin >> 10), target = outcome ? (1 << 22) - 1 : 0;
    mean += (target - mean) * 2 / (int32_t)(2 * seen + 3);
    *bin = (uint32_t)mean << 10 | (seen < MODEL_LIMIT ? seen + 1 : seen);
}

#endif
