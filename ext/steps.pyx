# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Values of steps: checked, and written row by row; what callers must know stands in `_steps.pyi`."""

import numpy as np

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from parl_mq.replay.values import checked

from parl_mq.replay._arrays cimport Array, address, check_layout, fields_of, kContiguous
from parl_mq.replay._rows cimport MAX_COLUMNS


cdef extern from "rows.hpp" namespace "parl" nogil:
    void spread_column(uint8_t *to, int64_t stride, const uint8_t *source, int64_t size, int64_t n) noexcept


cdef extern from "steps.hpp" namespace "parl" nogil:
    cppclass Bounds "parl::Limits":
        const double *low
        const double *high
        int64_t num

    int64_t first_outside(char type, const uint8_t *values, int64_t stride, int64_t n, int64_t num_elements,
                          Bounds limits) noexcept


check_layout(np)

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

cdef object ndarray = np.ndarray


cdef class Limits:
    cdef readonly str name
    cdef double[::1] _low
    cdef double[::1] _high
    cdef Bounds _bounds

    def __cinit__(self, str name, low, high):
        both = np.broadcast_arrays(np.array(low, np.float64), np.array(high, np.float64))
        self.name = name
        self._low, self._high = both[0].copy(), both[1].copy()
        self._bounds.low, self._bounds.high, self._bounds.num = &self._low[0], &self._high[0], len(self._low)

    def check(self, array):
        if array.size == 0:
            return
        if array.dtype.char == "e":
            array = array.astype(np.float64)
        cdef Array *given = fields_of(<PyObject *>array)
        cdef int64_t num_rows = given.shape[0]
        cdef int64_t num_elements = array.size // num_rows
        if num_elements != self._bounds.num and self._bounds.num != 1:
            raise ValueError(f"{self.name} has {num_elements} elements: its limits are for {self._bounds.num}")
        cdef int64_t bad = first_outside(ord(array.dtype.char), <const uint8_t *>given.bytes, given.strides[0], num_rows,
                                         num_elements, self._bounds)
        if bad >= 0:
            self._refuse(array, bad, num_rows)

    cdef _refuse(self, array, int64_t bad, int64_t num_rows):
        index = [int(i) for i in np.unravel_index(bad, array.shape)]
        which = index if num_rows > 1 else index[1:]
        name = self.name + (str(which) if which else "")
        value = array[tuple(index)]
        low, high = self._low[bad % self._bounds.num], self._high[bad % self._bounds.num]
        if high == LARGEST_FLOAT32:
            raise ValueError(f"{name} is {value}: it must be a finite float32")
        raise ValueError(f"{name} is {value}: it must lie in [{low:g}, {high:g}]")


cdef struct Column:
    uint8_t *rows
    int64_t size  # bytes of a row
    int64_t num_dimensions
    PyObject *dtype
    char type


