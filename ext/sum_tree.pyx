# cython: language_level=3
"""The K-ary sum tree; the signatures and what callers must know stand in `_sum_tree.pyi`."""

import contextlib
import mmap

import numpy as np

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from parl_mq.replay._arrays cimport Array, check_layout, fields_of, kContiguous, kWriteable


cdef extern from "kernels.hpp" namespace "parl" nogil:
    cdef enum Kernel:
        kPortable
        kAvx2
        kAvx512

    const int64_t kSumsAhead
    bint is_available(Kernel kernel) noexcept
    void choose_kernel(Tree &tree, Kernel kernel) noexcept
    double just_below(double x) noexcept
    int64_t first_outside(const int64_t *slots, int64_t n, int64_t largest) noexcept
    void mark_range(Tree &tree, int64_t start, int64_t stop) noexcept


check_layout(np)

LARGEST_VALUE = 1e290
"""No sum of 2^32 such values is infinite."""

cdef double LARGEST = LARGEST_VALUE
cdef int64_t LARGEST_CAPACITY = 1 << 32

# Giving the GIL up costs little, but getting it back from a busy thread takes up to a switch interval: only work of
# tens of microseconds is worth it.
cdef int64_t RELEASE_ITEMS = 2048
cdef int64_t RELEASE_RANGE = 65536

HUGE_PAGE = 2 << 20  # bytes

cdef object ndarray = np.ndarray
cdef object empty = np.empty
cdef object INT64 = np.dtype(np.int64)
cdef object FLOAT64 = np.dtype(np.float64)

cdef dict KERNELS = {"avx512": kAvx512, "avx2": kAvx2, "portable": kPortable}


def available_kernels():
    return tuple(name for name, kernel in KERNELS.items() if is_available(kernel))


