from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parl_mq.errors import MemoryRefused
from parl_mq.replay.memory import MemoryNeed, available_memory, cgroup_headroom, check_memory, is_in_memory
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

GIB = 2**30


def fake_machine(root: Path, *, available_kib: int, group: str = "0::/a/b") -> tuple[Path, Path]:
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {available_kib} kB\n")
    (proc / "self" / "cgroup").write_text(group + "\n")
    (proc / "mounts").write_text("/dev/root / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n")
    cgroups.mkdir()
    return proc, cgroups


def limit(group: Path, maximum: str, current: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(maximum + "\n")
    (group / "memory.current").write_text(f"{current}\n")


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    proc, cgroups = fake_machine(tmp_path, available_kib=1)
    assert cgroup_headroom(proc, cgroups) is None
    limit(cgroups / "a", "5000", 1000)
    limit(cgroups / "a" / "b", "max", 900)
    assert cgroup_headroom(proc, cgroups) == 4000


def test_the_older_cgroup_hierarchy_is_read_too(tmp_path: Path) -> None:
    proc, cgroups = fake_machine(tmp_path, available_kib=1, group="5:memory:/docker")
    group = cgroups / "memory" / "docker"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("700")
    (group / "memory.usage_in_bytes").write_text("300")
    assert cgroup_headroom(proc, cgroups) == 400


def test_a_table_over_the_limit_is_refused_with_the_sum(tmp_path: Path) -> None:
    proc, cgroups = fake_machine(tmp_path, available_kib=8 * 2**20)
    need = MemoryNeed(num_rows=2**20, row_bytes=7 * 1024, rows_bytes=7 * GIB, tree_bytes=GIB // 4)
    check_memory(need, None, proc=proc, cgroups=cgroups)
    limit(cgroups / "a", str(7 * GIB), 0)
    with pytest.raises(
        MemoryRefused, match=r"1,048,576 rows x 7,168 bytes = 7.00 GiB \+ sum tree 0.25 GiB = 7.25 GiB.*cgroup"
    ):
        check_memory(need, None, proc=proc, cgroups=cgroups)


def test_a_directory_on_a_disk_needs_space_there_and_no_memory(tmp_path: Path) -> None:
    proc, cgroups = fake_machine(tmp_path, available_kib=1)
    check_memory(MemoryNeed(10, 10, 1000, 1000), tmp_path, proc=proc, cgroups=cgroups)
    too_much = MemoryNeed(10, 10, 2**60, 1000)
    with pytest.raises(MemoryRefused, match="the space in"):
        check_memory(too_much, tmp_path / "not" / "there", proc=proc, cgroups=cgroups)


def test_the_mount_that_holds_a_directory_tells_whether_it_is_memory(tmp_path: Path) -> None:
    proc, _ = fake_machine(tmp_path, available_kib=1)
    assert is_in_memory(Path("/dev/shm/rings"), proc)
    assert not is_in_memory(Path("/var/tmp"), proc)


def test_this_machine_has_memory() -> None:
    available = available_memory()
    assert available is not None
    assert available > 2**20


def test_a_table_that_does_not_fit_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    spec = TableSpec.of({"obs": ((2**20,), "float64"), "action": ((), "int64")})
    settings = TableSettings(name="test", capacity=2**30)
    for directory in (None, tmp_path / "rings"):
        with pytest.raises(MemoryRefused, match="the table needs"):
            Table(settings, spec, directory=directory, rng=np.random.default_rng(0))
    assert not (tmp_path / "rings").exists()


def test_a_million_stacked_frames_fit_into_8_gib() -> None:
    spec = TableSpec.of({"obs": ((84, 84), "uint8"), "action": ((), "int64")})
    settings = TableSettings(name="test", capacity=1_000_000, n_step=3, frame_stack=4, fragment_length=64)
    assert settings.memory_need(spec).num_bytes < 8 * GIB


def test_the_stated_need_is_what_is_mapped(tmp_path: Path) -> None:
    spec = TableSpec.of({"obs": ((5,), "float64"), "action": ((), "int64")})
    settings = TableSettings(name="test", capacity=10_000, num_shards=2, fragment_length=8)
    table = Table(settings, spec, directory=tmp_path, rng=np.random.default_rng(0))
    mapped = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert mapped <= table.num_bytes < 1.05 * mapped
    table.close()


def test_what_the_kernel_keeps_of_files_until_it_is_asked_for_is_free(tmp_path: Path) -> None:
    proc, cgroups = fake_machine(tmp_path, available_kib=1, group="0::/a\n5:memory:/b")
    limit(cgroups / "a", "5000", 4000)
    (cgroups / "a" / "memory.stat").write_text("file 3500\ninactive_file 3000\ntotal_inactive_file 1\n")
    assert cgroup_headroom(proc, cgroups) == 4000
    older = cgroups / "memory" / "b"
    older.mkdir(parents=True)
    (older / "memory.limit_in_bytes").write_text("700")
    (older / "memory.usage_in_bytes").write_text("300")
    (older / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 200\n")
    assert cgroup_headroom(proc, cgroups) == 600
    (older / "memory.stat").write_text("total_inactive_file 9000\n")  # read a moment later than the sum
    assert cgroup_headroom(proc, cgroups) == 700
