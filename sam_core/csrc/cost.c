// SPDX-License-Identifier: Apache-2.0

#include "cost.h"

#include <math.h>
#include <string.h>

// Ridge penalties: each feature except the rows begins with this many imaginary steps in which it cost nothing, so a
// few steps cannot make it expensive. If all steps have about the same number of rows, the penalty of the constant
// attributes their time to the rows.
static const double ridge[COST_ROWS] = {0.03, 2, 2, 2, 2};
// Penalty for a change of slope from octave to octave: bounds the estimated cost of sizes that were never seen.
static const double smooth = 0.05;
// Errors are relative to the expected seconds, so that costs are unbiased: relative to the measured seconds they
// would be too low on a noisy machine. This bounds the expected seconds, as a multiple of the measured ones.
static const double max_unit = 2.7;
// A fit ends after this many sweeps of coordinate descent, which bounds its time, or if a sweep changes the predictions
// by less than this share (root mean square).
enum { MAX_SWEEPS = 30 };
static const double min_change = 1e-4;

static void features_of(const cost_step *step, double x[COST_FEATURES]) {
    x[COST_CONSTANT] = 1;
    x[COST_DRAFTS] = step->drafts;
    x[COST_PROMPTS] = step->prompts;
    x[COST_CONTEXT] = step->context;
    x[COST_DRAFT_CONTEXT] = step->draft_context;
    for (int i = 0; i < COST_OCTAVES; i++) {
        int64_t start = (int64_t)1 << i, beyond = step->rows - start;
        if (i < COST_OCTAVES - 1 && beyond > start)
            beyond = start;
        x[COST_ROWS + i] = beyond > 0 ? (double)beyond : 0;
    }
}

static double dot(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < COST_FEATURES; i++)
        sum += a[i] * b[i];
    return sum;
}

double cost_seconds(const cost_model *model, const cost_step *step) {
    double x[COST_FEATURES];
    features_of(step, x);
    return dot(model->weights, x);
}

// Slopes are compared in relation to `unit`, the expected seconds of this step.
static void fit(cost_model *model, double unit) {
    double a[COST_FEATURES][COST_FEATURES];
    memcpy(a, model->gram, sizeof a);
    for (int i = COST_CONSTANT; i < COST_ROWS; i++)
        if (model->counts[i] > 0)
            a[i][i] += ridge[i] * model->gram[i][i] / model->counts[i];
    for (int i = COST_ROWS; i < COST_FEATURES; i++) {
        double width = (double)((int64_t)1 << (i - COST_ROWS)) / unit, penalty = smooth * width * width;
        a[i][i] += penalty;
        if (i > COST_ROWS) {
            a[i - 1][i - 1] += penalty;
            a[i][i - 1] -= penalty;
            a[i - 1][i] -= penalty;
        }
    }
    double *w = model->weights, changes = INFINITY;
    for (int sweep = 0;
         sweep < MAX_SWEEPS && changes > min_change * min_change * model->counts[COST_CONSTANT]; sweep++) {
        changes = 0;
        for (int i = 0; i < COST_FEATURES; i++)
            if (a[i][i] > 1e-12) {
                double before = w[i], next = before + (model->moments[i] - dot(a[i], w)) / a[i][i];
                w[i] = next > 0 ? next : 0;
                changes += (w[i] - before) * (w[i] - before) * a[i][i];
            }
    }
}

void cost_learn(cost_model *model, const cost_step *step, double seconds, double factor, double keep,
                bool leave_out) {
    double x[COST_FEATURES], more = leave_out ? 0 : 1;
    features_of(step, x);
    for (int i = 0; i < COST_FEATURES; i++)
        model->weights[i] *= factor;
    double unit = dot(model->weights, x);
    if (!(unit < seconds * max_unit))
        unit = seconds * max_unit;
    if (unit < seconds / max_unit)
        unit = seconds / max_unit;
    for (int i = 0; i < COST_FEATURES; i++) {
        double share = more * x[i] / unit;
        model->moments[i] = keep / factor * model->moments[i] + share * (seconds / unit);
        model->counts[i] = keep * model->counts[i] + (x[i] > 0 ? more : 0);
        for (int j = 0; j < COST_FEATURES; j++)
            model->gram[i][j] = keep / (factor * factor) * model->gram[i][j] + share * (x[j] / unit);
    }
    fit(model, unit);
}

void cost_rows(const double weights[COST_FEATURES], const int64_t *rows, size_t count, const int32_t *more,
               size_t num_more, const int32_t *padded, size_t num_padded, double *seconds) {
    const double *slopes = weights + COST_ROWS;
    double starts[COST_OCTAVES]; // seconds of the rows up to each octave
    starts[0] = weights[COST_CONSTANT];
    for (int i = 1; i < COST_OCTAVES; i++)
        starts[i] = starts[i - 1] + slopes[i - 1] * (double)((int64_t)1 << (i - 1));
    memset(seconds, 0, count * sizeof *seconds);
    for (size_t j = 0; j < num_more; j++) {
        size_t first = 0, same = 0;
        while (more[first] != more[j])
            first++;
        if (first < j)
            continue;
        for (size_t i = 0; i < num_more; i++)
            same += more[i] == more[j];
        double share = (double)same / (double)num_more;
        int octave = 0;
        for (size_t i = 0; i < count; i++) {
            int64_t all = rows[i] + more[j];
            if ((size_t)all < num_padded)
                all = padded[all];
            while (octave && all <= (int64_t)1 << octave)
                octave--;
            while (octave < COST_OCTAVES - 1 && all > (int64_t)2 << octave)
                octave++;
            seconds[i] += share * (starts[octave] + slopes[octave] * (double)(all - ((int64_t)1 << octave)));
        }
    }
}
