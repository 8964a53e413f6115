// SPDX-License-Identifier: Apache-2.0
//
// Calls the functions of budget.h and cost.h with arrays that are as large as they must be, so that the sanitizers see what is read or
// written beyond them. test_budget.py checks the results.

#include "budget.h"
#include "cost.h"

#include "check.h"

static void *array(size_t count, size_t size) { return calloc(count ? count : 1, size); }

static void call_all(size_t rows, size_t width) {
    float *given = array(rows * width, sizeof *given);
    double *scores = array(rows * width, sizeof *scores), *contexts = array(rows, sizeof *contexts);
    int32_t *lengths = array(rows, sizeof *lengths), *slots = array(rows, sizeof *slots);
    int32_t *gained = array(rows, sizeof *gained), *places = array(2 * rows, sizeof *places);
    int32_t *chosen = array(rows, sizeof *chosen);
    double factors[BUDGET_BINS], counts[2][BUDGET_BINS] = {{0}};
    uint32_t few = draw(3) ? 1u << 20 : 4;
    size_t total = 0;
    for (size_t i = 0; i < BUDGET_BINS; i++)
        factors[i] = draw(200) / 100.0;
    for (size_t row = 0; row < rows; row++) {
        total += (size_t)(lengths[row] = (int32_t)draw((uint32_t)width + 1));
        contexts[row] = draw(few) * 4.0 / few;
        slots[row] = (int32_t)(2 * row + draw(2));
        gained[row] = (int32_t)draw((uint32_t)width + 2);
        for (size_t i = 0; i < width; i++)
            given[row * width + i] = (float)(draw(few) + 1) / (float)few;
    }
    double *seconds = array(total + 1, sizeof *seconds);
    for (size_t i = 0; i <= total; i++)
        seconds[i] = 0.1 + (double)((rows + i + 6) / 7) * 0.01;
    budget_correct(given, rows, width, factors, scores);
    budget_step step = {scores,   rows,    width,           lengths,
                        contexts, seconds, draw(100) / 1e4, draw((uint32_t)rows)};
    void *work = malloc(budget_work_bytes(total));
    budget_choice best = budget_choose(&step, draw(2) * 20.0, false, chosen, work, total);
    budget_choose(&step, best.rate * draw(200) / 100, true, chosen, work, total);
    for (size_t row = 0; row < rows; row++)
        CHECK(chosen[row] >= 0 && chosen[row] <= lengths[row]);
    budget_last last = {slots, lengths, contexts, given, rows, width};
    CHECK(budget_observe(&last, slots, gained, rows, counts, places, 2 * rows).known == rows);
    slots[0] = -1;
    CHECK(budget_observe(&last, slots, gained, rows, counts, places, 2 * rows).known == rows - 1);
    float lowest = budget_lowest(given, lengths, rows, width);
    CHECK(lowest > 0 && lowest <= 1);
    void *arrays[] = {given, scores, contexts, lengths, slots, gained, places, chosen, seconds, work};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void learn(size_t count) {
    cost_model *model = array(1, sizeof *model);
    int64_t *rows = array(count, sizeof *rows);
    int32_t *more = array(count, sizeof *more), *padded = array(count, sizeof *padded);
    double *seconds = array(count, sizeof *seconds);
    for (size_t i = 0; i < count; i++) {
        rows[i] = 1 + draw(draw(4) ? 100 : 1u << 30), more[i] = (int32_t)draw(3),
        padded[i] = (int32_t)(i + 8) / 8 * 8;
        cost_step step = {rows[i], draw(2), draw(2), draw(9), draw(9)};
        cost_learn(model, &step, 1e-3 * (1 + draw(100)), 0.5 + draw(3), 0.9, draw(2), 1e-2, 4);
        CHECK(cost_seconds(model, &step) >= 0);
    }
    cost_rows(model->weights, rows, count, more, count, padded, count, seconds);
    for (size_t i = 0; i < count; i++)
        CHECK(seconds[i] >= 0);
    void *arrays[] = {model, rows, more, padded, seconds};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

int main(void) {
    for (int i = 0; i < 400; i++)
        call_all(draw(i % 8 ? 9 : 300) + 1, draw(8) + 1);
    for (int i = 0; i < 40; i++)
        learn(draw(60) + 1);
    return 0;
}
