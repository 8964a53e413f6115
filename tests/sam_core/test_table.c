// SPDX-License-Identifier: Apache-2.0
//
// Calls table_append with arrays that are as large as they must be, so that the sanitizers see what is read or written beyond
// them, also where the memory holds anything. tests/runner2/test_device_drafts.py checks the results.

#include "table.h"

#include "check.h"

#include <string.h>

enum { VOCAB = 50, ROWS = 4, WIDTH = 700 };

static void call_all(bool has_garbage) {
    size_t num_pages = draw(4) + 1, num_slots = (size_t)1 << draw(9);
    size_t size = table_size(num_pages, num_slots);
    int64_t factors[1 + TABLE_MAX_NGRAM][2 * TABLE_NGRAMS], *counts = calloc(VOCAB, sizeof *counts);
    int32_t *memory = calloc(size, sizeof *memory), *copy = calloc(size, sizeof *copy);
    int32_t *changed = calloc(size, sizeof *changed), *tokens = calloc(ROWS * WIDTH, sizeof *tokens);
    uint8_t *is_changed = calloc(size, 1);
    int32_t groups[ROWS], starts[ROWS] = {0}, ends[ROWS];
    int64_t pages[ROWS] = {0};
    for (size_t i = 0; i <= TABLE_MAX_NGRAM; i++)
        for (size_t j = 0; j < 2 * TABLE_NGRAMS; j++)
            factors[i][j] = has_garbage ? 0 : (int64_t)draw(1u << 20) << 18;
    for (size_t i = 0; has_garbage && i < size; i++)
        memory[i] = copy[i] = (int32_t)(draw(1u << 28) << 4);
    memory[size - 2 * num_slots + 1] = copy[size - 2 * num_slots + 1] =
        0; // the check of all n-grams, without factors
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        tokens[i] = has_garbage && !draw(9) ? (int32_t)(draw(1u << 28) << 4) : (int32_t)draw(VOCAB);
    ngram_table t = {.memory = memory,
                     .size = size,
                     .num_pages = num_pages,
                     .num_slots = num_slots,
                     .changed = changed,
                     .is_changed = is_changed,
                     .counts = counts,
                     .vocab_size = VOCAB,
                     .factors = (const int64_t (*)[2 * TABLE_NGRAMS]) factors,
                     .of_groups = draw(2),
                     .of_all = draw(2)};
    for (bool grows = true; grows; memcpy(starts, ends, sizeof starts)) {
        grows = false;
        for (size_t row = 0; row < ROWS; row++) {
            groups[row] = (int32_t)row / 2 + 2;
            int32_t end = starts[row] + (int32_t)draw(draw(3) ? 4 : 300);
            ends[row] = end < WIDTH ? end : WIDTH;
            grows |= ends[row] < WIDTH;
            if (has_garbage)
                pages[row] = (int64_t)draw(8) - 4;
        }
        table_append(&t, &(table_texts){tokens, ROWS, WIDTH, groups, starts, ends, pages});
        size_t num_changed = t.num_changed;
        CHECK(num_changed <= size);
        int64_t *cells = calloc(num_changed + 1, sizeof *cells);
        int32_t *values = calloc(num_changed + 1, sizeof *values);
        table_take_changes(&t, cells, values);
        CHECK(t.num_changed == 0);
        for (size_t i = 0; i < num_changed; i++)
            copy[cells[i]] = values[i];
        free(cells);
        free(values);
        CHECK(memcmp(copy, memory, size * sizeof *memory) == 0);
        t.num_changed = has_garbage && draw(2) ? size : 0; // full: nothing is noted
        if (t.num_changed)
            break;
    }
    if (t.num_changed)
        table_append(&t, &(table_texts){tokens, ROWS, WIDTH, groups, (int32_t[ROWS]){0}, ends, pages});
    void *arrays[] = {counts, memory, copy, changed, tokens, is_changed};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

int main(void) {
    for (int i = 0; i < 100; i++)
        call_all(i % 2);
    return 0;
}
