// SPDX-License-Identifier: Apache-2.0
//
// What the files of the type Pool share.

#ifndef PYTHON_POOL_H
#define PYTHON_POOL_H

#include "python.h" // before all others

#include "persist.h"

#define BY_PROMPT "by_prompt"

typedef struct {
    PyObject_HEAD pool pool;
    PyThread_type_lock lock; // held while the pool is in use without the GIL
    long process;            // that made the pool
} PoolObject;

// Releases the GIL and takes the pool's lock; calls wait for each other.
#define BEGIN_WORK(self)                                                                                     \
    Py_BEGIN_ALLOW_THREADS                                                                                   \
    PyThread_acquire_lock((self)->lock, WAIT_LOCK);

#define END_WORK(self)                                                                                       \
    PyThread_release_lock((self)->lock);                                                                     \
    Py_END_ALLOW_THREADS

extern const char *const names_of_rules[];   // by rule_name
extern const char *const names_of_sources[]; // by RULE_REQUEST, ...

// Raises in a forked child, since another thread may have been working in the pool during the fork.
int check_process(const PoolObject *self);

// Arguments that Pool() and Pool.load() share. Objects are NULL or None if not given.
typedef struct {
    PyObject *memory, *corpus_path, *vocabulary, *fingerprint;
    double min_prob;
    Py_ssize_t memory_bytes;
    uint32_t vocab_size;
    uint64_t tokenizer;
} Settings;

// A Pool object without a pool, which make_pool gives it.
PoolObject *new_object(PyTypeObject *type);
int make_pool(PoolObject *self, const Settings *s, rule_name rule, unsigned bits);

// Read and check arguments. Return -1 with an exception set if one is refused.
int get_rule(PyObject *object, rule_name *rule);
int get_sources(PyObject *object, unsigned *bits);
int check_min_prob(double min_prob);
int check_settings(Settings *s);
int open_corpus(const Settings *s, corpus *c);

// Refuses a file of another tokenizer than the settings'; 0: unknown.
int check_tokenizer(PyObject *path, uint64_t tokenizer, const Settings *s);

// Raises ValueError with the reason if a file is refused, or else OSError with the number of the error.
void raise_path_error(PyObject *path, bool refused, const char *reason, int error);

// The names of a set of sources, as a list.
PyObject *source_list(unsigned bits);

// The number of a slot. Returns -1 with an exception set; a number beyond all slots becomes one without a slot.
Py_ssize_t get_slot(PyObject *number);
PyObject *raise_bad_slot(PyObject *number);

// Methods, in python_step.c and python_saved.c.
PyObject *Pool_step(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *Pool_catch_up(PyObject *object, PyObject *ignored);
PyObject *Pool_append(PyObject *object, PyObject *const *args, Py_ssize_t count);
PyObject *Pool_save(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *Pool_load(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *Pool_describe(PyObject *type, PyObject *path);
extern const char Pool_step_doc[], Pool_catch_up_doc[], Pool_append_doc[];
extern const char Pool_save_doc[], Pool_load_doc[], Pool_describe_doc[];

#endif
