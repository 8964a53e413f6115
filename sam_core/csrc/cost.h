// SPDX-License-Identifier: Apache-2.0
//
// What an engine step costs: a nonnegative linear regression of its seconds on a few features. See cost.py.
//
// No function allocates memory or can fail. Equal arguments give equal results on every platform.

#ifndef COST_H
#define COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Features: a constant, whether there are drafts, whether prompts are read, thousands of tokens of context, the same
// summed over all draft tokens, and the rows beyond 1 in each octave: 2, 3-4, 5-8, ..., the last without end.
enum { COST_CONSTANT, COST_DRAFTS, COST_PROMPTS, COST_CONTEXT, COST_DRAFT_CONTEXT, COST_ROWS };
enum { COST_OCTAVES = 14, COST_FEATURES = COST_ROWS + COST_OCTAVES };

typedef struct {
    double gram[COST_FEATURES]
               [COST_FEATURES];    // faded sums over steps of the features' products, by the steps' weights
    double moments[COST_FEATURES]; // of each feature times seconds, by the weights
    double counts[COST_FEATURES];  // of steps that have it
    double weights[COST_FEATURES]; // seconds of one
} cost_model;

typedef struct {
    int64_t rows; // >= 1
    bool drafts, prompts;
    double context, draft_context; // thousands of tokens
} cost_step;

double cost_seconds(const cost_model *model, const cost_step *step);

// Multiplies all costs learned so far by `factor`, fades the sums by the factor `keep`, adds a step that took `seconds`
// unless it is to be left out, and fits the costs.
void cost_learn(cost_model *model, const cost_step *step, double seconds, double factor, double keep,
                bool leave_out);

// Seconds of a step for each of these numbers of `rows`, without contexts, and of the constants with the first only:
// the mean over steps that have more rows by each number in `more`. Rows below `num_padded` count as padded[rows].
void cost_rows(const double weights[COST_FEATURES], const int64_t *rows, size_t count, const int32_t *more,
               size_t num_more, const int32_t *padded, size_t num_padded, double *seconds);

#endif
