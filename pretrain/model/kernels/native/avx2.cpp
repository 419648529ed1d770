// The kernels for x86 processors with AVX2; empty elsewhere. The target is set here and not by a compiler option, since setuptools has one
// set of options for all sources of an extension.

#if defined(__x86_64__)

#include "headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define CLEAR_WIDTH 8
#define CLEAR_NAME(function) function##_avx2

#include "functions.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
