// SPDX-License-Identifier: Apache-2.0
//
// No random drafts give more tokens a second than the chosen ones, or are worth more at a fixed rate. The
// arrays are as large as they must be, so that the sanitizers see what is read or written beyond them.

#include "budget.h"

#include <math.h>
#include <string.h>

#include "check.h"

static double share(void) { return draw(1u << 20) / (double)(1u << 20); }

static void *array(size_t count, size_t size) { return calloc(count ? count : 1, size); }

// What drafts of these lengths give: tokens, seconds.
static void sum_up(const budget_step *step, const int32_t *lengths, double *tokens, double *seconds) {
    size_t total = 0;
    *tokens = (double)step->rows;
    *seconds = 0;
    for (size_t row = 0; row < step->rows; row++)
        for (size_t i = 0; i < (size_t)lengths[row]; i++, total++) {
            *tokens += step->scores[row * step->width + i];
            *seconds += step->of_context * step->contexts[row];
        }
    *seconds += step->seconds[total];
}

static void check_choice(const budget_step *step, size_t total, void *work) {
    int32_t *chosen = array(step->rows, sizeof *chosen), *other = array(step->rows, sizeof *other);
    double tokens, seconds, plain = step->seconds[0], rows = (double)step->rows;
    double guess = draw(2) ? rows / plain * 3 * share() : 0;
    budget_choice best = budget_choose(step, guess, false, chosen, work, total);
    sum_up(step, chosen, &tokens, &seconds);
    CHECK(fabs(tokens / seconds / best.rate - 1) < 1e-9 && best.rate > rows / plain * (1 - 1e-9));
    CHECK(fabs(rows + best.accepted - tokens) < 1e-6);
    double rate = best.rate * 2 * share();
    budget_choice fixed = budget_choose(step, rate, true, other, work, total);
    sum_up(step, other, &tokens, &seconds);
    CHECK(fabs(tokens - rows - rate * (seconds - plain) - fixed.gained) < 1e-6 && fixed.gained >= 0);
    for (int i = 0; i < 30; i++) {
        for (size_t row = 0; row < step->rows; row++) {
            CHECK(chosen[row] >= 0 && chosen[row] <= step->lengths[row]);
            other[row] = draw(3) ? (int32_t)draw((uint32_t)step->lengths[row] + 1) : chosen[row];
        }
        sum_up(step, other, &tokens, &seconds);
        CHECK(tokens / seconds < best.rate * (1 + 1e-9));
        CHECK(tokens - rows - rate * (seconds - plain) < fixed.gained + 1e-6);
    }
    free(chosen);
    free(other);
}

static void check_step(size_t rows, size_t width) {
    float *given = array(rows * width, sizeof *given);
    double *scores = array(rows * width, sizeof *scores), *contexts = array(rows, sizeof *contexts);
    int32_t *lengths = array(rows, sizeof *lengths), *slots = array(rows, sizeof *slots);
    int32_t *gained = array(rows, sizeof *gained), *places = array(2 * rows, sizeof *places);
    double factors[BUDGET_BINS], counts[2][BUDGET_BINS] = {{0}};
    size_t total = 0, few = draw(3) ? 1u << 20 : 4, accepted = 0, verified = 0;
    for (size_t i = 0; i < BUDGET_BINS; i++)
        factors[i] = 2 * share();
    for (size_t row = 0; row < rows; row++) {
        total += (size_t)(lengths[row] = (int32_t)draw((uint32_t)width + 1));
        contexts[row] = draw((uint32_t)few) * 4.0 / (double)few;
        slots[row] = (int32_t)(2 * row + draw(2));
        gained[row] = (int32_t)draw((uint32_t)width + 2);
        for (size_t i = 0; i < width; i++)
            given[row * width + i] = (float)(draw((uint32_t)few) + 1) / (float)few;
        if (gained[row] > 0) {
            verified += (size_t)lengths[row];
            accepted += (size_t)(lengths[row] < gained[row] ? lengths[row] : gained[row] - 1);
        }
    }
    double *seconds = array(total + 1, sizeof *seconds);
    for (size_t i = 0; i <= total; i++)
        seconds[i] = 0.1 + (double)((rows + i + 6) / 7) * 0.01;
    budget_correct(given, rows, width, factors, scores);
    for (size_t i = 0; i < rows * width; i++)
        CHECK(scores[i] >= 0 && scores[i] <= (i % width ? scores[i - 1] : 1));
    budget_step step = {scores, rows, width, lengths, contexts, seconds, share() / 100, draw((uint32_t)rows)};
    void *work = malloc(budget_work_bytes(total));
    check_choice(&step, total, work);
    budget_last last = {slots, lengths, contexts, given, rows, width};
    budget_sums sums = budget_observe(&last, slots, gained, rows, counts, places, 2 * rows);
    CHECK(sums.known == rows && (size_t)sums.drafts == total);
    double refused = (double)(verified - accepted), all[2] = {0};
    for (size_t i = 0; i < 2 * BUDGET_BINS; i++)
        all[i / BUDGET_BINS] += counts[i / BUDGET_BINS][i % BUDGET_BINS];
    CHECK(all[0] == refused && all[1] == (double)accepted);
    slots[0] = -1;
    last.slots = slots;
    gained[0] = 0;
    CHECK(budget_observe(&last, slots, gained, rows, counts, places, 2 * rows).known == rows - 1);
    float lowest = budget_lowest(given, lengths, rows, width);
    CHECK(lowest > 0 && lowest <= 1);
    void *arrays[] = {given, scores, contexts, lengths, slots, gained, places, seconds, work};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

int main(void) {
    for (int i = 0; i < 400; i++)
        check_step(draw(i % 8 ? 9 : 300) + 1, draw(8) + 1);
    return 0;
}
