// Sentence: the fields of ParsedSentence and the methods that rules call most, the counterpart of SentenceInPython in
// augment/text/parsed.py.

#pragma once

#include "common.h"

#include <structmember.h>

#include <vector>

namespace {

// The fields of a ParsedSentence, each a Python object or nullptr; children and copulas are looked up once.
struct Sentence {
    PyObject_HEAD
    PyObject *text, *starts, *ends, *tags, *pos, *lemmas, *heads, *deps, *language, *children, *copulas;
};

PyMemberDef sentence_fields[] = {
    {"text", T_OBJECT_EX, offsetof(Sentence, text), 0, nullptr},
    {"starts", T_OBJECT_EX, offsetof(Sentence, starts), 0, nullptr},
    {"ends", T_OBJECT_EX, offsetof(Sentence, ends), 0, nullptr},
    {"tags", T_OBJECT_EX, offsetof(Sentence, tags), 0, nullptr},
    {"pos", T_OBJECT_EX, offsetof(Sentence, pos), 0, nullptr},
    {"lemmas", T_OBJECT_EX, offsetof(Sentence, lemmas), 0, nullptr},
    {"heads", T_OBJECT_EX, offsetof(Sentence, heads), 0, nullptr},
    {"deps", T_OBJECT_EX, offsetof(Sentence, deps), 0, nullptr},
    {"language", T_OBJECT_EX, offsetof(Sentence, language), 0, nullptr},
    {"_children", T_OBJECT_EX, offsetof(Sentence, children), 0, nullptr},
    {"_copulas", T_OBJECT_EX, offsetof(Sentence, copulas), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

void sentence_dealloc(Sentence* self) {
    for (PyObject* field : {self->text, self->starts, self->ends, self->tags, self->pos, self->lemmas, self->heads, self->deps,
                            self->language, self->children, self->copulas})
        Py_XDECREF(field);
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

// The names of relations, which augment/text/parsed.py sets. labels: a parser's label -> the one in Universal Dependencies. bases:
// label -> the same without its subtype (a dict that makes missing items). subjects: a frozenset.
struct {
    PyObject *labels, *bases, *subjects, *cop, *aux, *aux_pass;
} relations;

bool make_relations() {
    relations = {PyDict_New(), PyDict_New(), PyFrozenSet_New(nullptr), PyUnicode_InternFromString("cop"),
                 PyUnicode_InternFromString("aux"), PyUnicode_InternFromString("aux:pass")};
    return relations.labels && relations.bases && relations.subjects && relations.cop && relations.aux && relations.aux_pass;
}

// (labels, bases, subjects)
PyObject* set_relations(PyObject*, PyObject* arguments) {
    PyObject *labels, *bases, *subjects;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyDict_Type, &labels, &PyDict_Type, &bases, &PyFrozenSet_Type, &subjects))
        return nullptr;
    Py_SETREF(relations.labels, Py_NewRef(labels));
    Py_SETREF(relations.bases, Py_NewRef(bases));
    Py_SETREF(relations.subjects, Py_NewRef(subjects));
    Py_RETURN_NONE;
}

// Returns the number of words; -1 with an error set where the fields are not those of a sentence.
Py_ssize_t length_of(Sentence* self) {
    PyObject* const text = self->text;
    bool whole = text && PyUnicode_Check(text);
    Py_ssize_t count = -1;
    for (PyObject* const column : {self->heads, self->starts, self->ends, self->deps}) {
        whole = whole && column && PyTuple_Check(column) && (count < 0 || PyTuple_GET_SIZE(column) == count);
        if (whole) count = PyTuple_GET_SIZE(column);
    }
    if (whole) return count;
    PyErr_SetString(PyExc_TypeError, "a ParsedSentence needs a string and tuples of one length");
    return -1;
}

// Returns the index of a word, negative ones counted from the end; -1 with an error set where there is none.
Py_ssize_t word_index(Sentence* self, PyObject* index) {
    const Py_ssize_t count = length_of(self);
    if (count < 0) return -1;
    Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) return -1;
    if (i < 0) i += count;
    if (i >= 0 && i < count) return i;
    PyErr_Format(PyExc_IndexError, "word %S of %zd", index, count);
    return -1;
}

// Returns an item; -1 may be an item, or have an error set.
Py_ssize_t item(PyObject* numbers, Py_ssize_t i) { return PyNumber_AsSsize_t(PyTuple_GET_ITEM(numbers, i), PyExc_IndexError); }

PyObject* word_of(Sentence* self, Py_ssize_t i) {
    const Py_ssize_t start = item(self->starts, i);
    const Py_ssize_t end = PyErr_Occurred() ? -1 : item(self->ends, i);
    return PyErr_Occurred() ? nullptr : PyUnicode_Substring(self->text, start, end);
}

PyObject* sentence_word(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    return i < 0 ? nullptr : word_of(self, i);
}

PyObject* sentence_words(Sentence* self, void*) {
    const Py_ssize_t count = length_of(self);
    Owned words(count < 0 ? nullptr : PyList_New(count));
    for (Py_ssize_t i = 0; words && i < count; ++i) {
        PyObject* word = word_of(self, i);
        if (!word) return nullptr;
        PyList_SET_ITEM(words.get(), i, word);
    }
    return words.release();
}

// Returns the children of all words, a borrowed list of lists.
PyObject* children_of(Sentence* self) {
    PyObject*& kept = self->children;
    if (kept && kept != Py_None) return kept;
    PyObject* heads = self->heads;
    const Py_ssize_t count = PyTuple_GET_SIZE(heads);
    Owned lists(PyList_New(count));
    if (!lists) return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* list = PyList_New(0);
        if (!list) return nullptr;
        PyList_SET_ITEM(lists.get(), i, list);
    }
    for (Py_ssize_t child = 0; child < count; ++child) {
        const Py_ssize_t head = item(heads, child);
        if (head == -1 && PyErr_Occurred()) return nullptr;
        if (head == child) continue;
        if (head < 0 || head >= count) {
            PyErr_Format(PyExc_IndexError, "word %zd depends on word %zd of %zd", child, head, count);
            return nullptr;
        }
        Owned number(PyLong_FromSsize_t(child));
        if (!number || PyList_Append(PyList_GET_ITEM(lists.get(), head), number.get()) != 0) return nullptr;
    }
    Py_XSETREF(kept, lists.release());
    return kept;
}