cdef class StepWriter:
    cdef Column _columns[MAX_COLUMNS]
    cdef Py_ssize_t _num_observations
    cdef Py_ssize_t _num_columns
    cdef int64_t _num_steps
    cdef int64_t _spacing  # rows from one step to the next
    cdef tuple _names
    cdef tuple _arrays
    cdef tuple _dtypes
    cdef tuple _shapes
    cdef list _limits  # each with the rows that it is for

    def __cinit__(self, observations, steps, limits, *, bint is_fragment=False):
        columns = {**observations, **steps}
        if len(columns) > MAX_COLUMNS:
            raise ValueError(f"{len(columns)} columns are given: at most {MAX_COLUMNS} are possible")
        self._num_observations, self._num_columns = len(observations), len(columns)
        self._names, self._arrays = tuple(columns), tuple(columns.values())
        self._dtypes = tuple([array.dtype for array in self._arrays])
        self._shapes = tuple([array.shape[1:] for array in self._arrays])
        self._spacing = 1 if is_fragment else 2
        self._num_steps = (len(self._arrays[0]) - 1) // self._spacing + (0 if is_fragment else 1)
        self._limits = [(limit, columns[limit.name][: self._num_steps * self._spacing : self._spacing])
                        for limit in limits]
        for c, array in enumerate(self._arrays):
            self._columns[c].rows = address(array, array.nbytes, True)
            self._columns[c].size = array.nbytes // len(array)
            self._columns[c].num_dimensions = array.ndim - 1
            self._columns[c].dtype = fields_of(<PyObject *>array).dtype
            self._columns[c].type = ord(array.dtype.char)

    def put(self, tuple obs, tuple step, tuple next_obs):
        if self._num_steps != 1 or self._spacing != 2:
            raise ValueError(f"the arrays are for {self._num_steps} steps, not for a single one")
        self._put_transitions(obs, step, next_obs, False)

    def put_all(self, tuple obs, tuple step, tuple next_obs):
        if self._spacing != 2:
            raise ValueError("the arrays are for a fragment")
        self._put_transitions(obs, step, next_obs, True)

    def put_fragment(self, tuple obs, tuple step):
        if self._spacing != 1:
            raise ValueError("the arrays are for transitions")
        self._check_numbers(obs, step)
        for c in range(self._num_observations):
            self._write(c, obs[c], 0, self._num_steps + 1, True)
        self._put_steps(step, True)

    cdef _put_transitions(self, tuple obs, tuple step, tuple next_obs, bint has_axis):
        cdef Py_ssize_t c
        self._check_numbers(obs, step)
        self._check_numbers(next_obs, step)
        for c in range(self._num_observations):
            self._write(c, obs[c], 0, self._num_steps, has_axis)
            self._write(c, next_obs[c], 1, self._num_steps, has_axis)
        self._put_steps(step, has_axis)

    cdef _check_numbers(self, tuple obs, tuple step):
        if len(obs) != self._num_observations or len(obs) + len(step) != self._num_columns:
            raise ValueError(f"there must be a value for each of {self._names}")

    cdef _put_steps(self, tuple step, bint has_axis):
        cdef Py_ssize_t c
        for c in range(self._num_observations, self._num_columns):
            self._write(c, step[c - self._num_observations], 0, self._num_steps, has_axis)
        for limits, rows in self._limits:
            (<Limits>limits).check(rows)

    cdef _write(self, Py_ssize_t c, value, int64_t first, int64_t n, bint has_axis):
        """Writes n values into rows that begin with the first and lie `spacing` apart."""
        cdef Column *column = &self._columns[c]
        cdef uint8_t *target = column.rows + first * column.size
        cdef const uint8_t *source
        if type(value) is ndarray:
            if not self._fits(c, value, n, has_axis):
                value = self._converted(c, value, n, has_axis)
        elif column.num_dimensions == 0 and not has_axis and self._write_scalar(column, value, target):
            return
        else:
            value = self._converted(c, value, n, has_axis)
        source = <const uint8_t *>fields_of(<PyObject *>value).bytes
        if n == 1 or self._spacing == 1:
            memcpy(target, source, n * column.size)
        else:
            spread_column(target, self._spacing * column.size, source, column.size, n)

    cdef bint _write_scalar(self, const Column *column, value, uint8_t *target) except -1:
        """Writes a Python number of the column's kind, if it is one that can be written at once."""
        cdef float short_float
        cdef int64_t integer
        if type(value) is float:
            if column.type == b"f":
                short_float = <float><double>value
                memcpy(target, &short_float, 4)
                return True
        elif type(value) is bool:
            if column.type == b"?":
                target[0] = value is True
                return True
        elif type(value) is int and column.type == b"l" and -(1 << 62) < value < 1 << 62:
            integer = value
            memcpy(target, &integer, 8)
            return True
        return False

    cdef bint _fits(self, Py_ssize_t c, value, int64_t n, bint has_axis) except -1:
        """Whether an array may be copied as it lies."""
        cdef Array *given = fields_of(<PyObject *>value)
        cdef tuple shape = self._shapes[c]
        cdef Py_ssize_t skipped = 1 if has_axis else 0
        cdef Py_ssize_t i
        if given.dtype != self._columns[c].dtype or not given.flags & kContiguous:
            return False
        if given.ndim != len(shape) + skipped or (has_axis and given.shape[0] != n):
            return False
        for i in range(len(shape)):
            if given.shape[skipped + i] != <Py_ssize_t>shape[i]:
                return False
        return True

    cdef _converted(self, Py_ssize_t c, value, int64_t n, bint has_axis):
        shape = (n, *self._shapes[c]) if has_axis else self._shapes[c]
        array = checked(self._names[c], value, shape, self._dtypes[c])
        with np.errstate(over="ignore"):  # what becomes infinite is refused later
            return np.array(array, self._dtypes[c], order="C")
