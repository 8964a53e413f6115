// SPDX-License-Identifier: Apache-2.0

#include "model.h"

#include "memory.h"

#include <string.h>

uint32_t model_share_bin(uint32_t count, uint32_t total) {
    uint32_t halves = 0; // 1/share is at least 2^halves
    while (halves < MODEL_SHARES / 2 - 1 && total >> (halves + 1) >= count)
        halves++;
    bool more = total >> halves > count + count / 2;
    return MODEL_BINS + 2 * halves + more;
}

// The entry of table `order` for the last tokens; *key: the part of their hash that an entry stores.
static uint32_t successor_entry(uint32_t order, const int32_t *last, uint32_t *key) {
    static const uint8_t sizes[MODEL_ORDERS] = {1, 2, 3, MODEL_LAST};
    uint32_t hash = (uint32_t)last[0] * 0x9E3779B1u;
    for (uint32_t i = 1; i < sizes[order]; i++)
        hash = (hash ^ hash >> 15 ^ (uint32_t)last[i]) * 0x85EBCA6Bu;
    hash ^= hash >> 13;
    *key = hash << 16;
    return hash >> 18;
}

void model_prefetch_successors(const model *m, const int32_t last[MODEL_LAST]) {
    uint32_t key;
    for (uint32_t order = 0; order < MODEL_ORDERS; order++)
        sam_prefetch(&m->learned.successors[order][successor_entry(order, last, &key)]);
}

int32_t model_find_successor(const model *m, uint32_t order, const int32_t last[MODEL_LAST],
                             uint32_t *times) {
    uint32_t key;
    const model_successor *f = &m->learned.successors[order][successor_entry(order, last, &key)];
    *times = f->seen & 255;
    return *times && (f->seen ^ key) >> 16 == 0 ? f->token : -1;
}

void model_learn_successor(model *m, int32_t last[MODEL_LAST], int32_t token) {
    for (uint32_t order = 0; order < MODEL_ORDERS; order++) {
        uint32_t key;
        model_successor *f = &m->learned.successors[order][successor_entry(order, last, &key)];
        uint32_t seen = f->seen & 255, contested = f->seen >> 8 & 255;
        if ((f->seen ^ key) >> 16) { // the entry is of other tokens, which keep it while it is useful
            if (seen > 1 && contested < MODEL_PATIENCE) {
                f->seen += 256;
                continue;
            }
            seen = 0;
        }
        if (seen && f->token == token) {
            seen = seen < MODEL_MAX_TIMES ? seen + 1 : seen;
        } else if (seen > 1) {
            seen /= 2;
        } else {
            f->token = token;
            seen = 1;
        }
        f->seen = key | seen;
    }
    for (uint32_t i = MODEL_LAST - 1; i; i--)
        last[i] = last[i - 1];
    last[0] = token;
}

static uint32_t prior(uint32_t probability_of_million, uint32_t seen) {
    return (uint32_t)((uint64_t)probability_of_million * ((1 << 22) - 1) / 1000000) << 10 | seen;
}

// A candidate that followed n of N times: (n + newest/2 + e/20) / (N + 1/2 + e) with e = 4/(class + 1).
static uint32_t counted_prior(uint32_t length_class, uint32_t count, uint32_t rest, uint32_t newest) {
    static const uint32_t typical[MODEL_COUNTS] = {0, 1, 2, 3, 4, 7, 18, 60};
    uint64_t classes = length_class + 1; // everything times 20 * classes
    uint64_t over = 20 * classes * typical[count] + 10 * classes * newest + 4;
    uint64_t under = 20 * classes * (typical[count] + typical[rest]) + 10 * classes + 80;
    uint64_t million = over * 1000000 / under;
    return prior((uint32_t)(million < 2000 ? 2000 : million > 980000 ? 980000 : million), 0);
}

// The i-th token of what followed a match.
static uint32_t copied_prior(uint32_t length_class, uint32_t depth) {
    static const uint32_t percent[MODEL_LENGTHS] = {30, 45, 55, 60, 64, 68, 72, 76, 80, 84, 88, 92};
    return prior((percent[length_class] + (100 - percent[length_class]) * depth / 14) * 10000, 4);
}

