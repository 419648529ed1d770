// Shared by all of augment._native: what its parts read out of Python objects.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace nb = nanobind;

namespace {

// The items of an object with a contiguous buffer, held until the end of a scope.
template <typename T>
class Buffer {
   public:
    explicit Buffer(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    const T* data() const { return static_cast<const T*>(view_.buf); }
    Py_ssize_t size() const { return view_.len / static_cast<Py_ssize_t>(sizeof(T)); }
    const T* begin() const { return data(); }
    const T* end() const { return data() + size(); }
    const T& operator[](Py_ssize_t i) const { return data()[i]; }

   private:
    Py_buffer view_{};
};

// Raises a Python exception with a message in the terms of PyErr_Format.
template <typename... Values>
[[noreturn]] void raise(PyObject* kind, const char* format, Values... values) {
    PyErr_Format(kind, format, values...);
    nb::raise_python_error();
}

// Returns the letters of a string, which live as long as it does.
std::string_view utf8(nb::handle text) {
    Py_ssize_t size;
    const char* letters = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (!letters) nb::raise_python_error();
    return {letters, static_cast<size_t>(size)};
}

// Returns the value of a whole number, of numpy's as well.
Py_ssize_t whole(nb::handle number) {
    const Py_ssize_t value = PyNumber_AsSsize_t(number.ptr(), PyExc_IndexError);
    if (value == -1 && PyErr_Occurred()) nb::raise_python_error();
    return value;
}

// Returns an ASCII letter in lower case, another character unchanged.
char lowered(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter; }

}  // namespace
