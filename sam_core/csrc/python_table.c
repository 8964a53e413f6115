// SPDX-License-Identifier: Apache-2.0
//
// The type NgramTable: owns the arrays of an ngram_table. Its buffer is the table's memory.

#include "python.h" // before all others

#include "table.h"

#include <string.h>
#include <sys/mman.h>

typedef struct {
    PyObject_HEAD ngram_table table;
    int64_t factors[1 + TABLE_MAX_NGRAM][2 * TABLE_NGRAMS];
    Py_ssize_t size; // of the table's memory, as the shape of its buffer
} TableObject;

static int check_sizes(Py_ssize_t num_pages, Py_ssize_t num_slots, Py_ssize_t vocab_size) {
    if (num_slots < 1 || num_slots & (num_slots - 1))
        PyErr_Format(PyExc_ValueError, "num_slots is %zd: it must be a power of two", num_slots);
    else if (num_pages < 1 || num_pages > TABLE_UNIT / (TABLE_PAGE + 1) || num_slots > TABLE_UNIT)
        PyErr_Format(PyExc_ValueError,
                     "a table has 1 page or more and at most 2^29 tokens and 2^29 slots, not %zd pages of %d "
                     "tokens and %zd slots",
                     num_pages, (int)TABLE_PAGE, num_slots);
    else if (vocab_size < 1 || vocab_size > INT32_MAX)
        PyErr_Format(PyExc_ValueError, "vocab_size is %zd: it must lie between 1 and 2147483647", vocab_size);
    else
        return 0;
    return -1;
}

static int copy_factors(PyObject *object, TableObject *self) {
    static const Parameter parameter = {"factors", 'q', 2, false, 1 + TABLE_MAX_NGRAM, 2 * TABLE_NGRAMS};
    Py_buffer view = {0};
    int result = get_buffers("NgramTable", &object, 1, 1, &parameter, 1, &view);
    if (result == 0)
        memcpy(self->factors, view.buf, sizeof self->factors);
    PyBuffer_Release(&view);
    return result;
}

// Zeroed memory, in huge pages if it is large: slots are read at random, and each page read takes an entry of the TLB.
static void *get_zeros(size_t count, size_t size) {
    enum { PAGE_BYTES = 4096, LARGE = 1 << 22 };
    char *zeros = PyMem_Calloc(count, size);
    size_t before = PAGE_BYTES - (uintptr_t)zeros % PAGE_BYTES; // the first whole page
    if (zeros && count * size >= LARGE)
        madvise(zeros + before, count * size - before, MADV_HUGEPAGE);
    return zeros;
}

static int allocate(TableObject *self, size_t num_pages, size_t num_slots, size_t vocab_size) {
    ngram_table *t = &self->table;
    t->num_pages = num_pages;
    t->num_slots = num_slots;
    t->vocab_size = vocab_size;
    t->size = table_size(num_pages, num_slots);
    t->factors = (const int64_t (*)[2 * TABLE_NGRAMS]) self->factors;
    self->size = (Py_ssize_t)t->size;
    t->memory = get_zeros(t->size, sizeof *t->memory);
    t->changed = get_zeros(t->size, sizeof *t->changed);
    t->is_changed = get_zeros(t->size, sizeof *t->is_changed);
    t->counts = get_zeros(vocab_size, sizeof *t->counts);
    if (!t->memory || !t->changed || !t->is_changed || !t->counts) {
        PyErr_NoMemory();
        return -1;
    }
    t->memory[TABLE_TEXTS - 1] = TABLE_NO_TOKEN;
    return 0;
}

