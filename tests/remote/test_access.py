"""Who is talked to, and with what: tokens by reference, TLS, no redirects, no other version."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid, Log, NotFound, Unavailable
from holdfast.clock import SystemClock
from holdfast.errors import Denied
from holdfast.server.tokens import FILE, TokenFile, make
from tests.remote.cutting_proxy import CuttingProxy, response
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedLog, dict[str, str]]]:
    """A server that wants tokens, and some of them."""
    directory = tmp_path_factory.mktemp("locked") / "log"
    with holdfast.open(directory) as log:
        log.topic("orders").append(b"one")
        log.topic("secret").append(b"two")
    clock, file = SystemClock(), TokenFile(directory / FILE)
    made: dict[str, str] = {}
    for name, scope, topic in (("all", "admin", "*"), ("writer", "append", "orders"), ("reader", "read", "orders")):
        text, stored = make(name, (scope,), (topic,), clock)
        file.add(stored, clock)
        made[name] = text
    with ServedLog(directory) as server:
        yield server, made


def test_tokens_come_from_the_environment_a_file_or_a_function(
    locked: tuple[ServedLog, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tokens = locked
    monkeypatch.setenv("MY_TOKEN", tokens["all"])
    (tmp_path / "token").write_text(tokens["all"] + "\n")
    for reference in ("env:MY_TOKEN", f"file:{tmp_path / 'token'}", lambda: tokens["all"]):
        with server.connect(token=reference) as log:
            assert "orders" in log.topics()


def test_a_token_itself_is_refused_and_never_shown(locked: tuple[ServedLog, dict[str, str]]) -> None:
    server, tokens = locked
    for given in (tokens["all"], tokens["all"].encode(), "env:", ""):
        with pytest.raises(Invalid, match="by reference") as caught:
            server.connect(token=given)
        assert tokens["all"] not in str(caught.value) + repr(caught.value)


def test_what_a_token_does_not_allow_is_denied_with_nothing_written(
    locked: tuple[ServedLog, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    server, tokens = locked
    caplog.set_level(logging.DEBUG)
    secret = "hft1_" + "x" * 60
    with pytest.raises(Denied) as caught:
        server.connect(token=lambda: secret)
    with pytest.raises(Denied):
        server.connect()
    with server.connect(token=lambda: tokens["writer"]) as log:
        assert log.topic("orders").append(b"three").offset >= 1
        with pytest.raises(Denied):
            log.topic("secret")
        with pytest.raises(Denied):
            log.topic("new")
        with pytest.raises(Denied):
            list(log.topic("orders").read())
        shown = repr(log) + repr(log.topic("orders"))
    with server.connect(token=lambda: tokens["reader"]) as log:
        topic = log.topic("orders")
        with pytest.raises(Denied):
            topic.append(b"four")
        assert b"four" not in [record.payload for record in topic.read()]
    for text in (shown, caplog.text, str(caught.value)):
        assert not any(token in text for token in (*tokens.values(), secret))


def test_a_token_that_was_replaced_is_read_again(locked: tuple[ServedLog, dict[str, str]], tmp_path: Path) -> None:
    server, tokens = locked
    file = tmp_path / "token"
    file.write_text(tokens["reader"])
    calls: list[int] = []

    def token() -> str:
        calls.append(1)
        return file.read_text().strip()

    with server.connect(token=token) as log:
        assert len(calls) == 1
        log._journal._exchange._bearer = "Bearer hft1_old"  # as if this one had been revoked meanwhile
        assert "orders" in log.topics()
        assert len(calls) == 2


def test_a_token_travels_over_tls_or_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="unencrypted"):
        holdfast.connect("http://192.0.2.1:7474", token=lambda: "t")
    with pytest.raises(Unavailable):  # said explicitly, it is tried; nobody is there
        holdfast.connect("http://127.0.0.1:9", token=lambda: "t", timeout=0.1)


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://u:secret@x", "http://x?token=secret", "http://x#secret", "x", 5, "http://x:99999"],
)
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        holdfast.connect(url)
    assert "secret" not in str(caught.value)


def test_a_redirect_is_not_followed(served: ServedLog, proxy: CuttingProxy) -> None:
    for status in (301, 302, 307, 308):
        proxy.plan = lambda seen, status=status: response(status, location="http://192.0.2.1/v1")  # type: ignore[misc]
        with pytest.raises(Invalid, match="redirects"):
            served.connect(proxy.url)


@pytest.mark.parametrize(
    "answer",
    [
        response(200, b'{"holdfast":"9","api":2,"log":"00"}'),
        response(200, b"{}").replace(b"holdfast-api: 1", b"holdfast-api: 2"),
        response(200, b"<html>").replace(b"holdfast-api: 1", b"server: other"),
        response(404, b"<html>").replace(b"holdfast-api: 1", b"server: other"),
        response(200, b'{"holdfast":"0","api":1,"log":"zz"}'),
    ],
    ids=["newer", "newer header", "another server", "another server's 404", "nonsense"],
)
def test_another_version_or_another_server_is_refused_in_one_line(
    served: ServedLog, proxy: CuttingProxy, answer: bytes
) -> None:
    proxy.plan = lambda seen: answer
    with pytest.raises((Invalid, NotFound, Unavailable)) as caught:
        served.connect(proxy.url, timeout=1)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_nobody_there_is_unavailable_and_says_where(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        holdfast.connect("http://127.0.0.1:9", timeout=0.1)
    with pytest.raises(Unavailable):
        holdfast.connect("http://no-such-host.invalid:1", timeout=0.1)


def test_tls_is_verified_by_the_authorities_that_are_given_and_connects_again(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "localhost"), tmp_path / "key.pem"
    settings = {"server__tls_certificate": certificate, "server__tls_key": key}
    with ServedLog(tmp_path / "log", **settings) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        with holdfast.connect(url, ca=certificate) as log:
            assert log.topic("t").append(b"x").offset == 0
            log.space("s").put("k", b"found again")  # the first item of this log: what hides its key is kept with it
            server.restart()
            assert log.space("s").get("k") == b"found again"
        with pytest.raises(Unavailable, match="not trusted"):
            holdfast.connect(url)
        with pytest.raises(Unavailable, match="not trusted"):  # the right authority, another name
            holdfast.connect(server.url, ca=certificate)
    with pytest.raises(Invalid, match="authorities"):
        holdfast.connect("https://localhost:1", ca=tmp_path / "nothing")
    with pytest.raises(Invalid, match="TLS"):
        holdfast.connect("http://localhost:1", ca=certificate)


def _certificate(directory: Path, host: str) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (directory / "key.pem").chmod(0o600)
    (directory / "cert.pem").write_bytes(made.public_bytes(pem))
    return directory / "cert.pem"


def test_a_forgotten_client_warns_and_ends(served: ServedLog) -> None:
    log: Log | None = served.connect()
    with pytest.warns(ResourceWarning, match="unclosed connection"):
        del log


def test_a_client_waits_as_long_as_it_says_and_the_limits_are_the_servers(tmp_path: Path) -> None:
    patient = {"journal": {"ack_timeout_ms": 60_000, "payload_bytes_max": 50}}
    with ServedLog(tmp_path / "log") as server, server.connect(settings=patient) as log:
        assert log.settings.journal.ack_timeout_ms == 60_000
        assert log.settings.journal.payload_bytes_max == holdfast.Settings().journal.payload_bytes_max


def test_a_server_without_tls_is_reported_by_the_right_name(tmp_path: Path) -> None:
    with ServedLog(tmp_path / "log") as server, pytest.raises(Unavailable, match="may begin with http://"):
        holdfast.connect(server.url.replace("http://", "https://"), timeout=1)
