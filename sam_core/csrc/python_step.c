// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include <stdio.h>

static void raise_bad_size(PyObject *what, const char *name, Py_ssize_t width) {
    bool narrow = width <= RULE_MAX_DRAFT;
    PyErr_Format(PyExc_ValueError, "%s is %R: it must lie between 0 and %zd, the %s", name, what,
                 narrow ? width : RULE_MAX_DRAFT, narrow ? "width of out" : "longest draft");
}

// `tokens` has the number of all tokens, or for a table (`starts`) that of a row.
static PyObject *raise_step_error(pool_status status, const pool_error *error, const pool_tokens *tokens,
                                  Py_ssize_t width) {
    Py_ssize_t at = (Py_ssize_t)error->at;
    long long value = error->value;
    switch (status) {
    case POOL_BAD_SLOT:
        return PyErr_Format(PyExc_ValueError, "slots[%zd] is %lld, which is not an open slot", at, value);
    case POOL_REPEATED_SLOT:
        return PyErr_Format(PyExc_ValueError, "slots[%zd] is %lld, which stands in an earlier row too", at,
                            value);
    case POOL_BAD_COUNT:
        return PyErr_Format(PyExc_ValueError, "counts[%zd] is %lld: it must not be negative", at, value);
    case POOL_BAD_COUNT_SUM:
        return PyErr_Format(PyExc_ValueError, "counts add up to %lld, but there are %zu tokens", value,
                            tokens->size);
    case POOL_BAD_START:
        return PyErr_Format(PyExc_ValueError, "starts[%zd] is %lld: it must not be negative", at, value);
    case POOL_BAD_END:
        return PyErr_Format(PyExc_ValueError, "starts[%zd] + counts[%zd] is %lld, but tokens has %zu columns",
                            at, at, value, tokens->size);
    case POOL_BAD_TOKEN:
        if (tokens && tokens->starts)
            return PyErr_Format(PyExc_ValueError,
                                "tokens[%zu, %zu] is %lld: token ids go from 0 to 2147483647",
                                error->at / tokens->size, error->at % tokens->size, value);
        return PyErr_Format(PyExc_ValueError, "tokens[%zd] is %lld: token ids go from 0 to 2147483647", at,
                            value);
    case POOL_BAD_DRAFT_SIZE: {
        char name[40];
        PyObject *number = PyLong_FromLongLong(value);
        snprintf(name, sizeof name, "k of row %zd", at);
        if (number)
            raise_bad_size(number, name, width);
        Py_XDECREF(number);
        return NULL;
    }
    default:
        return PyErr_NoMemory();
    }
}

// The arguments of Pool_step.
static char *step_names[] = {"slots",  "tokens",  "counts",        "k",           "out", "lengths", "scores",
                             "starts", "sources", "match_lengths", "index_later", NULL};
enum { SLOTS, TOKENS, COUNTS, K, OUT, LENGTHS, SCORES, STARTS, SOURCES, MATCHES, ARGUMENTS };

// Reads k. Returns 1 if it is a number for all rows, 0 if it is an object with a buffer, -1 with an exception.
static int get_draft_size(PyObject *k, int32_t *size) {
    if (!PyIndex_Check(k)) { // NumPy's scalars are integers and buffers, its arrays only claim to be both
        if (PyObject_CheckBuffer(k))
            return 0;
        raise_type_error(k, "k must be an integer or an int32 buffer");
        return -1;
    }
    Py_ssize_t number = PyNumber_AsSsize_t(k, NULL); // clipped to its range, then refused as too large
    if (!PyErr_Occurred()) {
        *size = number < -1 ? -1 : number > INT32_MAX ? INT32_MAX : (int32_t)number;
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_TypeError) || !PyObject_CheckBuffer(k))
        return -1;
    PyErr_Clear();
    return 0;
}

// Whether the shapes fit each other; if not, sets an exception.
static bool check_shapes(const Py_buffer view[ARGUMENTS], bool is_table) {
    Py_ssize_t rows = view[SLOTS].shape[0], width = view[OUT].shape[1];
    if (is_table && view[TOKENS].shape[0] < rows) {
        PyErr_Format(PyExc_ValueError, "tokens has %zd rows, but slots has %zd", view[TOKENS].shape[0], rows);
        return false;
    }
    for (int j = COUNTS; j < ARGUMENTS; j++) {
        if (view[j].obj && view[j].shape[0] != rows) {
            PyErr_Format(PyExc_ValueError, "%s has %zd rows, but slots has %zd", step_names[j],
                         view[j].shape[0], rows);
            return false;
        }
        if (view[j].obj && j >= SCORES && j != STARTS && view[j].shape[1] != width) {
            PyErr_Format(PyExc_ValueError, "%s has %zd columns, but out has %zd", step_names[j],
                         view[j].shape[1], width);
            return false;
        }
    }
    return true;
}

