"""The provider client against a fake Hermes on a real socket: sent once, cut in time, and never more than is known."""

import asyncio
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hermes_portal.hermes import client as client_module
from hermes_portal.hermes import errors
from hermes_portal.hermes.client import (
    Call,
    Client,
    Target,
    WireRequest,
    job_path,
    run_path,
)
from hermes_portal.hermes.connections import GuardedBackend
from hermes_portal.hermes.errors import HermesError
from hermes_portal.hermes.replies import error_facts
from hermes_portal.hermes.wire import header_text
from tests.fake_hermes import (
    Answer,
    FakeHermes,
    FakeProcess,
    close,
    default,
    drip,
    gzipped,
    half,
    hang,
    html,
    provider_error,
    raw,
    redirect,
    reply,
    reset,
)

pytestmark = pytest.mark.once

LOOPBACK = ("127.0.0.0/8",)
START = WireRequest("POST", "/v1/runs", b'{"input":"hello"}', 5.0, ("run_id",))
RUN_ID = "run_" + "a" * 32


@pytest.fixture
def hermes() -> Iterator[FakeHermes]:
    with FakeHermes() as fake:
        yield fake


def target(hermes: FakeHermes, **changes: Any) -> Target:
    members: dict[str, Any] = {
        "endpoint_id": "main",
        "base_url": hermes.url,
        "token": hermes.key,
        "allow_networks": LOOPBACK,
        "tenant_slug": "acme",
    }
    return Target(**{**members, **changes})


def call(**changes: Any) -> Call:
    members: dict[str, Any] = {
        "principal": "rita",
        "tenant": "acme",
        "issuer": "hermes-portal",
        "trace_id": "trace-1",
        "correlation_id": "correlation-1",
        "delegation_chain": ("rita", "ron", "hermes-portal"),
        "session_id": None,
        "deadline": datetime.now(UTC) + timedelta(seconds=60),
        "idempotency_key": "action-1",
    }
    return Call(**{**members, **changes})


def start(hermes: FakeHermes, request: WireRequest = START, **options: Any) -> HermesError:
    """The error of one start that must fail."""
    with pytest.raises(HermesError) as caught:
        Client(target(hermes)).send(request, call(), **options)
    return caught.value


def read_stream(client: Client, run_id: str, **options: Any) -> bytes:
    async def read() -> bytes:
        async with client.stream(run_id, call(), **options) as stream:
            return b"".join([chunk async for chunk in stream])

    return asyncio.run(read())


def refused_stream(hermes: FakeHermes, *answers: Answer, **options: Any) -> HermesError:
    """The error of opening a stream that the fake answers so."""
    hermes.script("GET", run_path(RUN_ID, "events"), *answers)
    with pytest.raises(HermesError) as caught:
        read_stream(Client(target(hermes)), RUN_ID, **options)
    return caught.value


# What is sent.


def test_a_start_gives_the_receipt_with_the_digest_of_its_bytes(hermes):
    got = Client(target(hermes)).send(START, call())
    assert got.status == 202
    assert got.value["status"] == "started"
    assert got.value["run_id"] in hermes.runs
    assert len(got.raw_sha256) == 64
    assert got.headers["content-type"].startswith("application/json")


def test_the_bytes_sent_are_the_bytes_given(hermes):
    body = b'{"input":  "two  spaces \xc3\xa9", "a":1}'
    Client(target(hermes)).send(WireRequest("POST", "/v1/runs", body, 5.0, ("run_id",)), call())
    assert [seen.body for seen in hermes.mutations()] == [body]


def test_the_headers_are_those_of_the_contract_and_no_other(hermes):
    deadline = datetime.now(UTC) + timedelta(seconds=30)
    Client(target(hermes)).send(START, call(deadline=deadline, session_id="s-1", session_key="team:blue"))
    assert hermes.mutations()[0].headers == {
        "host": hermes.url.removeprefix("http://"),
        "accept": "application/json",
        "accept-encoding": "identity",
        "authorization": f"Bearer {hermes.key}",
        "connection": "close",
        "content-length": str(len(START.body or b"")),
        "content-type": "application/json",
        "idempotency-key": "action-1",
        "user-agent": "hermes-portal",
        "x-aip-authentication-issuer": "hermes-portal",
        "x-aip-correlation-id": "correlation-1",
        "x-aip-deadline-unix-ms": str(int(deadline.timestamp() * 1000)),
        "x-aip-delegation-chain": "rita,ron,hermes-portal",
        "x-aip-principal-id": "rita",
        "x-aip-session-id": "s-1",
        "x-aip-tenant-id": "acme",
        "x-aip-trace-id": "trace-1",
        "x-hermes-session-key": "team:blue",
    }


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_a_mutation_without_a_body_says_that_its_length_is_zero(hermes, method):
    hermes.script(method, "/api/jobs/a1b2c3d4e5f6", reply(200, {"ok": True}))
    Client(target(hermes)).send(WireRequest(method, job_path("a1b2c3d4e5f6"), None, 5.0), call())
    headers = hermes.mutations()[0].headers
    assert headers["content-length"] == "0"
    assert "transfer-encoding" not in headers
    assert "content-type" not in headers