PyObject* sentence_children(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    return lists ? Py_NewRef(PyList_GET_ITEM(lists, i)) : nullptr;
}

// Returns the j-th of some children; -1 with an error set where there is no such word: Python code can change the lists.
Py_ssize_t child_of(PyObject* lists, PyObject* children, Py_ssize_t j) {
    const Py_ssize_t child = PyLong_AsSsize_t(PyList_GET_ITEM(children, j));
    if (child >= 0 && child < PyList_GET_SIZE(lists)) return child;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_IndexError, "word %zd of %zd", child, PyList_GET_SIZE(lists));
    return -1;
}

PyObject* sentence_subtree(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    if (!lists) return nullptr;
    Py_ssize_t first = i, last = i;
    std::vector<Py_ssize_t> words{i};
    const size_t most = static_cast<size_t>(PyList_GET_SIZE(lists));
    for (size_t place = 0; place < words.size() && words.size() <= most; ++place) {
        PyObject* children = PyList_GET_ITEM(lists, words[place]);
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(children); ++j) {
            const Py_ssize_t child = child_of(lists, children, j);
            if (child < 0) return nullptr;
            first = child < first ? child : first, last = child > last ? child : last;
            words.push_back(child);
        }
    }
    return Py_BuildValue("nn", first, last);
}

// Returns a borrowed relation in Universal Dependencies' terms, or nullptr with an error set.
PyObject* relation_of(Sentence* self, Py_ssize_t i) {
    PyObject* label = PyTuple_GET_ITEM(self->deps, i);
    PyObject* relation = PyDict_GetItemWithError(relations.labels, label);
    return relation ? relation : PyErr_Occurred() ? nullptr : label;
}

PyObject* sentence_relation(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    return i < 0 ? nullptr : Py_XNewRef(relation_of(self, i));
}

PyObject* sentence_with_relation(Sentence* self, PyObject* wanted) {
    PyObject* deps = self->deps;
    Owned found(length_of(self) < 0 ? nullptr : PyList_New(0));
    for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(deps); ++i) {
        PyObject* label = PyTuple_GET_ITEM(deps, i);
        PyObject* known = PyDict_GetItemWithError(relations.bases, label);
        if (!known && PyErr_Occurred()) return nullptr;
        Owned base(known ? Py_NewRef(known) : PyObject_GetItem(relations.bases, label));  // which adds it
        const int is = base ? PySequence_Contains(wanted, base.get()) : -1;
        if (is < 0) return nullptr;
        Owned number(is ? PyLong_FromSsize_t(i) : nullptr);
        if (is && (!number || PyList_Append(found.get(), number.get()) != 0)) return nullptr;
    }
    return found.release();
}

bool same(PyObject* one, PyObject* other) {
    return one == other || (PyUnicode_Check(one) && PyUnicode_Compare(one, other) == 0);
}

