"""SigV4: the same signature as botocore's for the same request, at the time that we say."""

from __future__ import annotations

import datetime
from hashlib import sha256
from unittest import mock

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.credentials import Credentials
from holdfast.store.s3.signature_v4 import canonical_query, encode_path, sign

pytestmark = pytest.mark.store

text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
ascii_text = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
value = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30).filter(str.strip)
name = st.sampled_from(["if-none-match", "range", "x-amz-checksum-sha256", "x-amz-meta-a", "x-amz-checksum-mode"])
moments = st.integers(0, 4_000_000_000_000_000)
region = st.sampled_from(["us-east-1", "eu-west-1", "x"])
query = st.lists(st.tuples(text, text), max_size=4)


def botocores(method, url, headers, body, credentials, region, now_us):
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=now_us)
    keys = BotocoreCredentials(credentials.access_key, credentials.secret_key, credentials.token or None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=moment):
        S3SigV4Auth(keys, "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    st.sampled_from(["PUT", "GET", "HEAD"]),
    text,
    query,
    st.dictionaries(name, value),
    st.binary(max_size=50),
    st.tuples(ascii_text, ascii_text, st.just("") | ascii_text),
    region,
    moments,
)
def test_botocore_signs_the_same(method, key, query, headers, body, keys, region, now_us):
    """Odd keys, queries, session tokens and headers included."""
    credentials, host, path = Credentials(*keys), "logs.example.org:9000", f"/{encode_path(key)}"
    url = f"https://{host}{path}" + (f"?{canonical_query(query)}" if query else "")
    theirs = botocores(method, url, headers, body, credentials, region, now_us)
    ours = sign(method, host, path, query, headers, sha256(body).hexdigest(), credentials, region, now_us)
    assert ours["authorization"] == theirs["authorization"]
    assert ours == {**theirs, "host": host}


def test_every_header_that_is_given_is_signed():
    """A proxy that drops or changes the condition breaks the signature."""
    credentials = Credentials("a", "b")
    signed = sign("PUT", "h", "/k", (), {"if-none-match": "*"}, "00", credentials, "r", 0)
    assert "if-none-match" in signed["authorization"]
    other = sign("PUT", "h", "/k", (), {"if-none-match": "x"}, "00", credentials, "r", 0)
    assert signed["authorization"] != other["authorization"]


def test_keys_keep_unreserved_characters_and_slashes():
    """As S3 wants them, or the signature would not match."""
    assert encode_path("a/b c+ä~-_.%") == "a/b%20c%2B%C3%A4~-_.%25"


def test_signatures_of_the_same_second_do_not_mix_up_secrets():
    """What is kept to be quick is kept per secret, day and region."""

    def signature(secret, region="r", now_us=0):
        return sign("GET", "h", "/", (), {}, "00", Credentials("a", secret), region, now_us)["authorization"][-64:]

    day = 86_400_000_000
    assert len({signature("s"), signature("t"), signature("s", "q"), signature("s", "r", day)}) == 4
