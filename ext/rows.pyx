# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Kernels over the records of one segment; the signatures and what callers must know stand in `_rows.pyi`."""

import numpy as np

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from parl_mq.replay.refusals import FragmentsRefused

from parl_mq.replay._arrays cimport Array, address, check_layout, fields_of, kContiguous


cdef extern from "rows.hpp" namespace "parl" nogil:
    void prefetch_to_write(const void *p) noexcept
    uint8_t *record_at(const Shape *shape, int64_t slot) noexcept
    void spread_column(uint8_t *to, int64_t stride, const uint8_t *source, int64_t size, int64_t n) noexcept
    void copy_value(uint8_t *to, const uint8_t *source, int64_t size) noexcept


NUM_COUNTERS = 4
"""int64 words of a segment's counters: tail, reserved, committed, live rows."""

cdef enum:
    # Draws whose lines are asked for before they are needed.
    AHEAD = 8
    # A window of at most so many bytes is asked for whole; of a larger one the head, as the processor sees the rest
    # coming.
    SHORT_WINDOW = 1024
    LONG_HEAD = 256
    # Of the records that a fragment takes so much is asked for before it is written; the processor sees the rest coming.
    MOST_AHEAD = 16384


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
                      int64_t start, int64_t stop, uint8_t **targets) noexcept nogil:
    cdef int64_t i
    cdef int64_t c
    cdef int64_t k
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
        k = window_length(shape, slot)
        record = record_at(shape, slot)
        last = record + (k - 1 if k > 0 else 0) * shape.stride
        sum_rewards(shape, slot, k, <float *>step_targets[0] + i, &discount)
        step_targets[2][i] = last[shape.terminated]
        step_targets[3][i] = last[shape.truncated]
        (<float *>step_targets[1])[i] = 0.0 if last[shape.terminated] else <float>discount
        (<int32_t *>step_targets[4])[i] = <int32_t>k
        for c in range(shape.num_others):
            copy_value(other_targets[c] + i * others[c].size, record + others[c].offset, others[c].size)
        for c in range(shape.num_observations):
            if shape.stack > 1:
                copy_stack(shape, &observations[c], slot, k,
                           targets[c] + i * observations[c].size * (shape.stack + shape.n_step))
            else:
                copy_value(targets[c] + i * observations[c].size, record + observations[c].offset,
                           observations[c].size)
                copy_value(targets[shape.num_observations + c] + i * observations[c].size,
                           record + k * shape.stride + observations[c].offset, observations[c].size)


cdef class Part:
    def __dealloc__(self):
        free(self.leaves)


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
        for i in range(0, min(n * shape.stride, MOST_AHEAD), 64):
            prefetch_to_write(record_at(shape, slot) + i)
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


cdef object ndarray = np.ndarray
cdef object INT32 = np.dtype(np.int32)
cdef object UINT8 = np.dtype(np.uint8)
cdef object BOOL = np.dtype(np.bool_)


check_layout(np)


cdef const uint8_t *_items(name, array, dtype, int64_t n, tuple shape) except NULL:
    """Where the items of an array lie that must be [n, *shape]; the caller keeps it alive."""
    cdef Array *given
    cdef bint fits
    cdef Py_ssize_t i
    if not isinstance(array, ndarray):
        raise FragmentsRefused(f"{name!r} is a {type(array).__name__}: it must be an array")
    given = fields_of(<PyObject *>array)
    fits = (given.dtype == <PyObject *>dtype or array.dtype == dtype) and given.ndim == 1 + len(shape)
    fits = fits and given.shape[0] == n
    for i in range(len(shape) if fits else 0):
        fits = fits and given.shape[1 + i] == <Py_ssize_t>shape[i]
    if not fits:
        raise FragmentsRefused(f"{name!r} is {array.dtype} {array.shape}: it must be {dtype} {(n, *shape)}")
    if not given.flags & kContiguous:
        raise FragmentsRefused(f"{name!r} is not contiguous in memory")
    return <const uint8_t *>given.bytes


