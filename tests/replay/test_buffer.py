from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parl_mq.errors import MemoryRefused, SnapshotError
from parl_mq.replay.buffer import PrioritizedReplay, Replay, ReplayBatch, UniformReplay
from parl_mq.spec import spec_of

SPEC = {"obs": ((2,), "float32"), "action": ((), "int64")}
GAMMA = 0.9


def make_replay(capacity: int = 100, **settings: Any) -> PrioritizedReplay:
    return PrioritizedReplay(capacity, SPEC, **{"alpha": 1.0, "eps": 0.0, "gamma": GAMMA, **settings})


def transition(number: int, *, terminated: bool = False, truncated: bool = False, **more: Any) -> dict[str, Any]:
    """Step `number` of the counting environment: reward number % 1000 + 1, next observation one more."""
    return {
        "obs": np.full(2, number, np.float32),
        "action": number,
        "reward": float(number % 1000 + 1),
        "next_obs": np.full(2, number + 1, np.float32),
        "terminated": terminated,
        "truncated": truncated,
        **more,
    }


def all_rows(replay: Replay, num_draws: int = 2000) -> dict[int, tuple[float, float, float, bool, bool]]:
    """(reward, next observation, discount, terminated, truncated) by first observation."""
    batch = replay.sample(num_draws)
    values = zip(batch.reward, batch.next_obs[:, 0], batch.discount, batch.terminated, batch.truncated, strict=True)
    rounded = [(round(float(r), 4), float(n), round(float(d), 5), bool(t), bool(c)) for r, n, d, t, c in values]
    return dict(zip(batch.obs[:, 0].astype(int).tolist(), rounded, strict=True))


def golden(ending: str, base: int = 0) -> dict[int, tuple[float, float, float, bool, bool]]:
    """Five steps of the counting environment, n = 3."""
    rewards, nexts = [5.23, 7.94, 10.65, 8.5, 5.0], [3, 4, 5, 5, 5]
    discounts = {"terminated": [0.729, 0.729, 0, 0, 0], "truncated": [0.729, 0.729, 0.729, 0.81, 0.9]}[ending]
    return {
        base + t: (
            rewards[t],
            base + nexts[t],
            discounts[t],
            ending == "terminated" and t > 1,
            ending == "truncated" and t > 1,
        )
        for t in range(5)
    }


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
class TestFolding:
    def test_add_folds_the_steps_of_each_stream(self, ending: str) -> None:
        replay = make_replay(n_step=3)
        num_keys = []
        for episode in range(2):
            for t in range(5):
                num_keys.append(len(replay.add(**transition(1000 * episode + t, **{ending: t == 4}))))
        assert num_keys == [0, 0, 1, 1, 3] * 2
        assert all_rows(replay) == {**golden(ending), **golden(ending, 1000)}

    def test_streams_do_not_mix(self, ending: str) -> None:
        replay = make_replay(n_step=3)
        for t in range(5):
            for stream in range(3):
                replay.add(**transition(1000 * stream + t, **{ending: t == 4}), stream=stream)
        assert all_rows(replay) == {**golden(ending), **golden(ending, 1000), **golden(ending, 2000)}

    def test_add_batch_folds_as_add_does(self, ending: str) -> None:
        replay = make_replay(n_step=3)
        for t in range(5):
            steps = [transition(1000 * stream + t, **{ending: t == 4}) for stream in range(2)]
            replay.add_batch(**{name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]})
        assert all_rows(replay) == {**golden(ending), **golden(ending, 1000)}

    def test_add_fragment_gives_the_same_windows_at_the_draw(self, ending: str) -> None:
        replay = make_replay(n_step=3, fragment_length=5)
        for base in (0, 1000):
            keys = replay.add_fragment(
                obs=np.repeat(base + np.arange(6, dtype=np.float32)[:, None], 2, 1),
                action=base + np.arange(5),
                reward=np.arange(1.0, 6.0),
                **{"terminated": False, ending: True},
            )
            assert len(keys) == 5
        assert all_rows(replay) == {**golden(ending), **golden(ending, 1000)}


