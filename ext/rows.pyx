# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Kernels over the records of one segment; the signatures and what callers must know stand in `_rows.pyi`."""

import numpy as np

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from parl_mq.replay.refusals import FragmentsRefused, KeysRefused
from parl_mq.replay.values import checked


cdef extern from * nogil:
    """
    #include <cstdint>
    #include <cstring>

    // One row's header; parl_mq.replay.layout.HEADER_DTYPE describes the same bytes.
    struct Header {
        uint32_t rows_left, rows_before, num_live;
        uint8_t flags, span;
        uint16_t unused;
    };
    static_assert(sizeof(Header) == 16, "a header is 16 bytes");

    static inline int64_t load(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void store(int64_t *p, int64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
    static inline void full_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline void acquire_fence() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

    // GCC takes a function that does nothing but ask for lines for one without effect, and drops its calls; the empty
    // statement is an effect.
    static inline void prefetch(const void *p) { __builtin_prefetch(p); asm volatile(""); }

    // Copies of known size are single instructions; a call of memcpy costs more than the short columns themselves.
    template <typename T>
    static inline void spread(uint8_t *to, int64_t stride, const uint8_t *from, int64_t n) {
        for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * sizeof(T), sizeof(T));
    }

    static inline void spread_column(uint8_t *to, int64_t stride, const uint8_t *from, int64_t size, int64_t n) {
        switch (size) {
            case 1: return spread<uint8_t>(to, stride, from, n);
            case 4: return spread<uint32_t>(to, stride, from, n);
            case 8: return spread<uint64_t>(to, stride, from, n);
            default: for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * size, size);
        }
    }

    // Two overlapping moves of 16 or 8 bytes cover any short length without a loop over bytes or a call.
    static inline void copy_value(uint8_t *to, const uint8_t *from, int64_t size) {
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
    """
    struct Header:
        uint32_t rows_left
        uint32_t rows_before
        uint32_t num_live
        uint8_t flags
        uint8_t span

    int64_t load(const int64_t *p) noexcept
    void store(int64_t *p, int64_t value) noexcept
    void full_fence() noexcept
    void acquire_fence() noexcept
    void prefetch(const void *p) noexcept
    void spread_column(uint8_t *to, int64_t stride, const uint8_t *source, int64_t size, int64_t n) noexcept
    void copy_value(uint8_t *to, const uint8_t *source, int64_t size) noexcept


NUM_COUNTERS = 4
"""int64 words of a segment's counters: tail, reserved, committed, live rows."""

cdef enum:
    TAIL = 0
    RESERVED = 1
    COMMITTED = 2
    NUM_LIVE = 3
    LIVE_FLAG = 1
    STARTS_FLAG = 2
    MAX_COLUMNS = 256
    # Draws whose lines are asked for before they are needed.
    AHEAD = 8
    # A window of at most so many bytes is asked for whole; of a larger one the head, as the processor sees the rest
    # coming.
    SHORT_WINDOW = 1024
    LONG_HEAD = 256
    # Getting the GIL back from a busy thread takes up to a switch interval, so it is given up for large copies alone.
    RELEASE_BYTES = 131072


cdef struct Field:
    int64_t offset  # in the record
    int64_t size

cdef struct Shape:
    uint8_t *base
    int64_t stride
    int64_t num_rows
    int64_t reward  # offsets of the step columns
    int64_t terminated
    int64_t truncated
    int64_t stack
    int64_t n_step
    int64_t num_observations
    int64_t num_others
    int64_t first_observation  # smallest offset of one
    double powers[256]  # gamma to the power of a span
    uint64_t prefix  # of keys

cdef struct Fragments:
    const int32_t *lengths
    const int32_t *num_context
    const int32_t *num_overlap
    const uint8_t *starts_episode
    const uint8_t *spans  # of every row, or NULL: 1


