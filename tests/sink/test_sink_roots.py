"""Where a sink may write: an empty place, a root of a log, with keys or without; and where it may not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LogDocument
from holdfast.sink import write_steps
from holdfast.sink.sink_target import SinkTarget
from holdfast.store import layout
from holdfast.store.port import Body
from tests.sink.sinks import CLOCK, ROWS, TASKS, Place, Seen, Watched, write

pytestmark = pytest.mark.unit

WHOLE = sum(TASKS.values())


@pytest.fixture
def keyring(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    Keyring.generate("k1").save(path)
    return f"file:{path}"


def test_an_empty_place_becomes_a_root(place: Place) -> None:
    """With a log of its own, once: two sinks that begin at the same moment agree on it."""
    watched, busy = Watched(place.store), [False]

    def between(number: int, seen: Seen) -> None:
        if seen.verb == "create" and seen.key == layout.LOG and not busy[0]:
            busy[0] = True
            write(place.target(), "other", 0)

    watched.before = between
    place.use(watched)
    write(place.target(), "q", 0)
    assert place.counted() == Counter({("q", 0): WHOLE, ("other", 0): WHOLE})


def test_a_place_with_something_else_is_refused(place: Place) -> None:
    """Nobody's photographs become a root."""
    place.store.create("holiday.jpg", Body.of(b"x"))
    with pytest.raises(Invalid, match="something else"):
        write(place.target(), "q", 0)
    assert place.objects() == ["holiday.jpg"]


def test_a_logs_own_directory_is_refused(tmp_path: Path) -> None:
    """In whichever way it is named, before and after its first segment, and nothing is written."""
    path = tmp_path / "log"
    with holdfast.open(path) as log:
        for is_sealed in (False, True):
            if is_sealed:
                log.topic("x").append(b"x")
                log.seal()
            for place in (str(path), path.as_uri(), str(path / "segments")):
                with pytest.raises(Invalid, match="log's own directory") as raised:
                    write(SinkTarget(place=place, topic="t"), "q", 0)
                assert "ships to" in raised.value.hint
    assert not list(path.rglob("_sink"))


def test_a_root_that_a_log_ships_to(place: Place, tmp_path: Path) -> None:
    """The sink's topics stand beside the log's, which it refuses; the log goes on."""
    with holdfast.open(tmp_path / "log", store=place.url) as log:
        log.topic("orders").append(b"x")
        log.seal()
    write(place.target(), "q", 0)
    with pytest.raises(Invalid, match="belongs to the log"):
        write(place.target("orders"), "q", 0)
    with holdfast.open(tmp_path / "log", store=place.url) as log:
        log.topic("orders").append(b"y")
        log.seal()
    assert place.rows("orders").num_rows == 2
    assert place.counted() == Counter({("q", 0): WHOLE})


def test_another_log_is_refused(place: Place) -> None:
    """By those who name the one that they mean; also where there is none."""
    with pytest.raises(NotFound):
        write(place.target(log_id="cd" * 16), "q", 0)
    write(place.target(), "q", 0)
    with pytest.raises(Invalid, match="another log"):
        write(place.target(log_id="cd" * 16), "q", 0)


def test_a_root_that_was_replaced_meanwhile_is_refused_by_the_tasks(place: Place) -> None:
    """A task writes to the log that planning saw, and to no other."""
    prepared = write_steps.prepare(place.target(), ROWS, CLOCK)
    place.replace(layout.LOG, documents.encode(LogDocument(log="cd" * 16, created_us=1)))
    with pytest.raises(Invalid, match="another log"):
        write_steps.write_task(prepared, 0, [], None, CLOCK)


def test_with_keys_everything_is_signed_and_encrypted(place: Place, keyring: str) -> None:
    """Readers with the keyring believe all of it; no value stands in any object in plain; races rewrite encrypted."""
    target = place.target(keyring=keyring)
    schema = pa.schema({"secret": pa.string()})
    table = pa.table({"secret": ["swordfish"] * 3})

    def put() -> None:
        write_steps.commit(
            prepared, [write_steps.write_task(prepared, 0, table.to_batches(), None, CLOCK)], None, CLOCK
        )

    prepared = write_steps.prepare(target, schema, CLOCK)
    late = write_steps.write_task(prepared, 0, table.to_batches(), None, CLOCK)
    put()
    put()
    write_steps.commit(prepared, [late], None, CLOCK)  # its files are written anew
    assert place.rows(keyring=keyring).column("secret").to_pylist() == ["swordfish"] * 9
    assert not [key for key in place.objects() if b"swordfish" in place.store.get(key)]
    assert all(b'"mac":' in place.store.get(key) for key in place.objects(".json"))
    with pytest.raises(Invalid):
        place.rows()


def test_keys_are_never_left_out_silently(place: Place, keyring: str, tmp_path: Path) -> None:
    """A root with keys is not written to without them, nor with others; one without keys not with them."""
    write(place.target(keyring=keyring), "q", 0)
    with pytest.raises(Invalid, match="has keys") as raised:
        write(place.target(), "q", 1)
    assert "keyring" in raised.value.hint
    Keyring.generate("k1").save(tmp_path / "others")
    with pytest.raises(Invalid):
        write(place.target(keyring=f"file:{tmp_path / 'others'}"), "q", 1)
    plain = Place()
    write(plain.target(), "q", 0)
    with pytest.raises(Invalid, match="no keys"):
        write(plain.target(keyring=keyring), "q", 1)
    assert len(place.objects("/_sink/")) == len(plain.objects("/_sink/")) == 1


def test_an_object_without_a_signature_is_believed_by_nobody(place: Place, keyring: str) -> None:
    """Somebody without the key writes a batch: readers and writers with the key stop there."""
    write(place.target(keyring=keyring), "q", 0)
    forged = documents.encode(
        documents.SinkBatchDocument(
            log=place.newest(keyring=keyring).log,
            topic="t",
            number=1,
            writer="",
            batch=-1,
            nonce="0" * 32,
            segments=(),
            ends=place.newest(keyring=keyring).ends,
            marks={"q": 99},
            committed_us=1,
        )
    )
    place.store.create(layout.sink_key("t", 1), Body.of(forged))
    with pytest.raises(Corrupt, match="not signed"):
        place.rows(keyring=keyring)
    with pytest.raises(Corrupt, match="not signed"):
        write(place.target(keyring=keyring), "q", 1)
