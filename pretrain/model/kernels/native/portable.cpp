// The kernels for any processor: vectors of 128 bits (SSE2, NEON), or what the compiler makes of them.

#include "headers.h"

#define CLEAR_WIDTH 4
#define CLEAR_NAME(function) function##_portable

#include "functions.h"