def test_a_profile_path_comes_before_the_operation(hermes):
    hermes.script("POST", "/p/ops/v1/runs", reply(202, {"run_id": RUN_ID}))
    Client(target(hermes, base_url=hermes.url + "/p/ops/")).send(START, call())
    assert hermes.mutations()[0].path == "/p/ops/v1/runs"


def test_each_mutation_has_a_connection_of_its_own(hermes):
    client = Client(target(hermes))
    for _ in range(3):
        client.send(START, call())
    assert len({seen.peer for seen in hermes.mutations()}) == 3


def test_proxies_and_passwords_of_the_environment_are_not_used(hermes, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with FakeHermes() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        Client(target(hermes)).send(START, call())
        read_stream_until_end(hermes)
        assert proxy.connections == 0
    assert hermes.mutations()[0].headers["authorization"] == f"Bearer {hermes.key}"


def read_stream_until_end(hermes: FakeHermes) -> bytes:
    run = hermes.run()
    run.complete()
    return read_stream(Client(target(hermes)), run.run_id)


def test_health_is_asked_without_the_token(hermes):
    assert Client(target(hermes, token="")).health()["version"] == "0.19.0"
    assert "authorization" not in hermes.requests[0].headers


def test_a_wrong_token_shows_at_the_capabilities(hermes):
    assert Client(target(hermes)).capabilities()["features"]["run_stop"] is True
    with pytest.raises(errors.CredentialRefused) as caught:
        Client(target(hermes, token="wrong")).capabilities()
    assert caught.value.reason == "invalid_api_key"


def test_a_status_is_read_by_an_exact_id(hermes):
    run = hermes.run()
    client = Client(target(hermes))
    assert client.run_status(run.run_id, call())["status"] == "running"
    with pytest.raises(errors.NotFound) as caught:
        client.run_status(RUN_ID, call())
    assert caught.value.reason == "run_not_found"
    hermes.script("GET", run_path(RUN_ID), reply(200, run.public()))
    with pytest.raises(errors.ReplyIncomplete):
        client.run_status(RUN_ID, call())


def test_the_token_and_session_keys_show_in_no_representation():
    shown = repr(Target("e", "http://h", "tok-secret", (), "acme")) + repr(call(session_key="key-secret"))
    assert "secret" not in shown + repr(WireRequest("POST", "/v1/runs", None, 1, session_key="key-secret"))


# What is not sent.


@pytest.mark.parametrize(
    ("changes", "leaf"),
    [
        ({"tenant": "other"}, errors.TenantMismatch),
        ({"deadline": datetime(2026, 1, 1, tzinfo=UTC)}, errors.DeadlineExpired),
        ({"deadline": datetime(2999, 1, 1)}, errors.InvalidInput),  # noqa: DTZ001 - the fault
        ({"principal": ""}, errors.InvalidInput),
        ({"principal": "rita\r\nX-Evil: 1"}, errors.InvalidInput),
        ({"principal": "rita\x00"}, errors.InvalidInput),
        ({"principal": "rita\x85"}, errors.InvalidInput),
        ({"principal": "rita\ud800"}, errors.InvalidInput),
        ({"principal": "é" * 1000}, errors.InvalidInput),
        ({"delegation_chain": ()}, errors.InvalidInput),
        ({"delegation_chain": ("n" * 2000,) * 4}, errors.InvalidInput),
        ({"session_id": "a\nb"}, errors.InvalidInput),
        ({"idempotency_key": ""}, errors.InvalidInput),
        ({"idempotency_key": "a b"}, errors.InvalidInput),
        ({"idempotency_key": "é"}, errors.InvalidInput),
        ({"idempotency_key": "k" * 256}, errors.InvalidInput),
        ({"idempotency_key": "k\n"}, errors.InvalidInput),
        ({"session_key": ""}, errors.InvalidInput),
        ({"session_key": "k" * 257}, errors.InvalidInput),
        ({"session_key": "a\r\nb"}, errors.InvalidInput),
        ({"session_key": " a"}, errors.InvalidInput),
    ],
)
def test_a_call_that_cannot_be_made_reaches_nobody(hermes, changes, leaf):
    with pytest.raises(leaf) as caught:
        Client(target(hermes)).send(START, call(**changes))
    assert caught.value.changed == "no"
    assert hermes.connections == 0


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "tökén"])
def test_a_token_that_is_no_header_value_is_not_sent(hermes, token):
    with pytest.raises(errors.AuthenticationMissing):
        Client(target(hermes, token=token)).send(START, call())
    assert hermes.connections == 0


