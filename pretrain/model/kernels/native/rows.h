// What the row kernels share: the division of rows among threads, and column sums that do not depend on it.

#pragma once

#include "vectors.h"

namespace {

// Treats denormal numbers as 0 while it lives: operations on them are up to a hundred times slower on some processors.
struct NoDenormals {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    NoDenormals() { _mm_setcsr(before | 0x8040); }
    ~NoDenormals() { _mm_setcsr(before); }
#endif
};

constexpr int64_t kMostChunks = 32;

// Rows in chunks of a number that depends on their count alone: each chunk sums its own columns, and the chunks' sums are added in
// order, so that results have the same bits whatever the number of threads.
struct Chunks {
    int64_t rows, size, count;

    explicit Chunks(int64_t all_rows) : rows(all_rows) {
        size = greater((rows + kMostChunks - 1) / kMostChunks, 16);
        count = (rows + size - 1) / size;
    }
    int64_t begin(int64_t chunk) const { return chunk * size; }
    int64_t end(int64_t chunk) const { return smaller(rows, (chunk + 1) * size); }
};

// Memory of one call, aligned to a cache line.
struct Buffer {
    float* data;

    explicit Buffer(int64_t floats)
        : data(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(rounded_up(greater(floats, 1) * 4, 64))))) {}
    ~Buffer() { std::free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
};

// Adds x to the running sums of columns.
CLEAR_INLINE void add_to(float* sums, Floats x) { store(sums, load(sums) + x); }

// Adds the chunks' sums [chunks, columns] into `result` [columns]; rows of `partial` are `stride` apart.
inline void add_chunks(const float* partial, int64_t chunks, int64_t stride, int64_t columns, float* result) {
    each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
        Floats total{};
        for (int64_t chunk = 0; chunk < chunks; ++chunk) total += load(partial + chunk * stride + c);
        store(result + c, total, left);
    });
}

}  // namespace
