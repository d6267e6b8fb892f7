"""The options of a write, as Spark's user gives them: all that are wrong are refused together.

As for reads, nothing here holds a secret, and unknown options are refused: a mistyped `txnVersion` must not be ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import environ
from typing import Any, NamedTuple

from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name, is_own
from holdfast.reader.read_options import (
    PLACES,
    STORE_PARSERS,
    own_options,
    parsed_texts,
    reference_problems,
    store_environment,
    unknown_options,
)
from holdfast.sink.sink_target import BatchMark, SinkTarget, check_mark
from holdfast.store.store_settings import StoreSettings

_SEGMENT_BYTES_MIN = 2**16
_LEVEL_MAX = 22


def _segment_bytes(value: str) -> int:
    if int(value) < _SEGMENT_BYTES_MIN:
        raise ValueError(f"must be at least {_SEGMENT_BYTES_MIN}")
    return int(value)


def _level(value: str) -> int:
    if not 1 <= int(value) <= _LEVEL_MAX:
        raise ValueError(f"must be between 1 and {_LEVEL_MAX}")
    return int(value)


def _topic(value: str) -> str:
    if is_own(check_name(value)):
        raise ValueError("must not begin with an underscore: such topics are holdfast's own")
    return value


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "topic": ("topic", _topic),
    "keyring": ("keyring", str),
    "logId": ("log_id", str),
    "segmentBytes": ("segment_bytes", _segment_bytes),
    "compressionLevel": ("compression_level", _level),
}
_MARK_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {"txnAppId": ("writer", str), "txnVersion": ("batch", int)}
_OF_STREAMS = ("checkpointLocation", "queryName")
"""Spark's own, which it hands to every sink."""

WRITE_OPTION_NAMES = (*PLACES, *_PARSERS, *_MARK_PARSERS, *STORE_PARSERS)
"""Every option of a write, as users write it; capitals do not matter."""

_BY_LOWER = {name.lower(): name for name in (*WRITE_OPTION_NAMES, *_OF_STREAMS)}


class WriteOptions(NamedTuple):
    """One write."""

    target: SinkTarget
    mark: BatchMark | None
    """What the user calls this batch; a stream has its own."""


def parse_write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """What Spark's user asks for; Invalid with everything that is wrong."""
    given = own_options(options)
    problems = unknown_options(given, _BY_LOWER)
    values, wrong = parsed_texts(given, _PARSERS)
    marks, wrong_marks = parsed_texts(given, _MARK_PARSERS)
    store, wrong_store = parsed_texts(given, STORE_PARSERS)
    problems += [*wrong, *wrong_marks, *wrong_store]
    place = given.get("root") or given.get("path") or ""
    if not place:
        problems.append("there is no root: give it to save(…) or start(…)")
    if not given.get("topic"):
        problems.append("there is no topic: give the option topic")
    problems += [one for one in reference_problems(values.get("keyring", ""), values.get("log_id", "")) if one]
    mark = None if wrong_marks else _mark(marks, problems, is_stream=is_stream)
    settings = _settings({**store_environment(environ), **store}, problems)
    if problems:
        raise Invalid("; ".join(problems), hint="correct these options; all problems found are listed")
    return WriteOptions(SinkTarget(place=place, store=settings, **values), mark)


def _mark(given: Mapping[str, Any], problems: list[str], *, is_stream: bool) -> BatchMark | None:
    if not given:
        return None
    if is_stream:
        problems.append("txnAppId and txnVersion are for batches: a stream is known by its checkpoint")
        return None
    if len(given) < len(_MARK_PARSERS):
        problems.append("txnAppId and txnVersion belong together: give both")
        return None
    try:
        return check_mark(**given)
    except Invalid as error:
        problems.append(error.message)
        return None


def _settings(given: Mapping[str, Any], problems: list[str]) -> StoreSettings:
    try:
        return StoreSettings(**given)
    except Invalid as error:
        problems.append(error.message)
        return StoreSettings()