static PyObject *Table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"num_pages", "num_slots", "vocab_size", "factors", "of_groups", "of_all", NULL};
    Py_ssize_t num_pages, num_slots, vocab_size;
    PyObject *factors;
    int of_groups, of_all;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnnOpp:NgramTable", names, &num_pages, &num_slots,
                                     &vocab_size, &factors, &of_groups, &of_all) ||
        check_sizes(num_pages, num_slots, vocab_size) < 0)
        return NULL;
    TableObject *self = (TableObject *)PyType_GenericAlloc(type, 0); // zeroed
    if (!self)
        return NULL;
    self->table.of_groups = of_groups;
    self->table.of_all = of_all;
    if (copy_factors(factors, self) < 0 ||
        allocate(self, (size_t)num_pages, (size_t)num_slots, (size_t)vocab_size) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void Table_dealloc(PyObject *object) {
    ngram_table *t = &((TableObject *)object)->table;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(t->memory);
    PyMem_Free(t->changed);
    PyMem_Free(t->is_changed);
    PyMem_Free(t->counts);
    PyObject_Free(object);
    Py_DECREF(type);
}

// The memory is never moved, so buffers need not be counted: each keeps the table alive.
static int Table_get_buffer(PyObject *object, Py_buffer *view, int flags) {
    TableObject *self = (TableObject *)object;
    if (PyBuffer_FillInfo(view, object, self->table.memory, self->size * (Py_ssize_t)sizeof(int32_t), false,
                          flags) < 0)
        return -1;
    view->itemsize = sizeof(int32_t);
    if (flags & PyBUF_FORMAT)
        view->format = "i";
    if (view->shape)
        view->shape = &self->size;
    return 0;
}

PyDoc_STRVAR(Table_append_doc, "append($self, pages, groups, token_rows, starts, ends, /)\n--\n\n"
                               "Add tokens of texts.");

static PyObject *Table_append(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    enum { PAGES, GROUPS, TOKENS, STARTS, ENDS, BUFFERS };
    static const Parameter parameters[] = {{"pages", 'q', 1, true, 0, 0},
                                           {"groups", 'i', 1, false, LIKE(PAGES), 0},
                                           {"token_rows", 'i', 2, false, 0, 0},
                                           {"starts", 'i', 1, false, LIKE(PAGES), 0},
                                           {"ends", 'i', 1, false, LIKE(PAGES), 0}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (get_buffers("append", args, count, BUFFERS, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t rows = view[GROUPS].shape[0], width = view[TOKENS].shape[1], total;
    if (check_lengths("ends", &view[ENDS], width, &total) < 0)
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
    table_texts texts = {.tokens = view[TOKENS].buf,
                         .rows = (size_t)rows,
                         .width = (size_t)width,
                         .groups = view[GROUPS].buf,
                         .starts = starts,
                         .ends = ends,
                         .pages = view[PAGES].buf};
    table_append(&((TableObject *)object)->table, &texts);
    result = Py_NewRef(Py_None);
done:
    release_buffers(view, BUFFERS);
    return result;
}

PyDoc_STRVAR(Table_take_changes_doc, "take_changes($self, indices, values, /)\n--\n\n"
                                     "Write the changed entries of the memory, and forget them.");

static PyObject *Table_take_changes(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    enum { INDICES, VALUES, BUFFERS };
    static const Parameter parameters[] = {{"indices", 'q', 1, true, 0, 0}, {"values", 'i', 1, true, 0, 0}};
    ngram_table *t = &((TableObject *)object)->table;
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (get_buffers("take_changes", args, count, BUFFERS, parameters, BUFFERS, view) < 0 ||
        check_count("indices", view[INDICES].shape[0], (Py_ssize_t)t->num_changed, "items") < 0 ||
        check_count("values", view[VALUES].shape[0], (Py_ssize_t)t->num_changed, "items") < 0)
        goto done;
    table_take_changes(t, view[INDICES].buf, view[VALUES].buf);
    result = Py_NewRef(Py_None);
done:
    release_buffers(view, BUFFERS);
    return result;
}

static PyMethodDef Table_methods[] = {
    {"append", METHOD(Table_append), METH_FASTCALL, Table_append_doc},
    {"take_changes", METHOD(Table_take_changes), METH_FASTCALL, Table_take_changes_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *Table_get_num_changed(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(((TableObject *)object)->table.num_changed);
}

static PyGetSetDef Table_attributes[] = {
    {"num_changed", Table_get_num_changed, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(Table_doc, "NgramTable(num_pages, num_slots, vocab_size, factors, of_groups, of_all)\n--\n\n"
                        "What followed each n-gram of texts; see sam_core.device_drafts.");

static PyType_Slot Table_slots[] = {
    {Py_tp_new, Table_new},
    {Py_tp_dealloc, Table_dealloc},
    {Py_bf_getbuffer, Table_get_buffer},
    {Py_tp_methods, Table_methods},
    {Py_tp_getset, Table_attributes},
    {Py_tp_doc, (void *)Table_doc},
    {0, NULL},
};

PyType_Spec NgramTable_spec = {
    .name = "sam_core._sam.NgramTable",
    .basicsize = sizeof(TableObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Table_slots,
};
