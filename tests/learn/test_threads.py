"""The training thread is set up as its docstring says."""

import threading

import torch

from parl_mq.learn.threads import prepare_training_thread


def test_settings_hold_in_the_thread_that_asks() -> None:
    results: list[float] = []

    def train() -> None:
        prepare_training_thread(1)
        results.append((torch.full((8,), 1e-38) * 1e-3).sum().item())
        results.append(torch.get_num_threads())

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert results == [0.0, 1]
