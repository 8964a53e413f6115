// SPDX-License-Identifier: Apache-2.0
//
// The Python interface: checks of arguments, buffers, the lock and messages. _sam.pyi documents it. It uses only the
// limited API of Python 3.11, as setup.py demands: one build works with every later Python.
//
//   python.c           buffers and tokens as arguments
//   python_pool.c      the type Pool
//   python_step.c      its methods step, catch_up and append
//   python_saved.c     its methods save, load and describe
//   python_options.c   what a Pool is made with
//   python_table.c     the type NgramTable
//   python_budget.c    functions: those of budget.h and cost.h, and to_lists
//   module.c           the module

#ifndef PYTHON_H
#define PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

extern long this_process; // its id, updated after a fork

extern PyType_Spec Pool_spec, NgramTable_spec;
extern PyMethodDef module_functions[];

// Replaces the current exception by TypeError: what was expected, "not", and the object's type. Returns NULL.
void *raise_type_error(PyObject *object, const char *expected, ...);

// Gets a C-contiguous buffer of `dimensions` whose items are of `type`; with rows_apart, one of two dimensions of which
// only the rows must be contiguous. A Py_buffer without obj can be released.
int get_buffer(PyObject *object, const char *name, char type, int dimensions, bool rows_apart, bool writable,
               Py_buffer *view);

// A buffer that a function takes.
typedef struct {
    const char *name;
    char type; // as for get_buffer
    int dimensions;
    bool writable;
    Py_ssize_t rows, columns; // 0: any number; LIKE(i): the number of parameter i
} Parameter;

#define LIKE(parameter) (-1 - (parameter))

// Gets the buffers at the start of a function's arguments, and checks their shapes and the number of arguments. All are
// to be released, also if it raises.
int get_buffers(const char *function, PyObject *const *args, Py_ssize_t given, Py_ssize_t expected,
                const Parameter *parameters, size_t count, Py_buffer *views);
void release_buffers(Py_buffer *views, size_t count);

// The checks return -1 with an exception set if what is given is not as expected.
int check_count(const char *name, Py_ssize_t given, Py_ssize_t expected, const char *what);

// Each must lie between 0 and `most`; `total` receives their sum.
int check_lengths(const char *name, const Py_buffer *view, Py_ssize_t most, Py_ssize_t *total);

// Tokens: an int32 buffer held in `view`, or integers copied to `copy`.
typedef struct {
    const int32_t *tokens;
    Py_ssize_t size;
    Py_buffer view;
    int32_t *copy;
} Tokens;

// Tokens of an object. Nothing is to be released if it raises.
int get_tokens(PyObject *object, const char *name, Tokens *t);
void release_tokens(Tokens *t);

#endif
