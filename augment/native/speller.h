// Makes the tokens of new words by byte-level BPE or WordPiece (augment/text/encoder.py).

#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include <tsl/robin_map.h>

#include "common.h"
#include "draws.h"

namespace {

// Spells printable ASCII without spaces, and `letters` beyond it, as the tokenizer does (`augment.text.encoder`): its pre-tokenizer
// splits a piece into words, and its model spells each. Other pieces, and those with bytes that the vocabulary lacks, are left to
// the tokenizer.
class Speller {
   public:
    virtual ~Speller() = default;

    // Appends the tokens to `ids`; false, with `ids` unchanged, leaves the piece to the tokenizer. That is so for pieces with added
    // tokens, which are split off before words are, and for those longer than `longest`, which do not occur again.
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
        const size_t before = ids->size();
        if (parts(piece, spaced, ids)) return true;
        ids->resize(before);
        return false;
    }

    std::unordered_map<std::string, int32_t> vocabulary;
    std::vector<bool> letters;  // by code point
    std::vector<std::string> added;
    size_t longest = 0;

   protected:
    virtual bool parts(std::string_view piece, bool spaced, std::vector<int32_t>* ids) const = 0;

    static int kind(char letter) {  // a word has letters, digits or other characters only
        if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter & 0x80)) return 0;
        return letter >= '0' && letter <= '9' ? 1 : 2;
    }
};

// Byte-level BPE: GPT-2's words with the space before them; of neighbouring pairs the one learned first is merged. The vocabulary's
// tokens are bytes here, not the letters that stand for them.
class PairSpeller : public Speller {
   public:
    struct Merge {
        int32_t rank, joined;  // rank -1: none
    };
    int32_t bytes[256];        // the token of each byte; -1: none
    bool whole_first = false;  // whether a word of the vocabulary is one token whatever the merges

    void add(int32_t one, int32_t other, Merge merge) { merges_.insert_or_assign(pair(one, other), merge); }

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
    struct PairHash {
        size_t operator()(uint64_t pair) const { return static_cast<size_t>(mix(pair)); }
    };

    static uint64_t pair(int32_t one, int32_t other) {
        return static_cast<uint64_t>(static_cast<uint32_t>(one)) << 32 | static_cast<uint32_t>(other);
    }

    tsl::robin_map<uint64_t, Merge, PairHash> merges_;
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
        // next[i]: the merge of the symbols i and i + 1 of the word.
        std::vector<Merge>& next = next_;
        next.clear();
        const auto look = [&](size_t i) {
            const auto place = merges_.find(pair((*ids)[begin + i], (*ids)[begin + i + 1]));
            return place == merges_.end() ? Merge{-1, 0} : place->second;
        };
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

// WordPiece: punctuation characters are words; the longest beginning of a word that is in the vocabulary is cut off, again and again.
class LongestSpeller : public Speller {
   public:
    std::string inside;  // in front of tokens that do not begin a word
    int32_t unknown = 0;
    size_t most_characters = 0;
    bool lowercase = false;

   protected:
    bool parts(std::string_view piece, bool, std::vector<int32_t>* ids) const override {
        std::string text(piece);
        if (lowercase)
            for (char& letter : text) letter = lowered(letter);
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

}  // namespace
