// SPDX-License-Identifier: Apache-2.0

#include "python.h" // before all others

#include "budget.h"
#include "cost.h"

static int get_numbers(PyObject *const *args, size_t count, double *numbers) {
    for (size_t i = 0; i < count; i++) {
        numbers[i] = PyFloat_AsDouble(args[i]);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

PyDoc_STRVAR(correct_scores_doc, "correct_scores(scores, factors, corrected, /)\n--\n\n"
                                 "Multiply each score by the factor of its bin.");

static PyObject *correct_scores(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SCORES, FACTORS, CORRECTED, BUFFERS };
    static const Parameter parameters[] = {{"scores", 'f', 2, false, 0, 0},
                                           {"factors", 'd', 1, false, BUDGET_BINS, 0},
                                           {"corrected", 'd', 2, true, LIKE(SCORES), LIKE(SCORES)}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (get_buffers("correct_scores", args, count, BUFFERS, parameters, BUFFERS, view) == 0) {
        budget_correct(view[SCORES].buf, (size_t)view[SCORES].shape[0], (size_t)view[SCORES].shape[1],
                       view[FACTORS].buf, view[CORRECTED].buf);
        result = Py_NewRef(Py_None);
    }
    release_buffers(view, BUFFERS);
    return result;
}

PyDoc_STRVAR(
    choose_drafts_doc,
    "choose_drafts(scores, lengths, contexts, seconds, chosen, of_context, rate, fixed, turn, /)\n--\n\n"
    "Choose the drafts that give the most tokens a second, or those that are worth most at a fixed rate.");

static PyObject *choose_drafts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SCORES, LENGTHS, CONTEXTS, SECONDS, CHOSEN, BUFFERS };
    enum { OF_CONTEXT = BUFFERS, RATE, FIXED, TURN, ARGUMENTS };
    static const Parameter parameters[] = {{"scores", 'd', 2, false, 0, 0},
                                           {"lengths", 'i', 1, false, LIKE(SCORES), 0},
                                           {"contexts", 'd', 1, false, LIKE(SCORES), 0},
                                           {"seconds", 'd', 1, false, 0, 0},
                                           {"chosen", 'i', 1, true, LIKE(SCORES), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    void *work = NULL;
    double numbers[2];
    if (get_buffers("choose_drafts", args, count, ARGUMENTS, parameters, BUFFERS, view) < 0 ||
        get_numbers(args + OF_CONTEXT, 2, numbers) < 0)
        goto done;
    int fixed = PyObject_IsTrue(args[FIXED]);
    if (fixed < 0)
        goto done;
    Py_ssize_t turn = PyNumber_AsSsize_t(args[TURN], PyExc_OverflowError);
    if (PyErr_Occurred())
        goto done;
    if (turn < 0) {
        PyErr_Format(PyExc_ValueError, "turn is %zd: it must not be negative", turn);
        goto done;
    }
    Py_ssize_t rows = view[SCORES].shape[0], total;
    if (check_lengths("lengths", &view[LENGTHS], view[SCORES].shape[1], &total) < 0 ||
        check_count("seconds", view[SECONDS].shape[0], total + 1, "items") < 0)
        goto done;
    work = PyMem_Malloc(budget_work_bytes((size_t)total));
    if (!work) {
        PyErr_NoMemory();
        goto done;
    }
    budget_step step = {.scores = view[SCORES].buf,
                        .rows = (size_t)rows,
                        .width = (size_t)view[SCORES].shape[1],
                        .lengths = view[LENGTHS].buf,
                        .contexts = view[CONTEXTS].buf,
                        .seconds = view[SECONDS].buf,
                        .of_context = numbers[0],
                        .first = rows ? (size_t)(turn % rows) : 0};
    budget_choice choice = budget_choose(&step, numbers[1], fixed, view[CHOSEN].buf, work, (size_t)total);
    result = Py_BuildValue("ddd", choice.rate, choice.accepted, choice.gained);
done:
    PyMem_Free(work);
    release_buffers(view, BUFFERS);
    return result;
}

PyDoc_STRVAR(
    observe_drafts_doc,
    "observe_drafts(slots, gained, last_slots, drafted, contexts, counts, scores, /)\n--\n\n"
    "Add up what the requests of a step had in the step before, and count what became of their drafts.");

static PyObject *observe_drafts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SLOTS, GAINED, LAST, DRAFTED, CONTEXTS, COUNTS, SCORES, BUFFERS };
    static const Parameter parameters[] = {{"slots", 'i', 1, false, 0, 0},
                                           {"gained", 'i', 1, false, LIKE(SLOTS), 0},
                                           {"last_slots", 'i', 1, false, 0, 0},
                                           {"drafted", 'i', 1, false, LIKE(LAST), 0},
                                           {"contexts", 'd', 1, false, LIKE(LAST), 0},
                                           {"counts", 'd', 2, true, 2, BUDGET_BINS},
                                           {"scores", 'f', 2, false, LIKE(LAST), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    int32_t *places = NULL;
    size_t given = count == BUFFERS && args[SCORES] == Py_None ? SCORES : BUFFERS;
    if (get_buffers("observe_drafts", args, count, BUFFERS, parameters, given, view) < 0)
        goto done;
    bool has_scores = view[SCORES].obj;
    Py_ssize_t rows = view[SLOTS].shape[0], last_rows = view[LAST].shape[0], total;
    Py_ssize_t width = has_scores ? view[SCORES].shape[1] : 0;
    if (check_lengths("drafted", &view[DRAFTED], width, &total) < 0)
        goto done;
    size_t size = 0;
    const int32_t *last_slots = view[LAST].buf;
    for (Py_ssize_t i = 0; i < last_rows; i++)
        if (last_slots[i] >= 0 && (size_t)last_slots[i] >= size)
            size = (size_t)last_slots[i] + 1;
    places = PyMem_Malloc(size * sizeof *places);
    if (!places) {
        PyErr_NoMemory();
        goto done;
    }
    budget_last last = {last_slots,       view[DRAFTED].buf, view[CONTEXTS].buf,
                        view[SCORES].buf, (size_t)last_rows, (size_t)width};
    budget_sums sums = budget_observe(&last, view[SLOTS].buf, view[GAINED].buf, (size_t)rows,
                                      view[COUNTS].buf, places, size);
    result = Py_BuildValue("nndd", (Py_ssize_t)sums.known, (Py_ssize_t)sums.drafts, sums.context,
                           sums.draft_context);
done:
    PyMem_Free(places);
    release_buffers(view, BUFFERS);
    return result;
}

enum { STEP_ROWS, STEP_DRAFTS, STEP_PROMPTS, STEP_CONTEXT, STEP_DRAFT_CONTEXT, STEP_NUMBERS };

static int get_step(PyObject *const *args, cost_step *step) {
    double numbers[STEP_NUMBERS];
    if (get_numbers(args, STEP_NUMBERS, numbers) < 0)
        return -1;
    if (!(numbers[STEP_ROWS] >= 1 && numbers[STEP_ROWS] <= INT32_MAX)) {
        PyErr_SetString(PyExc_ValueError, "a step has 1 row or more, and less than 2^31");
        return -1;
    }
    *step = (cost_step){(int64_t)numbers[STEP_ROWS], numbers[STEP_DRAFTS] != 0, numbers[STEP_PROMPTS] != 0,
                        numbers[STEP_CONTEXT], numbers[STEP_DRAFT_CONTEXT]};
    return 0;
}

#define MODEL(writable) (&(const Parameter){"model", 'd', 2, writable, COST_FEATURES + 3, COST_FEATURES})

PyDoc_STRVAR(step_seconds_doc, "step_seconds(model, rows, drafts, prompts, context, draft_context, /)\n--\n\n"
                               "Return the expected seconds of a step.");

static PyObject *step_seconds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view = {0};
    cost_step step;
    PyObject *result = NULL;
    if (get_buffers("step_seconds", args, count, 1 + STEP_NUMBERS, MODEL(false), 1, &view) == 0 &&
        get_step(args + 1, &step) == 0)
        result = PyFloat_FromDouble(cost_seconds(view.buf, &step));
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(learn_step_doc, "learn_step(model, rows, drafts, prompts, context, draft_context, seconds, "
                             "factor, keep, leave_out, /)\n--\n\n"
                             "Scale and fade what was learned, add a step, and fit the costs.");

static PyObject *learn_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SECONDS, FACTOR, KEEP, LEAVE_OUT, NUMBERS };
    Py_buffer view = {0};
    cost_step step;
    double numbers[NUMBERS];
    PyObject *result = NULL;
    if (get_buffers("learn_step", args, count, 1 + STEP_NUMBERS + NUMBERS, MODEL(true), 1, &view) < 0 ||
        get_step(args + 1, &step) < 0 || get_numbers(args + 1 + STEP_NUMBERS, NUMBERS, numbers) < 0)
        goto done;
    if (!(numbers[SECONDS] > 0 && numbers[FACTOR] > 0)) {
        PyErr_SetString(PyExc_ValueError, "seconds and factor must be greater than 0");
        goto done;
    }
    cost_learn(view.buf, &step, numbers[SECONDS], numbers[FACTOR], numbers[KEEP], numbers[LEAVE_OUT] != 0);
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(rows_seconds_doc, "rows_seconds(weights, rows, more, padded, seconds, /)\n--\n\n"
                               "Write the expected seconds of steps by their rows.");

static PyObject *rows_seconds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { WEIGHTS, ROWS, MORE, PADDED, SECONDS, BUFFERS };
    static const Parameter parameters[] = {{"weights", 'd', 1, false, COST_FEATURES, 0},
                                           {"rows", 'q', 1, false, 0, 0},
                                           {"more", 'i', 1, false, 0, 0},
                                           {"padded", 'i', 1, false, 0, 0},
                                           {"seconds", 'd', 1, true, LIKE(ROWS), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (get_buffers("rows_seconds", args, count, BUFFERS, parameters, BUFFERS, view) < 0)
        goto done;
    const int64_t *rows = view[ROWS].buf;
    const int32_t *more = view[MORE].buf;
    for (Py_ssize_t i = 0; i < view[ROWS].shape[0]; i++)
        if (rows[i] < 1 || rows[i] > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "rows[%zd] must be 1 or more, and less than 2^31", i);
            goto done;
        }
    for (Py_ssize_t i = 0; i < view[MORE].shape[0]; i++)
        if (more[i] < 0) {
            PyErr_Format(PyExc_ValueError, "more[%zd] is %ld: it must not be negative", i, (long)more[i]);
            goto done;
        }
    cost_rows(view[WEIGHTS].buf, rows, (size_t)view[ROWS].shape[0], more, (size_t)view[MORE].shape[0],
              view[PADDED].buf, (size_t)view[PADDED].shape[0], view[SECONDS].buf);
    result = Py_NewRef(Py_None);
done:
    release_buffers(view, BUFFERS);
    return result;
}

PyDoc_STRVAR(lowest_score_doc, "lowest_score(scores, lengths, /)\n--\n\n"
                               "Return the lowest score of the last token of a draft.");

static PyObject *lowest_score(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SCORES, LENGTHS, BUFFERS };
    static const Parameter parameters[] = {{"scores", 'f', 2, false, 0, 0},
                                           {"lengths", 'i', 1, false, LIKE(SCORES), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    Py_ssize_t total;
    if (get_buffers("lowest_score", args, count, BUFFERS, parameters, BUFFERS, view) == 0 &&
        check_lengths("lengths", &view[LENGTHS], view[SCORES].shape[1], &total) == 0)
        result = PyFloat_FromDouble((double)budget_lowest(view[SCORES].buf, view[LENGTHS].buf,
                                                          (size_t)view[SCORES].shape[0],
                                                          (size_t)view[SCORES].shape[1]));
    release_buffers(view, BUFFERS);
    return result;
}

PyDoc_STRVAR(to_lists_doc, "to_lists(table, lengths, /)\n--\n\n"
                           "Return the first items of each row of a table as a list of lists.");

static PyObject *list_of(const int32_t *items, Py_ssize_t size) {
    PyObject *list = PyList_New(size);
    for (Py_ssize_t i = 0; list && i < size; i++) {
        PyObject *item = PyLong_FromLong(items[i]);
        if (!item || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *to_lists(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { TABLE, LENGTHS, BUFFERS };
    static const Parameter parameters[] = {{"table", 'i', 2, false, 0, 0},
                                           {"lengths", 'i', 1, false, LIKE(TABLE), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (get_buffers("to_lists", args, count, BUFFERS, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t rows = view[TABLE].shape[0], width = view[TABLE].shape[1], total;
    if (check_lengths("lengths", &view[LENGTHS], width, &total) < 0)
        goto done;
    const int32_t *table = view[TABLE].buf, *lengths = view[LENGTHS].buf;
    result = PyList_New(rows);
    for (Py_ssize_t i = 0; result && i < rows; i++) {
        PyObject *list = list_of(table + i * width, lengths[i]);
        if (!list || PyList_SetItem(result, i, list) < 0)
            Py_CLEAR(result);
    }
done:
    release_buffers(view, BUFFERS);
    return result;
}

PyMethodDef module_functions[] = {
    {"correct_scores", METHOD(correct_scores), METH_FASTCALL, correct_scores_doc},
    {"choose_drafts", METHOD(choose_drafts), METH_FASTCALL, choose_drafts_doc},
    {"observe_drafts", METHOD(observe_drafts), METH_FASTCALL, observe_drafts_doc},
    {"lowest_score", METHOD(lowest_score), METH_FASTCALL, lowest_score_doc},
    {"step_seconds", METHOD(step_seconds), METH_FASTCALL, step_seconds_doc},
    {"learn_step", METHOD(learn_step), METH_FASTCALL, learn_step_doc},
    {"rows_seconds", METHOD(rows_seconds), METH_FASTCALL, rows_seconds_doc},
    {"to_lists", METHOD(to_lists), METH_FASTCALL, to_lists_doc},
    {NULL, NULL, 0, NULL},
};
