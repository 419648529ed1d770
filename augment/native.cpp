// augment._native: the innermost loops of text augmentation, compiled. Optional: augment/compiled.py tells whether it is there.
//
// Each thing here has a counterpart in Python that says what it computes and gives the same results; tests/augment/test_native.py
// holds the two side by side. Draws: augment/text.py. Pieces: augment/pieces.py. ParsedSentence's methods: augment/parsed.py.
// Columns: pretrain/annotation.py.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr long kInterface = 6;  // augment.compiled.INTERFACE: a file compiled from other sources is not used

// A reference that is given up at the end of its scope.
struct Release {
    void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

// The bytes of an object with a contiguous buffer.
class Bytes {
   public:
    explicit Bytes(PyObject* object) { held_ = PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) == 0; }
    ~Bytes() {
        if (held_) PyBuffer_Release(&view_);
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    explicit operator bool() const { return held_; }
    template <typename T>
    const T* as() const {
        return static_cast<const T*>(view_.buf);
    }
    template <typename T>
    Py_ssize_t size() const {
        return view_.len / static_cast<Py_ssize_t>(sizeof(T));
    }

   private:
    Py_buffer view_{};
    bool held_ = false;
};

// -- Draws -------------------------------------------------------------

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

PyMethodDef draws_methods[] = {
    {"bits", reinterpret_cast<PyCFunction>(draws_bits), METH_NOARGS, nullptr},
    {"uniform", reinterpret_cast<PyCFunction>(draws_uniform), METH_NOARGS, nullptr},
    {"below", reinterpret_cast<PyCFunction>(draws_below), METH_O, nullptr},
    {"chance", reinterpret_cast<PyCFunction>(draws_chance), METH_O, nullptr},
    {"choice", reinterpret_cast<PyCFunction>(draws_choice), METH_O, nullptr},
    {"sample", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(draws_sample)), METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject DrawsType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- Pieces ------------------------------------------------------------

// Pieces with their tokens, those that were met lately: `most` of them, and as many of before.
class Memory {
   public:
    struct Tokens {
        bool alone = false;  // false: the piece has no tokens of its own, and its text goes to the tokenizer as a whole
        std::vector<int32_t> ids;
    };

    explicit Memory(size_t most) : most_(most) {}

    void turn() {
        if (now_.found.size() > most_) {
            before_ = std::move(now_);
            now_ = Generation();
        }
    }

    const Tokens* find(std::string_view piece) {
        auto place = now_.found.find(piece);
        if (place != now_.found.end()) return &place->second;
        auto earlier = before_.found.find(piece);
        return earlier == before_.found.end() ? nullptr : &put(piece, earlier->second);
    }

    const Tokens& put(std::string_view piece, Tokens tokens) {
        auto place = now_.found.find(piece);
        if (place == now_.found.end()) {
            now_.keys.emplace_back(piece);
            place = now_.found.emplace(now_.keys.back(), Tokens()).first;
        }
        return place->second = std::move(tokens);
    }

   private:
    struct Generation {
        std::deque<std::string> keys;  // which do not move
        std::unordered_map<std::string_view, Tokens> found;
    };
    size_t most_;
    Generation now_, before_;
};

struct Span {
    int32_t start, stop;
};

// What the tokens of a vocabulary stand for: how many characters, spaces aside, and whether a space is the first (byte-level
// BPE, whose characters are bytes; of WordPiece no token has any).
struct Vocabulary {
    std::vector<int32_t> characters;
    std::vector<uint8_t> spaced;
    bool bytes;
};

// Tokens of printable ASCII without spaces, and of `letters` beyond it, as the tokenizer itself makes them (`augment.words`): its
// pre-tokenizer, which parts a piece into words, and its model, which spells each. Whatever else there is in a piece, or lacking
// in the vocabulary, is left to the tokenizer.
class Speller {
   public:
    virtual ~Speller() = default;

    // Added tokens are told apart before words are, and pieces that are longer than `longest` do not come again.
    bool spell(std::string_view piece, bool spaced, std::vector<int32_t>* ids) const {
        if (piece.empty() || piece.size() > longest) return false;
        for (size_t i = 0; i < piece.size(); ++i) {
            const unsigned char letter = static_cast<unsigned char>(piece[i]);
            if (letter <= 0x20 || letter == 0x7F) return false;
            if (letter < 0x80) continue;
            const size_t more = letter >= 0xF0 ? 3 : letter >= 0xE0 ? 2 : 1;
            size_t point = letter & (0x3F >> more);
            for (size_t byte = 0; byte < more; ++byte) point = point << 6 | (static_cast<unsigned char>(piece[++i]) & 0x3F);
            if (point >= letters.size() || !letters[point]) return false;
        }
        for (const std::string& token : added)
            if (piece.find(token) != std::string_view::npos) return false;
        return parts(piece, spaced, ids);
    }

    std::unordered_map<std::string, int32_t> vocabulary;
    std::vector<bool> letters;  // by code point
    std::vector<std::string> added;
    size_t longest = 0;

   protected:
    virtual bool parts(std::string_view piece, bool spaced, std::vector<int32_t>* ids) const = 0;

    static int kind(char letter) {  // of letters, digits and others words are made
        if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter & 0x80)) return 0;
        return letter >= '0' && letter <= '9' ? 1 : 2;
    }
};

