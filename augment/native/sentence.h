// The methods of ParsedSentence that rules call most: the counterparts of augment/text/parsed.py.

#pragma once

#include "common.h"

#include <structmember.h>

#include <utility>
#include <vector>

namespace {

// Where its slots lie, and what its relations are called in Universal Dependencies: `compile_sentence` finds them once.
struct {
    PyObject* type;
    Py_ssize_t text, starts, ends, tags, pos, lemmas, heads, deps, language, children, copulas;
    PyObject *relations, *bases, *cop, *aux, *aux_pass, *subjects;
} sentence;

PyObject*& slot(PyObject* self, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(self) + offset);
}

// The number of words; -1 with an error set where the sentence is not what its class says.
Py_ssize_t length_of(PyObject* self) {
    PyObject* const text = slot(self, sentence.text);
    bool whole = text && PyUnicode_Check(text);
    Py_ssize_t count = -1;
    for (const Py_ssize_t offset : {sentence.heads, sentence.starts, sentence.ends, sentence.deps}) {
        PyObject* const column = slot(self, offset);
        whole = whole && column && PyTuple_Check(column) && (count < 0 || PyTuple_GET_SIZE(column) == count);
        if (whole) count = PyTuple_GET_SIZE(column);
    }
    if (whole) return count;
    PyErr_SetString(PyExc_TypeError, "a ParsedSentence has a string and tuples of one length");
    return -1;
}

// The index of a word, as Python reads it; -1 with an error set where there is none.
Py_ssize_t word_index(PyObject* self, PyObject* index) {
    const Py_ssize_t count = length_of(self);
    if (count < 0) return -1;
    Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) return -1;
    if (i < 0) i += count;
    if (i >= 0 && i < count) return i;
    PyErr_Format(PyExc_IndexError, "word %S of %zd", index, count);
    return -1;
}

// -1 may be one, or have an error set.
Py_ssize_t item(PyObject* numbers, Py_ssize_t i) { return PyNumber_AsSsize_t(PyTuple_GET_ITEM(numbers, i), PyExc_IndexError); }

PyObject* word_of(PyObject* self, Py_ssize_t i) {
    const Py_ssize_t start = item(slot(self, sentence.starts), i);
    const Py_ssize_t end = PyErr_Occurred() ? -1 : item(slot(self, sentence.ends), i);
    return PyErr_Occurred() ? nullptr : PyUnicode_Substring(slot(self, sentence.text), start, end);
}

PyObject* sentence_word(PyObject* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    return i < 0 ? nullptr : word_of(self, i);
}

PyObject* sentence_words(PyObject* self, void*) {
    const Py_ssize_t count = length_of(self);
    Owned words(count < 0 ? nullptr : PyList_New(count));
    for (Py_ssize_t i = 0; words && i < count; ++i) {
        PyObject* word = word_of(self, i);
        if (!word) return nullptr;
        PyList_SET_ITEM(words.get(), i, word);
    }
    return words.release();
}

// The children of all words, a borrowed list of lists.
PyObject* children_of(PyObject* self) {
    PyObject*& kept = slot(self, sentence.children);
    if (kept && kept != Py_None) return kept;
    PyObject* heads = slot(self, sentence.heads);
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

PyObject* sentence_children(PyObject* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    return lists ? Py_NewRef(PyList_GET_ITEM(lists, i)) : nullptr;
}

// The j-th of some children; -1 with an error set where the sentence has no such word: the lists can be changed from outside.
Py_ssize_t child_of(PyObject* lists, PyObject* children, Py_ssize_t j) {
    const Py_ssize_t child = PyLong_AsSsize_t(PyList_GET_ITEM(children, j));
    if (child >= 0 && child < PyList_GET_SIZE(lists)) return child;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_IndexError, "word %zd of %zd", child, PyList_GET_SIZE(lists));
    return -1;
}