@pytest.mark.parametrize(
    "wire",
    [
        WireRequest("TRACE", "/v1/runs", None, 5.0),
        WireRequest("POST", "v1/runs", b"{}", 5.0),
        WireRequest("POST", "//evil.example/v1/runs", b"{}", 5.0),
        WireRequest("POST", "/v1/../admin", b"{}", 5.0),
        WireRequest("POST", "/v1/%2e%2e/admin", b"{}", 5.0),
        WireRequest("POST", "/v1/runs\r\nX: y", b"{}", 5.0),
        WireRequest("POST", "/v1/runs#x", b"{}", 5.0),
        WireRequest("POST", "@evil.example/", b"{}", 5.0),
        WireRequest("GET", "/v1/runs", b"{}", 5.0),
        WireRequest("POST", "/v1/runs", b"x" * 10_000_001, 5.0),
    ],
)
def test_a_request_that_is_none_of_hermes_reaches_nobody(hermes, wire):
    assert start(hermes, wire).changed == "no"
    assert hermes.connections == 0


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "run_",
        "run_" + "A" * 32,
        "run_" + "a" * 31,
        RUN_ID + "\n",
        RUN_ID + "/..",
        "../" + RUN_ID,
        "run_" + "٣" * 32,
    ],
)
def test_only_a_whole_run_id_reaches_a_path(run_id):
    with pytest.raises(errors.InvalidInput):
        run_path(run_id)


def test_paths_are_those_of_the_thirteen_operations():
    assert run_path(RUN_ID, "/stop") == run_path(RUN_ID, "stop") == f"/v1/runs/{RUN_ID}/stop"
    assert job_path("a1b2c3d4e5f6", "run") == "/api/jobs/a1b2c3d4e5f6/run"
    for refused in (
        lambda: run_path(RUN_ID, "steer"),
        lambda: job_path("A1B2C3D4E5F6"),
        lambda: job_path("a1b2c3d4e5f6\n"),
    ):
        with pytest.raises(errors.InvalidInput):
            refused()


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("rita", "rita"),
        ("rita@example.org", "rita@example.org"),
        ("Ríta Ünal", "R%C3%ADta%20%C3%9Cnal"),
        ("100%,sure", "100%25%2Csure"),
        ("\u202eevil", "%E2%80%AEevil"),
    ],
)
def test_names_travel_as_visible_ascii(name, wire):
    assert header_text("principal", name) == wire


def test_a_name_with_a_comma_is_still_one_link_of_the_chain(hermes):
    Client(target(hermes)).send(START, call(delegation_chain=("Doe, J.", "hermes-portal")))
    assert hermes.mutations()[0].headers["x-aip-delegation-chain"] == "Doe%2C%20J.,hermes-portal"


def test_a_session_key_travels_as_it_is(hermes):
    wire = WireRequest("POST", "/v1/runs", b'{"input":"x"}', 5.0, ("run_id",), session_key="größe x")
    Client(target(hermes)).send(wire, call(session_key="another"))
    sent = hermes.mutations()[0].headers["x-hermes-session-key"]
    assert sent.encode("latin-1").decode("utf-8") == "größe x"


def test_nothing_listening_means_not_sent():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(errors.ConnectFailed):
        Client(Target("e", f"http://127.0.0.1:{port}", "t", LOOPBACK, "acme")).send(START, call())


def test_send_until_is_checked_after_connecting_right_before_the_request_line(hermes):
    connected: list[float] = []
    original = GuardedBackend.connect_tcp

    def connect_then_wait(self: Any, *args: Any, **options: Any) -> Any:
        stream = original(self, *args, **options)
        connected.append(time.monotonic())
        time.sleep(0.15)
        return stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuardedBackend, "connect_tcp", connect_then_wait)
        with pytest.raises(errors.DeadlineExpired):
            Client(target(hermes)).send(START, call(), send_until=time.monotonic() + 0.1)
    assert connected
    assert hermes.mutations() == []


def test_a_passed_send_until_opens_no_connection(hermes):
    with pytest.raises(errors.DeadlineExpired):
        Client(target(hermes)).send(START, call(), send_until=time.monotonic() - 1)
    assert hermes.connections == 0


def test_the_callers_clock_decides_about_the_deadline(hermes):
    late = datetime.now(UTC) + timedelta(seconds=120)
    assert isinstance(start(hermes, now=lambda: late), errors.DeadlineExpired)
    assert hermes.connections == 0


# Refused by the provider.


