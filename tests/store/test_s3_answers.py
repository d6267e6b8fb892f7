"""Where requests go, and what each answer of an S3 server means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.store.port import StoreRefused, StoreUnavailable
from holdfast.store.s3.answers import failure
from holdfast.store.s3.bucket_address import BucketPlace, S3Address
from holdfast.store.s3.http import Response
from holdfast.store.s3.redirects import redirected

pytestmark = pytest.mark.store

NOW_US = 1_700_000_000_000_000


def answer(status, code="", *, extra="", **headers):
    body = f"<Error><Code>{code}</Code>{extra}</Error>".encode() if code or extra else b""
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@pytest.mark.parametrize(
    ("address", "region", "place", "header"),
    [
        (
            S3Address("logs", "a/b"),
            "eu-west-1",
            BucketPlace("https", "logs.s3.eu-west-1.amazonaws.com", 443, "/a/b"),
            "logs.s3.eu-west-1.amazonaws.com",
        ),
        (
            S3Address("logs"),
            "cn-north-1",
            BucketPlace("https", "logs.s3.cn-north-1.amazonaws.com.cn", 443, ""),
            "logs.s3.cn-north-1.amazonaws.com.cn",
        ),
        (
            S3Address("my.logs"),
            "us-east-1",
            BucketPlace("https", "s3.us-east-1.amazonaws.com", 443, "/my.logs"),
            "s3.us-east-1.amazonaws.com",
        ),
        (
            S3Address("logs", "a b", "http://127.0.0.1:8333", path_style=True),
            "x",
            BucketPlace("http", "127.0.0.1", 8333, "/logs/a%20b"),
            "127.0.0.1:8333",
        ),
        (
            S3Address("logs", "", "https://[::1]:9000/base/", path_style=True),
            "x",
            BucketPlace("https", "::1", 9000, "/base/logs"),
            "[::1]:9000",
        ),
        (
            S3Address("logs", "", "http://s3.example.org"),
            "x",
            BucketPlace("http", "logs.s3.example.org", 80, ""),
            "logs.s3.example.org",
        ),
    ],
)
def test_a_place_is_named_as_the_server_wants_it(address, region, place, header):
    """The bucket in the server's name for AWS, in the path where asked or where no certificate would fit."""
    assert address.place(region) == place
    assert place.host_header == header


