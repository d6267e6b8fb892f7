"""`holdfast append`: records from an argument or from stdin, receipts to stdout.

A receipt is printed only after the fsync that made its record durable. With `--lines` stdin is read in
chunks and its lines are submitted without waiting for each; receipts follow in order. What waits is bounded
three times: by the chunk, by the window of tickets, and by the journal's own queue. When stdin pauses, everything
submitted so far is waited for and reported before the next read.

A typed topic takes rows instead: lines of JSON, one object each. A topic gets its schema from the library when it
is created; a topic that this verb creates holds raw records.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

import click

from holdfast import Receipt, Settings, Topic
from holdfast.cli.options import directory_argument, find_topic, json_option, keyring_option, open_log, topic_argument
from holdfast.cli.output import emit, emit_json, flush, say, silence_stdout
from holdfast.cli.progress import Progress
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.journal.proving.inspected_database import is_keyed
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log_directory import Directory
from holdfast.model.topic_name import check_name
from holdfast.model.value_codec import CODECS, MSGPACK
from holdfast.quantity import counted

_CHUNK_BYTES = 64 * 1024
_WINDOW_TICKETS = 16_384

EPILOG = """\b
Examples:
  holdfast append data orders 'hello' --key c-42
  generate | holdfast append data orders --lines --json
