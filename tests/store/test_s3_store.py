"""S3 for threads: every failure has its cause, a create is one request, and no secret shows anywhere.

All of it is said to a real server, most of it through a proxy that spoils the answer.
"""

from __future__ import annotations

import datetime
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.clock import SystemClock
from holdfast.store.address import parse_url
from holdfast.store.credentials import Credentials
from holdfast.store.port import AlreadyExists, Body, StoreRefused, StoreUnavailable
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_settings import StoreSettings
from tests.store.conftest import GivenCredentials, OpenS3, credentials
from tests.store.fault_proxy import (
    Fault,
    FaultProxy,
    Request,
    always,
    answer,
    at_random,
    bandwidth,
    close_after,
    close_before,
    conflict,
    delay,
    expired_token,
    first,
    go_stale,
    half_open,
    once_per_key,
    precondition_failed,
    reset_after,
    reset_before,
    reset_midway,
    server_error,
    slow_down,
    truncate,
)
from tests.store.servers import READER_ACCESS_KEY, READER_SECRET_KEY, SECRET_KEY, S3Server, weed

pytestmark = pytest.mark.store

Proxy = Callable[..., FaultProxy]
BODY = Body.of(b"content" * 20_000)

PASSING = [
    (server_error(), "server_error"),
    (server_error(502, "BadGateway"), "server_error"),
    (slow_down(), "slow_down"),
    (slow_down(7), "slow_down"),
    (answer(429, "TooManyRequests"), "slow_down"),
    (conflict(), "conflict"),
    (expired_token(), "credentials"),
    (answer(400, "BadDigest"), "bad_digest"),
    (answer(400, "RequestTimeout"), "timeout"),
    (reset_before(), "reset"),
    (reset_midway(), "reset"),
    (reset_after(), "reset"),
    (close_before(), "reset"),
    (close_after(), "reset"),
]
LASTING = [
    (answer(403, "AccessDenied"), "forbidden"),
    (answer(403, "SignatureDoesNotMatch"), "credentials"),
    (answer(403, "InvalidAccessKeyId"), "credentials"),
    (answer(401, "Unauthorized"), "credentials"),
    (answer(403, "RequestTimeTooSkewed"), "clock_skew"),
    (answer(301, "PermanentRedirect"), "redirect"),
    (answer(307, "TemporaryRedirect", {"Location": "http://127.0.0.1:9/"}), "redirect"),
    (answer(400, "AuthorizationHeaderMalformed"), "redirect"),
    (answer(501, "NotImplemented"), "unsupported"),
    (answer(404, "NoSuchBucket"), "no_bucket"),
    (answer(400, "Whatever"), "other"),
    (answer(413, "EntityTooLarge"), "other"),
]


def named(case: object) -> str | None:
    return case.name if isinstance(case, Fault) else None


# -- creating ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "cause"), PASSING, ids=named)
def test_a_create_that_may_succeed_later_is_called_so(
    open_s3: OpenS3, fault_proxy: Proxy, fault: Fault, cause: str
) -> None:
    """One request was made, and not a second one; and the same again succeeds, or finds its own object."""
    proxy = fault_proxy(first(1, fault, "PUT"))
    store = open_s3(proxy.endpoint, retries=3)
    with pytest.raises(StoreUnavailable) as caught:
        store.create("a/1", BODY)
    assert caught.value.cause == cause
    assert proxy.counts == {fault.name: 1}
    if fault.kind in ("reset_after", "close_after"):
        with pytest.raises(AlreadyExists):
            store.create("a/1", BODY)
    else:
        assert store.head("a/1") is None
        store.create("a/1", BODY)
    assert store.get("a/1") == BODY.data


@pytest.mark.parametrize(("fault", "cause"), LASTING, ids=named)
def test_a_create_that_will_not_succeed_by_itself_is_refused(
    open_s3: OpenS3, fault_proxy: Proxy, fault: Fault, cause: str
) -> None:
    proxy = fault_proxy(always(fault))
    with pytest.raises(StoreRefused) as caught:
        open_s3(proxy.endpoint, retries=3).create("a/1", BODY)
    assert caught.value.cause == cause
    assert proxy.counts == {fault.name: 1}
    assert caught.value.hint or cause == "other"


