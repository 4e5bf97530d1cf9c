"""What holds around the tests of algorithms."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Networks are tiny here: two threads would wait for each other most of the time."""
    torch.set_num_threads(1)