def test_a_folded_row_keeps_the_magnitude_of_its_first_step() -> None:
    replay = make_replay(n_step=2)
    replay.add(**transition(0, priority=5.0))
    (key,) = replay.add(**transition(1, priority=7.0))
    assert replay.total_priority == 5.0
    assert replay.sample(1).key[0] == key
    replay.add(**transition(2, terminated=True))
    assert replay.total_priority == 5.0 + 7.0 + 5.0  # 7 was not the largest yet when the last two came in together


def test_a_refused_magnitude_leaves_the_window_as_it_was() -> None:
    replay = make_replay(n_step=2)
    replay.add(**transition(0))
    with pytest.raises(ValueError, match="magnitude nan"):
        replay.add(**transition(1, priority=float("nan")))
    replay.add(**transition(1, truncated=True))
    assert {number: row[0] for number, row in all_rows(replay).items()} == {0: 2.8, 1: 2.0}


class TestAdding:
    def test_add_returns_the_key_of_its_row(self) -> None:
        replay = make_replay()
        keys = [replay.add(**transition(number, priority=1.0))[0] for number in range(10)]
        replay.update_priorities(np.array(keys[3:4]), [1e9])
        batch: ReplayBatch = replay.sample(20)
        assert set(batch.key) == {keys[3]}
        np.testing.assert_array_equal(batch.obs, np.full((20, 2), 3))
        np.testing.assert_array_equal(batch.next_obs, np.full((20, 2), 4))
        np.testing.assert_array_equal(batch.action, np.full(20, 3))

    def test_a_later_add_does_not_change_an_earlier_row(self) -> None:
        replay = make_replay()
        obs = np.zeros(2, np.float32)
        for number in range(5):
            obs[:] = number
            replay.add(**{**transition(number), "obs": obs, "next_obs": obs})
        assert set(replay.sample(200).obs[:, 0]) == set(range(5))

    def test_len_counts_up_to_the_capacity(self) -> None:
        replay = make_replay(7)
        for number in range(20):
            replay.add(**transition(number))
            assert len(replay) == min(number + 1, 7)
        assert set(all_rows(replay)) == set(range(13, 20))

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("obs", np.zeros(2), "obs is float64: it must be float32"),
            ("obs", np.zeros(3, np.float32), r"obs has shape \(3,\): it must be \(2,\)"),
            ("obs", np.zeros((1, 2), np.float32), r"obs has shape \(1, 2\)"),
            ("next_obs", np.zeros(2, np.int32), "obs is int32"),
            ("action", 1.5, "action is float64"),
            ("action", np.int32(1), "action is int32"),
            ("action", [1], r"action has shape \(1,\)"),
            ("reward", "lots", "reward is <U4"),
            ("terminated", 2, "terminated is int64"),
            ("extra", 1, r"the extra columns are \[\]; got \['extra'\]"),
        ],
    )
    def test_a_value_that_does_not_fit_is_named_and_nothing_is_stored(
        self, name: str, value: Any, message: str
    ) -> None:
        replay = make_replay()
        with pytest.raises(ValueError, match=message):
            replay.add(**{**transition(0), name: value})
        assert len(replay) == 0

    @pytest.mark.parametrize("reward", [1, 1.0, np.float64(1), np.float32(1), np.int64(1), np.array(1.0)])
    def test_rewards_may_be_any_number(self, reward: Any) -> None:
        replay = make_replay()
        replay.add(**{**transition(0), "reward": reward, "terminated": np.bool_(True)})
        assert replay.sample(1).reward[0] == 1.0

    def test_values_need_not_be_contiguous(self) -> None:
        replay = make_replay()
        replay.add(**{**transition(0), "obs": np.arange(4, dtype=np.float32)[::2], "next_obs": [1.0, 2.0]})
        np.testing.assert_array_equal(replay.sample(1).obs, [[0, 2]])
        np.testing.assert_array_equal(replay.sample(1).next_obs, [[1, 2]])

    def test_add_batch_stores_one_transition_a_stream(self) -> None:
        replay = make_replay()
        steps = [transition(10 * number) for number in range(5)]
        batch = {name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]}
        keys = replay.add_batch(**batch, priority=[1, 2, 3, 4, 5])
        assert len(keys) == len(replay) == 5
        assert replay.total_priority == 15
        assert {number: row[1] for number, row in all_rows(replay).items()} == {10 * n: 10 * n + 1 for n in range(5)}
        with pytest.raises(ValueError, match=r"obs has shape \(4, 2\): it must be \(5, 2\)"):
            replay.add_batch(**{**batch, "obs": batch["obs"][:4]})

    def test_frames_are_added_in_fragments_only(self) -> None:
        replay = make_replay(frame_stack=2)
        with pytest.raises(ValueError, match="use add_fragment"):
            replay.add(**transition(0))
        with pytest.raises(ValueError, match="use add_fragment"):
            replay.add_batch(**transition(0))


