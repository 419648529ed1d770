// Columns: sentences of an annotation, the counterpart of pretrain/data/annotation.py.

#pragma once

#include <utility>

#include "common.h"
#include "sentence.h"

namespace {

// The sentences of an annotation: their texts end to end, the end of each text, the first word of each sentence, and the columns
// of all words, uint16[6, words]: starts, ends, heads, tags, lemmas, relations.
struct Columns {
    PyObject_HEAD
    Py_buffer texts, text_ends, bounds, columns;
    PyObject *type, *tags, *parts_of_speech, *relations, *lemmas, *language;  // type: of the sentences, a subclass of Sentence
    Py_ssize_t sentences, words;
};

void columns_dealloc(Columns* self) {
    for (Py_buffer* view : {&self->texts, &self->text_ends, &self->bounds, &self->columns})
        if (view->obj) PyBuffer_Release(view);
    for (PyObject* object : {self->type, self->tags, self->parts_of_speech, self->relations, self->lemmas, self->language})
        Py_XDECREF(object);
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

PyObject* columns_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *made, *texts, *text_ends, *bounds, *columns, *tags, *parts_of_speech, *relations, *lemmas, *language;
    if (!PyArg_ParseTuple(arguments, "O!OOOOO!O!O!O!U", &PyType_Type, &made, &texts, &text_ends, &bounds, &columns, &PyTuple_Type,
                          &tags, &PyTuple_Type, &parts_of_speech, &PyTuple_Type, &relations, &PyTuple_Type, &lemmas, &language))
        return nullptr;
    if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(made), &SentenceType))
        return PyErr_Format(PyExc_TypeError, "%R is not a subclass of Sentence", made);
    Columns* self = reinterpret_cast<Columns*>(type->tp_alloc(type, 0));
    Owned owned(reinterpret_cast<PyObject*>(self));
    if (!self) return nullptr;
    const std::pair<PyObject*, Py_buffer*> views[] = {
        {texts, &self->texts}, {text_ends, &self->text_ends}, {bounds, &self->bounds}, {columns, &self->columns}};
    for (const auto& [object, view] : views)
        if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) != 0) return nullptr;
    const std::pair<PyObject*, PyObject**> tables[] = {{made, &self->type},
                                                       {tags, &self->tags},
                                                       {parts_of_speech, &self->parts_of_speech},
                                                       {relations, &self->relations},
                                                       {lemmas, &self->lemmas},
                                                       {language, &self->language}};
    for (const auto& [object, place] : tables) *place = Py_NewRef(object);
    self->sentences = self->bounds.len / 8 - 1;
    self->words = self->columns.len / 12;
    if (self->sentences < 0 || self->text_ends.len != self->bounds.len) {
        PyErr_SetString(PyExc_ValueError, "texts and words of the annotation do not belong together");
        return nullptr;
    }
    return owned.release();
}

PyObject* numbers(const uint16_t* values, Py_ssize_t count) {
    Owned found(PyTuple_New(count));
    for (Py_ssize_t i = 0; found && i < count; ++i) {
        PyObject* number = PyLong_FromLong(values[i]);
        if (!number) return nullptr;
        PyTuple_SET_ITEM(found.get(), i, number);
    }
    return found.release();
}

PyObject* row_of(PyObject* table, uint16_t row) {
    if (row < PyTuple_GET_SIZE(table)) return Py_NewRef(PyTuple_GET_ITEM(table, row));
    return PyErr_Format(PyExc_IndexError, "row %d of a table of %zd", row, PyTuple_GET_SIZE(table));
}

PyObject* names(const uint16_t* values, Py_ssize_t count, PyObject* table) {
    Owned found(PyTuple_New(count));
    for (Py_ssize_t i = 0; found && i < count; ++i) {
        PyObject* name = row_of(table, values[i]);
        if (!name) return nullptr;
        PyTuple_SET_ITEM(found.get(), i, name);
    }
    return found.release();
}

// Returns text[start:end].lower().
PyObject* lower(PyObject* text, Py_ssize_t start, Py_ssize_t end) {
    if (!PyUnicode_IS_ASCII(text)) {
        Owned word(PyUnicode_Substring(text, start, end));
        return word ? PyObject_CallMethod(word.get(), "lower", nullptr) : nullptr;
    }
    const Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    end = end < size ? end : size;
    PyObject* word = PyUnicode_New(start < end ? end - start : 0, 127);
    if (!word || start >= end) return word;
    const Py_UCS1* from = PyUnicode_1BYTE_DATA(text) + start;
    Py_UCS1* to = PyUnicode_1BYTE_DATA(word);
    for (Py_ssize_t i = 0; i < end - start; ++i)
        to[i] = static_cast<Py_UCS1>(lowered(static_cast<char>(from[i])));
    return word;
}

// Returns the sentence of a row, a ParsedSentence.
PyObject* columns_sentence(Columns* self, PyObject* index) {
    const Py_ssize_t row = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (row == -1 && PyErr_Occurred()) return nullptr;
    if (row < 0 || row >= self->sentences) {
        PyErr_Format(PyExc_IndexError, "sentence %zd of %zd", row, self->sentences);
        return nullptr;
    }
    const int64_t *text_ends = static_cast<int64_t*>(self->text_ends.buf), *bounds = static_cast<int64_t*>(self->bounds.buf);
    const int64_t begin = text_ends[row], end = text_ends[row + 1], first = bounds[row], last = bounds[row + 1];
    if (begin < 0 || end < begin || end > self->texts.len || first < 0 || last < first || last > self->words) {
        PyErr_SetString(PyExc_ValueError, "texts and words of the annotation do not belong together");
        return nullptr;
    }
    const Py_ssize_t count = static_cast<Py_ssize_t>(last - first), all = self->words;
    const uint16_t* values = static_cast<uint16_t*>(self->columns.buf) + first;
    Owned text(PyUnicode_DecodeUTF8(static_cast<const char*>(self->texts.buf) + begin, static_cast<Py_ssize_t>(end - begin), nullptr));
    Owned lemmas(text ? PyTuple_New(count) : nullptr);
    if (!lemmas) return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) {
        const uint16_t number = values[4 * all + i];
        PyObject* lemma = number ? row_of(self->lemmas, number) : lower(text.get(), values[i], values[all + i]);
        if (!lemma) return nullptr;
        PyTuple_SET_ITEM(lemmas.get(), i, lemma);
    }
    PyTypeObject* type = reinterpret_cast<PyTypeObject*>(self->type);
    Owned owned(type->tp_alloc(type, 0));
    if (!owned) return nullptr;
    Sentence* made = reinterpret_cast<Sentence*>(owned.get());
    made->text = text.release(), made->lemmas = lemmas.release(), made->language = Py_NewRef(self->language);
    made->children = Py_NewRef(Py_None), made->copulas = Py_NewRef(Py_None);
    const bool whole = (made->starts = numbers(values, count)) && (made->ends = numbers(values + all, count)) &&
                       (made->heads = numbers(values + 2 * all, count)) && (made->tags = names(values + 3 * all, count, self->tags)) &&
                       (made->pos = names(values + 3 * all, count, self->parts_of_speech)) &&
                       (made->deps = names(values + 5 * all, count, self->relations));
    return whole ? owned.release() : nullptr;
}

PyMethodDef columns_methods[] = {
    {"sentence", reinterpret_cast<PyCFunction>(columns_sentence), METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject ColumnsType = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace
