"""Rewrites: which files are in effect, and that nothing is believed which does not fit the manifest."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Corrupt
from holdfast.clock import SystemClock
from holdfast.model.segment import NO_CHAIN, NO_CONTENT, Segment, SegmentFacts, SegmentHead
from holdfast.root import rewrites
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.root.rewrites import in_effect, read_intents, read_rewrites, replaced, segments_in_effect
from holdfast.store import layout
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body

pytestmark = pytest.mark.unit

LOG = bytes(range(16))
ROWS = 10


def segment(number: int, rows: int, first: int, previous: bytes, mark: bytes = b"s") -> SegmentDocument:
    head = SegmentHead(
        log_id=LOG,
        topic="orders",
        partition=0,
        number=number,
        first=first,
        epoch=1,
        schema=bytes(16),
        previous=previous,
    )
    facts = SegmentFacts(
        rows=rows,
        size=100 * rows,
        time_min=number,
        time_max=number + 1,
        sha256=mark * 31 + bytes([number]),
        content=b"c" * 31 + bytes([number]),
        footer=bytes(16),
        key_id="",
    )
    one = Segment(head=head, facts=facts)
    return SegmentDocument.of(one, slot=number + 3, chain=one.chain, sealed_us=number)


def manifest(count: int) -> list[SegmentDocument]:
    found: list[SegmentDocument] = []
    for number in range(count):
        previous = bytes.fromhex(found[-1].chain) if found else NO_CHAIN
        found.append(segment(number, ROWS, number * ROWS, previous))
    return found


def output(segments: list[SegmentDocument], start: int, upto: int, mark: bytes = b"r") -> RewrittenFile:
    of = segments[start]
    joined = segment(start, (upto - start) * ROWS, of.first, bytes.fromhex(of.previous), mark)
    return RewrittenFile(upto=upto, segment=joined)


def rewrite(number: int, *outputs: RewrittenFile) -> RewriteDocument:
    return RewriteDocument(
        log=LOG.hex(), topic="orders", partition=0, number=number, nonce="0" * 16, outputs=outputs, rewritten_us=1
    )


def spans(files: list[rewrites.InEffect]) -> list[tuple[int, int, int | None]]:
    return [(file.segment.number, file.upto, file.rewrite) for file in files]


def test_without_rewrites_segments_are_in_effect():
    segments = manifest(3)
    assert spans(in_effect(segments, [])) == [(0, 1, None), (1, 2, None), (2, 3, None)]
    assert segments_in_effect(segments, []) is segments


def test_later_rewrites_replace_files_of_earlier_ones():
    segments = manifest(8)
    made = [rewrite(0, output(segments, 0, 2), output(segments, 2, 4)), rewrite(1, output(segments, 0, 6, b"t"))]
    assert spans(in_effect(segments, made[:1])) == [
        (0, 2, 0),
        (2, 4, 0),
        (4, 5, None),
        (5, 6, None),
        (6, 7, None),
        (7, 8, None),
    ]
    assert spans(in_effect(segments, made)) == [(0, 6, 1), (6, 7, None), (7, 8, None)]
    assert replaced(segments, made) == {
        **{each.key: 0 for each in segments[:4]},
        **{each.key: 1 for each in segments[4:6]},
        made[0].outputs[0].segment.key: 1,
        made[0].outputs[1].segment.key: 1,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 19},
        {"rows": 21},
        {"first": 1},
        {"slot": 1},
        {"log": "0" * 32},
        {"topic": "other"},
        {"partition": 1},
        {"previous": "1" * 64},
        {"chain": "1" * 64},
        {"content": "1" * 64},
        {"schema": "1" * 32},
        {"key_id": "k"},
        {"size": 0, "content": NO_CONTENT.hex()},
        {"sha256": "../../x"},
        {"check": "0"},
        {"number": 1},
        {"number": 99},
    ],
)
def test_a_file_that_does_not_fit_is_refused(change):
    segments = manifest(4)
    made = output(segments, 0, 2)
    forged = RewrittenFile(upto=2, segment=msgspec.structs.replace(made.segment, **change))
    assert spans(in_effect(segments, [rewrite(0, made)]))[0] == (0, 2, 0)
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, [rewrite(0, forged)])


@pytest.mark.parametrize("upto", [-1, 0, 1, 3, 4, 5, 2**62])
def test_a_file_that_ends_elsewhere_is_refused(upto):
    segments = manifest(4)
    forged = msgspec.structs.replace(output(segments, 0, 2), upto=upto)
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, [rewrite(0, forged)])


def test_files_over_each_other_are_refused():
    segments = manifest(4)
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, [rewrite(0, output(segments, 0, 2), output(segments, 1, 3))])
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, [rewrite(0, output(segments, 0, 3)), rewrite(1, output(segments, 2, 4))])


def test_a_rewrite_without_files_takes_its_number_and_changes_nothing():
    segments = manifest(4)
    assert in_effect(segments, [rewrite(0)]) == in_effect(segments, [])


def put(store: MemoryStore, made: list[RewriteDocument]) -> None:
    for one in made:
        store.create(layout.rewrite_key("orders", 0, one.number), Body.of(documents.encode(one)))


def growing(count: int, every: int) -> tuple[list[SegmentDocument], list[RewriteDocument]]:
    """Rewrites that join two segments each; one of so many tells all."""
    segments = manifest(2 * count)
    made: list[RewriteDocument] = []
    for number in range(count):
        kept = tuple(output for one in made for output in one.outputs) if number % every == every - 1 else None
        new = rewrite(number, output(segments, 2 * number, 2 * number + 2))
        made.append(msgspec.structs.replace(new, kept=kept))
    return segments, made


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 11])
def test_a_reader_begins_with_the_newest_that_tells_all(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", 4)
    segments, made = growing(count, 4)
    store = MemoryStore("all", SystemClock())
    put(store, made)
    found = rewrites.read_newest(store, LOG.hex(), "orders", 0)
    assert len(found) <= 4
    assert segments_in_effect(segments, found) == segments_in_effect(segments, made)
    more = growing(count + 3, 4)
    put(store, more[1][count:])
    found += rewrites.read_since(store, LOG.hex(), "orders", 0, found)
    assert segments_in_effect(more[0], found) == segments_in_effect(*more)


def test_one_that_should_tell_all_and_does_not_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    """One that only takes a number knows nothing of files."""
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", 4)
    segments, made = growing(10, 4)
    made[7] = msgspec.structs.replace(made[7], kept=None)
    store = MemoryStore("all", SystemClock())
    put(store, made)
    found = rewrites.read_newest(store, LOG.hex(), "orders", 0)
    assert found[0].number == 3
    assert segments_in_effect(segments, found) == segments_in_effect(segments, made)


def test_a_hole_in_the_rewrites_is_found_wherever_a_reader_begins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", 4)
    store = MemoryStore("all", SystemClock())
    put(store, growing(10, 4)[1])
    store.delete([layout.rewrite_key("orders", 0, 2)])
    with pytest.raises(Corrupt, match="is missing"):
        rewrites.read_newest(store, LOG.hex(), "orders", 0)


def test_what_is_reported_must_fit_the_manifest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", 4)
    segments, made = growing(4, 4)
    made[3] = msgspec.structs.replace(made[3], kept=(output(segments, 0, 3), output(segments, 2, 4)))
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, made[3:])


def test_what_was_lost_is_in_no_rewrite():
    segments = manifest(4)
    segments[1] = msgspec.structs.replace(segments[1], size=0, content=NO_CONTENT.hex())
    with pytest.raises(Corrupt, match="does not fit"):
        in_effect(segments, [rewrite(0, output(segments, 0, 2))])


def stored(*made: RewriteDocument) -> MemoryStore:
    store = MemoryStore("x", SystemClock())
    for at, each in enumerate(made):
        store.create(layout.rewrite_key("orders", 0, at), Body.of(documents.encode(each)))
    return store


def test_rewrites_are_read_in_order_and_known_ones_are_not_read_again():
    segments = manifest(4)
    made = [rewrite(0, output(segments, 0, 2)), rewrite(1, output(segments, 2, 4))]
    store = stored(*made)
    found = read_rewrites(store, LOG.hex(), "orders", 0)
    assert [each.number for each in found] == [0, 1]
    store.delete([layout.rewrite_key("orders", 0, 0)])
    assert read_rewrites(store, LOG.hex(), "orders", 0, found[:1]) == found
    with pytest.raises(Corrupt, match="missing"):
        read_rewrites(store, LOG.hex(), "orders", 0)


def test_rewrites_of_others_are_refused():
    made = rewrite(0, output(manifest(2), 0, 2))
    for change in ({"log": "0" * 32}, {"topic": "other"}, {"partition": 1}):
        with pytest.raises(Corrupt, match="elsewhere"):
            read_rewrites(stored(msgspec.structs.replace(made, **change)), LOG.hex(), "orders", 0)


def test_intents_are_open_until_their_rewrite_is_there():
    store = MemoryStore("x", SystemClock())
    for number in range(3):
        nonce = f"{number:016x}"
        intent = IntentDocument(
            log=LOG.hex(),
            topic="orders",
            partition=0,
            number=number,
            nonce=nonce,
            runs=((0, 2),),
            begun_us=1,
            host="h",
            pid=1,
        )
        store.create(layout.intent_key("orders", 0, number, nonce), Body.of(documents.encode(intent)))
    store.create(layout.intent_key("orders", 0, 2, "f" * 16), Body.of(b"{}"))
    assert [each.number for each in read_intents(store, LOG.hex(), "orders", 0, 1)] == [1, 2]
