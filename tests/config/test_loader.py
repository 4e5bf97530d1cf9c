"""Layers, origins, and what is said about a setting that is wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError, field_validator

from parl_mq.algorithms.registry import AlgorithmEntry
from parl_mq.config.loader import (
    LoadedConfig,
    dump_toml,
    load_config,
    load_node_config,
    load_with_origins,
    preset_names,
)
from parl_mq.config.models import AlgorithmConfig, EnvironmentConfig, RunConfig
from parl_mq.config.settings import OTHER_VARIABLES, Origin, Setting
from parl_mq.errors import ConfigError, MemoryRefused, PeerTimeout, UsageError

RUN = """\
[environment]
id = "CartPole-v1"

[algorithm]
name = "dqn"

[replay]
buffer_size = 20_000
"""


class PickySettings(AlgorithmConfig):
    width: int = 8

    @field_validator("width")
    @classmethod
    def _check_width(cls, width: int) -> int:
        if width % 8:
            raise ValueError("must be a multiple of 8")
        return width


PICKY = AlgorithmEntry(f"{__name__}:PickySettings", "builtins:object")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def _load(source: str | Path, *overrides: str, **environ: str) -> LoadedConfig:
    return load_with_origins(source, overrides=overrides, environ=environ)


def _fault(source: str | Path, *overrides: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(source, *overrides, **environ)
    return caught.value


# Layers


def test_each_layer_wins_over_those_before(run_file: Path) -> None:
    default, from_file = 100_000, 20_000
    assert RunConfig.model_fields["replay"].default.buffer_size == default
    assert _load(run_file).config.replay.buffer_size == from_file
    variable = {"PARL_MQ_REPLAY__BUFFER_SIZE": "30000"}
    assert _load(run_file, **variable).config.replay.buffer_size == 30_000
    assert _load(run_file, "replay.buffer_size=40_000", **variable).config.replay.buffer_size == 40_000


def test_last_of_equal_flags_wins(run_file: Path) -> None:
    assert _load(run_file, "seed=3", "seed=4").config.seed == 4


def test_each_value_has_its_origin(run_file: Path) -> None:
    loaded = _load(run_file, "replay.alpha=0.5", PARL_MQ_SEED="7")
    assert loaded.origins["replay", "buffer_size"] == Origin("file", f"{run_file}:8")
    assert loaded.origins["replay", "alpha"] == Origin("flag", "--set replay.alpha=0.5")
    assert loaded.origins["seed",] == Origin("environment", "PARL_MQ_SEED")
    assert loaded.origins["replay", "beta"].kind == "default"


def test_origins_name_every_setting(run_file: Path) -> None:
    loaded = _load(run_file, "environment.kwargs.size={width=3, height=4}")
    assert ("environment", "kwargs", "size", "width") in loaded.origins
    assert ("algorithm", "hidden_sizes") in loaded.origins
    assert ("stop", "max_steps") in loaded.origins
    assert all(origin.place for origin in loaded.origins.values())


def test_process_environment_is_the_default(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_MQ_SEED", "11")
    assert load_config(run_file).seed == 11
    assert load_config(run_file, environ={}).seed == 1


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("LunarLander-v3", "LunarLander-v3"),
        ('"LunarLander-v3"', "LunarLander-v3"),
        ("a = b", "a = b"),
        ("a\nb=1", "a\nb=1"),
    ],
)
def test_bare_words_are_strings(run_file: Path, said: str, value: str) -> None:
    assert _load(run_file, f"environment.id={said}").config.environment.id == value


def test_override_may_be_a_list_or_a_table(run_file: Path) -> None:
    config = _load(run_file, "algorithm.hidden_sizes=[32, 16]", "replay={alpha=0.5, beta=0.6}").config
    assert config.algorithm.model_dump()["hidden_sizes"] == (32, 16)
    assert (config.replay.alpha, config.replay.beta, config.replay.buffer_size) == (0.5, 0.6, 20_000)


def test_none_puts_the_default_back() -> None:
    assert _load("cartpole-dqn").config.stop.target_return == 475
    assert _load("cartpole-dqn", "stop.target_return=none").config.stop.target_return is None
    assert _load("cartpole-dqn", "replay.buffer_size=none").config.replay.buffer_size == 100_000


def test_empty_table_clears_the_layers_below(run_file: Path) -> None:
    run_file.write_text(f"{RUN}\n[environment.kwargs]\nsutton = true\n")
    assert _load(run_file).config.environment.kwargs == {"sutton": True}
    assert _load(run_file, "environment.kwargs={}").config.environment.kwargs == {}


@pytest.mark.parametrize("value", ["nan", "[1.0, inf]", "{b = -inf}", "2020-01-01", "9223372036854775808"])
def test_arguments_of_an_environment_that_no_file_or_message_holds_are_named(value: str) -> None:
    fault = _fault("cartpole-dqn", f"environment.kwargs.a={value}")
    assert isinstance(fault, UsageError)
    assert str(fault).startswith(f"--set environment.kwargs.a={value}: environment.kwargs.a: ")


@pytest.mark.parametrize("value", [None, object(), {1}, {2: 3}, float("nan")])
def test_arguments_of_an_environment_from_python_are_plain(value: object) -> None:
    with pytest.raises(ValidationError, match="is not text, a finite number"):
        EnvironmentConfig(id="CartPole-v1", kwargs={"a": value})


def test_tuples_of_an_environment_arrive_as_lists(run_file: Path) -> None:
    environment = EnvironmentConfig(id="CartPole-v1", kwargs={"size": (3, 4), "least": -(2**63)})
    config = _load(run_file).config.model_copy(update={"environment": environment})
    run_file.write_text(dump_toml(config))
    assert _load(run_file).config.environment.kwargs == {"size": [3, 4], "least": -(2**63)}


def test_run_is_named_after_its_source(run_file: Path) -> None:
    assert _load(run_file).config.preset == "run"
    assert _load("cartpole-dqn").config.preset == "cartpole-dqn"
    run_file.write_text('preset = "own"\n' + RUN)
    assert _load(run_file).config.preset == "own"


def test_option_of_its_own_is_named_by_its_fault() -> None:
    actors = Setting(("actor", "num_actors"), 0, Origin("flag", "--actors 0"))
    with pytest.raises(UsageError, match=r"^--actors 0: actor\.num_actors: "):
        load_config("cartpole-dqn", overrides=[actors], environ={})


# Presets and writing


@pytest.mark.parametrize("name", preset_names())
def test_preset_loads_and_comes_back_equal(name: str, tmp_path: Path) -> None:
    config = load_config(name, environ={})
    assert config.preset == name
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(config))
    assert load_config(path, environ={}) == config


def test_dump_holds_what_overrides_set(tmp_path: Path) -> None:
    overrides = ["environment.kwargs={a=1, b={c=[1, 2]}}", "stop.max_steps=5", "node.ring_directory=/tmp/x", "seed=9"]
    config = load_config("cartpole-dqn", overrides=overrides, environ={})
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(config))
    assert load_config(path, environ={}) == config


def test_dump_can_leave_out_the_section_node() -> None:
    config = load_config("cartpole-dqn", overrides=["node.device=cpu"], environ={})
    assert "[node]" in dump_toml(config)
    assert "[node]" not in dump_toml(config, with_node=False)


# Faults


def test_misspelt_flag_is_a_usage_error_with_the_nearest_name() -> None:
    error = _fault("cartpole-dqn", "replay.bufer_size=1000")
    assert isinstance(error, UsageError)
    assert str(error).startswith("--set replay.bufer_size=1000: replay.bufer_size: ")
    assert "did you mean replay.buffer_size?" in str(error)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("replai.buffer_size", "replay.buffer_size"),
        ("replay.gamma", "algorithm.gamma"),
        ("lerning_rate", "algorithm.learning_rate"),
        ("algorithm.lr", "algorithm.learning_rate"),
        ("replay.buffer_size.rows", "replay.buffer_size"),
        ("algorithm.hidden_size", "algorithm.hidden_sizes"),
        ("replai", "replay"),
        ("node.divice", "node.device"),
    ],
)
def test_nearest_name_is_found_across_sections(key: str, nearest: str) -> None:
    assert f"did you mean {nearest}?" in str(_fault("cartpole-dqn", f"{key}=1"))


def test_name_near_to_none_is_answered_with_those_of_its_section() -> None:
    message = str(_fault("cartpole-dqn", "evaluation.xyzzy=1"))
    assert "valid here are evaluation.every_updates, evaluation.num_episodes, evaluation.seed" in message


def test_misspelt_key_in_a_file_names_file_and_line(run_file: Path) -> None:
    run_file.write_text(RUN.replace('name = "dqn"', 'name = "dqn"\n# a comment\nlerning_rate = 0.1'))
    error = _fault(run_file)
    assert not isinstance(error, UsageError)
    assert str(error).startswith(f"{run_file}:7: algorithm.lerning_rate: ")
    assert "did you mean algorithm.learning_rate?" in str(error)


def test_own_settings_speak_for_themselves(run_file: Path) -> None:
    run_file.write_text(RUN.replace('"dqn"', f'"{__name__}:PICKY"'))
    error = _fault(run_file, "algorithm.width=7")
    assert str(error).endswith(": algorithm.width: must be a multiple of 8; got 7")


def test_overridden_misspelling_is_still_one(run_file: Path) -> None:
    run_file.write_text(f"{RUN}bufer_size = 5\n")
    assert f"{run_file}:9" in str(_fault(run_file, "replay.buffer_size=1000"))


def test_unknown_section_is_refused_even_if_empty(run_file: Path) -> None:
    run_file.write_text(f"{RUN}\n[lerner]\n")
    assert f"{run_file}:10: lerner: there is no such setting; did you mean learner?" in str(_fault(run_file))


def test_misspelt_variable_is_answered_with_a_variable() -> None:
    error = _fault("cartpole-dqn", PARL_MQ_REPLAY__BUFER_SIZE="1000")
    assert not isinstance(error, UsageError)
    assert "PARL_MQ_REPLAY__BUFER_SIZE: " in str(error)
    assert "did you mean PARL_MQ_REPLAY__BUFFER_SIZE?" in str(error)


def test_misspelt_variable_without_a_section_is_answered() -> None:
    assert "PARL_MQ_REPLAY__BUFFER_SIZE?" in str(_fault("cartpole-dqn", PARL_MQ_BUFFER_SIZE="1000"))
    assert "PARL_MQ_HUB?" in str(_fault("cartpole-dqn", PARL_MQ_HUBB="tcp://x:1"))


def test_documented_variables_and_those_of_others_are_exempt() -> None:
    documented = dict.fromkeys(OTHER_VARIABLES, "x")
    assert _load("cartpole-dqn", **documented, PARL_MQX="1", HOME="/root").config == _load("cartpole-dqn").config


@pytest.mark.parametrize("value", ["lots", '"1000"', "true", "1.5", "[1]", "{a=1}", "1979-05-27"])
def test_wrong_type_is_refused(value: str) -> None:
    error = _fault("cartpole-dqn", f"replay.buffer_size={value}")
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"--set replay.buffer_size={value}: replay.buffer_size")


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ('replay.learning_starts="1_000"', "a whole number"),
        ("replay.shards=true", "a whole number"),
        ("replay.alpha=true", "a number"),
        ("algorithm.double=1", "true or false"),
        ("algorithm.hidden_sizes=['64']", "a list of numbers"),
    ],
)
def test_no_value_is_turned_into_another_type(setting: str, wanted: str) -> None:
    assert f"must be {wanted}" in str(_fault("cartpole-dqn", setting))


def test_wrong_type_in_a_file_names_file_and_line(run_file: Path) -> None:
    run_file.write_text(RUN.replace("20_000", '"lots"'))
    error = _fault(run_file)
    assert not isinstance(error, UsageError)
    assert str(error).startswith(f"{run_file}:8: replay.buffer_size: ")


def test_value_for_a_section_is_refused() -> None:
    assert "replay: is a section" in str(_fault("cartpole-dqn", "replay=5"))


def test_all_faults_are_told_at_once() -> None:
    message = str(_fault("cartpole-dqn", "replay.alpha=2", "replay.beta=-1"))
    assert "--set replay.alpha=2: " in message
    assert "--set replay.beta=-1: " in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("replay.buffer_size=100", "replay.buffer_size"),
        ("replay.learning_starts=1_000_000", "replay.learning_starts"),
        ("algorithm.batch_size=65_536", "algorithm.batch_size"),
        ("replay.error_band=10", "replay.error_band"),
    ],
)
def test_impossible_value_is_blamed_on_the_flag(override: str, key: str) -> None:
    error = _fault("cartpole-dqn", override)
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"--set {override}: ")
    assert key in str(error)


@pytest.mark.parametrize(
    ("overrides", "environ", "is_usage"),
    [
        (["replay.fragment_length=65_536"], {}, True),
        ([], {"PARL_MQ_REPLAY__FRAGMENT_LENGTH": "65536"}, False),
        (["replay.shards=256", "replay.fragment_length=64"], {}, True),
        (["replay.buffer_size=1_000"], {"PARL_MQ_REPLAY__FRAGMENT_LENGTH": "1001"}, True),
    ],
)
def test_fragments_that_the_table_cannot_hold_are_blamed_on_all_that_say_so(
    overrides: list[str], environ: dict[str, str], is_usage: bool
) -> None:
    error = _fault("cartpole-dqn", *overrides, **environ)
    assert isinstance(error, UsageError) == is_usage
    for key in ("replay.fragment_length", "replay.shards", "replay.buffer_size"):
        (line,) = [line for line in str(error).splitlines() if line.startswith(f"  {key} = ")]
        assert line.endswith(f"({_load('cartpole-dqn').origins[tuple(key.split('.'))].place})") != any(
            said.startswith((key, f"PARL_MQ_{key.upper().replace('.', '__')}")) for said in (*overrides, *environ)
        )


def test_settings_that_do_not_fit_are_told_with_their_values_and_places(run_file: Path) -> None:
    lines = str(_fault(run_file, "algorithm.batch_size=65_536", PARL_MQ_REPLAY__LEARNING_STARTS="10")).splitlines()
    assert lines[1:] == [
        f"  replay.buffer_size = 20000 ({run_file}:8)",
        "  algorithm.batch_size = 65536 (--set algorithm.batch_size=65_536)",
    ]


def test_an_error_about_settings_is_a_usage_error_if_a_flag_said_one_of_them(run_file: Path) -> None:
    loaded = _load(run_file, "replay.alpha=0.5")
    blamed = loaded.blamed(MemoryRefused("too much").about("replay.buffer_size", "replay.alpha", "replay.beta"))
    assert isinstance(blamed, UsageError)
    assert str(blamed).splitlines() == [
        "--set replay.alpha=0.5: too much",
        f"  replay.buffer_size = 20000 ({run_file}:8)",
        "  replay.alpha = 0.5 (--set replay.alpha=0.5)",
        "  replay.beta = 0.4 (default)",
    ]


def test_an_error_about_a_file_is_a_config_error(run_file: Path) -> None:
    blamed = _load(run_file).blamed(MemoryRefused("too much").about("replay.buffer_size"))
    assert not isinstance(blamed, UsageError)
    assert str(blamed) == f"{run_file}:8: too much"


def test_an_error_about_no_setting_stays_as_it_is(run_file: Path) -> None:
    error = PeerTimeout("nobody")
    assert _load(run_file).blamed(error) is error


def test_an_error_about_a_section_is_blamed_on_what_was_said_in_it(run_file: Path) -> None:
    loaded = _load(run_file, "environment.kwargs={sutton_barto_reward=true}")
    blamed = loaded.blamed(ConfigError("odd").about("environment.kwargs"))
    assert str(blamed) == "--set environment.kwargs={sutton_barto_reward=true}: odd"


def test_impossible_value_in_a_file_names_file_and_line(run_file: Path) -> None:
    run_file.write_text(RUN.replace("20_000", "100"))
    error = _fault(run_file)
    assert not isinstance(error, UsageError)
    assert str(error).startswith(f"{run_file}:8: replay.buffer_size: ")


@pytest.mark.parametrize("band", [8191, 8192])
def test_error_band_must_let_a_batch_and_an_insert_through(band: int) -> None:
    # max(256 * 3 * 1, 64 * 16 * 8 * 1) with the figures of the preset
    settings = ["algorithm.batch_size=256", "learner.prefetch=3", "actor.num_envs=64", "replay.fragment_length=16"]
    overrides = [*settings, "replay.samples_per_insert=8.0", "actor.num_actors=1", f"replay.error_band={band}"]
    if band < 8192:
        assert "at least 8192" in str(_fault("cartpole-dqn", *overrides))
    else:
        assert _load("cartpole-dqn", *overrides).config.error_band == band


def test_missing_settings_are_named(run_file: Path) -> None:
    run_file.write_text('[algorithm]\nname = "dqn"\n[environment]\n')
    assert "environment.id: is missing" in str(_fault(run_file))
    run_file.write_text("")
    assert "algorithm.name: is missing" in str(_fault(run_file))


def test_unknown_algorithm_is_answered_with_the_nearest(run_file: Path) -> None:
    error = _fault(run_file, "algorithm.name=dqnn")
    assert isinstance(error, UsageError)
    assert "--set algorithm.name=dqnn" in str(error)
    assert "'dqn'" in str(error)


@pytest.mark.parametrize("override", ["seed", "=3", ".=3", "replay.=3", "replay..alpha=3"])
def test_override_of_another_form_is_refused(override: str) -> None:
    assert "key.path=value" in str(_fault("cartpole-dqn", override))


def test_file_that_is_no_toml_names_the_line(run_file: Path) -> None:
    run_file.write_text(f"{RUN}alpha = \n")
    error = _fault(run_file)
    assert not isinstance(error, UsageError)
    assert str(run_file) in str(error)
    assert "line 9" in str(error)


def test_unknown_preset_is_answered_with_the_nearest() -> None:
    error = _fault("cartpole-dqm")
    assert isinstance(error, UsageError)
    assert "cartpole-dqm: there is no such preset or file; did you mean cartpole-dqn?" in str(error)


@pytest.mark.parametrize("source", ["missing.toml", "."])
def test_file_that_cannot_be_read_is_a_usage_error(source: str) -> None:
    assert isinstance(_fault(source), UsageError)


# Settings of one node


def test_node_takes_its_own_section_from_variables_and_flags() -> None:
    environ = {"PARL_MQ_NODE__DEVICE": "cpu", "PARL_MQ_NODE__THREADS": "3", "PARL_MQ_REPLAY__ALPHA": "0.5"}
    node = load_node_config(overrides=["node.threads=2"], environ=environ)
    assert (node.device, node.threads) == ("cpu", 2)


def test_node_refuses_what_the_hub_decides() -> None:
    with pytest.raises(UsageError, match=r"a node sets node\.\* alone; it gets replay\.alpha from the hub"):
        load_node_config(overrides=["replay.alpha=0.5"], environ={})


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        (["node.divice=cpu"], {}, "did you mean node.device"),
        (["node.device=gpu"], {}, "--set node.device=gpu: node.device"),
        ([], {"PARL_MQ_NODE__DIVICE": "cpu"}, "did you mean PARL_MQ_NODE__DEVICE"),
        ([], {"PARL_MQ_NOD__DEVICE": "cpu"}, "did you mean PARL_MQ_NODE__DEVICE"),
    ],
)
def test_node_tells_its_faults(overrides: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_node_config(overrides=overrides, environ=environ)


@pytest.mark.parametrize("said", ["stop.at_target=none", "node.tensorboard=none", "replay.alpha=none"])
def test_none_puts_back_the_default_of_every_kind_of_setting(said: str) -> None:
    key = said.partition("=")[0]
    loaded = _load("cartpole-dqn", f"{key}=1.0" if key == "replay.alpha" else f"{key}=false", said)
    section, name = key.split(".")
    model = type(getattr(loaded.config, section))
    assert loaded.config.value_of(key) == model.model_fields[name].default


@pytest.mark.parametrize(
    "key", ["stop.max_steps", "stop.max_updates", "evaluation.seed", "evaluation.every_updates", "node.max_restarts"]
)
def test_whole_numbers_have_at_most_64_bits(key: str) -> None:
    assert _load("cartpole-dqn", f"{key}={2**63 - 1}").config.value_of(key) == 2**63 - 1
    assert f"{key}: a whole number must be at most {2**63 - 1}; got {2**63}" in str(
        _fault("cartpole-dqn", f"{key}={2**63}")
    )


def test_whole_numbers_in_a_list_have_at_most_64_bits_too() -> None:
    assert "algorithm.hidden_sizes" in str(_fault("cartpole-dqn", f"algorithm.hidden_sizes=[{2**63}]"))
