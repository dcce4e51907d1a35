from __future__ import annotations

import errno
import gzip
import io
import json
import logging
import os
import stat
from pathlib import Path

import pytest

from headstart.cache import CacheConfig
from headstart.engine.decision_log import DecisionLog, open_decision_log
from headstart.engine.decisions import Commit, Gone
from headstart.errors import ConfigError

CACHE = CacheConfig(7, 4, index="hash")


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_a_log_is_gzip_over_json_lines_for_its_owner_alone(tmp_path: Path) -> None:
    log = open_decision_log(tmp_path / "run.log", CACHE)
    assert log.is_open
    log.write(Gone(3))
    log.write(Commit(5))
    log.close()
    log.write(Gone(4))
    log.close()
    assert not log.is_open
    header, *records = lines(tmp_path / "run.log")
    assert isinstance(header, dict)
    assert (header["format"], header["version"]) == ("headstart decision log", 3)
    assert header["cache"]["num_blocks"] == 7
    assert header["cache"]["index"] == "hash"
    assert records == [["gone", 3], ["commit", 5]]
    assert stat.S_IMODE((tmp_path / "run.log").stat().st_mode) == 0o600


def test_what_was_flushed_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    log = open_decision_log(path, CACHE)
    sizes = [path.stat().st_size]
    assert sizes[0] > 0  # the header
    log.write(Gone(1))
    assert path.stat().st_size == sizes[0]
    log.flush()
    assert path.stat().st_size > sizes[0]
    log.close()


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.log"
    path.write_text("mine")
    (tmp_path / "run.log.1").symlink_to(tmp_path / "nowhere")
    log = open_decision_log(path, CACHE)
    log.close()
    assert log.path == tmp_path / "run.log.2"
    assert path.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert len(lines(log.path)) == 1
    assert caplog.messages == [f"{path} exists, so the decision log is {log.path}"]


def test_where_no_file_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, words in (
        (tmp_path, f"must name a file, and {tmp_path} is a directory"),
        (tmp_path / "no" / "run.log", f"there is no directory {tmp_path / 'no'}"),
        (tmp_path / "file" / "run.log", f"there is no directory {tmp_path / 'file'}"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(ConfigError, match="decision_log") as caught:
            open_decision_log(path, CACHE)
        assert words in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written to"):
        open_decision_log(tmp_path / "run.log", CACHE)


class FullDisk(io.BytesIO):
    """Takes ``room`` bytes, then fails as a disk does, also when it is closed."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def flush(self) -> None:
        if len(self.getvalue()) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self.flush()
        super().close()


def test_a_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLog(Path("run.log"), FullDisk(1000), CACHE)
    for number in range(5000):
        log.write(Gone(number * 7919))
        log.flush()
    assert not log.is_open
    log.close()
    assert caplog.messages == [
        "the decision log run.log ends here: No space left on device; serving goes on without it"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_disk_that_is_full_already_keeps_no_engine_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", no_room)
    log = open_decision_log(tmp_path / "run.log", CACHE)
    log.write(Gone(1))
    log.close()
    assert not log.is_open
    assert caplog.messages == [f"there is no decision log {tmp_path / 'run.log'}: No space left on device"]