A payload that begins with a dash goes after '--'.
A line ends with a newline, which is not part of its record.
A typed topic takes JSON objects, one per line: column names and values.
A topic with a codec takes only what that can read; of msgpack it is given as JSON."""

Waiting = Callable[[], Sequence[Receipt]]
"""Waits until something submitted is durable, and returns its receipts."""


@click.command("append", epilog=EPILOG, context_settings={"allow_extra_args": True})
@directory_argument
@topic_argument
@click.argument("payload", required=False)
@click.option("--codec", type=click.Choice(CODECS), help="What a payload is, in a topic that is created.")
@click.option("--lines", is_flag=True, help="Every line of stdin is a record.")
@click.option("--key", help="The key; records with equal keys go to one partition and stay in order.")
@click.option("--kind", help="What kind of record it is, as text.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be given repeatedly.")
@click.option("--partition", type=int, help="The partition, instead of choosing by key or in turn.")
@click.option("--partitions", type=int, help="How many partitions the topic gets when it is created.")
@click.option(
    "--idempotency-key",
    "unique",
    metavar="KEY",
    help="Append once: repeating it returns the first receipt. With --lines, line N has the key KEY:N.",
)
@keyring_option
@json_option
@click.pass_context
def append_command(
    ctx: click.Context,
    directory: Path,
    topic: str,
    payload: str | None,
    codec: str | None,
    lines: bool,
    key: str | None,
    kind: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    partitions: int | None,
    unique: str | None,
    reference: str | None,
    as_json: bool,
) -> None:
    """Append PAYLOAD, or stdin, to TOPIC of the log in DIR, and print receipts.

    Without PAYLOAD, or with '-', all of stdin is one record, unless it is empty. Log and topic are created if they
    are not there. A receipt means that its record survives power loss. A typed topic takes rows as lines of JSON,
    all of them as one unit, or with --lines each by itself.
    """
    if ctx.args:  # one of them may be a payload, so the message does not repeat them
        raise click.UsageError("too many arguments; a payload with spaces needs quotes", ctx)
    if lines and payload not in {None, "-"}:
        raise click.UsageError("--lines reads stdin; leave PAYLOAD out", ctx)
    fields = {
        "key": None if key is None else os.fsencode(key),
        "kind": None if kind is None else _text("--kind", kind),
        "headers": _headers(headers),
        "partition": partition,
    }
    check_name(topic)
    settings = Settings.load()
    longest = settings.journal.payload_bytes_max
    whole = None if lines else _payload(payload, longest)
    if whole == b"" and payload in {None, "-"}:
        say("stdin is empty: nothing was appended (a record without payload: holdfast append DIR TOPIC '')")
        return
    place = Directory(directory.absolute())
    is_new = place.log_id() is None
    with open_log(directory, reference, settings, read_only=False, stays=lines) as log:
        if is_new:
            say(f"created a log, {'encrypted' if is_keyed(place.database) else 'not encrypted'}: {directory}")
        target = _target(find_topic(log, topic, partitions, codec), fields, longest)
        appender = _Appender(target, unique, as_json)
        try:
            if whole is None:
                appender.append_lines(_stdin(), longest)
            else:
                appender.append_whole(whole)
        except BrokenPipeError:
            silence_stdout()
            raise Unavailable(
                f"the reader of the receipts is gone; stopped reported={appender.reported}",
                hint="what was submitted is durable, the rest of stdin was not read; send receipts to a file",
            ) from None


class _Target(Protocol):
    """What takes payloads: records of a raw topic, or rows of a typed one."""

    name: str

    def submit(self, payload: bytes, unique: bytes | None) -> Waiting:
        """Queue what a payload stands for, as one unit."""


class _Records:
    """A payload is a record."""

    def __init__(self, topic: Topic, fields: dict[str, Any]) -> None:
        self.name = topic.name
        self._topic = topic
        self._fields = fields

    def submit(self, payload: bytes, unique: bytes | None) -> Waiting:
        if self._topic.codec is not None and self._topic.codec.name == MSGPACK:
            payload = self._topic.codec.from_json(payload)
        ticket = self._topic.submit(payload, idempotency_key=unique, **self._fields)
        return lambda: (ticket.result(),)


class _Rows:
    """A payload is lines of JSON, each a row."""

    def __init__(self, topic: TypedTopic, partition: int | None, longest: int) -> None:
        self.name = topic.name
        self._topic = topic
        self._partition = partition
        self._longest = longest

    def submit(self, payload: bytes, unique: bytes | None) -> Waiting:
        from holdfast.model.row_json import parse_rows

        if len(payload) > self._longest:  # the rest of stdin was not read
            raise Invalid(f"the payload is too large bytes={len(payload)}", hint="give rows with --lines")
        rows = parse_rows(payload, self._topic.schema)
        if not rows:
            return tuple
        return self._topic.submit(rows, partition=self._partition, idempotency_key=unique).result


def _target(topic: Topic | TypedTopic, fields: dict[str, Any], longest: int) -> _Target:
    if isinstance(topic, Topic):
        return _Records(topic, fields)
    given = [f"--{name.rstrip('s')}" for name in ("key", "kind", "headers") if fields[name] is not None]
    if given:
        raise Invalid(f"topic {topic.name!r} is typed; its rows have no {', '.join(given)}", hint="leave them out")
    return _Rows(topic, fields["partition"], longest)


class _Appender:
    """Submits to one topic and prints receipts in order."""

    def __init__(self, target: _Target, unique: str | None, as_json: bool) -> None:
        self._target = target
        self._unique = None if unique is None else os.fsencode(unique)
        self._as_json = as_json
        self._tickets: deque[Waiting] = deque()
        self.reported = 0

    def append_whole(self, payload: bytes) -> None:
        """One record, or the rows of one payload."""
        self._tickets.append(self._target.submit(payload, self._unique))
        self._settle(0)

    def append_lines(self, stream: BufferedReader, longest: int) -> None:
        """Every line as a record. Stops at the first that is refused, after reporting what is durable."""
        number = 0
        try:
            with Progress(stream) as progress:
                for lines, paused in _chunks(stream, longest):
                    for number, line in enumerate(lines, number + 1):  # noqa: B020 - it goes on counting
                        self._submit(line, number)
                    self._settle(0 if paused else _WINDOW_TICKETS)
                    progress.show(self.reported, sum(map(len, lines)) + len(lines))
                self._settle(0)
        except HoldfastError:
            with suppress(HoldfastError):
                self._settle(0)
            say(f"stopped at line {number}; records reported durable: {self.reported}")
            raise
        say(f"appended {counted(self.reported, 'record')} to {self._target.name}")

    def _submit(self, line: bytes, number: int) -> None:
        unique = None if self._unique is None else b"%b:%d" % (self._unique, number)
        self._tickets.append(self._target.submit(line, unique))

    def _settle(self, kept: int) -> None:
        """Print receipts, oldest first, until no more than `kept` tickets wait."""
        while len(self._tickets) > kept:
            for receipt in self._tickets.popleft()():
                self._tell(receipt)
        flush()

    def _tell(self, receipt: Receipt) -> None:
        if self._as_json:
            emit_json(receipt)
        else:
            emit(f"topic={receipt.topic} partition={receipt.partition} offset={receipt.offset} seq={receipt.seq}")
        self.reported += 1


def _chunks(stream: BufferedReader, longest: int) -> Iterator[tuple[list[bytes], bool]]:
    """Whole lines as they arrive, and whether stdin paused after them.

    A line that grows beyond `longest` is handed on as it is, to be refused; nothing is read after it.
    """
    rest = bytearray()
    while chunk := stream.read1(_CHUNK_BYTES):
        first, newline, others = chunk.partition(b"\n")
        rest += first
        lines = []
        if newline:
            lines = [bytes(rest), *others.split(b"\n")]
            rest = bytearray(lines.pop())
        if len(rest) > longest:
            yield [*lines, bytes(rest)], True
            return
        yield lines, len(chunk) < _CHUNK_BYTES
    if rest:
        yield [bytes(rest)], True


def _payload(payload: str | None, longest: int) -> bytes:
    """The bytes of the argument or of stdin; reading one byte more than allowed is enough to refuse it."""
    return _stdin().read(longest + 1) if payload in {None, "-"} else os.fsencode(payload or "")


def _stdin() -> BufferedReader:
    if sys.stdin is None:
        raise click.UsageError("there is no payload, and stdin is closed")
    if sys.stdin.isatty():
        say("reading from the terminal; Ctrl-D ends it")
    return sys.stdin.buffer  # type: ignore[return-value]  # typeshed leaves read1 out


def _headers(given: tuple[str, ...]) -> dict[str, bytes] | None:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:  # the text may be a secret, so it is not repeated
            raise click.UsageError("--header takes NAME=VALUE")
        headers[_text("--header", name)] = os.fsencode(value)
    return headers or None


def _text(option: str, value: str) -> str:
    """The argument, if it is text: arguments may hold any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{option} takes text in UTF-8") from None
    return value
