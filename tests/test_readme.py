"""What the README tells people to type exists."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from parl_mq import errors
from parl_mq.cli.app import app
from parl_mq.config.loader import load_config

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def _commands() -> list[str]:
    lines = [line for block in _blocks("bash") for line in block.splitlines()]
    return [part.partition("parl-mq ")[2] for line in lines for part in line.split(" && ") if "parl-mq " in part]


@pytest.mark.parametrize("line", _commands())
def test_command_and_its_options_exist(line: str) -> None:
    command, words = get_command(app), shlex.split(line, comments=True)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    does_something = not hasattr(command, "commands") or command.invoke_without_command
    assert does_something, "the line stops at a group of commands"
    assert {word for word in words if word.startswith("--")} <= options


def test_settings_shown_are_valid(tmp_path: Path) -> None:
    (text,) = _blocks("toml")
    path = tmp_path / "shown.toml"
    path.write_text(text)
    assert load_config(path, environ={}).environment.id == tomllib.loads(text)["environment"]["id"]


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    section = README.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


@pytest.mark.parametrize("marker", ["train", "test"])
def test_marked_commands_are_single_lines(marker: str) -> None:
    (command,) = re.findall(rf"^<!-- {marker} -->\n```bash\n(.*)\n```$", README, re.MULTILINE)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ")


def test_the_guide_installs_as_the_readme_does() -> None:
    (command,) = re.findall(r"^<!-- train -->\n```bash\n(.*)\n```$", README, re.MULTILINE)
    guide = (Path(__file__).parents[1] / "docs" / "getting-started.md").read_text(encoding="utf-8")
    (installs,) = re.findall(r"^<!-- install -->\n```bash\n(.*)\n```$", guide, re.MULTILINE)
    assert installs == command.partition(" && .venv/bin/parl-mq ")[0] + " && . .venv/bin/activate"
