"""`parl-mq bench` as a process: what it prints where, and its exit code."""

import json
import os
import subprocess
import sys

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "parl_mq", "bench", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_tables_go_to_stderr_and_one_line_of_json_to_stdout(tmp_path):
    ended = run(tmp_path, "tree", "--quick", "--json", "--plot", "shown.svg")
    assert ended.returncode == EXIT_OK
    (line,) = ended.stdout.splitlines()
    report = json.loads(line)
    assert report["bench"] == "tree"
    assert {"processor", "cores", "numpy"} <= report["machine"].keys()
    assert report["results"][0].keys() == {"measure", "system", "unit", "params", "median", "min", "max"}
    assert "draw, ns/item" in ended.stderr
    assert max(map(len, ended.stderr.splitlines())) <= 80
    assert (tmp_path / "shown.svg").stat().st_size > 0


def test_without_json_stdout_stays_empty(tmp_path):
    ended = run(tmp_path, "tree", "--study", "--quick")
    assert ended.returncode == EXIT_OK
    assert ended.stdout == ""
    assert "arity" in ended.stderr


@pytest.mark.parametrize("command", ["tree", "replay"])
def test_unknown_peers_end_with_the_usage_code_before_anything_is_measured(tmp_path, command):
    ended = run(tmp_path, command, "--against", "nosuch", "--json")
    assert ended.returncode == EXIT_USAGE
    assert ended.stdout == ""
    assert ended.stderr.startswith("parl-mq: --against nosuch: unknown; there are ")


def test_a_peer_that_does_not_load_is_named_with_what_to_install(tmp_path):
    (tmp_path / "cpprb.py").write_text("raise ImportError('nothing here')")  # found in the current folder
    ended = run(tmp_path, "replay", "--against", "cpprb")
    assert ended.returncode == EXIT_CONFIG
    assert "--against cpprb: cpprb does not load here" in ended.stderr
    assert "pip install cpprb" in ended.stderr


@pytest.mark.parametrize("arguments", [["--study", "--against", "cpprb"], ["--plot", "picture.doc"]])
def test_options_that_do_not_fit_end_with_the_usage_code(tmp_path, arguments):
    ended = run(tmp_path, "tree", "--quick", *arguments)
    assert ended.returncode == EXIT_USAGE
    assert ended.stderr.startswith("parl-mq: ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scaling_is_measured_in_whole_runs_and_drawn(tmp_path):
    command = [sys.executable, "-m", "parl_mq", "bench", "scale", "--quick", "--json", "--plot", "scale.svg"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=590)
    assert ended.returncode == EXIT_OK, ended.stderr
    report = json.loads(ended.stdout)
    assert report["bench"] == "scale"
    measures = {result["measure"] for result in report["results"]}
    assert {"environment steps", "inserts", "samples", "updates", "scaling", "processor time"} <= measures
    assert "one replay node saturates at" in measures
    assert (tmp_path / "scale.svg").stat().st_size > 0
