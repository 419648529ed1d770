// Loops over the letters of a text: for `word_spans` and `cut` of augment/rules/word_order.py, augment/rules/spelling.py and
// augment/text/word_forms.py.

#pragma once

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common.h"
#include "draws.h"

namespace {

using Span = std::pair<Py_ssize_t, Py_ssize_t>;  // start, end, in characters

// The letters of a string of any width, with the classes of Python's regular expressions.
class Letters {
   public:
    explicit Letters(const nb::str& text)
        : kind_(PyUnicode_KIND(text.ptr())), data_(PyUnicode_DATA(text.ptr())), size(PyUnicode_GET_LENGTH(text.ptr())) {}

    Py_UCS4 operator[](Py_ssize_t at) const { return PyUnicode_READ(kind_, data_, at); }
    bool space(Py_ssize_t at) const { return Py_UNICODE_ISSPACE((*this)[at]); }
    bool word(Py_ssize_t at) const { return Py_UNICODE_ISALNUM((*this)[at]) || (*this)[at] == '_'; }
    bool capital(Py_ssize_t at) const { return (*this)[at] >= 'A' && (*this)[at] <= 'Z'; }
    bool small(Py_ssize_t at) const { return (*this)[at] >= 'a' && (*this)[at] <= 'z'; }

    // Returns the next run of letters that are no spaces, from `at` on; an empty one at the end.
    Span run(Py_ssize_t at) const {
        while (at < size && space(at)) ++at;
        Py_ssize_t stop = at;
        while (stop < size && !space(stop)) ++stop;
        return {at, stop};
    }

   private:
    const int kind_;
    const void* const data_;

   public:
    const Py_ssize_t size;
};

// Returns whether the full stop at `end` of a run (start, stop) belongs to the word before it: "U.S.", and "Mr." or "J." before a
// space.
bool abbreviates(const Letters& letters, Py_ssize_t start, Py_ssize_t end, Py_ssize_t stop) {
    if (end >= stop || letters[end] != '.') return false;
    if (end - 2 >= start && letters[end - 2] == '.') return true;
    if (end + 1 != stop || stop == letters.size) return false;
    const auto alone = [&](Py_ssize_t at) { return at == start || !letters.word(at - 1); };
    if (letters.capital(end - 1)) return alone(end - 1);
    return end - 2 >= start && letters.small(end - 1) && letters.capital(end - 2) && alone(end - 2);
}

std::vector<Span> word_spans(nb::str text) {
    const Letters letters(text);
    std::vector<Span> spans;
    for (Span run = letters.run(0); run.first < run.second; run = letters.run(run.second)) {
        const auto [start, stop] = run;
        Py_ssize_t first = start, end = stop;
        while (first < stop && !letters.word(first)) ++first;
        while (end > first && !letters.word(end - 1)) --end;
        if (first < end) spans.emplace_back(first, end + abbreviates(letters, start, end, stop));
    }
    return spans;
}

nb::object text_of(const std::vector<Py_UCS4>& letters) {
    PyObject* text = PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, letters.data(), static_cast<Py_ssize_t>(letters.size()));
    if (!text) nb::raise_python_error();
    return nb::steal(text);
}

// Returns the text without the spans, in rising order, and without the space that each would leave.
nb::object cut(nb::str text, const std::vector<Span>& spans) {
    const Letters letters(text);
    std::vector<Py_UCS4> kept;
    kept.reserve(static_cast<size_t>(letters.size));
    Py_ssize_t position = 0;
    for (auto [start, end] : spans) {
        if (start < position || end < start || end > letters.size)
            raise(PyExc_ValueError, "the span %zd:%zd of a text of %zd characters", start, end, letters.size);
        const Py_ssize_t whole = start;
        while (start > position && letters.space(start - 1)) --start;
        if (start == whole)
            while (end < letters.size && letters.space(end)) ++end;
        for (; position < start; ++position) kept.push_back(letters[position]);
        position = end;
    }
    for (; position < letters.size; ++position) kept.push_back(letters[position]);
    return text_of(kept);
}

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

// Returns how often a word follows itself, punctuation behind it and the case of ASCII letters aside.
long repeats(nb::str text) {
    const Letters letters(text);
    const auto at = [&](Py_ssize_t i) { return letters[i] < 128 ? lowered(static_cast<char>(letters[i])) : letters[i]; };
    const auto trails = [&](Py_ssize_t i) { return std::u32string_view(U".,;:!?)\"'’”]").find(letters[i]) != std::u32string_view::npos; };
    Span before{0, 0};
    long count = 0;
    for (Span run = letters.run(0); run.first < run.second; run = letters.run(run.second)) {
        const auto [start, stop] = run;
        Py_ssize_t end = stop, same = 0;
        while (end > start && trails(end - 1)) --end;
        const Py_ssize_t size = before.second - before.first;
        while (same < size && start + same < end && at(before.first + same) == at(start + same)) ++same;
        count += size > 0 && same == size && start + same == end && Py_UNICODE_ISALNUM(at(before.second - 1));
        before = run;
    }
    return count;
}

}  // namespace
