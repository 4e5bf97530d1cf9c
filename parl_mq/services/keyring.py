"""The folder of a run's keys: the server's own pair, and the keys that may connect, each with a name and a role.

Commands change it while a hub reads it, so files are replaced whole, and only their owner can read them.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from parl_mq.errors import ConfigError
from parl_mq.net.curve import KeyPair, Verdict, check_key, new_key_pair
from parl_mq.services.files import write_atomically
from parl_mq.wire.messages import Name

SERVER: Final = "server.json"
ALLOWED: Final = "allowed.json"
LOCK: Final = "lock"
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""Variable in which systemd names the folder of a service's credentials."""
MAX_GRANTS: Final = 4_000
"""The replay nodes are told of all of them in one message."""
HOST: Final = "host"
"""Name of the server's own key: with it the run's status is asked on this machine."""

RemoteRole = Literal["replay", "learner", "actor", "evaluator"]
"""What a key can be for."""
REMOTE_ROLES: Final = ("replay", "learner", "actor", "evaluator")
KeyRole = Literal["replay", "learner", "actor", "evaluator", "host"]

M = TypeVar("M", bound=BaseModel)


def _checked_key(key: str) -> str:
    try:
        check_key(key)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return key


Key = Annotated[str, AfterValidator(_checked_key)]


class Grant(BaseModel):
    """A key that may connect.

    Attributes:
        name: of the nodes that it is for: this one, or this one with a dot and more behind it.
        role: of these nodes.
        public: the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    role: KeyRole
    public: Key

    def covers(self, name: str) -> bool:
        """Whether the key is for a node of this name."""
        return name == self.name or name.startswith(f"{self.name}.")


class _Pair(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    public: Key
    secret: Annotated[str, Field(repr=False)]


class _Allowed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: list[Grant] = Field(default_factory=list, max_length=MAX_GRANTS)


class Keyring:
    """One folder of keys.

    Attributes:
        folder: where it lies.
        pair: the server's own.
        version: grows whenever other keys are found to be allowed.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a folder.

        Raises:
            ConfigError: it is not there, a file of it is damaged, or others can read or change it.
        """
        try:
            holds_keys = (folder / SERVER).is_file()
        except OSError as error:
            raise ConfigError(f"the keys in {folder} cannot be read: {error.strerror}") from error
        if not holds_keys:
            raise ConfigError(
                f"{folder} holds no keys; a hub that other machines can reach makes them, and so do `parl-mq keys "
                "allow` and `parl-mq join-token`"
            )
        self.folder = folder
        self.pair = read_pair(folder / SERVER)
        self._stamp: tuple[int, int, int] | None = None
        self._grants: dict[str, Grant] = {}
        self.version = 0
        self.refresh()

    @classmethod
    def open_or_make(cls, folder: Path) -> Keyring:
        """The keys in a folder, which are made where there are none.

        Raises:
            ConfigError: the folder cannot be made, or as the constructor.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"no keys can be kept in {folder}: {error.strerror}") from error
        with _locked(folder):
            if not (folder / SERVER).exists():
                write_pair(folder / SERVER, new_key_pair())
        return cls(folder)

    @property
    def grants(self) -> list[Grant]:
        """The keys that may connect, by name; without the server's own."""
        return sorted(self._grants.values(), key=lambda grant: grant.name)

    def grant_of(self, key: str) -> Grant | None:
        """What a key is for; None where it is not allowed."""
        if key == self.pair.public:
            return Grant(name=HOST, role="host", public=key)
        return self._grants.get(key)

    def admit(self, key: str) -> Verdict:
        """Whether a key may connect, as the file says now: a key just allowed must not be refused."""
        if self.grant_of(key) is None:
            self.refresh()
        return Verdict.DENIED if self.grant_of(key) is None else Verdict.WELCOME

    def refresh(self) -> None:
        """Reads the allowed keys where the file has changed.

        Raises:
            ConfigError: it is damaged, or others can read or change it.
        """
        path = self.folder / ALLOWED
        stamp = _stamp_of(path)
        if stamp == self._stamp:
            return
        allowed = _Allowed() if stamp is None else read_private(path, _Allowed)
        before, self._stamp = self._grants, stamp  # not before it could be read: what was refused is looked at again
        self._grants = {grant.public: grant for grant in allowed.keys}
        self.version += before != self._grants

    def allow(self, grant: Grant) -> None:
        """Lets a key connect from now on.

        Raises:
            ConfigError: the name or the key is taken.
        """
        with _locked(self.folder):
            self.refresh()
            if len(self._grants) >= MAX_GRANTS:
                raise ConfigError(f"{self.folder} holds {MAX_GRANTS} keys, as many as it may; revoke one first")
            for known in self._grants.values():
                if known.name == grant.name:
                    raise ConfigError(f"the name {grant.name} has a key already; revoke it first, or take another name")
                if known.public == grant.public:
                    raise ConfigError(f"this key is that of {known.name} already")
            self._write([*self._grants.values(), grant])

    def revoke(self, name: str) -> Grant:
        """Lets a key connect no more; a hub that runs closes its connections within a second.

        Raises:
            ConfigError: there is none of this name.
        """
        with _locked(self.folder):
            self.refresh()
            found = next((grant for grant in self._grants.values() if grant.name == name), None)
            if found is None:
                names = ", ".join(grant.name for grant in self.grants) or "none"
                raise ConfigError(f"no key in {self.folder} is for {name}; there are: {names}")
            self._write([grant for grant in self._grants.values() if grant.name != name])
        return found

    def _write(self, grants: list[Grant]) -> None:
        write_private(self.folder / ALLOWED, _Allowed(keys=grants).model_dump(mode="json"))
        self.refresh()


def read_pair(path: Path) -> KeyPair:
    """A key pair from its file.

    Raises:
        ConfigError: there is none, it is damaged, or others can read it.
    """
    pair = read_private(path, _Pair)
    return KeyPair(pair.public, pair.secret)


def write_pair(path: Path, pair: KeyPair) -> None:
    """Writes a key pair to a file that its owner alone can read."""
    write_private(path, {"public": pair.public, "secret": pair.secret})


def read_private(path: Path, model: type[M]) -> M:
    """What stands in a file that its owner alone can read.

    Raises:
        ConfigError: it cannot be read, is damaged, or others can read or change it. The message tells nothing of it.
    """
    try:
        check_private(path)
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path} is damaged: {place or 'the whole'}: {first['msg']:.200}") from None


def write_private(path: Path, values: Mapping[str, Any]) -> None:
    """Replaces a file that its owner alone can read. Raises RecordError where that cannot be."""
    write_atomically(path, json.dumps(values, indent=2) + "\n", mode=0o600)


def check_private(path: Path) -> None:
    """Checks that a file is this user's, and that nobody else can read or change it.

    A credential of systemd need not be: it lies in a folder that the service manager guards.

    Raises:
        ConfigError: somebody can.
        OSError: it is not there.
    """
    status = path.stat()
    if (credentials := os.environ.get(CREDENTIALS)) and path.resolve().parent == Path(credentials).resolve():
        return
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user; keys must be one's own")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{path} can be used by others (mode {mode:o}); `chmod 600 {path}`, or make new keys")


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Tells one content of a file that is replaced whole from the next."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two commands that change the keys do so one after the other."""
    try:
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"the keys in {folder} cannot be changed: {error.strerror}") from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
