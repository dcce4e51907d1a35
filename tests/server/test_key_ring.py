from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config import KeysConfig
from headstart.errors import ConfigError
from headstart.server import key_ring
from headstart.server.key_ring import UNSETTLED_NS, KeyRing


def ring_of(path: Path, content: str) -> KeyRing:
    path.write_text(content)
    return KeyRing(KeysConfig(file=str(path)))


def test_who_is_known_and_who_is_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\none\n\n  two # of a colleague\nthr#ee\n")
    ring = KeyRing(KeysConfig(("given",), str(tmp_path / "keys")))
    digests = [ring.find(key) for key in ("given", "one", "two", "thr#ee")]
    assert None not in digests
    assert len(set(digests)) == 4
    for key in ("", "On", "one ", "#", "ours", "thr", "# ours", "eins\xe9", "on", "onee"):
        assert ring.find(key) is None
    assert ring.find("one") == ring.find("one")


def test_without_keys_none_is_wanted_and_none_is_known() -> None:
    assert not KeyRing().is_wanted
    assert KeyRing().find("") is None
    assert KeyRing(KeysConfig(("a",))).is_wanted


def test_a_file_that_was_just_written_is_read_again_though_its_times_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    monkeypatch.setattr(key_ring._Version, "of", lambda _: key_ring._Version(1000, 1000, 3, 1))
    now = 1000
    path.write_text("aaa")
    ring = KeyRing(KeysConfig(file=str(path)), clock_ns=lambda: now)
    for key, other in (("bbb", "aaa"), ("aaa", "bbb")):
        path.write_text(key)
        assert ring.find(key)
        assert not ring.find(other)
    now += UNSETTLED_NS + 1  # from now on a change would show
    assert ring.find("aaa")
    monkeypatch.setattr(key_ring, "open", pytest.fail, raising=False)
    assert ring.find("aaa")


def test_a_settled_file_is_read_when_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("aaa")
    now = path.stat().st_ctime_ns + UNSETTLED_NS + 1
    ring = KeyRing(KeysConfig(file=str(path)), clock_ns=lambda: now)
    with monkeypatch.context() as patched:
        patched.setattr(key_ring, "open", pytest.fail, raising=False)
        assert ring.find("aaa")  # by its status alone
    (tmp_path / "next").write_text("bbb")
    (tmp_path / "next").replace(path)
    assert ring.find("bbb")
    assert not ring.find("aaa")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"fine\ntwo words\n", "line 2 of --api-key-file"),
        ("fine\nschl\u00fcssel\n".encode(), "line 2"),
        (b"k" * 1025, "line 1"),
        (b"\xff\xfe", "not text in UTF-8"),
    ],
)
def test_a_file_of_something_else_is_refused_and_not_quoted(
    tmp_path: Path, content: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        KeyRing(KeysConfig(file=str(path)))
    assert "schl" not in str(caught.value)
    assert "kk" not in str(caught.value)
    ring = ring_of(path, "old")
    path.write_bytes(content)
    for _ in range(3):
        assert ring.find("old")  # the old keys hold, none of the new ones does
        assert not ring.find("fine")
    (record,) = caplog.records
    assert words in record.getMessage()
    assert "the keys that it had still hold" in record.getMessage()
    path.write_text("new")
    assert ring.find("new")
    assert not ring.find("old")
    assert len(caplog.records) == 1


def test_a_file_that_vanishes_takes_no_keys_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    ring = ring_of(path, "old")
    path.unlink()
    assert ring.find("old")
    assert ring.find("old")
    (record,) = caplog.records
    assert "cannot be read: No such file" in record.getMessage()
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing(KeysConfig(file=str(path)))


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    ring = ring_of(path, "# none yet\n\n")
    assert ring.is_wanted
    assert not ring.find("")
    assert ["lets nobody in" in record.getMessage() for record in caplog.records] == [True]
    path.write_text("one")
    assert ring.find("one")
    path.write_text("")
    for _ in range(3):
        assert not ring.find("one")
    assert len(caplog.records) == 2


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(KeysConfig(tuple("abcdef")))
    asked = 0
    compare = key_ring.hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        nonlocal asked
        asked += 1
        return compare(one, other)

    monkeypatch.setattr(key_ring.hmac, "compare_digest", counted)
    for key in "afx":
        ring.find(key)
    assert asked == 18


def test_no_key_is_kept() -> None:
    ring = KeyRing(KeysConfig(("canary",)))
    assert "canary" not in repr(vars(ring))
    assert "canary" not in repr(KeysConfig(("canary",)))
