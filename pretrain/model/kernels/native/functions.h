// The functions of one instruction set, as pretrain/model/kernels/native.py calls them, with plain pointers and sizes: for each kernel and
// type of activations a pointer to the function, under the name kernel_type_set. CLEAR_NAME(function) adds the instruction set's suffix.
//
// `behind` of the norms: the dropout is that of the norm's result, and not of what is added. Pointers that a kernel documents as optional
// may be null.

#include "attention.h"
#include "gelu.h"
#include "norm.h"

#define CLEAR_KERNEL(name, type, ...) __attribute__((visibility("default"))) auto CLEAR_NAME(name##_##type) = name<__VA_ARGS__>;
#define CLEAR_NORM(name) \
    CLEAR_KERNEL(name, bfloat16, BFloat16, BFloat16) CLEAR_KERNEL(name, float32, float, float) CLEAR_KERNEL(name, mixed, BFloat16, float)
#define CLEAR_KERNELS(name) CLEAR_KERNEL(name, bfloat16, BFloat16) CLEAR_KERNEL(name, float32, float)

extern "C" {
CLEAR_NORM(add_norm_forward)
CLEAR_NORM(add_norm_backward)
CLEAR_KERNELS(bias_gelu_forward)
CLEAR_KERNELS(bias_gelu_backward)
CLEAR_KERNELS(gelu_gate_forward)
CLEAR_KERNELS(gelu_gate_backward)
CLEAR_KERNELS(attention_forward)
CLEAR_KERNELS(attention_backward)
}
