"""Looking for a key: `read(key=…)` and `latest(key)` give what a list gives, whatever became of the segments."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, NotFound, Record, Settings
from holdfast.segments.file import segment_writer
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.keys import key_index
from holdfast.segments.manifest.local_manifest import Manifest
from tests.bundle_data import Masked
from tests.golden import make
from tests.sampling import examples

pytestmark = pytest.mark.disk

GOLDEN = Path(make.__file__).parent
RING = Keyring.generate("k1")
QUIET = {"segments": {"seal_on_close": False, "block_rows": 5, "row_group_rows": 20}, "disk": {"free_bytes_min": 0}}
SCHEMA = pa.schema([("customer", pa.string()), ("n", pa.int64()), ("code", pa.binary())])


@pytest.fixture(params=["plain", "keyring", "cipher"])
def how(request: pytest.FixtureRequest) -> dict[str, object]:
    """How the log is encrypted, if it is."""
    return {"plain": {}, "keyring": {"keyring": RING}, "cipher": {"cipher": Masked()}}[request.param]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of a few rows: few records make several of them."""
    monkeypatch.setattr(key_index, "UNIT_ROWS", 4)


def keyed(count: int, keys: int = 5, first: int = 0) -> list[Record]:
    return [Record(b"%d" % n, key=None if n % 4 == 0 else b"c-%d" % (n % keys)) for n in range(first, first + count)]


def payloads(found: object) -> list[bytes]:
    return [record.payload for record in found]  # type: ignore[attr-defined]


# -- the peer is a list ------------------------------------------------------------------------------------------------

SMALL_KEYS = st.sampled_from([None, b"", b"a", b"b", b"bb", b"\xff" * 40, b"\xff" * 41])
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(SMALL_KEYS, st.integers(0, 50)), min_size=1, max_size=30),
        st.sampled_from(["seal", "seal", "seal old", "compact", "reopen"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None)
@given(STEPS, st.sampled_from([{}, {"keyring": RING}]), st.data())
def test_it_gives_what_a_list_gives(steps: list[object], how: dict[str, object], data: st.DataObject) -> None:
    """Any records in any partitions, sealed with and without an index, compacted, reopened: key, span, time, order."""
    with tempfile.TemporaryDirectory() as folder:
        log = holdfast.open(folder, settings=Settings.from_mapping(QUIET), **how)  # type: ignore[arg-type]
        try:
            twin = _run(log, steps, folder, how)
            log = twin.log
            for key in (b"", b"a", b"bb", b"\xff" * 40, b"absent"):
                _compare(log, twin.records, key, data)
        finally:
            log.close()


class _Twin:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.records: list[Record] = []


def _run(log: Log, steps: list[object], folder: str, how: dict[str, object]) -> _Twin:
    twin = _Twin(log)
    log.topic("t", partitions=2)
    for step in steps:
        if isinstance(step, list):
            records = [
                Record(b"%d" % n, key=key, time=1_700_000_000_000_000 + time) for n, (key, time) in enumerate(step)
            ]
            receipts = log.topic("t").append_batch(records)
            twin.records += [
                Record(r.payload, r.key, None, None, r.time, receipt.offset, receipt.partition)
                for r, receipt in zip(records, receipts, strict=True)
            ]
        elif step == "seal":
            log.seal(timeout=60)
        elif step == "seal old":
            with patch.object(segment_writer.KeyIndexBuilder, "result", lambda _: None):
                log.seal(timeout=60)
        elif step == "compact":
            log.compact()
        else:
            log.close()
            twin.log = log = holdfast.open(folder, settings=Settings.from_mapping(QUIET), **how)  # type: ignore[arg-type]
    return twin


def _compare(log: Log, records: list[Record], key: bytes, data: st.DataObject) -> None:
    topic = log.topic("t")
    own = [record for record in records if record.key == key]
    own.sort(key=lambda record: record.offset)
    assert len({record.partition for record in own}) <= 1
    assert topic.latest(key) == (own[-1] if own else None)
    assert list(topic.read(key=key)) == own
    reverse, limit = data.draw(st.booleans()), data.draw(st.none() | st.integers(0, 5))
    start, end = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 60))
    moments = st.none() | st.integers(1_700_000_000_000_000, 1_700_000_000_000_050)
    since, until = data.draw(moments), data.draw(moments)
    wanted = [
        record
        for record in (reversed(own) if reverse else own)
        if start <= record.offset < end
        and (since is None or record.time >= since)
        and (until is None or record.time <= until)
    ]
    options = {"key": key, "reverse": reverse, "since": since, "until": until}
    reading = topic.read(start, end, limit, **options)
    assert list(reading) == wanted[:limit]
    assert reading.exhausted or limit is not None
    table = topic.read(start, end, limit, **options).to_arrow()
    assert table["offset"].to_pylist() == [record.offset for record in wanted[:limit]]
    if limit and len(wanted) > limit:  # a position goes on where a page with a key ended
        span = (start, reading.position) if reverse else (reading.position, end)
        assert list(topic.read(*span, **options)) == wanted[limit:]


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_only_files_that_have_a_key_are_opened(open_log, how, monkeypatch):
    """Among fifty segments: all of them once, for their indexes; from then on the one that has it, or none."""
    log = open_log(segments=QUIET["segments"], **how)
    topic = log.topic("t")
    for n in range(50):
        topic.append_batch([Record(b"x", key=b"k-%d-%d" % (n, i)) for i in range(8)])
        log.seal(timeout=60)
    opened: list[str] = []
    open_file = Manifest.open
    monkeypatch.setattr(
        Manifest, "open", lambda *given, **how: (opened.append(given[2].number), open_file(*given, **how))[1]
    )
    assert topic.latest(b"k-9-absent") is None
    assert opened == list(range(50))[::-1]
    opened.clear()
    assert topic.latest(b"k-9-absent") is None
    assert topic.latest(b"k-17-3").offset == 17 * 8 + 3
    assert payloads(topic.read(key=b"k-30-7")) == [b"x"]
    assert opened == [17, 30]


def test_the_newest_is_found_without_looking_at_older_segments(open_log, how, monkeypatch):
    """`latest` goes backwards and stops; what is in the tail needs no segment at all."""
    log = open_log(segments=QUIET["segments"], **how)
    topic = log.topic("t")
    for n in range(10):
        topic.append_batch([Record(b"%d" % n, key=b"same")] * 3)
        log.seal(timeout=60)
    opened: list[int] = []
    open_file = Manifest.open
    monkeypatch.setattr(
        Manifest, "open", lambda *given, **how: (opened.append(given[2].number), open_file(*given, **how))[1]
    )
    assert topic.latest(b"same").payload == b"9"
    assert set(opened) == {9}
    opened.clear()
    topic.append(b"tail", key="same")
    assert topic.latest("same").payload == b"tail"
    assert not opened


def test_of_a_large_encrypted_segment_only_the_blocks_with_the_key_are_decrypted(open_log, monkeypatch):
    """The index tells the rows, not only the segment."""
    log = open_log(segments={**QUIET["segments"], "block_rows": 4}, keyring=RING)
    topic = log.topic("t")
    topic.append_batch([Record(b"x", key=b"k-%d" % n) for n in range(400)])
    log.seal(timeout=60)
    topic.latest(b"k-0")
    from holdfast.segments.file.encrypted_parts import EncryptedParts

    blocks: list[int] = []
    decrypt = EncryptedParts.decrypted
    monkeypatch.setattr(
        EncryptedParts,
        "decrypted",
        lambda self, place, block: (blocks.append(place.first), decrypt(self, place, block))[1],
    )
    assert topic.latest(b"k-213").offset == 213
    assert blocks == [212]


@pytest.mark.parametrize("bytes_max", [0, 1_000])
def test_answers_do_not_depend_on_the_memory_for_indexes(open_log, bytes_max):
    """With none, or with room for two of ten, indexes are read again; what is kept is bounded."""
    log = open_log(segments={**QUIET["segments"], "key_index_bytes_max": bytes_max})
    topic = log.topic("t")
    for n in range(10):
        topic.append_batch([Record(b"%d" % n, key=b"k-%d" % (n % 3))])
        log.seal(timeout=60)
    for _ in range(2):
        assert payloads(topic.read(key="k-1")) == [b"1", b"4", b"7"]
        assert topic.latest("k-2").payload == b"8"
    lookup = topic._source._manifest.keys
    assert lookup._size <= bytes_max
    assert {number for known in lookup._known.values() for number in known} == ({8, 9} if bytes_max else set())


# -- segments of all kinds ---------------------------------------------------------------------------------------------


