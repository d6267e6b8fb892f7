"""Other clouds through obstore: what its exceptions mean, and that it is used as it must be.

The contract that it keeps like every store is tested beside the others (`test_contract`), against a real server.
"""

from __future__ import annotations

from collections.abc import Callable

import obstore
import pytest
from obstore import exceptions

from holdfast.errors import Corrupt, Invalid
from holdfast.store.cloud import ObjectStore
from holdfast.store.cloud_failures import translate
from holdfast.store.port import AlreadyExists, Body, StoreRefused, StoreUnavailable
from holdfast.store.store_settings import StoreSettings
from tests.store.fault_proxy import FaultProxy, first, reset_after, slow_down
from tests.store.servers import S3Server

pytestmark = pytest.mark.store

BODY = Body.of(b"content" * 20_000)


def test_s3_is_none_of_its_clouds() -> None:
    with pytest.raises(Invalid, match="no cloud"):
        ObjectStore("s3://logs/prefix", StoreSettings())


def test_a_create_is_one_request_and_reads_are_repeated(
    s3_server: S3Server, fault_proxy: Callable[..., FaultProxy], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = fault_proxy(first(1, reset_after(), "PUT"))

    def make(address: object, settings: object, **options: object) -> object:
        return s3_server.client(
            port=proxy.port, prefix=prefix, conditional_put="etag", retry_config=options["retry_config"]
        )

    monkeypatch.setattr("holdfast.store.cloud._gs", make)
    store = ObjectStore("gs://logs/prefix", StoreSettings(retries=3))
    with pytest.raises(StoreUnavailable):
        store.create("a/1", BODY)
    assert proxy.counts == {"reset_after": 1}
    proxy.policy = first(2, slow_down())
    assert store.get("a/1") == BODY.data


# -- the translation alone --------------------------------------------------------------------------------


def failed(status: int, code: str, key: str = "a/1") -> str:
    return (
        f"Error performing PUT http://host/{key} in 1ms - Server returned\n\nDebug source:\nGeneric {{ source: "
        f"RetryError(RetryErrorImpl {{ method: PUT, uri: Some(\n http://host/{key},\n ), "
        f'inner: Status {{ status: {status}, body: Some( "<Error><Code>{code}</Code></Error>", ), }}, }}, ), }}'
    )


def test_azures_conflict_means_taken_and_that_of_s3_does_not() -> None:
    taken = exceptions.AlreadyExistsError(failed(409, "BlobAlreadyExists"))
    assert isinstance(translate(taken, "a", creating=True), AlreadyExists)
    under_way = exceptions.AlreadyExistsError(failed(409, "ConditionalRequestConflict"))
    assert translate(under_way, "a", creating=True).cause == "conflict"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key", ["certificate/tls", "dns error", "status: 404", "TimedOut", "topics/ConnectionRefused/0"]
)
def test_a_key_is_never_taken_for_an_answer(key: str) -> None:
    text = (
        f'Error performing PUT http://host/{key}\n\nDebug source:\nGeneric {{ path: "{key}", uri: Some( '
        f"http://host/{key.replace(' ', '%20')}, ), inner: Http( HttpError {{ kind: Interrupted, code: 104, kind: "
        "ConnectionReset } ) }"
    )
    assert translate(exceptions.GenericError(text), key).cause == "reset"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotImplementedError("no"), StoreRefused),
        (ValueError("no"), Invalid),
        (exceptions.GenericError(failed(416, "InvalidRange")), Corrupt),
        (exceptions.GenericError("something new"), StoreUnavailable),
        (exceptions.GenericError(failed(408, "")), StoreUnavailable),
    ],
)
def test_what_remains_is_reported_too(error: Exception, kind: type[Exception]) -> None:
    assert isinstance(translate(error, "a"), kind)


def test_the_words_of_the_server_are_not_repeated() -> None:
    error = exceptions.GenericError(failed(400, "Weird").replace("</Error>", "<Sent>the-secret</Sent></Error>"))
    assert "the-secret" not in str(translate(error, "a"))


def test_an_answer_that_is_shorter_than_its_object_is_truncated(
    cloud_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud_store.create("a", BODY)
    get = obstore.get

    class Short:
        meta: dict[str, int] = {"size": BODY.size + 1}  # noqa: RUF012

        def bytes(self) -> object:
            return get(cloud_store._open().once, "a").bytes()

    monkeypatch.setattr(obstore, "get", lambda *_: Short())
    with pytest.raises(StoreUnavailable) as caught:
        cloud_store.get("a")
    assert caught.value.cause == "truncated"