// Initial weights in percent, rounded from those learned on recorded answers. Inputs that carry the same information
// share their weight. set: as from weight_set.
static void weights_prior(int32_t *weights, uint32_t set) {
    enum { CORPUS = 1, GROUP = 2 };
    static const uint8_t percent[4][MODEL_INPUTS] = {
        //        request group   corpus  share tokens      successor, constant
        [0] = {75, 38, 0, 0, 0, 0, 70, 25, 25, 15, 20, 40},
        [CORPUS] = {45, 35, 0, 0, 45, 35, 95, 10, 10, 5, 20, 25},
        [GROUP] = {20, 20, 72, 33, 0, 0, 80, 18, 17, 10, 20, 38},
        [GROUP | CORPUS] = {25, 27, 58, 38, 38, 33, 95, 5, 5, 0, 20, 25},
    };
    uint32_t sources = 0;
    if (set / MODEL_KINDS % MODEL_CORPUS_CLASSES)
        sources |= CORPUS;
    if (set / MODEL_KINDS / MODEL_CORPUS_CLASSES % MODEL_CLASSES)
        sources |= GROUP;
    for (uint32_t input = 0; input < MODEL_INPUTS; input++)
        weights[input] = percent[sources][input] * 65536 / 100;
}

void model_init(model *m, bool copied) {
    uint32_t bin = 0;
    for (uint32_t match = 0; match < MODEL_SOURCES * MODEL_RANKS; match++)
        for (uint32_t length = 0; length < MODEL_LENGTHS; length++)
            for (uint32_t count = 0; count < MODEL_COUNTS; count++)
                for (uint32_t rest = 0; rest < MODEL_COUNTS; rest++)
                    for (uint32_t newest = 0; newest < 2; newest++)
                        m->learned.bins[bin++] =
                            copied ? copied_prior(length, count) : counted_prior(length, count, rest, newest);
    for (uint32_t share = 0; share < MODEL_SHARES; share++) // about the share, 2^(-share/2)
        m->learned.bins[bin++] = prior((share % 2 ? 700000u : 1000000u) >> (share / 2 + (share < 2)), 8);
    for (uint32_t order = 0; order < MODEL_ORDERS; order++)
        for (uint32_t times = 0; times <= MODEL_MAX_TIMES; times++) {
            m->learned.bins[bin++] = prior(50000, 0);
            m->learned.bins[bin++] = prior(100000 + 50000 * times, 0);
        }
    for (uint32_t order = 0; order < MODEL_TOKENS; order++)
        for (uint32_t i = 0; i < MODEL_HASHES; i++)
            m->learned.tokens[order][i] = prior(300000, 0);
    memset(m->learned.successors, 0, sizeof m->learned.successors);
    for (uint32_t set = 0; set < MODEL_SETS; set++)
        weights_prior(m->learned.weights[set], set);
    for (uint32_t seen = 0; seen <= MODEL_LIMIT; seen++)
        m->trust[seen] = (uint16_t)(256 * seen / (seen + 1));
    int32_t stretched = -2047;
    for (uint32_t p = 0; p < MODEL_ONE; p++) {
        while (stretched < 2047 && model_squash(stretched) < p)
            stretched++;
        m->stretch[p] = (int16_t)stretched;
    }
}

bool model_valid(const model *m) {
    for (uint32_t i = 0; i < MODEL_ALL_BINS; i++)
        if ((m->learned.bins[i] & 1023) > MODEL_LIMIT)
            return false;
    for (uint32_t order = 0; order < MODEL_TOKENS; order++)
        for (uint32_t i = 0; i < MODEL_HASHES; i++)
            if ((m->learned.tokens[order][i] & 1023) > MODEL_LIMIT)
                return false;
    for (uint32_t set = 0; set < MODEL_SETS; set++)
        for (uint32_t input = 0; input < MODEL_INPUTS; input++)
            if (m->learned.weights[set][input] > MODEL_MAX_WEIGHT ||
                m->learned.weights[set][input] < -MODEL_MAX_WEIGHT)
                return false;
    for (uint32_t order = 0; order < MODEL_ORDERS; order++)
        for (uint32_t i = 0; i < MODEL_SUCCESSORS; i++) {
            const model_successor *f = &m->learned.successors[order][i];
            if (f->token < 0 || (f->seen & 255) > MODEL_MAX_TIMES || (f->seen >> 8 & 255) > MODEL_PATIENCE)
                return false;
        }
    return true;
}