// Byte-level BPE: GPT-2's words with the space before them, and of the pairs beside each other the one learned first is joined.
// The vocabulary's tokens are bytes here, not the letters that stand for them.
class PairSpeller : public Speller {
   public:
    struct Merge {
        int32_t rank, joined;  // rank -1: none
    };
    int32_t bytes[256];        // the token of each, -1: none
    bool whole_first = false;  // whether a word of the vocabulary is its own token, however it is joined

    explicit PairSpeller(size_t merges) {
        size_t places = 16;
        while (places < 2 * merges) places *= 2;
        table_.assign(places, {0, {-1, 0}});
    }

    void add(int32_t one, int32_t other, Merge merge) { *const_cast<Entry*>(entry(pair(one, other))) = {pair(one, other), merge}; }

   protected:
    bool parts(std::string_view piece, bool spaced, std::vector<int32_t>* ids) const override {
        std::string text(spaced ? 1 : 0, ' ');
        text += piece;
        for (size_t start = 0; start < text.size();) {
            size_t stop = start + contraction(text, start);
            if (stop == start) {
                stop += text[start] == ' ';
                const int first = kind(text[stop]);
                while (stop < text.size() && kind(text[stop]) == first) ++stop;
            }
            if (!word(std::string_view(text).substr(start, stop - start), ids)) return false;
            start = stop;
        }
        return true;
    }

   private:
    // Pairs of tokens with how they join, by open addressing. No pair is 0.
    struct Entry {
        uint64_t pair;
        Merge merge;
    };

    static uint64_t pair(int32_t one, int32_t other) {
        return (static_cast<uint64_t>(static_cast<uint32_t>(one)) << 32 | static_cast<uint32_t>(other)) + 1;
    }

    const Entry* entry(uint64_t pair) const {
        size_t place = static_cast<size_t>(mix(pair)) & (table_.size() - 1);
        while (table_[place].pair && table_[place].pair != pair) place = (place + 1) & (table_.size() - 1);
        return &table_[place];
    }

    std::vector<Entry> table_;
    mutable std::vector<Merge> next_;

    static size_t contraction(std::string_view text, size_t start) {
        if (text[start] == '\'')
            for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"})
                if (text.substr(start + 1, ending.size()) == ending) return ending.size() + 1;
        return 0;
    }

    bool word(std::string_view text, std::vector<int32_t>* ids) const {
        if (whole_first) {
            auto place = vocabulary.find(std::string(text));
            if (place != vocabulary.end()) {
                ids->push_back(place->second);
                return true;
            }
        }
        const size_t begin = ids->size();
        for (const char letter : text) {
            const int32_t id = bytes[static_cast<unsigned char>(letter)];
            if (id < 0) return false;
            ids->push_back(id);
        }
        // next[i]: how the symbols i and i + 1 of the word join.
        std::vector<Merge>& next = next_;
        next.clear();
        const auto look = [&](size_t i) { return entry(pair((*ids)[begin + i], (*ids)[begin + i + 1]))->merge; };
        for (size_t i = 0; i + 1 < text.size(); ++i) next.push_back(look(i));
        while (true) {
            size_t at = next.size();
            for (size_t i = 0; i < next.size(); ++i)
                if (next[i].rank >= 0 && (at == next.size() || next[i].rank < next[at].rank)) at = i;
            if (at == next.size()) return true;
            (*ids)[begin + at] = next[at].joined;
            ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(begin + at + 1));
            next.erase(next.begin() + static_cast<std::ptrdiff_t>(at));
            if (at < next.size()) next[at] = look(at);
            if (at > 0) next[at - 1] = look(at - 1);
        }
    }
};

