"""Profiles of earlier measurements, by machine and settings, so that `train --actors auto` need not measure again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from parl_mq import __version__
from parl_mq.bench.report import describe_machine
from parl_mq.bench.split import ActorCost, LearnerCost, Profile, ReplayCost
from parl_mq.config.devices import TorchBuild
from parl_mq.config.models import RunConfig
from parl_mq.errors import RecordError
from parl_mq.services.files import write_atomically, writing

WITHOUT_EFFECT: Final = frozenset({"preset", "seed", "stop"})
"""Parts of the settings that change no rate."""
OF_THE_NODE: Final = ("device", "threads", "loop")
CHOSEN: Final = (("actor", "num_actors"), ("learner", "num_learners"))
"""What a plan decides."""
FORMAT: Final = 2
"""Of what a profile holds; one of another format is not found, so that it is measured again."""


def profile_path(config: RunConfig, machine: Mapping[str, int | float | str]) -> Path:
    """Where the profile of these settings on this machine lies, or would.

    Args:
        config: of the run.
        machine: as `machine_identity` says, with the cores that the run may use.
    """
    settings = config.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))
    settings["node"] = {name: settings["node"][name] for name in OF_THE_NODE}
    for section, name in CHOSEN:
        del settings[section][name]
    text = json.dumps({"format": FORMAT, "settings": settings, "machine": dict(machine)}, sort_keys=True)
    return _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def machine_identity(cores: int) -> dict[str, int | float | str]:
    """What a profile depends on beside the settings."""
    described = describe_machine()
    build = TorchBuild.installed()
    return {
        **{name: described[name] for name in ("processor", "memory_gib", "system", "python", "numpy")},
        "host": platform.node(),
        "cores": cores,
        "torch": "none" if build is None else build.version,
        "parl_mq": __version__,
    }


def save_profile(path: Path, profile: Profile) -> None:
    """Keeps a profile.

    Raises:
        RecordError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(profile)), lasting=False)


def load_profile(path: Path) -> Profile | None:
    """The profile that was kept there; None if there is none.

    Raises:
        RecordError: the file is damaged; the message says what to do.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return profile_of_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} holds no profile ({error}); remove it, and it is measured again") from error


def profile_of_json(values: Mapping[str, Any]) -> Profile:
    """The profile that `asdict` was given.

    Raises:
        KeyError, TypeError: it is none.
    """
    return Profile(
        cores=values["cores"],
        batch_size=values["batch_size"],
        samples_per_insert=values["samples_per_insert"],
        actors=tuple(ActorCost(**cost) for cost in values["actors"]),
        learners=tuple(LearnerCost(**cost) for cost in values["learners"]),
        replay=ReplayCost(**values["replay"]),
        other_cores=values["other_cores"],
    )


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "parl_mq" / "profiles"
