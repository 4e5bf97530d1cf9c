"""The units that are rendered: what stands in them, and what systemd says of them."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from parl_mq.config.loader import load_config, load_node_config
from parl_mq.config.models import NodeConfig
from parl_mq.errors import EXIT_DISK
from parl_mq.services.units import (
    ELSEWHERE,
    MARK,
    AttachedActors,
    Installation,
    LocalRun,
    Places,
    all_names,
    quoted,
    render,
)
from tests.systemd_tools import need

PYTHON = Path("/bin/sh")  # systemd looks whether it is a program
MOST_EXPOSED = {"learner": 25}
"""Ten times the score that a unit may have; 20 where nothing is said."""


def local(*settings, flavour="system", name="cartpole", python=PYTHON):
    config = load_config("cartpole-dqn", overrides=list(settings), environ={})
    return Installation(LocalRun(name, config), flavour, python, Places.of(flavour, {"HOME": "/home/me"}))


def attached(flavour="system", num_actors=3):
    join = AttachedActors(Path("/x/lab.json"), "worker", num_actors)
    return Installation(join, flavour, PYTHON, Places.of(flavour, {"HOME": "/home/me"}))


def line_of(text, key):
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}="))


def environment_of(unit):
    """The settings that a unit's processes find among their variables, as systemd makes them of its lines."""
    words = [word for line in unit.splitlines() if line.startswith("Environment=") for word in shlex.split(line[12:])]
    assert not any(re.search("%(?!%)", word.replace("%%", "")) for word in words), "a specifier"
    variables = dict(word.replace("%%", "%").split("=", 1) for word in words)
    return {name: value for name, value in variables.items() if name.startswith("PARL_MQ_")}


def test_target_wants_every_node():
    target = render(local("actor.num_actors=2"))["parl-mq.target"]
    assert line_of(target, "Wants").split() == [
        "parl-mq-hub.service",
        "parl-mq-replay@0.service",
        "parl-mq-learner@0.service",
        "parl-mq-actor@0.service",
        "parl-mq-actor@1.service",
        "parl-mq-evaluator.service",
    ]


def test_hub_goes_on_with_its_run_after_each_start():
    hub = render(local())["parl-mq-hub.service"]
    assert line_of(hub, "ExecStart") == (
        "/bin/sh -P -m parl_mq hub --name hub --bind ipc://%t/parl-mq/hub --config /etc/parl-mq/cartpole.toml "
        "--run-dir /var/lib/parl-mq/cartpole --resume"
    )
    assert line_of(hub, "ConditionPathExists") == "!/var/lib/parl-mq/cartpole/finished"


def test_nodes_stop_in_order_before_the_hub():
    units = render(local())
    assert line_of(units["parl-mq-actor@.service"], "After").split() == [
        "parl-mq-hub.service",
        "parl-mq-replay@0.service",
        "parl-mq-learner@0.service",
    ]
    assert line_of(units["parl-mq-learner@.service"], "After").split()[0] == "parl-mq-hub.service"


def test_a_learner_takes_the_gpu_of_its_index_and_waits_for_a_driver():
    learner = render(local("node.device=cuda"))["parl-mq-learner@.service"]
    assert "--set node.device=cuda:%i" in line_of(learner, "ExecStart")
    assert line_of(learner, "RestartPreventExitStatus") == "2 77"
    on_cpu = render(local("node.device=cpu"))["parl-mq-learner@.service"]
    assert line_of(on_cpu, "RestartPreventExitStatus") == "2 77 78"


def test_settings_of_the_machine_reach_every_node():
    units = render(local("node.ring_directory=/data/my rings", "node.log_level=debug"))
    for name in units.keys() - {"parl-mq.target"}:
        assert environment_of(units[name]) == {
            "PARL_MQ_NODE__RING_DIRECTORY": '"/data/my rings"',
            "PARL_MQ_NODE__LOG_LEVEL": '"debug"',
        }
    assert line_of(units["parl-mq-replay@.service"], "ReadWritePaths") == '"-/data/my rings"'


