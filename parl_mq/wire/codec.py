"""Messages and arrays as frames, and back: `[header]`, or `[header, slab]` where there are arrays.

The header is one msgpack map: the message's fields, and under `arrays` a row [name, dtype, shape, offset] for each
array. The slab holds the arrays' elements, little endian and in C order, one array after the other; each starts at the
next multiple of 64 bytes, and the last one ends the slab.

Nothing that a peer sends can raise anything but WireError here, or allocate more than a small multiple of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgpack  # type: ignore[import-untyped]  # it has no stubs
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from parl_mq.errors import WireError
from parl_mq.spec import DTYPES, MAX_DIMENSIONS
from parl_mq.wire.messages import Message

Frame = bytes | bytearray | memoryview
Arrays = dict[str, npt.NDArray[Any]]
T = TypeVar("T")
Shape = Sequence[int | str | None]
"""An expected shape: a number, None for any, or a letter that stands for the same number wherever it occurs."""

ALIGNMENT: Final = 64
"""Bytes: a cache line, and more than any vector load needs."""
BASE_ALIGNMENT: Final = 8
"""Bytes: the largest element; a slab that starts off it (transports promise nothing) is copied before it is viewed."""
MAX_HEADER_BYTES: Final = 512 * 1024
"""A header of one-byte elements takes some 72 times as much memory unpacked: 36 MiB at this size."""
LONG_HEADER_BYTES: Final = 4 * 1024
"""A list is allocated at the length that it announces, which the header's length bounds, and a thousand may be nested:
32 MiB at this size. A longer header is walked through first, without making anything, to see that all of it is there.
"""
LAYOUTS_KEPT: Final = 256
"""A node sends the same arrays again and again; rows and fragments of a few sizes."""
MAX_MAP_ITEMS: Final = 4_096
MAX_ARRAYS: Final = 1_024

_ROW_TYPES: Final = (str, str, list, int)
_DTYPES: Final = {name: np.dtype(name) for name in DTYPES}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}  # numpy takes a microsecond to spell a dtype's name


class Described(Protocol):
    """Anything that names an array, its shape and its dtype, such as a column."""

    @property
    def name(self) -> str: ...  # noqa: D102 - the class says it

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> str: ...  # noqa: D102


class _Description(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str


class _Place(NamedTuple):
    """Where an array lies in a slab: bytes [start, stop)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SlabLayout:
    """Where each of several arrays lies in a slab. Immutable: one layout serves any number of slabs.

    Attributes:
        num_bytes: size of a slab.
    """

    def __init__(self, arrays: Iterable[Described]) -> None:
        """Lays the arrays out in the order given.

        Raises:
            ValueError: a dtype is not on the list, there are more than 8 dimensions, or a name repeats.
        """
        self._places: list[_Place] = []
        self.num_bytes = 0
        for array in arrays:
            self._append(array.name, tuple(array.shape), array.dtype)
        if len({place.name for place in self._places}) != len(self._places):
            raise ValueError(f"array names repeat: {[place.name for place in self._places]}")
        stops = [0, *(place.stop for place in self._places)]
        self._gaps = [(stop, place.start) for stop, place in zip(stops, self._places, strict=False)]
        self.rows = [[place.name, place.dtype, place.shape, place.start] for place in self._places]

    def _append(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"array {name!r}: dtype {dtype!r} is not one of {sorted(DTYPES)}")
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"array {name!r}: {len(shape)} dimensions, at most {MAX_DIMENSIONS} can be sent")
        start = _aligned(self.num_bytes)
        self.num_bytes = start + prod(shape) * _DTYPES[dtype].itemsize
        self._places.append(_Place(name, dtype, shape, start, self.num_bytes))

    def allocate(self) -> tuple[memoryview, Arrays]:
        """A new slab, aligned to 64 bytes, and a writable view on each array in it.

        The elements are not initialized; the gaps between the arrays are zero, so that no old memory is ever sent.
        """
        slab = _empty(self.num_bytes)
        for stop, start in self._gaps:
            slab[stop:start] = 0
        views: Arrays = {
            place.name: np.ndarray(place.shape, _DTYPES[place.dtype], slab.data, place.start) for place in self._places
        }
        return slab.data, views


def encode(message: Message, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> list[Frame]:
    """The frames of a message; arrays are copied into a new slab, so the caller may go on writing to them.

    Raises:
        ValueError: an array cannot be sent (see SlabLayout), or the header would be over its limit.
    """
    if not arrays:
        return [_packed(vars(message))]
    layout = _layout_of(tuple([(name, array.shape, array.dtype) for name, array in arrays.items()]))
    slab, views = layout.allocate()
    for name, array in arrays.items():
        views[name][...] = array
    return encode_with_slab(message, layout, slab)


@lru_cache(LAYOUTS_KEPT)
def _layout_of(arrays: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]) -> SlabLayout:
    return SlabLayout(_Description(name, shape, _NAMES.get(dtype) or dtype.name) for name, shape, dtype in arrays)


