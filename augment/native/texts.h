// Loops over the letters of a text: the compiled counterparts of functions in augment/rules/letters.py,
// augment/text/word_forms.py and augment/text/wordnet.py.

#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common.h"
#include "draws.h"

namespace {

// (text, similar, threshold, draws, spans): returns the text with letters replaced by similar ones, outside the spans (a list of
// (start, end)); the loop of `augment.rules.letters.look_alike`.
PyObject* look_alike(PyObject*, PyObject* arguments) {
    PyObject *text, *similar, *draws, *spans;
    unsigned long threshold;
    if (!PyArg_ParseTuple(arguments, "UO!kO!O!", &text, &PyDict_Type, &similar, &threshold, &DrawsType, &draws, &PyList_Type, &spans))
        return nullptr;
    std::vector<std::pair<Py_ssize_t, Py_ssize_t>> outside;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(spans); ++i) {
        Py_ssize_t start, end;
        if (!span_of(spans, i, &start, &end)) return nullptr;
        outside.emplace_back(start, end);
    }
    std::vector<Py_UCS4> letters(static_cast<size_t>(PyUnicode_GET_LENGTH(text)));
    uint64_t bits = 1;
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); ++i) {
        Py_UCS4& letter = letters[static_cast<size_t>(i)] = PyUnicode_READ_CHAR(text, i);
        Owned key(PyUnicode_FromOrdinal(static_cast<int>(letter)));
        PyObject* like = key ? PyDict_GetItemWithError(similar, key.get()) : nullptr;
        if (!like) {
            if (PyErr_Occurred()) return nullptr;
            continue;
        }
        if (!PyUnicode_Check(like)) return PyErr_Format(PyExc_TypeError, "similar letters must be strings");
        if (bits == 1) bits = reinterpret_cast<Draws*>(draws)->bits() >> 1 | 1ull << 63;
        const uint64_t share = bits & 0x1FFFFF;
        bits >>= 21;
        if (share >= threshold || std::any_of(outside.begin(), outside.end(), [i](const auto& span) {
                return span.first <= i && i < span.second;
            }))
            continue;
        letter = PyUnicode_ReadChar(like, static_cast<Py_ssize_t>(share * static_cast<uint64_t>(PyUnicode_GET_LENGTH(like)) / threshold));
        if (letter == static_cast<Py_UCS4>(-1) && PyErr_Occurred()) return nullptr;
    }
    return PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, letters.data(), static_cast<Py_ssize_t>(letters.size()));
}

// Returns how often a word of an ASCII text follows itself (`augment.text.word_forms.repeats`); -1 for other texts.
PyObject* repeats(PyObject*, PyObject* text) {
    if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "repeats() takes a string");
    if (!PyUnicode_IS_ASCII(text)) return PyLong_FromLong(-1);
    const auto blank = [](char letter) { return letter == ' ' || (letter >= 9 && letter <= 13) || (letter >= 28 && letter <= 31); };
    const std::string_view all(PyUnicode_AsUTF8(text), static_cast<size_t>(PyUnicode_GET_LENGTH(text)));
    std::string_view before;
    long count = 0;
    for (size_t start = 0; start < all.size();) {
        if (blank(all[start])) {
            ++start;
            continue;
        }
        size_t stop = start;
        while (stop < all.size() && !blank(all[stop])) ++stop;
        const std::string_view word = all.substr(start, stop - start);
        start = stop;
        const size_t end = word.find_last_not_of(".,;:!?)]\"'");
        const std::string_view bare = word.substr(0, end == std::string_view::npos ? 0 : end + 1);
        bool same = !before.empty() && before.size() == bare.size();
        for (size_t i = 0; same && i < bare.size(); ++i) same = lowered(before[i]) == lowered(bare[i]);
        const char last = before.empty() ? ' ' : lowered(before.back());
        count += same && ((last >= 'a' && last <= 'z') || (last >= '0' && last <= '9'));
        before = word;
    }
    return PyLong_FromLong(count);
}

// (data, starts, ends, key): returns the one of sorted lines, with bounds in int64, that begins with the key, or None
// (`augment.text.wordnet._Index.find`).
PyObject* find_line(PyObject*, PyObject* arguments) {
    PyObject *given, *given_starts, *given_ends, *given_key;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given, &given_starts, &given_ends, &given_key)) return nullptr;
    const Bytes data(given), starts(given_starts), ends(given_ends), key(given_key);
    if (!data || !starts || !ends || !key) return nullptr;
    const std::string_view wanted(key.as<char>(), static_cast<size_t>(key.size<char>()));
    const auto line = [&](Py_ssize_t number) {
        const int64_t start = starts.as<int64_t>()[number], end = ends.as<int64_t>()[number];
        const bool inside = 0 <= start && start <= end && end <= data.size<char>();
        return inside ? std::string_view(data.as<char>() + start, static_cast<size_t>(end - start)) : std::string_view();
    };
    Py_ssize_t low = 0, high = std::min(starts.size<int64_t>(), ends.size<int64_t>());
    const Py_ssize_t count = high;
    while (low < high) {
        const Py_ssize_t middle = low + (high - low) / 2;
        if (line(middle) < wanted) low = middle + 1;
        else high = middle;
    }
    if (low == count || line(low).substr(0, wanted.size()) != wanted) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(line(low).data(), static_cast<Py_ssize_t>(line(low).size()));
}

}  // namespace
