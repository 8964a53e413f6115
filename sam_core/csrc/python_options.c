// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const names_of_rules[] = {
    [RULE_OLDEST] = "oldest", [RULE_NEWEST] = "newest", [RULE_SUFFIX] = "suffix", [RULE_BLEND] = "blend"};
const char *const names_of_sources[] = {"request", "group", "corpus", "history", "common"};

int get_rule(PyObject *object, rule_name *rule) {
    if (PyUnicode_Check(object))
        for (size_t i = 0; i < Py_ARRAY_LENGTH(names_of_rules); i++)
            if (names_of_rules[i] && PyUnicode_CompareWithASCIIString(object, names_of_rules[i]) == 0) {
                *rule = (rule_name)i;
                return 0;
            }
    PyErr_Format(PyUnicode_Check(object) ? PyExc_ValueError : PyExc_TypeError,
                 "rule is %R: it must be 'oldest', 'newest', 'suffix' or 'blend'", object);
    return -1;
}

int get_sources(PyObject *object, unsigned *bits) {
    // A string is a sequence of strings, but never one of source names.
    PyObject *names = PyUnicode_Check(object) ? PyTuple_Pack(1, object) : PySequence_Tuple(object);
    if (!names)
        return -1;
    *bits = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        unsigned bit = 0;
        for (unsigned j = 0; j < RULE_SOURCES && PyUnicode_Check(name) && !PyUnicode_Check(object); j++)
            if (j != RULE_CORPUS && PyUnicode_CompareWithASCIIString(name, names_of_sources[j]) == 0)
                bit = 1u << j;
        if (!bit) {
            PyErr_Format(PyUnicode_Check(name) ? PyExc_ValueError : PyExc_TypeError,
                         "sources has %R: it must be a sequence of 'request', 'group', 'history' and "
                         "'common'; the corpus is given as corpus=path",
                         name);
            Py_DECREF(names);
            return -1;
        }
        *bits |= bit;
    }
    Py_DECREF(names);
    if (!*bits) {
        PyErr_SetString(PyExc_ValueError, "sources is empty: name at least one, for instance 'request'");
        return -1;
    }
    if (*bits >> RULE_HISTORY & 1 && !(*bits >> RULE_GROUP & 1)) {
        PyErr_SetString(PyExc_ValueError,
                        "sources has 'history' without 'group', of which it is a part: name both");
        return -1;
    }
    return 0;
}

static bool is_given(PyObject *object) { return object && object != Py_None; }

int check_min_prob(double min_prob) {
    if (min_prob >= 0 && min_prob <= 1)
        return 0;
    PyObject *value = PyFloat_FromDouble(min_prob);
    if (value)
        PyErr_Format(PyExc_ValueError, "min_prob is %R: it must lie between 0 and 1", value);
    Py_XDECREF(value);
    return -1;
}

// A fingerprint's digits, most significant first.
static int get_fingerprint(PyObject *object, uint64_t *fingerprint) {
    Py_ssize_t size = 0;
    const char *digits = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : NULL;
    PyErr_Clear();
    char *end = NULL;
    if (digits && size == 16 && strspn(digits, "0123456789abcdef") == 16)
        *fingerprint = strtoull(digits, &end, 16);
    if (end && *fingerprint)
        return 0;
    PyErr_Format(PyUnicode_Check(object) ? PyExc_ValueError : PyExc_TypeError,
                 "tokenizer is %R: it must be 16 hexadecimal digits, as sam_core.tokenizer.fingerprint gives "
                 "them, or None",
                 object);
    return -1;
}

int check_settings(Settings *s) {
    s->memory_bytes = (Py_ssize_t)1 << 30;
    if (s->memory) {
        s->memory_bytes = PyNumber_AsSsize_t(s->memory, NULL); // clipped to its range
        if (s->memory_bytes == -1 && PyErr_Occurred())
            return -1;
        if (s->memory_bytes < (Py_ssize_t)pool_min_bytes()) {
            PyErr_Format(PyExc_ValueError, "memory_bytes is %R: a pool needs at least %zu", s->memory,
                         pool_min_bytes());
            return -1;
        }
        if (s->memory_bytes == PY_SSIZE_T_MAX) {
            PyErr_Format(PyExc_ValueError, "memory_bytes is %R: no machine has as much, give bytes",
                         s->memory);
            return -1;
        }
    }
    if (is_given(s->vocabulary)) {
        Py_ssize_t size = PyNumber_AsSsize_t(s->vocabulary, NULL);
        if (size == -1 && PyErr_Occurred())
            return -1;
        if (size < 1 || size > (Py_ssize_t)1 << 31) {
            PyErr_Format(PyExc_ValueError, "vocab_size is %R: it must lie between 1 and 2**31",
                         s->vocabulary);
            return -1;
        }
        s->vocab_size = (uint32_t)size;
    }
    if (is_given(s->fingerprint) && get_fingerprint(s->fingerprint, &s->tokenizer) < 0)
        return -1;
    return check_min_prob(s->min_prob);
}

void raise_path_error(PyObject *path, bool refused, const char *reason, int error) {
    PyObject *name = PyOS_FSPath(path);
    if (!name)
        return;
    errno = error;
    if (refused)
        PyErr_Format(PyExc_ValueError, "%R is %s", name, reason);
    else
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name);
    Py_DECREF(name);
}

int check_tokenizer(PyObject *path, uint64_t tokenizer, const Settings *s) {
    if (!tokenizer || !s->tokenizer || tokenizer == s->tokenizer)
        return 0;
    char reason[200];
    snprintf(
        reason, sizeof reason,
        "of another tokenizer (fingerprint %016llx) than the model's (%016llx): name a file that was made "
        "with the model's",
        (unsigned long long)tokenizer, (unsigned long long)s->tokenizer);
    raise_path_error(path, true, reason, 0);
    return -1;
}

int open_corpus(const Settings *s, corpus *c) {
    *c = (corpus){0};
    PyObject *path = s->corpus_path, *bytes;
    if (!is_given(path))
        return 0;
    if (!PyUnicode_FSConverter(path, &bytes))
        return -1;
    const char *reason = NULL;
    corpus_status status;
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    status = corpus_open(c, PyBytes_AsString(bytes), &reason);
    error = errno;
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (status != CORPUS_OK) {
        raise_path_error(path, status == CORPUS_REFUSED, reason, error);
        return -1;
    }
    int result = check_tokenizer(path, c->tokenizer, s);
    if (result == 0 && s->vocab_size && c->largest >= s->vocab_size) {
        char sentence[160];
        snprintf(sentence, sizeof sentence,
                 "of another vocabulary: it has token %u, but the model's has %u tokens; build it with the "
                 "model's tokenizer",
                 c->largest, s->vocab_size);
        raise_path_error(path, true, sentence, 0);
        result = -1;
    }
    if (result < 0)
        corpus_close(c);
    return result;
}

PyObject *source_list(unsigned bits) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < RULE_SOURCES; i++)
        if (bits >> i & 1) {
            PyObject *name = PyUnicode_FromString(names_of_sources[i]);
            if (!name || PyList_Append(names, name) < 0)
                Py_CLEAR(names);
            Py_XDECREF(name);
        }
    return names;
}
