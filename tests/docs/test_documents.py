"""What README and docs/ tell people to type works, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from parl_mq.config.loader import load_config
from parl_mq.config.schema import run_schema

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples"
DOCUMENTS: Final = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

ELSEWHERE: Final = ("train", "test", "install", "user services")
"""Markers of blocks that install, which `.ci/run` does, or need a service manager (tests/process/test_services.py)."""

LIMITED: Final = {"PARL_MQ_STOP__MAX_SECONDS": "60"}
SHORT: Final = {**LIMITED, "PARL_MQ_STOP__MAX_STEPS": "1000"}
"""Every training that one command starts ends early; whether it learns is another test's matter."""

LIMIT_S: Final = 100


@dataclass(frozen=True)
class Block:
    """A fenced block: the comment in front of it, its language, its text."""

    marker: str
    language: str
    text: str


def _blocks(document: Path) -> list[Block]:
    pattern = r"^(?:<!-- ([^\n]*) -->\n)?```(\w+)\n(.*?)^```$"
    return [Block(*found) for found in re.findall(pattern, document.read_text("utf-8"), re.DOTALL | re.MULTILINE)]


def _commands(document: Path) -> list[list[str]]:
    """The lines of each block in which commands stand."""
    blocks = [block for block in _blocks(document) if block.language == "bash" and block.marker not in ELSEWHERE]
    return [block.text.splitlines() for block in blocks]


def _environment(limits: Mapping[str, str]) -> dict[str, str]:
    """That of a shell in which the environment that runs the tests is active."""
    return {**os.environ, **limits, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _start(command: str | Sequence[str], folder: Path, limits: Mapping[str, str] = SHORT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        shlex.split(command, comments=True) if isinstance(command, str) else command,
        cwd=folder,
        env=_environment(limits),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _expect_success(process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{process.args}\n{output}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds the examples."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return tmp_path


@pytest.mark.timeout(6 * LIMIT_S)
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if _commands(path)], ids=lambda path: path.stem)
def test_commands_run(document: Path, folder: Path) -> None:
    markers = [
        block.marker for block in _blocks(document) if block.language == "bash" and block.marker not in ELSEWHERE
    ]
    for marker, lines in zip(markers, _commands(document), strict=True):
        if marker == "at once":
            for process in [_start(line, folder, LIMITED) for line in lines]:  # to its target: all nodes come in time
                _expect_success(process)
        else:
            for line in lines:
                _expect_success(_start(line, folder))


@pytest.mark.parametrize(
    ("document", "program"),
    [(path, block.text) for path in DOCUMENTS for block in _blocks(path) if block.text.startswith(("import", "from"))],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_programs_run(document: Path, program: str, folder: Path) -> None:
    (folder / "program.py").write_text(program)
    _expect_success(_start([sys.executable, "-W", "error", "program.py"], folder))


@pytest.mark.parametrize(
    ("document", "text"),
    [(path, block.text) for path in DOCUMENTS for block in _blocks(path) if block.language == "toml"],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_settings_are_valid(document: Path, text: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.toml"
    path.write_text(text)
    load_config(path, environ={})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    for target in targets:
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, target


def test_modules_named_in_the_concepts_exist() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    names = set(re.findall(r"`([\w/]+\.pyx?)`", text))
    there = {str(path.relative_to(ROOT)) for folder in ("parl_mq", "ext") for path in (ROOT / folder).rglob("*.py*")}
    assert names
    assert {name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in there)} == set()


def test_reference_of_settings_is_that_of_the_schema() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import write_configuration
    finally:
        sys.path.pop(0)
    expected = write_configuration.markdown(run_schema())
    found = write_configuration.PATH.read_text("utf-8")
    assert found == expected, "run: python docs/write_configuration.py"


def test_reference_of_metrics_is_that_of_the_registry() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import write_metrics
    finally:
        sys.path.pop(0)
    assert write_metrics.PATH.read_text("utf-8") == write_metrics.markdown(), "run: python docs/write_metrics.py"
