"""What can be refused of a run before any of its processes is started."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.config.devices import Devices
from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import EXIT_TEMPORARY, CodedError, ConfigError, EnvironmentFault, MemoryRefused
from parl_mq.net.endpoints import host_of, port_of
from parl_mq.replay.memory import available_memory, cgroup_headroom, gib
from parl_mq.rollout.building import table_spec
from parl_mq.services.tables import check_fits, check_messages
from parl_mq.spec import TableSpec

LEARNER_COPIES: Final = 5
"""Weights, target, gradient and the two moments of Adam."""
HUB_COPIES: Final = 2
"""The newest version, and the one on its way."""
ACTING_COPIES: Final = 2
"""An actor or evaluator takes a version in while it still acts with the one before."""
PARAMETER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class NetworkNeed:
    """Memory of this machine that a run's networks take at least.

    Attributes:
        num_parameters: of one network.
        num_copies: in all processes together.
    """

    num_parameters: int
    num_copies: int

    @property
    def num_bytes(self) -> int:
        """The sum."""
        return self.num_parameters * PARAMETER_BYTES * self.num_copies

    def __str__(self) -> str:
        one = self.num_parameters * PARAMETER_BYTES
        return f"{self.num_parameters:,} parameters = {gib(one)}, x {self.num_copies} copies = {gib(self.num_bytes)}"


def check_run(config: RunConfig, *, reused_bytes: int = 0) -> TableSpec:
    """The run's table, if everything that it needs on this machine seems to be there.

    Args:
        config: of the run.
        reused_bytes: of rings that are there already, and will be gone on with.

    Raises:
        EnvironmentFault: the environment cannot be made.
        ConfigError: the algorithm cannot learn in it, or the device is not there, or no table or message can be so
            large.
        MemoryRefused: the replay or the networks would not fit.
    """
    kwargs = ("environment.kwargs",) if config.environment.kwargs else ()
    try:
        spec = table_spec(config)
    except EnvironmentFault as error:
        error.about("environment.id", *kwargs)
        raise
    try:
        config.algorithm.check_spaces(spec)
    except ConfigError as error:
        error.about("algorithm.name", "environment.id", *kwargs)
        raise
    devices = Devices.here()
    devices.check(config.node.device)
    check_messages(config, spec)
    check_fits(config, spec, reused=reused_bytes)
    learns_on_gpu = config.node.device != "cpu" and not config.deterministic and devices.has_gpu
    check_networks(config, spec, learns_on_gpu=learns_on_gpu)
    return spec


def check_ports(bind: str | None, node: NodeConfig) -> None:
    """Refuses ports of a run at which somebody listens already.

    Args:
        bind: where other machines are to find the hub, `tcp://HOST:PORT`, if they are.
        node: of the hub.

    Raises:
        CodedError: one is in use.
    """
    places = {} if bind is None else {f"--bind {bind}": (host_of(bind).strip("[]*"), port_of(bind))}
    if node.metrics_port is not None:
        places[f"node.metrics_port = {node.metrics_port}"] = (node.metrics_host, node.metrics_port)
    for name, (host, port) in places.items():
        if port and _is_taken(host, port):
            raise CodedError(f"{name}: the port is in use; end what listens there, or name another one", EXIT_TEMPORARY)


def _is_taken(host: str, port: int) -> bool:
    """False too where the address cannot be bound for another reason, which the node that binds it says better."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may linger
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def check_networks(
    config: RunConfig, spec: TableSpec, *, learns_on_gpu: bool, proc: Path = Path("/proc"), cgroups: Path | None = None
) -> None:
    """Refuses networks that cannot fit in this machine's memory; one whose size is not known is let through.

    Args:
        config: of the run.
        spec: of the run's table.
        learns_on_gpu: the learner's copies take no memory of the machine.
        proc: where /proc is mounted.
        cgroups: where the cgroup hierarchy is mounted; None: where it usually is.

    Raises:
        MemoryRefused: the sum, and what there is.
    """
    num_parameters = config.algorithm.num_parameters(spec.stacked(config.environment.frame_stack))
    if num_parameters is None:
        return
    on_host = 0 if learns_on_gpu else LEARNER_COPIES * config.learner.num_learners
    acting = ACTING_COPIES * (config.actor.num_actors + 1)
    need = NetworkNeed(num_parameters, on_host + HUB_COPIES + acting)
    limits = [available_memory(proc), cgroup_headroom(proc, cgroups) if cgroups else cgroup_headroom(proc)]
    there_is = min((limit for limit in limits if limit is not None), default=None)
    if there_is is not None and need.num_bytes > there_is:
        sizes = ("algorithm.hidden_sizes",) if "hidden_sizes" in type(config.algorithm).model_fields else ()
        raise MemoryRefused(
            f"the networks need {need}, which is more than the memory available, {gib(there_is)}; make them smaller, "
            "or start fewer actors"
        ).about(*sizes or ("algorithm.name",), "actor.num_actors")
