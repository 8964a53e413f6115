// SPDX-License-Identifier: Apache-2.0

#include "python.h"

#include <stdarg.h>

void *raise_type_error(PyObject *object, const char *expected, ...) {
    PyErr_Clear();
    va_list arguments;
    va_start(arguments, expected);
    PyObject *text = PyUnicode_FromFormatV(expected, arguments);
    va_end(arguments);
    PyObject *name = text ? PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__") : NULL;
    if (name)
        PyErr_Format(PyExc_TypeError, "%U, not %U", text, name);
    Py_XDECREF(name);
    Py_XDECREF(text);
    return NULL;
}

// Whether the rows of a table are contiguous, at any distance from each other.
static bool has_whole_rows(const Py_buffer *view) {
    return view->ndim == 2 && !view->suboffsets && view->strides[0] % view->itemsize == 0 &&
           (view->shape[1] < 2 || view->strides[1] == view->itemsize);
}

// Types of a buffer's items.
static const struct {
    char type; // as in formats of the module struct
    Py_ssize_t size;
    const char *name, *article;
} item_types[] = {{'i', 4, "int32", "an"},
                  {'q', 8, "int64", "an"},
                  {'B', 1, "uint8", "a"},
                  {'f', 4, "float32", "a"},
                  {'d', 8, "float64", "a"}};

int get_buffer(PyObject *object, const char *name, char type, int dimensions, bool rows_apart, bool writable,
               Py_buffer *view) {
    size_t of = 0;
    while (item_types[of].type != type)
        of++;
    const char *kind = item_types[of].name;
    Py_ssize_t size = item_types[of].size;
    view->obj = NULL;
    if (!PyObject_CheckBuffer(object)) {
        raise_type_error(object, "%s must be %s %s buffer", name, item_types[of].article, kind);
        return -1;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_FULL_RO) < 0) {
        view->obj = NULL;
        return -1;
    }
    const char *format = view->format ? view->format : "B", *item = format;
    const char native = PY_BIG_ENDIAN ? '>' : '<';
    if (*item == '@' || *item == '=' || *item == native)
        item++;
    if (view->itemsize != size || (item[0] != type && !(item[0] == 'l' && (type == 'i' || type == 'q'))) ||
        item[1]) {
        PyErr_Format(PyExc_TypeError, "%s must hold %s, not items of format '%.20s' and %zd bytes", name,
                     kind, format, view->itemsize);
    } else if (view->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s must have %d dimension%s, not %d", name, dimensions,
                     dimensions == 1 ? "" : "s", view->ndim);
    } else if ((rows_apart ? !has_whole_rows(view) : !PyBuffer_IsContiguous(view, 'C')) ||
               (view->len && (uintptr_t)view->buf % (size_t)size)) {
        PyErr_Format(PyExc_BufferError, "%s must be contiguous %s and aligned", name,
                     rows_apart ? "along each row" : "in C order");
    } else if (writable && view->readonly) {
        PyErr_Format(PyExc_BufferError, "%s must be writable", name);
    } else {
        return 0;
    }
    PyBuffer_Release(view);
    return -1;
}

void release_tokens(Tokens *t) {
    PyBuffer_Release(&t->view);
    PyMem_Free(t->copy);
}

static int bad_token(const char *name, Py_ssize_t at, PyObject *value) {
    PyErr_Format(PyExc_ValueError, "%s[%zd] is %R: token ids go from 0 to 2147483647", name, at, value);
    return -1;
}

static int copy_integers(PyObject *object, const char *name, Tokens *t) {
    PyObject *items = PySequence_Tuple(object);
    if (!items) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            raise_type_error(object, "%s must be an int32 buffer or a sequence of integers", name);
        return -1;
    }
    int result = -1;
    t->size = PyTuple_Size(items);
    t->copy = PyMem_Malloc((size_t)t->size * sizeof(int32_t));
    if (!t->copy) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < t->size; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        PyObject *integer = PyNumber_Index(item);
        if (!integer) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                raise_type_error(item, "%s[%zd] must be an integer", name, i);
            goto done;
        }
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);
        if (overflow || value < 0 || value > INT32_MAX) {
            bad_token(name, i, integer);
            Py_DECREF(integer);
            goto done;
        }
        Py_DECREF(integer);
        t->copy[i] = (int32_t)value;
    }
    t->tokens = t->copy;
    result = 0;
done:
    Py_DECREF(items);
    return result;
}

int get_tokens(PyObject *object, const char *name, Tokens *t) {
    *t = (Tokens){0};
    if (!PyObject_CheckBuffer(object)) {
        if (copy_integers(object, name, t) == 0)
            return 0;
        release_tokens(t);
        return -1;
    }
    if (get_buffer(object, name, 'i', 1, false, false, &t->view) < 0)
        return -1;
    t->tokens = t->view.buf;
    t->size = t->view.shape[0];
    for (Py_ssize_t i = 0; i < t->size; i++)
        if (t->tokens[i] < 0) {
            PyObject *value = PyLong_FromLong(t->tokens[i]);
            if (value)
                bad_token(name, i, value);
            Py_XDECREF(value);
            release_tokens(t);
            return -1;
        }
    return 0;
}

void release_buffers(Py_buffer *views, size_t count) {
    for (size_t i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

int check_count(const char *name, Py_ssize_t given, Py_ssize_t expected, const char *what) {
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zd %s, not %zd", name, given, what, expected);
    return -1;
}

int check_lengths(const char *name, const Py_buffer *view, Py_ssize_t most, Py_ssize_t *total) {
    const int32_t *lengths = view->buf;
    *total = 0;
    for (Py_ssize_t i = 0; i < view->shape[0]; i++) {
        if (lengths[i] < 0 || lengths[i] > most) {
            PyErr_Format(PyExc_ValueError, "%s[%zd] is %ld: it must lie between 0 and %zd", name, i,
                         (long)lengths[i], most);
            return -1;
        }
        *total += lengths[i];
    }
    return 0;
}

int get_buffers(const char *function, PyObject *const *args, Py_ssize_t given, Py_ssize_t expected,
                const Parameter *parameters, size_t count, Py_buffer *views) {
    static const char *const names[] = {"rows", "columns"};
    if (given != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, expected, given);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        if (get_buffer(args[i], p->name, p->type, p->dimensions, false, p->writable, &views[i]) < 0)
            return -1;
        Py_ssize_t sizes[] = {p->rows, p->columns};
        for (int d = 0; d < p->dimensions; d++) {
            Py_ssize_t size = sizes[d] < 0 ? views[LIKE(sizes[d])].shape[d] : sizes[d];
            if (sizes[d] && check_count(p->name, views[i].shape[d], size, names[d]) < 0)
                return -1;
        }
    }
    return 0;
}