def test_compaction_keeps_indexes(open_log, how):
    """Of plain files one is made anew, those of encrypted ones are moved; what was looked up before stays true."""
    log = open_log(segments=QUIET["segments"], shipping={"delete_after_ms": 0}, **how)
    topic = log.topic("t")
    for n in range(6):
        topic.append_batch(keyed(10, first=10 * n))
        log.seal(timeout=60)
    expected = payloads(record for record in topic.read() if record.key == b"c-2")
    assert payloads(topic.read(key=b"c-2")) == expected
    report = log.compact()
    assert (report.files_before, report.files_after) == (6, 1)
    assert payloads(topic.read(key=b"c-2")) == expected
    (path,) = log.path.rglob("*.parquet")
    log.close()
    again = open_log(segments=QUIET["segments"], **how)
    assert payloads(again.topic("t").read(key=b"c-2")) == expected
    assert again.topic("t").latest(b"absent") is None
    with SegmentReader(path, None, None, again._journal.segment_keys) as reader:
        parts = reader.key_indexes()
        assert [part.keys is not None for part in parts] == [True] * (6 if how else 1)
        reader.verify()
    assert again.reconcile(deep=True).clean


@pytest.mark.parametrize("name", ["plain", "sealed"])
def test_keys_of_golden_segments_are_found(tmp_path, name):
    """And those of segments that come after them."""
    shutil.copytree(GOLDEN / name, tmp_path / "log")
    keyring = make.ROTATED if "sealed" in name else None
    with holdfast.open(tmp_path / "log", keyring=keyring, settings=make.SETTINGS) as log:
        for topic in (log.topic(n) for n in ("orders", "events")):
            every = list(topic.read())
            assert any(record.key for record in every)
            for key in {record.key for record in every if record.key is not None}:
                own = [record for record in every if record.key == key]
                assert list(topic.read(key=key, partition=range(topic.partitions))) == own
                assert topic.latest(key, partition=own[-1].partition) == own[-1]
        events = log.topic("events")
        events.append(b"new", key=b"fresh")
        log.seal(timeout=60)
        assert events.latest(b"fresh").payload == b"new"


def test_what_has_expired_is_not_found(open_log):
    """And a span that begins with it says so, as any read does."""
    log = open_log(segments=QUIET["segments"])
    topic = log.topic("t")
    for n in range(4):
        topic.append_batch([Record(b"%d" % n, key=b"k-%d" % n)] * 2)
        log.seal(timeout=60)
    assert topic.latest("k-0") is not None
    log.set_retention("t", records_max=2)
    log.retain()
    assert topic.latest("k-0") is None
    assert topic.latest("k-3").payload == b"3"
    assert list(topic.read(key="k-1")) == []
    with pytest.raises(NotFound, match="expired"):
        list(topic.read(0, key="k-3"))


# -- partitions --------------------------------------------------------------------------------------------------------


def test_a_key_is_looked_for_where_its_records_go(open_log):
    """Records that somebody put elsewhere are found by naming the partition."""
    log = open_log(segments=QUIET["segments"])
    topic = log.topic("t", partitions=4)
    own = topic.append(b"own", key="c-42").partition
    other = (own + 1) % 4
    topic.append(b"elsewhere", key="c-42", partition=other)
    for _ in range(2):
        assert payloads(topic.read(key="c-42")) == [b"own"]
        assert topic.latest("c-42").payload == b"own"
        assert topic.latest("c-42", partition=other).payload == b"elsewhere"
        assert sorted(payloads(topic.read(key="c-42", partition=range(4)))) == [b"elsewhere", b"own"]
        log.seal(timeout=60)


# -- typed topics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "wanted"), [("customer", "c-3"), ("n", 13), ("code", b"\xff\x03")])
def test_typed_topics_have_the_values_of_their_key_column(open_log, how, column, wanted):
    """Text, integers and bytes; in the tail, in segments, in compacted ones; only some columns, and as Arrow."""
    log = open_log(segments=QUIET["segments"], **how)
    topic = log.topic("rows", schema=SCHEMA, key=column, partitions=2)
    rows = [
        {"customer": None if n % 9 == 0 else f"c-{n % 7}", "n": n % 20, "code": b"\xff" + bytes([n % 6])}
        for n in range(60)
    ]
    for at in range(0, 60, 15):
        topic.append(rows[at : at + 15])
        own = [row for row in rows[: at + 15] if row[column] == wanted]
        found = list(topic.read(key=wanted))
        assert [{name: row[name] for name in SCHEMA.names} for row in found] == own
        assert [topic.latest(wanted)] == (found[-1:] or [None])
        if at < 45:
            log.seal(timeout=60)
    other = "n" if column != "n" else "code"
    some = topic.read(key=wanted, columns=[other], reverse=True)
    assert some.schema.names == ["_partition", "_offset", "_time", other]
    assert some.to_arrow()[other].to_pylist() == [row[other] for row in own][::-1]
    log.compact()
    assert list(topic.read(key=wanted)) == found
    for path in log.path.rglob("*.parquet"):
        with SegmentReader(path, None, None, log._journal.segment_keys) as reader:
            assert reader.key_column == column
            assert all(part.keys is not None for part in reader.key_indexes())


