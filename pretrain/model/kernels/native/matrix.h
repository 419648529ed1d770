// Products of small float matrices that lie in a core's cache, by tiles held in registers.

#pragma once

#include "vectors.h"

namespace {

// A matrix of which rows and columns are `row` and `column` floats apart: a transpose is the same data with the two exchanged.
struct Strided {
    const float* data;
    int64_t row, column;

    CLEAR_INLINE Strided from_row(int64_t first) const { return {data + first * row, row, column}; }
};

// C [kRows, kVectors * kWidth] = or += A [kRows, inner] B [inner, kVectors * kWidth]; rows of B and C are contiguous.
template <int kRows, int kVectors>
void multiply_tile(int64_t inner, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row, bool accumulate) {
    Floats total[kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) total[i][v] = accumulate ? load(c + i * c_row + v * kWidth) : Floats{};
    for (int64_t k = 0; k < inner; ++k) {
        Floats right[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * b_row + v * kWidth);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
            const Floats left = broadcast(a.data[i * a.row + k * a.column]);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) total[i][v] += left * right[v];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) store(c + i * c_row + v * kWidth, total[i][v]);
}

// Rows of a tile `vectors` wide: sums, B's row and one value of A fill the registers (32 of AVX-512, elsewhere 16).
constexpr int tile_rows(int vectors) { return kWidth == 16 ? (vectors == 4 ? 6 : vectors == 3 ? 8 : 12) : (vectors == 1 ? 8 : 6); }
constexpr int kMostVectors = kWidth == 16 ? 4 : 2;

// `rows` < kRows + 1 rows of a tile: finds the template of exactly that many.
template <int kRows, int kVectors>
CLEAR_INLINE void multiply_rows(int64_t rows, int64_t inner, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row,
                                bool accumulate) {
    if constexpr (kRows > 0) {
        if (rows == kRows)
            multiply_tile<kRows, kVectors>(inner, a, b, b_row, c, c_row, accumulate);
        else
            multiply_rows<kRows - 1, kVectors>(rows, inner, a, b, b_row, c, c_row, accumulate);
    }
}

template <int kVectors>
void multiply_columns(int64_t rows, int64_t inner, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row, bool accumulate) {
    constexpr int kRows = tile_rows(kVectors);
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows)
        multiply_tile<kRows, kVectors>(inner, a.from_row(i), b, b_row, c + i * c_row, c_row, accumulate);
    multiply_rows<kRows - 1, kVectors>(rows - i, inner, a.from_row(i), b, b_row, c + i * c_row, c_row, accumulate);
}

// C [rows, columns] = or += A [rows, inner] B [inner, columns], `columns` a multiple of kWidth.
inline void multiply(int64_t rows, int64_t columns, int64_t inner, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row,
                     bool accumulate) {
    int64_t vectors = columns / kWidth;
    for (; vectors > 0; ) {
        int64_t taken = smaller(vectors, kMostVectors);
        if (kMostVectors == 4 && vectors == 5) taken = 3;  // 3 and 2, not 4 and 1: one vector alone waits for itself
        if (taken == 1) multiply_columns<1>(rows, inner, a, b, b_row, c, c_row, accumulate);
        if (taken == 2) multiply_columns<2>(rows, inner, a, b, b_row, c, c_row, accumulate);
        if constexpr (kMostVectors == 4) {
            if (taken == 3) multiply_columns<3>(rows, inner, a, b, b_row, c, c_row, accumulate);
            if (taken == 4) multiply_columns<4>(rows, inner, a, b, b_row, c, c_row, accumulate);
        }
        b += taken * kWidth;
        c += taken * kWidth;
        vectors -= taken;
    }
}

// Interleaves halves of two vectors: the lower ones, whose first lane is 0, or the upper ones.
template <int kFirst>
CLEAR_INLINE Floats zip(Floats a, Floats b) {
    constexpr int i = kFirst, j = kWidth + kFirst;
#if CLEAR_WIDTH == 16
    return __builtin_shufflevector(a, b, i, j, i + 1, j + 1, i + 2, j + 2, i + 3, j + 3, i + 4, j + 4, i + 5, j + 5, i + 6, j + 6, i + 7,
                                   j + 7);
#elif CLEAR_WIDTH == 8
    return __builtin_shufflevector(a, b, i, j, i + 1, j + 1, i + 2, j + 2, i + 3, j + 3);
#else
    return __builtin_shufflevector(a, b, i, j, i + 1, j + 1);
#endif
}

// to [columns, rows] = the transpose of from [rows, columns], both sizes multiples of kWidth.
inline void transpose(int64_t rows, int64_t columns, const float* from, int64_t from_row, float* to, int64_t to_row) {
    for (int64_t i = 0; i < rows; i += kWidth)
        for (int64_t j = 0; j < columns; j += kWidth) {
            Floats x[kWidth], y[kWidth];
#pragma GCC unroll 16
            for (int k = 0; k < kWidth; ++k) x[k] = load(from + (i + k) * from_row + j);
#pragma GCC unroll 4
            for (int step = 1; step < kWidth; step *= 2) {
#pragma GCC unroll 16
                for (int k = 0; k < kWidth / 2; ++k) {
                    y[2 * k] = zip<0>(x[k], x[k + kWidth / 2]);
                    y[2 * k + 1] = zip<kWidth / 2>(x[k], x[k + kWidth / 2]);
                }
#pragma GCC unroll 16
                for (int k = 0; k < kWidth; ++k) x[k] = y[k];
            }
#pragma GCC unroll 16
            for (int k = 0; k < kWidth; ++k) store(to + (j + k) * to_row + i, x[k]);
        }
}

}  // namespace
