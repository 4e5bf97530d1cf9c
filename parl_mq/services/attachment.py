"""What a hub leaves in the run directory for those who let other machines in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from parl_mq.errors import ConfigError, ParlError
from parl_mq.net.curve import KeyPair, new_key_pair
from parl_mq.net.endpoints import check_endpoint, host_of, is_wildcard, port_of
from parl_mq.services.files import write_atomically
from parl_mq.services.join_file import JoinFile, read_join_file, write_join_file
from parl_mq.services.keyring import Grant, Keyring, RemoteRole

FILE: Final = "attach.json"
KEYS: Final = "keys"
"""Folder of a run's own keys."""
GUEST: Final = "actor.guest"
GUEST_FILE: Final = "actor.join"
DEFAULT_PORT: Final = 29_700


class Attachment(BaseModel):
    """Where nodes of other machines join a run.

    Attributes:
        hub: endpoint of the control socket.
        run_id: of the run.
        server_key: that the hub proves; None: nothing is encrypted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hub: str
    run_id: str
    server_key: str | None = None

    def write(self, run_directory: Path) -> None:
        """Replaces what an earlier hub has written."""
        write_atomically(run_directory / FILE, self.model_dump_json() + "\n")

    @classmethod
    def read(cls, run_directory: Path) -> Attachment:
        """What the run's newest hub has written.

        Raises:
            ConfigError: nothing, or it is damaged.
        """
        path = run_directory / FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(
                f"the run in {run_directory} lets no other machine in; start it with --bind tcp://ADDRESS"
            ) from error
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path} is damaged; start the run again with --resume") from error


@dataclass(frozen=True, slots=True)
class PublicPlace:
    """Where a run that `train` starts lets other machines in. Its sockets have ports one after the other.

    Attributes:
        host: that is bound.
        port: of the control socket; that of the weights follows, then those of the replay nodes.
        advertise: host by which other machines reach this one; None: the one that is bound.
    """

    host: str
    port: int
    advertise: str | None = None

    @classmethod
    def of(cls, text: str, advertise: str | None) -> PublicPlace:
        """The place that `--bind` and `--advertise` name.

        Raises:
            ConfigError: it is no tcp://HOST or tcp://HOST:PORT, or stands for any address and none is advertised.
        """
        has_port = re.fullmatch(r".*:\d+", text) is not None
        endpoint = text if has_port else f"{text}:{DEFAULT_PORT}"
        check_endpoint(endpoint)
        if not endpoint.startswith("tcp://") or port_of(endpoint) == 0:
            raise ConfigError(f"{text!r} must be tcp://HOST or tcp://HOST:PORT, with a port that others can know")
        if is_wildcard(endpoint) and advertise is None:
            raise ConfigError(f"{text!r} names no address that others could use; say it with --advertise HOST")
        return cls(host_of(endpoint), port_of(endpoint), advertise)

    def arguments(self, offset: int) -> list[str]:
        """What a node's command line says of its public socket, which is so many ports behind the first."""
        advertise = [] if self.advertise is None else ["--advertise", self.advertise]
        return ["--bind", f"tcp://{self.host}:{self.port + offset}", *advertise]


def invite_guest(run_directory: Path, folder: Path) -> tuple[Path, JoinFile]:
    """The join file that a run makes by itself, for an actor; made where there is none that is still good.

    Raises:
        ConfigError: the run lets nobody in, or its keys cannot be used.
    """
    attachment, keyring, path = Attachment.read(run_directory), Keyring.open_or_make(folder), run_directory / GUEST_FILE
    if path.exists():
        join = read_join_file(path)
        if keyring.grant_of(join.public) is not None and join.hub == attachment.hub:
            return path, join
        path.unlink()
    if any(grant.name == GUEST for grant in keyring.grants):
        keyring.revoke(GUEST)
    run_id, pair = attachment.run_id, new_key_pair()
    return path, invite(keyring, path, hub=attachment.hub, run_id=run_id, name=GUEST, role="actor", pair=pair)


def invite(
    keyring: Keyring,
    path: Path,
    *,
    hub: str,
    run_id: str | None,
    name: str,
    role: RemoteRole,
    pair: KeyPair | str,
) -> JoinFile:
    """Allows a key, and writes the join file for it.

    Args:
        keyring: of the hub.
        path: of the join file.
        hub: endpoint of the hub's control socket, as the other machine reaches it.
        run_id: of the only run that it is for; None: any.
        name: of the node.
        role: of the node.
        pair: the node's own pair; or its public key, where the secret one does not leave the other machine.

    Raises:
        ConfigError: the name or the key is none or taken, nobody can reach the hub there, or the file exists. Nothing
            is allowed then, and no file left.
        RecordError: the file cannot be written. The same.
    """
    public, secret = (pair, None) if isinstance(pair, str) else (pair.public, pair.secret)
    try:
        join = JoinFile(
            hub=hub,
            server_key=keyring.pair.public,
            run_id=run_id,
            name=name,
            role=role,
            public=public,
            secret=secret,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ConfigError(f"{first['loc'][0]} of the join file: {first['msg']}") from None
    write_join_file(path, join)
    try:
        keyring.allow(Grant(name=name, role=role, public=public))
    except ParlError:
        path.unlink()
        raise
    return join