def test_what_cannot_be_a_key_is_refused(open_log):
    """With what to do instead."""
    log = open_log()
    raw = log.topic("raw")
    typed = log.topic("typed", schema=SCHEMA, key="n")
    text = log.topic("text", schema=SCHEMA, key="customer")
    keyless = log.topic("keyless", schema=SCHEMA)
    for topic, key in (
        (raw, 7),
        (raw, b"x" * 2**20),
        (typed, "7"),
        (typed, True),
        (typed, 2**63),
        (text, b"c"),
        (text, "\ud800"),
        (keyless, "c"),
    ):
        with pytest.raises(Invalid) as caught:
            topic.latest(key)  # type: ignore[arg-type]
        assert caught.value.hint
    assert raw.latest("x") is None
    assert typed.latest(-1) is None


# -- damage and forgery ------------------------------------------------------------------------------------------------


def sealed_log(open_log, how) -> tuple[Log, list[Path]]:
    log = open_log(segments=QUIET["segments"], **how)
    topic = log.topic("t")
    for n in range(3):
        topic.append_batch([Record(b"%d" % n, key=b"k-%d" % i) for i in range(n, n + 20)])
        log.seal(timeout=60)
    return log, sorted(log.path.rglob("*.parquet"))


def index_of(path: Path) -> tuple[int, int]:
    with SegmentReader(path, None, None, None) as reader:
        place = reader._footer.keys
    assert place is not None
    return place.start, place.length


def test_a_flipped_bit_in_an_index_is_found(open_log, how):
    """Never an answer from it; the log says which file it is."""
    log, files = sealed_log(open_log, how)
    start, length = index_of(files[1])
    for at in (start, start + length // 2, start + length - 1):
        content = bytearray(files[1].read_bytes())
        content[at] ^= 4
        files[1].write_bytes(content)
        with open_log(segments=QUIET["segments"], read_only=True, **how) as again:
            for ask in (again.topic("t").latest, lambda key: list(again.topic("t").read(key=key))):
                with pytest.raises(Corrupt) as caught:
                    ask(b"absent")
                assert str(files[1]) in str(caught.value)
        content[at] ^= 4
        files[1].write_bytes(content)
    assert log.topic("t").latest(b"k-0").payload == b"0"


def test_the_index_of_another_segment_is_refused(open_log):
    """With a key it decrypts in its own place only: a copy, with hashes and all, is found."""
    log, files = sealed_log(open_log, {"keyring": RING})
    (_, length), (other, same) = index_of(files[1]), index_of(files[2])
    assert length == same
    stolen = files[2].read_bytes()[other : other + length]
    from holdfast.segments.file.proven_file import ProvenFile

    class Careless(ProvenFile):
        """A reader that compares no hash: what is left is the cipher."""

        def read_alone(self, start, length, digest):
            return memoryview(stolen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.segments.file.segment_reader.ProvenFile", Careless)
        reader = SegmentReader(files[1], None, None, log._journal.segment_keys)
        with reader, pytest.raises(Corrupt, match="does not decrypt"):
            reader.key_indexes()


def test_nothing_of_the_keys_is_seen_in_an_encrypted_file(open_log):
    """Neither a key nor its hash; and the size of an index is one of few."""
    log = open_log(segments=QUIET["segments"], keyring=RING)
    sizes = []
    for n, count in enumerate((1, 3, 40, 50)):
        log.topic("t").append_batch([Record(b"x", key=b"customer-%d" % i) for i in range(count)])
        log.seal(timeout=60)
        path = sorted(log.path.rglob("*.parquet"))[n]
        content = path.read_bytes()
        assert b"customer" not in content
        sizes.append(index_of(path)[1])
    assert sizes[0] == sizes[1]
    assert all((size - 40).bit_count() == 1 for size in sizes)


def test_an_index_that_hides_a_record_is_found_by_a_deep_check(open_log, how, monkeypatch):
    """Written by somebody who can write whole segments: what a reader cannot see, `reconcile --deep` can."""
    enter = key_index.KeyIndexBuilder._enter

    def forgetful(self, parts, unit):
        enter(self, [part.slice(0, len(part) - 1) for part in parts], unit)

    monkeypatch.setattr(key_index.KeyIndexBuilder, "_enter", forgetful)
    log, _ = sealed_log(open_log, how)
    monkeypatch.undo()
    assert not log.reconcile(deep=True).clean
    reader = SegmentReader(min(log.path.rglob("*.parquet")), None, None, log._journal.segment_keys)
    with reader, pytest.raises(Corrupt, match="does not know all"):
        reader.verify()
