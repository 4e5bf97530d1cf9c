"""The codec: what it sends, what it gives back, and that hostile bytes get a WireError and nothing else."""

import contextlib
import resource
import struct
from math import prod

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.errors import WireError
from parl_mq.spec import DTYPES, Column
from parl_mq.wire.codec import (
    MAX_HEADER_BYTES,
    Decoder,
    SlabLayout,
    encode,
    encode_with_slab,
    expect_arrays,
)
from parl_mq.wire.messages import Goodbye, InsertFragments, SampleReply, SampleRequest, ToHub, ToReplay, WeightsChunk

decode = Decoder(ToReplay)
REQUEST = SampleRequest(request_id=1, table="main", batch_size=256)
FIELDS = {"kind": "sample", "request_id": 1, "table": "main", "batch_size": 256, "num_batches": 1, "rows": True}
FIELDS["run"] = None
REPLY = SampleReply(request_id=1, num_live=1, total_priority=1.0, num_inserted=0, num_drawn=0)


def framed(rows, slab=b"", **changes):
    """A sample request whose array rows say whatever a hostile peer likes."""
    return [msgpack.packb({**FIELDS, **changes, "arrays": rows}), slab]


def random_array(rng, dtype, shape):
    if dtype == "bool":
        return rng.random(shape) < 0.5
    raw = rng.integers(0, 256, prod(shape) * np.dtype(dtype).itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


# What goes in comes out


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 4), (65,), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_arrays_come_back_bit_by_bit(dtype, shape):
    array = random_array(np.random.default_rng(7), dtype, shape)
    _, arrays = decode(encode(REQUEST, {"keys": array, "second": array}))
    for view in arrays.values():
        assert (view.dtype, view.shape, view.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert view.flags.aligned
        assert not view.flags.writeable


def test_big_endian_and_strided_arrays_are_sent_as_little_endian_c_order():
    strided = np.arange(24, dtype=">i4").reshape(4, 6).T[::2]
    _, arrays = decode(encode(REQUEST, {"keys": strided}))
    assert arrays["keys"].dtype.str == "<i4"
    np.testing.assert_array_equal(arrays["keys"], strided)


def test_message_without_arrays_is_one_frame():
    frames = encode(REQUEST)
    assert len(frames) == 1
    assert decode(frames) == (REQUEST, {})
    assert msgpack.unpackb(frames[0]) == FIELDS


def test_empty_mapping_of_arrays_is_one_frame():
    assert encode(REQUEST, {}) == encode(REQUEST)


def test_arrays_start_at_multiples_of_64_and_the_last_one_ends_the_slab():
    header, slab = encode(REQUEST, {"keys": np.zeros(3, np.uint8), "second": np.zeros(9, np.int64)})
    assert msgpack.unpackb(header)["arrays"] == [["keys", "uint8", [3], 0], ["second", "int64", [9], 64]]
    assert len(slab) == 64 + 72


def test_sent_array_may_change_afterwards():
    array = np.ones(10, np.int64)
    frames = encode(REQUEST, {"keys": array})
    array[:] = 2
    assert decode(frames)[1]["keys"].tolist() == [1] * 10


def test_views_keep_the_slab_alive():
    arrays = decode([*encode(REQUEST, {"keys": np.arange(10_000)})])[1]
    assert arrays["keys"].sum() == sum(range(10_000))


@pytest.mark.parametrize("shift", range(1, 9))
def test_slab_at_any_address_gives_aligned_views(shift):
    header, slab = encode(REQUEST, {"keys": np.arange(5, dtype=np.float64)})
    memory = bytearray(len(slab) + 16)
    memory[shift : shift + len(slab)] = slab
    keys = decode([header, memoryview(memory)[shift : shift + len(slab)]])[1]["keys"]
    assert keys.flags.aligned
    assert not keys.flags.writeable
    assert keys.tolist() == [0, 1, 2, 3, 4]


def test_aligned_slab_is_not_copied():
    header, slab = encode(REQUEST, {"keys": np.arange(5)})
    assert np.shares_memory(decode([header, slab])[1]["keys"], np.frombuffer(slab, np.uint8))


# A service's own slab


def test_gathering_into_a_layouts_slab_is_the_same_as_copying_arrays_into_one():
    rng = np.random.default_rng(3)
    arrays = {"obs": random_array(rng, "uint8", (7, 5, 5)), "keys": random_array(rng, "uint64", (7,))}
    layout = SlabLayout(Column(name, array.shape, array.dtype.name) for name, array in arrays.items())
    slab, views = layout.allocate()
    for name, view in views.items():
        view[...] = arrays[name]
    gathered = encode_with_slab(REPLY, layout, slab)
    assert [bytes(frame) for frame in gathered] == [bytes(frame) for frame in encode(REPLY, arrays)]


def test_each_slab_is_new_aligned_and_clean_between_its_arrays():
    layout = SlabLayout([Column("a", (3,), "uint8"), Column("b", (1,), "float64"), Column("c", (5,), "int16")])
    slabs = [layout.allocate()[0] for _ in range(20)]
    addresses = {np.frombuffer(slab, np.uint8).ctypes.data for slab in slabs}
    assert len(addresses) == 20
    assert all(address % 64 == 0 for address in addresses)
    assert all(not any(slab[3:64]) and not any(slab[72:128]) for slab in slabs)


def test_slab_of_another_size_is_no_slab_of_the_layout():
    layout = SlabLayout([Column("a", (3,), "uint8")])
    with pytest.raises(ValueError, match="4 bytes, its layout 3"):
        encode_with_slab(REPLY, layout, memoryview(bytes(4)))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([{}], object), "'object'"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (np.zeros(2, "complex64"), "complex64"),
        (np.array(["text"]), "str"),
        (np.zeros(2, [("a", "i4")]), "void"),
        (np.zeros((1,) * 9), "9 dimensions"),
    ],
)
def test_arrays_that_cannot_be_sent_are_refused_at_the_sender(array, said):
    with pytest.raises(ValueError, match=said):
        encode(REQUEST, {"keys": array})


def test_layout_with_a_name_twice_is_refused():
    with pytest.raises(ValueError, match="repeat"):
        SlabLayout([Column("a", (), "int8"), Column("a", (), "int8")])


def test_header_over_its_limit_is_refused_at_the_sender():
    reply = WeightsChunk(version=(0, 0), chunk=0)
    with pytest.raises(ValueError, match="header of a weights_chunk has"):
        encode(reply, {"x" * MAX_HEADER_BYTES: np.zeros(1)})


# What a peer may not send


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "0 frames"),
        ([b""], "not msgpack"),
        ([b"", b"", b""], "3 frames"),
        ([b"x"] * 100, "100 frames"),
        ([b"\x80"], "kind"),
        ([b"\x80\x80"], "extra data"),
        ([b"\x93\x01\x02\x03"], "is a list"),
        ([b"\xc0"], "is a NoneType"),
        ([b"\xdf\xff\xff\xff\xff"], "exceeds max_map_len"),
        ([b"\xdd\xff\xff\xff\xff"], "exceeds max_array_len"),
        ([b"\x91" * 10_000], "not msgpack"),
        ([b"\x81\xa4kind" + b"\x91" * 10_000], "not msgpack"),
        ([msgpack.packb(dict.fromkeys(range(1000), 0))], "strict_map_key"),
        ([msgpack.packb({"kind": b"sample"})], "max_bin_len"),
        ([msgpack.packb({"kind": msgpack.Timestamp(1)})], "max_ext_len"),
        ([msgpack.packb({"kind": msgpack.ExtType(3, b"x")})], "max_ext_len"),
        ([b"\x81\xa4kind\xa1\xff"], "utf-8"),
        ([bytes(MAX_HEADER_BYTES + 1)], "at most"),
        ([msgpack.packb({**FIELDS, "kind": "welcome"})], "kind"),
        ([msgpack.packb({**FIELDS, "batch_size": 0})], "field sample.batch_size"),
        ([msgpack.packb({**FIELDS, "batch_size": 2**64 - 1, "more": 1})], "field sample.more: Extra"),
        ([msgpack.packb({**FIELDS, "table": "x" * 65})], "field sample.table"),
        ([msgpack.packb({"kind": "sample"})], "field sample.request_id: Field required"),
        ([msgpack.packb(FIELDS), b""], "a slab without arrays"),
        ([msgpack.packb({**FIELDS, "arrays": []})], "arrays without a slab"),
    ],
)
def test_frames_that_make_no_message_are_refused_with_the_reason(frames, said):
    with pytest.raises(WireError, match=said):
        decode(frames)


@pytest.mark.parametrize(
    ("rows", "slab", "said"),
    [
        (7, b"", "a list of at most"),
        ([["a", "int8", [0], 0]] * 1025, b"", "a list of at most 1024"),
        ([[]], b"", r"\[name, dtype, shape, offset\]"),
        (["abcd"], b"", r"\[name, dtype, shape, offset\]"),
        ([[1, "int8", [1], 0]], b"x", r"\[name, dtype, shape, offset\]"),
        ([["a", "int8", [1], 0.0]], b"x", r"\[name, dtype, shape, offset\]"),
        ([["a", "int8", 1, 0]], b"x", r"\[name, dtype, shape, offset\]"),
        ([["a", "object", [1], 0]], bytes(8), "'object' is not allowed"),
        ([["a", "O", [1], 0]], bytes(8), "'O' is not allowed"),
        ([["a", "V8", [1], 0]], bytes(8), "'V8' is not allowed"),
        ([["a", ">f8", [1], 0]], bytes(8), "'>f8' is not allowed"),
        ([["a", "f8,f8", [1], 0]], bytes(16), "is not allowed"),
        ([["a", "int8", [1] * 9, 0]], b"x", "at most 8"),
        ([["a", "int8", [-1], 0]], b"", "sizes >= 0"),
        ([["a", "int8", [-2, -3], 0]], b"123456", "sizes >= 0"),
        ([["a", "int8", [1.0], 0]], b"x", "sizes >= 0"),
        ([["a", "int8", [True], 0]], b"x", "sizes >= 0"),
        ([["a", "int8", ["1"], 0]], b"x", "sizes >= 0"),
        ([["a", "int8", [None], 0]], b"x", "sizes >= 0"),
        ([["a", "uint8", [2**40], 0]], bytes(8), "ends at byte 1099511627776 of a slab of 8"),
        ([["a", "float64", [2**63, 2**63], 0]], bytes(8), "of a slab of 8"),
        ([["a", "int8", [0, 2**62, 2**62], 0]], b"", "a shape that no array can have"),
        ([["a", "int8", [4], 1]], bytes(5), "starts at byte 1, expected 0"),
        ([["a", "int8", [4], -64]], bytes(5), "starts at byte -64, expected 0"),
        ([["a", "int8", [4], 64]], bytes(68), "starts at byte 64, expected 0"),
        ([["a", "int8", [65], 0], ["b", "int8", [1], 64]], bytes(65), "starts at byte 64, expected 128"),
        ([["a", "int8", [1], 0], ["b", "int8", [1], 0]], bytes(65), "starts at byte 0, expected 64"),
        ([["a", "int8", [4], 0], ["a", "int8", [4], 64]], bytes(68), "twice"),
        ([["a", "int8", [4], 0]], bytes(5), "end at byte 4 of a slab of 5"),
        ([], b"x", "end at byte 0 of a slab of 1"),
        ([["a", "bool", [4], 0]], b"\0\1\2\1", "neither 0 nor 1"),
    ],
)
def test_arrays_that_do_not_lie_as_described_are_refused_with_the_reason(rows, slab, said):
    with pytest.raises(WireError, match=said):
        decode(framed(rows, slab))


def test_message_over_the_receivers_limit_is_refused():
    frames = encode(REQUEST, {"keys": np.zeros(1000, np.uint8)})
    num_bytes = sum(map(len, frames))
    assert Decoder(ToReplay, max_bytes=num_bytes)(frames)
    with pytest.raises(WireError, match=f"{num_bytes} bytes, at most {num_bytes - 1}"):
        Decoder(ToReplay, max_bytes=num_bytes - 1)(frames)


def test_no_error_repeats_a_long_text_of_the_peer():
    long = "\n" * 100_000
    for frames in (
        [msgpack.packb({**FIELDS, "kind": long})],
        [msgpack.packb({**FIELDS, long: 1})],
        [msgpack.packb({**FIELDS, "table": long})],
        framed([[long, "int8", [1], 1]], b"x"),
        framed([["a", long, [1], 0]], b"x"),
    ):
        with pytest.raises(WireError) as caught:
            decode(frames)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\x00\x07\xff\xff" * 1000 + bytes(510_000),  # lists within each other, each announcing 524,287 items
        b"\xdd\x00\x00\x0f\xff" * 819,
        b"\xdc\xff\xff" + b"\x90" * 65_535 + b"\x90" * 400_000,
        msgpack.packb({**FIELDS, "more": ["x"] * 60_000}),
        msgpack.packb(
            {"kind": "spec_offer", "digest": "", "columns": [], "spaces": {"obs": ["Box", ["x"] * 60_000, []]}}
        ),
        msgpack.packb({"kind": "episodes_finished", "env_steps": 0, "returns": ["x"] * 60_000, "lengths": []}),
        msgpack.packb({f"{number}": number for number in range(4000)}),
    ],
    ids=["nested announcements", "short", "empty lists", "unknown field", "spaces", "returns", "unknown fields"],
)
def test_hostile_header_takes_little_memory(header):
    to_hub = Decoder(ToHub)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        with pytest.raises(WireError):
            to_hub([header])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


frame_lists = st.lists(st.binary(max_size=200), max_size=3)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@settings(deadline=None)
@given(frame_lists)
def test_random_frames_are_refused_with_a_wire_error(frames):
    with pytest.raises(WireError):
        decode(frames)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, "arrays", "x"]), plain), st.binary(max_size=100))
def test_random_maps_are_a_message_or_a_wire_error(changes, slab):
    with contextlib.suppress(WireError):
        decode([msgpack.packb({**FIELDS, **changes}), slab])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_message_with_flipped_bytes_is_a_message_or_a_wire_error(data):
    arrays = {"keys": np.arange(3, dtype=np.uint64), "flags": np.array([True, False])}
    frames = [bytearray(frame) for frame in encode(InsertFragments(sequence=1, table="main"), arrays)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(frames))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode(frames)


