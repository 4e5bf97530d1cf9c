"""What a node says of itself."""

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
