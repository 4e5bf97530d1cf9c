"""Optional packages: how whoever lacks one installs it here, which depends on where parl_mq itself came from."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlparse


def install_command(extra: str) -> str:
    """The command that adds an extra of parl_mq to this environment, from whatever folder it is run."""
    try:
        origin = json.loads(distribution("parl-mq").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    place = urlparse(origin.get("url", ""))
    if place.scheme != "file":
        return f"pip install 'parl-mq[{extra}]'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{unquote(place.path)}[{extra}]')}"
