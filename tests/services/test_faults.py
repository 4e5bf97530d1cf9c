"""What follows from environments that break."""

import pytest

from parl_mq.errors import EXIT_CONFIG, EnvironmentFault, exit_code_of
from parl_mq.services.faults import LONGEST_WAIT_S, FaultCount

FAULT = EnvironmentFault("Broken-v0: step raised KeyError: joint 7")


def test_waits_double_up_to_a_limit():
    faults = FaultCount("actor-0", max_in_a_row=20)
    assert [faults.note(FAULT) for _ in range(9)] == [
        0.5,
        1,
        2,
        4,
        8,
        16,
        LONGEST_WAIT_S,
        LONGEST_WAIT_S,
        LONGEST_WAIT_S,
    ]


def test_the_last_fault_in_a_row_ends_the_actor_and_names_it_and_what_happened():
    faults = FaultCount("actor-3", max_in_a_row=3)
    faults.note(FAULT)
    faults.note(FAULT)
    with pytest.raises(EnvironmentFault, match=r"actor-3: its environments broke 3 times in a row.*joint 7") as raised:
        faults.note(FAULT)
    assert exit_code_of(raised.value) == EXIT_CONFIG


def test_with_one_allowed_the_first_fault_ends_the_actor():
    with pytest.raises(EnvironmentFault, match="actor-0: its environments broke; the last fault: Broken-v0"):
        FaultCount("actor-0", max_in_a_row=1).note(FAULT)


def test_an_episode_between_begins_a_new_row_and_all_faults_are_counted():
    faults = FaultCount("actor-0", max_in_a_row=2)
    for _ in range(5):
        assert faults.note(FAULT) == 0.5
        faults.note_episode()
    assert faults.num_faults == 5
