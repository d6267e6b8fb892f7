"""Every public function, called with arguments that make no sense: one of our errors with a hint, or it is taken.

What Python itself reports about a call (a missing or unknown argument) stays a TypeError.
"""

from __future__ import annotations

import pathlib
import re
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid, Keyring, Log, NotFound, Record, Settings, Unavailable
from holdfast.model.text_table import text_table

pytestmark = pytest.mark.disk

NONSENSE = [
    None, 1, -1, 1.5, "x", b"x", [], {}, object(), float("nan"), True, pathlib.Path("x"), datetime(2026, 1, 1),  # noqa: DTZ001
    [None], {1: 2}, "\ud800", 2**70, lambda: 1, b"\xff", "", "\0", int, timedelta(days=-1), timedelta.max,
    2**63, -(2**63), ("a", 1),
]  # fmt: skip

Call = Callable[[Any], object]


class Place:
    """A log in a directory of its own, and room beside it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.log = holdfast.open(path / "log")
        self.topic = self.log.topic("orders")
        self.topic.append(b"x")
        self.typed = self.log.topic("rows", schema=pa.schema([("a", pa.int64())]))
        self.typed.append({"a": 1})
        self.log.seal()
        self.keyring = Keyring.generate()
        self.encrypted = holdfast.open(path / "encrypted", keyring=self.keyring)
        self._made = 0

    def new(self) -> pathlib.Path:
        """A place that is not there yet."""
        self._made += 1
        return self.path / f"new-{self._made}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("careless")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        made = Place(path)
        yield made
        made.log.close()
        made.encrypted.close()


def _open(place: Place, **given: Any) -> None:
    holdfast.open(place.new(), **given).close()


def _named(make: Callable[[Place, str, Any], object], *names: str) -> dict[str, Callable[[Place, Any], object]]:
    return {name: lambda place, value, name=name: make(place, name, value) for name in names}  # type: ignore[misc]


def _calls() -> dict[str, Callable[[Place, Any], object]]:
    groups: dict[str, dict[str, Callable[[Place, Any], object]]] = {
        "open": {
            "path": lambda place, value: holdfast.open(value, read_only=True),
            **_named(
                lambda place, name, value: _open(place, **{name: value}),
                "store", "settings", "keyring", "cipher", "clock", "read_only",
            ),
        },
        "read": {
            "root": lambda place, value: holdfast.read(value, "orders"),
            "topic": lambda place, value: holdfast.read("log", value).to_arrow(),
            "topic_pattern": lambda place, value: holdfast.read("log", topic_pattern=value).to_arrow(),
            **_named(
                lambda place, name, value: holdfast.read("log", "orders", **{name: value}).to_arrow(),
                "columns", "starting_offsets", "ending_offsets", "starting_timestamp", "ending_timestamp", "as_of",
                "include_tail", "verify", "schema_mode", "encrypted", "keyring", "log_id",
                "fail_on_data_loss", "store",
            ),
        },
        "restore": {
            "store": lambda place, value: holdfast.restore(value, place.new()),
            "path": lambda place, value: holdfast.restore("/nowhere/root", value),
            **_named(
                lambda place, name, value: holdfast.restore("/nowhere/root", place.new(), **{name: value}),
                "settings", "keyring", "cipher", "clock", "copy", "accept_loss", "log_id",
            ),
        },
        "rebuild": {
            "path": lambda place, value: holdfast.rebuild(value),
            **_named(
                lambda place, name, value: holdfast.rebuild("nowhere", **{name: value}), "keyring", "cipher", "clock"
            ),
        },
        "log": {
            "topic": lambda place, value: place.log.topic(value),
            **_named(
                lambda place, name, value: place.log.topic(place.new().name, **{name: value}),
                "partitions", "first_offset", "schema",
            ),
            "marks": lambda place, value: place.log.marks(value),
            "seal": lambda place, value: place.log.seal(value),
            "seal.timeout": lambda place, value: place.log.seal("orders", timeout=value),
            "retain": lambda place, value: place.log.retain(dry_run=value),
            "set_retention": lambda place, value: place.log.set_retention(value, bytes_max=1),
            **_named(
                lambda place, name, value: place.log.set_retention("orders", **{name: value}),
                "bytes_max", "age_max", "records_max",
            ),
            **_named(
                lambda place, name, value: place.log.reconcile(**{name: value}), "remote", "fix", "deep", "limit"
            ),
            "ship": lambda place, value: place.log.ship(value),
            "rebuild_store": lambda place, value: place.log.rebuild_store(timeout=value),
            "rotate_key": lambda place, value: place.encrypted.rotate_key(value),
            "flush": lambda place, value: place.log.flush(value),
            "close": lambda place, value: _close(place, value),
            "kept_channel": lambda place, value: place.log.kept_channel(value, "room"),
            "kept_channel.id": lambda place, value: place.log.kept_channel("alice", value),
        },
        "topic": {
            "append": lambda place, value: place.topic.append(value),
            **_named(
                lambda place, name, value: place.topic.append(b"x", **{name: value}),
                "key", "headers", "kind", "time", "partition", "idempotency_key", "timeout", "durability",
            ),
            "append_batch": lambda place, value: place.topic.append_batch(value),
            "append_batch.item": lambda place, value: place.topic.append_batch([value]),
            **_named(
                lambda place, name, value: place.topic.append_batch([Record(b"x", **{name[7:]: value})]),
                "record.key", "record.kind", "record.headers", "record.time",
            ),
            "flush": lambda place, value: place.topic.flush(value),
            **_named(
                lambda place, name, value: list(place.topic.read(**{name.removeprefix("read."): value})),
                *(f"read.{name}" for name in
                  ("start", "end", "limit", "reverse", "partition", "since", "until", "bytes_max")),
            ),
            "follow": lambda place, value: place.topic.follow(value),
            "follow.partition": lambda place, value: place.topic.follow(partition=value),
            "watermark": lambda place, value: place.topic.watermark(value),
            "watch": lambda place, value: place.topic.watch(value),
            "wait_sealed": lambda place, value: place.topic.wait_sealed(value, 0.01),
            "wait_sealed.timeout": lambda place, value: place.topic.wait_sealed(0, value),
        },
        "typed": {
            "append": lambda place, value: place.typed.append(value),
            **_named(
                lambda place, name, value: place.typed.append({"a": 1}, **{name: value}),
                "time", "partition", "idempotency_key", "timeout", "durability",
            ),
            **_named(
                lambda place, name, value: place.typed.read(**{name.removeprefix("read."): value}).to_arrow(),
                *(f"read.{name}" for name in
                  ("start", "end", "limit", "reverse", "partition", "since", "until", "bytes_max", "columns")),
            ),
        },
        "keyring": {
            "new": lambda place, value: Keyring(value),
            "value": lambda place, value: Keyring({"a": value}),
            "generate": lambda place, value: Keyring.generate(value),
            "from_env": lambda place, value: Keyring.from_env(value),
            "from_file": lambda place, value: Keyring.from_file(value),
            "from_callable": lambda place, value: Keyring.from_callable(value),
            "from_callable.result": lambda place, value: Keyring.from_callable(lambda: value),
            "from_reference": lambda place, value: Keyring.from_reference(value),
            "rotated": lambda place, value: place.keyring.rotated(value),
            "save": lambda place, value: place.keyring.save(value),
            "key": lambda place, value: place.keyring.key(value),
        },
        "settings": {
            "from_mapping": lambda place, value: Settings.from_mapping(value),
            "section": lambda place, value: Settings.from_mapping({"journal": value}),
            "value": lambda place, value: Settings.from_mapping({"journal": {"queue_bytes_max": value}}),
            "text": lambda place, value: Settings.from_mapping({"store": {"url": value}}),
            "made": lambda place, value: _open(place, settings=Settings(journal=value)),
            "load": lambda place, value: Settings.load(value),
            "environ": lambda place, value: Settings.load(environ=value),
        },
    }  # fmt: skip
    return {f"{group}.{name}": call for group, calls in groups.items() for name, call in calls.items()}


def _close(place: Place, value: Any) -> None:
    with holdfast.open(place.new()) as log:
        log.close(value)


CALLS = _calls()


@pytest.mark.parametrize("name", CALLS)
def test_nonsense_is_answered_in_our_words(place: Place, name: str) -> None:
    """Whatever is given: it works, or it is one of our errors, which says what to write instead."""
    for value in NONSENSE:
        try:
            CALLS[name](place, value)
        except HoldfastError as error:
            assert error.hint, f"{value!r}: {error.message}"
        except Exception as error:
            raise AssertionError(f"{name}({value!r}) raised {type(error).__name__}: {error}") from error
    for log in (place.log, place.encrypted):  # nonsense poisons nothing
        assert log.topic("orders").append(b"after")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: holdfast.open("s3://bucket/prefix"), "store="),
        (lambda: holdfast.open("https://logs.example.org"), "holdfast.connect("),
        (lambda: holdfast.open("data", store="bucket/prefix"), "s3://bucket/prefix"),
        (lambda: holdfast.open("data", settings="fast"), "from_mapping"),  # type: ignore[arg-type]
        (lambda: holdfast.open("data", settings={"journl": {}}), "correct these"),
        (lambda: holdfast.open("data", keyring="hunter2"), "file:PATH"),
        (lambda: holdfast.open("data", keyring=b"hunter2"), "file:PATH"),  # type: ignore[arg-type]
        (lambda: holdfast.read("log", "orders", starting_timestamp=b"2026-01-31"), "fromisoformat"),  # type: ignore[arg-type]
        (lambda: holdfast.read("log", "orders", ending_timestamp="1700000000"), "10m"),
        (lambda: holdfast.read("log", "orders", starting_offsets=5), "orders"),  # type: ignore[arg-type]
        (lambda: holdfast.read("log", "orders", columns="offset"), "columns=["),
        (lambda: holdfast.read("log", "orders", keyring=Keyring.generate()), "file:PATH"),  # type: ignore[arg-type]
        (lambda: holdfast.read("log", b"orders"), "topic"),  # type: ignore[arg-type]
        (lambda: holdfast.read("log", "orders", include_tail="no"), "include_tail=True"),  # type: ignore[arg-type]
    ],
)
def test_the_remedy_is_named(place: Place, call: Callable[[], object], hint: str) -> None:
    """What newcomers did, and what they hear; nothing came into being by it."""
    with pytest.raises(Invalid) as caught:
        call()
    assert hint in caught.value.hint
    assert "hunter2" not in str(caught.value)
    assert not (place.path / "data").exists()
    assert not (place.path / "s3:").exists()


def test_a_log_without_settled_records_says_so(place: Place) -> None:
    """It is no missing log: it must be sealed first."""
    with holdfast.open(place.new(), settings={"segments": {"seal_on_close": False}}) as log:
        log.topic("orders").append(b"x")
        with pytest.raises(NotFound, match="nothing is settled in this log yet") as caught:
            holdfast.read(log.path, "orders").count()
    assert "seal" in caught.value.hint


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_that_lost_its_format_is_recognized(place: Place, read_only: bool) -> None:
    """The hint says what stood in it; written again, the log opens."""
    with holdfast.open(place.new()) as log:
        log.topic("orders").append(b"x")
    (log.path / "FORMAT").unlink()
    with pytest.raises(Corrupt, match="FORMAT is gone") as caught:
        holdfast.open(log.path, read_only=read_only)
    assert "holdfast log 1" in caught.value.hint
    (log.path / "FORMAT").write_text(f"holdfast log 1\n{log.id}\n")
    with holdfast.open(log.path) as again:
        assert len(list(again.topic("orders").read())) == 1


def test_a_port_where_nobody_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that was mistyped is asked once; a server that an open client loses is waited for."""
    from holdfast.remote.http.exchange import Exchange

    monkeypatch.setattr(Exchange, "pause", lambda *_: pytest.fail("it waits"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match=r"[0-9]: .* refused") as caught:  # and not "within 600 s"
        holdfast.connect(f"http://127.0.0.1:{port}", timeout=600)
    assert "holdfast serve" in caught.value.hint


def test_a_record_knows_its_topic(place: Place) -> None:
    """From segments and from the tail; a new one has none yet."""
    assert Record(b"x").topic == ""
    topic = place.log.topic("named")
    topic.append(b"in a segment")
    place.log.seal("named")
    topic.append(b"in the tail")
    assert [record.topic for record in topic.read()] == ["named", "named"]


def test_times_are_taken_as_people_write_them(place: Place) -> None:
    """A day in UTC, a moment, or how long ago; what is none of them is refused with examples."""
    topic = place.log.topic("timed")
    topic.append(b"old", time=datetime(2026, 1, 31, tzinfo=UTC))
    topic.append(b"new")
    assert [record.payload for record in topic.read(since="10m")] == [b"new"]
    assert [record.payload for record in topic.read(since="2026-01-31", until="2026-01-31T01:00:00+01:00")] == [b"old"]
    with pytest.raises(Invalid, match="not a time") as caught:
        topic.read(since="yesterday")
    assert "10m" in caught.value.hint


def test_statistics_print_as_a_small_table(place: Place) -> None:
    """A line for each fact, in a terminal and in a notebook; what a name holds steers neither."""
    consumer = place.topic.consumer("billing")
    assert consumer.poll(1)
    consumer.commit()
    lines = str(place.log.stats()).splitlines()
    assert len(lines) < 20
    assert re.search(r"^tail +\d+ records?, \d+", "\n".join(lines), re.MULTILINE)
    assert any(line.startswith("lag of billing/orders") for line in lines)
    assert place.log.stats()._repr_html_().count("<tr>") == len(lines)
    assert text_table([("a\x1b", 1)]) == "a\\x1b  1"


def test_an_execution_id_of_a_number() -> None:
    """A number is its digits; what has no one spelling is refused."""
    assert holdfast.execution_id("order", 7) == holdfast.execution_id("order", "7")
    for given in (7.5, True, None):
        with pytest.raises(Invalid, match="a payload is"):
            holdfast.execution_id("order", given)  # type: ignore[arg-type]


def test_an_unknown_keyword_is_pythons_own_error() -> None:
    """Python tells about a wrong signature, by its own name for it."""
    with pytest.raises(TypeError, match="unexpected keyword"):
        holdfast.open("data", stor="x")  # type: ignore[call-arg]


def test_what_is_plain_is_taken(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries for settings, a reference for a keyring, relative directories for a store, offsets as they are."""
    place.keyring.save(place.path / "keys")
    for store in ("./backup", pathlib.Path("backup")):
        with holdfast.open(
            place.new(), store=store, settings={"segments": {"seal_on_close": False}}, keyring="file:keys"
        ) as log:
            assert log.settings.store.url == str(place.path / "backup")
            assert isinstance(log, Log)
        monkeypatch.setenv("HOLDFAST_STORE__MOVE", "true")
        for made in (place.path / "backup").rglob("*"):
            if made.is_file():
                made.unlink()
    place.log.topic("plain").append(b"x")  # the others may have been given a retention by now
    place.log.seal()
    assert holdfast.read(pathlib.Path("log"), "plain", starting_offsets={"plain": {"0": 0}}).count() == 1  # type: ignore[arg-type]
