// Sentence: the fields of ParsedSentence and the methods that rules call most, as augment/text/parsed.py describes
// them.
//
// It is a type of Python's C API, not one of nanobind's: ParsedSentence, a dataclass, sets the fields and calls no constructor, and
// rules read them more often than they call anything.

#pragma once

#include "common.h"

#include <structmember.h>

#include <algorithm>
#include <vector>

namespace {

// The fields of a ParsedSentence, each null until it is set; children and copulas are looked up once.
struct Sentence {
    PyObject_HEAD
    nb::object text, starts, ends, tags, pos, lemmas, heads, deps, language, children, copulas;
};

// The names of relations, which augment/text/parsed.py sets. labels: a parser's label -> the one in Universal Dependencies. bases:
// label -> the same without its subtype (a dict that makes missing items).
struct Relations {
    nb::dict labels, bases;
    nb::frozenset subjects, auxiliaries;
};

// Never freed: Python's objects are gone before the library is unloaded.
Relations* relations;
PyTypeObject* SentenceType;

// Returns the number of words.
Py_ssize_t length_of(const Sentence& self) {
    const nb::object* const columns[] = {&self.heads, &self.starts, &self.ends, &self.deps};
    const auto size = [](const nb::object& column) {
        return column.is_valid() && PyTuple_Check(column.ptr()) ? PyTuple_GET_SIZE(column.ptr()) : -1;
    };
    const Py_ssize_t count = size(self.heads);
    if (count >= 0 && self.text.is_valid() && PyUnicode_Check(self.text.ptr()) &&
        std::all_of(std::begin(columns), std::end(columns), [&](const nb::object* column) { return size(*column) == count; }))
        return count;
    raise(PyExc_TypeError, "a ParsedSentence needs a string and tuples of one length");
}

// Returns the index of a word, negative ones counted from the end.
Py_ssize_t word_index(const Sentence& self, nb::handle index) {
    const Py_ssize_t count = length_of(self);
    Py_ssize_t i = whole(index);
    if (i < 0) i += count;
    if (i < 0 || i >= count) raise(PyExc_IndexError, "word %S of %zd", index.ptr(), count);
    return i;
}

nb::handle item(const nb::object& column, Py_ssize_t i) { return PyTuple_GET_ITEM(column.ptr(), i); }

nb::object word_of(const Sentence& self, Py_ssize_t i) {
    PyObject* word = PyUnicode_Substring(self.text.ptr(), whole(item(self.starts, i)), whole(item(self.ends, i)));
    if (!word) nb::raise_python_error();
    return nb::steal(word);
}

nb::object word(Sentence& self, nb::handle index) { return word_of(self, word_index(self, index)); }

// Returns text[start:end].lower().
nb::object lower(nb::handle text, Py_ssize_t start, Py_ssize_t end) {
    if (!PyUnicode_IS_ASCII(text.ptr())) return nb::steal(PyUnicode_Substring(text.ptr(), start, end)).attr("lower")();
    const Py_ssize_t size = PyUnicode_GET_LENGTH(text.ptr());
    end = end < size ? end : size;
    const nb::object word = nb::steal(PyUnicode_New(start < end ? end - start : 0, 127));
    if (!word.is_valid()) nb::raise_python_error();
    const Py_UCS1* from = PyUnicode_1BYTE_DATA(text.ptr()) + start;
    Py_UCS1* to = PyUnicode_1BYTE_DATA(word.ptr());
    for (Py_ssize_t i = 0; i < end - start; ++i) to[i] = static_cast<Py_UCS1>(lowered(static_cast<char>(from[i])));
    return word;
}

// Returns a word in small letters, "" where there is none.
nb::object lower_word(Sentence& self, nb::handle index) {
    const Py_ssize_t i = whole(index);
    if (i < 0 || i >= length_of(self)) return nb::str("");
    return lower(self.text, whole(item(self.starts, i)), whole(item(self.ends, i)));
}

nb::object words(Sentence& self, nb::handle) {
    const Py_ssize_t count = length_of(self);
    nb::builder<nb::list> found(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) found.put(word_of(self, i));
    return found.commit();
}

// Returns the children of all words, a list of lists.
nb::handle children_of(Sentence& self) {
    if (self.children.is_valid() && !self.children.is_none()) return self.children;
    const Py_ssize_t count = PyTuple_GET_SIZE(self.heads.ptr());
    nb::builder<nb::list> empty(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) empty.put(nb::list());
    const nb::list lists = empty.commit();
    for (Py_ssize_t child = 0; child < count; ++child) {
        const Py_ssize_t head = whole(item(self.heads, child));
        if (head == child) continue;
        if (head < 0 || head >= count) raise(PyExc_IndexError, "word %zd depends on word %zd of %zd", child, head, count);
        nb::borrow<nb::list>(PyList_GET_ITEM(lists.ptr(), head)).append(child);
    }
    self.children = lists;
    return self.children;
}

nb::object children(Sentence& self, nb::handle index) {
    const Py_ssize_t i = word_index(self, index);
    return nb::borrow(PyList_GET_ITEM(children_of(self).ptr(), i));
}

// Calls `visit` with the number of each child of a word, and the Python object of that number. Python code can change the lists.
template <typename Visit>
void each_child(Sentence& self, Py_ssize_t word, Visit visit) {
    const nb::object lists = nb::borrow(children_of(self)), own = nb::borrow(PyList_GET_ITEM(lists.ptr(), word));
    for (Py_ssize_t j = 0; j < PyList_GET_SIZE(own.ptr()); ++j) {
        const nb::object number = nb::borrow(PyList_GET_ITEM(own.ptr(), j));
        const Py_ssize_t child = whole(number);
        if (child < 0 || child >= PyList_GET_SIZE(lists.ptr()))
            raise(PyExc_IndexError, "word %zd of %zd", child, PyList_GET_SIZE(lists.ptr()));
        visit(child, number);
    }
}

nb::object subtree(Sentence& self, nb::handle index) {
    std::vector<Py_ssize_t> words{word_index(self, index)};
    const size_t most = static_cast<size_t>(length_of(self));
    for (size_t place = 0; place < words.size() && words.size() <= most; ++place)
        each_child(self, words[place], [&](Py_ssize_t child, nb::handle) { words.push_back(child); });
    const auto [first, last] = std::minmax_element(words.begin(), words.end());
    return nb::make_tuple(*first, *last);
}

// Returns the relation of a word in Universal Dependencies' terms.
nb::object relation_of(const Sentence& self, Py_ssize_t i) {
    const nb::handle label = item(self.deps, i);
    return relations->labels.get(label, label);
}

nb::object relation(Sentence& self, nb::handle index) { return relation_of(self, word_index(self, index)); }

nb::object with_relation(Sentence& self, nb::handle wanted) {
    nb::list found;
    const Py_ssize_t count = length_of(self);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const nb::object base = nb::steal(PyObject_GetItem(relations->bases.ptr(), item(self.deps, i).ptr()));
        const int is = base.is_valid() ? PySequence_Contains(wanted.ptr(), base.ptr()) : -1;
        if (is < 0) nb::raise_python_error();
        if (is) found.append(i);
    }
    return found;
}