def batch_of(size: int, **changes: Any) -> dict[str, Any]:
    """`size` steps that go together, with some values changed."""
    steps = [transition(number) for number in range(size)]
    batch = {name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]}
    return {**batch, **changes}


def fragment_of(size: int, **changes: Any) -> dict[str, Any]:
    batch = batch_of(size)
    obs = np.concatenate([batch["obs"], batch["next_obs"][-1:]])
    names = ("action", "reward", "terminated", "truncated")
    return {"obs": obs, **{name: batch[name] for name in names}, **changes}


class TestBadInput:
    """What is refused is named, and nothing of the call is applied."""

    def check(self, call: Any, message: str, replay: Replay) -> None:
        before = (len(replay), replay.total_priority, replay.stats().counts.inserted)
        with pytest.raises(ValueError, match=message):
            call()
        assert (len(replay), replay.total_priority, replay.stats().counts.inserted) == before

    @pytest.mark.parametrize("n_step", [1, 3])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, np.float32(np.nan), np.float64(1e300)])
    def test_a_reward_that_is_not_finite(self, bad: Any, n_step: int) -> None:
        replay = make_replay(n_step=n_step)
        replay.add(**transition(0, truncated=True))
        self.check(lambda: replay.add(**{**transition(1), "reward": bad}), "reward is .*: it must be a finite", replay)
        rewards = np.array([1.0, 2.0, bad, 4.0])
        self.check(lambda: replay.add_batch(**batch_of(4, reward=rewards)), r"reward\[2\] is (nan|-?inf)", replay)
        self.check(lambda: replay.add_fragment(**fragment_of(4, reward=rewards)), r"reward\[2\] is (nan|-?inf)", replay)
        replay.add(**transition(2, truncated=True))
        assert set(all_rows(replay)) == {0, 2}

    @pytest.mark.parametrize(
        ("space", "good", "bad", "message"),
        [
            (spaces.Discrete(3), 2, 3, r"action is 3: it must lie in \[0, 2\]"),
            (spaces.Discrete(3), np.int64(0), np.int64(-1), r"action is -1"),
            (spaces.Discrete(3, start=5), 7, 4, r"action is 4: it must lie in \[5, 7\]"),
            (spaces.Box(-2, 2, (2,)), [2.0, -2.0], [0.0, 2.5], r"action\[1\] is 2.5: it must lie in \[-2, 2\]"),
            (spaces.Box(-2, 2, (2,)), [0.0, 0.0], [np.nan, 0.0], r"action\[0\] is nan"),
            (spaces.Box(np.array([-1, 0]), np.array([1, 9]), dtype=np.float64), [1, 9], [9, 1], r"action\[0\] is 9"),
            (spaces.Box(0, 1, (1,), np.float16), [1.0], [2.0], r"action\[0\] is 2"),
            (spaces.Box(0, 9, (1,), np.uint8), [9], [10], r"action\[0\] is 10"),
            (spaces.MultiDiscrete([2, 4]), [1, 3], [2, 3], r"action\[0\] is 2: it must lie in \[0, 1\]"),
            (spaces.MultiBinary(2), [1, 0], [1, 2], r"action\[1\] is 2"),
        ],
    )
    def test_an_action_outside_its_space(self, space: Any, good: Any, bad: Any, message: str) -> None:
        env = SimpleNamespace(observation_space=spaces.Box(-1, 1, (2,)), action_space=space)
        replay = UniformReplay(10, spec_of(env))
        dtype = space.dtype if np.ndim(good) else None
        good, bad = (value if dtype is None else np.array(value, dtype) for value in (good, bad))
        replay.add(**{**transition(0), "action": good})
        self.check(lambda: replay.add(**{**transition(0), "action": bad}), message, replay)
        actions = np.array([good, bad], space.dtype)
        named = message.split(" is ")[0].replace("action", "").replace("\\[", "").replace("\\]", "")
        in_batch = rf"action\[1{', ' + named if named else ''}\] is "
        self.check(lambda: replay.add_batch(**batch_of(2, action=actions)), in_batch, replay)
        self.check(lambda: replay.add_fragment(**fragment_of(2, action=actions)), in_batch, replay)

    def test_any_action_where_the_spec_names_no_space(self) -> None:
        replay = make_replay()
        replay.add(**{**transition(0), "action": -(2**62)})
        assert replay.sample(1).action[0] == -(2**62)

    @pytest.mark.parametrize("beta", [np.nan, -0.1, 1.1, np.inf])
    def test_a_beta_outside_0_to_1(self, beta: float) -> None:
        replay = make_replay()
        replay.add(**transition(0))
        self.check(lambda: replay.sample(1, beta), r"beta is .*: it must lie in \[0, 1\]", replay)
        assert replay.stats().counts.drawn == 0

    @pytest.mark.parametrize("batch_size", [0, -1, 1.5, "2", True, None])
    def test_a_batch_size_that_is_no_size(self, batch_size: Any) -> None:
        replay = make_replay()
        replay.add(**transition(0))
        self.check(lambda: replay.sample(batch_size), "batch_size is", replay)
        assert len(replay.sample(np.int64(3)).key) == 3

    @pytest.mark.parametrize(
        "magnitudes",
        [[1j], ["1"], [None], [object()], np.array([True]), [[1.0]], [1.0, 2.0], [], 1.0, [np.nan], [-1], [np.inf]],
    )
    def test_magnitudes_that_are_none(self, magnitudes: Any) -> None:
        replay = make_replay()
        keys = replay.add(**transition(0, priority=3.0))
        self.check(lambda: replay.update_priorities(keys, magnitudes), "magnitude", replay)
        self.check(lambda: replay.add_batch(**batch_of(1), priority=magnitudes), "priority|magnitude", replay)
        self.check(lambda: replay.add_fragment(**fragment_of(1), priorities=magnitudes), "prioriti|magnitude", replay)

    @pytest.mark.parametrize("priority", [1j, "1", object(), True, [1.0], np.nan, -1, np.inf])
    def test_a_priority_that_is_none(self, priority: Any) -> None:
        replay = make_replay()
        self.check(lambda: replay.add(**transition(0), priority=priority), "priority|magnitude", replay)

    @pytest.mark.parametrize(
        "keys", [[0], np.array([0]), np.array([0.0]), np.zeros((1, 1), np.uint64), np.array([0], ">u8"), None]
    )
    def test_keys_of_another_kind(self, keys: Any) -> None:
        replay = make_replay()
        replay.add(**transition(0))
        self.check(lambda: replay.update_priorities(keys, [5.0]), r"keys are .*: they must be uint64 \[U\]", replay)

    def test_keys_of_another_replay_where_they_can_be_told(self) -> None:
        replay, longer, wider = make_replay(), make_replay(), make_replay(num_shards=2)
        own = replay.add(**transition(0))
        later = [longer.add(**transition(number)) for number in range(3)][-1]
        other_shard = [wider.add(**transition(number)) for number in range(2)][-1]
        in_fragment = longer.add_fragment(**fragment_of(2))[:1] - np.uint64(5)  # where `replay` has a closing row
        for key, message in (
            (later, "no row of its shard ever had it"),
            (other_shard, "it belongs to another table or shard"),
            (in_fragment, "no transition starts at that row"),
        ):
            keys = np.concatenate([own, key])
            self.check(lambda keys=keys: replay.update_priorities(keys, [5.0, 5.0]), rf"keys\[1\].*{message}", replay)
        assert longer.update_priorities(own, [5.0]) == (1, 0)  # a position that both have is taken for its own

    @pytest.mark.parametrize("name", ["obs", "action", "reward", "next_obs", "terminated", "truncated"])
    def test_lengths_and_dtypes_that_differ(self, name: str) -> None:
        replay = make_replay()
        batch = batch_of(4)
        self.check(lambda: replay.add_batch(**{**batch, name: batch[name][:3]}), "has shape", replay)
        foreign = batch[name].astype(np.complex128)
        self.check(lambda: replay.add_batch(**{**batch, name: foreign}), "is complex128: it must be", replay)
        if name == "next_obs":
            return
        fragment = fragment_of(4)
        self.check(lambda: replay.add_fragment(**{**fragment, name: fragment[name][:3]}), "has shape", replay)
        foreign = fragment[name].astype(np.complex128)
        self.check(lambda: replay.add_fragment(**{**fragment, name: foreign}), "is complex128: it must be", replay)

    def test_a_batch_without_a_leading_axis(self) -> None:
        replay = make_replay()
        self.check(lambda: replay.add_batch(**transition(0)), "reward is 1.0: it must have a leading axis", replay)
        self.check(lambda: replay.add_fragment(**fragment_of(1, reward=1.0)), "it must have a leading axis", replay)
        self.check(lambda: replay.add_fragment(**fragment_of(2, terminated=2)), "terminated .* is 2", replay)
        self.check(lambda: replay.add_fragment(**fragment_of(2, num_context=2)), "0 live", replay)

    @pytest.mark.parametrize("capacity", [1.5, 10.0, "10", True, None, 0, -5, np.nan])
    def test_a_capacity_that_is_none(self, capacity: Any) -> None:
        with pytest.raises(ValueError, match="capacity is"):
            make_replay(capacity)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("n_step", 1.0), ("num_shards", True), ("frame_stack", "2"), ("alpha", "1"), ("gamma", None), ("eps", np.nan)],
    )
    def test_a_setting_of_another_kind(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{name} is"):
            make_replay(**{name: value})

    def test_more_than_the_memory_holds(self) -> None:
        with pytest.raises(MemoryRefused):
            make_replay(2**30, fragment_length=2**20)
        with pytest.raises(ValueError, match="capacity is"):
            make_replay(10**30)

    def test_whole_numbers_of_numpy_are_whole_numbers(self, tmp_path: Path) -> None:
        replay = make_replay(np.int64(10), n_step=np.uint8(1))
        replay.save(tmp_path / "snapshot")
        PrioritizedReplay.load(tmp_path / "snapshot").close()


def test_several_observations_actions_and_extra_columns_keep_their_names() -> None:
    spec = {
        "obs/a": ((2,), "uint8"),
        "obs/b": ((), "float32"),
        "action/x": ((), "int64"),
        "action/y": ((1,), "float32"),
        "mask": ((3,), "bool"),
    }
    replay = UniformReplay(10, spec)
    step = {
        "obs": {"a": np.array([1, 2], np.uint8), "b": 3.0},
        "action": {"x": 4, "y": np.array([5], np.float32)},
        "reward": 6.0,
        "next_obs": {"b": 9.0, "a": [7, 8]},
        "terminated": False,
        "mask": [True, False, True],
    }
    replay.add(**step)
    batch = replay.sample(1)
    assert {key: value.tolist() for key, value in batch.obs.items()} == {"a": [[1, 2]], "b": [3.0]}
    assert {key: value.tolist() for key, value in batch.next_obs.items()} == {"a": [[7, 8]], "b": [9.0]}
    assert {key: value.tolist() for key, value in batch.action.items()} == {"x": [4], "y": [[5.0]]}
    assert batch.extras["mask"].tolist() == [[True, False, True]]
    with pytest.raises(ValueError, match=r"obs must be a dict with the keys \['a', 'b'\]"):
        replay.add(**{**step, "obs": {"a": 1}})
    with pytest.raises(ValueError, match=r"the extra columns are \['mask'\]; got \[\]"):
        replay.add(**{name: value for name, value in step.items() if name != "mask"})


def test_stacks_of_frames_come_out_whole() -> None:
    replay = UniformReplay(20, {"obs": ((1,), "uint8"), "action": ((), "int64")}, frame_stack=3, fragment_length=4)
    replay.add_fragment(
        obs=np.arange(5, dtype=np.uint8)[:, None],
        action=np.arange(4),
        reward=np.zeros(4),
        terminated=False,
        truncated=True,
    )
    replay.add_fragment(
        obs=np.arange(10, 15, dtype=np.uint8)[:, None],
        action=np.arange(10, 14),
        reward=np.zeros(4),
        terminated=False,
        starts_episode=False,
        num_context=2,
    )
    batch = replay.sample(300)
    stacks = {int(action): obs[:, 0].tolist() for action, obs in zip(batch.action, batch.obs, strict=True)}
    assert stacks == {0: [0, 0, 0], 1: [0, 0, 1], 2: [0, 1, 2], 3: [1, 2, 3], 12: [10, 11, 12], 13: [11, 12, 13]}
    np.testing.assert_array_equal(batch.next_obs[:, -1, 0], batch.action + 1)


def test_a_uniform_replay_weighs_all_alike() -> None:
    replay = UniformReplay(10, SPEC)
    for number in range(10):
        replay.add(**transition(number))
    batch = replay.sample(50)
    assert (batch.weight == 1).all()
    replay.update_priorities(batch.key, np.arange(50.0))
    assert replay.total_priority == 10


def test_stats_count_what_happened() -> None:
    replay = make_replay(4)
    keys = np.concatenate([replay.add(**transition(number)) for number in range(6)])
    replay.sample(8)
    assert replay.update_priorities(keys, np.ones(6)) == (4, 2)
    stats = replay.stats()
    assert (stats.num_live, stats.capacity, stats.total_priority, stats.max_magnitude) == (4, 4, 4.0, 1.0)
    counts = stats.counts
    assert (counts.inserted, counts.evicted, counts.drawn, counts.updated, counts.stale) == (6, 2, 8, 4, 2)
    assert stats.num_bytes > stats.num_rows * 40


class TestSaving:
    @pytest.fixture(params=[1, 3])
    def replay(self, request: pytest.FixtureRequest) -> Iterator[PrioritizedReplay]:
        replay = make_replay(30, num_shards=request.param, alpha=0.7)
        for number in range(100):
            replay.add(**transition(number, priority=number / 10))
        yield replay
        replay.close()

    def test_a_loaded_replay_goes_on_as_the_saved_one(self, replay: PrioritizedReplay, tmp_path: Path) -> None:
        replay.sample(7)
        replay.save(tmp_path / "snapshot")
        loaded = PrioritizedReplay.load(tmp_path / "snapshot")
        for number in range(100, 140):
            first, second = replay.sample(16), loaded.sample(16)
            for name in ReplayBatch.__slots__:
                np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
            for one in (replay, loaded):
                one.update_priorities(first.key, first.reward.astype(np.float64))
            assert list(replay.add(**transition(number))) == list(loaded.add(**transition(number)))
            assert replay.total_priority == loaded.total_priority
        loaded.close()

    def test_an_empty_replay_can_be_saved(self, tmp_path: Path) -> None:
        make_replay(n_step=2).save(tmp_path / "snapshot")
        loaded = PrioritizedReplay.load(tmp_path / "snapshot")
        assert len(loaded) == 0
        loaded.add(**transition(0, terminated=True))
        assert len(loaded) == 1

    def test_saving_leaves_one_file_and_replaces_it(self, replay: PrioritizedReplay, tmp_path: Path) -> None:
        for _ in range(2):
            replay.save(tmp_path / "snapshot")
        assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]

    def test_a_damaged_file_is_refused(self, replay: PrioritizedReplay, tmp_path: Path) -> None:
        path = tmp_path / "snapshot"
        replay.save(path)
        good = path.read_bytes()
        rng = np.random.default_rng(0)
        for at in rng.integers(0, len(good), 200):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
            with pytest.raises(SnapshotError, match="snapshot"):
                PrioritizedReplay.load(path).close()
        for more in (b"\0", b"something else", good):
            path.write_bytes(good + more)
            with pytest.raises(SnapshotError, match="snapshot"):
                PrioritizedReplay.load(path).close()
        for size in (0, 5, 12, 100, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:size])
            with pytest.raises(SnapshotError, match="snapshot"):
                PrioritizedReplay.load(path)

    def test_a_missing_file_is_a_snapshot_error(self, tmp_path: Path) -> None:
        with pytest.raises(SnapshotError, match="No such file"):
            PrioritizedReplay.load(tmp_path / "nowhere")

    def test_another_kind_of_replay_is_refused(self, replay: PrioritizedReplay, tmp_path: Path) -> None:
        replay.save(tmp_path / "snapshot")
        with pytest.raises(SnapshotError, match="it holds a PrioritizedReplay, not a UniformReplay"):
            UniformReplay.load(tmp_path / "snapshot")