def encode_with_slab(message: Message, layout: SlabLayout, slab: memoryview) -> list[Frame]:
    """The frames of a message whose arrays lie in a slab of this layout already.

    The slab is handed over: write to it no more.

    Raises:
        ValueError: the slab is not of this layout's size, or the header would be over its limit.
    """
    if len(slab) != layout.num_bytes:
        raise ValueError(f"the slab has {len(slab)} bytes, its layout {layout.num_bytes}")
    return [_packed({**vars(message), "arrays": layout.rows}), slab]


class Decoder:
    """Turns the frames of one receiver's messages back into messages and arrays."""

    def __init__(self, union: Any, *, max_bytes: int | None = None) -> None:
        """Makes a decoder for one of the unions in parl_mq.wire.messages.

        Args:
            union: the messages that are accepted.
            max_bytes: of all frames of a message; None leaves that to the transport.
        """
        self._validate = TypeAdapter(union).validator.validate_python
        self._max_bytes = max_bytes
        self._newest: dict[str, tuple[Any, int, list[_Place]]] = {}

    def __call__(self, frames: Sequence[Frame]) -> tuple[Message, Arrays]:
        """The message in these frames, and read-only views on its arrays, aligned for their elements.

        The views keep the slab's frame alive; nothing is copied but a slab that starts off a multiple of 8 bytes.

        Raises:
            WireError: anything at all is wrong with them; it says what.
        """
        self._check_sizes(frames)
        header = unpacked(frames[0])
        rows = header.pop("arrays", None)
        message = self._validated(header)
        if rows is None and len(frames) == 1:
            return message, {}
        if rows is None or len(frames) == 1:
            raise WireError("a slab without arrays" if rows is None else "arrays without a slab")
        slab = _readable(frames[1])
        return message, {place.name: _view(place, slab) for place in self._places(header["kind"], rows, len(slab))}

    def _places(self, kind: str, rows: Any, num_bytes: int) -> list[_Place]:
        """Checked places; those of the newest message of the kind, where they are the same, need no second check."""
        newest = self._newest.get(kind)
        if newest is None or newest[0] != rows or newest[1] != num_bytes:
            newest = self._newest[kind] = (rows, num_bytes, _checked_places(rows, num_bytes))
        return newest[2]

    def _check_sizes(self, frames: Sequence[Frame]) -> None:
        if not 1 <= len(frames) <= 2:
            raise WireError(f"{len(frames)} frames, expected a header and at most one slab")
        if len(frames[0]) > MAX_HEADER_BYTES:
            raise WireError(f"a header of {len(frames[0])} bytes, at most {MAX_HEADER_BYTES} are accepted")
        num_bytes = sum(map(len, frames))
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise WireError(f"a message of {num_bytes} bytes, at most {self._max_bytes} are accepted here")

    def _validated(self, header: dict[str, Any]) -> Message:
        try:
            message: Message = self._validate(header)
        except ValidationError as error:
            raise WireError(_described(header, error)) from None  # its text would hold what the peer sent
        return message


def expect_arrays(arrays: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, tuple[Shape, str]]) -> dict[str, int]:
    """Checks that `arrays` are exactly the `expected` ones.

    Args:
        arrays: as a Decoder returned them.
        expected: name -> (shape, dtype).

    Returns:
        What each letter stands for.

    Raises:
        WireError: a field is missing, unknown, or of another dtype or shape; it names the field, got and expected.
    """
    if unknown := sorted(arrays.keys() - expected.keys()):
        raise WireError(f"field {unknown[0]!r:.200}: not expected here")
    sizes: dict[str, int] = {}
    for name, (shape, dtype) in expected.items():
        array = arrays.get(name)
        if array is None:
            raise WireError(f"field {name}: missing")
        if array.dtype != _DTYPES[dtype] or not _matches(array.shape, shape, sizes):
            raise WireError(
                f"field {name}: got {array.dtype.name} {array.shape}, expected {dtype} {_shape_text(shape, sizes)}"
            )
    return sizes


def _matches(actual: tuple[int, ...], shape: Shape, sizes: dict[str, int]) -> bool:
    """Whether a shape is as expected; a letter that is new gets its size."""
    return len(actual) == len(shape) and all(
        expected is None or size == (sizes.setdefault(expected, size) if isinstance(expected, str) else expected)
        for size, expected in zip(actual, shape, strict=True)
    )


def _shape_text(shape: Shape, sizes: Mapping[str, int]) -> str:
    """Such as `(R=65, 84, 84)`; in the manner of a tuple, so that it can be compared with one."""
    texts = [
        "any" if size is None else f"{size}={sizes[size]}" if isinstance(size, str) and size in sizes else str(size)
        for size in shape
    ]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _empty(num_bytes: int) -> npt.NDArray[np.uint8]:
    """[num_bytes] bytes that start at a multiple of 64."""
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -_address(memory) % ALIGNMENT
    return memory[start : start + num_bytes]