@pytest.mark.parametrize(
    ("answer", "leaf", "reason", "detail"),
    [
        (provider_error(400, "Missing 'input' field"), errors.BadRequest, "", "Missing 'input' field"),
        (
            reply(401, {"error": {"message": "Invalid API key", "type": "t", "code": "invalid_api_key"}}),
            errors.CredentialRefused,
            "invalid_api_key",
            "Invalid API key",
        ),
        (
            reply(
                401, {"error": {"message": "No", "type": "gateway_auth_error", "code": "gateway_auth_failed"}}
            ),
            errors.CredentialRefused,
            "gateway_auth_failed",
            "No",
        ),
        (
            reply(400, {"error": {"message": "Session key too long", "type": "t"}}),
            errors.BadRequest,
            "",
            "Session key too long",
        ),
        (reply(403, body=b"", content_type=None), errors.Forbidden, "", ""),
        (reply(404, {"error": "Job not found"}), errors.NotFound, "", "Job not found"),
        (
            reply(404, body=b"404: Not Found", content_type="text/plain; charset=utf-8"),
            errors.NotFound,
            "",
            "404: Not Found",
        ),
        (
            provider_error(409, "No pending approval", "approval_not_pending"),
            errors.Conflict,
            "approval_not_pending",
            "No pending approval",
        ),
        (
            provider_error(413, "Too large", "body_too_large"),
            errors.TooLarge,
            "body_too_large",
            "Too large",
        ),
        (
            provider_error(429, "Too many", "rate_limit_exceeded", Retry_After="1"),
            errors.Saturated,
            "rate_limit_exceeded",
            "Too many",
        ),
        (reply(501, {"error": {"message": "Off", "code": 7}}), errors.Unsupported, "", "Off"),
        (
            provider_error(503, "Draining", "gateway_draining", Retry_After="1"),
            errors.Draining,
            "gateway_draining",
            "Draining",
        ),
        (html("<h1>Forbidden</h1>", 403), errors.Forbidden, "", "<h1>Forbidden</h1>"),
    ],
)
def test_every_shape_of_a_refusal_is_definitive(hermes, answer, leaf, reason, detail):
    hermes.script("POST", "/v1/runs", answer)
    error = start(hermes)
    assert type(error) is leaf
    assert (error.changed, error.reason, error.detail) == ("refused", reason, detail)
    assert len(hermes.mutations()) == 1


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (b"", ("", "")),
        (b"[1]", ("", "[1]")),
        (b'"text"', ("", '"text"')),
        (b'{"error": null}', ("", '{"error": null}')),
        (
            b'{"error": {"message": ["x"], "code": "Not A Code!"}}',
            ("", '{"error": {"message": ["x"], "code": "Not A Code!"}}'),
        ),
        (b'{"error": {"message": "m", "code": "' + b"c" * 65 + b'"}}', ("", "m")),
        (b"\xff\xfe", ("", "\ufffd\ufffd")),
    ],
)
def test_an_odd_error_body_is_text_and_no_more(body, facts):
    assert error_facts(body) == facts


def test_retry_after_of_a_refusal_is_told_and_capped(hermes):
    hermes.script(
        "POST",
        "/v1/runs",
        provider_error(429, "Too many", Retry_After="1"),
        provider_error(503, "Draining", "gateway_draining", Retry_After="100000000"),
    )
    assert start(hermes).retry_after == 1.0
    assert start(hermes).retry_after == 300.0


# Outcome unknown (case 43: whatever happens, one POST).


