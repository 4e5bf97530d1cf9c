"""The settings of a run: one frozen model a section, every field with its unit and range.

The section `node` is local to each process and never sent; everything else is the same on every node of a run.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from parl_mq.config.devices import Devices
from parl_mq.config.import_paths import import_path
from parl_mq.spec import Column, TableSpec

DEVICE: Final = r"auto|cpu|cuda(:\d+)?"
Fraction = Annotated[float, Field(ge=0, le=1)]

MOST: Final = 2**63 - 1
"""Of whole numbers."""
IMPOSSIBLE: Final = "impossible"
"""Type of a pydantic error about settings that do not fit each other; its context has their `values` by key."""


def _plain(value: Any) -> Any:
    """The value as it comes back from a file or a message."""
    match value:
        case bool() | str():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(entry) for key, entry in value.items()}
    wanted = "text, a finite number of 64 bits, true, false, or lists and tables of these"
    raise PydanticCustomError("not_plain", "{value} is not " + wanted, {"value": repr(value)})


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_bits(cls, value: Any) -> Any:
        """No message and no counter holds a larger number."""
        numbers = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(number, int) and not -MOST <= number <= MOST for number in numbers):
            raise PydanticCustomError("too_large", "a whole number must be at most {most}", {"most": MOST})
        return value


class EnvironmentConfig(Section):
    """Which environment, and how it is made.

    Attributes:
        id: a gymnasium id, `module:EnvId`, `module:function`, or an installed entry point; from Python also a function.
        kwargs: passed to the environment's maker: text, finite numbers, true and false, and lists and tables of these,
            which are what a file and a message can hold.
        max_episode_steps: time limit in steps; None keeps the environment's own.
        frame_stack: observations that the policy sees at once; stacks are built from single frames.
    """

    id: str
    kwargs: dict[str, Annotated[Any, AfterValidator(_plain)]] = Field(default_factory=dict)
    max_episode_steps: PositiveInt | None = None
    frame_stack: Annotated[int, Field(ge=1, le=16)] = 1

    @field_validator("id", mode="before")
    @classmethod
    def _name_function(cls, value: Any) -> Any:
        return import_path(value) if callable(value) else value


class AlgorithmConfig(Section):
    """What every algorithm's settings have; each algorithm adds its own (parl_mq.algorithms).

    The default of a setting that may be None is None: files have no word for it.

    Attributes:
        name: under which the algorithm is registered.
        gamma: discount of one step.
        n_step: steps of a return, >= 1.
        batch_size: rows of one update.
        learning_rate: of the optimizer.
    """

    name: str
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    n_step: Annotated[int, Field(ge=1, le=64)] = 1
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 256
    learning_rate: PositiveFloat = 1e-3

    def extra_columns(self) -> tuple[Column, ...]:
        """Columns that the algorithm's actors store beside the environment's."""
        return ()

    def check_spaces(self, spec: TableSpec) -> None:
        """Refuses an environment that the algorithm cannot learn in; called before anything is started.

        Raises:
            ConfigError: names the space, and those that the algorithm can take.
        """

    def num_parameters(self, spec: TableSpec) -> int | None:
        """Parameters of one network, so that a run whose networks cannot fit in memory is refused before it starts.

        Args:
            spec: as a policy sees it: frames are stacked.

        Returns:
            None where the algorithm does not say; then the run is not refused.
        """
        return None


class ReplayConfig(Section):
    """The replay table and its limiter.

    Attributes:
        kind: `prioritized`, or `uniform`.
        buffer_size: live rows that the tables of all replay nodes hold together.
        learning_starts: live rows before the first draw.
        samples_per_insert: rows drawn for each live row inserted, counted since the first draw.
        error_band: rows that the count of draws may be ahead or behind; None takes the smallest band that works
            well for the batch size and the actors.
        alpha: exponent of priorities; 0 draws uniformly.
        beta: exponent of the importance weights.
        eps: added to each magnitude before the exponent.
        fragment_length: steps of one fragment at most.
        fragment_wait_s: an actor sends what it has after this many seconds at the latest.
        nodes: replay nodes of the run, each with an equal part of `buffer_size`; actors are spread over them.
        shards: ring segments, each with a tree and a lock, of one table.
        tree_arity: K of the K-ary sum tree, a power of two from 2 to 64.
    """

    kind: Literal["prioritized", "uniform"] = "prioritized"
    buffer_size: Annotated[int, Field(ge=1, le=2**40)] = 100_000
    learning_starts: PositiveInt = 1_000
    samples_per_insert: PositiveFloat = 8.0
    error_band: PositiveFloat | None = None
    alpha: Fraction = 0.6
    beta: Fraction = 0.4
    eps: NonNegativeFloat = 1e-6
    fragment_length: Annotated[int, Field(ge=1, le=65_536)] = 64
    fragment_wait_s: PositiveFloat = 0.1
    nodes: Annotated[int, Field(ge=1, le=256)] = 1
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    tree_arity: Literal[2, 4, 8, 16, 32, 64] = 8


class ActorConfig(Section):
    """The actors.

    Attributes:
        num_actors: actor processes of the run, the exploration ladder's length together with `num_envs`.
        num_envs: environments in each actor.
        vectorization: `auto` takes the environment's own vector version where there is one, else `sync`, which steps
            one after another. `threads` waits for all of them at once: for environments that spend their steps waiting,
            as robots do. `async` takes a process for each: for those that compute for more than a millisecond.
        threads: torch threads of each actor.
        max_environment_faults: faults in a row with which an actor ends; until then its environments are made anew, and
            the episodes under way are dropped. An episode that ends begins a new row.
    """

    num_actors: Annotated[int, Field(ge=1, le=10_000)] = 1
    num_envs: Annotated[int, Field(ge=1, le=4_096)] = 32
    vectorization: Literal["auto", "sync", "threads", "async"] = "auto"
    threads: PositiveInt = 1
    max_environment_faults: PositiveInt = 3


class LearnerConfig(Section):
    """The learners.

    Attributes:
        num_learners: learner processes, which share each update: they average their gradients.
        batches: of several learners: `split`, each draws its part of `algorithm.batch_size` rows, and the update is
            that of one learner; `each`, every one draws a whole batch, and the update is that of a larger one.
        silence_limit_s: seconds without a sign of life after which one of several learners counts as lost.
        precision: of the networks' products; parameters, sums and optimizers are float32 in either case.
        compile: torch.compile makes one program of the update's arithmetic; that takes a minute at each start, in which
            nothing is learned, and a C++ compiler.
        cuda_graphs: on a GPU the kernels of an update's arithmetic are recorded once and then started together, which
            pays where networks are so small that starting them takes longer than running them; never run on a GPU so
            far.
        prefetch: batches asked for ahead. Where all cores are busy an answer takes some milliseconds, and more of them
            hide that; but rows and priorities of a batch are as old as the batches in front of it.
        mapped: a learner on the replay node's host reads rows straight from the ring's files: `auto` where it can, `on`
            or not at all, `off` never.
        publish_every_updates: updates between two published versions of the weights.
        checkpoint_every_s: seconds between two checkpoints; the first ones come sooner, after ever longer times.
        keep_checkpoints: newest checkpoints that stay, beside the best.
        max_skipped_updates: updates in a row that may be skipped because the loss was not finite.
    """

    num_learners: Annotated[int, Field(ge=1, le=64)] = 1
    batches: Literal["split", "each"] = "split"
    silence_limit_s: Annotated[float, Field(ge=2)] = 10.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    cuda_graphs: bool = False
    prefetch: Annotated[int, Field(ge=1, le=16)] = 8
    mapped: Literal["auto", "on", "off"] = "auto"
    publish_every_updates: PositiveInt = 50
    checkpoint_every_s: PositiveFloat = 30.0
    keep_checkpoints: PositiveInt = 3
    max_skipped_updates: NonNegativeInt = 100


class EvaluationConfig(Section):
    """How the policy is judged: greedy episodes with raw rewards and fixed seeds.

    Attributes:
        num_episodes: episodes of one evaluation.
        every_updates: learner updates between two evaluations at least.
        seed: of the evaluation environments; independent of the run's seed.
    """

    num_episodes: Annotated[int, Field(ge=1, le=10_000)] = 20
    every_updates: PositiveInt = 500
    seed: NonNegativeInt = 10_000


class StopConfig(Section):
    """When the run ends.

    Attributes:
        target_return: mean evaluation return that counts as reached; None: there is no target.
        at_target: the run ends when the target is reached; in lock step it goes on.
        max_updates: learner updates.
        max_steps: environment steps of all actors at least; those under way when they are done are still taken, some
            hundreds, or a fiftieth.
        max_seconds: wall time since the command started.
    """

    target_return: float | None = None
    at_target: bool = True
    max_updates: PositiveInt | None = None
    max_steps: PositiveInt | None = None
    max_seconds: PositiveFloat | None = None


class NodeConfig(Section):
    """Settings of one process on one machine; never sent.

    Attributes:
        device: of a learner: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        threads: torch threads of a learner; None: one.
        ring_directory: where replay rings lie; None takes a private folder in shared memory,
            which the end of the machine empties.
        runtime_directory: where ipc sockets lie; None takes a private temporary folder.
        loop: event loop, `uvloop` or `asyncio`.
        log_level: of messages on stderr.
        max_restarts: restarts of a node within a minute, or without progress in between, after which its next failure
            ends the run; 0: the first failure does.
        busy_limit_s: seconds without a sign of life after which a node counts as hung: it is killed and started again,
            or, where nobody watches over it, another process may take over its name. A learner whose work thread gets
            nothing done for so long, waiting for others left out, ends itself, to be started again.
        keys_directory: keys of the server and of those that may connect from other machines (`parl-mq keys`); None: the
            folder `keys` of the run directory.
        capture_directory: every process writes the messages that it sends and receives to a file there, for
            `parl-mq wire dump`; None: none is kept.
        metrics_port: of a hub: every node's figures are served for Prometheus at this port, 0 for any free one, under
            `/metrics`; None: they are not.
        metrics_host: address of this machine at which they are served. Whoever reaches it can read them.
        tensorboard: of a hub: figures are also written as TensorBoard events, under `tensorboard` in the run directory.
        wandb_project: of a hub: figures also go to this project of Weights & Biases; None: they do not.
    """

    device: Annotated[str, Field(json_schema_extra={"pattern": f"^({DEVICE})$"})] = "auto"
    threads: PositiveInt | None = None
    ring_directory: Path | None = None
    runtime_directory: Path | None = None
    loop: Literal["uvloop", "asyncio"] = "uvloop"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_restarts: NonNegativeInt = 5
    busy_limit_s: PositiveFloat = 60.0
    keys_directory: Path | None = None
    capture_directory: Path | None = None
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    metrics_host: str = "127.0.0.1"
    tensorboard: bool = True
    wandb_project: str | None = None

    @field_validator("device")
    @classmethod
    def _name_devices(cls, value: str) -> str:
        if re.fullmatch(DEVICE, value) is None:
            reason = "must be auto, cpu, cuda or cuda:INDEX; on this machine there is: {there_is}"
            raise PydanticCustomError("device", reason, {"there_is": str(Devices.here())})
        return value


def algorithm_settings(name: str) -> type[AlgorithmConfig]:
    """The settings model of the algorithm of this name.

    Raises:
        ConfigError: there is none; the message has the nearest valid name.
    """
    from parl_mq.algorithms.registry import settings_model  # the registry stands above, and loads settings lazily

    return settings_model(name)


def algorithm_names() -> tuple[str, ...]:
    """The algorithms that are installed."""
    from parl_mq.algorithms import registry

    return registry.algorithm_names()


class RunConfig(Section):
    """A whole run.

    Attributes:
        preset: name of the preset it came from, or of the file.
        seed: all random streams of the run derive from it.
        deterministic: actors, replay and learner go in lock step, so that a run repeats another one of the same
            settings to the bit, on the same kind of CPU, up to `stop.max_updates`. It is slower, as all wait for each
            other, and ends with the first failure.
    """

    preset: str = "custom"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    deterministic: bool = False
    environment: EnvironmentConfig
    algorithm: SerializeAsAny[AlgorithmConfig]
    replay: ReplayConfig = ReplayConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    stop: StopConfig = StopConfig()
    node: NodeConfig = NodeConfig()

    @model_validator(mode="before")
    @classmethod
    def _load_algorithm(cls, values: Any) -> Any:
        """Turns the section `algorithm` into the settings model of the algorithm that it names."""
        if isinstance(values, dict) and isinstance(section := values.get("algorithm"), dict):
            model = algorithm_settings(section.get("name", ""))
            return {**values, "algorithm": model.model_validate(section)}
        return values

    @property
    def error_band(self) -> float:
        """Rows that the count of draws may be ahead or behind of the inserts times their ratio."""
        return self.replay.error_band or 2 * self.smallest_error_band

    @property
    def smallest_error_band(self) -> float:
        """What the limiter needs so that a batch can leave, and every actor can send one largest insert."""
        batches = self.learner_batch_size * self.learner.prefetch * self.learner.num_learners
        inserts = self.largest_insert * self.replay.samples_per_insert * self.actor.num_actors
        return max(batches, inserts)

    @property
    def learner_batch_size(self) -> int:
        """Rows that each learner draws for an update."""
        share = self.learner.num_learners if self.learner.batches == "split" else 1
        return self.algorithm.batch_size // share

    @property
    def prefetch(self) -> int:
        """Batches that a learner asks for ahead."""
        return 1 if self.deterministic else self.learner.prefetch

    @property
    def largest_insert(self) -> int:
        """Live rows of an actor's largest message: one full fragment of every environment."""
        return self.actor.num_envs * self.replay.fragment_length

    @model_validator(mode="after")
    def _check_fit(self) -> Self:
        replay, batch = self.replay, self.algorithm.batch_size
        several = self.learner.num_learners
        if self.learner.batches == "split" and batch % several:
            raise self._impossible(
                f"{several} learners cannot share algorithm.batch_size = {batch} evenly; change one of them, or "
                'let each draw a whole batch with learner.batches = "each"',
                "learner.num_learners",
                "algorithm.batch_size",
                "learner.batches",
            )
        for key, number in (("learner.num_learners", several), ("replay.nodes", replay.nodes)):
            if self.deterministic and number > 1:
                raise self._impossible(f"only one goes in lock step, not {number}", key, "deterministic")
        if self.deterministic and self.stop.max_updates is None:
            raise self._impossible(
                "a run in lock step repeats up to a number of updates, after which it ends; set one",
                "stop.max_updates",
                "deterministic",
            )
        if self.deterministic and self.node.device.startswith("cuda"):
            raise self._impossible(
                f"{self.node.device} does not compute the same to the bit each time, as a run in lock step must; set "
                "cpu, or leave it out",
                "node.device",
                "deterministic",
            )
        if self.learner.cuda_graphs and (self.node.device == "cpu" or self.deterministic):
            raise self._impossible(
                "only a GPU records its kernels, and this run learns on the CPU; leave it out",
                "learner.cuda_graphs",
                "deterministic" if self.deterministic else "node.device",
            )
        if replay.buffer_size < batch:
            raise self._impossible(
                f"{replay.buffer_size} is smaller than algorithm.batch_size = {batch}; raise it or lower the other",
                "replay.buffer_size",
                "algorithm.batch_size",
            )
        if replay.buffer_size < replay.learning_starts:
            raise self._impossible(
                f"{replay.buffer_size} is smaller than replay.learning_starts = {replay.learning_starts}, "
                "so learning would never start",
                "replay.buffer_size",
                "replay.learning_starts",
            )
        if replay.buffer_size // replay.nodes < (smallest := replay.shards * replay.fragment_length):
            raise self._impossible(
                f"fragments of {replay.fragment_length} steps in {replay.shards} shards need a replay.buffer_size of "
                f"at least {smallest * replay.nodes}, which is {replay.buffer_size}; raise that, or lower the others",
                "replay.fragment_length",
                "replay.shards",
                "replay.buffer_size",
            )
        if self.error_band < self.smallest_error_band:
            raise self._impossible(
                f"{replay.error_band:g} can never release a batch or an insert; it must be at least "
                f"{self.smallest_error_band:g} = max(rows of all learners' updates x prefetch, "
                "num_envs x fragment_length x samples_per_insert x num_actors)",
                "replay.error_band",
                "replay.fragment_length",
                "replay.samples_per_insert",
                "algorithm.batch_size",
                "learner.prefetch",
                "learner.num_learners",
                "actor.num_envs",
                "actor.num_actors",
            )
        return self

    def _impossible(self, reason: str, *keys: str) -> PydanticCustomError:
        """The first key is the one that the reason is about; another may have been the one that was set wrongly."""
        values = {key: self.value_of(key) for key in keys}
        return PydanticCustomError(IMPOSSIBLE, "{key}: {reason}", {"key": keys[0], "reason": reason, "values": values})

    def value_of(self, key: str) -> Any:
        """The value of `section.key`.

        Raises:
            KeyError: there is no such setting.
        """
        value: Any = self
        for part in key.split("."):
            if isinstance(value, dict):
                value = value[part]
            elif isinstance(value, BaseModel) and part in type(value).model_fields:
                value = getattr(value, part)
            else:
                raise KeyError(key)
        return value
