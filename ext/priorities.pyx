# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Priorities from magnitudes, weights from probabilities; what callers must know stands in `_priorities.pyi`."""

import numpy as np

from cpython.object cimport PyObject
from libc.float cimport DBL_MAX, FLT_MIN
from libc.stdint cimport int64_t

from parl_mq.replay._sum_tree import LARGEST_VALUE
from parl_mq.replay.refusals import PrioritiesRefused

from parl_mq.replay._arrays cimport check_layout, fields_of, kContiguous
from parl_mq.replay._sum_tree cimport first_outside


cdef extern from "power.hpp" namespace "parl" nogil:
    cdef enum Kernel:
        kPortable
        kAvx2
        kAvx512

    ctypedef void (*Power)(int64_t n, const double *x, double a, double *out)

    bint is_available(Kernel kernel) noexcept
    Power power_of(Kernel kernel) noexcept
    Power fastest_power() noexcept
    void prioritize(Power power, int64_t n, const double *magnitudes, double largest, double eps, double alpha,
                    double *priorities) noexcept
    void weigh(Power power, int64_t n, const double *probabilities, double beta, float least, float *weights) noexcept


cdef Power POWER = fastest_power()
cdef double LARGEST = LARGEST_VALUE
# Fewer powers take less time, 30 us, than another thread may keep the GIL once it has been given up.
cdef int64_t RELEASE_ITEMS = 8192

cdef object ndarray = np.ndarray
cdef object empty = np.empty
cdef object FLOAT32 = np.dtype(np.float32)
cdef object FLOAT64 = np.dtype(np.float64)

cdef dict KERNELS = {"avx512": kAvx512, "avx2": kAvx2, "portable": kPortable}


check_layout(np)


cdef inline void *bytes_of(array) noexcept:
    """Where an array's items lie, as long as it lives."""
    return fields_of(<PyObject *>array).bytes


cdef object in_one_piece(array):
    """An array whose items follow each other: the same one, if they do; anything else as it is."""
    if isinstance(array, ndarray) and not fields_of(<PyObject *>array).flags & kContiguous:
        return array.copy()
    return array


cdef class Priorities:
    """(magnitude + eps)^alpha; documented in `_priorities.pyi`."""

    def __cinit__(self, *, double alpha, double eps, bint is_uniform=False):
        self.alpha, self.eps, self.is_uniform = alpha, eps, is_uniform

    def of(self, magnitudes):
        cdef int64_t n = len(magnitudes)
        magnitudes = in_one_piece(magnitudes)
        cdef const double *magnitude = self.checked(magnitudes, n)
        priorities = empty(n)
        self.compute(n, magnitude, <double *>bytes_of(priorities))
        return priorities

    def check(self, magnitudes, int64_t num_expected):
        self.checked(in_one_piece(magnitudes), num_expected)

    cdef void compute(self, int64_t n, const double *magnitudes, double *priorities) noexcept nogil:
        cdef int64_t i
        if self.is_uniform:
            for i in range(n):
                priorities[i] = 1.0
        else:
            prioritize(POWER, n, magnitudes, LARGEST, self.eps, self.alpha, priorities)

    cdef const double *checked(self, magnitudes, int64_t num_expected) except? NULL:
        """Where they lie, once they are known to be finite and >= 0. If they are an array, it is in one piece."""
        if not isinstance(magnitudes, ndarray) or magnitudes.dtype != FLOAT64 or magnitudes.shape != (num_expected,):
            raise PrioritiesRefused(
                f"magnitudes are {_described(magnitudes)}: they must be float64 {(num_expected,)}", 0)
        cdef const double *values = <const double *>bytes_of(magnitudes)
        cdef int64_t bad = first_outside(values, num_expected, DBL_MAX)
        if bad >= 0:
            num_bad = int(np.count_nonzero(~((magnitudes >= 0.0) & (magnitudes < np.inf))))
            raise PrioritiesRefused(
                f"magnitude {values[bad]} at index {bad} is not finite and >= 0; none of the {num_expected} was applied",
                num_bad)
        return values


def _described(array):
    return f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else f"a {type(array).__name__}"


def importance_weights(probabilities, double beta):
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta is {beta}: it must lie in [0, 1]")
    if not isinstance(probabilities, ndarray) or probabilities.dtype != FLOAT64 or probabilities.ndim != 1:
        raise ValueError(f"probabilities are {_described(probabilities)}: they must be float64 [B]")
    probabilities = in_one_piece(probabilities)
    cdef int64_t n = probabilities.shape[0]
    cdef const double *probability = <const double *>bytes_of(probabilities)
    cdef int64_t bad = first_outside(probability, n, 1.0)
    if bad >= 0:
        raise ValueError(f"probabilities[{bad}] is {probability[bad]}: a probability must lie in [0, 1]")
    weights = empty(n, FLOAT32)
    cdef float *weight = <float *>bytes_of(weights)
    if n < RELEASE_ITEMS:
        weigh(POWER, n, probability, beta, FLT_MIN, weight)
    else:
        with nogil:
            weigh(POWER, n, probability, beta, FLT_MIN, weight)
    return weights


def _powers(values, double exponent, kernel):
    cdef int64_t n = len(values)
    powers = empty(n)
    power_of(KERNELS[kernel])(n, <const double *>bytes_of(values), exponent, <double *>bytes_of(powers))
    return powers