PyObject* sentence_subtree(PyObject* self, PyObject* index) {
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

// A borrowed relation in Universal Dependencies' terms; nullptr with an error set.
PyObject* relation_of(PyObject* self, Py_ssize_t i) {
    PyObject* label = PyTuple_GET_ITEM(slot(self, sentence.deps), i);
    PyObject* relation = PyDict_GetItemWithError(sentence.relations, label);
    return relation ? relation : PyErr_Occurred() ? nullptr : label;
}

PyObject* sentence_relation(PyObject* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    return i < 0 ? nullptr : Py_XNewRef(relation_of(self, i));
}

PyObject* sentence_with_relation(PyObject* self, PyObject* wanted) {
    PyObject* deps = slot(self, sentence.deps);
    Owned found(length_of(self) < 0 ? nullptr : PyList_New(0));
    for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(deps); ++i) {
        PyObject* label = PyTuple_GET_ITEM(deps, i);
        PyObject* known = PyDict_GetItemWithError(sentence.bases, label);
        if (!known && PyErr_Occurred()) return nullptr;
        Owned base(known ? Py_NewRef(known) : PyObject_GetItem(sentence.bases, label));  // which makes it
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

// The copula of the clause that a word heads, borrowed; the word itself where there is none; nullptr with an error set.
PyObject* verb_of(PyObject* self, PyObject* word) {
    PyObject*& kept = slot(self, sentence.copulas);
    if (!kept || kept == Py_None) {
        PyObject *deps = slot(self, sentence.deps), *heads = slot(self, sentence.heads);
        Owned found(PyDict_New());
        if (!found) return nullptr;
        for (Py_ssize_t child = 0; child < PyTuple_GET_SIZE(deps); ++child) {
            PyObject* head = PyTuple_GET_ITEM(heads, child);
            if (!same(PyTuple_GET_ITEM(deps, child), sentence.cop) || item(heads, child) == child) continue;
            if (PyErr_Occurred()) return nullptr;
            Owned number(PyLong_FromSsize_t(child));
            if (!number || !PyDict_SetDefault(found.get(), head, number.get())) return nullptr;
        }
        Py_XSETREF(kept, found.release());
    }
    PyObject* copula = PyDict_GetItemWithError(kept, word);
    return copula ? copula : PyErr_Occurred() ? nullptr : word;
}

PyObject* sentence_verb(PyObject* self, PyObject* word) { return length_of(self) < 0 ? nullptr : Py_XNewRef(verb_of(self, word)); }

PyObject* sentence_auxiliaries(PyObject* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    Owned found(lists ? PyList_New(0) : nullptr);
    if (!found) return nullptr;
    PyObject* children = PyList_GET_ITEM(lists, i);
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(children); ++j) {
        const Py_ssize_t number = child_of(lists, children, j);
        PyObject* relation = number < 0 ? nullptr : relation_of(self, number);
        if (!relation) return nullptr;
        const bool is = same(relation, sentence.aux) || same(relation, sentence.aux_pass);
        if (is && PyList_Append(found.get(), PyList_GET_ITEM(children, j)) != 0) return nullptr;
    }
    return found.release();
}

PyObject* sentence_subject(PyObject* self, PyObject* index) {
    const Py_ssize_t i = word_index(self, index);
    PyObject* lists = i < 0 ? nullptr : children_of(self);
    PyObject* own = lists ? verb_of(self, index) : nullptr;
    const Py_ssize_t verb = own ? PyNumber_AsSsize_t(own, PyExc_IndexError) : -1;
    if (verb == -1 && PyErr_Occurred()) return nullptr;
    PyObject *children = PyList_GET_ITEM(lists, i), *found = nullptr;
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(children); ++j) {
        const Py_ssize_t number = child_of(lists, children, j);
        PyObject* relation = number < 0 ? nullptr : relation_of(self, number);
        const int is = relation ? PySet_Contains(sentence.subjects, relation) : -1;
        if (is < 0) return nullptr;
        if (is && (number < verb || !found)) found = PyList_GET_ITEM(children, j);  // the last before the verb, else the first after it
    }
    return Py_NewRef(found ? found : Py_None);
}

PyMethodDef sentence_methods[] = {
    {"word", sentence_word, METH_O, nullptr},
    {"children", sentence_children, METH_O, nullptr},
    {"subtree", guarded<sentence_subtree, PyObject*, PyObject*>, METH_O, nullptr},
    {"relation", sentence_relation, METH_O, nullptr},
    {"with_relation", sentence_with_relation, METH_O, nullptr},
    {"verb", sentence_verb, METH_O, nullptr},
    {"auxiliaries", sentence_auxiliaries, METH_O, nullptr},
    {"subject", sentence_subject, METH_O, nullptr},
};
PyGetSetDef sentence_words_property = {"words", sentence_words, nullptr, nullptr, nullptr};

bool find_slot(PyObject* type, const char* name, Py_ssize_t* offset) {
    Owned descriptor(PyObject_GetAttrString(type, name));
    if (!descriptor) return false;
    if (!Py_IS_TYPE(descriptor.get(), &PyMemberDescr_Type)) {
        PyErr_Format(PyExc_TypeError, "%s is no slot", name);
        return false;
    }
    *offset = reinterpret_cast<PyMemberDescrObject*>(descriptor.get())->d_member->offset;
    return true;
}

// (ParsedSentence, relations, bases, subjects): gives the class the methods above in place of those in Python.
PyObject* compile_sentence(PyObject*, PyObject* arguments) {
    PyObject *type, *relations, *bases, *subjects;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!", &PyType_Type, &type, &PyDict_Type, &relations, &PyDict_Type, &bases,
                          &PyFrozenSet_Type, &subjects))
        return nullptr;
    auto found = sentence;
    const std::pair<const char*, Py_ssize_t*> slots[] = {
        {"text", &found.text},          {"starts", &found.starts},    {"ends", &found.ends}, {"tags", &found.tags},
        {"pos", &found.pos},            {"lemmas", &found.lemmas},    {"heads", &found.heads}, {"deps", &found.deps},
        {"language", &found.language},  {"_children", &found.children}, {"_copulas", &found.copulas},
    };
    for (const auto& [name, offset] : slots)
        if (!find_slot(type, name, offset)) return nullptr;
    const std::pair<const char*, PyObject**> names[] = {
        {"cop", &found.cop}, {"aux", &found.aux}, {"aux:pass", &found.aux_pass}};
    for (const auto& [name, place] : names)
        if (!(*place = PyUnicode_InternFromString(name))) return nullptr;
    found.type = Py_NewRef(type);
    found.relations = Py_NewRef(relations);
    found.bases = Py_NewRef(bases);
    found.subjects = Py_NewRef(subjects);
    sentence = found;
    PyTypeObject* owner = reinterpret_cast<PyTypeObject*>(type);
    // What a method in Python says of itself its counterpart says too; the strings stay for good, as the methods do.
    const auto document = [&](const char* name, const char** place) {
        Owned method(PyObject_GetAttrString(type, name)), text(method ? PyObject_GetAttrString(method.get(), "__doc__") : nullptr);
        if (!text) return false;
        if (PyUnicode_Check(text.get())) *place = PyUnicode_AsUTF8(text.release());
        return true;
    };
    for (PyMethodDef& method : sentence_methods) {
        if (!document(method.ml_name, &method.ml_doc)) return nullptr;
        Owned compiled(PyDescr_NewMethod(owner, &method));
        if (!compiled || PyObject_SetAttrString(type, method.ml_name, compiled.get()) != 0) return nullptr;
    }
    if (!document("words", &sentence_words_property.doc)) return nullptr;
    Owned words(PyDescr_NewGetSet(owner, &sentence_words_property));
    if (!words || PyObject_SetAttrString(type, "words", words.get()) != 0) return nullptr;
    Py_RETURN_NONE;
}

}  // namespace
