"""Bad messages: counted all, logged once for each peer."""

from parl_mq.errors import WireError
from parl_mq.services.complaints import MAX_LOGGED, Complaints


def test_each_peers_first_bad_message_is_logged_and_all_are_counted(caplog):
    complaints = Complaints("data")
    for peer in (b"a", b"a", b"b", b"a"):
        complaints.note(peer, WireError("no header"))
    assert complaints.num_dropped == 4
    assert [record.message for record in caplog.records] == [
        "dropped a message of somebody without a key on the data socket, and will drop others like it: no header"
    ] * 2


def test_strangers_that_never_come_twice_fill_no_log(caplog):
    complaints = Complaints("data")
    for number in range(MAX_LOGGED + 10):
        complaints.note(b"%d" % number, WireError("no header"))
    assert len(caplog.records) == MAX_LOGGED
