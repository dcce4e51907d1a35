"""Who is let in to what, and whose cache they share: over HTTP, with a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from headstart.config import EngineConfig, KeysConfig, KVConfig, ServerConfig
from headstart.errors import ConfigError
from headstart.server.access import OPEN_PATHS
from headstart.server.app import build_app, build_apps
from headstart.server.ports import ByPort

ONE, TWO = KeysConfig(("one-key", "two-key")), "two-key"
ADMIN = KeysConfig(("admin-key",))
PROMPT = {"prompt": "a prompt that is asked twice"}
Serve = Callable[..., TestClient]


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    return str(tmp_path / "secret")


@pytest.fixture
def serve(engine: Any) -> Iterator[Serve]:
    """HTTP to an application with this configuration."""
    with ExitStack() as until_the_end:

        def start(**options: Any) -> TestClient:
            app = build_app(engine, engine.tokenizer, None, ServerConfig(**options))
            return until_the_end.enter_context(TestClient(app, raise_server_exceptions=False))

        yield start


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def cached(client: TestClient, headers: Any = None, **fields: Any) -> int:
    response = client.post("/v1/completions", json=PROMPT | fields, headers=headers)
    assert response.status_code == 200, response.text
    tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer one-key"},
        {"authorization": "bearer   one-key "},
        {"x-api-key": "one-key"},
        {"x-api-key": "one-key", "Authorization": "Bearer one-key"},
        {"Authorization": "Bearer two-key"},
    ],
)
def test_a_key_lets_in(serve: Serve, headers: dict[str, str]) -> None:
    assert serve(api_keys=ONE).get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "asks for an API key"),
        ({"Authorization": "Bearer"}, "asks for an API key"),
        ({"Authorization": "one-key"}, "asks for an API key"),
        ({"Authorization": "Basic one-key"}, "asks for an API key"),
        ({"Authorization": "Bearer one"}, "not known here"),
        ({"Authorization": "Bearer one-key two-key"}, "not known here"),
        ({"x-api-key": "\u00e9".encode("latin-1")}, "not known here"),
        ({"x-api-key": "one-key", "Authorization": "Bearer two-key"}, "two different"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/completions", "/nowhere", "/health/", "/docs/../v1/models"]
)
def test_who_has_none_is_refused(serve: Serve, headers: Any, words: str, path: str) -> None:
    client = serve(api_keys=ONE)
    response = client.request("POST" if path == "/v1/completions" else "GET", path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert words in error["message"]
    assert "one" not in error["message"].replace("one be left out", "")


def test_what_is_open_stays_open(serve: Serve) -> None:
    client = serve(api_keys=ONE)
    for path in OPEN_PATHS - {"/ping", "/version"}:
        assert client.get(path).status_code == 200
        assert client.get(path, headers=bearer("wrong")).status_code == 200
    assert client.get("/metrics").status_code == 200  # as in vLLM
    assert client.post("/reset_prefix_cache").status_code == 401
    assert client.post("/reset_prefix_cache", headers=bearer(TWO)).status_code == 200


def test_without_keys_everybody_is_served_whatever_they_send(serve: Serve) -> None:
    assert serve().get("/v1/models", headers=bearer("EMPTY")).status_code == 200


def test_nothing_of_a_body_is_read_before_the_key(engine: Any) -> None:
    app = build_app(engine, engine.tokenizer, None, ServerConfig(api_keys=ONE))
    sent: list[Message] = []

    async def receive() -> Message:
        pytest.fail("the body is read")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
        "headers": [(b"content-length", b"16000000"), (b"authorization", b"Bearer wrong")],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 401


def test_a_changed_file_counts_from_the_next_request_on(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first")
    client = serve(api_keys=KeysConfig(file=str(file)))
    assert client.get("/v1/models", headers=bearer("first")).status_code == 200
    file.write_text("other")
    assert client.get("/v1/models", headers=bearer("first")).status_code == 401
    assert client.get("/v1/models", headers=bearer("other")).status_code == 200
    file.write_text("")
    assert client.get("/v1/models", headers=bearer("other")).status_code == 401
    assert client.get("/v1/models").status_code == 401


# Isolation


def test_one_key_hits_what_it_cached_and_another_does_not(serve: Serve, secret: str, engine: Any) -> None:
    client = serve(api_keys=ONE, isolate_by="api-key", isolation_secret_file=secret)
    assert cached(client, bearer("one-key")) == 0
    assert cached(client, bearer("one-key")) > 0  # (a), and in one test with it …
    assert cached(client, {"x-api-key": "one-key"}) > 0
    assert cached(client, bearer("two-key")) == 0  # … (b): case 21
    assert cached(client, bearer("two-key")) > 0
    salts = {terms.salt for _, _, terms in engine.submitted}
    assert len(salts) == 2
    assert all(len(salt) == 64 for salt in salts)


def test_a_clients_salt_only_refines(serve: Serve, secret: str, engine: Any) -> None:
    client = serve(api_keys=ONE, isolate_by="api-key", isolation_secret_file=secret)
    assert cached(client, bearer("one-key")) == 0
    assert cached(client, bearer("one-key"), cache_salt="s" * 22) == 0
    assert cached(client, bearer("one-key"), cache_salt="s" * 22) > 0
    assert cached(client, bearer("two-key"), cache_salt="s" * 22) == 0
    victim = engine.submitted[0][2].salt
    assert cached(client, bearer("two-key"), cache_salt=victim) == 0


def test_without_isolation_keys_share_and_salts_are_the_clients(serve: Serve, engine: Any) -> None:
    client = serve(api_keys=ONE)
    assert cached(client, bearer("one-key")) == 0
    assert cached(client, bearer("two-key")) > 0
    assert cached(client, bearer("two-key"), cache_salt="mine") == 0
    assert [terms.salt for _, _, terms in engine.submitted] == [None, None, "mine"]


def test_replicas_with_one_secret_derive_one_salt(serve: Serve, secret: str, engine: Any) -> None:
    options = {"api_keys": ONE, "isolate_by": "api-key", "isolation_secret_file": secret}
    for client in (serve(**options), serve(**options)):
        cached(client, bearer("one-key"))
    one, other = (terms.salt for _, _, terms in engine.submitted)
    assert one == other


def test_a_header_tells_tenants_apart(serve: Serve, secret: str) -> None:
    client = serve(isolate_by="header:X-Tenant", isolation_secret_file=secret)
    assert cached(client, {"X-Tenant": "acme"}) == 0
    assert cached(client, {"x-tenant": " acme "}) > 0
    assert cached(client, {"X-Tenant": "Acme"}) == 0
    assert cached(client, {"X-Tenant": "globex"}) == 0


@pytest.mark.parametrize("headers", [{}, {"X-Tenant": ""}, {"X-Tenant": "  "}, {"X_Tenant": "acme"}])
def test_who_cannot_be_told_shares_with_nobody(serve: Serve, secret: str, headers: dict[str, str]) -> None:
    client = serve(isolate_by="header:x-tenant", isolation_secret_file=secret)
    assert cached(client, {"X-Tenant": "acme"}) == 0
    for _ in range(3):  # case 22: not with a tenant, not with each other, whatever salt they send
        assert cached(client, headers) == 0
        assert cached(client, headers, cache_salt="the same one") == 0
    assert cached(client, {"X-Tenant": "acme"}) > 0


def test_letters_that_end_in_a_byte_like_a_space_are_not_cut(serve: Serve, secret: str) -> None:
    client = serve(isolate_by="header:X-Tenant", isolation_secret_file=secret)
    for tenant in ("citt\u00e0", "citt\u00c5", "citt\u00e0 "):  # in UTF-8 they end with A0 and 85
        headers = {"X-Tenant": tenant.encode()}
        assert (cached(client, headers) > 0) is tenant.endswith(" ")
        assert cached(client, headers) > 0


def test_a_header_that_came_twice_is_refused(serve: Serve, secret: str) -> None:
    client = serve(isolate_by="header:X-Tenant", isolation_secret_file=secret)
    twice = [("X-Tenant", "canary"), ("x-tenant", "canary")]
    response = client.post("/v1/completions", json=PROMPT, headers=twice)
    assert response.status_code == 400
    assert "came 2 times" in response.json()["error"]["message"]
    assert "canary" not in response.text
    assert client.get("/health", headers=twice).status_code == 200


def test_with_keys_and_a_header_both_are_needed(serve: Serve, secret: str) -> None:
    client = serve(api_keys=ONE, isolate_by="header:X-Tenant", isolation_secret_file=secret)
    assert client.post("/v1/completions", json=PROMPT, headers={"X-Tenant": "acme"}).status_code == 401
    assert cached(client, bearer("one-key") | {"X-Tenant": "acme"}) == 0
    assert cached(client, bearer("two-key") | {"X-Tenant": "acme"}) > 0  # the proxy's key is nobody's name
    assert cached(client, bearer("one-key")) == 0


# Operators


@pytest.mark.parametrize("isolate_by", ["api-key", "header:x-tenant"])
def test_with_isolation_what_is_shared_is_closed_and_says_what_opens_it(
    serve: Serve, secret: str, isolate_by: str
) -> None:
    client = serve(api_keys=ONE, isolate_by=isolate_by, isolation_secret_file=secret)
    assert client.get("/metrics").status_code == 401
    for method, path in (("GET", "/metrics"), ("POST", "/reset_prefix_cache")):
        response = client.request(method, path, headers=bearer("one-key"))
        assert response.status_code == 403
        assert "--admin-api-key-file or --admin-port" in response.json()["error"]["message"]


def test_an_admin_key_opens_everything_as_a_tenant_of_its_own(serve: Serve, secret: str) -> None:
    client = serve(api_keys=ONE, admin_api_keys=ADMIN, isolate_by="api-key", isolation_secret_file=secret)
    assert client.get("/metrics", headers=bearer("admin-key")).status_code == 200
    assert client.post("/reset_prefix_cache", headers={"x-api-key": "admin-key"}).status_code == 200
    assert client.get("/metrics", headers=bearer("one-key")).status_code == 403
    assert client.get("/metrics", headers=bearer("wrong")).status_code == 401
    assert client.get("/metrics").status_code == 401
    assert cached(client, bearer("one-key")) == 0
    assert cached(client, bearer("admin-key")) == 0
    assert cached(client, bearer("admin-key")) > 0


def test_an_admin_key_without_isolation_guards_what_is_the_operators(serve: Serve) -> None:
    client = serve(admin_api_keys=ADMIN)
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer("EMPTY")).status_code == 401
    assert client.get("/metrics", headers=bearer("admin-key")).status_code == 200
    assert cached(client) == 0
    client = serve(api_keys=ONE, admin_api_keys=ADMIN)
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer("one-key")).status_code == 403
    assert client.get("/metrics", headers=bearer("admin-key")).status_code == 200


@pytest.mark.parametrize("admin_keys", [KeysConfig(), ADMIN])
def test_a_port_of_their_own_takes_operators_routes_away(
    engine: Any, secret: str, admin_keys: KeysConfig
) -> None:
    config = ServerConfig(
        api_keys=ONE,
        admin_api_keys=admin_keys,
        isolate_by="api-key",
        isolation_secret_file=secret,
        has_admin_port=True,
    )
    apps = build_apps(engine, engine.tokenizer, None, config)
    assert apps.admin is not None
    app = ByPort(apps.public, apps.admin, 9001)
    with TestClient(app, "http://host:9000") as public, TestClient(app, "http://host:9001") as admin:
        for headers in (bearer("one-key"), bearer("admin-key")):
            status = 404 if headers == bearer("one-key") or admin_keys.are_wanted else 401
            assert public.get("/metrics", headers=headers).status_code == status
            assert public.post("/reset_prefix_cache", headers=headers).status_code == status
        # Whatever a client says it is talking to, the socket counts.
        assert public.get("/metrics", headers={"Host": "host:9001"}).status_code == 401
        assert admin.get("/v1/models", headers=bearer("one-key")).status_code == 404
        wanted = bearer("admin-key") if admin_keys.are_wanted else {}
        assert admin.get("/metrics", headers=wanted).status_code == 200
        assert admin.post("/reset_prefix_cache", headers=wanted).status_code == 200
        assert admin.get("/metrics", headers=bearer("one-key")).status_code == (
            401 if admin_keys.are_wanted else 200
        )
        assert public.get("/health").status_code == admin.get("/health").status_code == 200


# What makes no sense


def test_combinations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="isolate_by api-key needs API keys"):
        ServerConfig(isolate_by="api-key")
    for name in ("", "tenant", "header:", "header:a b", "header:x:y", "header:\u00e9", "Api-Key"):
        with pytest.raises(ConfigError, match="none, api-key or header:NAME"):
            ServerConfig(isolate_by=name, api_keys=ONE)
    with pytest.raises(ConfigError, match="of no use with isolate_by none"):
        ServerConfig(isolation_secret_file="secret")
    for bad in ("", "two words", "schl\u00fcssel", "x" * 1025, "line\n"):
        with pytest.raises(ConfigError, match="visible ASCII") as caught:
            KeysConfig((bad,))
        assert not bad or bad not in str(caught.value)
    with pytest.raises(ConfigError, match="must have a name"):
        KeysConfig(file="")


def test_isolation_rests_on_digests_that_nobody_can_make_collide() -> None:
    isolated = ServerConfig(isolate_by="header:x")
    weak = EngineConfig(kv=KVConfig(prefix_caching_hash_algo="xxhash_cbor"))
    with pytest.raises(ConfigError, match="xxhash_cbor has none: use sha256_cbor"):
        isolated.check_engine(weak)
    ServerConfig().check_engine(weak)
    isolated.check_engine(EngineConfig())


def test_no_key_is_in_a_configurations_text() -> None:
    config = ServerConfig(api_keys=KeysConfig(("canary",)), admin_api_keys=KeysConfig(("canary",)))
    assert "canary" not in repr(config)
    assert "canary" not in repr(replace(config, strict=True))
