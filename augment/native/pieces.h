// Pieces: rows of tokens put together from pieces between spaces, which are cut out of another text's tokens, spelled (speller.h),
// or known from before; augment/text/encoder.py gives the others to the tokenizer.
//
// rows(texts, origins, ids, offsets, before) returns (rows, pieces at the beginning of texts, pieces inside): `[CLS] tokens [SEP]`
// of N texts, as bytes of int32, and the pieces to `learn`. A row is None where pieces must be learned first; if it is still None
// after that, the tokenizer must encode the text. origins: empty, or the text that each was made from, whose tokens are ids and
// offsets. before: empty, or the rows of an earlier call; those that are not None are kept.

#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
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
    struct Place {
        int32_t start, stop;  // among the tokens
    };

    // Finds no pieces unless the tokens have the text character for character. Where tokens mark spaces, characters that a
    // normalizer has changed are allowed if their number is that of the text.
    void read(std::string_view text, const int32_t* ids, Py_ssize_t count, const Vocabulary& vocabulary) {
        pieces_.clear();
        places_.clear();
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
    const Place* find(std::string_view piece, bool opens, bool alike) const {
        if (pieces_.empty()) return nullptr;
        const size_t mask = table_.size() - 1;
        for (size_t place = hash_of(piece) & mask; table_[place]; place = (place + 1) & mask) {
            const size_t number = table_[place] - 1;
            if (pieces_[number] == piece && (alike || opens == (number == 0))) return &places_[number];
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
            places_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(token)});
            start = stop + 1;
        }
        return token == count;
    }

    std::vector<std::string_view> pieces_;
    std::vector<Place> places_;
    std::vector<uint32_t> table_;  // open addressing: numbers of pieces, from 1
};

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char letter) { return !(letter & 0x80); });
}

class Pieces {
   public:
    Pieces(nb::handle given_characters, nb::handle given_spaced, bool alike, int32_t first, int32_t last, Py_ssize_t room, Py_ssize_t most)
        : inside_(static_cast<size_t>(most)), opening_(static_cast<size_t>(most)), first_(first), last_(last),
          room_(static_cast<size_t>(room > 0 ? room : 0)) {
        const Buffer<int32_t> characters(given_characters);
        const Buffer<uint8_t> spaced(given_spaced);
        if (spaced.size() != characters.size()) raise(PyExc_ValueError, "characters and spaced need one item for each token");
        const bool bytes = std::any_of(spaced.begin(), spaced.end(), [](uint8_t flag) { return flag != 0; });
        vocabulary_ = {{characters.begin(), characters.end()}, {spaced.begin(), spaced.end()}, bytes, alike};
    }

    // Returns (rows, opening, inside): the rows `[CLS] tokens [SEP]` as bytes of int32, None where a piece is unknown, and the
    // pieces to `learn`, two sets of strings. before: empty, or the rows of an earlier call, which are kept unless None. The
    // tokenizer must encode a text whose row stays None.
    nb::tuple rows(nb::list texts, nb::list origins, nb::handle given_ids, nb::handle given_offsets, nb::list before) {
        const Buffer<int32_t> ids(given_ids);
        const Buffer<int64_t> offsets(given_offsets);
        const size_t count = texts.size();
        const bool given = !origins.empty();
        const bool match = !given || (origins.size() == count && static_cast<size_t>(offsets.size()) == count + 1 && offsets[0] >= 0 &&
                                      *(offsets.end() - 1) <= ids.size() && std::is_sorted(offsets.begin(), offsets.end()));
        if (!match || (!before.empty() && before.size() != count))
            raise(PyExc_ValueError, "texts, origins and their tokens do not match");
        inside_.turn();
        opening_.turn();
        nb::builder<nb::list> rows(count);
        nb::set opening, inside;
        Origin origin;
        std::vector<int32_t> row;
        std::vector<std::pair<std::string_view, bool>> unknown;
        const auto spell = [&](std::string_view piece, bool opens) {
            return speller_ && speller_->spell(piece, vocabulary_.alike || !opens, &row);
        };
        for (size_t number = 0; number < count; ++number) {
            if (!before.empty() && !before[number].is_none()) {
                rows.put(before[number]);
                continue;
            }
            const std::string_view text = utf8(texts[number]);
            const int32_t* own = nullptr;
            if (given) {
                const int64_t *bounds = offsets.data() + number, start = bounds[0] + 1, stop = bounds[1] - 1;
                own = ids.data() + start;
                origin.read(utf8(origins[number]), own, stop > start ? stop - start : 0, vocabulary_);
            }
            row.assign(1, first_);
            unknown.clear();
            bool whole = false;
            size_t pieces = 0;
            for (size_t start = 0; start <= text.size(); ++pieces) {
                const size_t space = text.find(' ', start);
                const size_t stop = space == std::string_view::npos ? text.size() : space;
                const std::string_view piece = text.substr(start, stop - start);
                const bool opens = start == 0;
                start = stop + 1;
                if (const Origin::Place* place = given ? origin.find(piece, opens, vocabulary_.alike) : nullptr) {
                    row.insert(row.end(), own + place->start, own + place->stop);
                } else if (const bool plain = is_ascii(piece); !plain && spell(piece, opens)) {
                    // done: such pieces rarely occur again, and are not kept
                } else if (Memory::Tokens known; memory(opens).find(piece, &known)) {
                    whole |= !known.alone;
                    row.insert(row.end(), known.ids, known.ids + known.count);
                } else if (const size_t begin = row.size(); plain && spell(piece, opens)) {
                    memory(opens).put(piece, {row.data() + begin, row.size() - begin, true});
                } else {
                    whole |= piece.empty();
                    unknown.emplace_back(piece, opens);
                }
            }
            // Pieces of such texts (of look-alike letters, say) do not occur again.
            whole |= given && 2 * unknown.size() > pieces && !is_ascii(text);
            if (whole || !unknown.empty()) {
                rows.put(nb::none());
                if (whole) unknown.clear();
                for (const auto& [piece, opens] : unknown) (opens ? opening : inside).add(nb::str(piece.data(), piece.size()));
                continue;
            }
            if (row.size() > room_ + 1) row.resize(room_ + 1);
            row.push_back(last_);
            rows.put(nb::bytes(row.data(), row.size() * sizeof(int32_t)));
        }
        return nb::make_tuple(rows.commit(), opening, inside);
    }

