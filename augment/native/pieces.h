// Pieces: the compiled counterpart of augment/text/pieces.py, with the same rows. It also cuts tokens out of origins beyond ASCII,
// and spells new pieces (speller.h) for which the Python class asks the tokenizer.

#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "speller.h"

namespace {

// Hashes a string, eight bytes at a time.
size_t hash_of(std::string_view piece) {
    uint64_t value = piece.size() * 0x9E3779B97F4A7C15ull;
    for (size_t at = 0; at < piece.size(); at += 8) {
        uint64_t part = 0;
        std::memcpy(&part, piece.data() + at, std::min<size_t>(8, piece.size() - at));
        value = (value ^ part) * 0xD6E8FEB86659FD93ull;
        value ^= value >> 32;
    }
    value *= 0xD6E8FEB86659FD93ull;  // otherwise the last letters of a full part reach few of the lower bits
    return static_cast<size_t>(value ^ (value >> 32));
}

// Keeps pieces with their tokens: the `most` that were met last, and as many from before. It is a table of numbers with open
// addressing, and the numbered entries in order of arrival: a look-up touches two places of memory, not five.
class Memory {
   public:
    struct Tokens {
        const int32_t* ids = nullptr;  // valid until the next `put`
        size_t count = 0;
        bool alone = false;  // false: the piece has no tokens of its own; the tokenizer takes its whole text
    };

    explicit Memory(size_t most) : most_(most) {}

    void turn() {
        if (now_.entries.size() > most_) before_ = std::exchange(now_, Generation());
    }

    bool find(std::string_view piece, Tokens* found) {
        const size_t hash = hash_of(piece);
        if (now_.find(piece, hash, found)) return true;
        if (!before_.find(piece, hash, found)) return false;
        now_.put(piece, hash, *found);
        return now_.find(piece, hash, found);
    }

    void put(std::string_view piece, const Tokens& tokens) { now_.put(piece, hash_of(piece), tokens); }

   private:
    struct Entry {
        size_t letters, ids;  // where they begin
        uint32_t length, count;
        bool alone;
    };
    struct Place {
        uint32_t hash, number;  // from 1
    };
    struct Generation {
        std::vector<Place> places = std::vector<Place>(1024);
        std::vector<Entry> entries;
        std::string letters;
        std::vector<int32_t> ids;

        // Returns the place of a piece in the table, or the free one for it.
        size_t place_of(std::string_view piece, size_t hash) const {
            size_t at = hash & (places.size() - 1);
            for (; places[at].number; at = (at + 1) & (places.size() - 1)) {
                if (places[at].hash != static_cast<uint32_t>(hash >> 32)) continue;
                const Entry& entry = entries[places[at].number - 1];
                if (std::string_view(letters).substr(entry.letters, entry.length) == piece) break;
            }
            return at;
        }

        bool find(std::string_view piece, size_t hash, Tokens* found) const {
            const uint32_t number = places[place_of(piece, hash)].number;
            if (!number) return false;
            const Entry& entry = entries[number - 1];
            *found = {ids.data() + entry.ids, entry.count, entry.alone};
            return true;
        }

        void put(std::string_view piece, size_t hash, const Tokens& tokens) {
            if (2 * (entries.size() + 1) > places.size()) grow();
            Place& place = places[place_of(piece, hash)];
            if (!place.number) {
                entries.push_back({letters.size(), 0, static_cast<uint32_t>(piece.size()), 0, false});
                letters.append(piece);
                place = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(entries.size())};
            }
            const size_t begin = ids.size();
            ids.insert(ids.end(), tokens.ids, tokens.ids + tokens.count);
            Entry& entry = entries[place.number - 1];
            entry.ids = begin, entry.count = static_cast<uint32_t>(tokens.count), entry.alone = tokens.alone;
        }

        void grow() {
            std::vector<Place> larger(2 * places.size());
            for (const Place& place : places) {
                if (!place.number) continue;
                const Entry& entry = entries[place.number - 1];
                size_t at = hash_of(std::string_view(letters).substr(entry.letters, entry.length)) & (larger.size() - 1);
                while (larger[at].number) at = (at + 1) & (larger.size() - 1);
                larger[at] = place;
            }
            places.swap(larger);
        }
    };
    size_t most_;
    Generation now_, before_;
};

struct Span {
    int32_t start, stop;
};

