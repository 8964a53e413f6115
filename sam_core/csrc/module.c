// SPDX-License-Identifier: Apache-2.0

#include "python_pool.h"

#include <pthread.h>
#include <unistd.h>

long this_process;

static void update_process(void) { this_process = (long)getpid(); }

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
    update_process();
    if (pthread_atfork(NULL, NULL, update_process)) { // to ask for it in each call would cost more
        PyErr_NoMemory();
        return -1;
    }
    if (add_type(module, &Pool_spec) < 0 || add_type(module, &NgramTable_spec) < 0 ||
        PyModule_AddStringConstant(module, "BY_PROMPT", BY_PROMPT) < 0)
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
    PyModuleDef_HEAD_INIT,   .m_name = "sam_core._sam",     .m_doc = "Suffix-automaton drafts; see sam_core.",
    .m_slots = module_slots, .m_methods = module_functions,
};

PyMODINIT_FUNC PyInit__sam(void) { return PyModuleDef_Init(&module_def); }
