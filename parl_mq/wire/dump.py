"""A message's header in words."""

from __future__ import annotations

from typing import Any, Final

from parl_mq.errors import WireError
from parl_mq.wire.codec import Frame, unpacked

MAX_ITEMS: Final = 6
MAX_CHARACTERS: Final = 60


def in_words(header: Frame) -> str:
    """Kind, fields and arrays of a message, on one line; long values are cut. Unknown kinds are told as well.

    Raises:
        WireError: it is no header.
    """
    fields = unpacked(header)
    arrays = fields.pop("arrays", [])
    if not isinstance(arrays, list):
        raise WireError(f"its arrays are {arrays!r:.100}")
    kind = str(fields.pop("kind", "without a kind"))
    try:
        told = [f"{name}={_short(value)}" for name, value in fields.items() if value is not None]
        return " ".join([kind, *told, *(_array(row) for row in arrays if isinstance(row, list))])
    except RecursionError as error:
        raise WireError("the header is nested too deep to be told") from error


def _array(row: list[Any]) -> str:
    name, dtype, shape = (*row, "", "", "")[:3]
    sizes = ",".join(map(str, shape)) if isinstance(shape, list) else "?"
    return f"{name}:{dtype}[{sizes}]"


def _short(value: Any) -> str:
    match value:
        case str():
            return repr(value if len(value) <= MAX_CHARACTERS else f"{value[:MAX_CHARACTERS]}...")
        case float():
            return f"{value:.6g}"
        case list():
            shown = [_short(item) for item in value[:MAX_ITEMS]]
            return f"[{', '.join([*shown, *_more(len(value))])}]"
        case dict():
            shown = [f"{key}: {_short(value[key])}" for key in list(value)[:MAX_ITEMS]]
            return f"{{{', '.join([*shown, *_more(len(value))])}}}"
        case _:
            return repr(value)


def _more(number: int) -> list[str]:
    return [f"... {number - MAX_ITEMS} more"] if number > MAX_ITEMS else []