// What the tokens of a vocabulary stand for: the number of characters, without spaces, and whether a space is the first (in
// byte-level BPE, whose characters are bytes; no WordPiece token has one).
struct Vocabulary {
    std::vector<int32_t> characters;
    std::vector<uint8_t> spaced;
    bool bytes;
    bool alike;  // whether a piece has the same tokens at the beginning of a text as behind a space, since one is added in front
};

// The pieces of a tokenized text, with the places of their tokens.
class Origin {
   public:
    // Finds no pieces unless the tokens have the text character for character. Where tokens mark spaces, characters that a
    // normalizer has changed are allowed if their number is that of the text.
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
            size_t place = hash_of(pieces_[number]) & (places - 1);
            while (table_[place]) place = (place + 1) & (places - 1);
            table_[place] = static_cast<uint32_t>(number + 1);
        }
    }

    // opens: the piece opens its text. alike: that makes no difference.
    const Span* find(std::string_view piece, bool opens, bool alike) const {
        if (pieces_.empty()) return nullptr;
        const size_t mask = table_.size() - 1;
        for (size_t place = hash_of(piece) & mask; table_[place]; place = (place + 1) & mask) {
            const size_t number = table_[place] - 1;
            if (pieces_[number] == piece && (alike || opens == (number == 0))) return &spans_[number];
        }
        return nullptr;
    }

   private:
    // Returns the number of bytes of the non-ASCII white space that begins at a byte, or 0.
    static size_t blank(std::string_view text, size_t at) {
        const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0; };
        if (byte(0) < 0xC2) return 0;
        if (byte(0) == 0xC2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;
        const unsigned point = byte(0) << 16 | byte(1) << 8 | byte(2);
        const bool general = (point >= 0xE28080 && point <= 0xE2808A) || point == 0xE280A8 || point == 0xE280A9 || point == 0xE280AF;
        return general || point == 0xE19A80 || point == 0xE2819F || point == 0xE38080 ? 3 : 0;
    }

    bool aligned(std::string_view text, const int32_t* ids, Py_ssize_t count, const Vocabulary& vocabulary) {
        for (const unsigned char letter : text)
            if (letter < 0x20 || letter == 0x7F || (letter > 0x7F && !vocabulary.bytes)) return false;
        // A space beside other white space does not begin the next word.
        for (size_t at = 0; at < text.size(); ++at)
            if (const size_t size = blank(text, at)) {
                if (at == 0 || at + size >= text.size() || text[at - 1] == ' ' || text[at + size] == ' ') return false;
                at += size - 1;
            }
        if (vocabulary.bytes && count > 0) {  // a normalizer may have added a space in front
            const int32_t id = ids[0];
            if (id < 0 || static_cast<size_t>(id) >= vocabulary.spaced.size()) return false;
            if ((vocabulary.spaced[static_cast<size_t>(id)] != 0) != vocabulary.alike) return false;
        }
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

    std::vector<std::string_view> pieces_;
    std::vector<Span> spans_;
    std::vector<uint32_t> table_;  // open addressing: numbers of pieces, from 1
};

struct Pieces {
    PyObject_HEAD
    Vocabulary* vocabulary;
    Memory* inside;
    Memory* opening;   // the same, where `alike`
    Speller* speller;  // or nullptr: the tokenizer encodes unknown pieces
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
        PyErr_SetString(PyExc_ValueError, "characters and spaced need one item for each token");
        return nullptr;
    }
    Pieces* self = reinterpret_cast<Pieces*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    Owned owned(reinterpret_cast<PyObject*>(self));
    const int32_t* begin = characters.as<int32_t>();
    const uint8_t* flags = spaced.as<uint8_t>();
    const bool bytes = std::any_of(flags, flags + spaced.size<uint8_t>(), [](uint8_t flag) { return flag != 0; });
    self->vocabulary =
        new Vocabulary{{begin, begin + characters.size<int32_t>()}, {flags, flags + spaced.size<uint8_t>()}, bytes, alike != 0};
    self->inside = new Memory(static_cast<size_t>(most));
    self->opening = alike ? self->inside : new Memory(static_cast<size_t>(most));
    self->first = first, self->last = last;
    self->room = static_cast<size_t>(room > 0 ? room : 0);
    return owned.release();
}

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char letter) { return !(letter & 0x80); });
}

bool add_missing(PyObject* set, std::string_view piece) {
    Owned text(PyUnicode_DecodeUTF8(piece.data(), static_cast<Py_ssize_t>(piece.size()), nullptr));
    return text && PySet_Add(set, text.get()) == 0;
}