// WordPiece: punctuation characters are words, and of every word the longest beginning that the vocabulary has is cut off.
class LongestSpeller : public Speller {
   public:
    std::string inside;  // in front of tokens that do not begin a word
    int32_t unknown = 0;
    size_t most_characters = 0;
    bool lowercase = false;

   protected:
    bool parts(std::string_view piece, bool, std::vector<int32_t>* ids) const override {
        std::string text(piece);
        for (char& letter : text)
            if (lowercase && letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter + 32);
        for (size_t start = 0; start < text.size();) {
            size_t stop = start + 1;
            while (kind(text[start]) != 2 && stop < text.size() && kind(text[stop]) != 2) ++stop;
            word(text.substr(start, stop - start), ids);
            start = stop;
        }
        return true;
    }

   private:
    void word(const std::string& text, std::vector<int32_t>* ids) const {
        const size_t begin = ids->size();
        bool known = text.size() <= most_characters;
        for (size_t start = 0; known && start < text.size();) {
            size_t stop = text.size();
            auto place = vocabulary.end();
            for (; stop > start && place == vocabulary.end(); stop -= place == vocabulary.end())
                place = vocabulary.find((start ? inside : "") + text.substr(start, stop - start));
            known = place != vocabulary.end();
            if (known) ids->push_back(place->second);
            start = stop;
        }
        if (!known) {
            ids->resize(begin);
            ids->push_back(unknown);
        }
    }
};

// The pieces of a text that has been tokenized already, with the places of their tokens (`Pieces._cut`).
class Origin {
   public:
    // Where the tokens are not those of the text, character for character, there are no pieces. Characters that a normalizer may
    // have changed can be told apart from that where tokens tell of spaces: then there are as many as in the text.
    void read(std::string_view text, const int32_t* ids, Py_ssize_t count, const Vocabulary& vocabulary) {
        pieces_.clear();
        spans_.clear();
        if (!aligned(text, ids, count, vocabulary)) {
            pieces_.clear();
            return;
        }
        size_t places = 8;
        while (places < 2 * pieces_.size()) places *= 2;
        table_.assign(places, 0);
        for (size_t number = 0; number < pieces_.size(); ++number) {
            size_t place = hash(pieces_[number]) & (places - 1);
            while (table_[place]) place = (place + 1) & (places - 1);
            table_[place] = static_cast<uint32_t>(number + 1);
        }
    }

    // opens: whether the piece opens its text. alike: whether that makes no difference.
    const Span* find(std::string_view piece, bool opens, bool alike) const {
        if (pieces_.empty()) return nullptr;
        const size_t mask = table_.size() - 1;
        for (size_t place = hash(piece) & mask; table_[place]; place = (place + 1) & mask) {
            const size_t number = table_[place] - 1;
            if (pieces_[number] == piece && (alike || opens == (number == 0))) return &spans_[number];
        }
        return nullptr;
    }

   private:
    bool aligned(std::string_view text, const int32_t* ids, Py_ssize_t count, const Vocabulary& vocabulary) {
        for (const unsigned char letter : text)
            if (letter < 0x20 || letter == 0x7F || (letter > 0x7F && !vocabulary.bytes)) return false;
        Py_ssize_t token = 0;
        for (size_t start = 0; start <= text.size();) {
            const size_t space = text.find(' ', start), stop = space == std::string_view::npos ? text.size() : space;
            const Py_ssize_t first = token, wanted = static_cast<Py_ssize_t>(stop - start);
            Py_ssize_t have = 0;
            while (have < wanted && token < count) {
                const int32_t id = ids[token];
                if (id < 0 || static_cast<size_t>(id) >= vocabulary.characters.size()) return false;
                const bool within = token > first;
                if (vocabulary.bytes && (within || first > 0) && within == (vocabulary.spaced[static_cast<size_t>(id)] != 0))
                    return false;
                have += vocabulary.characters[static_cast<size_t>(id)];
                ++token;
            }
            if (wanted == 0 || have != wanted) return false;
            pieces_.push_back(text.substr(start, stop - start));
            spans_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(token)});
            start = stop + 1;
        }
        return token == count;
    }

    static size_t hash(std::string_view piece) {
        uint64_t value = 0xCBF29CE484222325ull;
        for (const unsigned char letter : piece) value = (value ^ letter) * 0x100000001B3ull;
        return static_cast<size_t>(value ^ (value >> 32));
    }

    std::vector<std::string_view> pieces_;
    std::vector<Span> spans_;
    std::vector<uint32_t> table_;  // open addressing: numbers of pieces, from 1
};