def test_a_412_says_that_the_key_is_taken(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    with pytest.raises(AlreadyExists):
        open_s3(fault_proxy(always(precondition_failed())).endpoint).create("a/1", BODY)


def test_a_lost_reply_is_no_lost_race(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """The hazard of a client that retries: the first attempt is done, and the second would find the key taken."""
    proxy = fault_proxy(once_per_key(reset_after()))
    store = open_s3(proxy.endpoint, retries=5)
    with pytest.raises(StoreUnavailable):
        store.create("a/1", BODY)
    assert (proxy.counts["reset_after"], proxy.counts["pass"]) == (1, 0)
    assert store.get("a/1") == BODY.data


def test_a_create_of_any_size_is_one_request(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """In parts, each would be a request and the condition would hold for none of them."""
    seen: list[tuple[str, str]] = []
    proxy = fault_proxy(lambda request: seen.append((request.method, request.target)))
    open_s3(proxy.endpoint).create("big", Body.of(bytes(12 * 2**20)))
    assert [method for method, _ in seen] == ["PUT"]
    assert "uploads" not in seen[0][1]


def test_the_hash_travels_with_the_object(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """Twice: signed, and for the store to check."""
    seen: list[dict[str, str]] = []
    proxy = fault_proxy(lambda request: seen.append(request.headers))
    open_s3(proxy.endpoint).create("a/1", BODY)
    assert seen[0]["if-none-match"] == "*"
    assert seen[0]["x-amz-checksum-sha256"] == b64encode(BODY.sha256).decode()
    assert seen[0]["x-amz-content-sha256"] == BODY.sha256.hex()


def test_a_store_that_does_not_answer_is_left_after_the_timeout(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(always(half_open()))
    store = open_s3(proxy.endpoint, timeout_ms=300)
    for ask in (lambda: store.create("a/1", BODY), lambda: store.get("a/1")):
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.cause == "timeout"
    assert proxy.counts == {"half_open": 2}
    assert proxy.open_connections == 2, "the proxy has not given up yet"


def test_slow_lines_are_slow_and_nothing_else(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(lambda request: delay(0.2) if request.method == "GET" else bandwidth(400_000))
    store = open_s3(proxy.endpoint)
    begun = time.monotonic()
    store.create("a/1", BODY)
    assert time.monotonic() - begun > 0.3
    begun = time.monotonic()
    assert store.get("a/1") == BODY.data
    assert time.monotonic() - begun > 0.2
    assert proxy.counts == {"bandwidth": 1, "delay": 1}


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_went_stale_in_the_pool_do_no_harm(open_s3: OpenS3, fault_proxy: Proxy, reset: bool) -> None:
    """Closed while idle: what comes next is served on a new one, or fails as a reset and is not done."""
    proxy = fault_proxy(always(go_stale()))
    store = open_s3(proxy.endpoint)
    for number in range(5):
        proxy.policy = always(go_stale() if number % 2 else delay(0))
        try:
            store.create(f"a/{number}", BODY)
        except StoreUnavailable as error:
            assert error.cause == "reset"
            store.create(f"a/{number}", BODY)
        proxy.close_idle(reset=reset)
    assert len(list(store.list("a/"))) == 5


# -- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause"),
    [*(case for case in PASSING if case[0].kind != "reset_midway"), (truncate(5), "truncated")],
    ids=named,
)
def test_reads_tell_what_may_pass(open_s3: OpenS3, fault_proxy: Proxy, fault: Fault, cause: str) -> None:
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    store.create("a/1", BODY)
    proxy.policy = always(fault)
    for ask in (lambda: store.get("a/1"), lambda: store.get_range("a/1", 0, 9), lambda: list(store.list("a/"))):
        if cause == "conflict":
            continue  # no read is ever answered so
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.cause == cause


@pytest.mark.parametrize(("fault", "cause"), LASTING, ids=named)
def test_reads_tell_what_will_not_pass(open_s3: OpenS3, fault_proxy: Proxy, fault: Fault, cause: str) -> None:
    store = open_s3(fault_proxy(always(fault)).endpoint)
    for ask in (lambda: store.get("a/1"), lambda: list(store.list("a/")), lambda: store.delete(["a/1"])):
        with pytest.raises(StoreRefused) as caught:
            ask()
        assert caught.value.cause == cause


def test_reads_are_repeated_as_often_as_was_set(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, retries=2)
    store.create("a/1", BODY)
    proxy.policy = first(2, slow_down())
    assert store.get("a/1") == BODY.data
    proxy.policy = first(3, slow_down())
    with pytest.raises(StoreUnavailable):
        store.get("a/1")


@pytest.mark.parametrize("fault", [reset_before(), reset_after(), truncate(3), server_error()], ids=named)
def test_heads_and_lists_survive_a_fault_with_retries(open_s3: OpenS3, fault_proxy: Proxy, fault: Fault) -> None:
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, retries=3)
    store.create("a/1", BODY)
    proxy.policy = first(1, fault, "HEAD")
    head = store.head("a/1")
    assert head is not None
    assert head.size == BODY.size
    if fault.kind != "truncate":
        proxy.policy = first(1, fault, "GET")
        assert [info.key for info in store.list("a/")] == ["a/1"]
    assert sum(proxy.counts[name] for name in proxy.counts if name != "pass") == 1 + (fault.kind != "truncate")


def test_the_reply_to_a_head_tells_expired_credentials_from_missing_rights(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    store = open_s3(fault_proxy(always(expired_token())).endpoint)
    with pytest.raises(StoreUnavailable) as passing:
        store.head("a/1")
    assert passing.value.cause == "credentials"
    with pytest.raises(StoreRefused) as lasting:
        open_s3(fault_proxy(always(answer(403, "AccessDenied"))).endpoint).head("a/1")
    assert lasting.value.cause == "forbidden"


def test_many_seeded_faults_lose_nothing_and_double_nothing(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """What the shipper does, in small: again on failure, read back when taken."""
    chances = {slow_down(): 0.15, server_error(): 0.1, reset_before(): 0.1, reset_after(): 0.15, conflict(): 0.1}
    counts = []
    for _ in range(2):
        proxy = fault_proxy(at_random(5, chances, "PUT"))
        store = open_s3(proxy.endpoint, retries=5)
        bodies = {f"a/{number:03d}": Body.of(b"%d" % number * 100) for number in range(60)}
        for key, body in bodies.items():
            while True:
                try:
                    store.create(key, body)
                    break
                except AlreadyExists:
                    assert store.get(key) == body.data
                    break
                except StoreUnavailable:
                    continue
        assert {info.key: info.size for info in store.list("a/")} == {key: body.size for key, body in bodies.items()}
        assert min(proxy.counts[fault.name] for fault in chances) > 2
        counts.append({fault.name: proxy.counts[fault.name] for fault in chances})
        store.delete(list(bodies))
    assert counts[0] == counts[1]  # the same seed, the same faults


# -- a store that is away, or another one -----------------------------------------------------------------


def refused(ask: Callable[[], object], kind: type[StoreRefused] | type[StoreUnavailable]) -> str:
    with pytest.raises(kind) as caught:
        ask()
    assert isinstance(caught.value, StoreRefused | StoreUnavailable)
    return caught.value.cause


def test_a_store_that_is_away_is_unavailable_until_it_is_back(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    store.create("a/1", BODY)
    proxy.go_down()
    for ask in (lambda: store.create("a/2", BODY), lambda: store.get("a/1"), lambda: list(store.list(""))):
        assert refused(ask, StoreUnavailable) in ("refused", "reset")
    assert refused(lambda: store.create("a/2", BODY), StoreUnavailable) == "refused"
    proxy.come_up()
    store.create("a/2", BODY)
    assert len(list(store.list("a/"))) == 2


def test_what_was_acknowledged_survives_the_death_of_the_server(tmp_path: Path) -> None:
    with weed(tmp_path / "weed") as server:
        settings = StoreSettings(endpoint=server.endpoint, region="us-east-1")
        store = S3Store(parse_url("s3://logs/x"), settings, SystemClock(), GivenCredentials())
        for number in range(20):
            store.create(f"a/{number:02d}", BODY)
        server.kill()
        assert refused(lambda: store.create("a/99", BODY), StoreUnavailable) in ("refused", "reset")
        server.restart()
        assert [info.size for info in store.list("a/")] == [BODY.size] * 20
        assert store.get("a/19") == BODY.data


def test_a_name_that_nobody_knows_is_reported_as_dns(open_s3: OpenS3) -> None:
    store = open_s3("https://nobody.invalid")
    assert refused(lambda: store.create("a", BODY), StoreUnavailable) == "dns"


def test_a_missing_bucket_is_refused_by_every_verb_that_can_tell(open_s3: OpenS3) -> None:
    store = open_s3(bucket="nobodys-bucket")
    asks = (
        lambda: store.create("a", BODY),
        lambda: store.get("a"),
        lambda: list(store.list("")),
        lambda: store.delete(["a"]),
    )
    assert [refused(ask, StoreRefused) for ask in asks] == ["no_bucket"] * 4


def test_a_reader_is_forbidden_to_write(open_s3: OpenS3, s3_store: S3Store) -> None:
    s3_store.create("a", BODY)
    reader = open_s3(source=lambda: Credentials(READER_ACCESS_KEY, READER_SECRET_KEY))
    assert reader.get("a") == BODY.data
    assert refused(lambda: reader.create("b", BODY), StoreRefused) == "forbidden"
    assert refused(lambda: reader.delete(["a"]), StoreRefused) == "forbidden"
    assert s3_store.get("a") == BODY.data


def test_the_region_that_the_store_names_is_signed_for(
    open_s3: OpenS3, fault_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """By every verb, from the first one on; and it is logged."""
    body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    wrong = f"HTTP/1.1 400 No\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    def policy(asked: Request) -> Fault | None:
        return None if "/eu-west-1/s3/" in asked.headers["authorization"] else Fault("no", "reply", reply=wrong)

    for first_verb in (lambda store: store.create("a", BODY), lambda store: store.delete(["a", "b"])):
        proxy = fault_proxy(policy)
        store = open_s3(proxy.endpoint)
        first_verb(store)
        assert list(store.list("x/")) == []
        assert proxy.counts["no"] == 1
    logged = [record for record in caplog.records if getattr(record, "action", "") == "store_redirect"]
    assert [record.levelname for record in logged] == ["WARNING"] * 2


# -- credentials and secrets ------------------------------------------------------------------------------


def test_no_secret_is_shown_anywhere(open_s3: OpenS3) -> None:
    secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
    store = open_s3(source=lambda: Credentials("testkey", secret))
    with pytest.raises(StoreRefused) as caught:
        store.create("a", BODY)
    shown = repr(store) + store.url + str(caught.value) + repr(caught.value) + repr(vars(store))
    assert caught.value.cause == "credentials"
    assert caught.value.__cause__ is None
    assert secret not in shown
    assert SECRET_KEY not in repr(vars(open_s3()._live().endpoint_state))


def test_credentials_are_asked_for_again_after_the_server_called_them_expired(
    open_s3: OpenS3, fault_proxy: Proxy
) -> None:
    asked: list[int] = []

    def source() -> Credentials:
        asked.append(1)
        return credentials()

    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, source=source)
    store.create("a/1", BODY)
    store.create("a/2", BODY)
    assert len(asked) == 1
    proxy.policy = first(1, expired_token())
    assert refused(lambda: store.create("a/3", BODY), StoreUnavailable) == "credentials"
    store.create("a/3", BODY)
    assert len(asked) == 2


@pytest.mark.parametrize("kind", [StoreRefused, StoreUnavailable])
def test_what_the_source_of_credentials_says_is_what_is_raised(
    open_s3: OpenS3, kind: type[StoreRefused] | type[StoreUnavailable]
) -> None:
    failure = kind("there are no credentials here", cause="credentials", hint="look there")

    def source() -> NoReturn:
        raise failure

    store = open_s3(source=source)
    for ask in (lambda: store.create("a", BODY), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(kind, match="no credentials here"):
            ask()


def test_the_environment_does_not_redirect_us(open_s3: OpenS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """What obstore would read from there would send commit batches and reads to different places."""
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_BUCKET", "other")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    store = open_s3()
    store.create("a", BODY)
    with pytest.raises(AlreadyExists):
        store.create("a", BODY)


def test_a_closed_store_opens_new_connections(open_s3: OpenS3) -> None:
    store = open_s3()
    store.create("a", BODY)
    store.close()
    assert store.get("a") == BODY.data


# -- TLS --------------------------------------------------------------------------------------------------


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """The certificate of an authority that nobody else trusts, and a server on this machine that it vouches for."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    now = datetime.datetime.now(datetime.UTC)
    made = [
        x509.CertificateBuilder(names[0], names[index], keys[index].public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=index == 0, path_length=None), critical=True)
        .sign(keys[0], hashes.SHA256())
        for index in range(2)
    ]
    paths = [directory / name for name in ("authority.pem", "server.pem", "key.pem")]
    for path, one in zip(paths, made, strict=False):
        path.write_bytes(one.public_bytes(serialization.Encoding.PEM))
    unprotected = serialization.NoEncryption()
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    paths[2].write_bytes(keys[1].private_bytes(pem, plain, unprotected))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths[1], paths[2])
    return paths[0], context


def test_tls_works_with_a_certificate_of_ones_own_and_not_without(
    open_s3: OpenS3, fault_proxy: Proxy, tmp_path: Path
) -> None:
    chain, context = certificate(tmp_path)
    proxy = fault_proxy(tls=context)
    trusting = open_s3(proxy.endpoint, ca_file=str(chain))
    trusting.create("a", BODY)
    assert trusting.get("a") == BODY.data
    assert refused(lambda: open_s3(proxy.endpoint).create("b", BODY), StoreUnavailable) == "tls"


def test_speaking_tls_to_a_server_that_does_not_is_reported_as_tls(open_s3: OpenS3, s3_server: S3Server) -> None:
    store = open_s3(f"https://127.0.0.1:{s3_server.port}")
    assert refused(lambda: store.create("a", BODY), StoreUnavailable) == "tls"
