// SPDX-License-Identifier: Apache-2.0
//
// How many draft tokens each request gets in a step, and what became of the drafts of the previous step. See budget.py.
//
// Tables of scores have a row for each request and a column for each token of its draft. No function
// allocates memory or can fail. Equal arguments give equal results on every platform.

#ifndef BUDGET_H
#define BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BUDGET_BINS = 24 }; // of scores

// Multiplies each score by the factor of its bin, then lowers what exceeds 1 or the score before it.
void budget_correct(const float *scores, size_t rows, size_t width, const double factors[BUDGET_BINS],
                    double *corrected);

// The drafts of a step. The step takes `seconds`, by its number of draft tokens, and `of_context` seconds for each
// draft token and each thousand tokens in that token's request.
typedef struct {
    const double *scores; // [rows, width], nonincreasing along a row
    size_t rows, width;
    const int32_t *lengths; // [rows], 0 .. width
    const double *contexts; // [rows], thousands of tokens
    const double *seconds;  // [sum of lengths + 1]
    double of_context;
    size_t first; // of equal tokens those of this row come first, then those of the rows after it
} budget_step;

typedef struct {
    double rate;     // tokens a second
    double accepted; // tokens that are expected to be accepted
    double gained;   // what the drafts are worth in tokens at this rate, less what they cost
} budget_choice;

// Chooses the drafts that give the most tokens a second; each request emits one more. `rate` is a guess of
// that, or 0. If it is `fixed`, they are those with the most tokens less `rate` times the step's seconds.
// `chosen` receives their lengths, [rows]. `tokens` is the sum of step->lengths, and `work` has
// budget_work_bytes(tokens) bytes, aligned as malloc's are.
budget_choice budget_choose(const budget_step *step, double rate, bool fixed, int32_t *chosen, void *work,
                            size_t tokens);
size_t budget_work_bytes(size_t tokens);

// The lowest score of the last token of a draft; 1 if no row has one. Lengths go from 0 to `width`.
float budget_lowest(const float *scores, const int32_t *lengths, size_t rows, size_t width);

// The drafts of the previous step.
typedef struct {
    const int32_t *slots;   // [rows], those of its requests, each once; -1: closed since
    const int32_t *drafted; // [rows], draft tokens, 0 .. width
    const double *contexts; // [rows], thousands of tokens
    const float *scores;    // [rows, width]
    size_t rows, width;
} budget_last;

typedef struct {
    size_t known;   // requests that were in the last step
    int64_t drafts; // their draft tokens
    double context,
        draft_context; // thousands of tokens in them; summed over draft tokens, in the request of each
} budget_sums;

// Adds up what the requests of these slots had in the previous step, and adds to `counts` the refused and the
// accepted draft tokens of those that `gained` tokens, by bins of scores. `places` is overwritten; its `size`
// exceeds every slot of the previous step.
budget_sums budget_observe(const budget_last *last, const int32_t *slots, const int32_t *gained, size_t rows,
                           double counts[2][BUDGET_BINS], int32_t *places, size_t size);

#endif
