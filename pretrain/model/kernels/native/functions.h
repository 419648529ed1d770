// The functions of one instruction set, as pretrain/model/kernels/native.py calls them: plain pointers and sizes.
//
// CLEAR_NAME(function) adds the instruction set's suffix. `type` of activations: 0 bfloat16, 1 float32, 2 (add_norm only) bfloat16 with a
// float32 residual. `behind`: the dropout is that of the norm's result, and not of what is added. Pointers that a kernel documents as
// optional may be null.

#include "attention.h"
#include "gelu.h"
#include "norm.h"

#define CLEAR_EXPORT extern "C" __attribute__((visibility("default"))) void

namespace {

Dropout make_dropout(const void* keys, int64_t site, double rate) {
    return {static_cast<const int64_t*>(keys), static_cast<uint64_t>(site), static_cast<uint32_t>(rate * 4294967296.0),
            keys ? static_cast<float>(1.0 / (1.0 - rate)) : 1.0f};
}

template <typename To>
To* as(void* pointer) {
    return static_cast<To*>(pointer);
}
template <typename To>
const To* as(const void* pointer) {
    return static_cast<const To*>(pointer);
}

template <typename X, typename R>
void call_add_norm_forward(int64_t rows, int64_t columns, const void* x, const void* bias, const void* residual, const void* weight,
                           const void* norm_bias, double eps, Dropout dropout, Dropout behind, void* added, void* normed,
                           void* statistics, int threads) {
    add_norm_forward<X, R>(rows, columns, as<X>(x), as<float>(bias), as<R>(residual), as<float>(weight), as<float>(norm_bias),
                           static_cast<float>(eps), dropout, behind, as<R>(added), as<R>(normed), as<Statistics>(statistics),
                           threads);
}

template <typename X, typename R>
void call_add_norm_backward(int64_t rows, int64_t columns, const void* added, const void* statistics, const void* weight,
                            Dropout dropout, Dropout behind, const void* added_gradient, const void* normed_gradient,
                            void* x_gradient, void* residual_gradient, void* bias_gradient, void* norm_gradients, int threads) {
    add_norm_backward<X, R>(rows, columns, as<R>(added), as<Statistics>(statistics), as<float>(weight), dropout, behind,
                            as<R>(added_gradient), as<R>(normed_gradient), as<X>(x_gradient), as<R>(residual_gradient),
                            as<float>(bias_gradient), as<float>(norm_gradients), threads);
}

}  // namespace

CLEAR_EXPORT CLEAR_NAME(add_norm_forward)(int type, int64_t rows, int64_t columns, const void* x, const void* bias,
                                          const void* residual, const void* weight, const void* norm_bias, double eps,
                                          const void* keys, int64_t site, double rate, int behind, void* added, void* normed,
                                          void* statistics, int threads) {
    const Dropout dropout = make_dropout(keys, site, rate), none = make_dropout(nullptr, 0, 0);
    const auto call = type == 0   ? call_add_norm_forward<BFloat16, BFloat16>
                      : type == 1 ? call_add_norm_forward<float, float>
                                  : call_add_norm_forward<BFloat16, float>;
    call(rows, columns, x, bias, residual, weight, norm_bias, eps, behind ? none : dropout, behind ? dropout : none, added, normed,
         statistics, threads);
}

CLEAR_EXPORT CLEAR_NAME(add_norm_backward)(int type, int64_t rows, int64_t columns, const void* added, const void* statistics,
                                           const void* weight, const void* keys, int64_t site, double rate, int behind,
                                           const void* added_gradient, const void* normed_gradient, void* x_gradient,
                                           void* residual_gradient, void* bias_gradient, void* norm_gradients, int threads) {
    const Dropout dropout = make_dropout(keys, site, rate), none = make_dropout(nullptr, 0, 0);
    const auto call = type == 0   ? call_add_norm_backward<BFloat16, BFloat16>
                      : type == 1 ? call_add_norm_backward<float, float>
                                  : call_add_norm_backward<BFloat16, float>;
    call(rows, columns, added, statistics, weight, behind ? none : dropout, behind ? dropout : none, added_gradient, normed_gradient,
         x_gradient, residual_gradient, bias_gradient, norm_gradients, threads);
}

