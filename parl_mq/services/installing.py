"""Puts the units of a run where systemd finds them, and takes them away; says before that what cannot work."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from parl_mq.algorithms.registry import is_installed
from parl_mq.config.loader import dump_toml
from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.errors import EXIT_NOT_ALLOWED, EXIT_UNAVAILABLE, CodedError, ConfigError
from parl_mq.net.curve import KeyPair
from parl_mq.services.files import write_atomically, writing
from parl_mq.services.findings import Finding
from parl_mq.services.join_file import JoinFile
from parl_mq.services.units import (
    MARK,
    TARGET,
    AttachedActors,
    Flavour,
    Installation,
    LocalRun,
    Places,
    all_names,
    open_settings,
    render,
    sysusers,
    with_absolute_paths,
)

SYSUSERS: Final = "parl-mq.conf"
OLDEST_SYSTEMD: Final = 250
"""The first with credentials' folders in command lines."""
HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ProtectHome hides."""
UNSEEN: Final = (*HOMES, Path("/tmp"), Path("/var/tmp"))
"""With what PrivateTmp replaces."""
USER: Final = "parl-mq"
"""Of system services."""
READABLE: Final = 0o644
SECRET: Final = 0o600
"""Modes of the files."""
HEADER: Final = "# After a change here, `parl-mq services install` with this file: units repeat some of it.\n"
"""Of the settings that are written."""
WHERE: Final = ("-P", "-c", "import parl_mq; print(parl_mq.__file__)")
"""Arguments with which an interpreter says where its parl_mq lies."""
ASK_S: Final = 30.0
"""It reads a few files, of a disk that may have to wake up."""
MANAGER_S: Final = 400.0
"""systemctl waits for units that stop one after the other, whose own limits are some 240 s together."""

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; raises CodedError where it fails."""


def examine(installation: Installation, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What services of this kind cannot do here; a fault is a reason not to install them."""
    run = installation.what if isinstance(installation.what, LocalRun) else None
    if run is not None:
        yield from _imports(run)
    yield from _interpreter(installation.python, installation.flavour)
    yield from _outdated(installation)
    if installation.flavour == "system":
        if run is not None:
            yield from _shut_off(run.config.node)
    else:
        yield from _limits_of_user(environ)


def _imports(run: LocalRun) -> Iterator[Finding]:
    """A node that its hub starts nothing for imports what this machine has installed, not what a message names."""
    environment, algorithm = run.config.environment.id, run.config.algorithm.name
    if ":" in environment:
        yield Finding(
            "environment",
            "fault",
            f"{environment!r} is an import path, which single nodes do not take from a hub; install a package with an "
            "entry point for it in the group parl_mq.envs (see docs/own-environment.md), and name that",
        )
    if not is_installed(algorithm):
        yield Finding(
            "algorithm",
            "fault",
            f"{algorithm!r} is an import path, which single nodes do not take from a hub; install a package with an "
            "entry point for it (see docs/own-algorithm.md), and name that",
        )


def _interpreter(python: Path, flavour: Flavour) -> Iterator[Finding]:
    """It must have the package; system services see neither of them in a home directory, or in a folder like `/tmp`."""
    places = [("interpreter", python), ("interpreter", python.resolve())]
    try:
        places.append(("parl_mq", place_of_package(python)))
    except ConfigError as error:
        yield Finding("interpreter", "fault", f"{error}; name another one with --python")
    if flavour == "user":
        return
    for about, path in dict.fromkeys(places):
        if hiding := next((folder for folder in UNSEEN if path.is_relative_to(folder)), None):
            yield Finding(
                about,
                "fault",
                f"{path} lies below {hiding}, which system services cannot see; install parl_mq for a system's Python "
                "elsewhere, such as /opt/parl-mq (see docs/deploy.md), or take --user",
            )


@cache
def place_of_package(python: Path) -> Path:
    """Where an interpreter finds parl_mq as a service has it find it: without this folder and this user's variables.

    Raises:
        ConfigError: it is none, or does not find it.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, *WHERE],
            env=environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ConfigError(f"{python} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{python} has not said within {ASK_S:g} s where its parl_mq lies") from error
    place = Path(done.stdout.strip())
    if done.returncode != 0 or not place.is_file():
        told = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise ConfigError(f"{python} cannot import parl_mq: {''.join(told) or 'it says nothing'}")
    return place.resolve().parent


