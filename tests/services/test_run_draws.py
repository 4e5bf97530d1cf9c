"""Which node gives how many rows, and when: pure, with counts and time as the test says."""

import numpy as np
import pytest

from parl_mq.replay.limiter import Counts, RatioLimiter
from parl_mq.services.run_draws import SILENT_S, NodeView, RunDraws, chances_of

B = 8


def arrays(num_rows):
    return {"keys": np.zeros(num_rows, np.uint64), "probabilities": np.full(num_rows, 0.1)}


def draws(num_nodes=2, *, band=16.0, min_live=10):
    limiter = RatioLimiter(2.0, band, min_live, num_tables=num_nodes)
    made = RunDraws(num_nodes, limiter, arrays, batch_size=B, rng=np.random.default_rng(1))
    for index in range(num_nodes):
        made.note_attached(index, f"ring-{index}")
    return made


def told(made, index, *, before=0, inserted=0, drawn=0, total=1.0):
    counts = Counts(before, inserted, drawn)
    made.note_counts(index, counts, num_live=before + inserted, total_priority=total)


def num_batches(planned):
    return sum(draw.num_batches for draw in planned)


def answer(made, draw):
    """Every node gives its part."""
    for part in list(draw.parts.values()):
        assert made.part_of(part.node, part.request_id) == (draw, part)
        made.note_filled(draw, part)


@pytest.mark.parametrize(
    ("totals", "lives", "expected"),
    [
        ((1.0, 3.0), (5, 5), (0.25, 0.75)),
        ((0.0, 0.0), (1, 4), (0.2, 0.8)),
        ((0.0, 2.0), (9, 1), (0.0, 1.0)),
        ((5.0, 2.0), (0, 1), (0.0, 1.0)),
    ],
    ids=["by totals", "by rows where no row has a priority", "none without priorities beside others", "none empty"],
)
def test_chances_are_in_proportion_to_the_totals(totals, lives, expected):
    nodes = [
        NodeView(total_priority=total, num_live=live, is_up=True) for total, live in zip(totals, lives, strict=True)
    ]
    np.testing.assert_allclose(chances_of(nodes), expected)


def test_the_first_draw_waits_a_second_for_nodes_that_have_said_nothing_yet():
    made = draws()
    told(made, 0, before=20)
    assert made.due(5.0, 1, 1) == []
    assert made.due(5.0 + 0.9 * SILENT_S, 1, 1) == []
    assert num_batches(made.due(5.0 + SILENT_S, 1, 1)) == 1


def test_the_first_draw_waits_for_the_rows_of_all_nodes_together():
    made = draws()
    told(made, 0, before=6)
    told(made, 1, before=3)
    assert made.due(0.0, 2, 4) == []
    assert made.waiting_for == "the actors to fill the replay: 9 of 10 rows"
    told(made, 1, before=4)
    assert num_batches(made.due(0.0, 2, 4)) == 2


def test_draws_stop_at_the_ratio_of_the_run_and_those_under_way_count():
    made = draws()
    told(made, 0, before=10, inserted=8, drawn=16)
    told(made, 1, before=10, inserted=4, drawn=8)
    assert num_batches(made.due(0.0, 8, 8)) == 2  # 24 + 16 drawn for 12 inserted, at 2 each: 16 ahead, the band
    assert made.due(0.0, 6, 8) == []
    assert made.waiting_for.startswith("new rows from the actors: 40 rows drawn for 12 inserted, 16 ahead")
    told(made, 1, before=10, inserted=8, drawn=8)
    assert num_batches(made.due(0.0, 6, 8)) == 1