def flood_of_headers() -> Answer:
    lines = "".join(f"X-{number}: a\r\n" for number in range(200_000))
    return raw(f"HTTP/1.1 202 Accepted\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode())


UNKNOWN = {
    "closed without a reply": (close(), errors.ReplyLost),
    "reset": (reset(), errors.ReplyLost),
    "half a reply": (half(), errors.ReplyLost),
    "half a status line": (raw(b"HTTP/1.1 20"), errors.ReplyLost),
    "half a refusal": (half({"error": "no"}, 400), errors.ReplyLost),
    "half a chunked reply": (
        raw(b'HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"run'),
        errors.ReplyLost,
    ),
    "internal error": (
        reply(
            500, body=b"500 Internal Server Error\n\nServer got itself in trouble", content_type="text/plain"
        ),
        errors.ServerFault,
    ),
    "job error": (reply(500, {"error": "Cannot resume"}), errors.ServerFault),
    "503 of a proxy": (reply(503, body=b"busy", headers=(("Retry-After", "0"),)), errors.ServerFault),
    "504": (html("Gateway Timeout", 504), errors.ServerFault),
    "method not allowed": (reply(405, body=b"405: Method Not Allowed"), errors.UnexpectedStatus),
    "request timeout": (reply(408, body=b""), errors.UnexpectedStatus),
    "partial content": (reply(206, {"run_id": RUN_ID}), errors.UnexpectedStatus),
    "no content": (reply(204), errors.UnexpectedStatus),
    "login page": (html(), errors.ReplyUndecodable),
    "not JSON": (reply(202, body=b"{run_id"), errors.ReplyUndecodable),
    "empty": (reply(202, body=b""), errors.ReplyUndecodable),
    "NaN": (reply(202, body=b'{"run_id": NaN}'), errors.ReplyUndecodable),
    "two run ids": (
        reply(202, body=b'{"run_id": "run_' + b"a" * 32 + b'", "run_id": "x"}'),
        errors.ReplyUndecodable,
    ),
    "absurd depth": (reply(202, body=b"[" * 100_000), errors.ReplyUndecodable),
    "compressed": (gzipped({"run_id": RUN_ID}), errors.ReplyUndecodable),
    "compressed refusal": (gzipped({"error": "no"}, status=400), errors.ReplyUndecodable),
    "too large": (reply(202, body=b'"' + b"a" * (16 * 1024 * 1024) + b'"'), errors.ReplyUndecodable),
    "header flood": (flood_of_headers(), errors.ReplyUndecodable),
    "broken header": (
        raw(b"HTTP/1.1 202 Accepted\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\n{}"),
        errors.ReplyUndecodable,
    ),
    "not HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), errors.ReplyUndecodable),
    "switching protocols": (
        raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        errors.ReplyUndecodable,
    ),
    "endless interim replies": (raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000), errors.ReplyLost),
    "no run id": (reply(202, {"status": "started"}), errors.ReplyIncomplete),
    "empty run id": (reply(202, {"run_id": ""}), errors.ReplyIncomplete),
    "numeric run id": (reply(202, {"run_id": 7}), errors.ReplyIncomplete),
    "run id with a newline": (reply(202, {"run_id": RUN_ID + "\n"}), errors.ReplyIncomplete),
    "list": (reply(202, [RUN_ID]), errors.ReplyIncomplete),
    "null": (reply(202, body=b"null"), errors.ReplyIncomplete),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_reply_that_proves_nothing_is_unknown_and_is_not_resent(hermes, name):
    answer, leaf = UNKNOWN[name]
    hermes.script("POST", "/v1/runs", answer)
    error = start(hermes)
    assert type(error) is leaf
    assert error.changed == "unknown"
    assert len(hermes.mutations()) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_token_stays_home(hermes, status):
    with FakeHermes() as elsewhere:
        hermes.script("POST", "/v1/runs", redirect(elsewhere.url + "/v1/runs", status))
        error = start(hermes)
        assert type(error) is errors.Redirected
        assert error.changed == "unknown"
        assert elsewhere.connections == 0
    assert len(hermes.mutations()) == 1


@pytest.mark.parametrize("answer", [hang(), drip({"run_id": RUN_ID}, every=0.03), default(5.0)])
def test_a_mutation_is_cut_at_its_timeout_and_is_then_unknown(hermes, answer):
    hermes.script("POST", "/v1/runs", answer)
    error = start(hermes, WireRequest("POST", "/v1/runs", b'{"input":"x"}', 0.3, ("run_id",)))
    assert type(error) is errors.ReplyLost
    assert len(hermes.mutations()) == 1


def test_a_mutation_is_cut_at_the_calls_deadline_if_that_is_earlier(hermes):
    hermes.script("POST", "/v1/runs", drip({"run_id": RUN_ID}, every=0.03))
    with pytest.raises(errors.ReplyLost):
        Client(target(hermes)).send(START, call(deadline=datetime.now(UTC) + timedelta(seconds=0.3)))


def test_a_slow_but_whole_reply_in_time_is_a_reply(hermes):
    hermes.script("POST", "/v1/runs", drip({"run_id": RUN_ID}, every=0.002, status=202))
    assert Client(target(hermes)).send(START, call()).value == {"run_id": RUN_ID}


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A listening socket that a test accepts from by hand."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)
        yield listening


LARGE = WireRequest("POST", "/v1/runs", b"x" * 9_999_999, 0.5, ("run_id",))


def test_a_server_that_takes_only_a_part_of_the_request_leaves_the_outcome_unknown(deaf):
    client = Client(Target("e", f"http://127.0.0.1:{deaf.getsockname()[1]}", "t", LOOPBACK, "acme"))
    with pytest.raises(errors.ReplyLost):
        client.send(LARGE, call())  # its buffers fill up, nobody reads them
    with deaf.accept()[0] as taken:
        assert taken.recv(4) == b"POST"


def test_a_server_that_closes_in_the_middle_of_the_request_leaves_the_outcome_unknown(deaf):
    def accept_and_reset() -> None:
        with deaf.accept()[0] as taken:
            taken.recv(1000)

    thread = threading.Thread(target=accept_and_reset)
    thread.start()
    client = Client(Target("e", f"http://127.0.0.1:{deaf.getsockname()[1]}", "t", LOOPBACK, "acme"))
    with pytest.raises(errors.ReplyLost):
        client.send(replace(LARGE, timeout=5.0), call())
    thread.join()


def test_a_chunked_reply_is_capped_as_well(hermes):
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n"
    hermes.script("POST", "/v1/runs", raw(head + chunk * 300), raw(head + b"1\r\n \r\n" * 7_000_000))
    assert type(start(hermes)) is errors.ReplyUndecodable
    assert start(hermes, replace(START, timeout=0.5)).changed == "unknown"


def test_a_stream_can_be_closed_from_our_side(hermes):
    run = hermes.run()
    run.emit({"event": "message.delta", "delta": "a"})

    async def read() -> None:
        async with Client(target(hermes)).stream(run.run_id, call()) as stream:
            await anext(stream)
            await stream.aclose()

    asyncio.run(read())
    assert hermes.mutations() == []


class SoftTimeLimit(Exception):
    """As a task runner raises it in the middle of the work."""


def interrupted(work: Callable[[], object], after: float) -> None:
    def raise_it(*_: object) -> None:
        raise SoftTimeLimit

    previous = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_soft_time_limit_in_the_middle_of_the_call_is_unknown(hermes):
    hermes.script("POST", "/v1/runs", hang())
    with pytest.raises(errors.ReplyLost):
        interrupted(lambda: Client(target(hermes)).send(START, call()), 0.2)
    assert len(hermes.mutations()) == 1


def test_a_soft_time_limit_before_the_first_byte_is_not_sent(hermes):
    def slow(host: str, port: int) -> list[str]:
        time.sleep(1)
        return ["127.0.0.1"]

    client = Client(target(hermes, base_url=f"http://hermes.example:{hermes.port}"), lookup=slow)
    with pytest.raises(errors.Cancelled):
        interrupted(lambda: client.send(START, call()), 0.1)
    assert hermes.connections == 0


def test_a_lost_reply_after_a_real_effect_left_exactly_one_run(hermes):
    hermes.script("POST", "/v1/runs", close().with_effect())
    assert start(hermes).changed == "unknown"
    assert len(hermes.runs) == 1


# Where the connection goes.


def test_a_name_that_leads_to_a_private_address_gets_no_connection(hermes):
    client = Client(
        target(hermes, base_url=f"http://hermes.example:{hermes.port}", allow_networks=()),
        lookup=lambda *_: ["127.0.0.1"],
    )
    with pytest.raises(errors.AddressRefused):
        client.send(START, call())
    with pytest.raises(errors.AddressRefused):
        read_stream(client, RUN_ID)
    assert hermes.connections == 0


def test_the_host_header_is_the_stored_name_whatever_address_is_used(hermes):
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    base_url = f"http://hermes.example:{hermes.port}"
    Client(target(hermes, base_url=base_url), lookup=lookup).send(START, call())
    assert hermes.mutations()[0].headers["host"] == f"hermes.example:{hermes.port}"
    assert asked == ["hermes.example"]


def test_the_next_checked_address_is_tried_before_anything_was_sent(hermes):
    # Nothing listens on 127.0.0.2 at this port: the fake is bound to 127.0.0.1 alone.
    client = Client(
        target(hermes, base_url=f"http://hermes.example:{hermes.port}"),
        lookup=lambda *_: ["127.0.0.2", "127.0.0.1"],
    )
    assert client.send(START, call()).status == 202
    assert len(hermes.mutations()) == 1


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `name`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(public, private)
    return server, ssl.create_default_context(cafile=str(public))


def test_tls_is_checked_against_the_stored_name(tmp_path):
    server, trusting = certificate(tmp_path, "hermes.example")
    with FakeHermes(tls=server) as hermes:
        right, wrong = (
            Client(
                target(hermes, base_url=f"https://{name}:{hermes.port}"),
                lookup=lambda *_: ["127.0.0.1"],
                tls=trusting,
            )
            for name in ("hermes.example", "other.example")
        )
        assert right.send(START, call()).status == 202
        run = hermes.run()
        run.complete()
        assert b"run.completed" in read_stream(right, run.run_id)
        with pytest.raises(errors.ConnectFailed):
            wrong.send(START, call())
        with pytest.raises(errors.ConnectFailed):
            read_stream(wrong, run.run_id)
        assert len(hermes.mutations()) == 1


def test_an_unknown_certificate_authority_is_not_trusted(tmp_path):
    server, _ = certificate(tmp_path, "hermes.example")
    with FakeHermes(tls=server) as hermes:
        client = Client(
            target(hermes, base_url=f"https://hermes.example:{hermes.port}"), lookup=lambda *_: ["127.0.0.1"]
        )
        with pytest.raises(errors.ConnectFailed):
            client.send(START, call())
        assert hermes.mutations() == []


# The event stream (case 21).


def test_a_stream_gives_its_bytes_and_ends_when_hermes_ends_it(hermes):
    run = hermes.run()
    run.emit({"event": "message.delta", "delta": "hi"})
    run.complete("hi")
    got = read_stream(Client(target(hermes)), run.run_id)
    assert got.count(b"data: ") == 2
    assert got.endswith(b": stream closed\n\n")


def test_a_stream_is_asked_for_as_a_stream_and_never_compressed(hermes):
    run = hermes.run()
    run.complete()
    read_stream(Client(target(hermes)), run.run_id)
    headers = hermes.requests[0].headers
    assert (headers["accept"], headers["accept-encoding"]) == ("text/event-stream", "identity")
    assert headers["x-aip-principal-id"] == "rita"
    assert "origin" not in headers


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (html(), 200),
        (reply(200, {"error": {"message": "no"}}), 200),
        (reply(204, content_type=None), 204),
        (reply(200, body=b"data: {}\n\n", content_type=None), 200),
        (reply(200, body=b"data: {}\n\n", content_type="text/event-stream2"), 200),
        (gzipped({"event": "x"}, content_type="text/event-stream"), 200),
    ],
    ids=["login page", "JSON", "no content", "no content type", "almost the type", "compressed"],
)
def test_a_success_that_is_no_event_stream_is_not_read_as_one(hermes, answer, status):
    error = refused_stream(hermes, answer)
    assert type(error) is errors.NotAStream
    assert error.status == status


