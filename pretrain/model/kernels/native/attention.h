// Self-attention of sequences laid end to end: one task for each sequence and head, whose matrices stay in the core's cache.
//
// Products, scores and softmax are float32. Nothing of size length * length is stored: the backward computes the probabilities again
// from the queries, the keys and the rows' log-sum-exp, and dropout from its hash.

#pragma once

#include "hash.h"
#include "matrix.h"
#include "rows.h"

namespace {

struct Heads {
    int64_t count, size;
    float scale;
    int64_t half_window;  // negative: none
};

constexpr int64_t kQueries = 32;  // of a block: its scores stay in the second-level cache up to 4,000 keys

// Floats between the rows of a matrix with `columns` columns: whole vectors, and an odd number of cache lines, since rows a power of 2
// apart would share a few sets of the cache.
inline int64_t row_stride(int64_t columns) {
    const int64_t lines = rounded_up(columns, 16) / 16;
    return 16 * (lines | 1);
}

// Keys of a sequence that consecutive queries see, or more of them.
struct Seen {
    int64_t first, end;

    Seen from_whole_vector() const { return {first / kWidth * kWidth, end}; }
    int64_t padded() const { return rounded_up(end - first, kWidth); }
    // Scores from a key on, minus infinity where there is none, or it is not seen.
    CLEAR_INLINE Floats mask(Floats scores, int64_t key) const {
        if (key >= first && key + kWidth <= end) return scores;
        const Ints keys = (Ints)lanes() + static_cast<int32_t>(key);
        const Floats outside = broadcast(-INFINITY);
        scores = keys >= static_cast<int32_t>(first) ? scores : outside;
        return keys < static_cast<int32_t>(end) ? scores : outside;
    }
};

inline Seen seen_by(const Heads& heads, int64_t length, int64_t first_query, int64_t last_query) {
    if (heads.half_window < 0) return {0, length};
    return {greater(0, first_query - heads.half_window), smaller(length, last_query + heads.half_window + 1)};
}

// One head's matrices, float32, with rows and columns padded with zeros to whole vectors.
struct HeadMatrices {
    int64_t rows, columns, stride, transposed_stride;

    HeadMatrices(int64_t length, int64_t size)
        : rows(rounded_up(length, kWidth)), columns(rounded_up(size, kWidth)), stride(row_stride(columns)),
          transposed_stride(row_stride(rows)) {}
    int64_t matrix() const { return rows * stride; }
    int64_t transposed() const { return columns * transposed_stride; }

