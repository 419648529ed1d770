// augment._native: the compiled inner loops of text augmentation. It is optional: augment/core/compiled.py loads it if it was built.
//
// Everything here has a counterpart in Python that documents it and gives the same results; tests/augment/native compares the two.

#include <cstring>

#include "columns.h"
#include "draws.h"
#include "pieces.h"
#include "runs.h"
#include "sentence.h"
#include "texts.h"

namespace {

constexpr long kInterface = 10;  // the same as augment.core.compiled.INTERFACE: a module compiled from other sources is not used

PyMethodDef functions[] = {
    {"repeats", repeats, METH_O, nullptr},
    {"word_spans", word_spans, METH_O, nullptr},
    {"cut", guarded<cut, PyObject*, PyObject*>, METH_VARARGS, nullptr},
    {"find_line", find_line, METH_VARARGS, nullptr},
    {"look_alike", guarded<look_alike, PyObject*, PyObject*>, METH_VARARGS, nullptr},
    {"set_relations", set_relations, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "augment._native", "The innermost loops of text augmentation, compiled.", -1, functions};

bool add_type(PyObject* into, PyTypeObject* type, const char* name, size_t size, newfunc create, destructor destroy,
              PyMethodDef* methods) {
    type->tp_name = name;
    type->tp_basicsize = static_cast<Py_ssize_t>(size);
    type->tp_flags |= Py_TPFLAGS_DEFAULT;
    type->tp_new = create;
    type->tp_dealloc = destroy;
    type->tp_methods = methods;
    return PyType_Ready(type) == 0 && PyModule_AddObjectRef(into, std::strrchr(name, '.') + 1, reinterpret_cast<PyObject*>(type)) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit__native() {
    Owned made(PyModule_Create(&module));
    if (!made || PyModule_AddIntConstant(made.get(), "INTERFACE", kInterface) != 0) return nullptr;
    const auto plain = reinterpret_cast<destructor>(PyObject_Free);
    if (!add_type(made.get(), &DrawsType, "augment._native.Draws", sizeof(Draws), draws_new, plain, draws_methods) ||
        !add_type(made.get(), &PiecesType, "augment._native.Pieces", sizeof(Pieces),
                  guarded<pieces_new, PyTypeObject*, PyObject*, PyObject*>,
                  reinterpret_cast<destructor>(pieces_dealloc), pieces_methods) ||
        !add_type(made.get(), &ColumnsType, "augment._native.Columns", sizeof(Columns), columns_new,
                  reinterpret_cast<destructor>(columns_dealloc), columns_methods) ||
        !ready_sentence() ||
        !add_type(made.get(), &SentenceType, "augment._native.Sentence", sizeof(Sentence), PyBaseObject_Type.tp_new,
                  reinterpret_cast<destructor>(sentence_dealloc), sentence_methods))
        return nullptr;
    return made.release();
}
