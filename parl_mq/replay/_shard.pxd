# cython: language_level=3
"""What other extension modules use of a shard without Python in between."""

from libc.stdint cimport int64_t


cdef class Counts:
    cdef public int64_t inserted
    cdef public int64_t evicted
    cdef public int64_t drawn
    cdef public int64_t updated
    cdef public int64_t stale
    cdef public int64_t torn