// (texts, origins, ids, offsets, before) -> (rows, opening, inside): the rows `[CLS] tokens [SEP]` as bytes of int32, None where a
// piece is unknown, and the pieces to `learn`, two sets of strings. before: empty, or the rows of an earlier call, which are kept
// unless None. The tokenizer must encode a text whose row stays None.
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
        PyErr_SetString(PyExc_ValueError, "texts, origins and their tokens do not match");
        return nullptr;
    }
    self->inside->turn();
    if (!self->vocabulary->alike) self->opening->turn();
    Owned rows(PyList_New(count)), opening(PySet_New(nullptr)), inside(PySet_New(nullptr));
    if (!rows || !opening || !inside) return nullptr;
    Origin origin;
    std::vector<int32_t> row;
    std::vector<std::pair<std::string_view, bool>> unknown;
    const auto spell = [&](std::string_view piece, bool opens) {
        return self->speller && self->speller->spell(piece, self->vocabulary->alike || !opens, &row);
    };
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
            if (const Span* span = given ? origin.find(piece, opens, self->vocabulary->alike) : nullptr) {
                row.insert(row.end(), own + span->start, own + span->stop);
            } else if (const bool plain = is_ascii(piece); !plain && spell(piece, opens)) {
                // done: such pieces rarely occur again, and are not kept
            } else if (Memory::Tokens known; (opens ? self->opening : self->inside)->find(piece, &known)) {
                whole |= !known.alone;
                row.insert(row.end(), known.ids, known.ids + known.count);
            } else if (const size_t begin = row.size(); plain && spell(piece, opens)) {
                (opens ? self->opening : self->inside)->put(piece, {row.data() + begin, row.size() - begin, true});
            } else {
                whole |= piece.empty();
                unknown.emplace_back(piece, opens);
            }
        }
        // Pieces of such texts (of look-alike letters, say) do not occur again.
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

// (opens, pieces, tokens): keeps the tokens of pieces, two lists; tokens are bytes of int32, or None: it does not stand alone.
PyObject* pieces_learn(Pieces* self, PyObject* arguments) {
    int opens;
    PyObject *pieces, *tokens;
    if (!PyArg_ParseTuple(arguments, "pO!O!", &opens, &PyList_Type, &pieces, &PyList_Type, &tokens)) return nullptr;
    const Py_ssize_t count = PyList_GET_SIZE(pieces);
    if (PyList_GET_SIZE(tokens) != count) {
        PyErr_SetString(PyExc_ValueError, "pieces and tokens must have the same length");
        return nullptr;
    }
    for (Py_ssize_t number = 0; number < count; ++number) {
        std::string_view piece;
        if (!utf8(PyList_GET_ITEM(pieces, number), &piece)) return nullptr;
        Memory* memory = opens ? self->opening : self->inside;
        if (PyObject* own = PyList_GET_ITEM(tokens, number); own == Py_None) {
            memory->put(piece, {});
        } else if (Bytes ids(own); ids) {
            memory->put(piece, {ids.as<int32_t>(), static_cast<size_t>(ids.size<int32_t>()), true});
        } else {
            return nullptr;
        }
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

// (vocabulary, merges, whole_first, letters, added, longest): spells pieces by byte-level BPE from now on. merges: token ids (one,
// other, joined), in the order learned. letters: a string.
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
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a merge must be a tuple of three numbers");
            return nullptr;
        }
        speller->add(one, other, {static_cast<int32_t>(rank), joined});
    }
    return spelled_by(self, std::move(speller));
}

// (vocabulary, inside, unknown, most_characters, lowercase, added, longest): spells pieces by WordPiece from now on.
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
    {"spell_pairs", reinterpret_cast<PyCFunction>(guarded<pieces_spell_pairs, Pieces*, PyObject*>), METH_VARARGS, nullptr},
    {"spell_longest", reinterpret_cast<PyCFunction>(guarded<pieces_spell_longest, Pieces*, PyObject*>), METH_VARARGS, nullptr},
    {"rows", reinterpret_cast<PyCFunction>(guarded<pieces_rows, Pieces*, PyObject*>), METH_VARARGS, nullptr},
    {"learn", reinterpret_cast<PyCFunction>(guarded<pieces_learn, Pieces*, PyObject*>), METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject PiecesType = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace
