"""Transactions and spaces over HTTP: a body of operations becomes durable as a whole, or not at all."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Literal

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.transactions.transaction import Transaction
from holdfast.model.record import Receipt
from holdfast.model.record_json import Encoding, JsonRecord, decoded, encoded
from holdfast.model.row_json import Row, typed_rows
from holdfast.server.api_answers import Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.api_request import decoded as decoded_body
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.routes.appending import fields_of
from holdfast.server.served import Served


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operation: `append` with a record or a row, `put`, or `delete`."""

    append: str | None = None
    record: JsonRecord | None = None
    row: Row | None = None
    put: str | None = None
    delete: str | None = None
    key: str | None = None
    key_encoding: Literal["base64"] | None = None
    body: str | None = None
    body_encoding: Literal["base64"] | None = None


class TransactionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes durable together."""

    operations: list[Operation]
    durability: Literal["durable", "shipped"] = "durable"
    timeout: float | None = None


class TransactionAnswer(msgspec.Struct, frozen=True):
    """Where its records are."""

    receipts: list[Receipt]


class ItemAnswer(msgspec.Struct, frozen=True):
    """An item of a space."""

    key: str
    body: str
    key_encoding: Encoding = msgspec.UNSET
    body_encoding: Encoding = msgspec.UNSET


_LARGE_BYTES = 64 * 1024
"""A longer body is taken apart in a thread: the others are answered meanwhile."""

_body = msgspec.json.Decoder(TransactionBody, float_hook=Decimal)


async def transact(request: ApiRequest, served: Served) -> Answer:
    """Commit operations together."""
    if request.media_type != "application/json":
        raise RefusedRequest(415, "a transaction is JSON", hint="send Content-Type: application/json")
    content = await request.body()
    is_large = len(content) > _LARGE_BYTES
    unit = await served.read(partial(_unit, content, request), request.caller) if is_large else _unit(content, request)
    transaction = served.log.transaction(timeout=unit.timeout, durability=unit.durability)
    async with transaction:
        if is_large:
            await served.read(partial(_add_all, transaction, unit, served), request.caller)
        else:
            _add_all(transaction, unit, served)
    receipts = await served.read(lambda: transaction.receipts, request.caller) if is_large else transaction.receipts
    return json_answer(TransactionAnswer(receipts))


def _unit(content: bytes, request: ApiRequest) -> TransactionBody:
    unit = decoded_body(content, _body)
    if not unit.operations:
        raise Invalid("a transaction without operations", hint="give at least one")
    for operation in unit.operations:
        _check(operation, request)
    return unit


def _add_all(transaction: Transaction, unit: TransactionBody, served: Served) -> None:
    for operation in unit.operations:
        _add(transaction, operation, served)


def _check(operation: Operation, request: ApiRequest) -> None:
    named = [name for name in (operation.append, operation.put, operation.delete) if name is not None]
    if len(named) != 1:
        raise Invalid("an operation is one of append, put, delete", hint="see /docs")
    if operation.append is not None:
        request.caller.require_append(operation.append)
        if (operation.record is None) == (operation.row is None):
            raise Invalid("an append has a record or a row", hint="see /docs")
    else:
        request.caller.require(("append",), "_spaces")
        if operation.key is None or (operation.body is None) != (operation.put is None):
            raise Invalid("put has a key and a body, delete has a key", hint="see /docs")


def _add(transaction: Transaction, operation: Operation, served: Served) -> None:
    if operation.append is not None:
        topic = served.topic(operation.append)
        if isinstance(topic, TypedTopic):
            if operation.row is None:
                raise Invalid(f"topic {topic.name!r} is typed", hint="append a 'row'")
            transaction.append(topic, typed_rows([operation.row], topic.schema))
        elif operation.record is None:
            raise Invalid(f"topic {topic.name!r} is raw", hint="append a 'record'")
        else:
            given = operation.record
            transaction.append(topic, partition=given.partition, **fields_of(given.record(topic.codec)))
        return
    key = decoded(operation.key or "", operation.key_encoding)
    if operation.put is not None:
        transaction.put(operation.put, key, decoded(operation.body or "", operation.body_encoding))
    else:
        transaction.delete(operation.delete or "", key)


async def spaces(request: ApiRequest, served: Served) -> Answer:
    """The names of all spaces."""
    return json_answer({"spaces": await served.read(served.log.spaces)})


async def space_items(request: ApiRequest, served: Served) -> Answer:
    """All items of a space."""
    space = served.log.space(request.params["space"])
    return await served.read(
        lambda: json_answer({"items": [_item(key, body) for key, body in space.items()]}), request.caller
    )


async def space_item(request: ApiRequest, served: Served) -> Answer:
    """One item of a space; 404 where there is none."""
    key = request.header_bytes(b"holdfast-key")
    if key is None:
        key = (request.text("key") or "").encode("utf-8", "surrogateescape")
    body = await served.read(partial(served.log.space(request.params["space"]).get, key))
    if body is None:
        raise NotFound("there is no such item", hint="GET /v1/spaces/{space} lists them")
    return json_answer(_item(key, body))


def _item(key: bytes, body: bytes) -> ItemAnswer:
    shown_key, key_encoding = encoded(key)
    shown_body, body_encoding = encoded(body)
    return ItemAnswer(shown_key, shown_body, key_encoding, body_encoding)