def _outdated(installation: Installation) -> Iterator[Finding]:
    """Drop-ins with a command line hold that of the installation for which they were written."""
    units, systemctl = render(installation), " ".join(systemctl_of(installation.flavour))
    for path in drop_ins(installation.places):
        unit = path.parent.name.removesuffix(".d")
        commands = [command for command in _commands(path.read_text(encoding="utf-8", errors="replace")) if command]
        current = _commands(units.get(re.sub(r"@.*\.", "@.", unit), ""))
        if current and not all(f" {current[0]} " in f" {command} " for command in commands):
            yield Finding(
                unit,
                "note",
                f"{path} has an ExecStart= that is not this installation's, and takes its place; write it anew with "
                f"`{systemctl} edit {unit}`, or remove it with `{systemctl} revert {unit}`",
            )


def left_over(places: Places, flavour: Flavour) -> Iterator[Finding]:
    """What stays of units that are uninstalled."""
    systemctl = " ".join(systemctl_of(flavour))
    for path in drop_ins(places):
        unit = path.parent.name.removesuffix(".d")
        what = f"{path} stays, and holds for a later installation too; `{systemctl} revert {unit}` removes it"
        yield Finding(unit, "note", what)


def drop_ins(places: Places) -> list[Path]:
    """What others have added to the units, as `systemctl edit` does; no command here changes it."""
    return sorted(path for path in places.units.glob("parl-mq*.d/*.conf") if os.access(path, os.R_OK))


def _commands(unit: str) -> list[str]:
    return re.findall(r"^[ \t]*ExecStart[ \t]*=[ \t]*(.*)$", unit, re.MULTILINE)


def _shut_off(node: NodeConfig) -> Iterator[Finding]:
    """Settings that ask for what system services are kept from, or are let to on purpose."""
    for name in ("ring_directory", "capture_directory", "keys_directory"):
        if (folder := getattr(node, name)) is None:
            continue
        if home := next((home for home in UNSEEN if folder.resolve().is_relative_to(home)), None):
            where = f"{folder} lies below {home}, of which system services see nothing; take a folder elsewhere"
            yield Finding(f"node.{name}", "fault", f"{where}, or --user")
        elif not _is_of_services(folder):
            make = f"install -d -o {USER} -g {USER} -m 700 {shlex.quote(str(folder.absolute()))}"
            yield Finding(f"node.{name}", "note", f"before the services start, {folder} must be theirs: `{make}`")
    for name in open_settings(node):
        more = "; its key goes into `systemctl edit parl-mq-hub.service`, as Environment=WANDB_API_KEY=KEY"
        what = f"the hub may speak to other machines for it{more if name == 'wandb_project' else ''}"
        yield Finding(f"node.{name}", "note", what)


def _is_of_services(folder: Path) -> bool:
    try:
        return folder.is_dir() and folder.owner() == USER
    except KeyError:  # a user without a name
        return False


def _limits_of_user(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding("sandbox", "note", "services of a user see all that the user sees; system services do not")
    user = environ.get("USER") or str(os.getuid())
    if not Path(f"/var/lib/systemd/linger/{user}").exists():
        yield Finding("logout", "note", f"they end when {user} logs out, unless `loginctl enable-linger` was called")


def check(installation: Installation, environ: Mapping[str, str]) -> None:
    """Refuses what cannot work.

    Raises:
        ConfigError: names all of it.
    """
    faults = [finding for finding in examine(installation, environ) if finding.verdict == "fault"]
    if faults:
        raise ConfigError("\n".join(f"{fault.about}: {fault.what}" for fault in faults))


def written_files(installation: Installation) -> dict[Path, tuple[str, int]]:
    """Every file of an installation: where it lies -> its text and mode."""
    units = {installation.places.units / name: (text, READABLE) for name, text in render(installation).items()}
    what, own = installation.what, installation.settings_file
    if isinstance(what, AttachedActors):
        return {own: (_read(what.join_file), SECRET), **units}
    files = {own: (HEADER + dump_toml(_settled(what.config)), READABLE), **units}
    if installation.places.sysusers is not None:
        files[installation.places.sysusers / SYSUSERS] = (sysusers(), READABLE)
    return files


def _settled(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"node": with_absolute_paths(config.node)})


def attached_actors(join_file: Path, num_actors: int) -> AttachedActors:
    """Actors that join with this file.

    Raises:
        ConfigError: it cannot be read, or is none with which an actor can join.
    """
    try:
        join = JoinFile.model_validate_json(_read(join_file))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        what = f"is no join file ({place}: {first['msg']:.200})"
        raise ConfigError(f"{join_file} {what}; `parl-mq join-token actor` makes one") from None
    if join.role != "actor":
        raise ConfigError(f"{join_file} is for a node that joins as {join.role}; services are made for actors alone")
    if join.secret is None:
        raise ConfigError(
            f'{join_file} has no secret key, and services read no other file: add the line "secret" of the file that '
            "`parl-mq keys new` has written to it, or have a file made without --public"
        )
    try:
        KeyPair(join.public, join.secret)
    except ConfigError as error:
        raise ConfigError(f"{join_file}: {error}") from error
    return AttachedActors(join_file, join.name, num_actors)