// Returns the copula of the clause that a word heads, or else the word itself.
nb::object verb(Sentence& self, nb::handle word) {
    const Py_ssize_t count = length_of(self);
    if (!self.copulas.is_valid() || self.copulas.is_none()) {
        nb::dict found;
        for (Py_ssize_t child = 0; child < count; ++child) {
            const nb::handle label = item(self.deps, child), head = item(self.heads, child);
            if (!PyUnicode_Check(label.ptr()) || PyUnicode_CompareWithASCIIString(label.ptr(), "cop") != 0) continue;
            if (whole(head) != child && !PyDict_SetDefault(found.ptr(), head.ptr(), nb::int_(child).ptr())) nb::raise_python_error();
        }
        self.copulas = found;
    }
    return nb::borrow<nb::dict>(self.copulas).get(word, word);
}

// Calls `visit` with each child of a word whose relation is in a set.
template <typename Visit>
void each_child_in(Sentence& self, Py_ssize_t word, const nb::frozenset& wanted, Visit visit) {
    each_child(self, word, [&](Py_ssize_t child, nb::handle number) {
        const int is = PySet_Contains(wanted.ptr(), relation_of(self, child).ptr());
        if (is < 0) nb::raise_python_error();
        if (is) visit(child, number);
    });
}

nb::object auxiliaries(Sentence& self, nb::handle index) {
    nb::list found;
    each_child_in(self, word_index(self, index), relations->auxiliaries, [&](Py_ssize_t, nb::handle number) { found.append(number); });
    return found;
}