const char Pool_step_doc[] =
    PyDoc_STR("step($self, /, slots, tokens, counts, k, out, lengths, scores=None, starts=None, "
              "sources=None, match_lengths=None, index_later=False)\n--\n\n"
              "Append tokens to each slot, then write a draft of at most k tokens for each.");

PyObject *Pool_step(PyObject *object, PyObject *args, PyObject *kwargs) {
    PoolObject *self = (PoolObject *)object;
    PyObject *given[ARGUMENTS] = {NULL}, *result = NULL;
    Py_buffer view[ARGUMENTS] = {{0}};
    int index_later = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|OOOOp:step", step_names, &given[SLOTS],
                                     &given[TOKENS], &given[COUNTS], &given[K], &given[OUT], &given[LENGTHS],
                                     &given[SCORES], &given[STARTS], &given[SOURCES], &given[MATCHES],
                                     &index_later) ||
        check_process(self) < 0)
        return NULL;
    int32_t uniform = 0;
    int is_uniform = get_draft_size(given[K], &uniform);
    if (is_uniform < 0)
        return NULL;
    bool is_table = given[STARTS] && given[STARTS] != Py_None;
    for (int i = 0; i < ARGUMENTS; i++) {
        bool absent = i == K ? is_uniform : i >= SCORES && (!given[i] || given[i] == Py_None);
        bool has_columns = i == TOKENS ? is_table : i == OUT || (i >= SCORES && i != STARTS);
        bool writable = i >= OUT && i != STARTS;
        if (!absent && get_buffer(given[i], step_names[i], i == SCORES ? 'f' : 'i', has_columns ? 2 : 1,
                                  i == TOKENS && is_table, writable, &view[i]) < 0)
            goto done;
    }
    Py_ssize_t rows = view[SLOTS].shape[0], width = view[OUT].shape[1];
    pool_tokens tokens = {view[TOKENS].buf, (size_t)view[TOKENS].shape[is_table], view[STARTS].buf,
                          is_table ? view[TOKENS].strides[0] / view[TOKENS].itemsize : 0};
    if (!check_shapes(view, is_table))
        goto done;
    if (is_uniform && (uniform < 0 || uniform > width || uniform > RULE_MAX_DRAFT)) {
        raise_bad_size(given[K], "k", width);
        goto done;
    }
    pool_drafts out = {.tokens = view[OUT].buf,
                       .scores = view[SCORES].buf,
                       .lengths = view[LENGTHS].buf,
                       .width = (size_t)width,
                       .sources = view[SOURCES].buf,
                       .match_lengths = view[MATCHES].buf,
                       .index_later = index_later};
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_step(&self->pool, view[SLOTS].buf, (size_t)rows, &tokens, view[COUNTS].buf,
                       is_uniform ? &uniform : view[K].buf, is_uniform, &out, &error);
    END_WORK(self)
    if (status == POOL_OK)
        result = Py_NewRef(Py_None);
    else
        raise_step_error(status, &error, &tokens, width);
done:
    for (int i = 0; i < ARGUMENTS; i++)
        PyBuffer_Release(&view[i]);
    return result;
}

const char Pool_catch_up_doc[] = PyDoc_STR("catch_up($self, /)\n--\n\n"
                                           "Index the tokens of a step with index_later.");

PyObject *Pool_catch_up(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    if (check_process(self) < 0)
        return NULL;
    BEGIN_WORK(self)
    pool_catch_up(&self->pool);
    END_WORK(self)
    Py_RETURN_NONE;
}

const char Pool_append_doc[] = PyDoc_STR("append($self, slot, tokens, /)\n--\n\n"
                                         "Append tokens to a slot.");

PyObject *Pool_append(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    PoolObject *self = (PoolObject *)object;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "append takes 2 arguments, slot and tokens, not %zd", count);
    if (check_process(self) < 0)
        return NULL;
    Py_ssize_t slot = get_slot(args[0]);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    pool_error error;
    pool_status status;
    Tokens tokens;
    if (get_tokens(args[1], "tokens", &tokens) < 0)
        return NULL;
    BEGIN_WORK(self)
    status = pool_append(&self->pool, slot, tokens.tokens, (size_t)tokens.size, &error);
    END_WORK(self)
    release_tokens(&tokens);
    if (status == POOL_BAD_SLOT)
        return raise_bad_slot(args[0]);
    if (status != POOL_OK)
        return raise_step_error(status, &error, NULL, 0);
    Py_RETURN_NONE;
}