@pytest.mark.parametrize(
    ("answer", "leaf"),
    [
        (provider_error(401, "Invalid API key", "invalid_api_key"), errors.CredentialRefused),
        (provider_error(404, "Run not found", "run_not_found"), errors.NotFound),
        (provider_error(503, "Draining", "gateway_draining"), errors.Draining),
        (html("busy", 503), errors.ServerFault),
        (half({"error": {"message": "cut off"}}, 429), errors.Saturated),
        (close(), errors.ReplyLost),
        (reset(), errors.ReplyLost),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), errors.ReplyLost),
    ],
)
def test_a_stream_that_is_not_given_says_why(hermes, answer, leaf):
    assert type(refused_stream(hermes, answer)) is leaf


def test_a_streams_redirect_is_not_followed(hermes):
    with FakeHermes() as elsewhere:
        error = refused_stream(hermes, redirect(elsewhere.url, 302))
        assert type(error) is errors.Redirected
        assert elsewhere.connections == 0


def test_a_streams_back_off_is_at_most_five_minutes(hermes):
    answer = reply(503, body=b"busy", headers=(("Retry-After", "100000000"),))
    assert refused_stream(hermes, answer).retry_after == 300.0


def test_an_event_stream_that_ends_at_once_is_empty_and_no_error(hermes):
    hermes.script("GET", run_path(RUN_ID, "events"), reply(200, body=b"", content_type="text/event-stream"))
    assert read_stream(Client(target(hermes)), RUN_ID) == b""


