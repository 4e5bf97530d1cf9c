# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Draws from a shard and updates of several, in one call each; what callers must know stands in `_shard.pyi`."""

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from parl_mq.replay.refusals import KeysRefused

from parl_mq.replay._arrays cimport address
from parl_mq.replay._priorities cimport Priorities, in_one_piece
from parl_mq.replay._rows cimport (
    COMMITTED,
    LIVE_FLAG,
    MAX_TARGETS,
    RELEASE_BYTES,
    TAIL,
    Incoming,
    Part,
    Rows,
    Shape,
    acquire_fence,
    header_at,
    load,
    prefetch,
    slot_of,
)
from parl_mq.replay._sum_tree cimport (
    SumTree,
    Tree,
    divide,
    fill_leaves,
    find_slots,
    refresh,
    scale,
    set_leaves,
    write_leaves,
)


cdef extern from "<mutex>" namespace "std" nogil:
    cppclass mutex:
        void lock()
        bint try_lock()
        void unlock()


cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)


cdef extern from *:
    """
    // What NumPy's bit generators offer to C, by the capsule "BitGenerator".
    struct BitSource {
        void *state;
        uint64_t (*next_uint64)(void *);
        uint32_t (*next_uint32)(void *);
        double (*next_double)(void *);
        uint64_t (*next_raw)(void *);
    };
    """
    struct BitSource:
        void *state
        double (*next_double)(void *) noexcept nogil


cdef enum:
    # Keys whose headers are asked for before they are needed.
    AHEAD = 8
    POSITION_BITS = 48
    MAX_SHARDS = 256
    # Draws, updates and sums that take less time than giving the GIL up and getting it back.
    RELEASE_ITEMS = 512

cdef object ndarray = np.ndarray
cdef object empty = np.empty
cdef object UINT64 = np.dtype(np.uint64)


cdef class Lock:
    cdef mutex _mutex

    def __enter__(self):
        take(&self._mutex, True)

    def __exit__(self, kind, error, traceback):
        self._mutex.unlock()


cdef void take(mutex *lock, bint has_gil) noexcept nogil:
    """Takes a lock. Never waits for it with the GIL, which its holder may want."""
    cdef PyThreadState *state
    if lock.try_lock():
        return
    if has_gil:
        state = PyEval_SaveThread()
        lock.lock()
        PyEval_RestoreThread(state)
    else:
        lock.lock()


cdef class Counts:
    pass


# What kernels need of a shard, without Python.
cdef struct Body:
    const Shape *shape
    int64_t *counters
    Tree *tree
    mutex *lock
    BitSource *source
    double newest_total
    double *max_magnitude
    double *max_magnitude_again
    int64_t *num_drawn
    int64_t *num_updated
    int64_t *num_stale


cdef double total_of(Body *body) noexcept nogil:
    """The fresh total, or where another thread is at work the newest that one has seen. Never waits."""
    cdef double total
    if not body.lock.try_lock():
        return body.newest_total
    total = fresh_total(body)
    body.lock.unlock()
    return total


cdef inline double fresh_total(Body *body) noexcept nogil:
    refresh(body.tree[0])
    body.newest_total = body.tree.rows[body.tree.height][0]
    return body.newest_total


cdef inline void raise_to(const Body *body, double magnitude) noexcept nogil:
    """Makes the running maximum, which stands in two places, at least this."""
    if magnitude > body.max_magnitude[0]:
        body.max_magnitude[0] = magnitude
        body.max_magnitude_again[0] = magnitude


cdef double choose(Body *body, int64_t n, uint64_t *keys, double *values, double chance, bint is_again,
                   bint has_gil) noexcept nogil:
    """Keys and probabilities of n draws; returns the total. Nothing is drawn from a total of 0."""
    cdef double total
    cdef int64_t i
    take(body.lock, has_gil)
    total = fresh_total(body)
    if total > 0.0:
        for i in range(n):
            values[i] = body.source.next_double(body.source.state)
        scale(n, values, total, values)
        find_slots(body.tree[0], n, <int64_t *>keys, values)
        locate(body, n, keys)
        body.num_drawn[0] += 0 if is_again else n
    body.lock.unlock()
    divide(n, total, chance, values)
    return total


cdef void locate(const Body *body, int64_t n, uint64_t *keys) noexcept nogil:
    """Turns slots of valid rows into their keys."""
    cdef uint64_t num_rows = body.shape.num_rows
    cdef uint64_t oldest = body.counters[TAIL]
    cdef uint64_t base = oldest - oldest % num_rows
    cdef int64_t i
    for i in range(n):
        keys[i] += base if base + keys[i] >= oldest else base + num_rows
        keys[i] += body.shape.prefix


