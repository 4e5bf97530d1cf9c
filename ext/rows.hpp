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

// Two overlapping moves of 16 or 8 bytes cover any short length without a loop over bytes or a call.
inline void copy_value(uint8_t* to, const uint8_t* from, int64_t size) {
    if (size >= 16 && size <= 128) {
        for (int64_t i = 0; i + 16 < size; i += 16) std::memcpy(to + i, from + i, 16);
        std::memcpy(to + size - 16, from + size - 16, 16);
    } else if (size == 8) {
        std::memcpy(to, from, 8);
    } else if (size == 4) {
        std::memcpy(to, from, 4);
    } else {
        std::memcpy(to, from, size);
    }
}

// Copies of known size are single instructions; a call of memcpy costs more than the short columns themselves.
template <class T>
inline void spread(uint8_t* to, int64_t stride, const uint8_t* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * sizeof(T), sizeof(T));
}

inline void spread_column(uint8_t* to, int64_t stride, const uint8_t* from, int64_t size, int64_t n) {
    switch (size) {
        case 1: return spread<uint8_t>(to, stride, from, n);
        case 4: return spread<uint32_t>(to, stride, from, n);
        case 8: return spread<uint64_t>(to, stride, from, n);
        default:
            for (int64_t i = 0; i < n; ++i) copy_value(to + i * stride, from + i * size, size);
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
