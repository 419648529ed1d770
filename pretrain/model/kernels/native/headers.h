// Headers of the system, included before a translation unit asks for more than the basic instruction set: whatever functions they define
// are merged across units, and must run everywhere.

#pragma once

#include <math.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
