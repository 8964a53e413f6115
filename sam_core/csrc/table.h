// SPDX-License-Identifier: Apache-2.0
//
// What followed each n-gram in the texts of a group and in those of all: the table of device_drafts.py, whose
// NgramTable describes the memory. No function allocates memory or can fail, and whatever the arrays hold, nothing is
// read or written outside of them.

#ifndef TABLE_H
#define TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TABLE_NGRAMS = 5,    // lengths of n-grams
    TABLE_MAX_NGRAM = 8, // tokens of the longest ones
    TABLE_TEXTS = 2,     // cells before the pages
    TABLE_PAGE = 256,    // tokens of a page, which has one cell more
    TABLE_NO_TOKEN = -1,
};

#define TABLE_UNIT (1 << 29) // of confirmations, stored above a position

typedef struct {
    // [size], at first zeroed but for TABLE_NO_TOKEN before TABLE_TEXTS: the pages, from TABLE_TEXTS on, then a pair of
    // cells for each slot
    int32_t *memory;
    size_t size, num_pages, num_slots; // size: table_size(); at least 1 page; a power of two of slots
    uint64_t opened;                   // pages so far, each in place of the one num_pages before it
    int32_t *changed;                  // [size], cells that changed, each once, of which num_changed are used
    uint8_t *is_changed;               // [size], whether a cell is among them
    size_t num_changed;
    int64_t *counts; // [vocab_size], how often each token came
    size_t vocab_size;
    const int64_t (*factors)[2 * TABLE_NGRAMS]; // [1 + TABLE_MAX_NGRAM], of the hashes
    bool of_groups, of_all;                     // which texts n-grams are looked up in
} ngram_table;

// Texts that grow, each from its `starts` to before its `ends`.
typedef struct {
    const int32_t *tokens; // [rows, width]
    size_t rows, width;
    const int32_t *groups;        // [rows]
    const int32_t *starts, *ends; // [rows], 0 <= start <= end <= width
    // [rows], the page that each text ends in, which the call updates for the next one; anything for a new text.
    int64_t *pages;
} table_texts;

// Cells of the memory of a table.
static inline size_t table_size(size_t num_pages, size_t num_slots) {
    return TABLE_TEXTS + num_pages * (TABLE_PAGE + 1) + 2 * num_slots;
}

// Adds the tokens of texts, one after the other.
void table_append(ngram_table *t, const table_texts *texts);

// Writes the num_changed cells that changed, each once, and their values; from then on none has changed.
void table_take_changes(ngram_table *t, int64_t *cells, int32_t *values);

#endif
