"""What a node says of itself."""

from types import SimpleNamespace

from parl_mq.services.hub_link import LONG_S, NodeStatus


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_long_wait_is_told_with_its_time() -> None:
    clock = Clock()
    status = NodeStatus(clock)
    status.waits("the learner")
    clock.now += LONG_S - 0.5
    assert status.waiting_for == "the learner"
    clock.now += 10
    assert status.waiting_for == "the learner (for 12 s)"


def test_what_is_waited_for_may_change_while_the_wait_goes_on() -> None:
    clock, reasons = Clock(), ["an answer"]
    status = NodeStatus(clock)
    status.waits(lambda: reasons[-1])
    clock.now += 3
    reasons.append("new rows")
    assert status.waiting_for == "new rows (for 3 s)"
    status.waits("another thing")
    assert status.waiting_for == "another thing (for 3 s)"


def test_work_ends_a_wait() -> None:
    clock = Clock()
    status = NodeStatus(clock)
    status.waits("the learner")
    clock.now += 9
    status.works("stepping")
    assert (status.state, status.waiting_for) == ("stepping", None)
    status.waits("the learner")
    assert (status.state, status.waiting_for) == ("waiting", "the learner")


def test_waits_are_added_up_with_the_one_under_way() -> None:
    clock = Clock()
    status = NodeStatus(clock)
    for _ in range(2):
        status.waits("the learner")
        clock.now += 3
        status.works("stepping")
        clock.now += 100
    status.waits("the learner")
    clock.now += 0.5
    assert status.measured()["waiting_seconds_total"] == 6.5


def test_reconnects_of_all_links_are_added_up() -> None:
    status = NodeStatus()
    status.links += [SimpleNamespace(num_reconnects=2), SimpleNamespace(num_reconnects=1)]
    assert status.measured()["reconnects_total"] == 3


def test_memory_of_the_processes_own_is_less_than_all_of_it() -> None:
    measured = NodeStatus().measured()
    assert 0 < measured["rss_anon_bytes"] < measured["rss_bytes"]
