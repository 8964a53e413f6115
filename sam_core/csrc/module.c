// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include <unistd.h>

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

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
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
    if (add_type(module, &Pool_spec) < 0 || add_type(module, &NgramTable_spec) < 0 ||
        watch_forks(module) < 0 || PyModule_AddStringConstant(module, "BY_PROMPT", BY_PROMPT) < 0)
        return -1;
    PyObject *list = source_list((1u << RULE_SOURCES) - 1), *names = list ? PySequence_Tuple(list) : NULL;
    int result = names ? PyModule_AddObjectRef(module, "SOURCES", names) : -1;
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
