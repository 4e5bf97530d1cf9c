// Looking over the values of steps: which is the first outside its limits.
#pragma once

#include <cstdint>
#include <cstring>

namespace parl {

// Limits of a column's elements: one for all, or one for each.
struct Limits {
    const double* low;
    const double* high;
    int64_t num;
};

template <class T>
int64_t first_outside_of(const uint8_t* values, int64_t stride, int64_t n, int64_t num_elements, Limits limits) {
    for (int64_t i = 0; i < n; ++i, values += stride)
        for (int64_t e = 0; e < num_elements; ++e) {
            T value;
            std::memcpy(&value, values + e * sizeof value, sizeof value);
            const int64_t which = limits.num == 1 ? 0 : e;
            if (!((double)value >= limits.low[which] && (double)value <= limits.high[which]))
                return i * num_elements + e;  // NaN too
        }
    return -1;
}

// `type` as in NumPy's dtype.char; -2: none that has an order here.
inline int64_t first_outside(char type, const uint8_t* values, int64_t stride, int64_t n, int64_t num_elements,
                             Limits limits) {
    switch (type) {
        case 'f': return first_outside_of<float>(values, stride, n, num_elements, limits);
        case 'd': return first_outside_of<double>(values, stride, n, num_elements, limits);
        case 'b': return first_outside_of<int8_t>(values, stride, n, num_elements, limits);
        case 'h': return first_outside_of<int16_t>(values, stride, n, num_elements, limits);
        case 'i': return first_outside_of<int32_t>(values, stride, n, num_elements, limits);
        case 'q':
        case 'l': return first_outside_of<int64_t>(values, stride, n, num_elements, limits);
        case '?':
        case 'B': return first_outside_of<uint8_t>(values, stride, n, num_elements, limits);
        case 'H': return first_outside_of<uint16_t>(values, stride, n, num_elements, limits);
        case 'I': return first_outside_of<uint32_t>(values, stride, n, num_elements, limits);
        case 'Q':
        case 'L': return first_outside_of<uint64_t>(values, stride, n, num_elements, limits);
        default: return -2;
    }
}

}  // namespace parl
