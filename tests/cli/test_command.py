"""The command as a process: what it prints where, and its exit code."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parl_mq import __version__
from parl_mq.config.loader import load_config, preset_names
from parl_mq.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE
from tests.marks import slow

ROLES = ["hub", "replay", "learner", "actor", "evaluator"]


def _run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PARL_MQ_")}
    return subprocess.run(
        [sys.executable, "-m", "parl_mq", *arguments],
        cwd=folder,
        env={**clean, "COLUMNS": "80", "NO_COLOR": "1", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version_and_help_go_to_stdout(tmp_path: Path) -> None:
    assert _run(tmp_path, "--version").stdout == f"parl-mq {__version__}\n"
    shown = _run(tmp_path, "--help")
    assert shown.returncode == EXIT_OK
    assert all(
        f" {command} " in shown.stdout
        for command in ["train", "presets", "runs", "play", "doctor", "env", "config", "keys", "join-token", *ROLES]
    )


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["train", "cartpole-dqn", "--actors", "many"], ["actor"]])
def test_wrong_arguments_end_with_the_usage_code(tmp_path: Path, arguments: list[str]) -> None:
    ended = _run(tmp_path, *arguments)
    assert ended.returncode == EXIT_USAGE
    assert ended.stdout == ""
    assert "Error" in ended.stderr or ended.stderr.startswith("parl-mq: ")


@pytest.mark.parametrize(
    ("options", "environ", "code", "message"),
    [
        (["--set", "replay.bufer_size=1000"], {}, EXIT_USAGE, "--set replay.bufer_size=1000"),
        (["--set", "replay.buffer_size=lots"], {}, EXIT_USAGE, "replay.buffer_size"),
        (["--set", "replay.buffer_size=100"], {}, EXIT_USAGE, "replay.learning_starts = 1000"),
        (["--actors", "0"], {}, EXIT_USAGE, "--actors 0"),
        ([], {"PARL_MQ_REPLAY__BUFER_SIZE": "1000"}, EXIT_CONFIG, "PARL_MQ_REPLAY__BUFFER_SIZE"),
        ([], {"PARL_MQ_REPLAY__BUFFER_SIZE": "lots"}, EXIT_CONFIG, "replay.buffer_size"),
    ],
)
def test_wrong_setting_ends_a_run_before_anything_is_made(
    tmp_path: Path, options: list[str], environ: dict[str, str], code: int, message: str
) -> None:
    source = tmp_path / "run.toml"
    source.write_text('[environment]\nid = "CartPole-v1"\n[algorithm]\nname = "dqn"\nbatch_size = 64\n')
    ended = _run(tmp_path, "train", "run.toml", "--run-dir", "made", *options, **environ)
    assert ended.returncode == code
    assert ended.stdout == ""
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == [source]


def test_wrong_key_in_a_file_ends_a_run_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('lerning_rate = 0.1\n[algorithm]\nname = "dqn"\n')
    ended = _run(tmp_path, "train", "run.toml")
    assert ended.returncode == EXIT_CONFIG
    assert ended.stderr.startswith("parl-mq: run.toml:1: lerning_rate: ")
    assert "algorithm.learning_rate" in ended.stderr


def test_config_show_is_a_file_that_gives_the_same_run(tmp_path: Path) -> None:
    options = ["cartpole-dqn", "--set", "seed=7", "--set", "environment.kwargs={sutton_barto_reward=true}"]
    shown = _run(tmp_path, "config", "show", *options, PARL_MQ_REPLAY__ALPHA="0.5")
    assert shown.returncode == EXIT_OK
    assert "seed = 7  # --set seed=7\n" in shown.stdout
    assert "alpha = 0.5  # PARL_MQ_REPLAY__ALPHA\n" in shown.stdout
    assert "# replay.error_band has no value: default\n" in shown.stdout
    path = tmp_path / "same.toml"
    path.write_text(shown.stdout)
    environ = {"PARL_MQ_REPLAY__ALPHA": "0.5"}
    assert load_config(path, environ={}) == load_config("cartpole-dqn", overrides=options[2::2], environ=environ)


def test_config_show_as_json_has_each_origin(tmp_path: Path) -> None:
    (line,) = _run(tmp_path, "config", "show", "cartpole-dqn", "--set", "seed=7", "--json").stdout.splitlines()
    shown = json.loads(line)
    assert shown["seed"] == {"value": 7, "kind": "flag", "place": "--set seed=7"}
    assert shown["environment.id"]["kind"] == "preset"


@pytest.mark.parametrize(
    ("typed", "offered"), [("train cart", "cartpole-dqn"), ("config show c", "cartpole-dqn"), ("pla", "play")]
)
def test_shell_completes_what_is_typed(tmp_path: Path, typed: str, offered: str) -> None:
    words = f"parl-mq {typed}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_PARL_MQ_COMPLETE": "complete_bash"}
    assert offered in _run(tmp_path, **asked).stdout.split()


def test_config_schema_is_json(tmp_path: Path) -> None:
    assert json.loads(_run(tmp_path, "config", "schema").stdout)["type"] == "object"


def test_presets_lists_every_preset(tmp_path: Path) -> None:
    shown = json.loads(_run(tmp_path, "presets", "--json").stdout)
    assert tuple(row["name"] for row in shown) == preset_names()
    assert all(row["about"].endswith(".") for row in shown)  # whole sentences
    told = _run(tmp_path, "presets").stdout
    assert [name for name in preset_names() if name not in told] == []


def test_a_folder_that_was_removed_is_no_fault(tmp_path: Path) -> None:
    code = f"import os; os.chdir({str(tmp_path)!r}); os.rmdir({str(tmp_path)!r}); from parl_mq.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (EXIT_OK, f"parl-mq {__version__}\n"), ended.stderr


def test_node_of_another_section_is_refused(tmp_path: Path) -> None:
    ended = _run(tmp_path, "actor", "--hub", "ipc:///nowhere", "--set", "replay.alpha=1")
    assert ended.returncode == EXIT_USAGE
    assert "node.*" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "told"),
    [
        (["actor", "--hub", "foo"], {}, EXIT_USAGE, "--hub: endpoint 'foo' must be"),
        (["actor"], {"PARL_MQ_HUB": "foo"}, EXIT_CONFIG, "PARL_MQ_HUB: endpoint 'foo' must be"),
        (["replay", "--hub", "ipc://h", "--bind", "tcp://x"], {}, EXIT_USAGE, "--bind: endpoint 'tcp://x' must be"),
        (["replay", "--hub", "ipc://h", "--bind", "tcp://8.8.8.8:9"], {}, EXIT_USAGE, "--bind: 'tcp://8.8.8.8:9'"),
        (["hub", "--bind", "ipc://h", "--config", "cartpole-dqn", "--run-dir", "."], {}, EXIT_USAGE, "--run-dir .: "),
        (["hub", "--bind", "ipc://h", "--config", "cartpole-dqn"], {"PARL_MQ_RUN_DIR": "."}, EXIT_CONFIG, "RUN_DIR: "),
        (["actor", "--hub", "ipc://h", "--set", "node.threads=1", "--set", "node.threads=2"], {}, EXIT_USAGE, "differ"),
    ],
)
def test_a_nodes_wrong_option_is_blamed_on_where_it_was_said(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], code: int, told: str
) -> None:
    ended = _run(tmp_path, *arguments, **environ)
    assert ended.returncode == code
    assert told in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", [slow((1,)), slow((2,)), (0, 1, 2)])
def test_closed_standard_streams_lead_nowhere(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """The run's sockets and processes must not take their numbers, and nothing may fail for want of a stream."""
    (tmp_path / "r").mkdir()
    arguments = ["train", "cartpole-dqn", "--run-dir", "run", "--max-steps", "1000", "--set", "node.ring_directory=r"]
    code = f"import os, sys; [os.close(n) for n in {closed}]; os.execv(sys.executable, sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, sys.executable, "-m", "parl_mq", *arguments],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert ended.returncode == EXIT_OK
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 1000


@pytest.mark.parametrize("options", [slow([]), ["--json"]])
def test_a_reader_who_leaves_ends_no_run(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "r").mkdir()
    arguments = ["train", "cartpole-dqn", "--run-dir", "run", "--max-steps", "1000", "--set", "node.ring_directory=r"]
    with subprocess.Popen(
        [sys.executable, "-m", "parl_mq", *arguments, *options],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as train:
        assert train.stdout is not None
        train.stdout.readline()
        train.stdout.close()
        assert train.wait(60) == EXIT_OK
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 1000


def test_results_that_nobody_reads_are_no_fault(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "parl_mq", "presets"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (EXIT_OK, b"")


def test_a_result_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "parl_mq", "presets"], cwd=tmp_path, stdout=full, timeout=60, check=False
        )
    assert ended.returncode != EXIT_OK


def test_progress_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "parl_mq", "runs"], cwd=tmp_path, stderr=full, timeout=60, check=False
        )
    assert ended.returncode == EXIT_OK


def test_console_script_is_this_command() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"parl-mq": "parl_mq.cli:main"}