cdef enum Fault:
    NONE
    FOREIGN
    FUTURE
    DEAD


# One call's updates of rows of S shards, whose prefixes follow each other.
cdef struct Update:
    Body *bodies[MAX_SHARDS]
    int64_t num_shards
    int64_t n
    const uint64_t *keys
    const double *magnitudes
    # [n] each, for what is computed on the way
    double *priorities
    double *values
    int64_t *slots
    uint32_t *order
    bint has_gil


cdef inline uint64_t shard_of(const Update *update, uint64_t key) noexcept nogil:
    """Index of a key's shard; the number of shards or more, if it is of none."""
    return (key >> POSITION_BITS) - (update.bodies[0].shape.prefix >> POSITION_BITS)


cdef inline void ask_for_header(const Update *update, uint64_t key) noexcept nogil:
    cdef uint64_t shard = shard_of(update, key)
    if shard < <uint64_t>update.num_shards:
        prefetch(header_at(update.bodies[shard].shape, slot_of(update.bodies[shard].shape, key)))


cdef Fault fault_of(const Body *body, uint64_t key) noexcept nogil:
    """What is wrong with a key for ever; a stale one is in order, as it was right once."""
    cdef int64_t position = <int64_t>(key - body.shape.prefix)
    cdef bint is_live
    if position >= load(&body.counters[COMMITTED]):
        return FUTURE
    if position < load(&body.counters[TAIL]):
        return NONE
    is_live = header_at(body.shape, slot_of(body.shape, key)).flags & LIVE_FLAG
    acquire_fence()  # where an insert has overwritten the row meanwhile, the tail has moved past it before
    return NONE if is_live or position < load(&body.counters[TAIL]) else DEAD


cdef int64_t first_fault(const Update *update, Fault *fault) noexcept nogil:
    """Index of the first key that no live row here ever had; -1 if there is none. Takes no lock."""
    cdef uint64_t shard
    cdef int64_t i
    for i in range(update.n):
        if i + AHEAD < update.n:
            ask_for_header(update, update.keys[i + AHEAD])
        shard = shard_of(update, update.keys[i])
        fault[0] = FOREIGN
        if shard < <uint64_t>update.num_shards:
            fault[0] = fault_of(update.bodies[shard], update.keys[i])
        if fault[0] != NONE:
            return i
    return -1


cdef void sort_by_shard(const Update *update, int64_t *ends) noexcept nogil:
    """Fills in the order: the indices of each shard's keys as they came; shard s has those from ends[s] to ends[s + 1]."""
    cdef int64_t nexts[MAX_SHARDS + 1]
    cdef int64_t i
    cdef int64_t shard
    memset(ends, 0, (MAX_SHARDS + 1) * sizeof(int64_t))
    for i in range(update.n):
        ends[shard_of(update, update.keys[i]) + 1] += 1
    for shard in range(update.num_shards):
        ends[shard + 1] += ends[shard]
        nexts[shard] = ends[shard]
    for i in range(update.n):
        shard = shard_of(update, update.keys[i])
        update.order[nexts[shard]] = <uint32_t>i
        nexts[shard] += 1


cdef int64_t apply(const Update *update, const Body *body, const uint32_t *order, int64_t n) noexcept nogil:
    """Writes the leaves of a locked shard's keys that are still valid, and unlocks it; returns how many that are.

    The keys are those at order[0] to order[n - 1], or without an order the first n.
    """
    cdef uint64_t oldest
    cdef double largest = 0.0
    cdef int64_t num_valid = 0
    cdef int64_t i
    cdef int64_t j
    oldest = body.shape.prefix + <uint64_t>body.counters[TAIL]
    for j in range(n):
        i = order[j] if order != NULL else j
        if update.keys[i] >= oldest:
            update.slots[num_valid] = slot_of(body.shape, update.keys[i])
            update.values[num_valid] = update.priorities[i]
            largest = update.magnitudes[i] if update.magnitudes[i] > largest else largest
            num_valid += 1
    set_leaves(body.tree[0], num_valid, update.slots, update.values)
    raise_to(body, largest)
    body.num_updated[0] += num_valid
    body.num_stale[0] += n - num_valid
    body.lock.unlock()
    return num_valid


