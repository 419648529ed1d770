// Columns: sentences of an annotation, the counterpart of pretrain/data/annotation.py.

#pragma once

#include "common.h"
#include "sentence.h"

namespace {

nb::tuple numbers(const uint16_t* values, size_t count) {
    nb::builder<nb::tuple> found(count);
    for (size_t i = 0; i < count; ++i) found.put(values[i]);
    return found.commit();
}

nb::handle row_of(const nb::tuple& table, uint16_t row) {
    if (row >= table.size()) raise(PyExc_IndexError, "row %d of a table of %zu", row, table.size());
    return PyTuple_GET_ITEM(table.ptr(), row);
}

nb::tuple names(const uint16_t* values, size_t count, const nb::tuple& table) {
    nb::builder<nb::tuple> found(count);
    for (size_t i = 0; i < count; ++i) found.put(row_of(table, values[i]));
    return found.commit();
}

// The sentences of an annotation: their texts end to end, the end of each text, the first word of each sentence, and the columns
// of all words, uint16[6, words]: starts, ends, heads, tags, lemmas, relations. type: of the sentences, a subclass of Sentence.
class Columns {
   public:
    Columns(nb::type_object type, nb::handle texts, nb::handle text_ends, nb::handle bounds, nb::handle columns, nb::tuple tags,
            nb::tuple parts_of_speech, nb::tuple relations, nb::tuple lemmas, nb::str language)
        : type_(type), texts_(texts), text_ends_(text_ends), bounds_(bounds), columns_(columns), tags_(tags),
          parts_of_speech_(parts_of_speech), relations_(relations), lemmas_(lemmas), language_(language) {
        if (!PyType_IsSubtype(made_type(), SentenceType)) raise(PyExc_TypeError, "%R is not a subclass of Sentence", type.ptr());
        if (bounds_.size() < 1 || text_ends_.size() != bounds_.size()) refuse();
    }

    // Returns the sentence of a row, a ParsedSentence.
    nb::object sentence(Py_ssize_t row) const {
        const Py_ssize_t sentences = bounds_.size() - 1, all = columns_.size() / 6;
        if (row < 0 || row >= sentences) raise(PyExc_IndexError, "sentence %zd of %zd", row, sentences);
        const int64_t begin = text_ends_[row], end = text_ends_[row + 1], first = bounds_[row], last = bounds_[row + 1];
        if (begin < 0 || end < begin || end > texts_.size() || first < 0 || last < first || last > all) refuse();
        const size_t count = static_cast<size_t>(last - first);
        const uint16_t* values = columns_.data() + first;
        nb::object owned = nb::steal(made_type()->tp_alloc(made_type(), 0));
        if (!owned.is_valid()) nb::raise_python_error();
        Sentence& made = *reinterpret_cast<Sentence*>(owned.ptr());
        made.text = nb::steal(PyUnicode_DecodeUTF8(texts_.data() + begin, static_cast<Py_ssize_t>(end - begin), nullptr));
        if (!made.text.is_valid()) nb::raise_python_error();
        nb::builder<nb::tuple> lemmas(count);
        for (size_t i = 0; i < count; ++i) {
            const uint16_t* word = values + i;
            if (const uint16_t number = word[4 * all]) lemmas.put(row_of(lemmas_, number));
            else lemmas.put(lower(made.text, word[0], word[all]));
        }
        made.starts = numbers(values, count);
        made.ends = numbers(values + all, count);
        made.heads = numbers(values + 2 * all, count);
        made.tags = names(values + 3 * all, count, tags_);
        made.pos = names(values + 3 * all, count, parts_of_speech_);
        made.lemmas = lemmas.commit();
        made.deps = names(values + 5 * all, count, relations_);
        made.language = language_;
        made.children = made.copulas = nb::none();
        return owned;
    }

   private:
    PyTypeObject* made_type() const { return reinterpret_cast<PyTypeObject*>(type_.ptr()); }

    [[noreturn]] static void refuse() { raise(PyExc_ValueError, "texts and words of the annotation do not belong together"); }

    nb::type_object type_;
    Buffer<char> texts_;
    Buffer<int64_t> text_ends_, bounds_;
    Buffer<uint16_t> columns_;
    nb::tuple tags_, parts_of_speech_, relations_, lemmas_;
    nb::str language_;
};

void add_columns(nb::module_& module) {
    nb::class_<Columns>(module, "Columns")
        .def(nb::init<nb::type_object, nb::handle, nb::handle, nb::handle, nb::handle, nb::tuple, nb::tuple, nb::tuple, nb::tuple,
                      nb::str>())
        .def("sentence", &Columns::sentence);
}

}  // namespace
