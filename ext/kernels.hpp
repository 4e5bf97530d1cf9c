// Kernels of the K-ary sum tree: free functions over rows of doubles, without Python.
//
// One association of sums is shared by all kernels, so that they agree to the bit. Within every 8 siblings (or K, if
// fewer) the prefix sums follow Sklansky's network: a block's upper half adds the last prefix of its lower half, for
// blocks of 2, 4, 8. Each further 8 siblings then add the last prefix of those before them. By induction over halves:
//   I1: prefixes never fall, since a + x is monotone in both under rounding and x >= 0.
//   I2: a sibling of value 0 repeats the prefix before it exactly.
//   I3: the last prefix is the plain pairwise sum, and a parent is that number.
// So for 0 <= target < parent, counting the prefixes <= target finds a sibling that exists and is not 0; no search can
// run past its group. A prefix network with less sharing (Kogge-Stone) has neither I1 nor I2.
#pragma once

#include <cfenv>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#define PARL_AVX2 __attribute__((target("avx2,popcnt")))
#define PARL_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,popcnt")))
#endif

namespace parl {

constexpr int kMaxRows = 34;        // 2^32 leaves in pairs: 33 rows
constexpr int64_t kBlock = 256;     // draws that descend together: their lines of one level fit in the L1 cache
constexpr int64_t kSweepRatio = 4;  // a row up to 4 times as long as the list is summed whole: streaming is cheaper
constexpr int64_t kAhead = 16;      // writes whose lines are asked for before they are needed
constexpr int64_t kSumsAhead = 8;   // and sums, whose lines mostly lie in the L2 cache
constexpr double kDirty = -1.0;     // stands in a parent that must be summed again; sums are never negative

// Takes n draws from groups of `row` to one of their nodes each; `below` is the next row, null at the leaves, whose
// lines are asked for early.
using Search = void (*)(const double* row, const double* below, int64_t n, int64_t* nodes, double* rests);
// Sums the first n groups of `children` into `row`.
using Sweep = void (*)(const double* children, double* row, int64_t n);
// Sums the groups of the n nodes listed, of which some may repeat; the list can be read kSumsAhead further.
using SumListed = void (*)(const double* children, double* row, const uint32_t* nodes, int64_t n);

struct Tree {
    double* rows[kMaxRows];    // [0] the leaves, [height] the root; each padded with zeros to whole groups
    int64_t counts[kMaxRows];  // nodes of each row that are in use
    int height;
    int shift;          // log2 of the arity
    uint32_t* dirty;    // the nodes of rows[1] that hold kDirty, each once; room for all and kSumsAhead more
    int64_t num_dirty;
    Search search;
    Sweep sweep;
    SumListed sum_listed;
};

inline int64_t bits_of(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline double just_below(double x) {  // the next smaller double; x > 0
    const int64_t bits = bits_of(x) - 1;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Plain IEEE arithmetic while it lives. A thread may take subnormals for zero (torch.set_flush_denormal, libraries made
// with -ffast-math); sums made without that and searched with it would send a draw past its group.
class PlainArithmetic {
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();

  public:
    PlainArithmetic() {
        if (saved & kUnusual) _mm_setcsr(saved & ~kUnusual);
    }
    ~PlainArithmetic() {
        if (saved & kUnusual) _mm_setcsr(saved);
    }

  private:
    static constexpr unsigned kUnusual = 0xE040;  // flush to zero, rounding other than to nearest, denormals are zero
#else
    std::fenv_t saved;

  public:
    PlainArithmetic() {
        std::fegetenv(&saved);
        std::fesetenv(FE_DFL_ENV);
    }
    ~PlainArithmetic() { std::fesetenv(&saved); }
#endif
};

inline double smaller(double a, double b) { return a < b ? a : b; }

template <int K>
inline double group_sum(const double* x) {
    if constexpr (K == 1) {
        return x[0];
    } else if constexpr (K <= 8) {
        return group_sum<K / 2>(x) + group_sum<K / 2>(x + K / 2);
    } else {
        double sum = group_sum<8>(x);
        for (int c = 8; c < K; c += 8) sum += group_sum<8>(x + c);
        return sum;
    }
}

template <int K>
void sweep_portable(const double* children, double* row, int64_t n) {
    for (int64_t node = 0; node < n; ++node) {
        asm volatile("");  // keeps the loop scalar: narrow vector loads of sums just stored would wait for the stores
        row[node] = group_sum<K>(children + node * K);
    }
}

template <int K>
void sum_listed_portable(const double* children, double* row, const uint32_t* nodes, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        __builtin_prefetch(children + (int64_t)nodes[i + kSumsAhead] * K);
        row[nodes[i]] = group_sum<K>(children + (int64_t)nodes[i] * K);
    }
}

template <int K>
inline void prefixes(const double* x, double* p) {
    constexpr int width = K < 8 ? K : 8;
    for (int c = 0; c < K; c += width) {
        for (int j = 0; j < width; ++j) p[c + j] = x[c + j];
        for (int half = 1; half < width; half *= 2)
            for (int j = 0; j < width; ++j)
                if (j & half) p[c + j] += p[c + (j & -2 * half) + half - 1];
        if (c > 0)
            for (int j = 0; j < width; ++j) p[c + j] += p[c - 1];
    }
}

// Steps one draw into child `index` of its group. The rest may have been rounded up to the child's value or past it;
// it is held below, so that it stays a target of the child's group. At a leaf its value takes the place of the rest.
inline void descend(const double* group, const double* below, int arity, int64_t index, double before, int64_t* node,
                    double* rest) {
    *node = *node * arity + index;
    if (below) {
        *rest = smaller(*rest - before, just_below(group[index]));
        for (int c = 0; c < arity; c += 8) __builtin_prefetch(below + *node * arity + c);
    } else {
        *rest = group[index];
    }
}

template <int K>
void search_portable(const double* row, const double* below, int64_t n, int64_t* nodes, double* rests) {
    double before[1 + K] = {0.0};
    for (int64_t i = 0; i < n; ++i) {
        const double* group = row + nodes[i] * K;
        prefixes<K>(group, before + 1);
        int64_t index = 0;
        for (int j = 1; j <= K; ++j) index += before[j] <= rests[i];
        descend(group, below, K, index, before[index], nodes + i, rests + i);
    }
}

#if defined(__x86_64__)

PARL_AVX2 inline __m256d prefixes_of_4(__m256d x) {
    const __m256d zero = _mm256_setzero_pd();
    x = _mm256_add_pd(x, _mm256_blend_pd(zero, _mm256_movedup_pd(x), 0b1010));
    return _mm256_add_pd(x, _mm256_blend_pd(zero, _mm256_permute4x64_pd(x, 0x55), 0b1100));
}

PARL_AVX2 inline int64_t count_to(__m256d p, __m256d target) {
    return __builtin_popcount(_mm256_movemask_pd(_mm256_cmp_pd(p, target, _CMP_LE_OQ)));
}

template <int K>
PARL_AVX2 void search_avx2(const double* row, const double* below, int64_t n, int64_t* nodes, double* rests) {
    alignas(64) double before[8 + K];
    before[7] = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double* group = row + nodes[i] * K;
        const __m256d target = _mm256_set1_pd(rests[i]);
        __m256d carry = _mm256_setzero_pd();
        int64_t index = 0;
        for (int c = 0; c < K; c += 8) {
            __m256d low = prefixes_of_4(_mm256_load_pd(group + c));
            __m256d high = K > 4 ? prefixes_of_4(_mm256_load_pd(group + c + 4)) : low;
            high = _mm256_add_pd(high, _mm256_permute4x64_pd(low, 0xFF));
            if (c > 0) {
                low = _mm256_add_pd(low, carry);
                high = _mm256_add_pd(high, carry);
            }
            _mm256_store_pd(before + 8 + c, low);
            index += count_to(low, target);
            if (K > 4) {
                _mm256_store_pd(before + 12 + c, high);
                index += count_to(high, target);
                carry = _mm256_permute4x64_pd(high, 0xFF);
            }
        }
        descend(group, below, K, index, before[7 + index], nodes + i, rests + i);
    }
}

PARL_AVX512 inline __m512d prefixes_of_8(__m512d x) {
    x = _mm512_add_pd(x, _mm512_maskz_movedup_pd(0b10101010, x));
    x = _mm512_add_pd(x, _mm512_maskz_permutex_pd(0b11001100, x, 0x55));
    return _mm512_add_pd(x, _mm512_maskz_permutexvar_pd(0b11110000, _mm512_set1_epi64(3), x));
}

template <int K>
PARL_AVX512 void search_avx512(const double* row, const double* below, int64_t n, int64_t* nodes, double* rests) {
    alignas(64) double before[8 + K];
    before[7] = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double* group = row + nodes[i] * K;
        const __m512d target = _mm512_set1_pd(rests[i]);
        __m512d p = _mm512_setzero_pd();
        int64_t index = 0;
        for (int c = 0; c < K; c += 8) {
            const __m512d carry = _mm512_maskz_permutexvar_pd(0xFF, _mm512_set1_epi64(7), p);
            p = prefixes_of_8(_mm512_load_pd(group + c));
            if (c > 0) p = _mm512_add_pd(p, carry);
            _mm512_store_pd(before + 8 + c, p);
            index += __builtin_popcount(_mm512_cmp_pd_mask(p, target, _CMP_LE_OQ));
        }
        descend(group, below, K, index, before[7 + index], nodes + i, rests + i);
    }
}

// From 8 siblings of one group in a and of another in b: the 4 sums of neighbours in each, in turn from a and from b.
PARL_AVX512 inline __m512d add_neighbours(__m512d a, __m512d b) {
    return _mm512_add_pd(_mm512_maskz_unpacklo_pd(0xFF, a, b), _mm512_maskz_unpackhi_pd(0xFF, a, b));
}

// The same one step on, for the sums of 2 + 2 groups, and again for those of 4 + 4: neighbours lie 2 lanes apart.
PARL_AVX512 inline __m512d add_neighbour_pairs(__m512d a, __m512d b) {
    return _mm512_add_pd(_mm512_maskz_shuffle_f64x2(0xFF, a, b, 0x88), _mm512_maskz_shuffle_f64x2(0xFF, a, b, 0xDD));
}

PARL_AVX512 inline __m512d sums_of_4(const double* a, const double* b, const double* c, const double* d) {
    return add_neighbour_pairs(add_neighbours(_mm512_load_pd(a), _mm512_load_pd(b)),
                               add_neighbours(_mm512_load_pd(c), _mm512_load_pd(d)));
}

// The sums of 8 groups, of which the i-th starts at group(i).
template <int K, class Group>
PARL_AVX512 inline __m512d sums_of_8(Group group) {
    __m512d sums = _mm512_setzero_pd();
    for (int c = 0; c < K; c += 8) {
        const __m512d low = sums_of_4(group(0) + c, group(1) + c, group(2) + c, group(3) + c);
        const __m512d high = sums_of_4(group(4) + c, group(5) + c, group(6) + c, group(7) + c);
        const __m512d chunk = add_neighbour_pairs(low, high);
        sums = c > 0 ? _mm512_add_pd(sums, chunk) : chunk;
    }
    return sums;
}

template <int K>
PARL_AVX512 void sweep_avx512(const double* children, double* row, int64_t n) {
    const int64_t whole = n / 8 * 8;
    for (int64_t node = 0; node < whole; node += 8)
        _mm512_store_pd(row + node, sums_of_8<K>([=](int i) { return children + (node + i) * K; }));
    sweep_portable<K>(children + whole * K, row + whole, n - whole);
}

template <int K>
PARL_AVX512 void sum_listed_avx512(const double* children, double* row, const uint32_t* nodes, int64_t n) {
    const int64_t whole = n / 8 * 8;
    for (int64_t at = 0; at < whole; at += 8) {
        for (int i = 0; i < 8; ++i) __builtin_prefetch(children + (int64_t)nodes[at + i + kSumsAhead] * K);
        alignas(64) double sums[8];
        _mm512_store_pd(sums, sums_of_8<K>([=](int i) { return children + (int64_t)nodes[at + i] * K; }));
        for (int i = 0; i < 8; ++i) row[nodes[at + i]] = sums[i];
    }
    sum_listed_portable<K>(children, row, nodes + whole, n - whole);
}

#endif

enum Kernel { kPortable, kAvx2, kAvx512 };

inline bool is_available(Kernel kernel) {
    if (kernel == kPortable) return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("popcnt") || !__builtin_cpu_supports("avx2")) return false;
    if (kernel == kAvx2) return true;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

// A group narrower than the vector takes the next narrower kernel.
template <int K>
Search search_of(Kernel kernel) {
#if defined(__x86_64__)
    if constexpr (K >= 8)
        if (kernel == kAvx512) return search_avx512<K>;
    if constexpr (K >= 4)
        if (kernel != kPortable) return search_avx2<K>;
#endif
    return search_portable<K>;
}

template <int K>
Sweep sweep_of(Kernel kernel) {
#if defined(__x86_64__)
    if constexpr (K >= 8)
        if (kernel == kAvx512) return sweep_avx512<K>;
#endif
    return sweep_portable<K>;
}

template <int K>
SumListed sum_listed_of(Kernel kernel) {
#if defined(__x86_64__)
    if constexpr (K >= 8)
        if (kernel == kAvx512) return sum_listed_avx512<K>;
#endif
    return sum_listed_portable<K>;
}

template <class F>
auto with_arity(int shift, F f) {
    switch (shift) {
        case 1: return f(std::integral_constant<int, 2>{});
        case 2: return f(std::integral_constant<int, 4>{});
        case 3: return f(std::integral_constant<int, 8>{});
        case 4: return f(std::integral_constant<int, 16>{});
        case 5: return f(std::integral_constant<int, 32>{});
        default: return f(std::integral_constant<int, 64>{});
    }
}

inline void choose_kernel(Tree& tree, Kernel kernel) {
    with_arity(tree.shift, [&](auto arity) {
        tree.search = search_of<arity>(kernel);
        tree.sweep = sweep_of<arity>(kernel);
        tree.sum_listed = sum_listed_of<arity>(kernel);
    });
}

// Index of the first value that is not in [0, largest], -1 if there is none. As int64 the bits of non-negative doubles
// keep their order and NaN is above them all, so a sign bit tells; adding 0.0 makes -0.0 a plain zero.
inline int64_t first_outside(const double* values, int64_t n, double largest) {
    const PlainArithmetic plain;
    const int64_t limit = bits_of(largest);
    int64_t signs = 0;
    for (int64_t i = 0; i < n; ++i) signs |= bits_of(values[i] + 0.0) | (limit - bits_of(values[i] + 0.0));
    if (signs >= 0) return -1;
    for (int64_t i = 0; i < n; ++i)
        if (!(values[i] >= 0.0 && values[i] <= largest)) return i;
    return -1;
}

inline int64_t first_outside(const int64_t* slots, int64_t n, int64_t largest) {
    int64_t signs = 0;
    for (int64_t i = 0; i < n; ++i) signs |= slots[i] | (int64_t)((uint64_t)largest - (uint64_t)slots[i]);
    if (signs >= 0) return -1;
    for (int64_t i = 0; i < n; ++i)
        if (slots[i] < 0 || slots[i] > largest) return i;
    return -1;
}

inline void mark(Tree& tree, int64_t parent) {
    tree.dirty[tree.num_dirty] = (uint32_t)parent;
    tree.num_dirty += tree.rows[1][parent] >= 0.0;
    tree.rows[1][parent] = kDirty;
}

inline void mark_range(Tree& tree, int64_t start, int64_t stop) {
    if (start >= stop) return;
    for (int64_t parent = start >> tree.shift; parent <= (stop - 1) >> tree.shift; ++parent) mark(tree, parent);
}

inline void ask_for_leaf(const Tree& tree, int64_t slot) {
    __builtin_prefetch(tree.rows[0] + slot, 1);
    __builtin_prefetch(tree.rows[1] + (slot >> tree.shift), 1);
}

inline void set_leaves(Tree& tree, int64_t n, const int64_t* slots, const double* values) {
    for (int64_t i = 0; i < n && i < kAhead; ++i) ask_for_leaf(tree, slots[i]);
    for (int64_t i = 0; i < n; ++i) {
        if (i + kAhead < n) ask_for_leaf(tree, slots[i + kAhead]);
        tree.rows[0][slots[i]] = values[i];
        mark(tree, slots[i] >> tree.shift);
    }
}

inline void write_leaves(Tree& tree, int64_t start, int64_t n, const double* values) {
    for (int64_t i = 0; i < n; ++i) tree.rows[0][start + i] = values[i];
    mark_range(tree, start, start + n);
}

inline void fill_leaves(Tree& tree, int64_t start, int64_t stop, double value) {
    for (int64_t slot = start; slot < stop; ++slot) tree.rows[0][slot] = value;
    mark_range(tree, start, stop);
}

// Puts the parents of the n listed nodes in their place, leaving out what repeats the one before; what is written never
// overtakes what is read. Others may repeat: summing a node twice costs less than looking up whether it is listed.
inline int64_t list_parents(Tree& tree, int64_t n) {
    int64_t num_parents = 0;
    for (int64_t i = 0; i < n; ++i) {
        tree.dirty[num_parents] = tree.dirty[i] >> tree.shift;
        num_parents += i + 1 == n || tree.dirty[i + 1] >> tree.shift != tree.dirty[num_parents];
    }
    return num_parents;
}

// By list while rows are long, then whole rows; the root's row, of one node, at the latest.
inline void refresh(Tree& tree) {
    const PlainArithmetic plain;
    int64_t n = tree.num_dirty;
    tree.num_dirty = 0;
    if (n == 0) return;
    int r = 1;
    while (tree.counts[r] > kSweepRatio * n) {
        tree.sum_listed(tree.rows[r - 1], tree.rows[r], tree.dirty, n);
        if (tree.counts[++r] > kSweepRatio * n) n = list_parents(tree, n);
    }
    for (; r <= tree.height; ++r) tree.sweep(tree.rows[r - 1], tree.rows[r], tree.counts[r]);
}

// Scales each uniform to a target; rounding may give the total itself, which no group can hold.
inline void scale(int64_t n, const double* uniforms, double total, double* targets) {
    const PlainArithmetic plain;
    for (int64_t i = 0; i < n; ++i) targets[i] = smaller(uniforms[i] * total, just_below(total));
}

// The share of each value in the total, times `chance`.
inline void divide(int64_t n, double total, double chance, double* values) {
    const PlainArithmetic plain;
    for (int64_t i = 0; i < n; ++i) values[i] = values[i] / total * chance;
}

// Finds the slot of each target and puts its value in the target's place. The sums are fresh, the targets in [0, root).
inline void find_slots(const Tree& tree, int64_t n, int64_t* slots, double* targets) {
    const PlainArithmetic plain;
    for (int64_t start = 0; start < n; start += kBlock) {
        const int64_t size = n - start < kBlock ? n - start : kBlock;
        for (int64_t i = 0; i < size; ++i) slots[start + i] = 0;
        for (int r = tree.height - 1; r >= 0; --r)
            tree.search(tree.rows[r], r > 0 ? tree.rows[r - 1] : nullptr, size, slots + start, targets + start);
    }
}

}  // namespace parl