NODE = {
    "threads": 3,
    "ring_directory": Path("/my rings/50% $x\\t"),
    "loop": "asyncio",
    "log_level": "debug",
    "max_restarts": 0,
    "busy_limit_s": 2.5e-7,
    "keys_directory": Path("/keys/1.0"),
    "capture_directory": Path('/captures/"a"'),
    "metrics_port": 0,
    "metrics_host": "::",
    "tensorboard": False,
    "wandb_project": "mine",
}
"""No default is among them."""


@pytest.mark.parametrize("project", ["123", "none", "true", "[1]", "%i ${x} 'a' \"b\" \\ = # \t\n\x7f é", ""])
def test_every_setting_of_the_machine_comes_back_from_the_variables(project):
    assert NODE.keys() == NodeConfig.model_fields.keys() - ELSEWHERE
    node = NodeConfig(**{**NODE, "wandb_project": project})
    run = local().what
    installation = replace(local(), what=replace(run, config=run.config.model_copy(update={"node": node})))
    for name, unit in render(installation).items():
        if name != "parl-mq.target":
            assert load_node_config(environ=environment_of(unit)) == node


@pytest.mark.parametrize(
    ("setting", "writers"),
    [
        ("ring_directory", {"replay@"}),
        ("keys_directory", {"hub"}),
        ("capture_directory", {"hub", "replay@", "learner@", "actor@", "evaluator"}),
    ],
)
def test_folders_of_the_settings_can_be_written_by_those_who_write_there(setting, writers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    units = render(local(f"node.{setting}=50% $x"))
    line = f'ReadWritePaths="-{tmp_path}/50%% $x"\n'
    assert {name for name, text in units.items() if line in text} == {f"parl-mq-{role}.service" for role in writers}
    found = load_node_config(environ=environment_of(units["parl-mq-hub.service"]))
    assert getattr(found, setting) == tmp_path / "50% $x"


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        (["node.metrics_port=0"], False),
        (["node.metrics_host=0.0.0.0"], False),
        (["node.metrics_port=0", "node.metrics_host=0.0.0.0"], True),
        (["node.wandb_project=mine"], True),
    ],
)
def test_the_hub_alone_speaks_to_other_machines_where_a_setting_asks_for_it(settings, is_open):
    units = render(local(*settings))
    assert {name for name, text in units.items() if "IPAddressDeny=\n" in text} == (
        {"parl-mq-hub.service"} if is_open else set()
    )
    assert all("IPAddressDeny=any\n" in text for name, text in units.items() if name.endswith(".service"))
    assert ("Wants=network-online.target\nAfter=network-online.target\n" in units["parl-mq-hub.service"]) is is_open


def limit_of(unit):
    """Within how many seconds how many starts are the last."""
    return int(line_of(unit, "StartLimitIntervalSec")), int(line_of(unit, "StartLimitBurst"))


def test_nodes_beside_a_hub_that_is_down_for_good_are_given_up_and_attached_ones_are_not():
    waits_s = 30 + 10  # for the hub, and to start again
    for installation, is_given_up in ((local(), True), (local("node.device=cuda"), True), (attached(), False)):
        for name in render(installation).keys() - {"parl-mq.target"}:
            interval_s, num_starts = limit_of(render(installation)[name])
            assert (interval_s / waits_s > num_starts) is is_given_up


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_learner_waits_minutes_for_its_driver_and_comes_back_within_seconds(device):
    learner = render(local(f"node.device={device}"))["parl-mq-learner@.service"]
    restart_s, (interval_s, num_starts) = float(line_of(learner, "RestartSec")), limit_of(learner)
    assert restart_s <= 5
    assert 180 <= num_starts * restart_s < interval_s


@pytest.mark.parametrize("name", sorted(set(all_names()) - {"parl-mq.target"}))
def test_a_full_disk_is_no_reason_not_to_start_again(name):
    assert str(EXIT_DISK) not in line_of(render(local())[name], "RestartPreventExitStatus").split()


