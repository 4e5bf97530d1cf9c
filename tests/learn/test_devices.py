"""Which device is taken; GPUs are as many as the test says."""

import pytest
import torch

from parl_mq.errors import ConfigError, MemoryRefused
from parl_mq.learn.devices import choose_device, devices_there, memory_named


@pytest.fixture
def gpus(monkeypatch):
    def there_are(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")

    return there_are


@pytest.mark.parametrize(("wanted", "missing"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(gpus, wanted, missing):
    gpus(missing)
    there = (
        ", ".join(["cpu", "cuda:0 (card 0)", "cuda:1 (card 1)"][: missing + 1]).replace("(", r"\(").replace(")", r"\)")
    )
    with pytest.raises(ConfigError, match=rf"node\.device = '{wanted}' is not on this machine; there is: {there}$"):
        choose_device(wanted)


@pytest.mark.parametrize(
    ("wanted", "count", "devices"),
    [
        ("auto", 0, ["cpu", "cpu", "cpu"]),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1", "cuda:1"]),
        ("cpu", 2, ["cpu", "cpu", "cpu"]),
    ],
)
def test_learners_take_one_gpu_after_the_other_unless_one_is_named(gpus, wanted, count, devices):
    gpus(count)
    assert [str(choose_device(wanted, index)) for index in range(3)] == devices


def test_auto_says_what_it_took(gpus, caplog):
    caplog.set_level("INFO")
    gpus(1)
    choose_device("auto")
    assert "training on cuda:0 (card 0)" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_is_not_enough_is_told_as_such_whoever_notices(error):
    told = r"the memory of cuda:1 is not enough: .*; lower algorithm\.batch_size"
    with pytest.raises(MemoryRefused, match=told), memory_named(torch.device("cuda", 1)):
        raise error


def test_other_errors_are_not_about_memory():
    with pytest.raises(RuntimeError, match="shapes"), memory_named(torch.device("cpu")):
        raise RuntimeError("shapes do not fit")


def test_the_devices_of_this_machine_begin_with_its_cpu():
    assert devices_there().startswith("cpu")