cdef uint8_t *address(object array, int64_t least, bint is_written) except NULL:
    """Where an array's bytes lie; the caller keeps the array alive."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE if is_written else PyBUF_SIMPLE)
    cdef uint8_t *start = <uint8_t *>view.buf
    cdef int64_t length = view.len
    PyBuffer_Release(&view)
    if length < least:
        raise ValueError(f"an array has {length} bytes instead of {least}")
    return start


cdef inline uint8_t *record_at(const Shape *shape, int64_t slot) noexcept nogil:
    return shape.base + slot * shape.stride


cdef inline Header *header_at(const Shape *shape, int64_t slot) noexcept nogil:
    return <Header *>record_at(shape, slot)


cdef inline int64_t slot_of(const Shape *shape, uint64_t key) noexcept nogil:
    return <int64_t>(key - shape.prefix) % shape.num_rows


cdef inline int64_t rows_of(const Fragments *given, int64_t f) noexcept nogil:
    return <int64_t>given.num_context[f] + given.lengths[f] + given.num_overlap[f] + 1


cdef void write_headers(const Shape *shape, const Fragments *given, int64_t f, int64_t slot,
                        int64_t row) noexcept nogil:
    cdef int64_t n = rows_of(given, f)
    cdef int64_t context = given.num_context[f]
    cdef uint8_t flags = STARTS_FLAG if given.starts_episode[f] else 0
    cdef int64_t i
    cdef Header *header
    for i in range(n):
        header = header_at(shape, slot + i)
        header.rows_left = <uint32_t>(n - 1 - i)
        header.rows_before = <uint32_t>i
        header.num_live = <uint32_t>given.lengths[f]
        header.flags = flags | (LIVE_FLAG if context <= i < context + given.lengths[f] else 0)
        header.span = given.spans[row + i] if given.spans != NULL else 1


cdef void bury(const Shape *shape, int64_t slot, int64_t n) noexcept nogil:
    cdef int64_t i
    cdef Header *header
    for i in range(n):
        header = header_at(shape, slot + i)
        memset(header, 0, sizeof(Header))
        header.rows_left = <uint32_t>(n - 1 - i)
        header.rows_before = <uint32_t>i


cdef inline void ask_for_window(const Shape *shape, int64_t slot) noexcept nogil:
    cdef const uint8_t *record = record_at(shape, slot)
    cdef int64_t size = (shape.n_step + 1) * shape.stride
    cdef int64_t i
    if size <= SHORT_WINDOW:
        for i in range(0, size, 64):
            prefetch(record + i)
    else:
        for i in range(0, LONG_HEAD, 64):
            prefetch(record + i)
            prefetch(record + shape.n_step * shape.stride + shape.first_observation + i)


cdef inline int64_t window_length(const Shape *shape, int64_t slot) noexcept nogil:
    """Steps of the window that starts at a row. The last term holds for rows that are being overwritten alone."""
    cdef int64_t k = header_at(shape, slot).rows_left
    k = shape.n_step if shape.n_step < k else k
    return k if slot + k < shape.num_rows else shape.num_rows - 1 - slot


cdef inline void sum_rewards(const Shape *shape, int64_t slot, int64_t k, float *reward,
                             double *discount) noexcept nogil:
    cdef const uint8_t *record = record_at(shape, slot)
    cdef double total = 0.0
    cdef double power = 1.0
    cdef int64_t j
    for j in range(k):
        total += power * (<const float *>(record + shape.reward))[0]
        power *= shape.powers[(<const Header *>record).span]
        record += shape.stride
    reward[0] = <float>total
    discount[0] = power


cdef void copy_stack(const Shape *shape, const Field *field, int64_t slot, int64_t k, uint8_t *target) noexcept nogil:
    """Frames from stack - 1 rows before the row to n after it: the first one repeats, none follows the k-th."""
    cdef const Header *header = header_at(shape, slot)
    cdef int64_t before = header.rows_before if header.rows_before < slot else slot
    cdef int64_t j
    cdef int64_t row
    for j in range(shape.stack + shape.n_step):
        row = j - (shape.stack - 1)
        if row <= k:
            memcpy(target, record_at(shape, slot + (row if row > -before else -before)) + field.offset, field.size)
        else:
            memset(target, 0, field.size)
        target += field.size


cdef void gather_rows(const Shape *shape, const Field *observations, const Field *others, const uint64_t *keys,
                      int64_t start, int64_t stop, uint8_t **targets, int64_t first) noexcept nogil:
    cdef int64_t i
    cdef int64_t c
    cdef int64_t k
    cdef int64_t at
    cdef int64_t slot
    cdef double discount
    cdef uint8_t *record
    cdef uint8_t *last
    cdef int64_t num_inputs = shape.num_observations * (2 if shape.stack == 1 else 1)
    cdef uint8_t **other_targets = targets + num_inputs
    cdef uint8_t **step_targets = other_targets + shape.num_others
    for i in range(start, stop):
        if i + AHEAD < stop:
            ask_for_window(shape, slot_of(shape, keys[i + AHEAD]))
        slot = slot_of(shape, keys[i])
        at = first + i
        k = window_length(shape, slot)
        record = record_at(shape, slot)
        last = record + (k - 1 if k > 0 else 0) * shape.stride
        sum_rewards(shape, slot, k, <float *>step_targets[0] + at, &discount)
        step_targets[2][at] = last[shape.terminated]
        step_targets[3][at] = last[shape.truncated]
        (<float *>step_targets[1])[at] = 0.0 if last[shape.terminated] else <float>discount
        (<int32_t *>step_targets[4])[at] = <int32_t>k
        for c in range(shape.num_others):
            copy_value(other_targets[c] + at * others[c].size, record + others[c].offset, others[c].size)
        for c in range(shape.num_observations):
            if shape.stack > 1:
                copy_stack(shape, &observations[c], slot, k,
                           targets[c] + at * observations[c].size * (shape.stack + shape.n_step))
            else:
                copy_value(targets[c] + at * observations[c].size, record + observations[c].offset,
                           observations[c].size)
                copy_value(targets[shape.num_observations + c] + at * observations[c].size,
                           record + k * shape.stride + observations[c].offset, observations[c].size)


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


cdef void scatter_rows(const Shape *shape, const Fragments *given, const Field *columns, int64_t num_columns,
                       const uint8_t **sources, Part part, const double *value, double default,
                       double *leaf, uint64_t *key) noexcept nogil:
    cdef int64_t at = part.start
    cdef int64_t row = part.row
    cdef int64_t f
    cdef int64_t c
    cdef int64_t n
    cdef int64_t slot
    cdef int64_t context
    cdef int64_t i
    for f in range(part.first, part.stop):
        n = rows_of(given, f)
        slot = at % shape.num_rows
        if slot + n > shape.num_rows:
            bury(shape, slot, shape.num_rows - slot)
            at += shape.num_rows - slot
            slot = 0
        write_headers(shape, given, f, slot, row)
        for c in range(num_columns):
            spread_column(record_at(shape, slot) + columns[c].offset, shape.stride,
                          sources[c] + row * columns[c].size, columns[c].size, n)
        context = given.num_context[f]
        memset(leaf, 0, n * sizeof(double))
        for i in range(given.lengths[f]):
            leaf[context + i] = value[i] if value != NULL else default
            key[i] = shape.prefix + <uint64_t>(at + context + i)
        value = value + given.lengths[f] if value != NULL else NULL
        key += given.lengths[f]
        leaf += n
        row += n
        at += n


cdef object _check_array(name, array, dtype, shape):
    if array.dtype != dtype or array.shape != shape:
        raise FragmentsRefused(f"{name!r} is {array.dtype} {array.shape}: it must be {dtype} {shape}")
    if not array.flags.c_contiguous:
        raise FragmentsRefused(f"{name!r} is not contiguous in memory")


INT32 = np.dtype(np.int32)
UINT8 = np.dtype(np.uint8)
BOOL = np.dtype(np.bool_)


cdef class Incoming:
    cdef Fragments _given
    cdef const uint8_t *_sources[MAX_COLUMNS]
    cdef readonly int64_t num_fragments
    cdef readonly int64_t num_rows
    cdef readonly int64_t num_live
    cdef object _kept


cdef check_fragments(const Shape *shape, Incoming incoming, const uint8_t *terminated, const uint8_t *truncated,
                     int64_t most_rows, int64_t most_live):
    """Checks lengths, context and ends of episodes, and adds the live rows up."""
    cdef const Fragments *given = &incoming._given
    cdef int64_t row = 0
    cdef int64_t f
    cdef int64_t i
    cdef int64_t n
    for f in range(incoming.num_fragments):
        n = rows_of(given, f)
        if given.lengths[f] < 1 or given.num_context[f] < 0 or given.num_overlap[f] < 0:
            raise FragmentsRefused(
                f"fragment {f} has {given.lengths[f]} live, {given.num_context[f]} context and "
                f"{given.num_overlap[f]} overlap rows: there must be at least 1, 0 and 0")
        if n > most_rows or given.lengths[f] > most_live:
            raise FragmentsRefused(
                f"fragment {f} has {n} rows, {given.lengths[f]} of them live: this table takes at most "
                f"{most_rows} and {most_live}")
        if given.num_context[f] < shape.stack - 1 and not given.starts_episode[f]:
            raise FragmentsRefused(
                f"fragment {f} has {given.num_context[f]} context rows and does not start an episode: frame stacks "
                f"of {shape.stack} need {shape.stack - 1}")
        if row + n > incoming.num_rows:
            raise FragmentsRefused(
                f"fragment {f} ends at row {row + n}, but the columns have {incoming.num_rows} rows")
        for i in range(n - 2):
            if terminated[row + i] or truncated[row + i]:
                raise FragmentsRefused(f"row {i} of fragment {f} ends an episode: only its last step, row {n - 2}, may")
        if terminated[row + n - 2] > 1 or truncated[row + n - 2] > 1:
            raise FragmentsRefused(f"row {n - 2} of fragment {f}: terminated and truncated must be 0 or 1")
        row += n
        incoming.num_live += given.lengths[f]
    if row != incoming.num_rows:
        raise FragmentsRefused(
            f"the columns have {incoming.num_rows} rows, but the fragments' lengths add up to {row}")
    for i in range(row if given.spans != NULL else 0):
        if given.spans[i] == 0:
            raise FragmentsRefused(f"spans[{i}] is 0: a row has at least one step")


cdef class Rows:
    cdef Shape _shape
    cdef Field _columns[MAX_COLUMNS]  # in the spec's order
    cdef Field _observations[MAX_COLUMNS]
    cdef Field _others[MAX_COLUMNS]
    cdef int64_t _num_columns
    cdef int64_t *_counters
    cdef dict _expected  # name -> (dtype, shape of a row), in the spec's order
    cdef object _kept
    cdef bint _is_writable

    def __cinit__(self, memory, counters, layout, *, uint64_t prefix, int64_t frame_stack, int64_t n_step, double gamma):
        spec = layout.spec
        if len(spec.columns) > MAX_COLUMNS:
            raise ValueError(f"a table has {len(spec.columns)} columns: at most {MAX_COLUMNS} are possible")
        if memory.size % layout.stride or memory.size == 0:
            raise ValueError(f"memory of {memory.size} bytes does not hold whole records of {layout.stride}")
        self._kept = (memory, counters)
        self._is_writable = memory.flags.writeable and counters.flags.writeable
        self._counters = <int64_t *>address(counters, NUM_COUNTERS * 8, self._is_writable)
        self._shape.base = address(memory, 1, self._is_writable)
        self._shape.stride = layout.stride
        self._shape.num_rows = memory.size // layout.stride
        self._shape.stack = frame_stack
        self._shape.n_step = n_step
        self._shape.prefix = prefix
        for span in range(256):
            self._shape.powers[span] = gamma ** span
        self._lay_out(layout, spec)

    cdef _check_writable(self):
        if not self._is_writable:
            raise ValueError("these rows are another process's: they can be read alone")

    cdef _lay_out(self, layout, spec):
        offsets = layout.offsets
        self._shape.reward = offsets["reward"]
        self._shape.terminated = offsets["terminated"]
        self._shape.truncated = offsets["truncated"]
        self._shape.first_observation = min(offsets[name] for name in spec.observation_names)
        self._num_columns = len(spec.columns)
        self._expected = {column.name: (np.dtype(column.dtype), column.shape) for column in spec.columns}
        for c, column in enumerate(spec.columns):
            self._columns[c] = Field(offsets[column.name], column.num_bytes)
        for name in spec.observation_names:
            self._observations[self._shape.num_observations] = Field(offsets[name], spec[name].num_bytes)
            self._shape.num_observations += 1
        for column in spec.columns:
            if column.name not in (*spec.observation_names, "reward", "terminated", "truncated"):
                self._others[self._shape.num_others] = Field(offsets[column.name], column.num_bytes)
                self._shape.num_others += 1

    @property
    def num_rows(self):
        return self._shape.num_rows

    @property
    def tail(self):
        return load(&self._counters[TAIL])

    @property
    def reserved(self):
        return load(&self._counters[RESERVED])

    @property
    def committed(self):
        return load(&self._counters[COMMITTED])

    @property
    def num_live(self):
        return load(&self._counters[NUM_LIVE])

    def take(self, fragments, spans, int64_t most_rows, int64_t most_live):
        cdef Incoming incoming = Incoming()
        lengths = fragments.lengths
        columns = fragments.columns
        incoming.num_fragments = len(lengths)
        if incoming.num_fragments == 0:
            raise FragmentsRefused("there are no fragments")
        if columns.keys() != self._expected.keys():
            raise FragmentsRefused(f"the columns are {sorted(columns)}: they must be {sorted(self._expected)}")
        incoming.num_rows = len(columns["reward"])
        incoming._kept = (fragments, spans)
        self._take_columns(incoming, columns)
        self._take_lengths(incoming, fragments, spans)
        check_fragments(&self._shape, incoming, address(columns["terminated"], incoming.num_rows, False),
                        address(columns["truncated"], incoming.num_rows, False), most_rows, most_live)
        return incoming

    cdef _take_columns(self, Incoming incoming, columns):
        cdef int64_t c = 0
        for name, (dtype, shape) in self._expected.items():
            array = columns[name]
            _check_array(name, array, dtype, (incoming.num_rows, *shape))
            incoming._sources[c] = address(array, incoming.num_rows * self._columns[c].size, False)
            c += 1

    cdef _take_lengths(self, Incoming incoming, fragments, spans):
        cdef int64_t n = incoming.num_fragments
        cdef tuple shape = (n,)
        _check_array("lengths", fragments.lengths, INT32, shape)
        _check_array("num_context", fragments.num_context, INT32, shape)
        _check_array("num_overlap", fragments.num_overlap, INT32, shape)
        _check_array("starts_episode", fragments.starts_episode, BOOL, shape)
        incoming._given.lengths = <const int32_t *>address(fragments.lengths, n * 4, False)
        incoming._given.num_context = <const int32_t *>address(fragments.num_context, n * 4, False)
        incoming._given.num_overlap = <const int32_t *>address(fragments.num_overlap, n * 4, False)
        incoming._given.starts_episode = address(fragments.starts_episode, n, False)
        incoming._given.spans = NULL
        if spans is not None:
            _check_array("spans", spans, UINT8, (incoming.num_rows,))
            incoming._given.spans = address(spans, incoming.num_rows, False)

    def reserve(self, Incoming incoming, Part after, int64_t capacity):
        cdef Part part = Part()
        self._check_writable()
        if after is not None:
            part.first, part.row, part.live = after.stop, after.row + after.num_rows, after.live + after.num_live
        part.start = self._counters[RESERVED]
        self._place(incoming, part, capacity)
        part.old_tail = self._counters[TAIL]
        part.num_evicted = self._victims(part, capacity)
        store(&self._counters[RESERVED], part.end)
        return part

    cdef _place(self, Incoming incoming, Part part, int64_t capacity):
        """Puts as many fragments behind each other as fit, with one jump to slot 0 at most."""
        cdef int64_t f = part.first
        cdef int64_t n
        cdef int64_t slot
        cdef int64_t gap
        part.end = part.start
        part.before_wrap = -1
        while f < incoming.num_fragments:
            n = rows_of(&incoming._given, f)
            slot = part.end % self._shape.num_rows
            gap = self._shape.num_rows - slot if slot + n > self._shape.num_rows else 0
            if (part.end + gap + n - part.start > self._shape.num_rows
                    or part.num_live + incoming._given.lengths[f] > capacity):
                break
            if gap > 0 or (slot == 0 and part.end > part.start):
                part.before_wrap = part.num_rows
            part.end += gap + n
            part.num_rows += n
            part.num_live += incoming._given.lengths[f]
            f += 1
        part.stop = f
        if part.before_wrap < 0:
            part.before_wrap = part.num_rows

    cdef int64_t _victims(self, Part part, int64_t capacity):
        """Moves the part's tail past the fragments that must go for it; returns their live rows."""
        cdef int64_t num_live = self._counters[NUM_LIVE]
        cdef int64_t num_kept = num_live
        cdef const Header *header
        part.tail = part.old_tail
        while part.tail < self._counters[COMMITTED] and (
                part.end - part.tail > self._shape.num_rows or num_kept + part.num_live > capacity):
            header = header_at(&self._shape, part.tail % self._shape.num_rows)
            part.tail += header.rows_left + 1
            num_kept -= header.num_live
        return num_live - num_kept

    def evict(self, Part part):
        store(&self._counters[NUM_LIVE], self._counters[NUM_LIVE] - part.num_evicted)
        store(&self._counters[TAIL], part.tail)
        full_fence()  # no store of the rows that follow may be seen before the tail that gives them up

    def commit(self, Part part):
        store(&self._counters[NUM_LIVE], self._counters[NUM_LIVE] + part.num_live)
        store(&self._counters[COMMITTED], part.end)

    def unfinished(self):
        cdef Part part
        self._check_writable()
        if self._counters[RESERVED] == self._counters[COMMITTED]:
            return None
        part = Part()
        part.start, part.end = self._counters[COMMITTED], self._counters[RESERVED]
        part.old_tail = self._counters[TAIL]
        part.num_evicted = self._victims(part, self._counters[NUM_LIVE])
        return part

    def bury(self, Part part):
        cdef int64_t start = part.start
        cdef int64_t n
        cdef int64_t slot
        while start < part.end:
            slot = start % self._shape.num_rows
            n = min(part.end - start, self._shape.num_rows - slot)
            bury(&self._shape, slot, n)
            start += n

    def restart(self, int64_t tail, int64_t committed, int64_t num_live):
        self._check_writable()
        store(&self._counters[TAIL], tail)
        store(&self._counters[RESERVED], committed)
        store(&self._counters[COMMITTED], committed)
        store(&self._counters[NUM_LIVE], num_live)

    def scatter(self, Incoming incoming, Part part, values, double default, leaves, keys):
        cdef double *leaf = <double *>address(leaves, part.num_rows * 8, True)
        cdef uint64_t *key = <uint64_t *>address(keys, (part.live + part.num_live) * 8, True) + part.live
        cdef const double *value = NULL
        if values is not None:
            value = <const double *>address(values, (part.live + part.num_live) * 8, False) + part.live
        if part.num_rows * self._shape.stride < RELEASE_BYTES:
            scatter_rows(&self._shape, &incoming._given, self._columns, self._num_columns, incoming._sources, part,
                         value, default, leaf, key)
        else:
            with nogil:
                scatter_rows(&self._shape, &incoming._given, self._columns, self._num_columns, incoming._sources, part,
                             value, default, leaf, key)

    def locate(self, slots):
        cdef int64_t n = len(slots)
        cdef uint64_t *key = <uint64_t *>address(slots, n * 8, True)
        cdef uint64_t tail = self._counters[TAIL]
        cdef uint64_t base = tail - tail % self._shape.num_rows
        cdef int64_t i
        for i in range(n):
            key[i] += base if base + key[i] >= tail else base + self._shape.num_rows
            key[i] += self._shape.prefix

    def gather(self, keys, tuple targets, int64_t first):
        cdef uint8_t *addresses[2 * MAX_COLUMNS + 5]
        cdef int64_t n = len(keys)
        cdef const uint64_t *key = <const uint64_t *>address(keys, n * 8, False)
        cdef int64_t num_bytes = self._addresses(targets, first + n, addresses)
        cdef uint64_t oldest
        cdef int64_t i
        if n * num_bytes < RELEASE_BYTES:
            gather_rows(&self._shape, self._observations, self._others, key, 0, n, addresses, first)
        else:
            with nogil:
                gather_rows(&self._shape, self._observations, self._others, key, 0, n, addresses, first)
        acquire_fence()
        oldest = self._shape.prefix + <uint64_t>load(&self._counters[TAIL])
        for i in range(n):
            if key[i] < oldest:
                return [j for j in range(n) if key[j] < oldest]
        return None

    cdef int64_t _addresses(self, tuple targets, int64_t n, uint8_t **addresses) except -1:
        """Fills in where each target lies; returns the bytes of one row of all."""
        cdef int64_t num_bytes = 0
        cdef int64_t t = 0
        cdef int64_t size
        cdef int64_t c
        cdef int64_t num_inputs = self._shape.num_observations * (2 if self._shape.stack == 1 else 1)
        if len(targets) != num_inputs + self._shape.num_others + 5:
            raise ValueError(f"{len(targets)} arrays are given for {num_inputs + self._shape.num_others + 5} columns")
        for c in range(num_inputs):
            size = self._observations[c % self._shape.num_observations].size
            size *= 1 if self._shape.stack == 1 else self._shape.stack + self._shape.n_step
            addresses[t] = address(targets[t], n * size, True)
            num_bytes += size
            t += 1
        for c in range(self._shape.num_others):
            addresses[t] = address(targets[t], n * self._others[c].size, True)
            num_bytes += self._others[c].size
            t += 1
        for size in (4, 4, 1, 1, 4):
            addresses[t] = address(targets[t], n * size, True)
            t += 1
        return num_bytes

    def are_live(self, keys):
        cdef int64_t n = len(keys)
        cdef const uint64_t *key = <const uint64_t *>address(keys, n * 8, False)
        result = np.empty(n, np.bool_)
        cdef uint8_t *flags = address(result, n, True)
        cdef int64_t i
        for i in range(n):
            flags[i] = header_at(&self._shape, slot_of(&self._shape, key[i])).flags & LIVE_FLAG
        return result

    def find(self, keys, slots, indices):
        cdef int64_t n = len(keys)
        cdef const uint64_t *key = <const uint64_t *>address(keys, n * 8, False)
        cdef int64_t *slot = <int64_t *>address(slots, n * 8, True)
        cdef int64_t *index = <int64_t *>address(indices, n * 8, True)
        cdef int64_t tail = self._counters[TAIL]
        cdef int64_t committed = self._counters[COMMITTED]
        cdef int64_t i
        cdef int64_t position
        cdef int64_t num_found = 0
        for i in range(n):
            if i + AHEAD < n:
                prefetch(header_at(&self._shape, slot_of(&self._shape, key[i + AHEAD])))
            position = <int64_t>(key[i] - self._shape.prefix)
            if position < 0 or position >= committed:
                raise KeysRefused(f"keys[{i}] is {key[i]}: no row of this shard ever had it")
            if position < tail:
                continue
            slot[num_found] = position % self._shape.num_rows
            if not header_at(&self._shape, slot[num_found]).flags & LIVE_FLAG:
                raise KeysRefused(f"keys[{i}] is {key[i]}: no transition starts at that row")
            index[num_found] = i
            num_found += 1
        return num_found


