// Pieces: rows of tokens put together from pieces between spaces, which are spelled (speller.h) or known from before;
// augment/text/encoder.py gives the others to the tokenizer.
//
// rows(texts) returns (rows, pieces at the beginning of texts, pieces inside): `[CLS] tokens [SEP]` of N texts, as bytes of int32,
// and the pieces to `learn`. A row is None where pieces must be learned first; if it is still None after that, the tokenizer must
// encode the text.

#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tsl/robin_map.h>

#include "common.h"
#include "speller.h"

namespace {

// Keeps pieces with their tokens: the `most` that were met last, and as many from before.
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
        if (now_.find(piece, found)) return true;
        if (!before_.find(piece, found)) return false;
        now_.put(piece, *found);
        return now_.find(piece, found);
    }

    void put(std::string_view piece, const Tokens& tokens) { now_.put(piece, tokens); }

   private:
    struct Entry {
        size_t begin;
        uint32_t count;
        bool alone;
    };
    struct Equal : std::equal_to<std::string_view> {
        using is_transparent = void;  // look-ups make no string
    };
    struct Generation {
        tsl::robin_map<std::string, Entry, std::hash<std::string_view>, Equal> entries;
        std::vector<int32_t> ids;  // of all entries: their tokens lie together

        bool find(std::string_view piece, Tokens* found) const {
            const auto place = entries.find(piece);
            if (place == entries.end()) return false;
            const Entry& entry = place->second;
            *found = {ids.data() + entry.begin, entry.count, entry.alone};
            return true;
        }

        void put(std::string_view piece, const Tokens& tokens) {
            entries[std::string(piece)] = {ids.size(), static_cast<uint32_t>(tokens.count), tokens.alone};
            ids.insert(ids.end(), tokens.ids, tokens.ids + tokens.count);
        }
    };
    size_t most_;
    Generation now_, before_;
};

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char letter) { return !(letter & 0x80); });
}

bool is_letter(char letter) { return lowered(letter) >= 'a' && lowered(letter) <= 'z'; }

class Pieces {
   public:
    // alike: whether a piece has the same tokens at the beginning of a text as behind a space.
    Pieces(bool alike, int32_t first, int32_t last, Py_ssize_t room, Py_ssize_t most)
        : inside_(static_cast<size_t>(most)), opening_(static_cast<size_t>(most)), alike_(alike), first_(first), last_(last),
          room_(static_cast<size_t>(room > 0 ? room : 0)) {}

    // Returns (rows, opening, inside): the rows as bytes of int32, None where a piece is unknown; two sets of pieces to `learn`.
    nb::tuple rows(nb::list texts) {
        const size_t count = texts.size();
        inside_.turn();
        opening_.turn();
        nb::builder<nb::list> rows(count);
        nb::set opening, inside;
        std::vector<int32_t> row;
        std::vector<std::pair<std::string_view, bool>> unknown;
        const auto spell = [&](std::string_view piece, bool opens) {
            return speller_ && speller_->spell(piece, alike_ || !opens, &row);
        };
        for (size_t number = 0; number < count; ++number) {
            const std::string_view text = utf8(texts[number]);
            row.assign(1, first_);
            unknown.clear();
            bool whole = false;
            size_t pieces = 0, mixed = 0;
            for (size_t start = 0; start <= text.size(); ++pieces) {
                const size_t space = text.find(' ', start);
                const size_t stop = space == std::string_view::npos ? text.size() : space;
                const std::string_view piece = text.substr(start, stop - start);
                const bool opens = start == 0;
                start = stop + 1;
                if (const bool plain = is_ascii(piece); !plain && spell(piece, opens)) {
                    // done: such pieces rarely occur again, and are not kept
                } else if (Memory::Tokens known; memory(opens).find(piece, &known)) {
                    whole |= !known.alone;
                    row.insert(row.end(), known.ids, known.ids + known.count);
                } else if (const size_t begin = row.size(); plain && spell(piece, opens)) {
                    memory(opens).put(piece, {row.data() + begin, row.size() - begin, true});
                } else {
                    whole |= piece.empty();
                    mixed += !plain && std::any_of(piece.begin(), piece.end(), is_letter);
                    unknown.emplace_back(piece, opens);
                }
            }
            // Words that mix ASCII with other letters (look-alike ones, say) do not occur again.
            whole |= 2 * mixed > pieces;
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
        auto speller = std::make_unique<PairSpeller>();
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
    Memory& memory(bool opens) { return opens && !alike_ ? opening_ : inside_; }

    static void fill(Speller& speller, const nb::dict& vocabulary, const std::vector<std::string>& added, Py_ssize_t longest) {
        for (const auto& [token, number] : vocabulary) {
            const Buffer<char> letters(token);
            speller.vocabulary.emplace(std::string(letters.begin(), letters.end()), static_cast<int32_t>(whole(number)));
        }
        speller.added = added;
        speller.longest = static_cast<size_t>(longest > 0 ? longest : 0);
    }

    Memory inside_, opening_;           // opening_: of pieces that open a text, unless `alike`
    std::unique_ptr<Speller> speller_;  // or none: the tokenizer encodes unknown pieces
    bool alike_;
    int32_t first_, last_;              // of every row: [CLS], [SEP]
    size_t room_;                       // tokens between them
};

void add_pieces(nb::module_& module) {
    nb::class_<Pieces>(module, "Pieces")
        .def(nb::init<bool, int32_t, int32_t, Py_ssize_t, Py_ssize_t>())
        .def("rows", &Pieces::rows)
        .def("learn", &Pieces::learn)
        .def("spell_pairs", &Pieces::spell_pairs)
        .def("spell_longest", &Pieces::spell_longest);
}

}  // namespace
