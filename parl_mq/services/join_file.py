"""The join file: one file that holds all that another machine needs to take part in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from parl_mq.errors import ConfigError
from parl_mq.net.curve import KeyPair
from parl_mq.net.endpoints import check_endpoint, is_wildcard, port_of
from parl_mq.services.keyring import Key, RemoteRole, read_pair, read_private, write_private
from parl_mq.wire.messages import Name, Text

FORMAT: Final = 1


class JoinFile(BaseModel):
    """What stands in a join file.

    Attributes:
        hub: endpoint of the hub's control socket, as the other machine reaches it; the rest it learns there.
        server_key: that the hub must prove.
        run_id: of the only run that it is for; None: any run of this hub.
        name: of the node.
        role: of the node.
        public: the node's own key.
        secret: its other half; None where it never left the other machine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    hub: Text
    server_key: Key
    run_id: Name | None = None
    name: Name
    role: RemoteRole
    public: Key
    secret: Annotated[str | None, Field(repr=False)] = None

    @field_validator("hub")
    @classmethod
    def _is_endpoint(cls, value: str) -> str:
        try:
            check_hub(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def pair(self) -> KeyPair:
        """The node's own pair."""
        if self.secret is None:
            raise ConfigError(f"the join file of {self.name} has no secret key; say --key FILE, which `keys new` made")
        return KeyPair(self.public, self.secret)


def check_hub(endpoint: str) -> None:
    """Raises ConfigError where a hub is that no other machine can reach."""
    check_endpoint(endpoint)
    if not endpoint.startswith("tcp://"):
        raise ConfigError(f"the hub of a join file is at tcp://HOST:PORT, not at {endpoint!r}")
    if is_wildcard(endpoint) or port_of(endpoint) == 0:
        raise ConfigError(f"{endpoint!r} names no address and port that others could use")


def write_join_file(path: Path, join: JoinFile) -> None:
    """Writes a join file that its owner alone can read.

    Raises:
        ConfigError: there is a file already.
        RecordError: it cannot be written.
    """
    if path.exists():
        raise ConfigError(f"{path} exists already; name another file with --output")
    write_private(path, join.model_dump(mode="json", exclude_none=True))


def read_join_file(path: Path, key: Path | None = None) -> JoinFile:
    """A join file, with the secret key from a file of its own where it has none.

    Raises:
        ConfigError: one of them is missing, damaged, or can be read by others, or they do not belong together.
    """
    join = read_private(path, JoinFile)
    if key is not None:
        pair = read_pair(key)
        if pair.public != join.public:
            raise ConfigError(f"{key} is another key than the one that {path} is for")
        join = join.model_copy(update={"secret": pair.secret})
    try:
        KeyPair(join.pair.public, join.pair.secret)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return join
