# cython: language_level=3
"""What other extension modules use of rows without Python in between."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "rows.hpp" namespace "parl" nogil:
    struct Header:
        uint32_t rows_left
        uint32_t rows_before
        uint32_t num_live
        uint8_t flags
        uint8_t span

    struct Field:
        int64_t offset
        int64_t size

    struct Shape:
        uint8_t *base
        int64_t stride
        int64_t num_rows
        int64_t reward
        int64_t terminated
        int64_t truncated
        int64_t stack
        int64_t n_step
        int64_t num_observations
        int64_t num_others
        int64_t first_observation
        double powers[256]
        uint64_t prefix

    int64_t load(const int64_t *p) noexcept
    void store(int64_t *p, int64_t value) noexcept
    void full_fence() noexcept
    void acquire_fence() noexcept
    void prefetch(const void *p) noexcept
    Header *header_at(const Shape *shape, int64_t slot) noexcept
    int64_t slot_of(const Shape *shape, uint64_t key) noexcept


cdef enum:
    TAIL = 0
    RESERVED = 1
    COMMITTED = 2
    NUM_LIVE = 3
    LIVE_FLAG = 1
    STARTS_FLAG = 2
    MAX_COLUMNS = 256
    MAX_TARGETS = 517  # two for each column, and five figures
    # Getting the GIL back from a busy thread takes up to a switch interval, so it is given up for copies of 10 us and more.
    RELEASE_BYTES = 65536


cdef struct Fragments:
    const int32_t *lengths
    const int32_t *num_context
    const int32_t *num_overlap
    const uint8_t *starts_episode
    const uint8_t *spans  # of every row, or NULL: 1


cdef class Part:
    cdef readonly int64_t first
    cdef readonly int64_t stop
    cdef readonly int64_t row
    cdef readonly int64_t live
    cdef readonly int64_t start
    cdef readonly int64_t end
    cdef readonly int64_t num_rows
    cdef readonly int64_t num_live
    cdef readonly int64_t before_wrap
    cdef readonly int64_t old_tail
    cdef readonly int64_t tail
    cdef readonly int64_t num_evicted
    cdef double *leaves  # [num_rows], once scattered


cdef class Incoming:
    cdef Fragments _given
    cdef const uint8_t *_sources[MAX_COLUMNS]
    cdef readonly int64_t num_fragments
    cdef readonly int64_t num_rows
    cdef readonly int64_t num_live
    cdef object _kept


cdef class Rows:
    cdef Shape _shape
    cdef Field _columns[MAX_COLUMNS]  # in the spec's order
    cdef Field _observations[MAX_COLUMNS]
    cdef Field _others[MAX_COLUMNS]
    cdef int64_t _num_columns
    cdef int64_t _terminated  # which column that is
    cdef int64_t _truncated
    cdef int64_t *_counters
    cdef dict _expected  # name -> (dtype, shape of a row), in the spec's order
    cdef object _kept
    cdef bint _is_writable

    cdef _check_writable(self)
    cpdef Part plan(self, Incoming incoming, Part after, int64_t capacity)
    cpdef evict(self, Part part)
    cpdef scatter(self, Incoming incoming, Part part, values, double default, keys)
    cdef _lay_out(self, layout, spec)
    cdef _take_columns(self, Incoming incoming, columns)
    cdef _refuse_names(self, columns)
    cdef _take_lengths(self, Incoming incoming, fragments, spans)
    cdef _place(self, Incoming incoming, Part part, int64_t capacity)
    cdef int64_t _victims(self, Part part, int64_t capacity)
    cdef int64_t _addresses(self, tuple targets, int64_t n, uint8_t **addresses) except -1
    cdef void _gather(self, const uint64_t *keys, int64_t start, int64_t stop, uint8_t **addresses) noexcept nogil
    cdef _torn(self, const uint64_t *keys, int64_t start, int64_t stop)
