# cython: language_level=3
"""The bytes of arrays, and the head of a NumPy array (ext/arrays.hpp), whose users call `check_layout` once."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef extern from "arrays.hpp" namespace "parl" nogil:
    struct Array:
        char *bytes
        int ndim
        Py_ssize_t *shape
        Py_ssize_t *strides
        PyObject *dtype
        int flags

    const int kContiguous
    const int kWriteable
    Array *fields_of(PyObject *array) noexcept


cdef inline int check_layout(np) except -1:
    """Whether arrays lie in memory as these modules believe."""
    dtype = np.dtype(np.int32)
    probe = np.zeros((3, 5), dtype)[1:]
    turned = probe.T
    turned.flags.writeable = False
    cdef Array *seen = fields_of(<PyObject *>probe)
    cdef Array *other = fields_of(<PyObject *>turned)
    if (<size_t>seen.bytes != <size_t>probe.ctypes.data or seen.ndim != 2 or seen.shape[0] != 2 or seen.shape[1] != 5
            or seen.strides[0] != 20 or seen.dtype != <PyObject *>dtype
            or seen.flags & (kContiguous | kWriteable) != kContiguous | kWriteable
            or other.flags & (kContiguous | kWriteable) or other.shape[0] != 5):
        raise ImportError(f"NumPy {np.__version__} has another array object than parl_mq was written for")
    return 0


cdef inline uint8_t *address(object array, int64_t least, bint is_written) except NULL:
    """Where an array's bytes lie; the caller keeps the array alive."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE if is_written else PyBUF_SIMPLE)
    cdef uint8_t *start = <uint8_t *>view.buf
    cdef int64_t length = view.len
    PyBuffer_Release(&view)
    if length < least:
        raise ValueError(f"an array has {length} bytes instead of {least}")
    return start