def test_units_of_a_user_have_no_line_that_needs_root():
    for text in render(local(flavour="user")).values():
        for key in ("User", "ProtectSystem", "PrivateDevices", "CapabilityBoundingSet", "StateDirectory"):
            assert f"\n{key}=" not in text
        assert "system|" not in text
        assert "user|" not in text


def test_units_of_a_user_lie_in_his_home():
    hub = render(local(flavour="user"))["parl-mq-hub.service"]
    assert "--config /home/me/.config/parl-mq/cartpole.toml" in line_of(hub, "ExecStart")
    assert "--run-dir /home/me/.local/state/parl-mq/cartpole" in line_of(hub, "ExecStart")


def test_attached_actors_get_the_join_file_as_a_credential():
    units = render(attached())
    assert units.keys() == {"parl-mq.target", "parl-mq-actor@.service"}
    actor = units["parl-mq-actor@.service"]
    assert line_of(actor, "LoadCredential") == "join:/etc/parl-mq/lab.json"
    assert line_of(actor, "ExecStart").endswith("actor --name worker.%i --join %d/join")
    assert line_of(actor, "DynamicUser") == "yes"
    assert line_of(units["parl-mq.target"], "Wants").count("parl-mq-actor@") == 3
    assert "IPAddressDeny" not in actor
    assert "\nWants=network-online.target\nAfter=network-online.target\n" in actor


def test_attached_actors_of_a_user_read_the_join_file_themselves():
    actor = render(attached("user"))["parl-mq-actor@.service"]
    assert line_of(actor, "ExecStart").endswith("--join /home/me/.config/parl-mq/lab.json")
    assert "LoadCredential" not in actor
    assert "network-online.target" not in actor


def test_every_unit_says_who_wrote_it():
    assert all(text.startswith(MARK) for text in render(local()).values())
    assert render(local()).keys() == set(all_names())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("/opt/x", "/opt/x"),
        ("/my dir/x", '"/my dir/x"'),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        ('a"b\\', '"a\\"b\\\\"'),
    ],
)
def test_words_come_through_as_they_are(text, word):
    assert quoted(text) == word


OPEN = local("node.wandb_project=mine", "node.keys_directory=/keys", "node.capture_directory=/captures")


def verify(paths):
    """What systemd says of unit files: the exit code and all that is printed."""
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def written(installation, folder):
    """The units as files; an instance of each template."""
    paths = []
    for name, text in render(installation).items():
        path = folder / name.replace("@.", "@0.")
        path.write_text(text)
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    "installation",
    [local(), local("node.device=cuda", "node.ring_directory=/my rings"), local(name="a.b-c"), OPEN, attached()],
    ids=["run", "gpu", "named", "open", "attached"],
)
def test_systemd_has_nothing_to_say_against_the_units(installation, tmp_path):
    need("systemd-analyze")
    assert verify(written(installation, tmp_path)) == (0, "")


@pytest.mark.parametrize("name", ["a$b", "$a 50% b"])
def test_systemd_finds_an_interpreter_whose_path_is_odd(name, tmp_path):
    need("systemd-analyze")
    python = tmp_path / name / "python"
    python.parent.mkdir()
    shutil.copy(PYTHON, python)
    assert verify(written(local(python=python), tmp_path)) == (0, "")


def test_systemd_has_nothing_to_say_against_the_units_of_a_user(tmp_path):
    need("systemd-analyze")
    paths = written(local(flavour="user"), tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", *paths],
        capture_output=True,
        text=True,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("installation", [local("node.device=cuda"), OPEN, attached()], ids=["run", "open", "attached"])
def test_services_are_shut_off(installation, tmp_path):
    need("systemd-analyze")
    for path in written(installation, tmp_path):
        if path.suffix == ".service":
            role = path.name.removeprefix("parl-mq-").partition("@")[0].partition(".")[0]
            threshold = MOST_EXPOSED.get(role, 20)
            done = subprocess.run(
                ["systemd-analyze", "security", "--offline=true", f"--threshold={threshold}", "--no-pager", path],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout
