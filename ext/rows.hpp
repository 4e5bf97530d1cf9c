// Records of one segment: headers, where columns lie, atomic counters, and short copies.
#pragma once

#include <cstdint>
#include <cstring>

namespace parl {

// One row's header; parl_mq.replay.layout.HEADER_DTYPE describes the same bytes.
struct Header {
    uint32_t rows_left, rows_before, num_live;
    uint8_t flags, span;
    uint16_t unused;
};
static_assert(sizeof(Header) == 16, "a header is 16 bytes");

inline int64_t load(const int64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void store(int64_t* p, int64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
inline void full_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void acquire_fence() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

// GCC takes a function that does nothing but ask for lines for one without effect, and drops its calls; the empty
// statement is an effect.
inline void prefetch(const void* p) { __builtin_prefetch(p); asm volatile(""); }
inline void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1); asm volatile(""); }

// N moves of 16 bytes and one more that ends with the value: any length in [16 N, 16 N + 16].
template <int N>
inline void copy_wide(uint8_t* to, const uint8_t* from, int64_t size) {
    for (int i = 0; i < N; ++i) std::memcpy(to + 16 * i, from + 16 * i, 16);
    std::memcpy(to + size - 16, from + size - 16, 16);
}

// Short lengths without a loop over bytes or a call, which costs more than the short columns themselves.
inline void copy_value(uint8_t* to, const uint8_t* from, int64_t size) {
    switch ((size + 15) / 16) {
        case 2: return copy_wide<1>(to, from, size);
        case 3: return copy_wide<2>(to, from, size);
        case 4: return copy_wide<3>(to, from, size);
        case 5: return copy_wide<4>(to, from, size);
        case 6: return copy_wide<5>(to, from, size);
        case 7: return copy_wide<6>(to, from, size);
        case 8: return copy_wide<7>(to, from, size);
    }
    if (size == 8)
        std::memcpy(to, from, 8);
    else if (size == 4)
        std::memcpy(to, from, 4);
    else
        std::memcpy(to, from, size);
}

// Column by column into records: the size is looked at once.
template <class Copy>
inline void spread(uint8_t* to, int64_t stride, const uint8_t* from, int64_t size, int64_t n, Copy copy) {
    for (int64_t i = 0; i < n; ++i) copy(to + i * stride, from + i * size, size);
}

inline void spread_column(uint8_t* to, int64_t stride, const uint8_t* from, int64_t size, int64_t n) {
    switch (size) {
        case 1: return spread(to, stride, from, 1, n, [](auto* t, auto* f, int64_t) { *t = *f; });
        case 4: return spread(to, stride, from, 4, n, [](auto* t, auto* f, int64_t) { std::memcpy(t, f, 4); });
        case 8: return spread(to, stride, from, 8, n, [](auto* t, auto* f, int64_t) { std::memcpy(t, f, 8); });
    }
    switch ((size + 15) / 16) {
        case 2: return spread(to, stride, from, size, n, copy_wide<1>);
        case 3: return spread(to, stride, from, size, n, copy_wide<2>);
        case 4: return spread(to, stride, from, size, n, copy_wide<3>);
        case 5: return spread(to, stride, from, size, n, copy_wide<4>);
        default: return spread(to, stride, from, size, n, copy_value);
    }
}

struct Field {
    int64_t offset;  // in the record
    int64_t size;
};

// How the records of one segment lie in memory, and what a window over them is.
struct Shape {
    uint8_t* base;
    int64_t stride;
    int64_t num_rows;
    int64_t reward;  // offsets of the step columns
    int64_t terminated;
    int64_t truncated;
    int64_t stack;
    int64_t n_step;
    int64_t num_observations;
    int64_t num_others;
    int64_t first_observation;  // smallest offset of one
    double powers[256];         // gamma to the power of a span
    uint64_t prefix;            // of keys
};

inline uint8_t* record_at(const Shape* shape, int64_t slot) { return shape->base + slot * shape->stride; }

inline Header* header_at(const Shape* shape, int64_t slot) { return (Header*)record_at(shape, slot); }

inline int64_t slot_of(const Shape* shape, uint64_t key) { return (int64_t)(key - shape->prefix) % shape->num_rows; }

}  // namespace parl
