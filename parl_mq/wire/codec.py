"""Messages and arrays to frames and back: `[header]` or `[header, slab]`.

The header is one msgpack map: the message's fields, and `arrays`, which lists each array's name, dtype, shape and
offset. The slab holds the arrays in that order, C-contiguous, little-endian, each at the next 64-byte boundary; there
is exactly one way to lay them out, so whatever deviates is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from parl_mq.errors import WireError
from parl_mq.spec import DTYPES, MAX_DIMENSIONS
from parl_mq.wire.messages import Message

ALIGNMENT: Final = 64
MAX_HEADER_BYTES: Final = 4 * 1024 * 1024
MAX_ARRAYS: Final = 512

Arrays = dict[str, npt.NDArray[Any]]
Buffer = npt.NDArray[np.uint8]
Frame = bytes | bytearray | memoryview
ArrayRow = tuple[str, tuple[int, ...], npt.DTypeLike]

if sys.byteorder != "little":
    raise ImportError("parl_mq sends arrays as they lie in memory and needs a little-endian machine")


class SlabLayout:
    """Where each of some arrays lies in a slab.

    Attributes:
        num_bytes: of the whole slab.
        rows: (name, dtype, shape, offset) of each array, as the header lists them.
    """

    def __init__(self, arrays: Iterable[ArrayRow]) -> None:
        self.rows: list[tuple[str, str, list[int], int]] = []
        end = 0
        for name, shape, dtype in arrays:
            kind = np.dtype(dtype).name
            if kind not in DTYPES:
                raise WireError(f"array {name}: dtype {kind} cannot be sent; only {', '.join(sorted(DTYPES))}")
            start = _aligned(end)
            self.rows.append((name, kind, list(shape), start))
            end = start + prod(shape) * np.dtype(kind).itemsize
        self.num_bytes = end

    def allocate(self) -> tuple[Buffer, Arrays]:
        """A fresh 64-byte aligned buffer, and a writable view on it for each array."""
        memory = np.empty(self.num_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        buffer = memory[start : start + self.num_bytes]
        return buffer, {name: _view(buffer, dtype, shape, offset) for name, dtype, shape, offset in self.rows}


def encode(message: Message, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> list[Frame]:
    """The frames of a message; the arrays are copied into a slab.

    Raises:
        WireError: an array's dtype is not on the whitelist.
    """
    if not arrays:
        return [msgpack.packb(message.model_dump())]
    layout = SlabLayout((name, array.shape, array.dtype) for name, array in arrays.items())
    buffer, views = layout.allocate()
    for name, array in arrays.items():
        views[name][...] = array
    return encode_with_slab(message, layout, buffer)


def encode_with_slab(message: Message, layout: SlabLayout, buffer: Buffer) -> list[Frame]:
    """The frames of a message whose arrays were written into the views of `layout.allocate()`.

    The buffer is handed over: it must not change any more.
    """
    header = msgpack.packb({**message.model_dump(), "arrays": layout.rows})
    return [header, buffer.data]


class Decoder:
    """Decodes the messages of one union; whatever is wrong with a message becomes a WireError."""

    def __init__(self, union: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(union)

    def __call__(self, frames: Sequence[Frame]) -> tuple[Any, Arrays]:
        """The message and its arrays: read-only views on the slab, valid as long as they live.

        Raises:
            WireError: the frames are no valid message; says what is wrong.
        """
        if not 1 <= len(frames) <= 2:
            raise WireError(f"a message has 1 or 2 frames, not {len(frames)}")
        header = _unpack(frames[0])
        rows = header.pop("arrays", None)
        arrays = _read_arrays(rows, frames[1] if len(frames) == 2 else None)
        try:
            return self._adapter.validate_python(header), arrays
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "header"
            raise WireError(f"{place}: {first['msg']}") from None


def expect_arrays(arrays: Arrays, expected: Mapping[str, tuple[Sequence[int | str], str]]) -> dict[str, int]:
    """Checks names, dtypes and shapes; a letter in a shape stands for one size, the same wherever it occurs.

    Args:
        arrays: of a message.
        expected: name -> (shape, dtype).

    Returns:
        The sizes that the letters stand for.

    Raises:
        WireError: names the array, what it is, and what it should be.
    """
    if arrays.keys() != expected.keys():
        missing, foreign = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
        raise WireError(f"arrays: missing {missing}, not expected {foreign}")
    sizes: dict[str, int] = {}
    for name, (shape, dtype) in expected.items():
        array = arrays[name]
        fits = len(shape) == array.ndim and all(
            size == (sizes.setdefault(letter, size) if isinstance(letter, str) else letter)
            for letter, size in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.name != dtype:
            wanted = tuple(sizes.get(letter, letter) if isinstance(letter, str) else letter for letter in shape)
            raise WireError(f"field {name}: got {array.dtype.name} {array.shape}, expected {dtype} {wanted}")
    return sizes


def _unpack(frame: Frame) -> dict[str, Any]:
    if len(frame) > MAX_HEADER_BYTES:
        raise WireError(f"header has {len(frame)} bytes, at most {MAX_HEADER_BYTES} are allowed")
    try:
        header = msgpack.unpackb(frame, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"header is not msgpack: {error or type(error).__name__}") from None
    if not isinstance(header, dict):
        raise WireError(f"header is a {type(header).__name__}, not a map")
    return header


def _read_arrays(rows: Any, slab: Frame | None) -> Arrays:
    if rows is None and slab is None:
        return {}
    if slab is None or not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ARRAYS:
        raise WireError("a slab must come with a list of its arrays in the header, and the list with a slab")
    described = [_checked_row(row) for row in rows]
    if len({name for name, *_ in described}) != len(described):
        raise WireError("arrays: a name repeats")
    end = 0
    for name, dtype, shape, offset in described:
        if offset != _aligned(end):
            raise WireError(f"array {name}: offset {offset}, expected {_aligned(end)}")
        end = offset + prod(shape) * np.dtype(dtype).itemsize
        if end > len(slab):
            raise WireError(f"array {name}: {dtype} {tuple(shape)} ends at byte {end} of a slab of {len(slab)}")
    if end != len(slab):
        raise WireError(f"the arrays take {end} bytes, the slab has {len(slab)}")
    buffer = _aligned_buffer(slab)
    return {name: _view(buffer, dtype, shape, offset) for name, dtype, shape, offset in described}


def _checked_row(row: Any) -> tuple[str, str, list[int], int]:
    match row:
        case [str(name), str(dtype), list(shape), int(offset)] if dtype in DTYPES and len(shape) <= MAX_DIMENSIONS:
            if all(type(size) is int and 0 <= size < 2**48 for size in shape) and 0 <= offset < 2**48:
                return name, dtype, shape, offset
    raise WireError(f"arrays: {str(row)[:200]} is not [name, dtype, shape, offset] with an allowed dtype and sizes")


def _aligned_buffer(slab: Frame) -> Buffer:
    """The slab's bytes, read-only; copied where the transport laid them at an address that arrays cannot use."""
    buffer: Buffer = np.frombuffer(slab, np.uint8)
    if buffer.ctypes.data % 8:
        memory = np.empty(len(buffer) + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        memory[start : start + len(buffer)] = buffer
        buffer = memory[start : start + len(buffer)]
    buffer.flags.writeable = False
    return buffer


def _view(buffer: Buffer, dtype: str, shape: Sequence[int], offset: int) -> npt.NDArray[Any]:
    return np.ndarray(tuple(shape), dtype, buffer, offset)


def _aligned(end: int) -> int:
    return end + -end % ALIGNMENT
