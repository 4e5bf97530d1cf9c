# cython: language_level=3
"""What other extension modules use of the tree without Python in between."""

from libc.stdint cimport int64_t, uint32_t


cdef extern from "kernels.hpp" namespace "parl" nogil:
    struct Tree:
        double *rows[34]
        int64_t counts[34]
        int height
        int shift
        uint32_t *dirty
        int64_t num_dirty

    int64_t first_outside(const double *values, int64_t n, double largest) noexcept
    void set_leaves(Tree &tree, int64_t n, const int64_t *slots, const double *values) noexcept
    void write_leaves(Tree &tree, int64_t start, int64_t n, const double *values) noexcept
    void fill_leaves(Tree &tree, int64_t start, int64_t stop, double value) noexcept
    void refresh(Tree &tree) noexcept
    void scale(int64_t n, const double *uniforms, double total, double *targets) noexcept
    void find_slots(const Tree &tree, int64_t n, int64_t *slots, double *targets) noexcept
    void divide(int64_t n, double total, double chance, double *values) noexcept


cdef class SumTree:
    cdef readonly int64_t capacity
    cdef readonly int arity
    cdef readonly str kernel
    cdef Tree _tree
    cdef list _arrays
    cdef uint32_t[::1] _dirty
    cdef object _leaves

    cdef _lay_out(self, leaves)
    cdef _take_over(self)
    cdef _set(self, slots, values, bint is_refreshed)
    cdef double _fresh_total(self)
    cdef double _positive_total(self) except -1.0
    cdef _search(self, int64_t n, int64_t *slots, double *targets)
