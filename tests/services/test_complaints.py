"""Bad messages: counted all, logged ever less often."""

from itertools import pairwise

import pytest

from parl_mq.errors import WireError
from parl_mq.net.conduct import FIRST_PAUSE_S, LINES, LONGEST_PAUSE_S
from parl_mq.services.complaints import Complaints


class Scene:
    """Complaints, and what the log says of them."""

    def __init__(self, caplog):
        self.now = 0.0
        self.complaints = Complaints("data", lambda: self.now)
        self._caplog = caplog

    def lines(self):
        """Those since the last call."""
        lines = [record.message for record in self._caplog.records]
        self._caplog.clear()
        return lines


@pytest.fixture
def scene(caplog):
    return Scene(caplog)


def test_each_peers_first_bad_message_is_logged_and_all_are_counted(scene):
    for peer in ("lab", b"a", "lab", b"b", "far"):
        scene.complaints.note(peer, WireError("no header"))
    assert scene.complaints.num_dropped == 5
    assert scene.lines() == [
        f"dropped a message of {who} on the data socket, and will drop others like it: no header"
        for who in ("lab", "somebody without a key", "far")
    ]


def test_what_goes_on_is_said_again_ever_less_often_with_how_often_it_was(scene):
    said_at = []
    for second in range(4 * 3600):
        scene.now = float(second)
        scene.complaints.note_refused("lab", "its key is for another role")
        if lines := scene.lines():
            said_at.append((second, lines[0]))
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(said_at)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses) == LONGEST_PAUSE_S
    assert said_at[1][1].endswith(f"another role ({FIRST_PAUSE_S - 1:.0f} times more since this was last said)")


def test_another_cause_is_said_at_once(scene):
    for reason in ("its key is for another role", "its key is for another role", "it belongs to another run"):
        scene.complaints.note_refused("lab", reason)
    assert [line.rpartition(": ")[2] for line in scene.lines()] == [
        "its key is for another role",
        "it belongs to another run",
    ]


def test_a_peer_with_ever_other_causes_fills_no_log_and_hides_no_other_peer(scene):
    for number in range(10_000):
        scene.complaints.note_failed("lab", f"joint {number} broke")
    assert len(scene.lines()) == LINES.burst
    scene.complaints.note_failed("far", "joint 7 broke")
    assert scene.lines() == ["a node has failed: joint 7 broke"]
