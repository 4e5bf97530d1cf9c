"""Which keys a run's settings have, and which of them a wrong one may mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final, get_origin

from pydantic import BaseModel

from parl_mq.config.models import AlgorithmConfig, RunConfig
from parl_mq.config.settings import OTHER_VARIABLES, Key, Origin, Setting, variable_of_key

NEAR: Final = 0.6
"""Likeness, from 0 to 1, from which on a name is offered."""
SAME_SECTION_BONUS: Final = 0.1


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Every valid key.

    Attributes:
        leaves: settings.
        free: those of them that are tables with keys of anyone's choice.
        sections: what the settings stand in.
    """

    leaves: frozenset[Key]
    free: frozenset[Key]
    sections: frozenset[Key]

    def has(self, key: Key) -> bool:
        """Whether the key names a setting, a section, or something in a free table."""
        return key in self.leaves or key in self.sections or any(key[: len(table)] == table for table in self.free)

    def nearest(self, key: Key) -> Key | None:
        """What a wrong key may have meant: its last part counts, in its own section rather than elsewhere."""

        def likeness(candidate: Key) -> float:
            if _initials(candidate[-1]) == key[-1]:
                return 1.0
            bonus = SAME_SECTION_BONUS if candidate[:-1] == key[:-1] else 0.0
            return SequenceMatcher(None, candidate[-1], key[-1]).ratio() + bonus

        if within := [key[:length] for length in range(1, len(key)) if key[:length] in self.leaves]:
            return within[0]
        if key[:1] not in self.sections and len(key) > 1:
            section = get_close_matches(key[0], [name for (name, *_) in self.sections], n=1, cutoff=NEAR)
            key = (*section, *key[1:]) if section else key
            if self.has(key):
                return key
        best = max(sorted(self.leaves | self.sections), key=likeness)
        return best if likeness(best) >= NEAR else None


def known_keys(algorithm: type[AlgorithmConfig]) -> KnownKeys:
    """The keys of a run with this algorithm."""
    leaves: set[Key] = set()
    free: set[Key] = set()
    sections: set[Key] = set()
    for key, annotation in _fields(RunConfig, algorithm, ()):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            sections.add(key)
            continue
        leaves.add(key)
        if get_origin(annotation) is dict:
            free.add(key)
    return KnownKeys(frozenset(leaves), frozenset(free), frozenset(sections))


def unknown_key(setting: Setting, known: KnownKeys) -> str:
    """Says that there is no such setting, and what may have been meant, in the words of where it was said."""
    name = _name(setting.key, setting.origin)
    near = known.nearest(setting.key)
    if near is not None:
        hint = f"did you mean {_name(near, setting.origin)}?"
    elif setting.origin.kind == "environment" and (other := nearest_name(name, OTHER_VARIABLES)):
        hint = f"did you mean {other}?"
    else:
        hint = f"valid here are {', '.join(_siblings(setting.key, known))}"
    return f"{'' if setting.origin.kind == 'environment' else f'{name}: '}there is no such setting; {hint}"


def settings_called(name: str) -> list[str]:
    """The settings, of whatever section and with every algorithm, whose last part this is, or its initials: `lr`."""
    leaves = known_keys(AlgorithmConfig).leaves
    return sorted(".".join(leaf) for leaf in leaves if name in (leaf[-1], _initials(leaf[-1])))


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """The most similar of the valid names, or None."""
    return next(iter(get_close_matches(name, valid, n=1, cutoff=NEAR)), None)


def _fields(model: type[BaseModel], algorithm: type[AlgorithmConfig], prefix: Key) -> Iterator[tuple[Key, Any]]:
    for name, field in model.model_fields.items():
        key, annotation = (*prefix, name), field.annotation
        if isinstance(annotation, type) and issubclass(annotation, AlgorithmConfig):
            annotation = algorithm
        yield key, annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _fields(annotation, algorithm, key)


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_")) if "_" in name else ""


def _siblings(key: Key, known: KnownKeys) -> list[str]:
    section = key[:-1] if key[:-1] in known.sections else ()
    return sorted(".".join(leaf) for leaf in known.leaves | known.sections if leaf[:-1] == section)


def _name(key: Key, origin: Origin) -> str:
    return variable_of_key(key) if origin.kind == "environment" else ".".join(key)
