// The head of a NumPy array object, so that looking at one costs no calls: a buffer and three attributes take 100 ns,
// which is most of what checking a short column costs.
//
// These members have stood in this order since NumPy 1.0: every extension that was built against its headers relies on
// that. Whoever includes this compares them with what Python sees of an array, once.
#pragma once

#include <Python.h>

namespace parl {

struct Array {
    PyObject_HEAD
    char* bytes;
    int ndim;
    Py_ssize_t* shape;
    Py_ssize_t* strides;
    PyObject* base;
    PyObject* dtype;
    int flags;
};

constexpr int kContiguous = 0x0001;
constexpr int kWriteable = 0x0400;

inline Array* fields_of(PyObject* array) { return (Array*)array; }

}  // namespace parl
