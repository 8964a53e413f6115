// SPDX-License-Identifier: Apache-2.0
//
// The Python face of pool.h: checks of arguments, buffers, the lock and messages. _sam.pyi documents it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pool.h"

#define BY_PROMPT "by_prompt"

typedef struct {
    PyObject_HEAD pool pool;
    PyThread_type_lock lock; // held while the pool is in use, also without the GIL
} PoolObject;

// Takes the pool's lock and gives up the GIL; calls wait for each other.
#define BEGIN_WORK(self) Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock((self)->lock, WAIT_LOCK);

#define END_WORK(self)                                                                                       \
    PyThread_release_lock((self)->lock);                                                                     \
    Py_END_ALLOW_THREADS

static const struct {
    const char *name;
    sam_rule rule;
} rules[] = {{"newest", SAM_NEWEST}, {"oldest", SAM_OLDEST}};

static const struct {
    const char *name;
    unsigned bit;
} sources[] = {{"request", POOL_REQUEST}, {"group", POOL_GROUP}};

// ---- arguments

// Gets a C-contiguous int32 buffer of `dimensions`. A Py_buffer without obj is released safely.
static int get_int32(PyObject *object, const char *name, int dimensions, int writable, Py_buffer *view) {
    view->obj = NULL;
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int32 buffer, not %.100s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_FULL_RO) < 0) {
        view->obj = NULL;
        return -1;
    }
    const char *format = view->format ? view->format : "B", *type = format;
    const char native = PY_BIG_ENDIAN ? '>' : '<';
    if (*type == '@' || *type == '=' || *type == native)
        type++;
    if (view->itemsize != 4 || (type[0] != 'i' && type[0] != 'l') || type[1]) {
        PyErr_Format(PyExc_TypeError, "%s must hold int32, not items of format '%.20s' and %zd bytes", name,
                     format, view->itemsize);
    } else if (view->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s must have %d dimension%s, not %d", name, dimensions,
                     dimensions == 1 ? "" : "s", view->ndim);
    } else if (!PyBuffer_IsContiguous(view, 'C') || (uintptr_t)view->buf % 4) {
        PyErr_Format(PyExc_BufferError, "%s must be contiguous in C order and aligned", name);
    } else if (writable && view->readonly) {
        PyErr_Format(PyExc_BufferError, "%s must be writable", name);
    } else {
        return 0;
    }
    PyBuffer_Release(view);
    return -1;
}

// A prompt: an int32 buffer held in `view`, or integers copied to `copy`.
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
            PyErr_Format(PyExc_TypeError, "%s must be an int32 buffer or a sequence of integers, not %.100s",
                         name, Py_TYPE(object)->tp_name);
        return -1;
    }
    int result = -1;
    t->size = PyTuple_GET_SIZE(items);
    t->copy = PyMem_Malloc((size_t)t->size * sizeof(int32_t));
    if (!t->copy) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < t->size; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        PyObject *integer = PyNumber_Index(item);
        if (!integer) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_TypeError, "%s[%zd] must be an integer, not %.100s", name, i,
                             Py_TYPE(item)->tp_name);
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
    if (get_int32(object, name, 1, 0, &t->view) < 0)
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

static int get_rule(PyObject *object, sam_rule *rule) {
    if (PyUnicode_Check(object))
        for (size_t i = 0; i < Py_ARRAY_LENGTH(rules); i++)
            if (PyUnicode_CompareWithASCIIString(object, rules[i].name) == 0) {
                *rule = rules[i].rule;
                return 0;
            }
    PyErr_Format(PyUnicode_Check(object) ? PyExc_ValueError : PyExc_TypeError,
                 "rule is %R: this version has the rules 'newest' and 'oldest'", object);
    return -1;
}

static int get_sources(PyObject *object, unsigned *bits) {
    // A string is a sequence of strings, but never one of source names.
    PyObject *names = PyUnicode_Check(object) ? PyTuple_Pack(1, object) : PySequence_Tuple(object);
    if (!names)
        return -1;
    *bits = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        unsigned bit = 0;
        for (size_t j = 0; PyUnicode_Check(name) && !PyUnicode_Check(object) && j < Py_ARRAY_LENGTH(sources);
             j++)
            if (PyUnicode_CompareWithASCIIString(name, sources[j].name) == 0)
                bit = sources[j].bit;
        if (!bit) {
            PyErr_Format(PyUnicode_Check(name) ? PyExc_ValueError : PyExc_TypeError,
                         "sources has %R: this version has the sources 'request' and 'group'", name);
            Py_DECREF(names);
            return -1;
        }
        *bits |= bit;
    }
    Py_DECREF(names);
    if (!*bits) {
        PyErr_SetString(PyExc_ValueError, "sources is empty: name 'request', 'group' or both");
        return -1;
    }
    return 0;
}

// ---- Pool

