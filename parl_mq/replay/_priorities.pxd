# cython: language_level=3
"""What other extension modules use of priorities without Python in between."""

from libc.stdint cimport int64_t


cdef object in_one_piece(array)


cdef class Priorities:
    cdef readonly bint is_uniform
    cdef readonly double alpha
    cdef readonly double eps

    cdef void compute(self, int64_t n, const double *magnitudes, double *priorities) noexcept nogil
    cdef const double *checked(self, magnitudes, int64_t num_expected) except? NULL
