from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headstart.model.native import load_library

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@needs_compiler
def test_compiled_once_and_kept(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    for _ in range(2):
        library = load_library("fused")
        assert library is not None
        assert library.silu_and_mul
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if "--version" not in call] == [
        call for call in calls if " -c " in call or "-shared" in call
    ]
    assert sum(" -c " in call for call in calls) == 1
    assert len(list(empty_cache.glob("fused-*/fused.so"))) == 1


def test_without_a_compiler_one_line_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert load_library("fused") is None
    [record] = caplog.records
    assert record.getMessage() == (
        "kernels in fused.c are not used, torch's operators are: "
        "there is no C compiler (cc, or what CC names)"
    )


@needs_compiler
def test_a_compiler_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "cc 1" && exit\necho "fatal: no" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert load_library("attention") is None
    [record] = caplog.records
    assert "fatal: no" in record.getMessage()


def test_a_cache_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path / "file"))
    assert load_library("fused") is None
    assert len(caplog.records) == 1
