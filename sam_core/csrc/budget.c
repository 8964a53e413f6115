// SPDX-License-Identifier: Apache-2.0

#include "budget.h"

#include <string.h>

static size_t bin_of(float score) {
    float bins = score * BUDGET_BINS;
    if (!(bins > -1 && bins <= BUDGET_BINS)) // no probability
        return 0;
    int32_t bin = (int32_t)bins; // between these bounds nothing is to be predicted
    return (size_t)(bin < BUDGET_BINS ? bin : BUDGET_BINS - 1);
}

void budget_correct(const float *scores, size_t rows, size_t width, const double factors[BUDGET_BINS],
                    double *corrected) {
    for (size_t row = 0; row < rows; row++) {
        double before = 1;
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            double score = factors[bin_of(scores[i])] * (double)scores[i];
            corrected[i] = before = score < before ? score : before;
        }
    }
}

// A draft token: what it is worth and what it costs.
typedef struct {
    double score, seconds;
    size_t row;
} token;

// A token by its net value.
typedef struct {
    uint64_t key;
    uint32_t token;
} entry;

// What budget_choose works on.
typedef struct {
    token *tokens;
    entry *entries, *spare;
    size_t count;
} drafts;

size_t budget_work_bytes(size_t tokens) { return (tokens + 1) * sizeof(token) + 2 * tokens * sizeof(entry); }

// An integer that sorts like the number.
static uint64_t key_of(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

// Sorts by insertion. Gives up and returns false after more moves than there are entries.
static bool insert(drafts *d) {
    size_t moves = 0;
    for (size_t i = 1; i < d->count && moves <= d->count; i++) {
        entry e = d->entries[i];
        size_t j = i;
        for (; j && e.key < d->entries[j - 1].key; j--)
            d->entries[j] = d->entries[j - 1];
        d->entries[j] = e;
        moves += i - j;
    }
    return moves <= d->count;
}

// Sorts digit by digit (radix sort): comparing entries in random order mispredicts branches and takes twice as long.
static void sort(drafts *d) {
    uint32_t starts[8][256] = {{0}};
    for (size_t i = 0; i < d->count; i++)
        for (unsigned digit = 0; digit < 8; digit++)
            starts[digit][d->entries[i].key >> 8 * digit & 255]++;
    for (unsigned digit = 0; digit < 8; digit++) {
        uint32_t *start = starts[digit], sum = 0;
        if (start[d->entries[0].key >> 8 * digit & 255] == d->count)
            continue;
        for (unsigned i = 0; i < 256; i++) {
            uint32_t size = start[i];
            start[i] = sum;
            sum += size;
        }
        for (size_t i = 0; i < d->count; i++)
            d->spare[start[d->entries[i].key >> 8 * digit & 255]++] = d->entries[i];
        entry *sorted = d->spare;
        d->spare = d->entries;
        d->entries = sorted;
    }
}

static void gather(const budget_step *step, drafts *d) {
    for (size_t i = 0; i < step->rows; i++) {
        size_t row = i + step->first < step->rows ? i + step->first : i + step->first - step->rows;
        double seconds = step->of_context * step->contexts[row];
        for (size_t j = 0; j < step->width; j++) { // without a branch that is mispredicted
            d->tokens[d->count] = (token){step->scores[row * step->width + j], seconds, row};
            d->count += (int32_t)j < step->lengths[row];
        }
    }
    for (size_t i = 0; i < d->count; i++)
        d->entries[i].token = (uint32_t)i;
}

// Sorts the tokens by their cost at this rate minus what they are worth; equal ones keep their order.
static void order(drafts *d, double rate) {
    for (size_t i = 0; i < d->count; i++) {
        const token *t = &d->tokens[d->entries[i].token];
        d->entries[i].key = key_of(rate * t->seconds - t->score);
    }
    if (!insert(d)) // the order changes little from one rate to the next
        sort(d);
}

// The first tokens in order: how many, and what a step with them yields and takes.
typedef struct {
    size_t count;
    double tokens, seconds;
    double loss; // at the rate
} prefix;

static prefix best_prefix(const budget_step *step, const drafts *d, double rate) {
    double rows = (double)step->rows, score = 0, seconds = 0;
    prefix best = {0, rows, step->seconds[0], rate * step->seconds[0] - rows};
    for (size_t i = 0; i < d->count; i++) {
        const token *t = &d->tokens[d->entries[i].token];
        score += t->score;
        seconds += t->seconds;
        prefix p = {i + 1, rows + score, step->seconds[i + 1] + seconds, 0};
        p.loss = rate * p.seconds - p.tokens;
        if (p.loss < best.loss)
            best = p;
    }
    return best;
}

budget_choice budget_choose(const budget_step *step, double rate, bool fixed, int32_t *chosen, void *work,
                            size_t tokens) {
    drafts d = {.tokens = work};
    d.entries = (entry *)(d.tokens + tokens + 1);
    d.spare = d.entries + tokens;
    gather(step, &d);
    double rows = (double)step->rows, plain = step->seconds[0];
    bool is_given = fixed || rate != 0;
    budget_choice choice = {.rate = is_given ? rate : rows / plain};
    memset(chosen, 0, step->rows * sizeof *chosen);
    for (;;) {
        order(&d, choice.rate);
        prefix best = best_prefix(step, &d, choice.rate);
        double better = best.tokens / best.seconds;
        if (!is_given && !(better > choice.rate * (1 + 1e-12)))
            return choice;
        is_given = false; // one step from any guess leads to a rate that is not too high
        memset(chosen, 0, step->rows * sizeof *chosen);
        for (size_t i = 0; i < best.count; i++)
            chosen[d.tokens[d.entries[i].token].row]++;
        choice.accepted = best.tokens - rows;
        choice.gained = choice.rate * plain - rows - best.loss;
        if (fixed)
            return choice;
        choice.rate = better;
    }
}

float budget_lowest(const float *scores, const int32_t *lengths, size_t rows, size_t width) {
    float lowest = 1;
    for (size_t i = 0; i < rows; i++)
        if (lengths[i] && scores[i * width + (size_t)lengths[i] - 1] < lowest)
            lowest = scores[i * width + (size_t)lengths[i] - 1];
    return lowest;
}

budget_sums budget_observe(const budget_last *last, const int32_t *slots, const int32_t *gained, size_t rows,
                           double counts[2][BUDGET_BINS], int32_t *places, size_t size) {
    budget_sums sums = {0};
    memset(places, -1, size * sizeof *places);
    for (size_t i = 0; i < last->rows; i++)
        if (last->slots[i] >= 0)
            places[last->slots[i]] = (int32_t)i;
    for (size_t i = 0; i < rows; i++) {
        if ((size_t)slots[i] >= size || places[slots[i]] < 0)
            continue;
        size_t place = (size_t)places[slots[i]];
        int32_t drafted = last->drafted[place];
        sums.known++;
        sums.drafts += drafted;
        sums.context += last->contexts[place];
        sums.draft_context += drafted * last->contexts[place];
        for (int32_t j = 0; gained[i] > 0 && j < drafted; j++)
            counts[j < gained[i] - 1][bin_of(last->scores[place * last->width + (size_t)j])]++;
    }
    return sums;
}
