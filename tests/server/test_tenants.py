"""Salts and names are derived: equal for equal tenants, and for no others."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import ConfigError
from headstart.server.caller import ANYONE, derived
from headstart.server.tenants import SECRET_BYTES, Tenants, default_secret_file, load_secret

SECRET = bytes(range(32))
KINDS: Any = ("api-key", "admin-api-key", "header")
WORDS = ("a", "b", "aa", "ab", "a\0", "\0", "1a", "api-key")


def test_no_two_of_all_tenants_and_salts_meet() -> None:
    cases = list(itertools.product((SECRET, SECRET[::-1]), KINDS, WORDS, (None, *WORDS)))
    salts = {case: Tenants(case[0]).known(case[1], case[2].encode()).salt(case[3]) for case in cases}
    assert len(set(salts.values())) == len(cases) == 2 * 3 * 8 * 9
    for secret, kind, identity, salt in cases:
        assert (
            Tenants(secret).known(kind, identity.encode()).salt(salt) == salts[secret, kind, identity, salt]
        )


Triple = tuple[Any, bytes, str | None]
triples = st.tuples(
    st.sampled_from(KINDS),
    st.text("ab\0", max_size=4).map(str.encode),
    st.none() | st.text("ab\0", min_size=1, max_size=4),
)


@given(triples, triples)
def test_salts_are_equal_if_and_only_if_who_asks_and_what_for_are(one: Triple, other: Triple) -> None:
    tenants = Tenants(SECRET)
    (kind, identity, salt), (kind2, identity2, salt2) = one, other
    same = tenants.known(kind, identity).salt(salt) == tenants.known(kind2, identity2).salt(salt2)
    assert same == (one == other)
    same_tenant = tenants.known(kind, identity).tenant == tenants.known(kind2, identity2).tenant
    assert same_tenant == ((kind, identity) == (kind2, identity2))


@given(st.lists(st.binary(max_size=3), max_size=3), st.lists(st.binary(max_size=3), max_size=3))
def test_parts_cannot_be_cut_elsewhere(one: list[bytes], other: list[bytes]) -> None:
    assert (derived(SECRET, *one) == derived(SECRET, *other)) == (one == other)


def test_a_client_cannot_choose_anothers_salt() -> None:
    victim = Tenants(SECRET).known("header", b"victim")
    attacker = Tenants(SECRET).known("header", b"attacker")
    known = {victim.salt(None), victim.salt("s"), victim.tenant, "victim"}
    tried = {attacker.salt(None), *(attacker.salt(each) for each in known)}
    assert not tried & known


def test_what_is_derived_fits_the_wire_and_says_nothing() -> None:
    caller = Tenants(SECRET).known("api-key", b"canary")
    salt = caller.salt("canary")
    assert salt is not None
    assert len(salt) == 64
    assert caller.tenant is not None
    assert set(salt + caller.tenant) <= set("0123456789abcdef")
    assert "canary" not in repr(caller)
    assert repr(caller.secret) not in repr(caller)
    assert caller.tenant not in salt


def test_nobody_shares_with_the_anonymous_not_even_they() -> None:
    tenants = Tenants(SECRET)
    callers = [tenants.anonymous() for _ in range(100)] + [tenants.known("header", b"")]
    assert len({caller.salt(None) for caller in callers}) == 101
    assert len({caller.salt("mine") for caller in callers}) == 101
    assert len({caller.tenant for caller in callers}) == 101
    assert all(caller.is_anonymous for caller in callers[:-1])


def test_without_isolation_a_clients_salt_is_the_salt() -> None:
    assert ANYONE.salt(None) is None
    assert ANYONE.salt("mine") == "mine"


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_state_dir", lambda name: str(tmp_path / "state" / name))
    return tmp_path / "state" / "headstart"


def test_a_secret_of_our_own_is_made_once_for_our_eyes_only(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0)
    try:
        secret = load_secret(None)
    finally:
        os.umask(before)
    assert len(secret) == SECRET_BYTES
    assert load_secret(None) == secret
    (file,) = state_dir.iterdir()
    assert file == default_secret_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    file.unlink()
    assert load_secret(None) != secret
    assert caplog.records == []


def test_of_two_servers_that_make_a_secret_the_first_wins(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_secret(None)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as the second saw it, a moment ago
    assert load_secret(None) == first
    assert [file.name for file in state_dir.iterdir()] == ["isolation-secret"]


def test_a_secret_that_replicas_share_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_secret(str(file))
    for content in (b"", b"x" * 31, b"x" * 5000):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="must be a file of 32 to 4096 bytes"):
            load_secret(str(file))
    file.write_bytes(SECRET)
    assert load_secret(str(file)) == SECRET


def test_a_secret_that_all_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o640)
    load_secret(str(file))
    assert caplog.records == []
    file.chmod(0o644)
    load_secret(str(file))
    assert "can be read by every user" in caplog.text


def test_a_directory_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(platformdirs, "user_state_dir", lambda name: str(tmp_path / "file" / name))
    with pytest.raises(ConfigError, match="cannot be made: Not a directory; --isolation-secret-file"):
        load_secret(None)
