// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include "validate.h"

int check_process(const PoolObject *self) {
    if (self->process == this_process)
        return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "this pool belongs to process %ld, of which this one is a fork: make a Pool of its own here",
                 self->process);
    return -1;
}

PoolObject *new_object(PyTypeObject *type) {
    PoolObject *self = (PoolObject *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->lock = PyThread_allocate_lock();
    if (!self->lock) {
        Py_DECREF(self);
        return (PoolObject *)PyErr_NoMemory();
    }
    return self;
}

int make_pool(PoolObject *self, const Settings *s, rule_name rule, unsigned bits) {
    corpus c;
    if (open_corpus(s, &c) < 0)
        return -1;
    if (!pool_init(&self->pool, (size_t)s->memory_bytes, rule, bits, c.file ? &c : NULL,
                   (float)s->min_prob)) {
        corpus_close(&c);
        PyErr_NoMemory();
        return -1;
    }
    self->pool.options.vocab_size = s->vocab_size;
    self->pool.options.tokenizer = s->tokenizer;
    self->process = this_process;
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

PyObject *raise_bad_slot(PyObject *number) {
    return PyErr_Format(PyExc_ValueError, "slot is %R, which is not an open slot", number);
}

Py_ssize_t get_slot(PyObject *number) {
    if (PyIndex_Check(number))
        return PyNumber_AsSsize_t(number, NULL);
    raise_type_error(number, "slot must be an integer");
    return -1;
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
        PyObject *counts = Py_BuildValue("{sKsKsK}", "drafts", now.stats.drafts[i], "drafted_tokens",
                                         now.stats.drafted[i], "accepted_tokens", now.stats.accepted[i]);
        if (!counts || PyDict_SetItemString(by_source, names_of_sources[i], counts) < 0)
            Py_CLEAR(by_source);
        Py_XDECREF(counts);
    }
    if (!by_source)
        return NULL;
    return Py_BuildValue("{sKsKsKsnsnsKsKsKsKsNsKsKsKsKsK}",           //
                         "slots_open", now.stats.slots_open,           //
                         "groups", now.stats.groups,                   //
                         "tokens", now.stats.tokens,                   //
                         "bytes_used", (Py_ssize_t)now.memory.used,    //
                         "memory_bytes", (Py_ssize_t)now.memory.limit, //
                         "appended", now.stats.appended,               //
                         "drafts", sum(now.stats.drafts),              //
                         "drafted_tokens", sum(now.stats.drafted),     //
                         "accepted_tokens", sum(now.stats.accepted),   //
                         "by_source", by_source,                       //
                         "history_texts", now.stats.history_texts,     //
                         "history_tokens", now.stats.history_tokens,   //
                         "evicted_groups", now.stats.evicted_groups,   //
                         "evicted_history", now.stats.evicted_history, //
                         "exhausted", now.stats.exhausted);
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
    return PyUnicode_FromString(names_of_rules[((PoolObject *)object)->pool.options.rule]);
}

static PyObject *Pool_get_sources(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *names = source_list(((PoolObject *)object)->pool.options.sources);
    PyObject *result = names ? PySequence_Tuple(names) : NULL;
    Py_XDECREF(names);
    return result;
}

static PyObject *Pool_get_min_prob(PyObject *object, void *Py_UNUSED(closure)) {
    return PyFloat_FromDouble((double)((PoolObject *)object)->pool.options.min_prob);
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
    self->pool.options.min_prob = (float)min_prob;
    END_WORK(self)
    return 0;
}

static PyObject *Pool_get_num_threads(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLong(((PoolObject *)object)->pool.threads.count);
}

static int Pool_set_num_threads(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    PoolObject *self = (PoolObject *)object;
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "num_threads cannot be deleted: set it to 1");
        return -1;
    }
    Py_ssize_t count = PyNumber_AsSsize_t(value, NULL); // clipped to its range
    if ((count == -1 && PyErr_Occurred()) || check_process(self) < 0)
        return -1;
    if (count < 1 || count > POOL_MAX_THREADS) {
        PyErr_Format(PyExc_ValueError, "num_threads is %R: it must lie between 1 and %d", value,
                     (int)POOL_MAX_THREADS);
        return -1;
    }
    BEGIN_WORK(self)
    self->pool.threads.count = (uint32_t)count;
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

PyType_Spec Pool_spec = {
    .name = "sam_core.Pool",
    .basicsize = sizeof(PoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Pool_slots,
};
