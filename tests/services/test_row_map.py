"""How a learner comes to read rows from the replay node's memory, and when it does not."""

import numpy as np
import pytest

from parl_mq.errors import ConfigError
from parl_mq.replay.table import Table
from parl_mq.services.row_map import RowMap
from parl_mq.services.tables import make_ring_directory, table_settings
from tests.services.builders import OTHER_SPEC, SPEC, fragments, small_config

RUN = "run-1"


@pytest.fixture
def config(tmp_path):
    return small_config(f"node.ring_directory={tmp_path}")


def make_table(config, name="replay-0", run_id=RUN, spec=SPEC):
    directory = make_ring_directory(config.node, run_id, name)
    return Table(table_settings(config), spec, directory=directory, rng=np.random.default_rng(1))


def with_mapped(config, value):
    return config.model_copy(update={"learner": config.learner.model_copy(update={"mapped": value})})


def test_the_ring_of_the_given_id_is_found_among_those_of_the_run(config):
    tables = [make_table(config, name) for name in ("replay-0", "replay-1", "replay-2")]
    row_map = RowMap(config, SPEC, RUN)
    for table in tables:
        table.insert(fragments(4, first=int(table.ring_id, 16) % 1000))
        row_map.attach(table.ring_id)
        draw = table.draw(8)
        out = row_map.table.arrays(8)
        row_map.table.gather(draw.keys, out)
        np.testing.assert_array_equal(out["obs"], draw.columns["obs"])


def test_a_ring_that_was_made_anew_is_mapped_anew(config):
    row_map = RowMap(config, SPEC, RUN)
    first = make_table(config)
    row_map.attach(first.ring_id)
    old = row_map.table
    first.close()
    second = Table(
        table_settings(config),
        SPEC,
        directory=config.node.ring_directory / f"{RUN}-replay-0",
        rng=np.random.default_rng(1),
    )
    row_map.attach(second.ring_id)
    assert row_map.table is not old
    assert not old._segments


def test_detached_it_holds_no_memory_of_the_ring(config, tmp_path):
    table = make_table(config)
    row_map = RowMap(config, SPEC, RUN)
    row_map.attach(table.ring_id)
    table.close()
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) in maps.read()
    row_map.detach()
    row_map.detach()
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) not in maps.read()


def test_switched_off_nothing_is_mapped(config):
    table = make_table(config)
    row_map = RowMap(with_mapped(config, "off"), SPEC, RUN)
    row_map.attach(table.ring_id)
    assert row_map.table is None


@pytest.mark.parametrize(
    ("run_id", "ring_id", "spec", "reason"),
    [
        ("run-2", None, SPEC, "no ring of run run-2 lies in"),
        ("../../etc", None, SPEC, r"no ring of run \.\./\.\./etc lies in"),
        (RUN, "0" * 16, SPEC, "'ring_id'"),
        (RUN, None, OTHER_SPEC, "bytes instead of|'digest'"),
    ],
    ids=["another run", "a path", "another ring", "other columns"],
)
def test_what_cannot_be_mapped_comes_over_the_socket_or_is_an_error_that_says_why(
    config, caplog, run_id, ring_id, spec, reason
):
    caplog.set_level("INFO")
    table = make_table(config)
    row_map = RowMap(config, spec, run_id)
    row_map.attach(ring_id or table.ring_id)
    assert row_map.table is None
    assert "rows come over the socket" in caplog.text
    with pytest.raises(ConfigError, match=rf"learner\.mapped = on.*({reason})"):
        RowMap(with_mapped(config, "on"), spec, run_id).attach(ring_id or table.ring_id)


def test_a_folder_of_rings_that_is_not_there_leaves_the_socket(config, tmp_path):
    moved = config.model_copy(update={"node": config.node.model_copy(update={"ring_directory": tmp_path / "nowhere"})})
    row_map = RowMap(moved, SPEC, RUN)
    row_map.attach("0" * 16)
    assert row_map.table is None
    with pytest.raises(ConfigError, match="there is no folder of rings here"):
        RowMap(with_mapped(moved, "on"), SPEC, RUN).attach("0" * 16)
