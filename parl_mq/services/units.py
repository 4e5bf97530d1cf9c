"""The systemd units of a run: which there are, and what stands in them; pure but for reading the templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.config.settings import value_in_words, variable_of_key
from parl_mq.services.metrics_page import is_loopback

Flavour = Literal["system", "user"]

TARGET: Final = "parl-mq.target"
MARK: Final = "# Written by `parl-mq services`, which writes it anew. For changes of your own: systemctl edit NAME\n"
RUNTIME: Final = "%t/parl-mq"
"""The folder of the sockets, as systemd says it."""
JOIN: Final = "join"
"""Name of a join file's credential."""
LOCAL_NETWORK: Final = ("IPAddressDeny=any", "IPAddressAllow=localhost")
NETWORK_ONLINE: Final = "system|Wants=network-online.target\nsystem|After=network-online.target"
LOCAL_LIMIT: Final = "StartLimitIntervalSec=900\nStartLimitBurst=15"
"""Beside a hub that is down for good a node ends every 40 s: then it is to be seen as failed."""
GPU_LIMIT: Final = "StartLimitIntervalSec=7200\nStartLimitBurst=120"
"""A driver may need minutes after the machine has started, in which a learner ends every 3 s."""
ATTACHED_LIMIT: Final = "StartLimitIntervalSec=600\nStartLimitBurst=30"
"""The machine of the hub may be off for a night: only a node that ends at once is given up."""
ELSEWHERE: Final = frozenset({"device", "runtime_directory"})
"""Settings of the section `node` that units say in their own way."""

_FIELD: Final = re.compile(r"@(\w+)@")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie for one service manager.

    Attributes:
        units: folder of unit files.
        settings: folder of the run's settings, and of a join file.
        runs: folder of run directories.
        sysusers: folder of the files that make system users; None: none is needed.
    """

    units: Path
    settings: Path
    runs: Path
    sysusers: Path | None = None

    @classmethod
    def of(cls, flavour: Flavour, environ: Mapping[str, str]) -> Places:
        """Those of the machine's manager, or of this user's."""
        if flavour == "system":
            etc = Path("/etc")
            return cls(etc / "systemd/system", etc / "parl-mq", Path("/var/lib/parl-mq"), etc / "sysusers.d")
        home = Path(environ.get("HOME") or Path.home())
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        state = Path(environ.get("XDG_STATE_HOME") or home / ".local/state")
        return cls(config / "systemd/user", config / "parl-mq", state / "parl-mq")


@dataclass(frozen=True, slots=True)
class LocalRun:
    """All nodes of a run on this machine.

    Attributes:
        name: of the run: its directory and its settings file are called so.
        config: its settings.
    """

    name: str
    config: RunConfig

    @property
    def device(self) -> str:
        """What learner `%i` trains on: the GPU of its own index where any GPU was asked for."""
        wanted = self.config.node.device
        return "cuda:%i" if wanted == "cuda" else wanted


@dataclass(frozen=True, slots=True)
class AttachedActors:
    """Actors of a run on another machine.

    Attributes:
        join_file: all that they need to join.
        name: that it holds; its key is for nodes called so, or so with a dot and more behind it.
        num_actors: processes, >= 1.
    """

    join_file: Path
    name: str
    num_actors: int


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to run, by whom, and where.

    Attributes:
        python: interpreter that has parl_mq.
    """

    what: LocalRun | AttachedActors
    flavour: Flavour
    python: Path
    places: Places

    @property
    def settings_file(self) -> Path:
        """Where the run's settings, or the join file, lie when it is installed."""
        name = f"{self.what.name}.toml" if isinstance(self.what, LocalRun) else self.what.join_file.name
        return self.places.settings / name

    @property
    def run_directory(self) -> Path | None:
        """Where a run on this machine is recorded."""
        return self.places.runs / self.what.name if isinstance(self.what, LocalRun) else None


def render(installation: Installation) -> dict[str, str]:
    """The unit files: name -> text, the target first."""
    fields = {**_shared_fields(installation), **_fields(installation)}
    service = _filled(_template("service.conf"), fields, installation.flavour)
    names = [TARGET, *_services(installation.what)]
    return {
        name: MARK + _filled(_template(name), {**fields, "service": service}, installation.flavour) for name in names
    }


def sysusers() -> str:
    """The file that makes the user of the system services."""
    return MARK.replace("systemctl edit NAME", "another file") + _template("parl-mq.sysusers")


def all_names() -> tuple[str, ...]:
    """Every unit file that there can be."""
    of_templates = (entry.name for entry in files("parl_mq.systemd").iterdir())
    return tuple(sorted(name for name in of_templates if name.endswith((".target", ".service"))))


def open_settings(node: NodeConfig) -> list[str]:
    """Settings for which the hub speaks to other machines."""
    is_served = node.metrics_port is not None and not is_loopback(node.metrics_host)
    wanted = {"wandb_project": node.wandb_project is not None, "metrics_host": is_served}
    return [name for name, is_wanted in wanted.items() if is_wanted]


def quoted(text: str | Path) -> str:
    """One word of a command line, of which systemd changes nothing."""
    return _one_word(_literal(text).replace("$", "$$"))