struct Pieces {
    PyObject_HEAD
    Vocabulary* vocabulary;
    Memory* inside;
    Memory* opening;   // the same, where `alike`
    Speller* speller;  // or nullptr: pieces that are not known are left to the tokenizer
    bool alike;
    int32_t first, last;  // of every row: [CLS], [SEP]
    size_t room;          // tokens between them
};

void pieces_dealloc(Pieces* self) {
    delete self->vocabulary;
    delete self->speller;
    if (self->opening != self->inside) delete self->opening;
    delete self->inside;
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

PyObject* pieces_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *given, *given_spaced;
    int alike, first, last;
    Py_ssize_t room, most;
    if (!PyArg_ParseTuple(arguments, "OOpiinn", &given, &given_spaced, &alike, &first, &last, &room, &most)) return nullptr;
    Bytes characters(given), spaced(given_spaced);
    if (!characters || !spaced) return nullptr;
    if (spaced.size<uint8_t>() != characters.size<int32_t>()) {
        PyErr_SetString(PyExc_ValueError, "every token needs its characters, and whether a space is the first");
        return nullptr;
    }
    Pieces* self = reinterpret_cast<Pieces*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    const int32_t* begin = characters.as<int32_t>();
    const uint8_t* flags = spaced.as<uint8_t>();
    self->vocabulary = new Vocabulary{{begin, begin + characters.size<int32_t>()}, {flags, flags + spaced.size<uint8_t>()}, false};
    for (const uint8_t flag : self->vocabulary->spaced) self->vocabulary->bytes |= flag != 0;
    self->inside = new Memory(static_cast<size_t>(most));
    self->opening = alike ? self->inside : new Memory(static_cast<size_t>(most));
    self->alike = alike != 0;
    self->first = first, self->last = last;
    self->room = static_cast<size_t>(room > 0 ? room : 0);
    return reinterpret_cast<PyObject*>(self);
}

bool utf8(PyObject* text, std::string_view* found) {
    Py_ssize_t size;
    const char* letters = PyUnicode_AsUTF8AndSize(text, &size);
    if (letters) *found = std::string_view(letters, static_cast<size_t>(size));
    return letters != nullptr;
}

bool add_missing(PyObject* set, std::string_view piece) {
    Owned text(PyUnicode_DecodeUTF8(piece.data(), static_cast<Py_ssize_t>(piece.size()), nullptr));
    return text && PySet_Add(set, text.get()) == 0;
}

