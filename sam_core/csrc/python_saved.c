// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include <errno.h>
#include <stdio.h>

enum { RELEASED_AT_ONCE = 64 }; // texts, while other calls wait

const char Pool_save_doc[] =
    PyDoc_STR("save($self, /, path)\n--\n\n"
              "Save the texts of closed slots and what was learned to a file, or leave it as it is.");

PyObject *Pool_save(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *path, *bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:save", names, &path) || check_process(self) < 0 ||
        !PyUnicode_FSConverter(path, &bytes))
        return NULL;
    const char *reason;
    Py_BEGIN_ALLOW_THREADS
    reason = persist_refuse(PyBytes_AsString(bytes));
    Py_END_ALLOW_THREADS
    if (reason) {
        Py_DECREF(bytes);
        raise_path_error(path, true, reason, 0);
        return NULL;
    }
    persist_snapshot snapshot;
    bool collected, more = true;
    BEGIN_WORK(self)
    collected = persist_collect(&self->pool, &snapshot);
    END_WORK(self)
    if (!collected) {
        Py_DECREF(bytes);
        return PyErr_NoMemory();
    }
    persist_status status;
    int error;
    Py_BEGIN_ALLOW_THREADS
    status = persist_write(&snapshot, PyBytes_AsString(bytes));
    error = errno;
    Py_END_ALLOW_THREADS
    while (more) {
        BEGIN_WORK(self)
        more = persist_release(&snapshot, RELEASED_AT_ONCE);
        END_WORK(self)
    }
    Py_DECREF(bytes);
    if (status == PERSIST_OK)
        Py_RETURN_NONE;
    raise_path_error(path, false, NULL, error);
    return NULL;
}

static int open_saved(PyObject *path, persist_file *file) {
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes))
        return -1;
    const char *reason = NULL;
    persist_status status;
    int error;
    Py_BEGIN_ALLOW_THREADS
    status = persist_open(file, PyBytes_AsString(bytes), &reason);
    error = errno;
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (status == PERSIST_OK)
        return 0;
    raise_path_error(path, status == PERSIST_REFUSED, reason, error);
    return -1;
}

const char Pool_load_doc[] =
    PyDoc_STR("load($type, /, path, memory_bytes=1073741824, corpus=None, min_prob=0.0, "
              "vocab_size=None, tokenizer=None)\n--\n\n"
              "Make a pool from a file that save wrote.");

// Refuses a saved pool of another model than that of the settings, which are completed from the file.
static int check_saved(PyObject *path, const persist_header *h, Settings *s) {
    if (check_tokenizer(path, h->tokenizer, s) < 0)
        return -1;
    if (h->vocab_size && s->vocab_size && h->vocab_size != s->vocab_size) {
        char reason[160];
        snprintf(
            reason, sizeof reason,
            "of a vocabulary of %llu tokens, but the model's has %u: name a file that was saved with the "
            "model",
            (unsigned long long)h->vocab_size, s->vocab_size);
        raise_path_error(path, true, reason, 0);
        return -1;
    }
    if (!s->vocab_size)
        s->vocab_size = (uint32_t)h->vocab_size;
    if (!s->tokenizer)
        s->tokenizer = h->tokenizer;
    return 0;
}

PyObject *Pool_load(PyObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "memory_bytes", "corpus", "min_prob", "vocab_size", "tokenizer", NULL};
    Settings settings = {0};
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOdOO:load", names, &path, &settings.memory,
                                     &settings.corpus_path, &settings.min_prob, &settings.vocabulary,
                                     &settings.fingerprint) ||
        check_settings(&settings) < 0)
        return NULL;
    PoolObject *self = new_object((PyTypeObject *)type);
    if (!self)
        return NULL;
    persist_file file;
    if (open_saved(path, &file) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (check_saved(path, &file.header, &settings) < 0 ||
        make_pool(self, &settings, (rule_name)file.header.rule, file.header.sources) < 0) {
        Py_CLEAR(self);
    } else {
        const char *reason = NULL;
        persist_status status;
        int error;
        Py_BEGIN_ALLOW_THREADS
        status = persist_load(&file, &self->pool, &reason);
        error = errno;
        Py_END_ALLOW_THREADS
        if (status != PERSIST_OK) {
            raise_path_error(path, status == PERSIST_REFUSED, reason, error);
            Py_CLEAR(self);
        }
    }
    persist_close(&file);
    return (PyObject *)self;
}

// None for 0: unknown.
static PyObject *known_size(uint64_t size) {
    return size ? PyLong_FromUnsignedLongLong(size) : Py_NewRef(Py_None);
}

static PyObject *digits_of(uint64_t fingerprint) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)fingerprint);
    return fingerprint ? PyUnicode_FromString(digits) : Py_NewRef(Py_None);
}

const char Pool_describe_doc[] =
    PyDoc_STR("describe(path, /)\n--\n\n"
              "Check a file that save wrote and return what it holds as a dict.");

PyObject *Pool_describe(PyObject *Py_UNUSED(type), PyObject *path) {
    persist_file file;
    if (open_saved(path, &file) < 0)
        return NULL;
    const char *reason = NULL;
    persist_status status;
    int error;
    Py_BEGIN_ALLOW_THREADS
    status = persist_check(&file, &reason);
    error = errno;
    persist_close(&file);
    Py_END_ALLOW_THREADS
    if (status != PERSIST_OK) {
        raise_path_error(path, status == PERSIST_REFUSED, reason, error);
        return NULL;
    }
    const persist_header *h = &file.header;
    return Py_BuildValue("{sIsssNsNsNsKsKsKsK}",                  //
                         "version", (unsigned)h->version,         //
                         "rule", names_of_rules[h->rule],         //
                         "sources", source_list(h->sources),      //
                         "vocab_size", known_size(h->vocab_size), //
                         "tokenizer", digits_of(h->tokenizer),    //
                         "groups", (unsigned long long)h->groups, //
                         "texts", (unsigned long long)h->texts,   //
                         "tokens", (unsigned long long)h->tokens, //
                         "bytes", (unsigned long long)h->bytes);
}