def padded_size(int64_t capacity, int64_t arity):
    _check_shape(capacity, arity)
    group = max(arity, 8)
    return -(-capacity // group) * group


def _check_shape(capacity, arity):
    if not 1 <= capacity <= LARGEST_CAPACITY:
        raise ValueError(f"capacity is {capacity}: it must lie in [1, 2^32]")
    if arity not in (2, 4, 8, 16, 32, 64):
        raise ValueError(f"arity is {arity}: it must be a power of two in [2, 64]")


def _zeros(size):
    """Zeros on a page of their own; on huge ones if they are many, which spares most misses of the page tables."""
    size_bytes = 8 * size
    if size_bytes > HUGE_PAGE:
        size_bytes = -(-size_bytes // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= HUGE_PAGE:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.float64, size)


def _check_leaves(leaves, size):
    if not isinstance(leaves, np.ndarray) or leaves.dtype != np.float64 or leaves.ndim != 1:
        raise TypeError("leaves must be a one-dimensional float64 array")
    if leaves.size < size:
        raise ValueError(f"leaves has {leaves.size} values: {size} are needed")
    if not (leaves.flags.c_contiguous and leaves.flags.writeable and leaves.ctypes.data % 64 == 0):
        raise ValueError("leaves must be contiguous, writeable and aligned to 64 bytes")


cdef void *_items(array, name, dtype, int64_t *n, bint is_output=False) except? NULL:
    """The items of an array, which keeps them as long as it lives, and their number."""
    if not isinstance(array, ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    cdef Array *given = fields_of(<PyObject *>array)
    if given.ndim != 1 or (given.dtype != <PyObject *>dtype and array.dtype != dtype):
        raise ValueError(f"{name} must be one-dimensional {dtype}, not {array.ndim}-dimensional {array.dtype}")
    if not given.flags & kContiguous:
        raise ValueError(f"{name} must be contiguous")
    if is_output and not given.flags & kWriteable:
        raise ValueError(f"{name} is read-only")
    n[0] = given.shape[0]
    return given.bytes


cdef const int64_t *_integers(array, name, int64_t *n) except? NULL:
    return <const int64_t *> _items(array, name, INT64, n)


cdef const double *_doubles(array, name, int64_t *n) except? NULL:
    return <const double *> _items(array, name, FLOAT64, n)


cdef _check_values(const double *values, int64_t n, name):
    cdef int64_t bad = first_outside(values, n, LARGEST)
    if bad >= 0:
        raise ValueError(f"{name}[{bad}] is {values[bad]}: a value must lie in [0, {LARGEST}]")


cdef _check_length(name, int64_t length, int64_t expected):
    if length != expected:
        raise ValueError(f"{name} has {length} items instead of {expected}")


cdef class SumTree:
    """Non-negative values of slots, and draws of slots in proportion to them; documented in `_sum_tree.pyi`."""

    def __cinit__(self, int64_t capacity, *, int arity=8, leaves=None, kernel=None):
        size = padded_size(capacity, arity)
        kernel = available_kernels()[0] if kernel is None else kernel
        if kernel not in available_kernels():
            raise ValueError(f"kernel is {kernel!r}: this machine has {', '.join(available_kernels())}")
        if leaves is not None:
            _check_leaves(leaves, size)
        self.capacity, self.arity, self.kernel = capacity, arity, kernel
        self._tree.shift = int(arity).bit_length() - 1
        choose_kernel(self._tree, KERNELS[kernel])
        self._lay_out(leaves)
        self._take_over()

    cdef _lay_out(self, leaves):
        counts = [self.capacity, -(-self.capacity // self.arity)]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // self.arity))
        given = [] if leaves is None else [leaves[:padded_size(self.capacity, self.arity)]]
        ends = np.cumsum([padded_size(count, self.arity) for count in counts[len(given):]])
        self._arrays = given + np.split(_zeros(ends[-1]), ends[:-1])
        cdef double[::1] row
        for height, array in enumerate(self._arrays):
            row = array
            self._tree.rows[height], self._tree.counts[height] = &row[0], counts[height]
        self._tree.height = len(counts) - 1
        self._dirty = np.zeros(counts[1] + kSumsAhead, np.uint32)
        self._tree.dirty = &self._dirty[0]

    cdef _take_over(self):
        leaves = self._arrays[0]
        _check_values(self._tree.rows[0], self.capacity, "leaves")
        leaves[self.capacity:] = 0.0
        self._leaves = leaves[:self.capacity]
        self._leaves.flags.writeable = False
        mark_range(self._tree, 0, self.capacity)

    @property
    def leaves(self):
        return self._leaves

    @property
    def total(self):
        return self._fresh_total()

    @property
    def _num_marked(self):
        return self._tree.num_dirty

    def _rows(self):
        return tuple(self._arrays)

    def set(self, slots, values):
        self._set(slots, values, False)

    def update(self, slots, values):
        self._set(slots, values, True)

    cdef _set(self, slots, values, bint is_refreshed):
        cdef int64_t n, num_values
        cdef const int64_t *slot = _integers(slots, "slots", &n)
        cdef const double *value = _doubles(values, "values", &num_values)
        _check_length("values", num_values, n)
        cdef int64_t bad = first_outside(slot, n, self.capacity - 1)
        if bad >= 0:
            raise ValueError(f"slots[{bad}] is {slot[bad]}: a slot must lie in [0, {self.capacity})")
        _check_values(value, n, "values")
        if n < RELEASE_ITEMS:
            set_leaves(self._tree, n, slot, value)
        else:
            with nogil:
                set_leaves(self._tree, n, slot, value)
        if is_refreshed:
            self._fresh_total()

    def fill(self, int64_t start, int64_t stop, double value):
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"slots {start} to {stop} are not a range in [0, {self.capacity}]")
        if first_outside(&value, 1, LARGEST) >= 0:
            raise ValueError(f"value is {value}: it must lie in [0, {LARGEST}]")
        if stop - start < RELEASE_RANGE:
            fill_leaves(self._tree, start, stop, value)
        else:
            with nogil:
                fill_leaves(self._tree, start, stop, value)

    def write(self, int64_t start, values):
        cdef int64_t n
        cdef const double *value = _doubles(values, "values", &n)
        if not 0 <= start <= self.capacity - n:
            raise ValueError(f"start is {start}: {n} values from there do not lie in [0, {self.capacity})")
        _check_values(value, n, "values")
        if n < RELEASE_RANGE:
            write_leaves(self._tree, start, n, value)
        else:
            with nogil:
                write_leaves(self._tree, start, n, value)

    def refresh(self):
        self._fresh_total()

    def find(self, targets):
        cdef int64_t n
        cdef const double *target = _doubles(targets, "targets", &n)
        cdef double total = self._positive_total()
        cdef int64_t bad = first_outside(target, n, just_below(total))
        if bad >= 0:
            raise ValueError(f"targets[{bad}] is {target[bad]}: a target must lie in [0, {total})")
        slots, rests = empty(n, INT64), targets.copy()
        self._search(n, <int64_t *> _integers(slots, "slots", &n), <double *> _doubles(rests, "targets", &n))
        return slots

    def draw(self, uniforms, out_slots=None, out_values=None):
        cdef int64_t n, num_slots, num_values
        cdef const double *uniform = _doubles(uniforms, "uniforms", &n)
        out_slots = empty(n, INT64) if out_slots is None else out_slots
        out_values = empty(n) if out_values is None else out_values
        cdef int64_t *slots = <int64_t *> _items(out_slots, "out_slots", INT64, &num_slots, True)
        cdef double *values = <double *> _items(out_values, "out_values", FLOAT64, &num_values, True)
        _check_length("out_slots", num_slots, n)
        _check_length("out_values", num_values, n)
        cdef int64_t bad = first_outside(uniform, n, just_below(1.0))
        if bad >= 0:
            raise ValueError(f"uniforms[{bad}] is {uniform[bad]}: a uniform must lie in [0, 1)")
        scale(n, uniform, self._positive_total(), values)
        self._search(n, slots, values)
        return out_slots, out_values

    cdef double _fresh_total(self):
        if self._tree.num_dirty < RELEASE_ITEMS:
            refresh(self._tree)
        else:
            with nogil:
                refresh(self._tree)
        return self._tree.rows[self._tree.height][0]

    cdef double _positive_total(self) except -1.0:
        cdef double total = self._fresh_total()
        if total == 0.0:
            raise ValueError("the total is 0: no slot can be found")
        return total

    cdef _search(self, int64_t n, int64_t *slots, double *targets):
        if n < RELEASE_ITEMS:
            find_slots(self._tree, n, slots, targets)
        else:
            with nogil:
                find_slots(self._tree, n, slots, targets)