// (texts, origins, ids, offsets, before) -> (rows, opening, inside): the rows as bytes of int32, `[CLS] tokens [SEP]`, None where
// a piece is not known; and the pieces to `learn`, two sets of strings. before: none, or the rows of an earlier call, of which
// those that are there stay. A row that stays None is for the tokenizer.
PyObject* pieces_rows(Pieces* self, PyObject* arguments) {
    PyObject *texts, *origins, *id_buffer, *offset_buffer, *before;
    if (!PyArg_ParseTuple(arguments, "O!O!OOO!", &PyList_Type, &texts, &PyList_Type, &origins, &id_buffer, &offset_buffer,
                          &PyList_Type, &before))
        return nullptr;
    Bytes ids(id_buffer), offsets(offset_buffer);
    if (!ids || !offsets) return nullptr;
    const Py_ssize_t count = PyList_GET_SIZE(texts), given = PyList_GET_SIZE(origins);
    bool whole_offsets = !given || (given == count && offsets.size<int64_t>() == count + 1 && offsets.as<int64_t>()[0] >= 0 &&
                                    offsets.as<int64_t>()[count] <= ids.size<int32_t>());
    for (Py_ssize_t number = 0; whole_offsets && given && number < count; ++number)
        whole_offsets = offsets.as<int64_t>()[number] <= offsets.as<int64_t>()[number + 1];
    if (!whole_offsets || (PyList_GET_SIZE(before) && PyList_GET_SIZE(before) != count)) {
        PyErr_SetString(PyExc_ValueError, "texts, origins and their tokens do not belong together");
        return nullptr;
    }
    self->inside->turn();
    if (!self->alike) self->opening->turn();
    Owned rows(PyList_New(count)), opening(PySet_New(nullptr)), inside(PySet_New(nullptr));
    if (!rows || !opening || !inside) return nullptr;
    Origin origin;
    std::vector<int32_t> row;
    std::vector<std::pair<std::string_view, bool>> unknown;
    for (Py_ssize_t number = 0; number < count; ++number) {
        if (PyList_GET_SIZE(before) && PyList_GET_ITEM(before, number) != Py_None) {
            PyList_SET_ITEM(rows.get(), number, Py_NewRef(PyList_GET_ITEM(before, number)));
            continue;
        }
        std::string_view text;
        if (!utf8(PyList_GET_ITEM(texts, number), &text)) return nullptr;
        const int32_t* own = nullptr;
        if (given) {
            std::string_view original;
            if (!utf8(PyList_GET_ITEM(origins, number), &original)) return nullptr;
            const int64_t start = offsets.as<int64_t>()[number] + 1, stop = offsets.as<int64_t>()[number + 1] - 1;
            own = ids.as<int32_t>() + start;
            origin.read(original, own, stop > start ? stop - start : 0, *self->vocabulary);
        }
        row.assign(1, self->first);
        unknown.clear();
        bool whole = false;
        size_t pieces = 0;
        for (size_t start = 0; start <= text.size(); ++pieces) {
            const size_t space = text.find(' ', start);
            const size_t stop = space == std::string_view::npos ? text.size() : space;
            const std::string_view piece = text.substr(start, stop - start);
            const bool opens = start == 0;
            start = stop + 1;
            if (const Span* span = given ? origin.find(piece, opens, self->alike) : nullptr) {
                row.insert(row.end(), own + span->start, own + span->stop);
            } else if (const Memory::Tokens* known = (opens ? self->opening : self->inside)->find(piece)) {
                whole |= !known->alone;
                row.insert(row.end(), known->ids.begin(), known->ids.end());
            } else if (Memory::Tokens own; self->speller && self->speller->spell(piece, self->alike || !opens, &own.ids)) {
                own.alone = true;
                row.insert(row.end(), own.ids.begin(), own.ids.end());
                const bool plain = std::all_of(piece.begin(), piece.end(), [](char letter) { return !(letter & 0x80); });
                if (plain) (opens ? self->opening : self->inside)->put(piece, std::move(own));
            } else {
                whole |= piece.empty();
                unknown.emplace_back(piece, opens);
            }
        }
        // Texts of look-alike letters and the like: such pieces do not come again.
        whole |= given && 2 * unknown.size() > pieces && !PyUnicode_IS_ASCII(PyList_GET_ITEM(texts, number));
        if (whole || !unknown.empty()) {
            PyList_SET_ITEM(rows.get(), number, Py_NewRef(Py_None));
            if (whole) unknown.clear();
            for (const auto& [piece, opens] : unknown)
                if (!add_missing((opens ? opening : inside).get(), piece)) return nullptr;
            continue;
        }
        if (row.size() > self->room + 1) row.resize(self->room + 1);
        row.push_back(self->last);
        const Py_ssize_t size = static_cast<Py_ssize_t>(row.size() * sizeof(int32_t));
        PyObject* bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(row.data()), size);
        if (!bytes) return nullptr;
        PyList_SET_ITEM(rows.get(), number, bytes);
    }
    return PyTuple_Pack(3, rows.get(), opening.get(), inside.get());
}

// (opens, pieces, tokens): keeps the tokens (bytes of int32; None: the piece does not stand alone) of pieces, two lists.
PyObject* pieces_learn(Pieces* self, PyObject* arguments) {
    int opens;
    PyObject *pieces, *tokens;
    if (!PyArg_ParseTuple(arguments, "pO!O!", &opens, &PyList_Type, &pieces, &PyList_Type, &tokens)) return nullptr;
    const Py_ssize_t count = PyList_GET_SIZE(pieces);
    if (PyList_GET_SIZE(tokens) != count) {
        PyErr_SetString(PyExc_ValueError, "every piece needs its tokens");
        return nullptr;
    }
    for (Py_ssize_t number = 0; number < count; ++number) {
        std::string_view piece;
        if (!utf8(PyList_GET_ITEM(pieces, number), &piece)) return nullptr;
        Memory::Tokens found;
        if (PyObject* own = PyList_GET_ITEM(tokens, number); own != Py_None) {
            Bytes ids(own);
            if (!ids) return nullptr;
            found.alone = true;
            found.ids.assign(ids.as<int32_t>(), ids.as<int32_t>() + ids.size<int32_t>());
        }
        (opens ? self->opening : self->inside)->put(piece, std::move(found));
    }
    Py_RETURN_NONE;
}