def test_a_lying_charset_changes_no_byte(hermes):
    data = 'data: {"delta": "né 🧪"}\n\n'.encode()
    kind = "Text/Event-Stream; charset=iso-8859-1"
    hermes.script("GET", run_path(RUN_ID, "events"), reply(200, body=data, content_type=kind))
    assert read_stream(Client(target(hermes)), RUN_ID) == data


def test_silence_beyond_the_idle_limit_ends_a_stream(hermes):
    run = hermes.run()
    with pytest.raises(errors.StreamSilent):
        read_stream(Client(target(hermes)), run.run_id, idle=0.2)


def test_keepalive_comments_are_no_silence():
    with FakeHermes(keepalive=0.1) as hermes:
        run = hermes.run()
        with pytest.raises(errors.StreamSilent):
            read_stream(Client(target(hermes)), run.run_id, idle=0.02)
        run = hermes.run()

        async def read() -> list[bytes]:
            async with Client(target(hermes)).stream(run.run_id, call(), idle=1.0) as stream:
                return [await anext(stream) for _ in range(3)]

        assert asyncio.run(read()) == [b": keepalive\n\n"] * 3


def test_a_connection_that_breaks_in_the_middle_of_a_stream_is_told(hermes):
    run = hermes.run()
    run.emit({"event": "message.delta", "delta": "a"})

    async def read() -> bytes:
        async with Client(target(hermes)).stream(run.run_id, call()) as stream:
            first = await anext(stream)
            run.cut()
            with pytest.raises(errors.ReplyLost):
                await anext(stream)
            return first

    assert b"message.delta" in asyncio.run(read())


def test_headers_of_a_stream_that_drip_do_not_hold_it_open(hermes, monkeypatch):
    monkeypatch.setattr(client_module, "STREAM_HEADERS_SECONDS", 0.3)
    assert type(refused_stream(hermes, drip({}, every=0.03))) is errors.ReplyLost


def test_an_endless_answer_where_a_stream_was_expected_is_read_in_part_only(hermes):
    hermes.script(
        "GET", run_path(RUN_ID, "events"), reply(500, body=b"x" * 5_000_000, content_type="text/plain")
    )
    with pytest.raises(errors.ServerFault):
        read_stream(Client(target(hermes)), RUN_ID)