@pytest.mark.parametrize("drawn", [0, 50_000], ids=["too few draws", "too many draws"])
def test_counts_of_a_ring_that_was_lost_before_are_made_up_for(drawn):
    made = draws()
    told(made, 0, before=10)  # a ring that was made anew: what it had inserted and drawn is not known any more
    told(made, 1, before=10, inserted=10_000, drawn=drawn)
    assert num_batches(made.due(0.0, 8, 8)) == 2  # the band
    assert made.due(0.0, 6, 8) == []
    told(made, 1, before=10, inserted=10_004, drawn=drawn)
    assert num_batches(made.due(0.0, 6, 8)) == 1
    elsewhere = made.sums_beside(0)
    assert elsewhere.inserted * 2 - elsewhere.drawn == pytest.approx(8, abs=16)


def test_what_seemed_lost_is_found_with_a_node_that_is_late():
    made = draws()
    told(made, 0, before=10, inserted=10_000)
    assert made.due(0.0, 1, 1) == []
    assert num_batches(made.due(SILENT_S, 1, 1)) == 1
    told(made, 1, before=10, drawn=20_000)
    made.due(SILENT_S, 8, 8)
    assert made.sums_beside(1).inserted == 10_000
    assert made.sums_beside(1).drawn <= 2 * B + 16


def test_every_row_of_every_batch_comes_from_one_node():
    made = draws(3, band=1000.0)
    for index in range(3):
        told(made, index, before=100)
    [draw] = made.due(0.0, 5, 5)
    rows = sorted(row for part in draw.parts.values() for start, stop in part.slices for row in range(start, stop))
    assert rows == list(range(5 * B))
    for part in draw.parts.values():
        assert all(start // B == (stop - 1) // B for start, stop in part.slices)


def test_a_part_scales_its_rows_by_the_chance_of_its_node():
    made = draws()
    told(made, 0, before=10, total=1.0)
    told(made, 1, before=10, total=3.0)
    [draw] = made.due(0.0, 1, 1)
    parts = list(draw.parts.values())
    assert [made.note_filled(draw, part) for part in parts] == [False] * (len(parts) - 1) + [True]
    for part in parts:
        for start, stop in part.slices:
            np.testing.assert_allclose(draw.arrays["probabilities"][start:stop], 0.1 * (0.25, 0.75)[part.node])


def test_what_a_silent_node_owes_is_drawn_anew_among_the_others():
    made = draws()
    told(made, 0, before=10)
    told(made, 1, before=10)
    [draw] = made.due(0.0, 2, 2)
    old = list(draw.parts.values())
    made.note_filled(draw, next(part for part in old if part.node == 0))
    assert made.due(0.9 * SILENT_S, 0, 2) == []
    assert made.due(SILENT_S, 0, 2) == [draw]
    assert {part.node for part in draw.parts.values()} == {0}
    assert all(made.part_of(part.node, part.request_id) is None for part in old)
    assert made.sums_beside(0).drawn == 0


def test_the_last_node_that_has_rows_is_waited_for_however_slow_it_is():
    made = draws()
    told(made, 0, before=20)
    told(made, 1)
    [draw] = made.due(0.0, 1, 1)
    assert made.due(100 * SILENT_S, 0, 1) == []
    assert made.nodes[0].is_up
    answer(made, draw)
    assert made.num_open_batches == 0


def test_a_draw_that_no_node_can_give_waits_until_one_is_back():
    made = draws(1)
    told(made, 0, before=20)
    [draw] = made.due(0.0, 1, 1)
    made.note_lost(0)
    assert made.due(0.0, 0, 1) == []
    assert made.num_open_batches == 1
    made.note_attached(0, "ring-0")
    assert made.due(0.0, 0, 1) == [draw]


def test_a_new_ring_begins_at_0_and_the_run_does_not():
    made = draws()
    told(made, 0, before=10, inserted=8, drawn=20)
    told(made, 1, before=10, inserted=4, drawn=8)
    made.note_attached(0, "another")
    assert made.nodes[0].sums == Counts(10, 8, 20)
    assert made.nodes[0].num_live == 0
    told(made, 0, inserted=2)
    assert made.sums_beside(1) == Counts(10, 10, 20)
    assert made.sums_beside(0) == Counts(20, 12, 28)
