// Vectors of CLEAR_WIDTH floats or integers, by the compiler's own vector types (GCC 12, Clang 15 and later): one source for every
// instruction set. A translation unit sets CLEAR_WIDTH and its instruction set, then includes functions.h.
//
// Everything has internal linkage and nothing is a template of the standard library: code of two instruction sets must never be merged
// by the linker, which would take one of them for both.

#pragma once

#include "headers.h"

namespace {

constexpr int kWidth = CLEAR_WIDTH;

typedef float Floats __attribute__((vector_size(4 * CLEAR_WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * CLEAR_WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * CLEAR_WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * CLEAR_WIDTH)));

struct BFloat16 {
    uint16_t bits;
};

#define CLEAR_INLINE inline __attribute__((always_inline))
#define CLEAR_LAMBDA __attribute__((always_inline))

CLEAR_INLINE Floats broadcast(float value) { return value - Floats{}; }
CLEAR_INLINE Words broadcast(uint32_t value) { return value - Words{}; }
CLEAR_INLINE Words as_words(Floats x) { return (Words)x; }
CLEAR_INLINE Floats as_floats(Words x) { return (Floats)x; }

// 0, 1, 2 ...: the lanes' numbers.
CLEAR_INLINE Words lanes() {
    Words result;
    for (int i = 0; i < kWidth; ++i) result[i] = static_cast<uint32_t>(i);
    return result;
}

CLEAR_INLINE Floats load(const float* from) {
    Floats result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

CLEAR_INLINE Floats load(const BFloat16* from) {
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
#if CLEAR_WIDTH == 16
    return as_floats((Words)_mm512_cvtepu16_epi32((__m256i)bits) << 16);  // GCC 12 converts each half for itself
#else
    return as_floats(__builtin_convertvector(bits, Words) << 16);
#endif
}

CLEAR_INLINE void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

// To the nearest, ties to even; a NaN stays one (its lower half alone could round to infinity).
CLEAR_INLINE void store(BFloat16* to, Floats x) {
    const Words bits = as_words(x);
    Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    rounded = x == x ? rounded : broadcast(uint32_t{0x7FC0});
    const Halves halves = __builtin_convertvector(rounded, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// A whole vector's count of values, as a type: tests for the last, partial vector of a row disappear where it is passed.
struct Whole {};

template <typename T>
CLEAR_INLINE Floats load(const T* from, Whole) {
    return load(from);
}
template <typename T>
CLEAR_INLINE void store(T* to, Floats x, Whole) {
    store(to, x);
}

// The first `count` values; the others are 0.
template <typename T>
CLEAR_INLINE Floats load(const T* from, int64_t count) {
    T part[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) part[i] = from[i];
    return load(part);
}

template <typename T>
CLEAR_INLINE void store(T* to, Floats x, int64_t count) {
    T part[kWidth];
    store(part, x);
    for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}

CLEAR_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// One value of all lanes, halving the vector: always in the same order.
template <typename Combine>
CLEAR_INLINE float reduce(Floats x, Combine combine) {
#if CLEAR_WIDTH == 16
    const auto eight = combine(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
#else
    const auto eight = x;
#endif
#if CLEAR_WIDTH >= 8
    const auto four = combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
    const auto four = eight;
#endif
    const auto two = combine(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
    return combine(two[0], two[1]);
}

CLEAR_INLINE float sum(Floats x) {
    return reduce(x, [](auto a, auto b) CLEAR_LAMBDA { return a + b; });
}
CLEAR_INLINE float largest(Floats x) {
    return reduce(x, [](auto a, auto b) CLEAR_LAMBDA { return a > b ? a : b; });
}

// 2 ** x for x <= 0, to 2e-7 of its value; 0 below -126, where results would be denormal. The polynomial is fitted to 2 ** f on
// [-1/2, 1/2] for the smallest relative error, 9e-8.
CLEAR_INLINE Floats exp2_negative(Floats x) {
    const Floats magic = broadcast(12582912.0f);  // 1.5 * 2**23: adding it rounds to an integer, held in the lowest bits
    const Floats shifted = x + magic;
    const Floats f = x - (shifted - magic);
    Floats y = f * 1.3264727e-03f + 9.671513e-03f;
    y = y * f + 5.5507336e-02f;
    y = y * f + 2.4022242e-01f;
    y = y * f + 6.93147e-01f;
    y = y * f + 1.0f;
    const Floats power = as_floats((as_words(shifted) + 127) << 23);
    return x < -126.0f ? Floats{} : y * power;  // a NaN stays one: it is not below -126
}

constexpr float kLog2E = 1.44269504088896341f;

// Calls body(first column, values left in the row) for every vector of a row.
template <typename Body>
CLEAR_INLINE void each_vector(int64_t columns, const Body& body) {
    int64_t c = 0;
    for (; c + kWidth <= columns; c += kWidth) body(c, Whole{});
    if (c < columns) body(c, columns - c);
}

CLEAR_INLINE int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
CLEAR_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CLEAR_INLINE int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
