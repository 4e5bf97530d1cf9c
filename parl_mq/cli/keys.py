"""`parl-mq keys` and `parl-mq join-token`: who may connect from other machines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parl_mq.cli import options

if TYPE_CHECKING:
    from parl_mq.services.keyring import Grant

app = typer.Typer(name="keys", help="Who may connect from other machines.", no_args_is_help=True)


class RoleName(StrEnum):
    """What a key can be for."""

    actor = "actor"
    learner = "learner"
    evaluator = "evaluator"
    replay = "replay"


MORE_ARGUMENTS = {RoleName.learner: " --run-dir DIR", RoleName.replay: " --bind tcp://ADDRESS:PORT"}
"""What else a node of the role must be told on its own machine."""

Folder = Annotated[
    Path | None,
    typer.Option(
        "--keys", envvar="PARL_MQ_NODE__KEYS_DIRECTORY", metavar="DIR", help="Folder of keys, as node.keys_directory."
    ),
]
RunDir = Annotated[Path | None, typer.Option("--run-dir", envvar=options.RUN_DIR_VARIABLE, help="A run, for its keys.")]
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Of the nodes that the key is for.")]
Public = Annotated[str, typer.Option("--public", metavar="KEY", help="What `parl-mq keys new` printed.")]
Role = Annotated[RoleName, typer.Argument(metavar="ROLE", help="actor, learner, evaluator or replay.")]


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the pair goes; only you can read it.")],
) -> None:
    """Make a key pair for a node on this machine, and print its public half for `keys allow` or `join-token`."""
    from parl_mq.errors import ConfigError
    from parl_mq.net.curve import new_key_pair
    from parl_mq.services.keyring import write_pair

    if file.exists():
        raise ConfigError(f"{file} exists already; a key is never replaced")
    pair = new_key_pair()
    write_pair(file, pair)
    print(pair.public)


@app.command("allow")
def allow(name: KeyName, role: Role, public: Public, folder: Folder = None, run_dir: RunDir = None) -> None:
    """Let the nodes with this key connect, under this name and in this role alone."""
    from parl_mq.services.keyring import Keyring

    grant = _grant(name, role, public)
    Keyring.open_or_make(_folder(folder, run_dir)).allow(grant)
    _tell(f"{name} may connect as {role.value}")


@app.command("revoke")
def revoke(name: KeyName, folder: Folder = None, run_dir: RunDir = None) -> None:
    """Let these nodes connect no more; a running hub closes their connections within a second."""
    from parl_mq.services.keyring import Keyring

    grant = Keyring(_folder(folder, run_dir)).revoke(name)
    _tell(f"{name} may not connect any more; it was allowed as {grant.role}")


@app.command("list")
def list_keys(folder: Folder = None, run_dir: RunDir = None, as_json: options.Json = False) -> None:
    """Show the server's public key, and who may connect."""
    import json

    from parl_mq.net.curve import fingerprint
    from parl_mq.services.keyring import Keyring

    keyring = Keyring(_folder(folder, run_dir))
    rows = [("server", "host", keyring.pair.public), *((one.name, one.role, one.public) for one in keyring.grants)]
    if as_json:
        print(json.dumps([dict(zip(("name", "role", "public"), row, strict=True)) for row in rows]))
        return
    width = max(len(name) for name, _, _ in rows)
    for name, role, public in rows:
        print(f"{name:<{width}}  {role:<9}  {public}  {fingerprint(public)}")


def join_token(
    role: Role,
    run_dir: RunDir = None,
    folder: Folder = None,
    hub: Annotated[
        str | None,
        typer.Option(
            "--hub", metavar="ENDPOINT", help="The hub as others reach it, where no run says it: tcp://HOST:PORT."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the node.")] = None,
    public: Annotated[
        str | None,
        typer.Option(
            "--public", metavar="KEY", help="A key made there by `parl-mq keys new`; its other half stays there."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where the file goes.")] = None,
) -> None:
    """Write a join file: all that another machine needs for one node of this role. Whoever has it can join."""
    import shlex

    from parl_mq.errors import ConfigError, UsageError
    from parl_mq.net.curve import new_key_pair
    from parl_mq.services.attachment import Attachment, invite
    from parl_mq.services.join_file import check_hub
    from parl_mq.services.keyring import Keyring

    if (hub is None) == (run_dir is None):
        raise UsageError("say which hub the file is for: --run-dir of a run that was started with --bind, or --hub")
    try:
        if hub is not None:
            check_hub(hub)
    except ConfigError as error:
        raise UsageError(f"--hub: {error}") from error
    attachment = None if run_dir is None else Attachment.read(run_dir)
    name = name or _new_name(role)
    path, pair = output or Path(f"{name}.join"), new_key_pair()
    _grant(name, role, public or pair.public)
    invite(
        Keyring.open_or_make(_folder(folder, run_dir)),
        path,
        hub=hub if hub is not None else attachment.hub if attachment is not None else "",
        run_id=None if attachment is None else attachment.run_id,
        name=name,
        role=role.value,
        pair=public or pair,
    )
    more = MORE_ARGUMENTS.get(role, "") + ("" if public is None else " --key FILE")
    _tell(
        f"copy {path} to the other machine, readable for you alone, and run there:\n"
        f"  parl-mq {role.value} --join {shlex.quote(path.name)}{more}"
    )


def _folder(folder: Path | None, run_dir: Path | None) -> Path:
    from parl_mq.errors import UsageError
    from parl_mq.observe.files import check_directory
    from parl_mq.services.attachment import KEYS

    if folder is not None:
        return folder
    if run_dir is None:
        raise UsageError("say whose keys: --run-dir of a run, or --keys DIR")
    check_directory(run_dir)
    return run_dir / KEYS


def _grant(name: str, role: RoleName, public: str) -> Grant:
    from pydantic import ValidationError

    from parl_mq.errors import UsageError
    from parl_mq.services.keyring import Grant

    try:
        return Grant(name=name, role=role.value, public=public)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from None


def _new_name(role: RoleName) -> str:
    """A name that no other key has. It ends in letters: a number there would be taken for the node's index."""
    import secrets
    import string

    return f"{role.value}.{''.join(secrets.choice(string.ascii_lowercase) for _ in range(5))}"


def _tell(text: str) -> None:
    import sys

    print(text, file=sys.stderr)
