// Draws: the compiled counterpart of augment/text/draws.py.

#pragma once

#include <utility>

#include "common.h"

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

struct Draws {
    PyObject_HEAD
    uint64_t state;
    uint64_t chances;

    uint64_t bits() {
        state += kGolden;
        return mix(state);
    }
    uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(bits()) * n) >> 64); }
};

PyObject* draws_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    PyObject* key;
    static const char* names[] = {"key", nullptr};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O", const_cast<char**>(names), &key)) return nullptr;
    Owned number(PyNumber_Long(key));
    if (!number) return nullptr;
    const uint64_t value = PyLong_AsUnsignedLongLongMask(number.get());
    if (value == static_cast<uint64_t>(-1) && PyErr_Occurred()) return nullptr;
    PyObject* self = type->tp_alloc(type, 0);
    if (self) {
        reinterpret_cast<Draws*>(self)->state = mix(value + kGolden);
        reinterpret_cast<Draws*>(self)->chances = 0;
    }
    return self;
}

PyObject* draws_bits(Draws* self, PyObject*) { return PyLong_FromUnsignedLongLong(self->bits()); }

PyObject* draws_uniform(Draws* self, PyObject*) {
    return PyFloat_FromDouble(static_cast<double>(self->bits() >> 11) * 0x1p-53);
}

bool nothing_below(Py_ssize_t n) {
    if (n >= 1) return false;
    PyErr_Format(PyExc_ValueError, "nothing can be drawn below %zd", n);
    return true;
}

PyObject* draws_below(Draws* self, PyObject* limit) {
    const Py_ssize_t n = PyNumber_AsSsize_t(limit, PyExc_OverflowError);
    if ((n == -1 && PyErr_Occurred()) || nothing_below(n)) return nullptr;
    return PyLong_FromUnsignedLongLong(self->below(static_cast<uint64_t>(n)));
}

PyObject* draws_chance(Draws* self, PyObject* probability) {
    const double p = PyFloat_AsDouble(probability);
    if (p == -1.0 && PyErr_Occurred()) return nullptr;
    uint64_t bits = self->chances;
    if (bits) {
        self->chances = 0;
    } else {
        bits = self->bits();
        self->chances = bits >> 32 | 1ull << 32;
    }
    return PyBool_FromLong(static_cast<double>(bits & 0xFFFFFFFFull) < p * 4294967296.0);
}

PyObject* draws_choice(Draws* self, PyObject* items) {
    const Py_ssize_t n = PySequence_Size(items);
    if (n < 0 || nothing_below(n)) return nullptr;
    return PySequence_GetItem(items, static_cast<Py_ssize_t>(self->below(static_cast<uint64_t>(n))));
}

PyObject* draws_sample(Draws* self, PyObject* arguments, PyObject* keywords) {
    PyObject* items;
    Py_ssize_t k;
    static const char* names[] = {"items", "k", nullptr};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "On", const_cast<char**>(names), &items, &k)) return nullptr;
    Owned pool(PySequence_List(items));
    if (!pool) return nullptr;
    const Py_ssize_t size = PyList_GET_SIZE(pool.get());
    k = k < 0 ? 0 : k < size ? k : size;
    PyObject** found = reinterpret_cast<PyListObject*>(pool.get())->ob_item;
    uint64_t fraction = 0, told = 0;
    for (Py_ssize_t i = 0; i < k; ++i) {
        const uint64_t left = static_cast<uint64_t>(size - i);
        if (told < left) {
            fraction = self->bits();
            told = 1ull << 32;
        }
        told /= left;
        const unsigned __int128 product = static_cast<unsigned __int128>(fraction) * left;
        fraction = static_cast<uint64_t>(product);
        std::swap(found[i], found[i + static_cast<Py_ssize_t>(product >> 64)]);
    }
    return PyList_GetSlice(pool.get(), 0, k);
}

PyObject* draws_reduce(PyObject* self, PyObject*) {
    const Draws* draws = reinterpret_cast<Draws*>(self);
    return Py_BuildValue("O(i)(KK)", Py_TYPE(self), 0, static_cast<unsigned long long>(draws->state),
                         static_cast<unsigned long long>(draws->chances));
}

PyObject* draws_set_state(Draws* self, PyObject* state) {
    unsigned long long bits, chances;
    if (!PyTuple_Check(state) || !PyArg_ParseTuple(state, "KK", &bits, &chances)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the state of draws must be a pair of numbers");
        return nullptr;
    }
    self->state = bits;
    self->chances = chances;
    Py_RETURN_NONE;
}

PyMethodDef draws_methods[] = {
    {"__reduce__", draws_reduce, METH_NOARGS, nullptr},
    {"__setstate__", reinterpret_cast<PyCFunction>(draws_set_state), METH_O, nullptr},
    {"bits", reinterpret_cast<PyCFunction>(draws_bits), METH_NOARGS, nullptr},
    {"uniform", reinterpret_cast<PyCFunction>(draws_uniform), METH_NOARGS, nullptr},
    {"below", reinterpret_cast<PyCFunction>(draws_below), METH_O, nullptr},
    {"chance", reinterpret_cast<PyCFunction>(draws_chance), METH_O, nullptr},
    {"choice", reinterpret_cast<PyCFunction>(draws_choice), METH_O, nullptr},
    {"sample", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(draws_sample)), METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject DrawsType = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace
