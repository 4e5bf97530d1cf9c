import numpy as np
import pytest
from gymnasium import Env, spaces

from parl_mq.services.observations import are_equal, copied, described, leaves_of, mismatch, share_memory
from parl_mq.spec import TableSpec, spec_of
from tests.environments import ConstEnv, DictEnv

GOOD = {"a": np.zeros(2, np.int16), "b": (3, np.zeros((2, 2), np.float32))}


def _spec(space: spaces.Space) -> TableSpec:
    env: Env = ConstEnv()
    env.observation_space = space
    return spec_of(env)


def test_copies_stay_when_the_original_changes() -> None:
    original = {"a": np.zeros(2), "b": (np.ones(1), 5)}
    copy = copied(original)
    assert are_equal(copy, original)
    original["a"][1] = 1  # type: ignore[index]
    assert not are_equal(copy, original)
    assert [np.asarray(leaf).tolist() for leaf in leaves_of(copy)] == [[0, 0], [1], 5]


def test_nan_equals_nan() -> None:
    assert are_equal(np.array([np.nan, 1]), np.array([np.nan, 1]))
    assert not are_equal(np.array([np.nan, 1]), np.array([np.nan, 2]))


def test_views_share_memory_and_copies_do_not() -> None:
    memory = np.zeros(4)
    assert share_memory({"a": 1, "b": memory[:3]}, {"a": 1, "b": memory[2:]})
    assert not share_memory((memory,), (memory.copy(),))
    assert not share_memory(3, 3)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float32), "Box [2, 3] float32, -1 to 1"),
        (
            spaces.Box(np.array([0, -np.inf]), np.array([1, 2]), dtype=np.float64),
            "Box [2] float64, [0, -inf] to [1, 2]",
        ),
        (spaces.Box(np.arange(30), np.arange(30) + 1, dtype=np.int64), "Box [30] int64, 0 to 30"),
        (spaces.Discrete(5, start=2), "Discrete int64, 2 to 6"),
    ],
)
def test_spaces_in_words(space: spaces.Space, words: str) -> None:
    assert described(_spec(space), "obs") == words


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (np.zeros(3, np.float32), r"it has the shape [3] instead of [2]"),
        (np.zeros(2), "it is float64 instead of float32 (parl_mq converts it)"),
        (np.array([0, np.nan], np.float32), "it is not finite"),
        (np.array([0, 7.5], np.float32), "element 1 of it is 7.5, outside -1 to 1"),
        (np.array([-2, 0], np.float32), "element 0 of it is -2, outside -1 to 1"),
    ],
)
def test_mismatch_says_what_does_not_fit(obs: np.ndarray, words: str) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    assert not space.contains(obs)
    assert mismatch(_spec(space), obs) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b": (3, np.zeros((2, 1), np.float32))}, "obs/b/1 has the shape [2, 1] instead of [2, 2]"),
        ({"b": (30_000, GOOD["b"][1])}, "element 0 of obs/b/0 is 30000, outside 0 to 3e+04"),
        ({"b": (3,)}, "obs/b/1 is missing"),
    ],
)
def test_mismatch_names_the_part(change: dict[str, object], words: str) -> None:
    assert mismatch(spec_of(DictEnv()), {**GOOD, **change}) == words
