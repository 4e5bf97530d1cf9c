"""`parl-mq wire`: what nodes say to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dump(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A capture; --set node.capture_directory=DIR makes one a process.")
    ],
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only messages of this kind.")] = None,
) -> None:
    """Print captured messages, one a line: time, direction, socket, peer, kind, fields, arrays and their size."""
    from datetime import datetime

    from parl_mq.errors import WireError
    from parl_mq.net.capture import read_capture
    from parl_mq.wire.dump import in_words

    for message in read_capture(file):
        try:
            told = in_words(message.header)
        except WireError as error:
            told = f"unreadable: {error}"
        if kind is not None and told.split(" ", 1)[0] != kind:
            continue
        when = datetime.fromtimestamp(message.time_s).strftime("%H:%M:%S.%f")[:-3]
        peer = f" {message.peer[-8:]}" if message.peer else ""
        slab = f" ({message.slab_bytes:,} B)" if message.slab_bytes else ""
        where = message.endpoint.rpartition("/")[2]
        print(f"{when} {'->' if message.sent else '<-'} {where}{peer} {told}{slab}")