cdef class Incoming:
    pass


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
        names = [column.name for column in spec.columns]
        self._terminated, self._truncated = names.index("terminated"), names.index("truncated")
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
        incoming.num_fragments = len(fragments.lengths)
        if incoming.num_fragments == 0:
            raise FragmentsRefused("there are no fragments")
        incoming._kept = (fragments, spans)
        self._take_columns(incoming, fragments.columns)
        self._take_lengths(incoming, fragments, spans)
        check_fragments(&self._shape, incoming, incoming._sources[self._terminated],
                        incoming._sources[self._truncated], most_rows, most_live)
        return incoming

    cdef _take_columns(self, Incoming incoming, columns):
        cdef int64_t c = 0
        if len(columns) != len(self._expected) or "reward" not in columns:
            self._refuse_names(columns)
        incoming.num_rows = len(columns["reward"])
        for name, (dtype, shape) in self._expected.items():
            if name not in columns:
                self._refuse_names(columns)
            incoming._sources[c] = _items(name, columns[name], dtype, incoming.num_rows, shape)
            c += 1

    cdef _refuse_names(self, columns):
        raise FragmentsRefused(f"the columns are {sorted(columns)}: they must be {sorted(self._expected)}")

    cdef _take_lengths(self, Incoming incoming, fragments, spans):
        cdef int64_t n = incoming.num_fragments
        incoming._given.lengths = <const int32_t *>_items("lengths", fragments.lengths, INT32, n, ())
        incoming._given.num_context = <const int32_t *>_items("num_context", fragments.num_context, INT32, n, ())
        incoming._given.num_overlap = <const int32_t *>_items("num_overlap", fragments.num_overlap, INT32, n, ())
        incoming._given.starts_episode = _items("starts_episode", fragments.starts_episode, BOOL, n, ())
        incoming._given.spans = NULL
        if spans is not None:
            incoming._given.spans = _items("spans", spans, UINT8, incoming.num_rows, ())

    cpdef Part plan(self, Incoming incoming, Part after, int64_t capacity):
        cdef Part part = Part()
        self._check_writable()
        if after is not None:
            part.first, part.row, part.live = after.stop, after.row + after.num_rows, after.live + after.num_live
        part.start = self._counters[RESERVED]
        self._place(incoming, part, capacity)
        part.old_tail = self._counters[TAIL]
        part.num_evicted = self._victims(part, capacity)
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


    cpdef evict(self, Part part):
        store(&self._counters[NUM_LIVE], self._counters[NUM_LIVE] - part.num_evicted)
        store(&self._counters[TAIL], part.tail)
        full_fence()  # no store of the rows that follow may be seen before the tail that gives them up

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

    cpdef scatter(self, Incoming incoming, Part part, values, double default, keys):
        cdef uint64_t *key = <uint64_t *>address(keys, (part.live + part.num_live) * 8, True) + part.live
        cdef const double *value = NULL
        if values is not None:
            value = <const double *>address(values, (part.live + part.num_live) * 8, False) + part.live
        if part.leaves == NULL:
            part.leaves = <double *>malloc(part.num_rows * sizeof(double))
        if part.leaves == NULL:
            raise MemoryError
        if part.num_rows * self._shape.stride < RELEASE_BYTES:
            scatter_rows(&self._shape, &incoming._given, self._columns, self._num_columns, incoming._sources, part,
                         value, default, part.leaves, key)
        else:
            with nogil:
                scatter_rows(&self._shape, &incoming._given, self._columns, self._num_columns, incoming._sources, part,
                             value, default, part.leaves, key)

    def gather(self, keys, tuple targets, int64_t start, int64_t stop):
        cdef uint8_t *addresses[MAX_TARGETS]
        cdef const uint64_t *key = <const uint64_t *>address(keys, stop * 8, False)
        cdef int64_t num_bytes = self._addresses(targets, stop, addresses)
        if (stop - start) * num_bytes < RELEASE_BYTES:
            self._gather(key, start, stop, addresses)
        else:
            with nogil:
                self._gather(key, start, stop, addresses)
        return self._torn(key, start, stop)

    cdef void _gather(self, const uint64_t *keys, int64_t start, int64_t stop, uint8_t **addresses) noexcept nogil:
        gather_rows(&self._shape, self._observations, self._others, keys, start, stop, addresses)
        acquire_fence()

    cdef _torn(self, const uint64_t *keys, int64_t start, int64_t stop):
        """Indices of keys whose rows have been given up since they were gathered; None if there are none."""
        cdef uint64_t oldest = self._shape.prefix + <uint64_t>load(&self._counters[TAIL])
        cdef int64_t i
        for i in range(start, stop):
            if keys[i] < oldest:
                return [j for j in range(start, stop) if keys[j] < oldest]
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