@pytest.mark.parametrize("kept", range(0, 100, 7))
def test_truncated_message_is_refused(kept):
    header, slab = encode(REQUEST, {"keys": np.arange(12, dtype=np.uint64)})
    with pytest.raises(WireError):
        decode([header[: len(header) * kept // 100], slab])
    with pytest.raises(WireError):
        decode([header, slab[: len(slab) * kept // 100]])


def test_pickles_are_refused_unread(tmp_path):
    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return marker.touch, ()

    import pickle  # the only use: as a weapon

    bomb = pickle.dumps(Bomb())
    numpy_style = msgpack.packb({b"nd": True, b"kind": b"O", b"type": b"O", b"shape": [1], b"data": bomb})
    for frames in ([bomb], [numpy_style], [numpy_style, bomb], framed([["a", "object", [1], 0]], bomb)):
        with pytest.raises(WireError):
            decode(frames)
    assert not marker.exists()


# Arrays against what a service expects


EXPECTED = {"obs": (("R", 84, 84, 4), "uint8"), "reward": (("R",), "float32"), "extra": ((None, 2), "int64")}


def arrays_as_expected(rows=3):
    return {
        "obs": np.zeros((rows, 84, 84, 4), np.uint8),
        "reward": np.zeros(rows, np.float32),
        "extra": np.zeros((9, 2), np.int64),
    }


def test_expected_arrays_give_the_sizes_of_their_letters():
    assert expect_arrays(arrays_as_expected(), EXPECTED) == {"R": 3}
    assert expect_arrays({}, {}) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs": np.zeros(4)}, r"field obs: got float64 \(4,\), expected uint8 \(R, 84, 84, 4\)"),
        (
            {"obs": np.zeros((3, 84, 84, 4))},
            r"field obs: got float64 \(3, 84, 84, 4\), expected uint8 \(R, 84, 84, 4\)",
        ),
        ({"reward": np.zeros(2, np.float32)}, r"field reward: got float32 \(2,\), expected float32 \(R=3,\)"),
        ({"reward": np.zeros((), np.float32)}, r"field reward: got float32 \(\), expected float32 \(R=3,\)"),
        ({"extra": np.zeros((9, 3), np.int64)}, r"field extra: got int64 \(9, 3\), expected int64 \(any, 2\)"),
        ({"other": np.zeros(1)}, "field 'other': not expected here"),
    ],
)
def test_unexpected_array_is_refused_with_field_got_and_expected(changes, said):
    with pytest.raises(WireError, match=said):
        expect_arrays({**arrays_as_expected(), **changes}, EXPECTED)


def test_missing_array_is_refused_by_name():
    arrays = arrays_as_expected()
    del arrays["reward"]
    with pytest.raises(WireError, match="field reward: missing"):
        expect_arrays(arrays, EXPECTED)


def test_header_length_claims_are_checked_against_the_frame():
    with pytest.raises(WireError):
        decode([b"\x81" + b"\xdb" + struct.pack(">I", 2**31)])


def test_a_message_like_the_one_before_is_checked_against_its_own_slab():
    arrays = {"a": np.arange(4, dtype=np.int8), "b": np.array([True, False])}
    fresh = Decoder(ToReplay)
    for number in range(3):
        frames = encode(REQUEST, {**arrays, "a": arrays["a"] + number})
        _, views = fresh(frames)
        np.testing.assert_array_equal(views["a"], arrays["a"] + number)
    header, slab = encode(REQUEST, arrays)
    with pytest.raises(WireError, match="of a slab of 65"):
        fresh([header, bytes(slab)[:-1]])
    with pytest.raises(WireError, match="neither 0 nor 1"):
        fresh([header, bytes(slab)[:-1] + b"\2"])
    np.testing.assert_array_equal(fresh([header, slab])[1]["a"], arrays["a"])


def test_arrays_of_other_places_are_not_taken_for_those_of_the_message_before():
    fresh = Decoder(ToReplay)
    for arrays in (
        {"a": np.zeros(8, np.int8)},
        {"a": np.zeros(1, np.int64)},
        {"b": np.zeros(1, np.int64)},
        {"b": np.zeros((1, 1), np.int64)},
    ):
        _, views = fresh(encode(REQUEST, arrays))
        assert {name: (view.dtype, view.shape) for name, view in views.items()} == {
            name: (array.dtype, array.shape) for name, array in arrays.items()
        }


def test_text_for_people_has_no_characters_that_a_terminal_acts_upon():
    goodbye = Goodbye(error="two\nlines\tof \x1b[2J\x07\u202e Grüße\xa0")
    assert goodbye.error == "two\nlines\tof \ufffd[2J\ufffd\ufffd Grüße\xa0"
    message, _ = Decoder(ToHub)([msgpack.packb({"kind": "goodbye", "error": "\x1b" * 2000})])
    assert message.error == "\ufffd" * 2000