cdef int64_t apply_all(const Update *update) noexcept nogil:
    """The same for all shards, one after the other: no two locks are held at once, those that are free come first."""
    cdef int64_t ends[MAX_SHARDS + 1]
    cdef bint is_done[MAX_SHARDS]
    cdef int64_t num_valid = 0
    cdef int64_t turn
    cdef int64_t shard
    cdef int64_t n
    if update.num_shards == 1:
        take(update.bodies[0].lock, update.has_gil)
        return apply(update, update.bodies[0], NULL, update.n)
    sort_by_shard(update, ends)
    for turn in range(2):
        for shard in range(update.num_shards):
            n = ends[shard + 1] - ends[shard]
            if turn == 0:
                is_done[shard] = n == 0 or update.bodies[shard].lock.try_lock()
                if n == 0 or not is_done[shard]:
                    continue
            elif is_done[shard]:
                continue
            else:
                take(update.bodies[shard].lock, update.has_gil)
            num_valid += apply(update, update.bodies[shard], update.order + ends[shard], n)
    return num_valid


cdef int64_t check_and_apply(const Update *update, Priorities rule, int64_t *bad, Fault *fault) noexcept nogil:
    bad[0] = first_fault(update, fault)
    if bad[0] >= 0:
        return 0
    rule.compute(update.n, update.magnitudes, update.priorities)
    return apply_all(update)


cdef class Shard:
    cdef readonly Rows rows
    cdef readonly SumTree tree
    cdef readonly Lock lock
    cdef readonly Counts counts
    cdef public object observer
    cdef object _kept
    cdef Body _body

    def __cinit__(self, Rows rows, SumTree tree, rng, max_magnitude, max_magnitude_again):
        self.rows, self.tree, self.lock, self.counts = rows, tree, Lock(), Counts()
        capsule = rng.bit_generator.capsule
        self._kept = (rng, capsule, max_magnitude, max_magnitude_again)
        self._body.shape, self._body.counters, self._body.tree = &rows._shape, rows._counters, &tree._tree
        self._body.lock = &self.lock._mutex
        self._body.source = <BitSource *>PyCapsule_GetPointer(capsule, "BitGenerator")
        self._body.max_magnitude = <double *>address(max_magnitude, 8, True)
        self._body.max_magnitude_again = <double *>address(max_magnitude_again, 8, True)
        self._body.num_drawn = &self.counts.drawn
        self._body.num_updated, self._body.num_stale = &self.counts.updated, &self.counts.stale

    @property
    def max_magnitude(self):
        return self._body.max_magnitude[0]

    cpdef raise_maximum(self, double magnitude):
        raise_to(&self._body, magnitude)

    def total(self):
        cdef double total
        with nogil:
            take(&self.lock._mutex, False)
            total = fresh_total(&self._body)
            self._body.lock.unlock()
        return total

    def choose(self, keys, probabilities, int64_t start, int64_t stop, double chance, bint is_again=False):
        cdef uint64_t *key = <uint64_t *>address(keys, stop * 8, True) + start
        cdef double *probability = <double *>address(probabilities, stop * 8, True) + start
        cdef double total
        if stop - start + self._body.tree.num_dirty < RELEASE_ITEMS:
            return choose(&self._body, stop - start, key, probability, chance, is_again, True)
        with nogil:
            total = choose(&self._body, stop - start, key, probability, chance, is_again, False)
        return total

    def draw(self, keys, probabilities, tuple targets, int64_t start, int64_t stop, double chance):
        cdef uint8_t *addresses[MAX_TARGETS]
        cdef uint64_t *key = <uint64_t *>address(keys, stop * 8, True)
        cdef double *probability = <double *>address(probabilities, stop * 8, True)
        cdef int64_t num_bytes = self.rows._addresses(targets, stop, addresses)
        cdef int64_t n = stop - start
        cdef double total
        if n + self._body.tree.num_dirty < RELEASE_ITEMS and n * num_bytes < RELEASE_BYTES:
            total = choose(&self._body, n, key + start, probability + start, chance, False, True)
            if total > 0.0:
                self.rows._gather(key, start, stop, addresses)
        else:
            with nogil:
                total = choose(&self._body, n, key + start, probability + start, chance, False, False)
                if total > 0.0:
                    self.rows._gather(key, start, stop, addresses)
        return total, self.rows._torn(key, start, stop) if total > 0.0 else None

    def store(self, log, Incoming incoming, Part after, int64_t capacity, values, double default,
              double max_magnitude, keys, sender):
        cdef Part part = self.rows.plan(incoming, after, capacity)
        log.reserve(part.end, part.tail)
        if part.tail > part.old_tail:
            take(&self.lock._mutex, True)
            try:
                self._zero(part.old_tail, part.tail)
                self._tell("zero")
                self.counts.evicted += part.num_evicted
                self.rows.evict(part)
                self._tell("evict")
            finally:
                self.lock._mutex.unlock()
        self.rows.scatter(incoming, part, values, default, keys)
        self._tell("scatter")
        take(&self.lock._mutex, True)
        try:
            self._write_leaves(part)
            self._tell("write_leaves")
            self.raise_maximum(max_magnitude)
            if part.stop == incoming.num_fragments:
                self.counts.inserted = log.commit(part.end, part.num_live, self._body.max_magnitude[0], sender,
                                                  self.counts)
            else:
                self.counts.inserted = log.publish(part.end, part.num_live)
        finally:
            self.lock._mutex.unlock()
        return part

    cdef _tell(self, step):
        if self.observer is not None:
            self.observer(step)

    def zero(self, int64_t start, int64_t stop):
        if not 0 <= start <= stop <= start + self._body.shape.num_rows:
            raise ValueError(f"positions [{start}, {stop}) are more than there are rows")
        self._zero(start, stop)

    cdef void _zero(self, int64_t start, int64_t stop) noexcept:
        cdef int64_t num_rows = self._body.shape.num_rows
        cdef int64_t first = start % num_rows
        cdef int64_t num_before = min(stop - start, num_rows - first)
        fill_leaves(self._body.tree[0], first, first + num_before, 0.0)
        fill_leaves(self._body.tree[0], 0, stop - start - num_before, 0.0)

    def write_leaves(self, Part part):
        if part.leaves == NULL:
            raise ValueError("the part has not been scattered")
        self._write_leaves(part)

    cdef void _write_leaves(self, Part part) noexcept:
        write_leaves(self._body.tree[0], part.start % self._body.shape.num_rows, part.before_wrap, part.leaves)
        write_leaves(self._body.tree[0], 0, part.num_rows - part.before_wrap, part.leaves + part.before_wrap)


