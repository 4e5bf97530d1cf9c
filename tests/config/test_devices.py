"""Devices, asked without torch; torch itself is the reference."""

import subprocess
import sys

import pytest
import torch

from parl_mq.config.devices import Devices, TorchBuild, num_nvidia_gpus
from parl_mq.config.loader import load_node_config
from parl_mq.config.settings import Origin, Setting
from parl_mq.errors import ConfigError, UsageError

CPU_BUILD = TorchBuild("2.13.0+cpu", None, None)
CUDA_BUILD = TorchBuild("2.13.0", "12.8", None)
HIP_BUILD = TorchBuild("2.13.0", None, "6.4")


def test_the_installed_build_is_what_torch_says_of_itself() -> None:
    version = torch.version
    assert TorchBuild.installed() == TorchBuild(torch.__version__, version.cuda, getattr(version, "hip", None))


def test_gpus_are_those_that_torch_can_use() -> None:
    if torch.version.cuda is not None:
        assert num_nvidia_gpus() == torch.cuda.device_count()
    else:
        assert not Devices.here().has_gpu


@pytest.mark.parametrize(
    ("devices", "wanted", "message"),
    [
        (Devices(None, 1), "cuda", "torch is not installed"),
        (Devices(CPU_BUILD, 1), "cuda", r"torch 2\.13\.0\+cpu was built without CUDA"),
        (Devices(CUDA_BUILD, 0), "cuda", "shows no GPU"),
        (Devices(CUDA_BUILD, 2), "cuda:2", "only cuda:0 to cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(devices: Devices, wanted: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^node\.device: {wanted} cannot be used: .*{message}") as caught:
        devices.check(wanted)
    assert caught.value.keys == ("node.device",)


@pytest.mark.parametrize(
    ("devices", "there_is"),
    [
        (Devices(CUDA_BUILD, 2), "cpu, cuda:0, cuda:1"),
        (Devices(CUDA_BUILD, 0), "cpu"),
        (Devices(CPU_BUILD, 2), "cpu"),
    ],
)
def test_a_refusal_lists_the_devices_that_there_are(
    devices: Devices, there_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=rf"; there is: {there_is};"):
        devices.check("cuda:9")
    monkeypatch.setattr(Devices, "here", lambda: devices)
    for other in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cpu\n"):
        with pytest.raises(UsageError, match=rf"node\.device: must be auto, .* there is: {there_is}; got "):
            load_node_config(overrides=[Setting(("node", "device"), other, Origin("flag", "--set"))], environ={})


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        (Devices(None, 0), "cpu"),
        (Devices(CPU_BUILD, 0), "auto"),
        (Devices(CUDA_BUILD, 2), "cuda"),
        (Devices(CUDA_BUILD, 2), "cuda:1"),
        (Devices(HIP_BUILD, None), "cuda:7"),
    ],
)
def test_a_device_that_may_be_there_is_let_through(devices: Devices, wanted: str) -> None:
    devices.check(wanted)


@pytest.mark.parametrize(
    ("devices", "has_gpu"), [(Devices(CUDA_BUILD, 1), True), (Devices(CUDA_BUILD, 0), False), (Devices(None, 1), False)]
)
def test_auto_takes_a_gpu_where_torch_can_use_one(devices: Devices, has_gpu: bool) -> None:
    assert devices.has_gpu == has_gpu


@pytest.mark.parametrize(
    ("devices", "num_learners"),
    [
        (Devices(CUDA_BUILD, 3), 3),
        (Devices(CUDA_BUILD, 0), 0),
        (Devices(CPU_BUILD, 3), 0),
        (Devices(HIP_BUILD, None), 1),
    ],
)
def test_there_is_one_learner_for_each_gpu_that_torch_can_use_and_none_without(
    devices: Devices, num_learners: int
) -> None:
    assert devices.num_learners == num_learners


def test_asking_loads_no_torch() -> None:
    script = "import sys; from parl_mq.config.devices import Devices; Devices.here(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