static PyObject *Pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory_bytes", "rule", "sources", NULL};
    Py_ssize_t memory_bytes = (Py_ssize_t)1 << 30;
    PyObject *rule_name = NULL, *source_names = NULL;
    sam_rule rule = SAM_NEWEST;
    unsigned bits = POOL_REQUEST | POOL_GROUP;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|nOO:Pool", names, &memory_bytes, &rule_name,
                                     &source_names))
        return NULL;
    if (memory_bytes < 0)
        return PyErr_Format(PyExc_ValueError, "memory_bytes is %zd: it must not be negative", memory_bytes);
    if ((rule_name && get_rule(rule_name, &rule) < 0) ||
        (source_names && get_sources(source_names, &bits) < 0))
        return NULL;
    PoolObject *self = (PoolObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    pool_init(&self->pool, (size_t)memory_bytes, rule, bits);
    self->lock = PyThread_allocate_lock();
    if (!self->lock) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void Pool_dealloc(PyObject *object) {
    PoolObject *self = (PoolObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    pool_free(&self->pool);
    if (self->lock)
        PyThread_free_lock(self->lock);
    type->tp_free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(Pool_open_doc, "open($self, /, prompt_ids, group='by_prompt')\n--\n\n"
                            "Open a slot for a prompt and return its number.");

static PyObject *Pool_open(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"prompt_ids", "group", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *prompt, *group = NULL, *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:open", names, &prompt, &group))
        return NULL;
    pool_key kind = POOL_BY_PROMPT;
    Py_buffer name = {0};
    if (group == Py_None) {
        kind = POOL_PRIVATE;
    } else if (group && PyBytes_Check(group)) {
        kind = POOL_NAMED;
        name.buf = PyBytes_AS_STRING(group); // `args` keeps the bytes alive
        name.len = PyBytes_GET_SIZE(group);
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
    END_WORK(self)
    if (status == POOL_OK)
        result = PyLong_FromUnsignedLong(slot);
    else
        PyErr_NoMemory();
    release_tokens(&tokens);
    return result;
}

static PyObject *raise_step_error(pool_status status, const pool_error *error, Py_ssize_t tokens,
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
        return PyErr_Format(PyExc_ValueError, "counts add up to %lld, but there are %zd tokens", value,
                            tokens);
    case POOL_BAD_TOKEN:
        return PyErr_Format(PyExc_ValueError, "tokens[%zd] is %lld: token ids go from 0 to 2147483647", at,
                            value);
    case POOL_BAD_DRAFT_SIZE:
        return PyErr_Format(PyExc_ValueError,
                            "k of row %zd is %lld: it must lie between 0 and %zd, the width of out", at,
                            value, width);
    default:
        return PyErr_NoMemory();
    }
}

PyDoc_STRVAR(Pool_step_doc, "step($self, /, slots, tokens, counts, k, out, lengths)\n--\n\n"
                            "Append tokens to each slot, then write a draft of at most k tokens for each.");

static PyObject *Pool_step(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slots", "tokens", "counts", "k", "out", "lengths", NULL};
    enum { SLOTS, TOKENS, COUNTS, K, OUT, LENGTHS, ARGUMENTS };
    PoolObject *self = (PoolObject *)object;
    PyObject *given[ARGUMENTS], *result = NULL;
    Py_buffer view[ARGUMENTS] = {{0}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO:step", names, &given[SLOTS], &given[TOKENS],
                                     &given[COUNTS], &given[K], &given[OUT], &given[LENGTHS]))
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
        return PyErr_Format(PyExc_TypeError, "k must be an integer or an int32 buffer, not %.100s",
                            Py_TYPE(given[K])->tp_name);
    }
    for (int i = 0; i < ARGUMENTS; i++)
        if (!(i == K && is_uniform) &&
            get_int32(given[i], names[i], i == OUT ? 2 : 1, i >= OUT, &view[i]) < 0)
            goto done;
    Py_ssize_t rows = view[SLOTS].shape[0], width = view[OUT].shape[1];
    static const int per_row[] = {COUNTS, K, OUT, LENGTHS};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(per_row); i++) {
        int j = per_row[i];
        if (view[j].obj && view[j].shape[0] != rows) {
            PyErr_Format(PyExc_ValueError, "%s has %zd rows, but slots has %zd", names[j], view[j].shape[0],
                         rows);
            goto done;
        }
    }
    if (is_uniform && (uniform < 0 || uniform > width)) {
        PyErr_Format(PyExc_ValueError, "k is %R: it must lie between 0 and %zd, the width of out", given[K],
                     width);
        goto done;
    }
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_step(&self->pool, view[SLOTS].buf, (size_t)rows, view[TOKENS].buf,
                       (size_t)view[TOKENS].shape[0], view[COUNTS].buf, is_uniform ? &uniform : view[K].buf,
                       is_uniform, view[OUT].buf, (size_t)width, view[LENGTHS].buf, &error);
    END_WORK(self)
    if (status == POOL_OK)
        result = Py_NewRef(Py_None);
    else
        raise_step_error(status, &error, view[TOKENS].shape[0], width);
done:
    for (int i = 0; i < ARGUMENTS; i++)
        PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(Pool_close_doc, "close($self, /, slot, keep=True)\n--\n\n"
                             "Close a slot; keep: its text stays with its group, else the group forgets it.");

static PyObject *Pool_close(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slot", "keep", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *number;
    int keep = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:close", names, &number, &keep))
        return NULL;
    if (!PyIndex_Check(number))
        return PyErr_Format(PyExc_TypeError, "slot must be an integer, not %.100s", Py_TYPE(number)->tp_name);
    Py_ssize_t slot = PyNumber_AsSsize_t(number, NULL);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    pool_error error;
    pool_status status;
    BEGIN_WORK(self)
    status = pool_close(&self->pool, slot, keep, &error);
    END_WORK(self)
    if (status != POOL_OK)
        return PyErr_Format(PyExc_ValueError, "slot is %R, which is not an open slot", number);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Pool_drop_doc, "drop($self, /, group)\n--\n\n"
                            "Free the group of a name (bytes) or prompt; return whether there was one.");

static PyObject *Pool_drop(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"group", NULL};
    PoolObject *self = (PoolObject *)object;
    PyObject *group;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:drop", names, &group))
        return NULL;
    bool named = PyBytes_Check(group), found;
    Tokens tokens = {0};
    if (!named && get_tokens(group, "group", &tokens) < 0)
        return NULL;
    const void *key = named ? (const void *)PyBytes_AS_STRING(group) : tokens.tokens;
    size_t bytes = named ? (size_t)PyBytes_GET_SIZE(group) : (size_t)tokens.size * sizeof(int32_t);
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

PyDoc_STRVAR(Pool_stats_doc, "stats($self, /)\n--\n\nReturn counters as a new dict.");

static PyObject *Pool_stats(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    pool now;
    BEGIN_WORK(self)
    now = self->pool;
    END_WORK(self)
    const pool_drafted *request = &now.drafted[POOL_REQUEST - 1], *group = &now.drafted[POOL_GROUP - 1];
    return Py_BuildValue("{sKsKsKsnsnsKsKsKs{s{sKsK}s{sKsK}}sKsK}",                               //
                         "slots_open", now.slots_open,                                            //
                         "groups", now.groups,                                                    //
                         "tokens", now.tokens,                                                    //
                         "bytes_used", (Py_ssize_t)now.memory.used,                               //
                         "memory_bytes", (Py_ssize_t)now.memory.limit,                            //
                         "appended", now.appended,                                                //
                         "drafts", request->drafts + group->drafts,                               //
                         "drafted_tokens", request->tokens + group->tokens,                       //
                         "by_source",                                                             //
                         "request", "drafts", request->drafts, "drafted_tokens", request->tokens, //
                         "group", "drafts", group->drafts, "drafted_tokens", group->tokens,       //
                         "evicted_groups", now.evicted_groups,                                    //
                         "exhausted", now.exhausted);
}

PyDoc_STRVAR(Pool_validate_doc,
             "_validate($self, /)\n--\n\n"
             "Check every invariant; return None or a sentence that says which is broken.");

static PyObject *Pool_validate(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    const char *reason = NULL;
    BEGIN_WORK(self)
    pool_validate(&self->pool, &reason);
    END_WORK(self)
    return Py_BuildValue("z", reason);
}

PyDoc_STRVAR(Pool_work_doc, "_work($self, /)\n--\n\n"
                            "Return the number of states visited and rotations made so far.");

static PyObject *Pool_work(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PoolObject *self = (PoolObject *)object;
    uint64_t work;
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
    {"close", METHOD(Pool_close), METH_VARARGS | METH_KEYWORDS, Pool_close_doc},
    {"drop", METHOD(Pool_drop), METH_VARARGS | METH_KEYWORDS, Pool_drop_doc},
    {"stats", Pool_stats, METH_NOARGS, Pool_stats_doc},
    {"_validate", Pool_validate, METH_NOARGS, Pool_validate_doc},
    {"_work", Pool_work, METH_NOARGS, Pool_work_doc},
    {"__reduce__", Pool_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(Pool_doc, "Pool(memory_bytes=1073741824, rule='newest', sources=('request', 'group'))\n--\n\n"
                       "Requests that draft from their own text and from the answers to the same prompt.");

static PyType_Slot Pool_slots[] = {
    {Py_tp_new, Pool_new},
    {Py_tp_dealloc, Pool_dealloc},
    {Py_tp_methods, Pool_methods},
    {Py_tp_doc, (void *)Pool_doc},
    {0, NULL},
};

static PyType_Spec Pool_spec = {
    .name = "sam_core.Pool",
    .basicsize = sizeof(PoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Pool_slots,
};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &Pool_spec, NULL);
    if (!type)
        return -1;
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result < 0 ? -1 : PyModule_AddStringConstant(module, "BY_PROMPT", BY_PROMPT);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sam_core._sam",
    .m_doc = "Suffix-automaton drafts; see sam_core.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__sam(void) { return PyModuleDef_Init(&module_def); }