def largest_magnitude(list shards, double least):
    cdef Shard shard
    cdef double largest = least
    for shard in shards:
        largest = max(largest, shard._body.max_magnitude[0])
    return largest


def totals(list shards, bint is_exact=False):
    cdef Body *bodies[MAX_SHARDS]
    cdef int64_t num_shards = bodies_of(shards, bodies)
    result = empty(num_shards)
    cdef double *total = <double *>address(result, 8 * num_shards, True)
    cdef int64_t s
    with nogil:
        for s in range(num_shards):
            if is_exact:
                bodies[s].lock.lock()
                total[s] = fresh_total(bodies[s])
                bodies[s].lock.unlock()
            else:
                total[s] = total_of(bodies[s])
    return result


cdef int64_t bodies_of(list shards, Body **bodies) except -1:
    cdef Shard shard
    cdef int64_t s
    if not 0 < len(shards) <= MAX_SHARDS:
        raise ValueError(f"{len(shards)} shards are given: a table has 1 to {MAX_SHARDS}")
    for s in range(len(shards)):
        shard = shards[s]
        bodies[s] = &shard._body
    return len(shards)


def update(list shards, Priorities rule, keys, magnitudes):
    cdef Update given
    cdef Fault fault = NONE
    cdef int64_t bad
    cdef int64_t num_valid
    if not isinstance(keys, ndarray) or keys.dtype != UINT64 or keys.ndim != 1:
        raise KeysRefused(f"keys are {_described(keys)}: they must be uint64 [U]")
    given.num_shards = bodies_of(shards, given.bodies)
    keys, magnitudes = in_one_piece(keys), in_one_piece(magnitudes)
    given.n = keys.shape[0]
    given.keys = <const uint64_t *>address(keys, given.n * 8, False)
    given.magnitudes = rule.checked(magnitudes, given.n)
    memory = empty(4 * given.n)
    given.priorities = <double *>address(memory, given.n * 32, True)
    given.values = given.priorities + given.n
    given.slots = <int64_t *>(given.values + given.n)
    given.order = <uint32_t *>(given.slots + given.n)
    given.has_gil = given.n < RELEASE_ITEMS
    if given.has_gil:
        num_valid = check_and_apply(&given, rule, &bad, &fault)
    else:
        with nogil:
            num_valid = check_and_apply(&given, rule, &bad, &fault)
    if bad >= 0:
        raise KeysRefused(f"keys[{bad}] is {keys[bad]}: {_REASONS[fault]}; none of the {given.n} updates was applied")
    return num_valid


cdef dict _REASONS = {
    FOREIGN: "it belongs to another table or shard",
    FUTURE: "no row of its shard ever had it",
    DEAD: "no transition starts at that row",
}


cdef _described(array):
    return f"{array.dtype} {array.shape}" if hasattr(array, "dtype") else f"a {type(array).__name__}"