CLEAR_EXPORT CLEAR_NAME(bias_gelu_forward)(int type, int64_t rows, int64_t columns, const void* x, const void* bias, void* y,
                                           int threads) {
    if (type == 0) return bias_gelu_forward(rows, columns, as<BFloat16>(x), as<float>(bias), as<BFloat16>(y), threads);
    bias_gelu_forward(rows, columns, as<float>(x), as<float>(bias), as<float>(y), threads);
}

CLEAR_EXPORT CLEAR_NAME(bias_gelu_backward)(int type, int64_t rows, int64_t columns, const void* x, const void* bias,
                                            const void* gradient, void* x_gradient, void* bias_gradient, int threads) {
    if (type == 0)
        return bias_gelu_backward(rows, columns, as<BFloat16>(x), as<float>(bias), as<BFloat16>(gradient), as<BFloat16>(x_gradient),
                                  as<float>(bias_gradient), threads);
    bias_gelu_backward(rows, columns, as<float>(x), as<float>(bias), as<float>(gradient), as<float>(x_gradient),
                       as<float>(bias_gradient), threads);
}

CLEAR_EXPORT CLEAR_NAME(gelu_gate_forward)(int type, int64_t rows, int64_t columns, const void* x, void* y, int threads) {
    if (type == 0) return gelu_gate_forward(rows, columns, as<BFloat16>(x), as<BFloat16>(y), threads);
    gelu_gate_forward(rows, columns, as<float>(x), as<float>(y), threads);
}

CLEAR_EXPORT CLEAR_NAME(gelu_gate_backward)(int type, int64_t rows, int64_t columns, const void* x, const void* gradient,
                                            void* x_gradient, int threads) {
    if (type == 0)
        return gelu_gate_backward(rows, columns, as<BFloat16>(x), as<BFloat16>(gradient), as<BFloat16>(x_gradient), threads);
    gelu_gate_backward(rows, columns, as<float>(x), as<float>(gradient), as<float>(x_gradient), threads);
}

CLEAR_EXPORT CLEAR_NAME(attention_forward)(int type, int64_t tokens, int64_t sequences, int64_t longest, const void* offsets,
                                           int64_t heads, int64_t size, double scale, int64_t half_window, const void* qkv,
                                           const void* keys, int64_t site, double rate, void* output, void* log_sums, int threads) {
    const Sequences all{as<int32_t>(offsets), sequences, longest, tokens};
    const Heads shape{heads, size, static_cast<float>(scale), half_window};
    const Dropout dropout = make_dropout(keys, site, rate);
    if (type == 0)
        return attention_forward(all, shape, as<BFloat16>(qkv), dropout, as<BFloat16>(output), as<float>(log_sums), threads);
    attention_forward(all, shape, as<float>(qkv), dropout, as<float>(output), as<float>(log_sums), threads);
}

CLEAR_EXPORT CLEAR_NAME(attention_backward)(int type, int64_t tokens, int64_t sequences, int64_t longest, const void* offsets,
                                            int64_t heads, int64_t size, double scale, int64_t half_window, const void* qkv,
                                            const void* keys, int64_t site, double rate, const void* log_sums, const void* gradient,
                                            void* qkv_gradient, int threads) {
    const Sequences all{as<int32_t>(offsets), sequences, longest, tokens};
    const Heads shape{heads, size, static_cast<float>(scale), half_window};
    const Dropout dropout = make_dropout(keys, site, rate);
    if (type == 0)
        return attention_backward(all, shape, as<BFloat16>(qkv), dropout, as<float>(log_sums), as<BFloat16>(gradient),
                                  as<BFloat16>(qkv_gradient), threads);
    attention_backward(all, shape, as<float>(qkv), dropout, as<float>(log_sums), as<float>(gradient), as<float>(qkv_gradient), threads);
}
