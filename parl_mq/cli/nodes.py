"""`parl-mq hub`, `replay`, `learner`, `actor`, `evaluator`: one node, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.services.join_file import JoinFile
    from parl_mq.services.keyring import Keyring
    from parl_mq.services.runtime import NodeOptions


def hub(
    context: typer.Context,
    bind: options.Bind,
    config: Annotated[str, typer.Option("--config", metavar="PRESET_OR_FILE", help="The run's settings.")],
    run_dir: Annotated[Path, typer.Option(envvar="PARL_MQ_RUN_DIR", help="Where the run is recorded.")],
    name: Annotated[str, typer.Option(help="The node's name, unique in the run.")] = "hub",
    settings: options.Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run-dir, if there is one.")] = False,
    advertise: options.Advertise = None,
    insecure: options.Insecure = False,
    started_at: Annotated[float | None, typer.Option(hidden=True, help="Monotonic time of the run's start, s.")] = None,
    lifeline_fd: options.LifelineFd = None,
) -> None:
    """Start a hub: it knows who is here, the run's settings, the newest weights; it keeps the record of the run.

    With --resume it may be killed and started again at any time: nodes find it again, and it goes on where it was.
    """
    import contextlib
    import os
    import time

    from parl_mq.config.loader import load_with_origins
    from parl_mq.errors import ConfigError
    from parl_mq.services.hub import HubOptions
    from parl_mq.services.notify import Notifier
    from parl_mq.services.run_directory import RunDirectory
    from parl_mq.services.runtime import NodeOptions

    loaded = load_with_origins(config, overrides=options.settings_of_flags(settings), environ=_environment(lifeline_fd))
    run_config = loaded.config
    own = contextlib.ExitStack()  # until the process ends
    if lifeline_fd is None:
        try:
            make = RunDirectory.reopen if resume and run_dir.exists() else RunDirectory.create
            directory = make(run_dir, run_config)
        except ConfigError as error:
            raise loaded.knowing("run_dir", options.origin_of_run_dir(context)).blamed(error) from error
        own.enter_context(directory.held())
        directory.forget_summary()
        started_at = directory.cut_off_start()
    notifier = Notifier.taken_from(os.environ)
    node = NodeOptions(name=name, hub=bind[0], node=run_config.node, lifeline_fd=lifeline_fd, notifier=notifier)
    hub_options = HubOptions(
        run_config,
        run_dir,
        time.monotonic() if started_at is None else started_at,
        public=bind[1] if len(bind) > 1 else None,
        advertise=advertise,
        keyring=_keyring(bind, run_config.node.keys_directory, run_dir, advertise, is_insecure=insecure),
        is_insecure=insecure,
    )

    from parl_mq.nodes import hub as entry

    with own:
        raise typer.Exit(entry.main(node, hub_options))


def replay(
    node: NodeOptions,
    bind: Sequence[str],
    *,
    fresh: bool,
    run_dir: Path | None,
    advertise: str | None,
    insecure: bool,
) -> None:
    """Starts a replay node; its command, which has others below it, stands in `parl_mq.cli.replay`."""
    from parl_mq.nodes import replay as entry
    from parl_mq.services.replay import ReplayOptions

    pair = None if node.join is None else node.join.pair
    if pair is None:  # beside its hub, it proves the same key
        keyring = _keyring(bind, node.node.keys_directory, run_dir, advertise, is_insecure=insecure)
        pair = None if keyring is None else keyring.pair
    replay_options = ReplayOptions(
        bind[0],
        public=bind[1] if len(bind) > 1 else None,
        pair=pair,
        advertise=advertise,
        is_insecure=insecure,
        fresh=fresh,
        run_directory=run_dir,
    )
    raise typer.Exit(entry.main(node, replay_options))


def learner(
    run_dir: Annotated[Path, typer.Option(envvar="PARL_MQ_RUN_DIR", help="Where checkpoints are kept.")],
    hub: options.Hub = None,
    join: options.Join = None,
    key: options.Key = None,
    name: options.Name = None,
    settings: options.NodeSettings = None,
    lifeline_fd: options.LifelineFd = None,
) -> None:
    """Start a learner: it draws batches, updates the networks and publishes their weights."""
    node = _node("learner", hub, name, settings, lifeline_fd, join, key)

    from parl_mq.config.devices import Devices

    Devices.here().check(node.node.device)
    from parl_mq.nodes import learner as entry

    raise typer.Exit(entry.main(node, run_dir))


def actor(
    hub: options.Hub = None,
    join: options.Join = None,
    key: options.Key = None,
    name: options.Name = None,
    settings: options.NodeSettings = None,
    lifeline_fd: options.LifelineFd = None,
) -> None:
    """Start an actor: it steps environments with the newest weights and sends what it sees."""
    node = _node("actor", hub, name, settings, lifeline_fd, join, key)

    from parl_mq.nodes import actor as entry

    raise typer.Exit(entry.main(node))


def evaluator(
    hub: options.Hub = None,
    join: options.Join = None,
    key: options.Key = None,
    name: options.Name = None,
    settings: options.NodeSettings = None,
    lifeline_fd: options.LifelineFd = None,
) -> None:
    """Start an evaluator: it judges the greedy policy on whole episodes."""
    node = _node("evaluator", hub, name, settings, lifeline_fd, join, key)

    from parl_mq.nodes import evaluator as entry

    raise typer.Exit(entry.main(node))


def _node(
    role: str,
    hub: str | None,
    name: str | None,
    settings: Sequence[str] | None,
    lifeline_fd: int | None,
    join_file: Path | None = None,
    key: Path | None = None,
) -> NodeOptions:
    import os

    from parl_mq.config.loader import load_node_config
    from parl_mq.errors import UsageError
    from parl_mq.services.notify import Notifier
    from parl_mq.services.runtime import NodeOptions

    if (hub is None) == (join_file is None):
        raise UsageError(f"say where the hub is, with --hub ENDPOINT or --join FILE; see parl-mq {role} --help")
    node = load_node_config(overrides=options.settings_of_flags(settings), environ=_environment(lifeline_fd))
    join = None if join_file is None else _join(join_file, key, role)
    name = name or (_own_name(role) if join is None else join.name)
    hub = hub or (join.hub if join is not None else "")
    if lifeline_fd is None:
        _tell(f"{name} starts, and joins the hub at {hub}")  # loading torch takes seconds
    notifier = Notifier.taken_from(os.environ)
    return NodeOptions(name=name, hub=hub, node=node, lifeline_fd=lifeline_fd, join=join, notifier=notifier)


def _join(path: Path, key: Path | None, role: str) -> JoinFile:
    from parl_mq.errors import EXIT_NOT_ALLOWED, Refused
    from parl_mq.services.join_file import read_join_file

    join = read_join_file(path, key)
    if join.role != role:
        raise Refused(f"{path} is for a node of role {join.role}: start `parl-mq {join.role}`", EXIT_NOT_ALLOWED)
    return join


def _keyring(
    bind: Sequence[str], folder: Path | None, run_dir: Path | None, advertise: str | None, *, is_insecure: bool
) -> Keyring | None:
    """The keys that a server asks for, made where there are none yet; None: it asks for none.

    It does where others can reach it, where it has a socket for them beside its private one, and where there are keys.

    Raises:
        UsageError: there is no place for keys, or no address that others could use.
        ConfigError: there can be no keys at their place.
    """
    from parl_mq.errors import UsageError
    from parl_mq.net.endpoints import is_private, is_wildcard
    from parl_mq.services.attachment import KEYS
    from parl_mq.services.keyring import SERVER, Keyring

    endpoint = bind[-1]
    if endpoint.startswith("tcp://") and is_wildcard(endpoint) and advertise is None:
        raise UsageError(f"--bind {endpoint} names no address that others could use; say it with --advertise HOST")
    place = folder or (None if run_dir is None else run_dir / KEYS)
    if is_insecure or endpoint.startswith("ipc://"):
        return None
    is_for_others = len(bind) > 1 or not is_private(endpoint)
    if place is None and is_for_others:
        raise UsageError(
            f"--bind: {endpoint!r} is for other machines, so it needs keys: those beside the hub, with --run-dir or "
            "--set node.keys_directory=DIR, those of a file, with --join; or --insecure, for none"
        )
    if place is None:
        return None
    if not (is_for_others or folder is not None or place.is_dir()):
        return None
    is_made = (place / SERVER).is_file()  # then it is read alone: a service beside the hub may write nothing there
    return Keyring(place) if is_made else Keyring.open_or_make(place)


def _tell(text: str) -> None:
    import sys

    print(f"parl-mq: {text}", file=sys.stderr, flush=True)


def _environment(lifeline_fd: int | None) -> Mapping[str, str] | None:
    """A supervisor has applied the environment below its own flags: read again here, it would override them."""
    return None if lifeline_fd is None else {}


def _own_name(role: str) -> str:
    """A name that no other node of the run has; it ends in the host's name, so that the process id is no index."""
    import os
    import re
    import socket

    host = re.sub(r"[^a-zA-Z0-9-]", "-", socket.gethostname().partition(".")[0])
    return f"{role}.{os.getpid()}.{host}"[:64]