def test_the_replay_loads_neither_torch_nor_zmq() -> None:
    program = (
        "import sys, parl_mq; parl_mq.PrioritizedReplay; parl_mq.UniformReplay; "
        "print([name for name in ('torch', 'zmq', 'gymnasium') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.strip() == b"[]"


def test_a_batch_that_is_held_keeps_its_values_while_others_are_drawn() -> None:
    replay = UniformReplay(100, {"obs": ((500,), "float32"), "action": ((), "int64")})
    for number in range(100):
        obs = np.full(500, number, np.float32)
        replay.add(**{**transition(number), "obs": obs, "next_obs": obs + 1})
    held = [replay.sample(64) for _ in range(3)]
    kept = [(batch.obs.copy(), batch.key.copy()) for batch in held]
    parts = [replay.sample(64).obs[3:5] for _ in range(3)]
    values = [part.copy() for part in parts]
    for _ in range(20):
        replay.sample(64)
    for batch, (obs, key) in zip(held, kept, strict=True):
        np.testing.assert_array_equal(batch.obs, obs)
        np.testing.assert_array_equal(batch.key, key)
    for part, value in zip(parts, values, strict=True):
        np.testing.assert_array_equal(part, value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("num_context", None),
        ("num_context", 0.5),
        ("num_overlap", 10**30),
        ("num_overlap", -1),
        ("starts_episode", "no"),
    ],
)
def test_a_fragments_shape_is_given_in_whole_numbers(argument: str, value: Any) -> None:
    replay = make_replay(fragment_length=4)
    steps = {"obs": np.zeros((5, 2), np.float32), "action": np.zeros(4, np.int64), "reward": np.zeros(4, np.float32)}
    with pytest.raises(ValueError, match=f"^{argument} is"):
        replay.add_fragment(**steps, terminated=True, **{argument: value})
    assert len(replay) == 0


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_batch_of_no_transition_is_refused(n_step: int) -> None:
    replay = make_replay(n_step=n_step)
    nothing = np.zeros((0, 2), np.float32)
    with pytest.raises(ValueError, match="reward is empty"):
        replay.add_batch(
            obs=nothing,
            action=np.zeros(0, np.int64),
            reward=np.zeros(0),
            next_obs=nothing,
            terminated=np.zeros(0, bool),
        )


@pytest.mark.parametrize("beta", [None, "0.4", True, float("nan"), 1.1])
def test_beta_is_a_number_between_0_and_1(beta: Any) -> None:
    replay = make_replay()
    replay.add(**transition(0))
    with pytest.raises(ValueError, match=r"^beta is"):
        replay.sample(1, beta)
    assert replay.stats().counts.drawn == 0


@pytest.mark.parametrize("spec", [None, "obs", [("obs", (), "float32")]])
def test_a_spec_names_columns(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"^spec is"):
        PrioritizedReplay(8, spec)
