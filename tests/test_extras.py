"""How a package that lacks is installed here."""

import json

import pytest

from parl_mq import extras


class FakeDistribution:
    def __init__(self, origin: dict[str, object] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'parl-mq[video]'"),
        ({"url": "https://host/parl_mq.whl"}, "pip install 'parl-mq[video]'"),
        ({"url": "file:///my%20code", "dir_info": {"editable": True}}, "pip install -e '/my code[video]'"),
        ({"url": "file:///code", "dir_info": {}}, "pip install '/code[video]'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(
    origin: dict[str, object] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _: FakeDistribution(origin))
    assert extras.install_command("video") == command
