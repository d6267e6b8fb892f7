"""The end of a server: requests are finished, followers ended, the log closed; TLS; a port that is taken."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import threading
import warnings
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli.program import program
from holdfast.log.local_parts import parts_of
from holdfast.remote.http.server_connections import tls_context
from holdfast.server.serving import _tls
from holdfast.server_settings import ServerSettings
from tests.server.conftest import PATIENCE, events

pytestmark = pytest.mark.disk


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_followers_and_closes_the_log(serve, tmp_path, number):
    """With exit code 0; what was answered is there, and the log can be opened at once."""
    server = serve(tmp_path / "log")
    server.append("t", "a")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", "/v1/topics/t/follow?start=0")
    stream = events(connection.getresponse())
    assert next(kind for kind, _, _ in stream if kind != ":") == "record"
    idle = server.socket()
    code, said = server.stop(number)
    assert code == 0, said
    assert [event for event in stream if event[0] != ":"] == [("end", "", '{"reason":"shutdown"}')]
    assert "closed" in said
    assert idle.recv(10) == b""
    idle.close()
    connection.close()
    with holdfast.open(tmp_path / "log") as log:
        assert [record.payload for record in log.topic("t").read()] == [b"a"]


def test_what_is_answered_while_it_ends_is_durable(serve, tmp_path):
    """Eight clients append as fast as they can; the server has to end in the middle."""
    server = serve(tmp_path / "log")
    acknowledged: list[int] = []
    enough = threading.Event()

    def append(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        at = 0
        try:
            while True:
                at += 1
                payload = number * 1_000_000 + at
                body = json.dumps({"payload": str(payload)})
                connection.request("POST", "/v1/topics/t/records", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    return
                answer.read()
                acknowledged.append(payload)
                if len(acknowledged) > 200:
                    enough.set()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert enough.wait(PATIENCE)
    code, said = server.stop()
    assert code == 0, said
    for thread in threads:
        thread.join(PATIENCE)
    with holdfast.open(tmp_path / "log") as log:
        kept = [int(record.payload) for record in log.topic("t").read()]
    assert len(kept) == len(set(kept))
    assert set(acknowledged) <= set(kept)


def test_a_killed_server_loses_nothing_that_it_answered(serve, tmp_path):
    """And a producer that sends again what was not answered writes it once."""
    server = serve(tmp_path / "log")
    headers = {"holdfast-producer": "p", "holdfast-sequence": "1"}
    first = server.post("/v1/topics/t/records", [{"payload": "a"}, {"payload": "b"}], headers=headers)
    server.process.kill()
    server.process.wait(PATIENCE)
    after = serve(tmp_path / "log")
    again = after.post("/v1/topics/t/records", [{"payload": "a"}, {"payload": "b"}], headers=headers)
    assert again.json["repeated"] is True
    assert again.json["runs"][0]["offset"] == first.json["runs"][0]["offset"]
    assert after.payloads("t") == ["a", "b"]


def test_a_port_that_is_taken_and_addresses_that_are_none(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--listen", address])
        assert result.exit_code == 1
        assert "cannot listen" in result.stderr
    for wrong in ("7474", "localhost", "::1:7474", "127.0.0.1:99999", "127.0.0.1:http", ":7474"):
        result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--listen", wrong])
        assert result.exit_code == 1, wrong
        assert "hint:" in result.stderr


def certificate(folder):
    """A certificate for localhost, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "key.pem").chmod(0o600)
    return folder / "cert.pem", folder / "key.pem"