// Returns the copula of the clause that a word heads, or else the word itself, borrowed; nullptr with an error set.
PyObject* verb_of(Sentence* self, PyObject* word) {
    PyObject*& kept = self->copulas;
    if (!kept || kept == Py_None) {
        PyObject *deps = self->deps, *heads = self->heads;
        Owned found(PyDict_New());
        if (!found) return nullptr;
        for (Py_ssize_t child = 0; child < PyTuple_GET_SIZE(deps); ++child) {
            PyObject* head = PyTuple_GET_ITEM(heads, child);
            if (!same(PyTuple_GET_ITEM(deps, child), relations.cop) || item(heads, child) == child) continue;
            if (PyErr_Occurred()) return nullptr;
            Owned number(PyLong_FromSsize_t(child));
            if (!number || !PyDict_SetDefault(found.get(), head, number.get())) return nullptr;
        }
        Py_XSETREF(kept, found.release());
    }
    PyObject* copula = PyDict_GetItemWithError(kept, word);
    return copula ? copula : PyErr_Occurred() ? nullptr : word;
}

PyObject* sentence_verb(Sentence* self, PyObject* word) { return length_of(self) < 0 ? nullptr : Py_XNewRef(verb_of(self, word)); }

PyObject* sentence_auxiliaries(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    Owned found(lists ? PyList_New(0) : nullptr);
    if (!found) return nullptr;
    PyObject* children = PyList_GET_ITEM(lists, i);
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(children); ++j) {
        const Py_ssize_t number = child_of(lists, children, j);
        PyObject* relation = number < 0 ? nullptr : relation_of(self, number);
        if (!relation) return nullptr;
        const bool is = same(relation, relations.aux) || same(relation, relations.aux_pass);
        if (is && PyList_Append(found.get(), PyList_GET_ITEM(children, j)) != 0) return nullptr;
    }
    return found.release();
}

PyObject* sentence_subject(Sentence* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    PyObject* own = lists ? verb_of(self, index) : nullptr;
    const Py_ssize_t verb = own ? PyNumber_AsSsize_t(own, PyExc_IndexError) : -1;
    if (verb == -1 && PyErr_Occurred()) return nullptr;
    PyObject *children = PyList_GET_ITEM(lists, i), *found = nullptr;
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(children); ++j) {
        const Py_ssize_t number = child_of(lists, children, j);
        PyObject* relation = number < 0 ? nullptr : relation_of(self, number);
        const int is = relation ? PySet_Contains(relations.subjects, relation) : -1;
        if (is < 0) return nullptr;
        if (is && (number < verb || !found)) found = PyList_GET_ITEM(children, j);  // the last before the verb, else the first after it
    }
    return Py_NewRef(found ? found : Py_None);
}

PyMethodDef sentence_methods[] = {
    {"word", reinterpret_cast<PyCFunction>(sentence_word), METH_O, "Return word i as it stands in the text."},
    {"children", reinterpret_cast<PyCFunction>(sentence_children), METH_O, "Return the words that depend on word i, left to right."},
    {"subtree", reinterpret_cast<PyCFunction>(guarded<sentence_subtree, Sentence*, PyObject*>), METH_O,
     "Return the first and last word among word i and all that depend on it."},
    {"relation", reinterpret_cast<PyCFunction>(sentence_relation), METH_O, "Return the relation of word i to its head, in UD's terms."},
    {"with_relation", reinterpret_cast<PyCFunction>(sentence_with_relation), METH_O,
     "Return the words whose relation, without subtype, is one of `wanted`."},
    {"verb", reinterpret_cast<PyCFunction>(sentence_verb), METH_O, "Return the verb of the clause that word i heads."},
    {"auxiliaries", reinterpret_cast<PyCFunction>(sentence_auxiliaries), METH_O, "Return the auxiliaries of the clause that word i heads."},
    {"subject", reinterpret_cast<PyCFunction>(sentence_subject), METH_O, "Return the subject of the clause that word i heads, or None."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef sentence_properties[] = {
    {"words", reinterpret_cast<getter>(sentence_words), nullptr, "Return the words as they stand in the text.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject SentenceType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// `__slots__` tells dataclasses which fields the type already has.
bool ready_sentence() {
    SentenceType.tp_flags = Py_TPFLAGS_BASETYPE;
    SentenceType.tp_members = sentence_fields;
    SentenceType.tp_getset = sentence_properties;
    Owned names(PyTuple_New(sizeof(sentence_fields) / sizeof(*sentence_fields) - 1));
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
        PyObject* name = PyUnicode_FromString(sentence_fields[i].name);
        if (!name) return false;
        PyTuple_SET_ITEM(names.get(), i, name);
    }
    Owned dict(PyDict_New());
    if (!names || !dict || PyDict_SetItemString(dict.get(), "__slots__", names.get()) != 0) return false;
    SentenceType.tp_dict = dict.release();
    return make_relations();
}

}  // namespace
