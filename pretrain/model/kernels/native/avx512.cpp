// The kernels for x86 processors with AVX-512; empty elsewhere. The target is set here and not by a compiler option, since setuptools has one
// set of options for all sources of an extension.

#if defined(__x86_64__)

#include "headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#define CLEAR_WIDTH 16
#define CLEAR_NAME(function) function##_avx512

#include "functions.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