// Fills a speller's vocabulary (a dict of bytes and numbers) and added tokens (a list of strings).
bool fill(Speller* speller, PyObject* vocabulary, PyObject* added, Py_ssize_t longest) {
    PyObject *token, *number;
    std::string_view text;
    for (Py_ssize_t place = 0; PyDict_Next(vocabulary, &place, &token, &number);) {
        const long id = PyLong_AsLong(number);
        Bytes bytes(token);
        if ((id == -1 && PyErr_Occurred()) || !bytes) return false;
        speller->vocabulary.emplace(std::string(bytes.as<char>(), static_cast<size_t>(bytes.size<char>())), static_cast<int32_t>(id));
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(added); ++i) {
        if (!utf8(PyList_GET_ITEM(added, i), &text)) return false;
        speller->added.emplace_back(text);
    }
    speller->longest = static_cast<size_t>(longest > 0 ? longest : 0);
    return true;
}

PyObject* spelled_by(Pieces* self, std::unique_ptr<Speller> speller) {
    delete std::exchange(self->speller, speller.release());
    Py_RETURN_NONE;
}

// (vocabulary, merges, whole_first, letters, added, longest): pieces are spelled by byte-level BPE from here on. merges: token ids
// (one, other, joined), the first learned first. letters: a string.
PyObject* pieces_spell_pairs(Pieces* self, PyObject* arguments) {
    PyObject *vocabulary, *merges, *letters, *added;
    int whole_first;
    Py_ssize_t longest;
    if (!PyArg_ParseTuple(arguments, "O!O!pUO!n", &PyDict_Type, &vocabulary, &PyList_Type, &merges, &whole_first, &letters,
                          &PyList_Type, &added, &longest))
        return nullptr;
    auto speller = std::make_unique<PairSpeller>(static_cast<size_t>(PyList_GET_SIZE(merges)));
    if (!fill(speller.get(), vocabulary, added, longest)) return nullptr;
    for (int byte = 0; byte < 256; ++byte) {
        auto place = speller->vocabulary.find(std::string(1, static_cast<char>(byte)));
        speller->bytes[byte] = place == speller->vocabulary.end() ? -1 : place->second;
    }
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(letters); ++i) {
        const size_t letter = PyUnicode_READ_CHAR(letters, i);
        if (letter >= speller->letters.size()) speller->letters.resize(letter + 1);
        speller->letters[letter] = true;
    }
    speller->whole_first = whole_first != 0;
    for (Py_ssize_t rank = 0; rank < PyList_GET_SIZE(merges); ++rank) {
        int one, other, joined;
        if (!PyTuple_Check(PyList_GET_ITEM(merges, rank)) ||
            !PyArg_ParseTuple(PyList_GET_ITEM(merges, rank), "iii", &one, &other, &joined)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "merges are tuples of three numbers");
            return nullptr;
        }
        speller->add(one, other, {static_cast<int32_t>(rank), joined});
    }
    return spelled_by(self, std::move(speller));
}

// (vocabulary, inside, unknown, most_characters, lowercase, added, longest): pieces are spelled by WordPiece from here on.
PyObject* pieces_spell_longest(Pieces* self, PyObject* arguments) {
    PyObject *vocabulary, *added;
    const char* inside;
    int unknown, lowercase;
    Py_ssize_t most_characters, longest;
    if (!PyArg_ParseTuple(arguments, "O!sinpO!n", &PyDict_Type, &vocabulary, &inside, &unknown, &most_characters, &lowercase,
                          &PyList_Type, &added, &longest))
        return nullptr;
    auto speller = std::make_unique<LongestSpeller>();
    if (!fill(speller.get(), vocabulary, added, longest)) return nullptr;
    speller->inside = inside;
    speller->unknown = unknown;
    speller->most_characters = static_cast<size_t>(most_characters > 0 ? most_characters : 0);
    speller->lowercase = lowercase != 0;
    return spelled_by(self, std::move(speller));
}

PyMethodDef pieces_methods[] = {
    {"spell_pairs", reinterpret_cast<PyCFunction>(pieces_spell_pairs), METH_VARARGS, nullptr},
    {"spell_longest", reinterpret_cast<PyCFunction>(pieces_spell_longest), METH_VARARGS, nullptr},
    {"rows", reinterpret_cast<PyCFunction>(pieces_rows), METH_VARARGS, nullptr},
    {"learn", reinterpret_cast<PyCFunction>(pieces_learn), METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject PiecesType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- ParsedSentence ------------------------------------------------------

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

Py_ssize_t item(PyObject* numbers, Py_ssize_t i) { return PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i)); }