def _address(array: npt.NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _packed(fields: Mapping[str, Any]) -> bytes:
    # Every field of a message is made of plain values, so a dump of the model would only copy them.
    header: bytes = msgpack.packb(fields)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the header of a {fields['kind']} has {len(header)} bytes, at most {MAX_HEADER_BYTES} can go")
    return header


def fitting(rows: Iterable[T], num_bytes: int, as_sent: Callable[[T], Any] = lambda row: row) -> list[T]:
    """The first of some rows, as many as take so many bytes of a header at most."""
    kept: list[T] = []
    for row in rows:
        num_bytes -= len(msgpack.packb(as_sent(row)))
        if num_bytes < 0:
            break
        kept.append(row)
    return kept


def unpacked(frame: Frame) -> dict[str, Any]:
    """The header in a frame, not yet a message of any kind.

    Raises:
        WireError: it is not a msgpack map within the limits.
    """
    # No string or list may announce more than the frame holds; binary strings and extensions have no place in a header.
    try:
        if len(frame) > LONG_HEADER_BYTES:
            _walk(frame)
        header = msgpack.unpackb(frame, max_map_len=MAX_MAP_ITEMS, max_bin_len=0, max_ext_len=0)
    except (ValueError, TypeError, MemoryError, msgpack.UnpackException) as error:
        raise WireError(f"the header is not msgpack within its limits: {error!s:.200}") from error
    if not isinstance(header, dict):
        raise WireError(f"the header is a {type(header).__name__}, expected a map")
    return header


def _walk(frame: Frame) -> None:
    """Raises what unpacking would raise where something announced is missing."""
    walker = msgpack.Unpacker()
    walker.feed(frame)
    walker.skip()


def _described(header: Mapping[str, Any], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind = repr(header.get("kind"))[:60]
    place = ".".join(str(part) for part in first["loc"])
    return f"message of kind {kind}: {f'field {place:.200}: ' if place else ''}{first['msg']:.500}"


def _checked_places(rows: Any, num_bytes: int) -> list[_Place]:
    """The places that the header's rows describe, which must fill a slab of so many bytes."""
    if not isinstance(rows, list) or len(rows) > MAX_ARRAYS:
        raise WireError(f"arrays must be a list of at most {MAX_ARRAYS} rows")
    places: list[_Place] = []
    end = 0
    for row in rows:
        place = _checked_place(row, end)
        end = place.stop
        if end > num_bytes:
            raise WireError(f"array {place.name!r:.200}: ends at byte {end} of a slab of {num_bytes}")
        places.append(place)
    if len({place.name for place in places}) != len(places):
        names = [place.name for place in places]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise WireError(f"array {twice!r:.200}: twice in one message")
    if end != num_bytes:
        raise WireError(f"the arrays end at byte {end} of a slab of {num_bytes}")
    return places


def _readable(frame: Frame) -> npt.NDArray[np.uint8]:
    """A frame's bytes, read-only and aligned for every dtype."""
    slab = np.ndarray(len(frame), np.uint8, memoryview(frame).toreadonly())
    if _address(slab) % BASE_ALIGNMENT:
        aligned = _empty(len(frame))
        aligned[:] = slab
        aligned.flags.writeable = False
        return aligned
    return slab


def _checked_place(row: Any, end: int) -> _Place:
    """The place that a row of the header describes; it must begin where the array before it, at `end`, allows."""
    if not (isinstance(row, list) and tuple(map(type, row)) == _ROW_TYPES):
        raise WireError("a row of arrays must be [name, dtype, shape, offset]")
    name, dtype, shape, start = row
    if dtype not in _DTYPES:
        raise WireError(f"array {name!r:.200}: dtype {dtype!r:.60} is not allowed")
    if len(shape) > MAX_DIMENSIONS or not {int}.issuperset(map(type, shape)) or min(shape, default=0) < 0:
        raise WireError(f"array {name!r:.200}: its shape must be at most {MAX_DIMENSIONS} sizes >= 0")
    if start != _aligned(end):
        raise WireError(f"array {name!r:.200}: starts at byte {start}, expected {_aligned(end)}")
    return _Place(name, dtype, tuple(shape), start, start + prod(shape) * _DTYPES[dtype].itemsize)


def _view(place: _Place, slab: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    if place.dtype == "bool" and slab[place.start : place.stop].max(initial=0) > 1:
        raise WireError(f"array {place.name!r:.200}: a bool that is neither 0 nor 1")
    try:
        return np.ndarray(place.shape, _DTYPES[place.dtype], slab.data, place.start)
    except ValueError:  # sizes whose product overflows, hidden beside a zero
        raise WireError(f"array {place.name!r:.200}: a shape that no array can have") from None