def _read(join_file: Path) -> str:
    try:
        return join_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{join_file} cannot be read: {error}") from error


def systemctl_of(flavour: Flavour) -> list[str]:
    """The words with which commands to a service manager begin."""
    return ["systemctl"] if flavour == "system" else ["systemctl", "--user"]


@dataclass(frozen=True, slots=True)
class Manager:
    """A service manager, spoken to with systemctl.

    Attributes:
        flavour: the machine's, or this user's.
        run: runs a command.
    """

    flavour: Flavour
    run: Run

    @classmethod
    def here(cls, flavour: Flavour) -> Manager:
        """That of this machine.

        Raises:
            CodedError: there is none, it is too old, or this user may not speak to it.
        """
        if shutil.which("systemctl") is None:
            raise CodedError(
                "systemctl is not on this machine: without systemd, `parl-mq train` or a supervisor of your own starts "
                "the nodes",
                EXIT_UNAVAILABLE,
            )
        if flavour == "system" and os.geteuid() != 0:
            raise CodedError("system services are installed by root; take --user for your own", EXIT_NOT_ALLOWED)
        version = re.search(r"systemd (\d+)", _run(["systemctl", "--version"]))
        if version is None or int(version[1]) < OLDEST_SYSTEMD:
            raise CodedError(f"the units need systemd {OLDEST_SYSTEMD} or newer", EXIT_UNAVAILABLE)
        return cls(flavour, _run)

    def __call__(self, *arguments: str) -> str:
        """Runs `systemctl ARGUMENTS`."""
        return self.run([*systemctl_of(self.flavour), *arguments])

    def make_user(self, places: Places) -> None:
        """Makes the user of the system services, if it is not there."""
        if places.sysusers is not None:
            self.run(["systemd-sysusers", str(places.sysusers / SYSUSERS)])


def install(installation: Installation, manager: Manager, environ: Mapping[str, str]) -> list[Path]:
    """Writes the units, and has the manager start them with the machine or the user's session.

    Nothing is started. Units of an earlier installation that are none of this one go.

    Returns:
        The files.

    Raises:
        ConfigError: something cannot work.
        CodedError: the manager refused; what was there before is there again.
    """
    check(installation, environ)
    files = written_files(installation)
    gone = [path for path in _installed(installation.places) if path not in files]
    with _restored_on_failure([*files, *gone]):
        for path, (text, mode) in files.items():
            _write(path, text, mode)
        for path in gone:
            path.unlink()
        if isinstance(installation.what, LocalRun):
            manager.make_user(installation.places)
        manager("daemon-reload")
        manager("enable", TARGET)
    return list(files)


def uninstall(places: Places, manager: Manager) -> list[Path]:
    """Stops the services and removes their units; settings, runs and the user of the services stay.

    Returns:
        The files that were removed; none where nothing was installed.
    """
    found = _installed(places)
    if not found:
        return []
    manager("disable", "--now", TARGET)
    manager("stop", "parl-mq-*.service")
    for path in found:
        path.unlink()
    manager("daemon-reload")
    return found


def _installed(places: Places) -> list[Path]:
    """Unit files that `install` has written; those that somebody else has are left alone."""
    paths = [places.units / name for name in all_names()]
    return [path for path in paths if path.is_file() and path.read_text(encoding="utf-8").startswith(MARK)]


def _write(path: Path, text: str, mode: int) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o777 & ~mode)  # of the whole process: commands that install have one thread
    try:
        write_atomically(path, text)
    finally:
        os.umask(before)


@contextlib.contextmanager
def _restored_on_failure(paths: Sequence[Path]) -> Iterator[None]:
    before = {path: (path.read_bytes(), path.stat().st_mode) if path.is_file() else None for path in paths}
    try:
        yield
    except BaseException:
        for path, old in before.items():
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(old[0])
                path.chmod(old[1])
        raise


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MANAGER_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CodedError(f"`{' '.join(command)}` cannot be run: {error.strerror}", EXIT_UNAVAILABLE) from error
    except subprocess.TimeoutExpired as error:
        raise CodedError(
            f"`{' '.join(command)}` has not ended within {MANAGER_S:g} s; look at `systemctl list-jobs`, and try again",
            EXIT_UNAVAILABLE,
        ) from error
    if done.returncode != 0:
        told = (done.stderr or done.stdout).strip()
        raise CodedError(f"`{' '.join(command)}` ended with code {done.returncode}: {told}", EXIT_UNAVAILABLE)
    return done.stdout
