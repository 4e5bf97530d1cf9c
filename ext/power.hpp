// Powers of many numbers: x^a for x >= 0 and 0 <= a <= 1, with 0^a = 0 for every a.
//
// Written here because a C library has no vector of `pow`, and the fast ones of others give other bits on other
// processors. Only additions, products, quotients and fused products: rounded the same everywhere, so that all kernels
// agree to the bit. The error is below 0.65 units in the last place; x^1 is x, and x^0 is 1.
#pragma once

#include "kernels.hpp"

#if defined(__x86_64__)
#define PARL_FMA_AVX2 __attribute__((target("avx2,fma")))
#define PARL_FMA_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#endif

namespace parl {

constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 42 bits of ln 2: its product with an exponent is exact
constexpr double kLn2Low = 0x1.ef35793c7673p-45;
constexpr double kPerLn2 = 0x1.71547652b82fep0;
constexpr double kRounder = 0x1.8p52;  // adding it rounds to an integer, which then lies in the low bits

inline double from_bits(uint64_t bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// The functions below are inlined into one loop, where the compiler makes vectors of them: no branches, and no
// operation that only one side of a choice needs.
#define PARL_INLINE __attribute__((always_inline)) inline

// 2/N + 2/(N+2) z + ... + 2/23 z^k. With z = s^2 <= 0.0295, ln((1 + s) / (1 - s)) = 2 s + s z log_terms<3>(z).
template <int N>
PARL_INLINE double log_terms(double z) {
    if constexpr (N == 23)
        return 2.0 / N;
    else
        return __builtin_fma(log_terms<N + 2>(z), z, 2.0 / N);
}

constexpr double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }

// 1/N! + r/(N+1)! + ... + r^k/13!. For |r| <= 0.35, e^r = 1 + r + r^2 exp_terms<2>(r).
template <int N>
PARL_INLINE double exp_terms(double r) {
    constexpr double first = 1.0 / factorial(N);
    if constexpr (N == 13)
        return first;
    else
        return __builtin_fma(exp_terms<N + 1>(r), r, first);
}

// ln x = high + low, to about 60 bits behind the point. x = 2^e m with m in [sqrt(1/2), sqrt(2)), and
// ln m = ln((1 + s) / (1 - s)) with s = (m - 1) / (m + 1).
PARL_INLINE void log_of(double x, double* high, double* low) {
    const double is_subnormal = x < 0x1p-1022 ? 1.0 : 0.0;
    const uint64_t bits = (uint64_t)bits_of(x * (is_subnormal * 0x1p54 + (1.0 - is_subnormal)));
    const uint64_t biased = (bits + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd)) >> 52;
    const double m = from_bits(bits - (biased << 52) + 0x3ff0000000000000);
    const double e = from_bits(biased | 0x4330000000000000) - (0x1p52 + 1023) - 54.0 * is_subnormal;
    const double f = m - 1.0, t = m + 1.0, s = f / t;
    const double s_low = (__builtin_fma(-s, t, f) - s * (m - (t - 1.0))) / t;
    const double whole = e * kLn2High;
    *high = whole + 2.0 * s;
    *low = (2.0 * s - (*high - whole)) + (__builtin_fma(s * (s * s), log_terms<3>(s * s), 2.0 * s_low) + e * kLn2Low);
}

// e^(high + low) for a sum in [-746, 709]: 2^k e^r with r = high + low - k ln 2.
PARL_INLINE double exp_of(double high, double low) {
    const double shifted = __builtin_fma(high, kPerLn2, kRounder);
    const double k = shifted - kRounder;
    const double near = __builtin_fma(-k, kLn2High, high), far = __builtin_fma(-k, kLn2Low, low);
    const double r = near + far, r_low = far - (r - near);
    const double one = 1.0 + r;
    const double value = one + ((r - (one - 1.0)) + __builtin_fma(r * r, exp_terms<2>(r), r_low * one));
    const bool is_tiny = k < -1000.0;  // its exponent may lie below that of all normal numbers
    const uint64_t bits = (uint64_t)bits_of(value) + ((uint64_t)bits_of(shifted) << 52);
    return from_bits(bits + (is_tiny ? (uint64_t)128 << 52 : 0)) * (is_tiny ? 0x1p-128 : 1.0);
}

PARL_INLINE void power_loop(int64_t n, const double* x, double a, double* out) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        double high, low;
        log_of(x[i], &high, &low);
        const double y = a * high;
        const double value = exp_of(y, __builtin_fma(a, high, -y) + a * low);
        out[i] = value * (x[i] > 0.0 ? 1.0 : 0.0);
    }
}

using Power = void (*)(int64_t n, const double* x, double a, double* out);

inline void power_portable(int64_t n, const double* x, double a, double* out) { power_loop(n, x, a, out); }

#if defined(__x86_64__)
PARL_FMA_AVX2 inline void power_avx2(int64_t n, const double* x, double a, double* out) { power_loop(n, x, a, out); }
PARL_FMA_AVX512 inline void power_avx512(int64_t n, const double* x, double a, double* out) {
    power_loop(n, x, a, out);
}
#endif

inline Power power_of(Kernel kernel) {
#if defined(__x86_64__)
    if (kernel != kPortable && !__builtin_cpu_supports("fma")) return power_portable;
    if (kernel == kAvx512) return power_avx512;
    if (kernel == kAvx2) return power_avx2;
#endif
    return power_portable;
}

inline Power fastest_power() {
    return power_of(is_available(kAvx512) ? kAvx512 : is_available(kAvx2) ? kAvx2 : kPortable);
}

// (min(magnitude, largest) + eps)^alpha.
inline void prioritize(Power power, int64_t n, const double* magnitudes, double largest, double eps, double alpha,
                       double* priorities) {
    const PlainArithmetic plain;
    for (int64_t i = 0; i < n; ++i) priorities[i] = smaller(magnitudes[i], largest) + eps;
    power(n, priorities, alpha, priorities);
}

// (smallest / p)^beta, smallest being the least p above 0; at least the smallest normal float, and 0 where p is 0.
inline void weigh(Power power, int64_t n, const double* probabilities, double beta, float least, float* weights) {
    const PlainArithmetic plain;
    uint64_t before = UINT64_MAX;  // bits of non-negative doubles keep their order; less 1, those of 0 come last
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t bits = (uint64_t)bits_of(probabilities[i] + 0.0) - 1;
        before = bits < before ? bits : before;
    }
    const double smallest = from_bits(before + 1);
    double ratios[kBlock];
    for (int64_t start = 0; start < n; start += kBlock) {
        const int64_t size = n - start < kBlock ? n - start : kBlock;
        const double* p = probabilities + start;
        for (int64_t i = 0; i < size; ++i) ratios[i] = p[i] > 0.0 ? smallest / p[i] : 0.0;
        power(size, ratios, beta, ratios);
        for (int64_t i = 0; i < size; ++i) {
            const float weight = (float)ratios[i];
            weights[start + i] = p[i] > 0.0 ? (weight > least ? weight : least) : 0.0f;
        }
    }
}

}  // namespace parl
