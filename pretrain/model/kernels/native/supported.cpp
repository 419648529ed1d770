// Which of the instruction sets this processor and its operating system can run.

#define CLEAR_EXPORT extern "C" __attribute__((visibility("default")))

// Of pretrain/model/kernels/native.py: a library compiled from other sources is not used.
CLEAR_EXPORT int interface_version() { return 3; }

// 0 portable only, 1 AVX2 too, 2 AVX-512 too.
CLEAR_EXPORT int instruction_sets() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return 1;
    return 2;
#else
    return 0;
#endif
}