@pytest.mark.parametrize(
    "endpoint", ["localhost:9000", "ftp://x", "https://", "http://me:secret@host", "http://h:99999", "http://h:0"]
)
def test_an_endpoint_that_is_not_understood_is_refused_without_repeating_it(endpoint):
    """It may hold a password."""
    with pytest.raises(Invalid) as caught:
        S3Address("logs", "", endpoint).place("x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("response", "kind", "cause"),
    [
        (answer(503, "SlowDown"), StoreUnavailable, "slow_down"),
        (answer(503), StoreUnavailable, "slow_down"),
        (answer(429), StoreUnavailable, "slow_down"),
        (answer(500, "InternalError"), StoreUnavailable, "server_error"),
        (answer(500, "SlowDown"), StoreUnavailable, "slow_down"),
        (answer(502), StoreUnavailable, "server_error"),
        (answer(504), StoreUnavailable, "server_error"),
        (answer(409, "ConditionalRequestConflict"), StoreUnavailable, "conflict"),
        (answer(400, "BadDigest"), StoreUnavailable, "bad_digest"),
        (answer(400, "XAmzContentSHA256Mismatch"), StoreUnavailable, "bad_digest"),
        (answer(400, "RequestTimeout"), StoreUnavailable, "timeout"),
        (answer(400, "IncompleteBody"), StoreUnavailable, "truncated"),
        (answer(400, "ExpiredToken"), StoreUnavailable, "credentials"),
        (answer(403, "InvalidToken"), StoreUnavailable, "credentials"),
        (answer(403, "TokenRefreshRequired"), StoreUnavailable, "credentials"),
        (answer(403, "AccessDenied"), StoreRefused, "forbidden"),
        (answer(403), StoreRefused, "forbidden"),
        (answer(403, "InvalidAccessKeyId"), StoreRefused, "credentials"),
        (answer(403, "SignatureDoesNotMatch"), StoreRefused, "credentials"),
        (answer(404, "NoSuchBucket"), StoreRefused, "no_bucket"),
        (answer(501, "NotImplemented"), StoreRefused, "unsupported"),
        (answer(501), StoreRefused, "unsupported"),
        (answer(400, "InvalidBucketName"), StoreRefused, "other"),
        (answer(404), StoreUnavailable, "other"),
        (answer(200), StoreUnavailable, "other"),
    ],
)
def test_an_answer_has_one_meaning(response, kind, cause):
    """The code counts before the status; what a proxy made up may pass."""
    error = failure(response, "k", NOW_US)
    assert (type(error), error.cause) == (kind, cause)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:50 GMT", "date": "Tue, 14 Nov 2023 22:13:45 GMT"}, 5.0),
        ({"retry_after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_store_says_how_long_to_leave_it_alone(headers, seconds):
    """In seconds or as a date, by its own clock if it tells it."""
    assert failure(answer(503, "SlowDown", **headers), "k", NOW_US).retry_after == seconds


@given(st.integers(100, 599), st.binary(max_size=100), st.dictionaries(st.text(max_size=9), st.text(max_size=40)))
def test_no_answer_is_too_strange(status, body, headers):
    """Every one is a failure of one of the two kinds."""
    response = Response(status, {"retry-after": "x", **headers}, b"<Error><Code>" + body)
    assert isinstance(failure(response, "k", NOW_US), (StoreUnavailable, StoreRefused))
    place = S3Address("logs").place("r")
    found = redirected(S3Address("logs"), place, place, "r", response)
    assert found is None or found.refused or found.place.host.endswith(".amazonaws.com")


AWS = S3Address("logs", "app")
OWN = S3Address("logs", "app", "https://s3.example.org:9000", path_style=True)
OWN_NAMED = S3Address("logs", "app", "https://s3.example.org:9000")


def led(address, response):
    home = address.place("us-east-1")
    return redirected(address, home, home, "us-east-1", response)


@pytest.mark.parametrize(
    ("address", "response", "expected"),
    [
        (
            AWS,
            answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1", extra="<Endpoint>x.org</Endpoint>"),
            (AWS.place("eu-west-1"), "eu-west-1"),
        ),
        (
            AWS,
            answer(400, "AuthorizationHeaderMalformed", extra="<Region>eu-west-1</Region>"),
            (AWS.place("eu-west-1"), "eu-west-1"),
        ),
        (
            OWN,
            answer(400, "AuthorizationHeaderMalformed", extra="<Region>eu-west-1</Region>"),
            (OWN.place("us-east-1"), "eu-west-1"),
        ),
        (
            AWS,
            answer(307, location="https://logs.s3-us-west-2.amazonaws.com/app/d/k%20y"),
            (BucketPlace("https", "logs.s3-us-west-2.amazonaws.com", 443, "/app"), "us-east-1"),
        ),
        (
            AWS,
            answer(307, location="https://logs.s3.dualstack.eu-west-1.amazonaws.com/other/path"),
            (BucketPlace("https", "logs.s3.dualstack.eu-west-1.amazonaws.com", 443, "/app"), "us-east-1"),
        ),
        (
            AWS,
            answer(301, extra="<Endpoint>s3.us-gov-west-1.amazonaws.com</Endpoint>"),
            (BucketPlace("https", "s3.us-gov-west-1.amazonaws.com", 443, "/logs/app"), "us-east-1"),
        ),
        (
            OWN,
            answer(307, location="https://logs.s3.example.org:9000/app/d/k%20y"),
            (BucketPlace("https", "logs.s3.example.org", 9000, "/app"), "us-east-1"),
        ),
        (
            OWN_NAMED,
            answer(307, location="https://s3.example.org:9000/logs/app/d/k%20y"),
            (BucketPlace("https", "s3.example.org", 9000, "/logs/app"), "us-east-1"),
        ),
    ],
)
def test_a_redirect_within_what_was_configured_says_where_to_go(address, response, expected):
    """By region, by address or by name; the paths are ours, whatever it says."""
    found = led(address, response)
    assert (found.place, found.region, found.refused) == (*expected, "")


@pytest.mark.parametrize(
    ("address", "response", "host"),
    [
        (OWN, answer(308, location="https://other.org:9000/logs/app/k"), "https://other.org:9000"),
        (OWN, answer(307, location="https://s3.example.org/logs/app/k"), "https://s3.example.org"),
        (OWN, answer(307, location="https://s3.example.org:9001/logs/app/k"), "https://s3.example.org:9001"),
        (OWN, answer(307, location="http://s3.example.org:9000/logs/app/k"), "http://s3.example.org:9000"),
        (OWN, answer(307, location="https://s3.example.org.evil.net:9000/k"), "https://s3.example.org.evil.net:9000"),
        (OWN, answer(307, location="https://evil-s3.example.org:9000/k"), "https://evil-s3.example.org:9000"),
        (
            OWN,
            answer(301, "PermanentRedirect", extra="<Endpoint>s3.other.org:9000</Endpoint>"),
            "https://s3.other.org:9000",
        ),
        (
            OWN,
            answer(400, "TemporaryRedirect", extra="<Endpoint>logs.s3.us-east-1.amazonaws.com</Endpoint>"),
            "https://logs.s3.us-east-1.amazonaws.com",
        ),
        (OWN, answer(307, location="https://e\x1bvil.org:9000/k"), "(unprintable)"),
        (AWS, answer(307, location="https://evil.org/app/k"), "https://evil.org"),
        (
            AWS,
            answer(307, location="http://logs.s3.us-east-1.amazonaws.com/app/k"),
            "http://logs.s3.us-east-1.amazonaws.com",
        ),
        (AWS, answer(307, location="https://s3.amazonaws.com.evil.org/k"), "https://s3.amazonaws.com.evil.org"),
        (AWS, answer(307, location="https://evils3.amazonaws.com/k"), "https://evils3.amazonaws.com"),
        (
            AWS,
            answer(307, location="https://abc123.execute-api.us-east-1.amazonaws.com/k"),
            "https://abc123.execute-api.us-east-1.amazonaws.com",
        ),
        (
            AWS,
            answer(307, location="https://s3-x.us-east-1.elb.amazonaws.com/k"),
            "https://s3-x.us-east-1.elb.amazonaws.com",
        ),
        (
            AWS,
            answer(307, location="https://other.s3.us-east-1.amazonaws.com/k"),
            "https://other.s3.us-east-1.amazonaws.com",
        ),
        (AWS, answer(301, x_amz_bucket_region="cn-north-1"), "https://logs.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_redirect_to_a_stranger_is_refused_by_name(address, response, host):
    """Another host, another port, another scheme, another customer of the same provider, another bucket."""
    assert led(address, response).refused == host


@pytest.mark.parametrize(
    "response",
    [
        answer(307, location="https://s3.example.org:9000/logs/app/d/k%20y"),
        answer(307, location="/logs/app/d/k%20y"),
        answer(307, location="ftp://s3.example.org:9000/logs"),
        answer(307, location="https://me:secret@s3.example.org:9000/logs"),
        answer(301),
        answer(301, extra="<Endpoint>a b:c</Endpoint>"),
    ],
)
def test_a_redirect_that_says_nothing_new_leads_nowhere(response):
    assert led(OWN, response) is None
