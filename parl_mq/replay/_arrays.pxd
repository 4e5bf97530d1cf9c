# cython: language_level=3
"""The head of a NumPy array; see ext/arrays.hpp. Modules that use it call `check_layout` once."""

from cpython.object cimport PyObject


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