    // Keeps the tokens of pieces, which are bytes of int32, or None: the piece does not stand alone.
    void learn(bool opens, nb::list pieces, nb::list tokens) {
        if (tokens.size() != pieces.size()) raise(PyExc_ValueError, "pieces and tokens must have the same length");
        for (size_t number = 0; number < pieces.size(); ++number) {
            const std::string_view piece = utf8(pieces[number]);
            if (tokens[number].is_none()) {
                memory(opens).put(piece, {});
            } else {
                const Buffer<int32_t> ids(tokens[number]);
                memory(opens).put(piece, {ids.data(), static_cast<size_t>(ids.size()), true});
            }
        }
    }

    // Spells pieces by byte-level BPE from now on. vocabulary: bytes -> number. merges: token ids (one, other, joined), in the order
    // learned. letters: those beyond ASCII that the vocabulary has.
    void spell_pairs(nb::dict vocabulary, const std::vector<std::array<int32_t, 3>>& merges, bool whole_first, nb::str letters,
                     const std::vector<std::string>& added, Py_ssize_t longest) {
        auto speller = std::make_unique<PairSpeller>(merges.size());
        fill(*speller, vocabulary, added, longest);
        for (int byte = 0; byte < 256; ++byte) {
            auto place = speller->vocabulary.find(std::string(1, static_cast<char>(byte)));
            speller->bytes[byte] = place == speller->vocabulary.end() ? -1 : place->second;
        }
        for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(letters.ptr()); ++i) {
            const size_t letter = PyUnicode_READ_CHAR(letters.ptr(), i);
            if (letter >= speller->letters.size()) speller->letters.resize(letter + 1);
            speller->letters[letter] = true;
        }
        speller->whole_first = whole_first;
        for (size_t rank = 0; rank < merges.size(); ++rank)
            speller->add(merges[rank][0], merges[rank][1], {static_cast<int32_t>(rank), merges[rank][2]});
        speller_ = std::move(speller);
    }

    // Spells pieces by WordPiece from now on.
    void spell_longest(nb::dict vocabulary, const std::string& inside, int32_t unknown, Py_ssize_t most_characters, bool lowercase,
                       const std::vector<std::string>& added, Py_ssize_t longest) {
        auto speller = std::make_unique<LongestSpeller>();
        fill(*speller, vocabulary, added, longest);
        speller->inside = inside;
        speller->unknown = unknown;
        speller->most_characters = static_cast<size_t>(most_characters > 0 ? most_characters : 0);
        speller->lowercase = lowercase;
        speller_ = std::move(speller);
    }

   private:
    Memory& memory(bool opens) { return opens && !vocabulary_.alike ? opening_ : inside_; }

    static void fill(Speller& speller, const nb::dict& vocabulary, const std::vector<std::string>& added, Py_ssize_t longest) {
        for (const auto& [token, number] : vocabulary) {
            const Buffer<char> letters(token);
            speller.vocabulary.emplace(std::string(letters.begin(), letters.end()), static_cast<int32_t>(whole(number)));
        }
        speller.added = added;
        speller.longest = static_cast<size_t>(longest > 0 ? longest : 0);
    }

    Vocabulary vocabulary_;
    Memory inside_, opening_;           // opening_: of pieces that open a text, unless `alike`
    std::unique_ptr<Speller> speller_;  // or none: the tokenizer encodes unknown pieces
    int32_t first_, last_;              // of every row: [CLS], [SEP]
    size_t room_;                       // tokens between them
};

void add_pieces(nb::module_& module) {
    nb::class_<Pieces>(module, "Pieces")
        .def(nb::init<nb::handle, nb::handle, bool, int32_t, int32_t, Py_ssize_t, Py_ssize_t>())
        .def("rows", &Pieces::rows)
        .def("learn", &Pieces::learn)
        .def("spell_pairs", &Pieces::spell_pairs)
        .def("spell_longest", &Pieces::spell_longest);
}

}  // namespace