nb::object subject(Sentence& self, nb::handle index) {
    const Py_ssize_t i = word_index(self, index), own = whole(verb(self, index));
    nb::object found = nb::none();
    // The last before the verb, or else the first after it.
    each_child_in(self, i, relations->subjects, [&](Py_ssize_t child, nb::handle number) {
        if (child < own || found.is_none()) found = nb::borrow(number);
    });
    return found;
}

// Makes a function of Python's C API of a method.
template <auto method>
PyObject* called(PyObject* self, PyObject* argument) noexcept {
    try {
        return method(*reinterpret_cast<Sentence*>(self), argument).release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

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

PyMethodDef sentence_methods[] = {
    {"word", called<word>, METH_O, "Return word i as it stands in the text."},
    {"lower", called<lower_word>, METH_O, "Return word i in small letters; '' before the first (-1), behind the last."},
    {"children", called<children>, METH_O, "Return the words that depend on word i, left to right."},
    {"subtree", called<subtree>, METH_O, "Return the first and last word of word i and all that depend on it."},
    {"relation", called<relation>, METH_O, "Return word i's relation to its head in UD's terms, else ClearNLP's."},
    {"with_relation", called<with_relation>, METH_O, "Return the words whose relation without its subtype is wanted, in order."},
    {"verb", called<verb>, METH_O, "Return the verb of word i's clause: its copula if it has one (UD), else i."},
    {"auxiliaries", called<auxiliaries>, METH_O, "Return the auxiliaries of word i's clause, without its copula."},
    {"subject", called<subject>, METH_O, "Return the subject of word i's clause: last before the verb, else first, or None."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef sentence_properties[] = {
    {"words", [](PyObject* self, void*) { return called<words>(self, nullptr); }, nullptr, "Return the words as they stand in the text.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

void sentence_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    reinterpret_cast<Sentence*>(self)->~Sentence();
    type->tp_free(self);
    Py_DECREF(type);
}

void add_sentence(nb::module_& module) {
    relations = new Relations();
    module.def("set_relations", [](nb::dict labels, nb::dict bases, nb::frozenset subjects, nb::frozenset auxiliaries) {
        *relations = {labels, bases, subjects, auxiliaries};
    });
    PyType_Slot slots[] = {{Py_tp_members, sentence_fields},
                           {Py_tp_methods, sentence_methods},
                           {Py_tp_getset, sentence_properties},
                           {Py_tp_dealloc, reinterpret_cast<void*>(sentence_dealloc)},
                           {0, nullptr}};
    PyType_Spec spec{"augment._native.Sentence", sizeof(Sentence), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    SentenceType = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!SentenceType) nb::raise_python_error();
    nb::list names;
    for (const PyMemberDef* field = sentence_fields; field->name; ++field) names.append(field->name);
    const nb::handle type(reinterpret_cast<PyObject*>(SentenceType));
    type.attr("__slots__") = nb::tuple(names);  // tells dataclasses which fields the type already has
    module.attr("Sentence") = type;
}

}  // namespace