cdef class RowWriter:
    cdef uint8_t *_targets[MAX_COLUMNS]
    cdef tuple _names
    cdef tuple _arrays
    cdef tuple _dtypes
    cdef tuple _shapes

    def __cinit__(self, columns):
        if len(columns) > MAX_COLUMNS:
            raise ValueError(f"{len(columns)} columns are given: at most {MAX_COLUMNS} are possible")
        self._names, self._arrays = tuple(columns), tuple(columns.values())
        self._dtypes = tuple([array.dtype for array in self._arrays])
        self._shapes = tuple([array.shape[1:] for array in self._arrays])
        for c, array in enumerate(self._arrays):
            self._targets[c] = address(array, array.nbytes, True)

    def put(self, tuple values, int64_t index):
        cdef Py_ssize_t c
        if len(values) != len(self._names):
            raise ValueError(f"{len(values)} values are given for {len(self._names)} columns")
        for c in range(len(values)):
            value = values[c]
            if type(value) is ARRAY and value.dtype is self._dtypes[c]:
                if self._copy(c, value, index):
                    continue
            elif type(value) is SCALARS[self._dtypes[c].kind] and self._shapes[c] == ():
                self._arrays[c][index] = value
                continue
            self._arrays[c][index] = checked(self._names[c], value, self._shapes[c], self._dtypes[c])

    cdef bint _copy(self, Py_ssize_t c, value, int64_t index) except -1:
        """Copies an array of the right dtype if its shape is right too and it lies in one piece."""
        cdef Py_buffer view
        cdef tuple shape = self._shapes[c]
        cdef bint fits
        cdef Py_ssize_t i
        PyObject_GetBuffer(value, &view, PyBUF_STRIDES)
        fits = view.ndim == len(shape) and PyBuffer_IsContiguous(&view, b"C")
        for i in range(view.ndim if fits else 0):
            fits = fits and view.shape[i] == shape[i]
        if fits:
            memcpy(self._targets[c] + index * view.len, view.buf, view.len)
        PyBuffer_Release(&view)
        return fits


cdef object ARRAY = np.ndarray
cdef dict SCALARS = {"b": bool, "i": int, "u": int, "f": float}
