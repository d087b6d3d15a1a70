"""Who may ask: addresses, tokens, hosts, headers, logs."""

from __future__ import annotations

import logging

import httpx
import pytest
from pydantic import SecretStr

from driftline.errors import ConfigurationError
from driftline.offsets import access
from driftline.offsets.app import build_app
from driftline.store.memory import MemoryStore
from tests.support import offset_runs
from tests.support.offset_service import served

TOKEN = "a-token-of-enough-characters"
GUARDED = ("/v1/runs", "/v1/runs/r/offset", "/v1/runs/r/ledger", "/metrics", "/openapi.json", "/v1/nothing", "/x")


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    offset_runs.write_run(found, "r", 2, groups=1, members=2)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_the_loopback_needs_no_token(host: str):
    access.check(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_any_other_address_needs_a_token(host: str):
    with pytest.raises(ConfigurationError, match="set DRIFTLINE_API_TOKEN"):
        access.check(host, None)
    access.check(host, SecretStr(TOKEN))


def test_a_token_that_can_be_guessed_is_refused_without_being_told():
    with pytest.raises(ConfigurationError, match="shorter than 16") as caught:
        access.check("127.0.0.1", SecretStr("letmein"))
    assert "letmein" not in str(caught.value)


@pytest.mark.parametrize(
    "token", [f"{TOKEN}\n", f" {TOKEN}", "a token of enough words", "schlüssel-mit-umlauten", " " * 20]
)
def test_a_token_that_no_request_could_bear_is_refused(token: str):
    """As a file with a line's end leaves it: every request would be refused, and nobody told why."""
    with pytest.raises(ConfigurationError, match="characters that no header carries") as caught:
        access.check("127.0.0.1", SecretStr(token))
    assert token not in str(caught.value)


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        "Bearer \u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9",
    ],
)
async def test_without_the_token_nothing_is_told(store: MemoryStore, path: str, header: str | None):
    async with served(store, token=TOKEN) as client:
        headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
        answer = await client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="driftline"'
        assert answer.json()["type"] == "token-required"


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs/r/offset", "/metrics", "/openapi.json"])
async def test_with_the_token_everything_is(store: MemoryStore, path: str):
    async with served(store, token=TOKEN, host="offsets.example") as client:
        assert (await client.get(path, headers={"Authorization": f"bearer {TOKEN}"})).status_code == 200


async def test_a_token_in_the_address_is_worth_nothing(store: MemoryStore):
    async with served(store, token=TOKEN) as client:
        assert (await client.get(f"/v1/runs?token={TOKEN}&access_token={TOKEN}")).status_code == 401


async def test_health_and_the_page_itself_are_open_and_hold_nothing_of_any_run(store: MemoryStore):
    async with served(store, token=TOKEN) as client:
        for path in ("/healthz", "/", "/page/main.js"):
            answer = await client.get(path)
            assert answer.status_code == 200
        assert (await client.get("/page/..%2f..%2fv1/runs")).status_code in (401, 404)
        assert (await client.get("//v1/runs")).status_code in (401, 404)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""])
async def test_without_a_token_another_name_gets_nothing(store: MemoryStore, host: str):
    async with served(store) as client:
        answer = await client.get("/v1/runs", headers={"Host": host})
        assert (answer.status_code, answer.json()["type"]) == (400, "wrong-host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8642", "[::1]:8642", "LOCALHOST:1", "127.9.9.9"])
async def test_names_of_the_loopback_are_answered(store: MemoryStore, host: str):
    async with served(store) as client:
        assert (await client.get("/v1/runs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1/runs", "/v1/nothing", "/healthz"])
async def test_every_answer_says_what_a_browser_may_do(store: MemoryStore, path: str):
    async with served(store) as client:
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"


async def test_the_token_is_in_no_log_and_no_description(store: MemoryStore, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with served(store, token=TOKEN) as client:
        await client.get(f"/v1/runs?token={TOKEN}", headers={"Authorization": f"Bearer {TOKEN}"})
        await client.get("/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"})
        schema = await client.get("/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    ours = [record for record in caplog.records if record.name.startswith(("driftline", "uvicorn", "fastapi"))]
    assert any("GET /v1/runs: 200" in record.getMessage() for record in ours)
    assert TOKEN not in "\n".join(record.getMessage() for record in ours)
    assert TOKEN not in schema.text
    assert schema.json()["paths"]["/v1/runs"]["get"]["security"] == [{"token": []}]
    assert "security" not in schema.json()["paths"]["/healthz"]["get"]
    assert TOKEN not in repr(build_app(store, token=SecretStr(TOKEN)).user_middleware)


async def test_the_comparison_takes_constant_time(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    """By construction: it is the standard library's, of bytes, and nothing else looks at the token."""
    seen: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, wanted: bytes) -> bool:
        seen.append((given, wanted))
        return False

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    async with served(store, token=TOKEN) as client:
        answer: httpx.Response = await client.get("/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 401
    assert seen == [(TOKEN.encode(), TOKEN.encode())]