    // `from` [length, size], its rows `from_row` values apart.
    template <typename T>
    void read(const T* from, int64_t from_row, int64_t length, int64_t size, float* to) const {
        for (int64_t i = 0; i < length; ++i)
            each_vector(size, [&](int64_t c, auto left) CLEAR_LAMBDA { store(to + i * stride + c, load(from + i * from_row + c, left)); });
        std::memset(to + length * stride, 0, static_cast<size_t>((rows - length) * stride) * 4);
    }
    template <typename T>
    void write(const float* from, int64_t length, int64_t size, T* to, int64_t to_row) const {
        for (int64_t i = 0; i < length; ++i)
            each_vector(size, [&](int64_t c, auto left) CLEAR_LAMBDA { store(to + i * to_row + c, load(from + i * stride + c), left); });
    }
    void turn(const float* from, float* to) const { transpose(rows, columns, from, stride, to, transposed_stride); }
};

// qkv [tokens, 3, heads, size] -> output [tokens, heads, size]; log_sums float[heads, tokens]: each row's log-sum-exp, to base 2, for
// the backward. tokens: of the sequences and the filler behind them. offsets: [sequences + 1] first tokens.
template <typename T>
void attention_forward(int64_t tokens, int64_t sequences, int64_t longest, const int32_t* offsets, int64_t number, int64_t size,
                       double scale, int64_t half_window, const T* qkv, const int64_t* dropout_keys, int64_t site, double rate,
                       T* output, float* log_sums, int threads) {
    const Heads heads{number, size, static_cast<float>(scale), half_window};
    const Dropout dropout(dropout_keys, site, rate);
    const int64_t token = heads.count * heads.size;
    const int64_t real = offsets[sequences];
    std::memset(static_cast<void*>(output + real * token), 0, static_cast<size_t>((tokens - real) * token) * sizeof(T));
    const HeadMatrices most(longest, heads.size);
    const float exponent = heads.scale * kLog2E;  // 2 ** (exponent * product) = e ** (scale * product)
    const int64_t tasks = sequences * heads.count;
#pragma omp parallel num_threads(threads)
    {
        const NoDenormals guard;
        Buffer buffer(3 * most.matrix() + most.transposed() + kQueries * (most.transposed_stride + most.stride));
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t sequence = sequences - 1 - task / heads.count, head = task % heads.count;  // the longest ones first
            const int64_t first = offsets[sequence], length = offsets[sequence + 1] - first;
            const HeadMatrices shape(length, heads.size);
            float* queries = buffer.data;
            float* keys = queries + shape.matrix();
            float* values = keys + shape.matrix();
            float* keys_turned = values + shape.matrix();
            float* scores = keys_turned + shape.transposed();
            float* result = scores + kQueries * shape.transposed_stride;
            const T* from = qkv + first * 3 * token + head * heads.size;
            shape.read(from, 3 * token, length, heads.size, queries);
            shape.read(from + token, 3 * token, length, heads.size, keys);
            shape.read(from + 2 * token, 3 * token, length, heads.size, values);
            shape.turn(keys, keys_turned);
            const int64_t scores_row = shape.transposed_stride;
            for (int64_t block = 0; block < length; block += kQueries) {
                const int64_t count = smaller(kQueries, length - block);
                const Seen seen = seen_by(heads, length, block, block + count - 1).from_whole_vector();
                const int64_t padded = seen.padded();
                multiply(count, padded, shape.columns, {queries + block * shape.stride, shape.stride, 1}, keys_turned + seen.first,
                         scores_row, scores, scores_row, false);
                float factors[kQueries];
                for (int64_t i = 0; i < count; ++i) {
                    float* row = scores + i * scores_row;
                    const Seen own = seen_by(heads, length, block + i, block + i);
                    Floats top = broadcast(-INFINITY);
                    for (int64_t j = 0; j < padded; j += kWidth) {
                        const Floats score = own.mask(load(row + j) * exponent, seen.first + j);
                        store(row + j, score);
                        top = larger(score, top);
                    }
                    const float highest = largest(top);
                    Floats total{};
                    with_dropout(dropout, first + block + i, head * 65536 + seen.first, [&](const auto& drop) CLEAR_LAMBDA {
                        for (int64_t j = 0; j < padded; j += kWidth) {
                            const Floats value = exp2_negative(load(row + j) - highest);
                            total += value;
                            store(row + j, drop(value, j));
                        }
                    });
                    const float all = sum(total);
                    factors[i] = 1.0f / all;
                    log_sums[head * tokens + first + block + i] = highest + log2f(all);
                }
                multiply(count, shape.columns, seen.end - seen.first, {scores, scores_row, 1}, values + seen.first * shape.stride,
                         shape.stride, result, shape.stride, false);
                for (int64_t i = 0; i < count; ++i)
                    each_vector(heads.size, [&](int64_t c, auto left) CLEAR_LAMBDA {
                        store(output + (first + block + i) * token + head * heads.size + c,
                              load(result + i * shape.stride + c) * factors[i], left);
                    });
            }
        }
    }
}

