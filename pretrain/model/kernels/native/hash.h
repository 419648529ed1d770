// Dropout as a hash of (token's key, site, channel): the same bits as pretrain/model/kernels/dropout.py, which documents it.

#pragma once

#include "vectors.h"

namespace {

// One place's dropout: which values are kept, and the factor of those.
struct Dropout {
    const int64_t* keys;  // [T]; null: nothing is dropped
    uint64_t site;
    uint32_t threshold;
    float factor;  // 1 / (1 - rate)

    Dropout(const int64_t* all_keys, int64_t place, double rate)
        : keys(all_keys), site(static_cast<uint64_t>(place)), threshold(static_cast<uint32_t>(rate * 4294967296.0)),
          factor(keys ? static_cast<float>(1.0 / (1.0 - rate)) : 1.0f) {}
};

CLEAR_INLINE uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// The bits of one row's values, channel by channel.
struct HashRow {
    Words channels;  // channel * 0x9E3779B9 + low half of the row's hash
    uint32_t high;
    uint32_t threshold;

    CLEAR_INLINE HashRow(const Dropout& dropout, int64_t token, uint32_t first_channel) {
        const uint64_t row = splitmix64(static_cast<uint64_t>(dropout.keys[token]) + dropout.site * 0xA0761D6478BD642Fu);
        channels = (lanes() + first_channel) * 0x9E3779B9u + static_cast<uint32_t>(row);
        high = static_cast<uint32_t>(row >> 32);
        threshold = dropout.threshold;
    }

    // `values` where they are kept, 0 elsewhere, of the channels from `offset` on.
    CLEAR_INLINE Floats keep(Floats values, int64_t offset) const {
        Words x = channels + static_cast<uint32_t>(offset) * 0x9E3779B9u;
        x ^= x >> 16;
        x = x * 0x85EBCA6Bu + high;
        x ^= x >> 13;
        x *= 0xC2B2AE35u;
        x ^= x >> 16;
        return x >= threshold ? values : Floats{};
    }
};

// What is done to the values of a row, from channel `offset` of its first on.
struct KeepAll {
    CLEAR_INLINE Floats operator()(Floats values, int64_t) const { return values; }
};

struct DropByHash {
    HashRow row;
    float factor;
    CLEAR_INLINE Floats operator()(Floats values, int64_t offset) const { return row.keep(values, offset) * factor; }
};

// Calls pass(drop) with one of the two: the test is made once a row.
template <typename Pass>
CLEAR_INLINE void with_dropout(const Dropout& dropout, int64_t token, int64_t first_channel, const Pass& pass) {
    if (dropout.keys)
        pass(DropByHash{HashRow(dropout, token, static_cast<uint32_t>(first_channel)), dropout.factor});
    else
        pass(KeepAll{});
}

}  // namespace