def test_tls_by_files(serve, tmp_path):
    """Requests, followers and the end work as without; a client that does not shake hands is bounded, too."""
    cert, key = certificate(tmp_path)
    files = ("--tls-certificate", str(cert), "--tls-key", str(key))
    server = serve(tmp_path / "log", *files, headers_timeout_ms=1500, connections_max=20)
    assert server.url.startswith("https://")
    trust = ssl.create_default_context(cafile=str(cert))

    def ask(method, path, body=None):
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=PATIENCE, context=trust)
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    assert ask("POST", "/v1/topics/t/records", '{"payload": "a"}')[0] == 200
    assert b'"a"' in ask("GET", "/v1/topics/t/records")[1]
    silent = [server.socket() for _ in range(60)]  # more than there are places, and none says a word
    for client in silent:
        try:
            assert client.recv(10) == b""
        except ConnectionError:
            pass
        client.close()
    with server.socket() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            pass
    assert ask("GET", "/healthz")[0] == 200
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=PATIENCE, context=trust)
    connection.request("GET", "/v1/topics/t/follow?start=0")
    stream = events(connection.getresponse())
    assert next(kind for kind, _, _ in stream if kind != ":") == "record"
    code, said = server.stop()
    assert code == 0, said
    assert [event[0] for event in stream if event[0] != ":"] == ["end"]
    connection.close()


def test_files_of_tls_that_cannot_be_used(tmp_path):
    cert, key = certificate(tmp_path)
    result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--tls-certificate", str(cert)])
    assert "go together" in result.stderr
    options = ["--listen", "127.0.0.1:0", "--tls-certificate", str(key), "--tls-key", str(key)]
    result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), *options])
    assert (result.exit_code, "PEM" in result.stderr) == (1, True)


def test_a_key_that_everybody_may_read_is_refused(tmp_path):
    cert, key = certificate(tmp_path)
    key.chmod(0o644)
    options = ["--listen", "127.0.0.1:0", "--tls-certificate", str(cert), "--tls-key", str(key)]
    result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), *options])
    assert (result.exit_code, "everybody may read the TLS key" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("suite", "version"),
    [
        ("ECDHE-ECDSA-AES256-SHA384", "TLSv1_2"),
        ("ECDHE-ECDSA-AES128-SHA", "TLSv1_2"),
        ("ECDHE+AESGCM", "TLSv1_2"),
        ("DEFAULT", "TLSv1_3"),
        ("DEFAULT", "TLSv1_1"),
    ],
)
def test_suites_without_authentication_or_forward_secrecy_are_off(tmp_path, suite, version):
    """TLS 1.3, and of 1.2 what authenticates as it encrypts, with new keys each time: no CBC, no RSA key exchange."""
    cert, key = certificate(tmp_path)
    server = _tls(ServerSettings(tls_certificate=str(cert), tls_key=str(key)))
    client = ssl.create_default_context(cafile=str(cert))
    assert not any("AEAD" not in one["description"] for one in tls_context(str(cert)).get_ciphers())  # ours, too
    client.set_ciphers(suite)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(ours, theirs, server_hostname="localhost"), server.wrap_bio(theirs, ours, server_side=True))
    fine = (suite, version) in (("ECDHE+AESGCM", "TLSv1_2"), ("DEFAULT", "TLSv1_3"))
    try:
        for _ in range(4):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        shaken = ends[0].cipher() is not None and ends[1].cipher() is not None
    except ssl.SSLError:
        shaken = False
    assert shaken == fine


def test_a_poisoned_log_is_not_ready(tmp_path):
    """The process lives, and says that the log does not: its supervisor restarts it."""
    import asyncio

    from holdfast.server.access import Access
    from holdfast.server.application import Application
    from holdfast.server.guards.browser_guard import BrowserGuard
    from holdfast.server.served import Served
    from holdfast.server.tokens import TokenFile

    async def ask(application, path):
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request"}

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        await application(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def check():
        log = holdfast.open(tmp_path / "log")
        access = Access(TokenFile(tmp_path / "TOKENS"), None, parts_of(log).context.clock, 0)
        served = Served(log, log.settings.server, access, BrowserGuard("localhost", "", is_loopback=True))
        application = Application(served)
        assert (await ask(application, "/readyz"))[0] == 200
        await log.close_async()
        status, body = await ask(application, "/readyz")
        assert (status, json.loads(body)["kind"]) == (503, "Closed")
        assert (await ask(application, "/healthz"))[0] == 200
        served.close()

    asyncio.run(check())