// gradient [tokens, heads, size] of the output -> qkv_gradient [tokens, 3, heads, size].
template <typename T>
void attention_backward(int64_t tokens, int64_t sequences, int64_t longest, const int32_t* offsets, int64_t number, int64_t size,
                        double scale, int64_t half_window, const T* qkv, const int64_t* dropout_keys, int64_t site, double rate,
                        const float* log_sums, const T* gradient, T* qkv_gradient, int threads) {
    const Heads heads{number, size, static_cast<float>(scale), half_window};
    const Dropout dropout(dropout_keys, site, rate);
    const int64_t token = heads.count * heads.size;
    const int64_t real = offsets[sequences];
    std::memset(static_cast<void*>(qkv_gradient + real * 3 * token), 0,
                static_cast<size_t>((tokens - real) * 3 * token) * sizeof(T));
    const HeadMatrices most(longest, heads.size);
    const float exponent = heads.scale * kLog2E;  // 2 ** (exponent * product) = e ** (scale * product)
    const int64_t tasks = sequences * heads.count;
#pragma omp parallel num_threads(threads)
    {
        const NoDenormals guard;
        Buffer buffer(7 * most.matrix() + 2 * most.transposed() + 3 * kQueries * most.transposed_stride);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t sequence = sequences - 1 - task / heads.count, head = task % heads.count;
            const int64_t first = offsets[sequence], length = offsets[sequence + 1] - first;
            const HeadMatrices shape(length, heads.size);
            float* queries = buffer.data;
            float* keys = queries + shape.matrix();
            float* values = keys + shape.matrix();
            float* outputs = values + shape.matrix();  // gradients of them
            float* query_gradients = outputs + shape.matrix();
            float* key_gradients = query_gradients + shape.matrix();
            float* value_gradients = key_gradients + shape.matrix();
            float* keys_turned = value_gradients + shape.matrix();
            float* values_turned = keys_turned + shape.transposed();
            float* probabilities = values_turned + shape.transposed();
            float* dropped = probabilities + kQueries * shape.transposed_stride;  // the probabilities after dropout
            float* gradients = dropped + kQueries * shape.transposed_stride;      // of the probabilities, then of the scores
            const int64_t start = first * 3 * token + head * heads.size;
            shape.read(qkv + start, 3 * token, length, heads.size, queries);
            shape.read(qkv + start + token, 3 * token, length, heads.size, keys);
            shape.read(qkv + start + 2 * token, 3 * token, length, heads.size, values);
            shape.read(gradient + first * token + head * heads.size, token, length, heads.size, outputs);
            shape.turn(keys, keys_turned);
            shape.turn(values, values_turned);
            std::memset(key_gradients, 0, static_cast<size_t>(2 * shape.matrix()) * 4);
            const int64_t row_size = shape.transposed_stride;
            for (int64_t block = 0; block < length; block += kQueries) {
                const int64_t count = smaller(kQueries, length - block);
                const Seen seen = seen_by(heads, length, block, block + count - 1).from_whole_vector();
                const int64_t padded = seen.padded(), keys_seen = seen.end - seen.first;
                const Strided block_queries{queries + block * shape.stride, shape.stride, 1};
                const Strided block_outputs{outputs + block * shape.stride, shape.stride, 1};
                multiply(count, padded, shape.columns, block_queries, keys_turned + seen.first, row_size, probabilities, row_size, false);
                multiply(count, padded, shape.columns, block_outputs, values_turned + seen.first, row_size, gradients, row_size, false);
                for (int64_t i = 0; i < count; ++i) {
                    float* probability = probabilities + i * row_size;
                    float* after = dropped + i * row_size;
                    float* slope = gradients + i * row_size;
                    const Seen own = seen_by(heads, length, block + i, block + i);
                    const float log_sum = log_sums[head * tokens + first + block + i];
                    Floats product{};
                    with_dropout(dropout, first + block + i, head * 65536 + seen.first, [&](const auto& drop) CLEAR_LAMBDA {
                        for (int64_t j = 0; j < padded; j += kWidth) {
                            const Floats score = own.mask(load(probability + j) * exponent - log_sum, seen.first + j);
                            const Floats value = exp2_negative(score);
                            const Floats kept = drop(value, j);
                            // The gradient of a dropped probability is 0, and that of a kept one has the factor: with
                            // p * g = kept * slope, its value is not needed where p is 0.
                            product += kept * load(slope + j);
                            store(probability + j, value);
                            store(after + j, kept);
                        }
                    });
                    const float mean = sum(product);
                    for (int64_t j = 0; j < padded; j += kWidth)
                        store(slope + j, (load(after + j) * load(slope + j) - load(probability + j) * mean) * heads.scale);
                }
                multiply(keys_seen, shape.columns, count, {dropped, 1, row_size}, block_outputs.data, shape.stride,
                         value_gradients + seen.first * shape.stride, shape.stride, true);
                multiply(keys_seen, shape.columns, count, {gradients, 1, row_size}, block_queries.data, shape.stride,
                         key_gradients + seen.first * shape.stride, shape.stride, true);
                multiply(count, shape.columns, keys_seen, {gradients, row_size, 1}, keys + seen.first * shape.stride, shape.stride,
                         query_gradients + block * shape.stride, shape.stride, false);
            }
            shape.write(query_gradients, length, heads.size, qkv_gradient + start, 3 * token);
            shape.write(key_gradients, length, heads.size, qkv_gradient + start + token, 3 * token);
            shape.write(value_gradients, length, heads.size, qkv_gradient + start + 2 * token, 3 * token);
        }
    }
}

}  // namespace
