// Shared by all of augment._native: Python references and buffers that are released at the end of a scope.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string_view>

namespace {

// A reference that is released at the end of its scope.
struct Release {
    void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

// The bytes of an object with a contiguous buffer.
class Bytes {
   public:
    explicit Bytes(PyObject* object) { held_ = PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) == 0; }
    ~Bytes() {
        if (held_) PyBuffer_Release(&view_);
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    explicit operator bool() const { return held_; }
    template <typename T>
    const T* as() const {
        return static_cast<const T*>(view_.buf);
    }
    template <typename T>
    Py_ssize_t size() const {
        return view_.len / static_cast<Py_ssize_t>(sizeof(T));
    }

   private:
    Py_buffer view_{};
    bool held_ = false;
};

bool utf8(PyObject* text, std::string_view* found) {
    Py_ssize_t size;
    const char* letters = PyUnicode_AsUTF8AndSize(text, &size);
    if (letters) *found = std::string_view(letters, static_cast<size_t>(size));
    return letters != nullptr;
}

// Returns an ASCII letter in lower case, another character unchanged.
char lowered(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter; }

// Reads the i-th (start, end) of a list. It holds the item meanwhile: unpacking one that is no tuple of ints may run code that
// changes the list.
bool span_of(PyObject* spans, Py_ssize_t i, Py_ssize_t* start, Py_ssize_t* end) {
    Owned span(Py_NewRef(PyList_GET_ITEM(spans, i)));
    return PyArg_Parse(span.get(), "(nn)", start, end) != 0;
}

// Turns C++ exceptions into Python's: a failed allocation must not end the process.
template <auto function, typename... Arguments>
PyObject* guarded(Arguments... arguments) {
    try {
        return function(arguments...);
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

}  // namespace
