// SPDX-License-Identifier: Apache-2.0
//
// The Python interface of pool.h, budget.h, cost.h and table.h: checks of arguments, buffers, the lock and messages. _sam.pyi
// documents it.
//
// Uses only the limited API of Python 3.11, as setup.py demands: one build works with every later Python.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "budget.h"
#include "cost.h"
#include "persist.h"
#include "table.h"
#include "validate.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BY_PROMPT "by_prompt"

// State of the module; lives as long as the type.
typedef struct {
    long process; // id of this process, updated after a fork
} State;

typedef struct {
    PyObject_HEAD pool pool;
    PyThread_type_lock lock; // held while the pool is in use without the GIL
    Py_ssize_t calls;        // calls that hold the lock or wait for it; changed under the GIL
    const State *state;
    long process; // that made the pool
} PoolObject;

// Releases the GIL and takes the pool's lock; calls wait for each other.
#define BEGIN_WORK(self)                                                                                     \
    (self)->calls++;                                                                                         \
    Py_BEGIN_ALLOW_THREADS                                                                                   \
    PyThread_acquire_lock((self)->lock, WAIT_LOCK);

#define END_WORK(self)                                                                                       \
    PyThread_release_lock((self)->lock);                                                                     \
    Py_END_ALLOW_THREADS                                                                                     \
    --(self)->calls;

// Index: rule_name.
static const char *const rules[] = {"oldest", "newest", "count", "suffix", "blend"};

// Index: RULE_REQUEST, ...
static const char *const sources[] = {"request", "group", "corpus", "history", "common"};

// Raises in a forked child, since another thread may have been working in the pool during the fork.
static int check_process(const PoolObject *self) {
    if (self->process == self->state->process)
        return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "this pool belongs to process %ld, of which this one is a fork: make a Pool of its own here",
                 self->process);
    return -1;
}

// ---- arguments

