"""Logs that grow, while somebody writes to them."""

import shutil

from parl_mq.services.log_files import keep_small


def test_a_large_log_is_set_aside_and_its_writer_goes_on_at_the_start(tmp_path):
    log = tmp_path / "actor-0.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 100)
        assert keep_small(log, 1000) is None
        assert log.stat().st_size == 400
        assert keep_small(log, 399) is None
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "actor-0.log.1").read_bytes() == b"old\n" * 100


def test_a_missing_log_is_no_fault(tmp_path):
    assert keep_small(tmp_path / "none.log", 0) is None


def test_on_a_full_disk_a_log_is_emptied_and_that_is_told(tmp_path, monkeypatch):
    log = tmp_path / "actor-0.log"
    log.write_bytes(b"old\n" * 100)

    def copy(source, target):
        target.write_bytes(b"ol")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", copy)
    told = keep_small(log, 10)
    assert "actor-0.log has grown to 10 bytes" in told
    assert "No space left on device" in told
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("actor-0.log", 0)]
