// Layer norm, with what surrounds it in a layer: bias, dropout and residual before it, or dropout behind it.

#pragma once

#include "hash.h"
#include "rows.h"

namespace {

struct Statistics {
    float mean, rstd;
};

// Of one row, `values` padded with zeros to whole vectors. Two passes: squares of differences do not cancel.
inline Statistics statistics(const float* values, int64_t columns, float eps) {
    Floats total{};
    for (int64_t c = 0; c < columns; c += kWidth) total += load(values + c);
    const float mean = sum(total) / static_cast<float>(columns);
    Floats squares{};
    int64_t c = 0;
    for (; c + kWidth <= columns; c += kWidth) {
        const Floats difference = load(values + c) - mean;
        squares += difference * difference;
    }
    float variance = sum(squares);
    for (; c < columns; ++c) variance += (values[c] - mean) * (values[c] - mean);
    return {mean, 1.0f / __builtin_sqrtf(variance / static_cast<float>(columns) + eps)};
}

// added = residual + before(x + bias), of type R; normed = after(its layer norm), from the sum before rounding; the dropout is one of the
// two. bias, residual, norm_bias, added and the dropout's keys may be null. statistics: [rows] pairs for the backward.
template <typename X, typename R>
void add_norm_forward(int64_t rows, int64_t columns, const X* x, const float* bias, const R* residual, const float* weight,
                      const float* norm_bias, double eps, const int64_t* keys, int64_t site, double rate, int behind, R* added,
                      R* normed, Statistics* saved, int threads) {
    const Dropout before(behind ? nullptr : keys, site, rate), after(behind ? keys : nullptr, site, rate);
#pragma omp parallel num_threads(threads)
    {
        const NoDenormals guard;
        Buffer buffer(rounded_up(columns, kWidth));
        float* values = buffer.data;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t start = row * columns;
            with_dropout(before, row, 0, [&](const auto& drop) CLEAR_LAMBDA {
                each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
                    Floats value = load(x + start + c, left);
                    if (bias) value += load(bias + c, left);
                    value = drop(value, c);
                    if (residual) value += load(residual + start + c, left);
                    store(values + c, value);
                    if (added) store(added + start + c, value, left);
                });
            });
            const Statistics at = statistics(values, columns, static_cast<float>(eps));
            saved[row] = at;
            with_dropout(after, row, 0, [&](const auto& drop) CLEAR_LAMBDA {
                each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
                    Floats value = (load(values + c) - at.mean) * at.rstd * load(weight + c, left);
                    if (norm_bias) value += load(norm_bias + c, left);
                    store(normed + start + c, drop(value, c), left);
                });
            });
        }
    }
}

// Both gradients that come in may be null, and so may x_gradient (where it equals the residual's), residual_gradient and bias_gradient.
// norm_gradients: float[2, columns], the weight's and the norm bias's.
template <typename X, typename R>
void add_norm_backward(int64_t rows, int64_t columns, const R* added, const Statistics* saved, const float* weight,
                       const int64_t* keys, int64_t site, double rate, int behind, const R* added_gradient,
                       const R* normed_gradient, X* x_gradient, R* residual_gradient, float* bias_gradient, float* norm_gradients,
                       int threads) {
    const Dropout before(behind ? nullptr : keys, site, rate), after(behind ? keys : nullptr, site, rate);
    const Chunks chunks(rows);
    const int64_t stride = rounded_up(columns, kWidth);
    Buffer partial(3 * chunks.count * stride);
    const float share = 1.0f / static_cast<float>(columns);
#pragma omp parallel num_threads(threads)
    {
        const NoDenormals guard;
        Buffer buffer(2 * stride);
        float* scaled = buffer.data;
        float* normal = buffer.data + stride;
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
            float* weight_sums = partial.data + 3 * chunk * stride;
            float* norm_bias_sums = weight_sums + stride;
            float* bias_sums = norm_bias_sums + stride;
            std::memset(weight_sums, 0, static_cast<size_t>(3 * stride) * 4);
            for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
                const int64_t start = row * columns;
                const Statistics at = saved[row];
                float mean = 0, projection = 0;
                if (normed_gradient) {
                    Floats total{}, product{};
                    with_dropout(after, row, 0, [&](const auto& drop) CLEAR_LAMBDA {
                        each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
                            const Floats dy = drop(load(normed_gradient + start + c, left), c);
                            const Floats value = (load(added + start + c, left) - at.mean) * at.rstd;
                            const Floats dx = dy * load(weight + c, left);
                            add_to(weight_sums + c, dy * value);
                            add_to(norm_bias_sums + c, dy);
                            total += dx;
                            product += dx * value;
                            store(scaled + c, dx);
                            store(normal + c, value);
                        });
                    });
                    mean = sum(total) * share;
                    projection = sum(product) * share;
                }
                with_dropout(before, row, 0, [&](const auto& drop) CLEAR_LAMBDA {
                    each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
                        Floats dx{};
                        if (normed_gradient) dx = (load(scaled + c) - mean - load(normal + c) * projection) * at.rstd;
                        if (added_gradient) dx += load(added_gradient + start + c, left);
                        if (residual_gradient) store(residual_gradient + start + c, dx, left);
                        dx = drop(dx, c);
                        if (x_gradient) store(x_gradient + start + c, dx, left);
                        if (bias_gradient) add_to(bias_sums + c, dx);
                    });
                });
            }
        }
    }
    add_chunks(partial.data, chunks.count, 3 * stride, columns, norm_gradients);
    add_chunks(partial.data + stride, chunks.count, 3 * stride, columns, norm_gradients + columns);
    if (bias_gradient) add_chunks(partial.data + 2 * stride, chunks.count, 3 * stride, columns, bias_gradient);
}

}  // namespace
