// Loops over the letters of a text: for augment/rules/spelling.py and augment/text/word_forms.py.

#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "common.h"
#include "draws.h"
#include "runs.h"

namespace {

// Returns the text with letters replaced by similar ones, outside the spans: the loop of `augment.rules.spelling.look_alike`.
nb::object look_alike(nb::str text, nb::dict similar, uint64_t threshold, Draws& draws, const std::vector<Span>& spans) {
    const Letters given(text);
    std::vector<Py_UCS4> letters(static_cast<size_t>(given.size));
    uint64_t bits = 1;
    for (Py_ssize_t i = 0; i < given.size; ++i) {
        Py_UCS4& letter = letters[static_cast<size_t>(i)] = given[i];
        const nb::object key = nb::steal(PyUnicode_FromOrdinal(static_cast<int>(letter)));
        PyObject* like = PyDict_GetItemWithError(similar.ptr(), key.ptr());
        if (!like && PyErr_Occurred()) nb::raise_python_error();
        if (!like) continue;
        if (!PyUnicode_Check(like)) raise(PyExc_TypeError, "similar letters must be strings");
        if (bits == 1) bits = draws.bits() >> 1 | 1ull << 63;
        const uint64_t share = bits & 0x1FFFFF;
        bits >>= 21;
        if (share >= threshold || std::any_of(spans.begin(), spans.end(), [i](const Span& span) {
                return span.first <= i && i < span.second;
            }))
            continue;
        letter = PyUnicode_ReadChar(like, static_cast<Py_ssize_t>(share * static_cast<uint64_t>(PyUnicode_GET_LENGTH(like)) / threshold));
        if (letter == static_cast<Py_UCS4>(-1) && PyErr_Occurred()) nb::raise_python_error();
    }
    return text_of(letters);
}

// Returns how often a word of an ASCII text follows itself (`augment.text.word_forms.repeats`); -1 for other texts.
long repeats(nb::str text) {
    if (!PyUnicode_IS_ASCII(text.ptr())) return -1;
    const auto blank = [](char letter) { return letter == ' ' || (letter >= 9 && letter <= 13) || (letter >= 28 && letter <= 31); };
    const std::string_view all = utf8(text);
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
    return count;
}

}  // namespace
