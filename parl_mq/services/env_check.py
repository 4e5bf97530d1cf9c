"""Tries an environment as actors will use it, and says what is odd about it.

Most oddities do no harm here, since the rollout copies what must not change and knows every autoreset mode; they are
told because they may matter elsewhere, or come as a surprise. What the rollout cannot use is a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from parl_mq.algorithms.registry import algorithm_names, load_algorithm, settings_model
from parl_mq.config.models import EnvironmentConfig
from parl_mq.errors import ConfigError, EnvironmentFault
from parl_mq.rollout.environments import AnyEnv, AnyVectorEnv, close_unused, make_single, make_vector
from parl_mq.rollout.seeds import environment_seeds
from parl_mq.rollout.statistics import EpisodeStatistics
from parl_mq.rollout.stepper import Stepper
from parl_mq.services.findings import Finding
from parl_mq.services.observations import are_equal, copied, described, mismatch, share_memory
from parl_mq.spec import TableSpec, spec_of

MAX_STEPS: Final = 2_000
MAX_SECONDS: Final = 2.0
"""What each part of the check takes at most."""
SAME_STEPS: Final = 100
"""Steps after which a seeded episode that repeats counts as repeatable."""
NUM_ENVS: Final = 8
"""Environments of the vector that is tried."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about an environment, in the order in which they were made."""

    env_id: str
    findings: tuple[Finding, ...]

    @property
    def is_supported(self) -> bool:
        """Whether actors can use it."""
        return all(finding.verdict != "fault" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return {
            "env_id": self.env_id,
            "supported": self.is_supported,
            "why_not": [finding.what for finding in self.findings if finding.verdict == "fault"],
            "findings": [asdict(finding) for finding in self.findings],
        }


def check_environment(config: EnvironmentConfig, seed: int, clock: Callable[[], float]) -> Report:
    """Makes the environment, lets it run for some seconds with random actions, and reports.

    Args:
        config: which one, and how it is made.
        seed: of its episodes and of the actions.
        clock: monotonic, s.
    """
    findings: list[Finding] = []
    try:
        for finding in _findings(config, seed, clock):
            findings.append(finding)
    except EnvironmentFault as fault:
        findings.append(Finding("environment", "fault", str(fault)))
    return Report(config.id, tuple(findings))


def _findings(config: EnvironmentConfig, seed: int, clock: Callable[[], float]) -> Iterator[Finding]:
    env = make_single(config)
    try:
        yield from _spaces(spec_of(env))
        yield _algorithms(spec_of(env).stacked(config.frame_stack))
        yield _repeats(env, seed)
        yield _varies(env, seed)
        yield from _run(env, seed, clock)
        yield _time_limit(env)
        yield _rendering(env)
    finally:
        told = close_unused(env)
    if told is not None:
        yield Finding("end", "note", told)
    yield from _vector(config, seed, clock)


def _spaces(spec: TableSpec) -> Iterator[Finding]:
    for group, names in (("observation", spec.observation_names), ("action", spec.action_names)):
        parts = [f"{name}: {described(spec, name)}" if "/" in name else described(spec, name) for name in names]
        yield Finding(group, "ok", "; ".join(parts))


def _algorithms(spec: TableSpec) -> Finding:
    """Which of the installed algorithms can act in these spaces."""
    able, reasons = [], []
    for name in algorithm_names():
        settings = settings_model(name)(name=name)
        try:
            load_algorithm(name).make_policy(settings, spec.extended(settings.extra_columns()), np.zeros(1))
            able.append(name)
        except ConfigError as error:
            reasons.append(f"{name}: {error}")
    if able:
        return Finding("algorithms", "ok", ", ".join(able))
    return Finding("algorithms", "note", f"none that is installed can act in it; {'; '.join(reasons)}")


def _repeats(env: AnyEnv, seed: int) -> Finding:
    first, second = _steps_after(env, seed), _steps_after(env, seed)
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        if not are_equal(one, other):
            what = "the first observations" if step == 0 else f"what step {step} shows"
            return Finding("seeding", "note", f"two resets with seed {seed} and the same actions: {what} differ")
    return Finding("seeding", "ok", f"a reset with the same seed repeats what follows ({SAME_STEPS} steps compared)")


def _steps_after(env: AnyEnv, seed: int) -> list[Any]:
    """What follows a seeded reset, copied: the first observation, then (observation, reward, ends) of each step."""
    shown: list[Any] = [copied(env.reset(seed=seed)[0])]
    for _ in range(SAME_STEPS):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        shown.append((copied(obs), reward, terminated, truncated))
        if terminated or truncated:
            shown.append(copied(env.reset()[0]))
    return shown


def _varies(env: AnyEnv, seed: int) -> Finding:
    first = copied(env.reset(seed=seed)[0])
    if are_equal(first, env.reset()[0]):
        return Finding("variety", "note", "the next reset, without a seed, starts with the same observation")
    return Finding("variety", "ok", "the next reset, without a seed, starts elsewhere")


@dataclass(slots=True)
class _Seen:
    """What random steps showed."""

    num_steps: int = 0
    num_outside: int = 0
    first_outside: str = ""
    reuses_memory: bool = False
    lowest: float = np.inf
    highest: float = -np.inf
    seconds: float = 0.0

    def add_reward(self, reward: float) -> None:
        self.lowest, self.highest = min(self.lowest, reward), max(self.highest, reward)

    def add_observation(self, env: AnyEnv, obs: Any, previous: Any) -> None:
        self.num_steps += 1
        self.reuses_memory |= share_memory(obs, previous)
        if not env.observation_space.contains(obs):
            self.num_outside += 1
            self.first_outside = self.first_outside or mismatch(spec_of(env), obs)


def _run(env: AnyEnv, seed: int, clock: Callable[[], float]) -> Iterator[Finding]:
    """Steps one environment at random for a while."""
    seen = _Seen()
    obs, _ = env.reset(seed=seed)
    began = clock()
    while seen.num_steps < MAX_STEPS and clock() - began < MAX_SECONDS:
        previous = obs
        started = clock()
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.seconds += clock() - started
        seen.add_observation(env, obs, previous)
        seen.add_reward(_number(reward))
        if terminated or truncated:
            obs, _ = env.reset()
    yield _observations(seen)
    yield Finding(
        "memory",
        "note" if seen.reuses_memory else "ok",
        "each observation overwrites the one before; parl_mq copies them, other code may have to"
        if seen.reuses_memory
        else "each observation has memory of its own",
    )
    is_finite = np.isfinite([seen.lowest, seen.highest]).all()
    yield Finding("rewards", "ok" if is_finite else "fault", f"{seen.lowest:.4g} to {seen.highest:.4g} seen")
    yield Finding("speed", "ok", f"{seen.num_steps / max(seen.seconds, 1e-9):,.0f} steps/s in one environment")


def _number(reward: Any) -> float:
    """A reward, which must be one number.

    Raises:
        EnvironmentFault: it is something else.
    """
    with contextlib.suppress(TypeError, ValueError):
        if np.ndim(reward) == 0:
            return float(reward)
    raise EnvironmentFault(f"step returned the reward {reward!r}, expected one number")


def _observations(seen: _Seen) -> Finding:
    if not seen.num_outside:
        return Finding("observations", "ok", f"{seen.num_steps:,} lie within the space")
    return Finding(
        "observations",
        "note",
        f"{seen.num_outside:,} of {seen.num_steps:,} do not fit the space; the first: {seen.first_outside}",
    )


def _rendering(env: AnyEnv) -> Finding:
    modes = [str(mode) for mode in env.metadata.get("render_modes", [])]
    if "rgb_array" in modes:
        return Finding("rendering", "ok", ", ".join(modes))
    has = f"has {', '.join(modes)}" if modes else "has no render mode"
    return Finding("rendering", "note", f"{has}; `parl-mq play --video` needs rgb_array")


def _vector(config: EnvironmentConfig, seed: int, clock: Callable[[], float]) -> Iterator[Finding]:
    """Steps a vector as actors do, through the checks that they make at every step."""
    envs = make_vector(config, NUM_ENVS)
    stepper = Stepper(envs)
    try:
        yield Finding("vector", "ok", _vector_in_words(envs))
        statistics, lengths, num_terminated, num_truncated = EpisodeStatistics(NUM_ENVS), [], 0, 0
        stepper.reset(environment_seeds(seed, "actor", 0, NUM_ENVS))
        began, num_steps = clock(), 0
        while num_steps < MAX_STEPS * NUM_ENVS and clock() - began < MAX_SECONDS:
            step = stepper.step(envs.action_space.sample())
            num_steps += step.num_live
            lengths += [episode.length for episode in statistics.add(step)]
            num_terminated += int(step.terminated.sum())
            num_truncated += int((step.truncated & ~step.terminated).sum())
        took = clock() - began
    finally:
        told = close_unused(envs)
    if told is not None:
        yield Finding("end of vector", "note", told)
    yield Finding("speed of vector", "ok", f"{num_steps / max(took, 1e-9):,.0f} steps/s in {NUM_ENVS} environments")
    yield _episodes(lengths, num_terminated, num_truncated, statistics.longest_running)


def _vector_in_words(envs: AnyVectorEnv) -> str:
    kind = type(envs.unwrapped).__name__
    own = "plain environments in turn" if kind == "SyncVectorEnv" else f"its own vector version {kind}"
    mode = str(getattr(envs.metadata["autoreset_mode"], "value", envs.metadata["autoreset_mode"]))
    return f"{own}, autoreset {mode}"


def _episodes(lengths: Sequence[int], num_terminated: int, num_truncated: int, longest_running: int) -> Finding:
    if not lengths:
        return Finding("episodes", "note", f"none has ended yet; the longest has {longest_running:,} steps")
    return Finding(
        "episodes",
        "ok",
        f"{len(lengths):,} of {min(lengths):,} to {max(lengths):,} steps; "
        f"{num_terminated:,} terminated, {num_truncated:,} truncated",
    )


def _time_limit(env: AnyEnv) -> Finding:
    limit = None if env.spec is None else env.spec.max_episode_steps
    if limit is None:
        return Finding("time limit", "note", "none; set environment.max_episode_steps if an episode may go on for ever")
    return Finding("time limit", "ok", f"{limit:,} steps")