PyObject* word_of(PyObject* self, Py_ssize_t i) {
    return PyUnicode_Substring(slot(self, sentence.text), item(slot(self, sentence.starts), i), item(slot(self, sentence.ends), i));
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
            const Py_ssize_t child = PyLong_AsSsize_t(PyList_GET_ITEM(children, j));
            if (child < 0 || child >= PyList_GET_SIZE(lists)) return PyErr_Format(PyExc_IndexError, "word %zd", child);
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
            if (!same(PyTuple_GET_ITEM(deps, child), sentence.cop) || PyLong_AsSsize_t(head) == child) continue;
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
        PyObject* child = PyList_GET_ITEM(children, j);
        const Py_ssize_t number = PyLong_AsSsize_t(child);
        PyObject* relation = number < 0 || number >= PyList_GET_SIZE(lists) ? nullptr : relation_of(self, number);
        if (!relation) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_IndexError, "word %zd", number);
        if ((same(relation, sentence.aux) || same(relation, sentence.aux_pass)) && PyList_Append(found.get(), child) != 0)
            return nullptr;
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
        PyObject* child = PyList_GET_ITEM(children, j);
        const Py_ssize_t number = PyLong_AsSsize_t(child);
        if (number < 0 || number >= PyList_GET_SIZE(lists)) return PyErr_Format(PyExc_IndexError, "word %zd", number);
        PyObject* relation = relation_of(self, number);
        const int is = relation ? PySet_Contains(sentence.subjects, relation) : -1;
        if (is < 0) return nullptr;
        if (is && (number < verb || !found)) found = child;  // the last before the verb, else the first after it
    }
    return Py_NewRef(found ? found : Py_None);
}

PyMethodDef sentence_methods[] = {
    {"word", sentence_word, METH_O, nullptr},
    {"children", sentence_children, METH_O, nullptr},
    {"subtree", sentence_subtree, METH_O, nullptr},
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
    for (PyMethodDef& method : sentence_methods) {
        Owned compiled(PyDescr_NewMethod(owner, &method));
        if (!compiled || PyObject_SetAttrString(type, method.ml_name, compiled.get()) != 0) return nullptr;
    }
    Owned words(PyDescr_NewGetSet(owner, &sentence_words_property));
    if (!words || PyObject_SetAttrString(type, "words", words.get()) != 0) return nullptr;
    Py_RETURN_NONE;
}

// -- Columns -----------------------------------------------------------

// The sentences of an annotation: texts end to end, where each ends, where the words of each begin among all words, and their
// columns, uint16[6, words]: starts, ends, heads, tags, lemmas, relations.
struct Columns {
    PyObject_HEAD
    Py_buffer texts, text_ends, bounds, columns;
    PyObject *tags, *parts_of_speech, *relations, *lemmas, *language;
    Py_ssize_t sentences, words;
};

void columns_dealloc(Columns* self) {
    for (Py_buffer* view : {&self->texts, &self->text_ends, &self->bounds, &self->columns})
        if (view->obj) PyBuffer_Release(view);
    for (PyObject* table : {self->tags, self->parts_of_speech, self->relations, self->lemmas, self->language}) Py_XDECREF(table);
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

PyObject* columns_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *texts, *text_ends, *bounds, *columns, *tags, *parts_of_speech, *relations, *lemmas, *language;
    if (!PyArg_ParseTuple(arguments, "OOOOO!O!O!O!U", &texts, &text_ends, &bounds, &columns, &PyTuple_Type, &tags, &PyTuple_Type,
                          &parts_of_speech, &PyTuple_Type, &relations, &PyTuple_Type, &lemmas, &language))
        return nullptr;
    Columns* self = reinterpret_cast<Columns*>(type->tp_alloc(type, 0));
    Owned owned(reinterpret_cast<PyObject*>(self));
    if (!self) return nullptr;
    const std::pair<PyObject*, Py_buffer*> views[] = {
        {texts, &self->texts}, {text_ends, &self->text_ends}, {bounds, &self->bounds}, {columns, &self->columns}};
    for (const auto& [object, view] : views)
        if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) != 0) return nullptr;
    const std::pair<PyObject*, PyObject**> tables[] = {{tags, &self->tags},
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

// text[start:end].lower()
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
        to[i] = from[i] >= 'A' && from[i] <= 'Z' ? static_cast<Py_UCS1>(from[i] + 32) : from[i];
    return word;
}