// Replaces the current exception by TypeError: what was expected, "not", and the object's type. Returns NULL.
static void *raise_type_error(PyObject *object, const char *expected, ...) {
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

// Gets a C-contiguous buffer of `dimensions` whose items are of `type`; with rows_apart, one of two dimensions of which
// only the rows must be contiguous. A Py_buffer without obj can be released.
static int get_buffer(PyObject *object, const char *name, char type, int dimensions, bool rows_apart,
                      bool writable, Py_buffer *view) {
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

// Tokens: an int32 buffer held in `view`, or integers copied to `copy`.
typedef struct {
    const int32_t *tokens;
    Py_ssize_t size;
    Py_buffer view;
    int32_t *copy;
} Tokens;

static void release_tokens(Tokens *t) {
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

static int get_tokens(PyObject *object, const char *name, Tokens *t) {
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

static int get_rule(PyObject *object, rule_name *rule) {
    if (PyUnicode_Check(object))
        for (size_t i = 0; i < Py_ARRAY_LENGTH(rules); i++)
            if (PyUnicode_CompareWithASCIIString(object, rules[i]) == 0) {
                *rule = (rule_name)i;
                return 0;
            }
    PyErr_Format(PyUnicode_Check(object) ? PyExc_ValueError : PyExc_TypeError,
                 "rule is %R: it must be 'oldest', 'newest', 'count', 'suffix' or 'blend'", object);
    return -1;
}

static int get_sources(PyObject *object, unsigned *bits) {
    // A string is a sequence of strings, but never one of source names.
    PyObject *names = PyUnicode_Check(object) ? PyTuple_Pack(1, object) : PySequence_Tuple(object);
    if (!names)
        return -1;
    *bits = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        unsigned bit = 0;
        for (unsigned j = 0; j < RULE_SOURCES && PyUnicode_Check(name) && !PyUnicode_Check(object); j++)
            if (j != RULE_CORPUS && PyUnicode_CompareWithASCIIString(name, sources[j]) == 0)
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

// Arguments that Pool() and Pool.load() share. Objects are NULL or None if not given.
typedef struct {
    PyObject *memory, *corpus_path, *vocabulary, *fingerprint;
    double min_prob;
    Py_ssize_t memory_bytes;
    uint32_t vocab_size;
    uint64_t tokenizer;
} Settings;

static bool is_given(PyObject *object) { return object && object != Py_None; }

static int check_min_prob(double min_prob) {
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

static int check_settings(Settings *s) {
    s->memory_bytes = (Py_ssize_t)1 << 30;
    if (s->memory) {
        s->memory_bytes = PyNumber_AsSsize_t(s->memory, NULL); // clipped
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

static void raise_path_error(PyObject *path, bool refused, const char *reason, int error) {
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

// Refuses a file of another tokenizer than the settings'; 0: unknown.
static int check_tokenizer(PyObject *path, uint64_t tokenizer, const Settings *s) {
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

static int open_corpus(const Settings *s, corpus *c) {
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

// ---- Pool

// A Pool object whose pool is not initialized yet.
static PoolObject *new_object(PyTypeObject *type) {
    PoolObject *self = (PoolObject *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->state = PyType_GetModuleState(type);
    self->lock = PyThread_allocate_lock();
    if (!self->lock) {
        Py_DECREF(self);
        return (PoolObject *)PyErr_NoMemory();
    }
    return self;
}

static int make_pool(PoolObject *self, const Settings *s, rule_name rule, unsigned bits) {
    corpus c;
    if (open_corpus(s, &c) < 0)
        return -1;
    if (!pool_init(&self->pool, (size_t)s->memory_bytes, rule, bits, c.file ? &c : NULL,
                   (float)s->min_prob)) {
        corpus_close(&c);
        PyErr_NoMemory();
        return -1;
    }
    self->pool.vocab_size = s->vocab_size;
    self->pool.tokenizer = s->tokenizer;
    self->process = self->state->process;
    return 0;
}

static PyObject *Pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory_bytes", "rule",       "sources",   "corpus",
                            "min_prob",     "vocab_size", "tokenizer", NULL};
    Settings settings = {0};
    PyObject *rule_object = NULL, *source_names = NULL;
    rule_name rule = RULE_BLEND;
    unsigned bits = 1u << RULE_REQUEST | 1u << RULE_GROUP | 1u << RULE_HISTORY | 1u << RULE_COMMON;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOOdOO:Pool", names, &settings.memory, &rule_object,
                                     &source_names, &settings.corpus_path, &settings.min_prob,
                                     &settings.vocabulary, &settings.fingerprint))
        return NULL;
    if ((rule_object && get_rule(rule_object, &rule) < 0) ||
        (source_names && get_sources(source_names, &bits) < 0) || check_settings(&settings) < 0)
        return NULL;
    PoolObject *self = new_object(type);
    if (self && make_pool(self, &settings, rule, bits) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void Pool_dealloc(PyObject *object) {
    PoolObject *self = (PoolObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    pool_free(&self->pool); // also in a forked child: a call that was under way there would hold a reference
    if (self->lock)
        PyThread_free_lock(self->lock);
    PyObject_Free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(Pool_open_doc, "open($self, /, prompt_ids, group='by_prompt', isolated=False)\n--\n\n"
                            "Open a slot for a prompt and return its number.");

static PyObject *Pool_open(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"prompt_ids", "group", "isolated", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *prompt, *group = NULL, *result = NULL;
    int isolated = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Op:open", names, &prompt, &group, &isolated) ||
        check_process(self) < 0)
        return NULL;
    pool_key kind = POOL_BY_PROMPT;
    Py_buffer name = {0};
    if (group == Py_None) {
        kind = POOL_PRIVATE;
    } else if (group && PyBytes_Check(group)) {
        kind = POOL_NAMED;
        name.buf = PyBytes_AsString(group); // `args` keeps the bytes alive
        name.len = PyBytes_Size(group);
    } else if (group &&
               !(PyUnicode_Check(group) && PyUnicode_CompareWithASCIIString(group, BY_PROMPT) == 0)) {
        return PyErr_Format(PyExc_TypeError, "group is %R: it must be BY_PROMPT, bytes or None", group);
    }
    Tokens tokens;
    if (get_tokens(prompt, "prompt_ids", &tokens) < 0)
        return NULL;
    uint32_t slot;
    pool_status status;
    BEGIN_WORK(self)
    status =
        pool_open(&self->pool, tokens.tokens, (size_t)tokens.size, kind, name.buf, (size_t)name.len, &slot);
    if (status == POOL_OK && isolated)
        pool_isolate(&self->pool, slot);
    END_WORK(self)
    if (status == POOL_OK)
        result = PyLong_FromUnsignedLong(slot);
    else
        PyErr_NoMemory();
    release_tokens(&tokens);
    return result;
}

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

PyDoc_STRVAR(Pool_step_doc,
             "step($self, /, slots, tokens, counts, k, out, lengths, scores=None, parents=None, starts=None, "
             "sources=None, match_lengths=None, index_later=False)\n--\n\n"
             "Append tokens to each slot, then write a draft of at most k tokens for each.");

static PyObject *Pool_step(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slots",         "tokens",      "counts",  "k",      "out",
                            "lengths",       "scores",      "parents", "starts", "sources",
                            "match_lengths", "index_later", NULL};
    enum { SLOTS, TOKENS, COUNTS, K, OUT, LENGTHS, SCORES, PARENTS, STARTS, SOURCES, MATCHES, ARGUMENTS };
    PoolObject *self = (PoolObject *)object;
    PyObject *given[ARGUMENTS] = {NULL}, *result = NULL;
    Py_buffer view[ARGUMENTS] = {{0}};
    int index_later = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO|OOOOOp:step", names, &given[SLOTS], &given[TOKENS],
                                     &given[COUNTS], &given[K], &given[OUT], &given[LENGTHS], &given[SCORES],
                                     &given[PARENTS], &given[STARTS], &given[SOURCES], &given[MATCHES],
                                     &index_later) ||
        check_process(self) < 0)
        return NULL;
    int32_t uniform = 0;
    bool is_uniform = false;
    if (PyIndex_Check(
            given[K])) { // NumPy's scalars are integers and buffers, its arrays only claim to be both
        Py_ssize_t k = PyNumber_AsSsize_t(given[K], NULL); // clipped, and then refused as too large
        is_uniform = !PyErr_Occurred();
        if (!is_uniform && !(PyErr_ExceptionMatches(PyExc_TypeError) && PyObject_CheckBuffer(given[K])))
            return NULL;
        PyErr_Clear();
        uniform = k < -1 ? -1 : k > INT32_MAX ? INT32_MAX : (int32_t)k;
    } else if (!PyObject_CheckBuffer(given[K])) {
        return raise_type_error(given[K], "k must be an integer or an int32 buffer");
    }
    bool is_table = given[STARTS] && given[STARTS] != Py_None;
    for (int i = 0; i < ARGUMENTS; i++) {
        bool absent = i == K ? is_uniform : i >= SCORES && (!given[i] || given[i] == Py_None);
        bool has_columns = i == TOKENS ? is_table : i == OUT || (i >= SCORES && i != STARTS);
        bool writable = i >= OUT && i != STARTS;
        if (!absent && get_buffer(given[i], names[i], i == SCORES ? 'f' : 'i', has_columns ? 2 : 1,
                                  i == TOKENS && is_table, writable, &view[i]) < 0)
            goto done;
    }
    Py_ssize_t rows = view[SLOTS].shape[0], width = view[OUT].shape[1];
    pool_tokens tokens = {view[TOKENS].buf, (size_t)view[TOKENS].shape[is_table], view[STARTS].buf,
                          is_table ? view[TOKENS].strides[0] / view[TOKENS].itemsize : 0};
    if (is_table && view[TOKENS].shape[0] < rows) {
        PyErr_Format(PyExc_ValueError, "tokens has %zd rows, but slots has %zd", view[TOKENS].shape[0], rows);
        goto done;
    }
    static const int per_row[] = {COUNTS, K, OUT, LENGTHS, SCORES, PARENTS, STARTS, SOURCES, MATCHES};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(per_row); i++) {
        int j = per_row[i];
        if (view[j].obj && view[j].shape[0] != rows) {
            PyErr_Format(PyExc_ValueError, "%s has %zd rows, but slots has %zd", names[j], view[j].shape[0],
                         rows);
            goto done;
        }
        if (view[j].obj && j >= SCORES && j != STARTS && view[j].shape[1] != width) {
            PyErr_Format(PyExc_ValueError, "%s has %zd columns, but out has %zd", names[j], view[j].shape[1],
                         width);
            goto done;
        }
    }
    if (is_uniform && (uniform < 0 || uniform > width || uniform > RULE_MAX_DRAFT)) {
        raise_bad_size(given[K], "k", width);
        goto done;
    }
    pool_drafts out = {.tokens = view[OUT].buf,
                       .parents = view[PARENTS].buf,
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

PyDoc_STRVAR(Pool_catch_up_doc, "catch_up($self, /)\n--\n\n"
                                "Index the tokens of a step with index_later.");

static PyObject *Pool_catch_up(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    if (check_process(self) < 0)
        return NULL;
    BEGIN_WORK(self)
    pool_catch_up(&self->pool);
    END_WORK(self)
    Py_RETURN_NONE;
}

static PyObject *raise_bad_slot(PyObject *number) {
    return PyErr_Format(PyExc_ValueError, "slot is %R, which is not an open slot", number);
}

// Returns -1 with an exception set; a number beyond all slots becomes one without a slot.
static Py_ssize_t get_slot(PyObject *number) {
    if (PyIndex_Check(number))
        return PyNumber_AsSsize_t(number, NULL);
    raise_type_error(number, "slot must be an integer");
    return -1;
}

// NumPy's scalars are integers and buffers, its arrays only claim to be both.
static bool is_integer(PyObject *object) {
    if (!PyIndex_Check(object))
        return false;
    PyObject *integer = PyNumber_Index(object);
    Py_XDECREF(integer);
    PyErr_Clear();
    return integer != NULL;
}

static int get_token(PyObject *object, int32_t *token) {
    Py_ssize_t value = PyNumber_AsSsize_t(object, NULL); // clipped
    if (value == -1 && PyErr_Occurred())
        return -1;
    *token = (int32_t)value;
    if (value >= 0 && value <= INT32_MAX)
        return 0;
    PyErr_Format(PyExc_ValueError, "tokens is %R: token ids go from 0 to 2147483647", object);
    return -1;
}

PyDoc_STRVAR(Pool_append_doc, "append($self, slot, tokens, /)\n--\n\n"
                              "Append one token, or several, to a slot.");

static PyObject *Pool_append(PyObject *object, PyObject *const *args, Py_ssize_t count) {
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
    if (PyLong_CheckExact(args[1]) || is_integer(args[1])) {
        int32_t token;
        if (get_token(args[1], &token) < 0)
            return NULL;
        if (!self->calls) { // and none can begin, since this call does not release the GIL
            status = pool_append(&self->pool, slot, &token, 1, &error);
        } else {
            BEGIN_WORK(self)
            status = pool_append(&self->pool, slot, &token, 1, &error);
            END_WORK(self)
        }
    } else {
        Tokens tokens;
        if (get_tokens(args[1], "tokens", &tokens) < 0)
            return NULL;
        BEGIN_WORK(self)
        status = pool_append(&self->pool, slot, tokens.tokens, (size_t)tokens.size, &error);
        END_WORK(self)
        release_tokens(&tokens);
    }
    if (status == POOL_BAD_SLOT)
        return raise_bad_slot(args[0]);
    if (status != POOL_OK)
        return raise_step_error(status, &error, NULL, 0);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Pool_close_doc, "close($self, /, slot, keep=True)\n--\n\n"
                             "Close a slot; keep: its text stays with its group, else the group forgets it.");

static PyObject *Pool_close(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slot", "keep", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *number;
    int keep = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:close", names, &number, &keep) ||
        check_process(self) < 0)
        return NULL;
    Py_ssize_t slot = get_slot(number);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_close(&self->pool, slot, keep, &error);
    END_WORK(self)
    if (status != POOL_OK)
        return raise_bad_slot(number);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Pool_prompt_size_doc, "prompt_size($self, slot, /)\n--\n\n"
                                   "Tokens at the start of a slot's text that are its prompt.");

static PyObject *Pool_prompt_size(PyObject *object, PyObject *number) {
    PoolObject *self = (PoolObject *)object;
    if (check_process(self) < 0)
        return NULL;
    Py_ssize_t slot = get_slot(number);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    uint32_t size;
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_prompt_size(&self->pool, slot, &size, &error);
    END_WORK(self)
    return status == POOL_OK ? PyLong_FromUnsignedLong(size) : raise_bad_slot(number);
}

PyDoc_STRVAR(Pool_drop_doc, "drop($self, /, group)\n--\n\n"
                            "Free the group of a name (bytes) or prompt; return whether there was one.");

static PyObject *Pool_drop(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"group", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *group;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:drop", names, &group) || check_process(self) < 0)
        return NULL;
    bool named = PyBytes_Check(group), found;
    Tokens tokens = {0};
    if (!named && get_tokens(group, "group", &tokens) < 0)
        return NULL;
    const void *key = named ? (const void *)PyBytes_AsString(group) : tokens.tokens;
    size_t bytes = named ? (size_t)PyBytes_Size(group) : (size_t)tokens.size * sizeof(int32_t);
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_drop(&self->pool, named ? POOL_NAMED : POOL_BY_PROMPT, key, bytes, &found, &error);
    END_WORK(self)
    release_tokens(&tokens);
    if (status != POOL_OK)
        return PyErr_Format(PyExc_ValueError, "group has %lld open slot%s: close them before dropping it",
                            error.value, error.value == 1 ? "" : "s");
    return PyBool_FromLong(found);
}

enum { RELEASED_AT_ONCE = 64 }; // texts, while other calls wait

PyDoc_STRVAR(Pool_save_doc,
             "save($self, /, path)\n--\n\n"
             "Save the texts of closed slots and what was learned to a file, or leave it as it is.");

static PyObject *Pool_save(PyObject *object, PyObject *args, PyObject *kwargs) {
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

PyDoc_STRVAR(Pool_load_doc, "load($type, /, path, memory_bytes=1073741824, corpus=None, min_prob=0.0, "
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

static PyObject *Pool_load(PyObject *type, PyObject *args, PyObject *kwargs) {
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

// The names of a set of sources, as a list.
static PyObject *source_list(unsigned bits) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < RULE_SOURCES; i++)
        if (bits >> i & 1) {
            PyObject *name = PyUnicode_FromString(sources[i]);
            if (!name || PyList_Append(names, name) < 0)
                Py_CLEAR(names);
            Py_XDECREF(name);
        }
    return names;
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

PyDoc_STRVAR(Pool_describe_doc, "describe(path, /)\n--\n\n"
                                "Check a file that save wrote and return what it holds as a dict.");

static PyObject *Pool_describe(PyObject *Py_UNUSED(type), PyObject *path) {
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
                         "rule", rules[h->rule],                  //
                         "sources", source_list(h->sources),      //
                         "vocab_size", known_size(h->vocab_size), //
                         "tokenizer", digits_of(h->tokenizer),    //
                         "groups", (unsigned long long)h->groups, //
                         "texts", (unsigned long long)h->texts,   //
                         "tokens", (unsigned long long)h->tokens, //
                         "bytes", (unsigned long long)h->bytes);
}

PyDoc_STRVAR(Pool_stats_doc, "stats($self, /)\n--\n\nReturn counters as a new dict.");

static uint64_t sum(const uint64_t counts[RULE_SOURCES]) {
    uint64_t total = 0;
    for (int i = 0; i < RULE_SOURCES; i++)
        total += counts[i];
    return total;
}

static PyObject *Pool_stats(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    pool now;
    if (check_process(self) < 0)
        return NULL;
    BEGIN_WORK(self)
    now = self->pool;
    END_WORK(self)
    PyObject *by_source = PyDict_New();
    for (int i = 0; by_source && i < RULE_SOURCES; i++) {
        PyObject *counts = Py_BuildValue("{sKsKsK}", "drafts", now.drafts[i], "drafted_tokens",
                                         now.drafted[i], "accepted_tokens", now.accepted[i]);
        if (!counts || PyDict_SetItemString(by_source, sources[i], counts) < 0)
            Py_CLEAR(by_source);
        Py_XDECREF(counts);
    }
    if (!by_source)
        return NULL;
    return Py_BuildValue("{sKsKsKsnsnsKsKsKsKsNsKsKsKsKsK}",           //
                         "slots_open", now.slots_open,                 //
                         "groups", now.groups,                         //
                         "tokens", now.tokens,                         //
                         "bytes_used", (Py_ssize_t)now.memory.used,    //
                         "memory_bytes", (Py_ssize_t)now.memory.limit, //
                         "appended", now.appended,                     //
                         "drafts", sum(now.drafts),                    //
                         "drafted_tokens", sum(now.drafted),           //
                         "accepted_tokens", sum(now.accepted),         //
                         "by_source", by_source,                       //
                         "history_texts", now.history_texts,           //
                         "history_tokens", now.history_tokens,         //
                         "evicted_groups", now.evicted_groups,         //
                         "evicted_history", now.evicted_history,       //
                         "exhausted", now.exhausted);
}

PyDoc_STRVAR(Pool_validate_doc,
             "_validate($self, /)\n--\n\n"
             "Check every invariant; return None or a sentence that says which is broken.");

static PyObject *Pool_validate(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    const char *reason = NULL;
    if (check_process(self) < 0)
        return NULL;
    BEGIN_WORK(self)
    pool_validate(&self->pool, &reason);
    END_WORK(self)
    return Py_BuildValue("z", reason);
}

PyDoc_STRVAR(Pool_work_doc, "_work($self, /)\n--\n\n"
                            "Return the number of states visited so far.");

static PyObject *Pool_work(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    uint64_t work;
    if (check_process(self) < 0)
        return NULL;
    BEGIN_WORK(self)
    work = self->pool.memory.work;
    END_WORK(self)
    return PyLong_FromUnsignedLongLong(work);
}

static PyObject *Pool_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(ignored)) {
    PyErr_SetString(PyExc_TypeError,
                    "a Pool can be neither pickled nor copied: it belongs to the process that made it");
    return NULL;
}

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef Pool_methods[] = {
    {"open", METHOD(Pool_open), METH_VARARGS | METH_KEYWORDS, Pool_open_doc},
    {"step", METHOD(Pool_step), METH_VARARGS | METH_KEYWORDS, Pool_step_doc},
    {"catch_up", Pool_catch_up, METH_NOARGS, Pool_catch_up_doc},
    {"append", METHOD(Pool_append), METH_FASTCALL, Pool_append_doc},
    {"close", METHOD(Pool_close), METH_VARARGS | METH_KEYWORDS, Pool_close_doc},
    {"prompt_size", METHOD(Pool_prompt_size), METH_O, Pool_prompt_size_doc},
    {"drop", METHOD(Pool_drop), METH_VARARGS | METH_KEYWORDS, Pool_drop_doc},
    {"save", METHOD(Pool_save), METH_VARARGS | METH_KEYWORDS, Pool_save_doc},
    {"load", METHOD(Pool_load), METH_VARARGS | METH_KEYWORDS | METH_CLASS, Pool_load_doc},
    {"describe", Pool_describe, METH_O | METH_STATIC, Pool_describe_doc},
    {"stats", Pool_stats, METH_NOARGS, Pool_stats_doc},
    {"_validate", Pool_validate, METH_NOARGS, Pool_validate_doc},
    {"_work", Pool_work, METH_NOARGS, Pool_work_doc},
    {"__reduce__", Pool_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *Pool_get_rule(PyObject *object, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(rules[((PoolObject *)object)->pool.rule]);
}

static PyObject *Pool_get_sources(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *names = source_list(((PoolObject *)object)->pool.sources);
    PyObject *result = names ? PySequence_Tuple(names) : NULL;
    Py_XDECREF(names);
    return result;
}

static PyObject *Pool_get_min_prob(PyObject *object, void *Py_UNUSED(closure)) {
    return PyFloat_FromDouble((double)((PoolObject *)object)->pool.min_prob);
}

static int Pool_set_min_prob(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    PoolObject *self = (PoolObject *)object;
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "min_prob cannot be deleted: set it to 0");
        return -1;
    }
    double min_prob = PyFloat_AsDouble(value);
    if ((min_prob == -1 && PyErr_Occurred()) || check_min_prob(min_prob) < 0 || check_process(self) < 0)
        return -1;
    BEGIN_WORK(self)
    self->pool.min_prob = (float)min_prob;
    END_WORK(self)
    return 0;
}

static PyObject *Pool_get_num_threads(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLong(((PoolObject *)object)->pool.num_threads);
}

static int Pool_set_num_threads(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    PoolObject *self = (PoolObject *)object;
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "num_threads cannot be deleted: set it to 1");
        return -1;
    }
    Py_ssize_t count = PyNumber_AsSsize_t(value, NULL); // clipped
    if ((count == -1 && PyErr_Occurred()) || check_process(self) < 0)
        return -1;
    if (count < 1 || count > POOL_MAX_THREADS) {
        PyErr_Format(PyExc_ValueError, "num_threads is %R: it must lie between 1 and %d", value,
                     (int)POOL_MAX_THREADS);
        return -1;
    }
    BEGIN_WORK(self)
    self->pool.num_threads = (uint32_t)count;
    END_WORK(self)
    return 0;
}

static PyGetSetDef Pool_attributes[] = {
    {"rule", Pool_get_rule, NULL, NULL, NULL},
    {"sources", Pool_get_sources, NULL, NULL, NULL},
    {"min_prob", Pool_get_min_prob, Pool_set_min_prob, NULL, NULL},
    {"num_threads", Pool_get_num_threads, Pool_set_num_threads, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(Pool_doc,
             "Pool(memory_bytes=1073741824, rule='blend', sources=('request', 'group', 'history', 'common'), "
             "corpus=None, min_prob=0.0, vocab_size=None, tokenizer=None)\n--\n\n"
             "Requests that draft from their own text, the answers to the same prompt and a corpus.");

static PyType_Slot Pool_slots[] = {
    {Py_tp_new, Pool_new},           {Py_tp_dealloc, Pool_dealloc}, {Py_tp_methods, Pool_methods},
    {Py_tp_getset, Pool_attributes}, {Py_tp_doc, (void *)Pool_doc}, {0, NULL},
};

static PyType_Spec Pool_spec = {
    .name = "sam_core.Pool",
    .basicsize = sizeof(PoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Pool_slots,
};

// ---- budget and table

// A buffer that a function takes.
typedef struct {
    const char *name;
    char type; // as for get_buffer
    int dimensions;
    bool writable;
} Parameter;

// Gets the buffers at the start of a function's arguments. All are to be released, also if it raises.
static int get_buffers(PyObject *const *args, const Parameter *parameters, size_t count, Py_buffer *views) {
    for (size_t i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        if (get_buffer(args[i], p->name, p->type, p->dimensions, false, p->writable, &views[i]) < 0)
            return -1;
    }
    return 0;
}

static void release_buffers(Py_buffer *views, size_t count) {
    for (size_t i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

static int check_count(const char *name, Py_ssize_t given, Py_ssize_t expected, const char *what) {
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zd %s, not %zd", name, given, what, expected);
    return -1;
}

// Each must lie between 0 and `most`; `total` receives their sum.
static int check_lengths(const char *name, const Py_buffer *view, Py_ssize_t most, Py_ssize_t *total) {
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

static int check_arguments(const char *function, Py_ssize_t given, Py_ssize_t expected) {
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, expected, given);
    return -1;
}

PyDoc_STRVAR(correct_scores_doc, "correct_scores(scores, factors, corrected, /)\n--\n\n"
                                 "Multiply each score by the factor of its bin.");

static PyObject *correct_scores(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SCORES, FACTORS, CORRECTED, BUFFERS };
    static const Parameter parameters[] = {
        {"scores", 'f', 2, false}, {"factors", 'd', 1, false}, {"corrected", 'd', 2, true}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (check_arguments("correct_scores", count, BUFFERS) < 0)
        return NULL;
    if (get_buffers(args, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t rows = view[SCORES].shape[0], width = view[SCORES].shape[1];
    if (check_count("factors", view[FACTORS].shape[0], BUDGET_BINS, "items") < 0 ||
        check_count("corrected", view[CORRECTED].shape[0], rows, "rows") < 0 ||
        check_count("corrected", view[CORRECTED].shape[1], width, "columns") < 0)
        goto done;
    budget_correct(view[SCORES].buf, (size_t)rows, (size_t)width, view[FACTORS].buf, view[CORRECTED].buf);
    result = Py_NewRef(Py_None);
done:
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
    static const Parameter parameters[] = {{"scores", 'd', 2, false},
                                           {"lengths", 'i', 1, false},
                                           {"contexts", 'd', 1, false},
                                           {"seconds", 'd', 1, false},
                                           {"chosen", 'i', 1, true}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    void *work = NULL;
    if (check_arguments("choose_drafts", count, ARGUMENTS) < 0 ||
        get_buffers(args, parameters, BUFFERS, view) < 0)
        goto done;
    double of_context = PyFloat_AsDouble(args[OF_CONTEXT]);
    if (PyErr_Occurred())
        goto done;
    double rate = PyFloat_AsDouble(args[RATE]);
    if (PyErr_Occurred())
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
    if (check_count("lengths", view[LENGTHS].shape[0], rows, "rows") < 0 ||
        check_count("contexts", view[CONTEXTS].shape[0], rows, "rows") < 0 ||
        check_count("chosen", view[CHOSEN].shape[0], rows, "rows") < 0 ||
        check_lengths("lengths", &view[LENGTHS], view[SCORES].shape[1], &total) < 0 ||
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
                        .of_context = of_context,
                        .first = rows ? (size_t)(turn % rows) : 0};
    budget_choice choice = budget_choose(&step, rate, fixed, view[CHOSEN].buf, work, (size_t)total);
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
    static const Parameter parameters[] = {{"slots", 'i', 1, false},      {"gained", 'i', 1, false},
                                           {"last_slots", 'i', 1, false}, {"drafted", 'i', 1, false},
                                           {"contexts", 'd', 1, false},   {"counts", 'd', 2, true},
                                           {"scores", 'f', 2, false}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    int32_t *places = NULL;
    if (check_arguments("observe_drafts", count, BUFFERS) < 0 ||
        get_buffers(args, parameters, args[SCORES] == Py_None ? SCORES : BUFFERS, view) < 0)
        goto done;
    bool has_scores = view[SCORES].obj;
    Py_ssize_t rows = view[SLOTS].shape[0], last_rows = view[LAST].shape[0], total;
    Py_ssize_t width = has_scores ? view[SCORES].shape[1] : 0;
    if (check_count("gained", view[GAINED].shape[0], rows, "rows") < 0 ||
        check_count("drafted", view[DRAFTED].shape[0], last_rows, "rows") < 0 ||
        check_count("contexts", view[CONTEXTS].shape[0], last_rows, "rows") < 0 ||
        check_count("counts", view[COUNTS].shape[0], 2, "rows") < 0 ||
        check_count("counts", view[COUNTS].shape[1], BUDGET_BINS, "columns") < 0 ||
        (has_scores && check_count("scores", view[SCORES].shape[0], last_rows, "rows") < 0) ||
        check_lengths("drafted", &view[DRAFTED], width, &total) < 0)
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

static int get_numbers(PyObject *const *args, size_t count, double *numbers) {
    for (size_t i = 0; i < count; i++) {
        numbers[i] = PyFloat_AsDouble(args[i]);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
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

static int get_model(PyObject *object, bool writable, Py_buffer *view) {
    if (get_buffer(object, "model", 'd', 2, false, writable, view) < 0)
        return -1;
    return check_count("model", view->shape[0], COST_FEATURES + 3, "rows") < 0 ||
                   check_count("model", view->shape[1], COST_FEATURES, "columns") < 0
               ? -1
               : 0;
}

PyDoc_STRVAR(step_seconds_doc, "step_seconds(model, rows, drafts, prompts, context, draft_context, /)\n--\n\n"
                               "Return the expected seconds of a step.");

static PyObject *step_seconds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view = {0};
    cost_step step;
    PyObject *result = NULL;
    if (check_arguments("step_seconds", count, 1 + STEP_NUMBERS) == 0 &&
        get_model(args[0], false, &view) == 0 && get_step(args + 1, &step) == 0)
        result = PyFloat_FromDouble(cost_seconds(view.buf, &step));
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(learn_step_doc, "learn_step(model, rows, drafts, prompts, context, draft_context, seconds, "
                             "factor, keep, leave_out, mean, sweeps, /)\n--\n\n"
                             "Scale and fade what was learned, add a step, and fit the costs.");

static PyObject *learn_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { SECONDS, FACTOR, KEEP, LEAVE_OUT, MEAN, SWEEPS, NUMBERS };
    Py_buffer view = {0};
    cost_step step;
    double numbers[NUMBERS];
    PyObject *result = NULL;
    if (check_arguments("learn_step", count, 1 + STEP_NUMBERS + NUMBERS) < 0 ||
        get_model(args[0], true, &view) < 0 || get_step(args + 1, &step) < 0 ||
        get_numbers(args + 1 + STEP_NUMBERS, NUMBERS, numbers) < 0)
        goto done;
    if (!(numbers[SECONDS] > 0 && numbers[FACTOR] > 0 && numbers[MEAN] > 0)) {
        PyErr_SetString(PyExc_ValueError, "seconds, factor and mean must be greater than 0");
        goto done;
    }
    cost_learn(view.buf, &step, numbers[SECONDS], numbers[FACTOR], numbers[KEEP], numbers[LEAVE_OUT] != 0,
               numbers[MEAN], (int)numbers[SWEEPS]);
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(rows_seconds_doc, "rows_seconds(weights, rows, more, padded, seconds, /)\n--\n\n"
                               "Write the expected seconds of steps by their rows.");

static PyObject *rows_seconds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    enum { WEIGHTS, ROWS, MORE, PADDED, SECONDS, BUFFERS };
    static const Parameter parameters[] = {{"weights", 'd', 1, false},
                                           {"rows", 'q', 1, false},
                                           {"more", 'i', 1, false},
                                           {"padded", 'i', 1, false},
                                           {"seconds", 'd', 1, true}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (check_arguments("rows_seconds", count, BUFFERS) < 0 ||
        get_buffers(args, parameters, BUFFERS, view) < 0 ||
        check_count("weights", view[WEIGHTS].shape[0], COST_FEATURES, "items") < 0 ||
        check_count("seconds", view[SECONDS].shape[0], view[ROWS].shape[0], "items") < 0)
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
    static const Parameter parameters[] = {{"scores", 'f', 2, false}, {"lengths", 'i', 1, false}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (check_arguments("lowest_score", count, BUFFERS) < 0 ||
        get_buffers(args, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t rows = view[SCORES].shape[0], width = view[SCORES].shape[1], total;
    if (check_count("lengths", view[LENGTHS].shape[0], rows, "rows") < 0 ||
        check_lengths("lengths", &view[LENGTHS], width, &total) < 0)
        goto done;
    result = PyFloat_FromDouble(
        (double)budget_lowest(view[SCORES].buf, view[LENGTHS].buf, (size_t)rows, (size_t)width));
done:
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
    static const Parameter parameters[] = {{"table", 'i', 2, false}, {"lengths", 'i', 1, false}};
    Py_buffer view[BUFFERS] = {{0}};
    PyObject *result = NULL;
    if (check_arguments("to_lists", count, BUFFERS) < 0 || get_buffers(args, parameters, BUFFERS, view) < 0)
        goto done;
    Py_ssize_t rows = view[TABLE].shape[0], width = view[TABLE].shape[1], total;
    if (check_count("lengths", view[LENGTHS].shape[0], rows, "rows") < 0 ||
        check_lengths("lengths", &view[LENGTHS], width, &total) < 0)
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

static PyMethodDef module_functions[] = {
    {"correct_scores", METHOD(correct_scores), METH_FASTCALL, correct_scores_doc},
    {"choose_drafts", METHOD(choose_drafts), METH_FASTCALL, choose_drafts_doc},
    {"observe_drafts", METHOD(observe_drafts), METH_FASTCALL, observe_drafts_doc},
    {"lowest_score", METHOD(lowest_score), METH_FASTCALL, lowest_score_doc},
    {"step_seconds", METHOD(step_seconds), METH_FASTCALL, step_seconds_doc},
    {"learn_step", METHOD(learn_step), METH_FASTCALL, learn_step_doc},
    {"rows_seconds", METHOD(rows_seconds), METH_FASTCALL, rows_seconds_doc},
    {"to_lists", METHOD(to_lists), METH_FASTCALL, to_lists_doc},
    {"append_ngrams", METHOD(append_ngrams), METH_FASTCALL, append_ngrams_doc},
    {NULL, NULL, 0, NULL},
};

// ---- the module

static PyObject *module_forked(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    ((State *)PyModule_GetState(module))->process = (long)getpid();
    Py_RETURN_NONE;
}

// Called in a forked child: getpid() in every call would cost more than an append.
static int watch_forks(PyObject *module) {
    static PyMethodDef forked = {"forked", module_forked, METH_NOARGS, NULL};
    int result = -1;
    PyObject *os = PyImport_ImportModule("os");
    PyObject *watch = os ? PyObject_GetAttrString(os, "register_at_fork") : NULL;
    PyObject *callback = PyCFunction_New(&forked, module);
    PyObject *none = PyTuple_New(0), *keywords = PyDict_New();
    if (watch && callback && none && keywords &&
        PyDict_SetItemString(keywords, "after_in_child", callback) == 0) {
        PyObject *done = PyObject_Call(watch, none, keywords);
        result = done ? 0 : -1;
        Py_XDECREF(done);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    Py_XDECREF(callback);
    Py_XDECREF(watch);
    Py_XDECREF(os);
    return result;
}

static int module_exec(PyObject *module) {
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "sam_core needs the GIL: use a Python that is not free-threaded");
    return -1;
#endif
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) { // the main interpreter
        PyErr_SetString(PyExc_ImportError,
                        "sam_core works in the main interpreter only, not in a subinterpreter");
        return -1;
    }
    ((State *)PyModule_GetState(module))->process = (long)getpid();
    PyObject *type = PyType_FromModuleAndSpec(module, &Pool_spec, NULL);
    if (!type)
        return -1;
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    if (result < 0 || watch_forks(module) < 0 ||
        PyModule_AddStringConstant(module, "BY_PROMPT", BY_PROMPT) < 0)
        return -1;
    PyObject *list = source_list((1u << RULE_SOURCES) - 1), *names = list ? PySequence_Tuple(list) : NULL;
    result = names ? PyModule_AddObjectRef(module, "SOURCES", names) : -1;
    Py_XDECREF(names);
    Py_XDECREF(list);
    return result;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,   .m_name = "sam_core._sam", .m_doc = "Suffix-automaton drafts; see sam_core.",
    .m_size = sizeof(State), .m_slots = module_slots,   .m_methods = module_functions,
};

PyMODINIT_FUNC PyInit__sam(void) { return PyModuleDef_Init(&module_def); }