def _one_word(text: str) -> str:
    if re.fullmatch(r"[\w@%+=:,./$-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str | Path) -> str:
    """A text in which systemd finds no specifier."""
    return str(text).replace("%", "%%")


def _services(what: LocalRun | AttachedActors) -> list[str]:
    if isinstance(what, AttachedActors):
        return ["parl-mq-actor@.service"]
    roles = ("hub.service", "replay@.service", "learner@.service", "actor@.service", "evaluator.service")
    return [f"parl-mq-{role}" for role in roles]


def _shared_fields(installation: Installation) -> dict[str, str]:
    is_attached = isinstance(installation.what, AttachedActors)
    return {
        "python": _one_word(_literal(installation.python)),  # a program's path, in which systemd expands no variable
        "dynamic_user": "yes" if is_attached else "no",
        "limit": ATTACHED_LIMIT if is_attached else LOCAL_LIMIT,
        "network": "" if is_attached else "\n".join(f"system|{line}" for line in LOCAL_NETWORK),
    }


def _fields(installation: Installation) -> dict[str, str]:
    match installation.what:
        case AttachedActors() as attached:
            return _fields_of_attached(attached, installation)
        case LocalRun() as run:
            return _fields_of_run(run, installation)


def _fields_of_run(run: LocalRun, installation: Installation) -> dict[str, str]:
    config, hub, run_directory = run.config, f"ipc://{RUNTIME}/hub", installation.places.runs / run.name
    node, is_for_gpu = with_absolute_paths(config.node), run.device.startswith("cuda")
    replays = _instances("replay", config.replay.nodes)
    learners = _instances("learner", config.learner.num_learners)
    actors = _instances("actor", config.actor.num_actors)
    finished = _literal(run_directory / "finished")
    return {
        "about": f"run {run.name}",
        "units": f"parl-mq-hub.service {replays} {learners} {actors} parl-mq-evaluator.service",
        "conditions": f"# A run that has come to its end is not begun again at the next start of the machine.\n"
        f"ConditionPathExists=!{finished}",
        "environment": "\n".join(_node_settings(node)),
        "capture_directory": _writable(node.capture_directory),
        "keys_directory": _writable(node.keys_directory),
        "ring_directory": _writable(node.ring_directory),
        "hub_network": "system|IPAddressDeny=" if open_settings(node) else "",
        "hub_after": NETWORK_ONLINE if open_settings(node) else "",
        "hub": hub,
        "replay": f"ipc://{RUNTIME}/replay-%i",
        "run_file": quoted(installation.settings_file),
        "run_directory": quoted(run_directory),
        "device": run.device,
        "learner_prevents": "2 77" if is_for_gpu else "2 77 78",
        "learner_limit": GPU_LIMIT if is_for_gpu else LOCAL_LIMIT,
        "replay_units": replays,
        "learner_units": learners,
        "actor_after": f"After=parl-mq-hub.service {replays} {learners}",
        "actor": "actor-%i",
        "actor_joins": f"--hub {hub}",
        "credentials": "",
    }


def _fields_of_attached(attached: AttachedActors, installation: Installation) -> dict[str, str]:
    """A user's manager has no credentials: its services read the file itself."""
    join_file = quoted(installation.settings_file)
    is_system = installation.flavour == "system"
    return {
        "about": "actors of a run on another machine",
        "units": _instances("actor", attached.num_actors),
        "conditions": "",
        "environment": "",
        "capture_directory": "",
        "actor_after": NETWORK_ONLINE,
        "actor": f"{attached.name}.%i",
        "actor_joins": f"--join %d/{JOIN}" if is_system else f"--join {join_file}",
        "credentials": f"LoadCredential={JOIN}:{_literal(installation.settings_file)}" if is_system else "",
    }


def _instances(role: str, number: int) -> str:
    return " ".join(f"parl-mq-{role}@{index}.service" for index in range(number))


def with_absolute_paths(node: NodeConfig) -> NodeConfig:
    """The same settings for a process that works in another folder."""
    return node.model_copy(update={name: value.absolute() for name, value in node if isinstance(value, Path)})


def _node_settings(node: NodeConfig) -> Iterator[str]:
    """The machine's own settings that are not the defaults, as every unit gets them and the loader reads them."""
    values: dict[str, Any] = node.model_dump(mode="json", exclude_defaults=True, exclude=set(ELSEWHERE))
    for name, value in values.items():
        variable = variable_of_key(("node", name))
        yield f"Environment={_one_word(_literal(f'{variable}={value_in_words(value)}'))}"


def _writable(folder: Path | None) -> str:
    """One that is missing is left to the node, which says more of it than the service manager."""
    return "" if folder is None else f"system|ReadWritePaths={_one_word(f'-{_literal(folder)}')}"


def _template(name: str) -> str:
    return (files("parl_mq.systemd") / name).read_text(encoding="utf-8")


def _filled(template: str, fields: Mapping[str, str], flavour: Flavour) -> str:
    """The template's text for one flavour; lines that come to nothing go."""
    lines: list[str] = []
    for line in template.splitlines():
        is_field_alone = _FIELD.fullmatch(line) is not None
        text = _FIELD.sub(lambda found: fields[found[1]], line)
        lines += [part for part in text.splitlines() if part] if is_field_alone else [text]
    return "\n".join(_of_flavour(lines, flavour)) + "\n"


def _of_flavour(lines: list[str], flavour: Flavour) -> Iterator[str]:
    for line in lines:
        mark, bar, rest = line.partition("|")
        if not bar or mark not in ("system", "user"):
            yield line
        elif mark == flavour:
            yield rest