// The sentence of a row, a ParsedSentence.
PyObject* columns_sentence(Columns* self, PyObject* index) {
    const Py_ssize_t row = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (row == -1 && PyErr_Occurred()) return nullptr;
    if (row < 0 || row >= self->sentences || !sentence.type) {
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
    PyTypeObject* type = reinterpret_cast<PyTypeObject*>(sentence.type);
    Owned made(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    const std::pair<Py_ssize_t, PyObject*> slots[] = {
        {sentence.text, text.release()},
        {sentence.lemmas, lemmas.release()},
        {sentence.language, Py_NewRef(self->language)},
        {sentence.children, Py_NewRef(Py_None)},
        {sentence.copulas, Py_NewRef(Py_None)},
        {sentence.starts, numbers(values, count)},
        {sentence.ends, numbers(values + all, count)},
        {sentence.heads, numbers(values + 2 * all, count)},
        {sentence.tags, names(values + 3 * all, count, self->tags)},
        {sentence.pos, names(values + 3 * all, count, self->parts_of_speech)},
        {sentence.deps, names(values + 5 * all, count, self->relations)},
    };
    bool whole = true;
    for (const auto& [offset, value] : slots) {
        slot(made.get(), offset) = value;
        whole &= value != nullptr;
    }
    return whole ? made.release() : nullptr;
}

PyMethodDef columns_methods[] = {
    {"sentence", reinterpret_cast<PyCFunction>(columns_sentence), METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject ColumnsType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// (text, similar, threshold, draws, spans): the text with letters like others in place of them, outside the spans (a list of (start,
// end)); the loop of `augment.lexical_letters.look_alike`.
PyObject* look_alike(PyObject*, PyObject* arguments) {
    PyObject *text, *similar, *draws, *spans;
    unsigned long threshold;
    if (!PyArg_ParseTuple(arguments, "UO!kO!O!", &text, &PyDict_Type, &similar, &threshold, &DrawsType, &draws, &PyList_Type, &spans))
        return nullptr;
    std::vector<std::pair<Py_ssize_t, Py_ssize_t>> outside;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(spans); ++i) {
        Py_ssize_t start, end;
        if (!PyArg_Parse(PyList_GET_ITEM(spans, i), "(nn)", &start, &end)) return nullptr;
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
        if (!PyUnicode_Check(like)) return PyErr_Format(PyExc_TypeError, "letters like others are strings");
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

// How often a word of an ASCII text follows itself (`augment.lexical_forms.repeats`); -1 for other texts.
PyObject* repeats(PyObject*, PyObject* text) {
    if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "repeats() takes a string");
    if (!PyUnicode_IS_ASCII(text)) return PyLong_FromLong(-1);
    const auto lower = [](char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter; };
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
        for (size_t i = 0; same && i < bare.size(); ++i) same = lower(before[i]) == lower(bare[i]);
        const char last = before.empty() ? ' ' : lower(before.back());
        count += same && ((last >= 'a' && last <= 'z') || (last >= '0' && last <= '9'));
        before = word;
    }
    return PyLong_FromLong(count);
}

PyMethodDef functions[] = {
    {"repeats", repeats, METH_O, nullptr},
    {"look_alike", look_alike, METH_VARARGS, nullptr},
    {"compile_sentence", compile_sentence, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "augment._native", "The innermost loops of text augmentation, compiled.", -1, functions};

bool add_type(PyObject* into, PyTypeObject* type, const char* name, size_t size, newfunc create, destructor destroy,
              PyMethodDef* methods) {
    type->tp_name = name;
    type->tp_basicsize = static_cast<Py_ssize_t>(size);
    type->tp_flags = Py_TPFLAGS_DEFAULT;
    type->tp_new = create;
    type->tp_dealloc = destroy;
    type->tp_methods = methods;
    return PyType_Ready(type) == 0 && PyModule_AddObjectRef(into, std::string(name).substr(16).c_str(),
                                                            reinterpret_cast<PyObject*>(type)) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit__native() {
    Owned made(PyModule_Create(&module));
    if (!made || PyModule_AddIntConstant(made.get(), "INTERFACE", kInterface) != 0) return nullptr;
    const auto plain = reinterpret_cast<destructor>(PyObject_Free);
    if (!add_type(made.get(), &DrawsType, "augment._native.Draws", sizeof(Draws), draws_new, plain, draws_methods) ||
        !add_type(made.get(), &PiecesType, "augment._native.Pieces", sizeof(Pieces), pieces_new,
                  reinterpret_cast<destructor>(pieces_dealloc), pieces_methods) ||
        !add_type(made.get(), &ColumnsType, "augment._native.Columns", sizeof(Columns), columns_new,
                  reinterpret_cast<destructor>(columns_dealloc), columns_methods))
        return nullptr;
    return made.release();
}