@pytest.mark.parametrize("last", ["", "1\r\nX: y", "é", "1" * 129])
def test_a_last_event_id_that_is_no_header_value_is_refused(hermes, last):
    with pytest.raises(errors.InvalidInput):
        read_stream(Client(target(hermes)), RUN_ID, last_event_id=last)
    assert hermes.connections == 0


# The fake itself: what other tests rely on.


def answer_run(hermes: FakeHermes, run_id: str, **body: Any) -> Any:
    wire = WireRequest(
        "POST", run_path(run_id, "approval"), json.dumps(body).encode(), 5.0, ("run_id", "resolved")
    )
    return Client(target(hermes)).send(wire, call()).value


def test_the_fake_releases_the_oldest_request_whatever_the_answer_names(hermes):
    run = hermes.run()
    run.ask("first")
    run.ask("second")
    assert answer_run(hermes, run.run_id, choice=" Allow ", request_id="second")["choice"] == "once"
    assert run.released == [("first", "once")]
    assert run.status == "running"
    run.expire_approval()
    with pytest.raises(errors.Conflict) as caught:
        answer_run(hermes, run.run_id, choice="deny")
    assert caught.value.reason == "approval_not_pending"
    run.complete()
    with pytest.raises(errors.Conflict) as caught:
        answer_run(hermes, run.run_id, choice="deny")
    assert caught.value.reason == "approval_not_active"


def test_the_newer_fake_binds_an_answer_to_its_request():
    with FakeHermes(generation="0.22") as hermes:
        run = hermes.run()
        run.ask("first")
        second = run.ask("second")
        answer_run(hermes, run.run_id, choice="once", request_id=second["request_id"])
        assert run.released == [("second", "once")]
        with pytest.raises(errors.Conflict):
            answer_run(hermes, run.run_id, choice="once", request_id=second["request_id"])
        assert len(run.pending) == 1


def test_the_newer_fake_replays_a_stream_and_a_keyed_start():
    with FakeHermes(generation="0.22") as hermes:
        client = Client(target(hermes))
        first, second = client.send(START, call()), client.send(START, call())
        assert second.value["run_id"] == first.value["run_id"]
        assert second.headers["idempotency-replayed"] == "true"
        other = WireRequest("POST", "/v1/runs", b'{"input":"other"}', 5.0)
        with pytest.raises(errors.Conflict):
            client.send(other, call())
        run = hermes.run(first.value["run_id"])
        for number in range(3):
            run.emit({"event": "message.delta", "delta": str(number)})
        run.complete()
        whole = read_stream(client, run.run_id)
        rest = read_stream(client, run.run_id, last_event_id="1")
        assert whole.startswith(b": open\n\nid: 0\ndata: ")
        assert b"id: 1\n" not in rest
        assert b"id: 2\n" in rest


def test_the_older_fake_gives_a_stream_to_one_reader_once(hermes):
    run = hermes.run()
    run.complete()
    read_stream(Client(target(hermes)), run.run_id)
    with pytest.raises(errors.NotFound):
        read_stream(Client(target(hermes)), run.run_id)


def test_the_fake_stops_saturates_and_drains_as_hermes_does(hermes):
    client = Client(target(hermes))
    run = hermes.run(client.send(START, call()).value["run_id"])
    stop = WireRequest("POST", run_path(run.run_id, "stop"), None, 5.0, ("run_id", "status"))
    assert client.send(stop, call()).value["status"] == "stopping"
    run.emit({"event": "run.cancelled"})
    with pytest.raises(errors.NotFound):
        client.send(stop, call())
    hermes.max_runs = 1
    hermes.run()
    assert type(start(hermes)) is errors.Saturated
    hermes.draining = True
    assert type(start(hermes)) is errors.Draining


def test_the_fake_as_a_process_logs_each_mutation_before_it_answers(tmp_path):
    with FakeProcess(tmp_path / "log.jsonl") as process:
        client = Client(Target("main", process.url, process.key, LOOPBACK, "acme"))
        run_id = client.send(START, call()).value["run_id"]
        process.call(f"/_fake/runs/{run_id}/ask", {"command": "ls"})
        assert process.call(f"/_fake/runs/{run_id}")["status"]["status"] == "waiting_for_approval"
        process.call(
            "/_fake/script", {"method": "POST", "pattern": ".*/stop", "answers": [{"fault": "close"}]}
        )
        with pytest.raises(errors.ReplyLost):
            client.send(WireRequest("POST", run_path(run_id, "stop"), None, 5.0), call())
        assert [seen.path for seen in process.mutations()] == ["/v1/runs", run_path(run_id, "stop")]
        assert process.mutations()[0].body == START.body
