// gelu(x) = x * cdf(x), cdf the normal distribution's, and its derivative cdf(x) + x * density(x).

#pragma once

#include "rows.h"

namespace {

struct Normal {
    Floats cdf, density;
};

// The distribution and its density, both to 1e-6 of their value: one exponential gives the two.
//
// cdf(-|x|) = exp(-x * x / 2) * t * polynomial(t), t = 1 / (1 + p |x|): the form of Abramowitz and Stegun 7.1.26, with a polynomial of
// degree 7 fitted to erfcx on [0, 9.5] for the smallest relative error (1.2e-7, before rounding to float32). Relative to the value and
// not to 1, so that the tails of gelu are as exact as its middle, where 1 + erf(x) would cancel.
CLEAR_INLINE Normal normal(Floats x) {
    const Floats exponential = exp2_negative(x * x * (-0.5f * kLog2E));
    const Floats size = x < 0.0f ? -x : x;
    const Floats t = 1.0f / (size * 0.3005204f + 1.0f);
    Floats y = t * 3.6097404e-02f - 1.5807132e-01f;
    y = y * t + 2.063816e-01f;
    y = y * t - 5.3994335e-02f;
    y = y * t + 1.2879728e-01f;
    y = y * t + 9.997265e-02f;
    y = y * t + 1.20981336e-01f;
    y = y * t + 1.19835325e-01f;
    const Floats tail = y * t * exponential;
    return {x < 0.0f ? tail : 1.0f - tail, exponential * 0.3989422804f};
}

CLEAR_INLINE Floats gelu(Floats x) { return x * normal(x).cdf; }

template <typename T>
void bias_gelu_forward(int64_t rows, int64_t columns, const T* x, const float* bias, T* y, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * columns;
        T* to = y + row * columns;
        each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
            Floats value = load(from + c, left);
            if (bias) value += load(bias + c, left);
            store(to + c, gelu(value), left);
        });
    }
}

// bias_gradient: float[columns], or null where there is no bias.
template <typename T>
void bias_gelu_backward(int64_t rows, int64_t columns, const T* x, const float* bias, const T* gradient, T* x_gradient,
                        float* bias_gradient, int threads) {
    const Chunks chunks(rows);
    const int64_t stride = rounded_up(columns, kWidth);
    Buffer partial(bias_gradient ? chunks.count * stride : 0);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
        const NoDenormals guard;
        float* sums = partial.data + chunk * stride;
        if (bias_gradient) std::memset(sums, 0, static_cast<size_t>(stride) * 4);
        for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
            const int64_t start = row * columns;
            each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
                Floats value = load(x + start + c, left);
                if (bias) value += load(bias + c, left);
                const Normal at = normal(value);
                const Floats result = load(gradient + start + c, left) * (at.cdf + value * at.density);
                store(x_gradient + start + c, result, left);
                if (bias_gradient) add_to(sums + c, result);
            });
        }
    }
    if (bias_gradient) add_chunks(partial.data, chunks.count, stride, columns, bias_gradient);
}

// x [rows, 2 * columns]: gelu of the first half of a row times the second.
template <typename T>
void gelu_gate_forward(int64_t rows, int64_t columns, const T* x, T* y, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const T* inner = x + 2 * row * columns;
        const T* gate = inner + columns;
        T* to = y + row * columns;
        each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
            store(to + c, gelu(load(inner + c, left)) * load(gate + c, left), left);
        });
    }
}

template <typename T>
void gelu_gate_backward(int64_t rows, int64_t columns, const T* x, const T* gradient, T* x_gradient, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const T* inner = x + 2 * row * columns;
        const T* gate = inner + columns;
        T* inner_gradient = x_gradient + 2 * row * columns;
        T* gate_gradient = inner_gradient + columns;
        each_vector(columns, [&](int64_t c, auto left) CLEAR_LAMBDA {
            const Floats value = load(inner + c, left), dy = load(gradient + row * columns + c, left);
            const Normal at = normal(value);
            store(inner_gradient + c, dy * load(gate + c, left) * (at.cdf + value * at.density), left);
            store(gate_gradient + c, dy * value * at.cdf, left);
        });
    }
}

}  // namespace
