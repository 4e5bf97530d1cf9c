"""Which training devices this machine has, asked without loading torch."""

from __future__ import annotations

import ast
import ctypes
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from parl_mq.errors import ConfigError

CUDA_SUCCESS: Final = 0


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The torch that is installed.

    Attributes:
        version: such as `2.13.0+cpu`.
        cuda: version of CUDA that it was built with, or None.
        hip: the same of AMD's counterpart, which torch calls cuda as well.
    """

    version: str
    cuda: str | None
    hip: str | None

    @classmethod
    def installed(cls) -> TorchBuild | None:
        """What torch says of itself in its file `version.py`; None where there is no torch."""
        found = find_spec("torch")
        if found is None or not found.submodule_search_locations:
            return None
        path = Path(found.submodule_search_locations[0]) / "version.py"
        values = dict(_constants(path.read_text())) if path.is_file() else {}
        return cls(values.get("__version__") or "of unknown version", values.get("cuda"), values.get("hip"))


@dataclass(frozen=True, slots=True)
class Devices:
    """What a learner can compute on beside the CPU.

    Attributes:
        torch: the installed one, or None.
        num_gpus: that the driver shows this process, CUDA_VISIBLE_DEVICES applied; None where it cannot be asked.
    """

    torch: TorchBuild | None
    num_gpus: int | None

    @classmethod
    def here(cls) -> Devices:
        """Those of this machine; asking takes some milliseconds and no memory of a GPU."""
        build = TorchBuild.installed()
        return cls(build, None if build is not None and build.hip else num_nvidia_gpus())

    def check(self, wanted: str) -> None:
        """Refuses a device that is not there.

        Args:
            wanted: as `node.device`.

        Raises:
            ConfigError: says what lacks.
        """
        if not wanted.startswith("cuda"):
            return
        index = int(wanted.partition(":")[2] or 0)
        lacks = self._lacks(index)
        if lacks is not None:
            raise ConfigError(
                f"node.device: {wanted} cannot be used: {lacks}; there is: {self}; `auto` takes a GPU where there is "
                "one, else the CPU"
            ).about("node.device")

    def __str__(self) -> str:
        """All of them, as `node.device` names them."""
        if self.has_gpu and self.num_gpus is None:
            return "cpu, cuda"
        return ", ".join(["cpu", *(f"cuda:{index}" for index in range(self.num_gpus or 0) if self.has_gpu)])

    @property
    def has_gpu(self) -> bool:
        """Whether `auto` can be expected to take one."""
        return self._lacks(0) is None

    @property
    def num_learners(self) -> int:
        """Learners that can have a GPU each; 0 where there is none."""
        return max(1, self.num_gpus or 0) if self.has_gpu else 0

    def _lacks(self, index: int) -> str | None:
        if self.torch is None:
            return "torch is not installed"
        if self.torch.cuda is None and self.torch.hip is None:
            return f"the installed torch {self.torch.version} was built without CUDA"
        if self.num_gpus is None or index < self.num_gpus:
            return None
        return (
            "this machine shows no GPU" if self.num_gpus == 0 else f"there is only cuda:0 to cuda:{self.num_gpus - 1}"
        )


def num_nvidia_gpus() -> int:
    """GPUs that NVIDIA's driver shows this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    is_ready = driver.cuInit(0) == CUDA_SUCCESS and driver.cuDeviceGetCount(ctypes.byref(count)) == CUDA_SUCCESS
    return count.value if is_ready else 0


def _constants(text: str) -> list[tuple[str, str | None]]:
    """Names and values of a module's assignments of strings and None."""
    found: list[tuple[str, str | None]] = []
    for statement in ast.parse(text).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() | None as value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str() | None as value))
            ):
                found.append((name, value))
    return found
