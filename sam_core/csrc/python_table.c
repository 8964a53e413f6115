// SPDX-License-Identifier: Apache-2.0

#include "python.h"
#include "table.h"

PyDoc_STRVAR(
    append_ngrams_doc,
    "append_ngrams(memory, changed, is_changed, totals, counts, factors, pages, groups, token_rows, starts, "
    "ends, num_slots, of_groups, of_all, /)\n--\n\n"
    "Add tokens of texts to a table of n-grams.");

// Pages so far and changed cells: int64 [2].
enum { OPENED, NUM_CHANGED, TOTALS };

static PyObject *append_ngrams(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum {
        MEMORY,
        CHANGED,
        IS_CHANGED,
        TOTAL,
        COUNTS,
        FACTORS,
        PAGES,
        GROUPS,
        TOKENS,
        STARTS,
        ENDS,
        BUFFERS
    };
    enum { NUM_SLOTS = BUFFERS, OF_GROUPS, OF_ALL, ARGUMENTS };
    static const Parameter parameters[] = {
        {"memory", 'i', 1, true},  {"changed", 'i', 1, true}, {"is_changed", 'B', 1, true},
        {"totals", 'q', 1, true},  {"counts", 'q', 1, true},  {"factors", 'q', 2, false},
        {"pages", 'q', 1, true},   {"groups", 'i', 1, false}, {"token_rows", 'i', 2, false},
        {"starts", 'i', 1, false}, {"ends", 'i', 1, false}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (check_arguments("append_ngrams", count, ARGUMENTS) < 0 ||
        get_buffers(args, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t num_slots = PyNumber_AsSsize_t(args[NUM_SLOTS], PyExc_OverflowError);
    int of_groups = PyErr_Occurred() ? -1 : PyObject_IsTrue(args[OF_GROUPS]);
    int of_all = of_groups < 0 ? -1 : PyObject_IsTrue(args[OF_ALL]);
    if (of_all < 0)
        goto done;
    Py_ssize_t size = view[MEMORY].shape[0], rows = view[GROUPS].shape[0], width = view[TOKENS].shape[1],
               total;
    if (num_slots < 1 || num_slots & (num_slots - 1)) {
        PyErr_Format(PyExc_ValueError, "num_slots is %zd: it must be a power of two", num_slots);
        goto done;
    }
    Py_ssize_t of_pages = num_slots < size / 2 ? size - 2 * num_slots - TABLE_TEXTS : 0;
    if (of_pages <= 0 || of_pages % (TABLE_PAGE + 1) || size > INT32_MAX) {
        PyErr_Format(
            PyExc_ValueError,
            "memory has %zd items, not %d, then %d for each of its pages, then 2 for each of %zd slots", size,
            (int)TABLE_TEXTS, TABLE_PAGE + 1, num_slots);
        goto done;
    }
    if (check_count("changed", view[CHANGED].shape[0], size, "items") < 0 ||
        check_count("is_changed", view[IS_CHANGED].shape[0], size, "items") < 0 ||
        check_count("totals", view[TOTAL].shape[0], TOTALS, "items") < 0 ||
        check_count("factors", view[FACTORS].shape[0], 1 + TABLE_MAX_NGRAM, "rows") < 0 ||
        check_count("factors", view[FACTORS].shape[1], 2 * TABLE_NGRAMS, "columns") < 0 ||
        check_count("pages", view[PAGES].shape[0], rows, "rows") < 0 ||
        check_count("starts", view[STARTS].shape[0], rows, "rows") < 0 ||
        check_count("ends", view[ENDS].shape[0], rows, "rows") < 0 ||
        check_lengths("ends", &view[ENDS], width, &total) < 0)
        goto done;
    const int32_t *starts = view[STARTS].buf, *ends = view[ENDS].buf;
    for (Py_ssize_t i = 0; i < rows; i++)
        if (starts[i] < 0 || starts[i] > ends[i]) {
            PyErr_Format(PyExc_ValueError, "starts[%zd] is %ld: it must lie between 0 and ends[%zd], %ld", i,
                         (long)starts[i], i, (long)ends[i]);
            goto done;
        }
    if (view[TOKENS].shape[0] < rows) {
        PyErr_Format(PyExc_ValueError, "token_rows has %zd rows, fewer than %zd", view[TOKENS].shape[0],
                     rows);
        goto done;
    }
    int64_t *totals = view[TOTAL].buf;
    if (totals[OPENED] < 0 || totals[NUM_CHANGED] < 0 || totals[NUM_CHANGED] > size) {
        PyErr_Format(PyExc_ValueError,
                     "totals are %lld and %lld: they must be 0 or more, the second at most %zd",
                     (long long)totals[OPENED], (long long)totals[NUM_CHANGED], size);
        goto done;
    }
    ngram_table table = {.memory = view[MEMORY].buf,
                         .size = (size_t)size,
                         .num_pages = (size_t)of_pages / (TABLE_PAGE + 1),
                         .num_slots = (size_t)num_slots,
                         .opened = (uint64_t)totals[OPENED],
                         .changed = view[CHANGED].buf,
                         .is_changed = view[IS_CHANGED].buf,
                         .num_changed = (size_t)totals[NUM_CHANGED],
                         .counts = view[COUNTS].buf,
                         .vocab_size = (size_t)view[COUNTS].shape[0],
                         .factors = view[FACTORS].buf,
                         .of_groups = of_groups,
                         .of_all = of_all};
    table_texts texts = {.tokens = view[TOKENS].buf,
                         .rows = (size_t)rows,
                         .width = (size_t)width,
                         .groups = view[GROUPS].buf,
                         .starts = starts,
                         .ends = ends,
                         .pages = view[PAGES].buf};
    table_append(&table, &texts);
    totals[OPENED] = (int64_t)table.opened;
    totals[NUM_CHANGED] = (int64_t)table.num_changed;
    result = Py_NewRef(Py_None);
done:
    release_buffers(view, BUFFERS);
    return result;
}

PyMethodDef table_functions[] = {
    {"append_ngrams", METHOD(append_ngrams), METH_FASTCALL, append_ngrams_doc},
    {NULL, NULL, 0, NULL},
};
