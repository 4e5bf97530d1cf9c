"""Examines this machine: what parl_mq needs, and what dead runs have left. It loads no torch and changes nothing."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from parl_mq.config.devices import Devices
from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import ConfigError, ParlError
from parl_mq.net.endpoints import check_endpoint
from parl_mq.replay.memory import available_memory, cgroup_headroom, gib, is_in_memory
from parl_mq.services.findings import Finding, Verdict
from parl_mq.services.preflight import check_run
from parl_mq.services.rings import unused_rings
from parl_mq.services.socket_folders import PREFIX, left_over
from parl_mq.services.tables import ring_root, table_settings

PYTHONS: Final = ((3, 11), (3, 13))
"""The oldest and the newest that are tested."""
FILES_OF_A_NODE: Final = 4
"""Descriptors that the hub holds for one other node: two connections, about one and a half each (155 were counted for
both ends of 50)."""
FILES_OF_A_PROCESS: Final = 64
SMALL_SPACE_BYTES: Final = 2**30
"""Less free space than this is worth a note."""


def examine(node: NodeConfig, run: RunConfig | None) -> Iterator[Finding]:
    """Part after part.

    Args:
        node: this machine's own settings.
        run: a run that is to work here; None: the machine alone.
    """
    yield _python()
    yield from _packages()
    yield from _compiled()
    yield _device(node)
    yield _processors()
    yield _open_files(run)
    yield _memory()
    yield from _rings(node)
    yield from _sockets(node)
    if run is not None:
        yield _run(run)


def _python() -> Finding:
    version, (oldest, newest) = sys.version_info[:2], PYTHONS
    verdict: Verdict = "ok" if oldest <= version <= newest else "fault" if version < oldest else "note"
    hint = "" if verdict == "ok" else f"; parl_mq is tested with {_dotted(oldest)} to {_dotted(newest)}"
    return Finding("python", verdict, f"{platform.python_version()} in {sys.prefix}{hint}")


def _packages() -> Iterator[Finding]:
    found, missing = [f"parl_mq {metadata.version('parl-mq')}"], []
    for name in _required():
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", "ok", ", ".join(found))
    if missing:
        yield Finding("packages", "fault", f"not installed: {', '.join(missing)}; install parl_mq again")


def _required() -> list[str]:
    """Names of the packages that parl_mq needs without any extra."""
    requirements = metadata.requires("parl-mq") or []
    names = [re.match(r"[\w.-]+", requirement) for requirement in requirements if "extra ==" not in requirement]
    return [name[0] for name in names if name is not None]


def _compiled() -> Iterator[Finding]:
    try:
        from parl_mq.replay import _rows, _sum_tree
    except ImportError as error:
        yield Finding("compiled parts", "fault", f"{error}; install parl_mq again, with a C++ compiler")
        return
    kernels = _sum_tree.available_kernels()
    if len(kernels) > 1:
        yield Finding("compiled parts", "ok", f"kernels for this processor, fastest first: {', '.join(kernels)}")
    else:
        yield Finding("compiled parts", "note", "this processor can run the portable kernels alone, which are slower")
    if stale := [name for module in (_rows, _sum_tree) if (name := _newer_source(Path(module.__file__ or "")))]:
        yield Finding(
            "compiled parts", "note", f"{', '.join(stale)} changed after it was compiled; run `pip install -e .` again"
        )


def _newer_source(binary: Path) -> str | None:
    """The source that a compiled module of an editable install was made from, where it has changed since."""
    name = binary.name.partition(".")[0].removeprefix("_")
    source = binary.parents[2] / "ext" / f"{name}.pyx"
    is_newer = source.is_file() and source.stat().st_mtime > binary.stat().st_mtime
    return f"ext/{source.name}" if is_newer else None


def _device(node: NodeConfig) -> Finding:
    devices = Devices.here()
    try:
        devices.check(node.device)
    except ConfigError as error:
        return Finding("device", "fault", str(error))
    build = "torch is not installed" if devices.torch is None else f"torch {devices.torch.version}"
    gpus = "GPUs unknown" if devices.num_gpus is None else f"{devices.num_gpus} GPUs"
    took = "a GPU" if node.device.startswith("cuda") or (node.device == "auto" and devices.has_gpu) else "the CPU"
    return Finding("device", "ok", f"{build}, {gpus}; node.device = {node.device} trains on {took}")


def _processors() -> Finding:
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return Finding("processors", "ok", f"{usable}" if usable == all_of_them else f"{usable} of {all_of_them}")


def _open_files(run: RunConfig | None) -> Finding:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "any number" if limit == resource.RLIM_INFINITY else f"{limit:,} in one process"
    if run is None:
        return Finding("open files", "ok", allowed)
    needed = open_files(run)
    if limit == resource.RLIM_INFINITY or needed <= limit:
        return Finding("open files", "ok", f"{allowed}; the hub needs about {needed:,}")
    most = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return Finding(
        "open files",
        "fault",
        f"{allowed}; the hub needs about {needed:,} for actor.num_actors = {run.actor.num_actors:,}; raise the limit "
        f"with `ulimit -n {needed}` (this user may have {most})",
    )


def open_files(run: RunConfig) -> int:
    """Files that the hub of a run holds open, about."""
    num_nodes = run.actor.num_actors + run.learner.num_learners + run.replay.nodes + 2  # evaluator and supervisor
    return FILES_OF_A_PROCESS + FILES_OF_A_NODE * num_nodes


def _memory() -> Finding:
    available, group = available_memory(), cgroup_headroom()
    is_limited = group is not None and (available is None or group < available)
    within = f", {gib(group)} within the limit of this process" if group is not None and is_limited else ""
    return Finding("memory", "ok", f"{'unknown' if available is None else gib(available)} available{within}")


def _rings(node: NodeConfig) -> Iterator[Finding]:
    try:
        root = ring_root(node)
    except ConfigError as error:
        yield Finding("replay rings", "fault", str(error))
        return
    place = next(path for path in (root, *root.absolute().parents) if path.exists())
    kind = "in memory" if is_in_memory(place) else "on a disk"
    yield _space("replay rings", place, f"{root} ({kind})")
    for path, kept in unused_rings(node):
        yield Finding("left over", "note", f"{path} {kept}; `rm -r {path}` removes it")


def _sockets(node: NodeConfig) -> Iterator[Finding]:
    root = node.runtime_directory or Path(tempfile.gettempdir())
    if not os.access(root, os.W_OK | os.X_OK):
        yield Finding("sockets", "fault", f"node.runtime_directory: no folder can be made in {root}")
        return
    try:
        check_endpoint(f"ipc://{root}/{PREFIX}12345678/replay-255")
    except ConfigError as error:
        yield Finding("sockets", "fault", str(error))
        return
    yield _space("sockets", root, str(root))
    for folder in left_over(node.runtime_directory):
        yield Finding("left over", "note", f"{folder}: its run is dead; the next run removes it")


def _run(run: RunConfig) -> Finding:
    try:
        spec = check_run(run)
        need = table_settings(run).memory_need(spec)
    except ParlError as error:
        return Finding(run.preset, "fault", str(error))
    return Finding(run.preset, "ok", f"the replay needs {need}")


def _space(about: str, place: Path, name: str) -> Finding:
    free = os.statvfs(place)
    num_bytes = free.f_bavail * free.f_frsize
    verdict: Verdict = "note" if num_bytes < SMALL_SPACE_BYTES else "ok"
    return Finding(about, verdict, f"{name}, {gib(num_bytes)} free")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
