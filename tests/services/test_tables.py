"""Where rings lie, and what becomes of them."""

import os

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.services import tables
from parl_mq.services.tables import check_fits, limiter, make_ring_directory, remove_rings, ring_root, table_settings
from tests.services.builders import SPEC, small_config


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The private folder, in a shared memory that is this test's own; it is not made yet."""
    monkeypatch.setattr(tables, "SHARED_MEMORY", tmp_path)
    return tmp_path / f"parl-mq-{os.getuid()}"


def of_four_nodes(config):
    """The same with four replay nodes, which the check of settings does not let through yet."""
    return config.model_copy(update={"replay": config.replay.model_copy(update={"nodes": 4})})


def of_nodes(number, config):
    """The same run with so many replay nodes."""
    return config.model_copy(update={"replay": config.replay.model_copy(update={"nodes": number})})


def test_the_table_has_the_runs_settings_and_each_node_its_share():
    settings = table_settings(of_four_nodes(small_config("replay.kind=uniform", "environment.frame_stack=2")))
    assert (settings.capacity, settings.kind, settings.frame_stack, settings.fragment_length) == (25, "uniform", 2, 4)


def test_the_limiter_has_the_runs_settings():
    made = limiter(small_config("replay.samples_per_insert=3", "replay.error_band=50"))
    assert (made.samples_per_insert, made.error_band, made.min_live) == (3.0, 50.0, 10)


def test_asking_for_the_place_makes_nothing(private):
    assert ring_root(NodeConfig()) == private
    assert not private.exists()


def test_rings_lie_in_a_folder_of_this_user_alone(private):
    directory = make_ring_directory(NodeConfig(), "run", "replay-0")
    assert directory == private / "run-replay-0"
    assert [path.stat().st_mode & 0o777 for path in (private, directory)] == [0o700, 0o700]


def test_the_last_ring_takes_the_private_folder_with_it(private):
    node = NodeConfig()
    for run in ("one", "two"):
        make_ring_directory(node, run, "replay-0")
    remove_rings(node, "*")  # no run is called that
    remove_rings(node, "one")
    assert [path.name for path in private.iterdir()] == ["two-replay-0"]
    remove_rings(node, "two")
    assert not private.exists()


def test_one_replay_nodes_ring_goes_and_the_others_stay(private):
    for name in ("replay-0", "replay-1"):
        (make_ring_directory(NodeConfig(), "run", name) / "main.000.ring").write_bytes(b"rows")
    remove_rings(NodeConfig(), "run", "replay-0")
    assert [path.name for path in private.iterdir()] == ["run-replay-1"]


def test_removing_rings_that_are_not_there_does_nothing(private):
    remove_rings(NodeConfig(), "run")
    assert not private.exists()


def test_a_folder_that_goes_in_the_wrong_moment_is_made_again(private, monkeypatch):
    make = tables._private_root
    asked = []

    def root_that_goes_once():
        asked.append(True)
        if len(asked) == 2:  # after it was made, before the ring's own folder is
            private.rmdir()
        return make()

    monkeypatch.setattr(tables, "_private_root", root_that_goes_once)
    assert make_ring_directory(NodeConfig(), "run", "replay-0").is_dir()


@pytest.mark.parametrize("fault", ["others may enter", "a link", "a file"])
def test_a_private_folder_that_is_not_is_refused(private, tmp_path, fault):
    if fault == "others may enter":
        private.mkdir()
        private.chmod(0o755)
    elif fault == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        private.symlink_to(tmp_path / "elsewhere")
    else:
        private.write_text("")
        private.chmod(0o600)
    with pytest.raises(ConfigError, match=r"folder of this user alone|node\.ring_directory"):
        make_ring_directory(NodeConfig(), "run", "replay-0")


def test_a_ring_directory_of_ones_own_is_used_and_left(private, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    node = NodeConfig(ring_directory=own)
    assert make_ring_directory(node, "run", "replay-0").parent == own
    remove_rings(node, "run")
    assert (list(own.iterdir()), private.exists()) == ([], False)


def test_a_ring_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"node\.ring_directory: .*missing is no folder"):
        ring_root(NodeConfig(ring_directory=tmp_path / "missing"))


def test_all_replay_nodes_of_a_run_must_fit_together(private, monkeypatch):
    needs = []
    monkeypatch.setattr(tables, "check_memory", lambda need, directory, reused: needs.append((need, directory, reused)))
    check_fits(of_four_nodes(small_config("replay.buffer_size=400")), SPEC)
    check_fits(small_config(), SPEC, reused=7)
    (four, place, _), (one, _, reused) = needs
    assert reused == 7
    assert (four.num_rows, four.rows_bytes, four.tree_bytes) == (
        4 * one.num_rows,
        4 * one.rows_bytes,
        4 * one.tree_bytes,
    )
    assert place == private


def test_a_table_larger_than_any_names_its_setting(private):
    with pytest.raises(ConfigError, match=r"replay\.buffer_size = 1000000000000: .* raise replay\.shards"):
        check_fits(small_config("replay.buffer_size=1000000000000"), SPEC)
    assert not private.exists()
