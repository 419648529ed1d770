// Draws, as augment/text/draws.py describes them.

#pragma once

#include <nanobind/stl/pair.h>

#include <utility>

#include "common.h"

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

class Draws {
   public:
    explicit Draws(nb::handle key) {
        const uint64_t value = PyLong_AsUnsignedLongLongMask(nb::int_(key).ptr());
        if (value == static_cast<uint64_t>(-1) && PyErr_Occurred()) nb::raise_python_error();
        state_ = mix(value + kGolden);
    }
    explicit Draws(std::pair<uint64_t, uint64_t> kept) : state_(kept.first), chances_(kept.second) {}

    uint64_t bits() {
        state_ += kGolden;
        return mix(state_);
    }

    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

    uint64_t below(Py_ssize_t n) {
        if (n < 1) raise(PyExc_ValueError, "nothing can be drawn below %zd", n);
        return static_cast<uint64_t>((static_cast<unsigned __int128>(bits()) * static_cast<uint64_t>(n)) >> 64);
    }

    bool chance(double p) {
        uint64_t bits = std::exchange(chances_, 0);
        if (!bits) {
            bits = this->bits();
            chances_ = bits >> 32 | 1ull << 32;
        }
        return static_cast<double>(bits & 0xFFFFFFFFull) < p * 4294967296.0;
    }

    nb::object choice(nb::handle items) {
        const Py_ssize_t place = static_cast<Py_ssize_t>(below(static_cast<Py_ssize_t>(nb::len(items))));
        PyObject* found = PySequence_GetItem(items.ptr(), place);
        if (!found) nb::raise_python_error();
        return nb::steal(found);
    }

    // 64 bits serve several draws, until the rest of them could tell at most 2**32 cases apart. A fraction that has chosen one of n
    // items is multiplied by n: what remains is its place within that item's share.
    nb::list sample(nb::handle items, Py_ssize_t k) {
        nb::list pool(items);
        const Py_ssize_t size = static_cast<Py_ssize_t>(pool.size());
        k = k < 0 ? 0 : k < size ? k : size;
        PyObject** found = reinterpret_cast<PyListObject*>(pool.ptr())->ob_item;
        uint64_t fraction = 0, told = 0;
        for (Py_ssize_t i = 0; i < k; ++i) {
            const uint64_t left = static_cast<uint64_t>(size - i);
            if (told < left) {
                fraction = bits();
                told = 1ull << 32;
            }
            told /= left;
            const unsigned __int128 product = static_cast<unsigned __int128>(fraction) * left;
            fraction = static_cast<uint64_t>(product);
            std::swap(found[i], found[i + static_cast<Py_ssize_t>(product >> 64)]);
        }
        if (k < size && PyList_SetSlice(pool.ptr(), k, size, nullptr) != 0) nb::raise_python_error();
        return pool;
    }

    std::pair<uint64_t, uint64_t> kept() const { return {state_, chances_}; }

   private:
    uint64_t state_;
    uint64_t chances_ = 0;  // 32 bits for the next `chance` below a 1; 0: none are left
};

void add_draws(nb::module_& module) {
    nb::class_<Draws>(module, "Draws")
        .def(nb::init<nb::handle>(), nb::arg("key"))
        .def("__getstate__", &Draws::kept)
        .def("__setstate__", [](Draws& self, std::pair<uint64_t, uint64_t> kept) { new (&self) Draws(kept); })
        .def("bits", &Draws::bits, "Draw 64 random bits.")
        .def("uniform", &Draws::uniform, "Draw from [0, 1), in multiples of 2**-53.")
        .def("below", &Draws::below, "Draw from 0, ..., n - 1; n: 1 or more.")
        .def("chance", &Draws::chance, "Return True with probability p, to 2**-32.")
        .def("choice", &Draws::choice, "Draw one of the items.")
        .def("sample", &Draws::sample, nb::arg("items"), nb::arg("k"),
             "Draw k different items (all, if there are fewer), in random order; k = len(items) shuffles.");
}

}  // namespace
