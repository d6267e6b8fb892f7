"""Compaction of a root: rows, offsets and marks stay, files become few; what cannot be compacted is refused."""

from __future__ import annotations

import errno
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Corrupt, Invalid, Log, NotFound, Settings, Unavailable
from holdfast.cli.program import program
from holdfast.compaction import compactor, run_rewrite
from holdfast.root.objects import documents
from holdfast.root.objects.documents import RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.store import layout
from holdfast.store.port import Body
from tests.compaction.conftest import Compact, expected, files, payloads, ship
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

DAY_MS = 86_400_000.0


def test_rows_stay_and_files_become_few(log: Log, root: Root, compact: Compact):
    ship(log, 12, partitions=2)
    before = holdfast.read(root.url, "orders").to_arrow()
    report = compact()
    assert (report.files_before, report.files_after, report.rewritten_files) == (24, 2, 24)
    assert report.rewritten_rows == 72
    assert report.bytes_after < report.bytes_before
    assert holdfast.read(root.url, "orders").to_arrow().equals(before)
    assert holdfast.read(root.url, "orders", verify="full").to_arrow().equals(before)
    assert compact().rewritten_files == 0, "a second one finds nothing to do"


def test_typed_rows_of_several_schema_versions(log: Log, root: Root, compact: Compact):
    kinds = pa.schema(
        [("a", pa.int64()), ("tags", pa.list_(pa.string())), ("kind", pa.dictionary(pa.int8(), pa.string()))]
    )
    topic = log.topic("typed", schema=kinds)
    for at in range(4):
        topic.append([{"a": at, "tags": ["x", None], "kind": "k"}, {"a": None, "tags": None, "kind": None}])
        log.seal()
    newer = log.topic("typed", schema=kinds.append(pa.field("more", pa.float64())))
    for at in range(4):
        newer.append([{"a": at, "tags": [], "kind": "k", "more": at / 2}])
        log.seal()
    log.ship(30)
    before = holdfast.read(root.url, "typed").to_arrow()
    assert compact("typed").files_after == 2, "one for each version"
    assert holdfast.read(root.url, "typed").to_arrow().equals(before)
    with pytest.raises(Invalid, match="2 versions"):
        holdfast.read(root.url, "typed", schema_mode="strict").to_arrow()


def test_what_was_asked_before_is_answered_the_same(log: Log, root: Root, compact: Compact):
    """Marks, offsets and times from before a compaction mean the same rows after it."""
    ship(log, 5)
    reading = holdfast.read(root.url, "orders")
    times = reading.to_arrow()["time"].to_pylist()
    marks = reading.marks
    ship(log, 5)
    cuts = [
        {"as_of": marks},
        {"starting_offsets": {"orders": {"0": 7}}, "ending_offsets": {"orders": {"0": 22}}},
        {"starting_timestamp": times[4], "ending_timestamp": times[11]},
    ]
    before = [payloads(root, **cut) for cut in cuts]
    assert before[0] == expected(15)
    compact()
    assert [payloads(root, **cut) for cut in cuts] == before
    assert list(reading.to_arrow()["payload"].to_pylist()) == expected(15), "a reading that was made before"
    assert holdfast.read(root.url, "orders").count() == 30


def test_three_generations(log: Log, root: Root, compact: Compact):
    """Compacted, appended, compacted again: files of earlier compactions are joined, too."""
    for generation in range(1, 4):
        ship(log, 6)
        assert compact().files_after == 1
        assert payloads(root) == expected(generation * 18)
    assert root.numbers(layout.rewrites_folder("orders", 0)) == [0, 1, 2]
    report = compact(delete_after_ms=0)
    assert report.removed_files == 18 + 2, "segments, and files of the first two"
    assert files(root) == 1
    assert payloads(root) == expected(54)


def test_replaced_files_stay_for_a_while(log: Log, root: Root, compact: Compact):
    ship(log, 4)
    compact()
    assert compact(delete_after_ms=DAY_MS).removed_files == 0
    assert files(root) == 5
    assert compact(delete_after_ms=0).removed_files == 4
    assert files(root) == 1
    assert payloads(root) == expected(12)


def test_the_log_goes_on_beside_it(log: Log, root: Root, compact: Compact):
    """Its own files, its reads and its shipping know nothing of compactions."""
    ship(log, 4)
    compact(delete_after_ms=0)
    compact(delete_after_ms=0)
    assert [record.payload for record in log.topic("orders").read()] == expected(12)
    ship(log, 2)
    assert payloads(root) == expected(18)
    assert payloads(root, include_tail=True) == expected(18)


def test_a_dry_run_tells_and_changes_nothing(log: Log, root: Root, compact: Compact):
    ship(log, 6)
    before = root.objects()
    report = compact(dry_run=True)
    assert (report.files_before, report.files_after, report.rewritten_files, report.dry_run) == (6, 1, 6, True)
    assert root.objects() == before


def test_a_measured_compaction_says_how_much_faster_reads_became(log: Log, compact: Compact):
    ship(log, 6)
    assert compact(measure=True).speed_up is not None
    assert compact(measure=True).speed_up is None, "there was nothing to do"


def test_only_named_topics(log: Log, root: Root, compact: Compact):
    ship(log, 3)
    ship(log, 3, topic="others")
    assert [one.topic for one in compact("others").partitions] == ["others"]
    assert files(root) == 3
    with pytest.raises(NotFound, match="no topic 'ordres'"):
        compact("ordres")


@pytest.mark.parametrize(
    "options",
    [{"target_size": 1}, {"target_size": "1PiB"}, {"target_size": True}, {"workers": 0}, {"delete_after_ms": -1}],
)
def test_nonsense_is_refused(log: Log, compact: Compact, options: dict[str, object]):
    ship(log, 2)
    with pytest.raises(Invalid):
        compact(**options)


# -- roots that cannot be compacted ------------------------------------------------------------------------


def test_a_logs_own_directory_is_refused(open_log: Callable[..., Log], tmp_path: Path):
    with open_log("own") as log:
        log.topic("orders").append(b"x")
        log.seal()
    with pytest.raises(Invalid, match="own directory") as refused:
        holdfast.compact(str(tmp_path / "own"))
    assert "log.compact()" in refused.value.hint


def test_a_signed_root_needs_the_keyring(open_shipped, root: Root, keyring, tmp_path: Path):
    """Before any work: a rewrite without a signature would be refused by every reader with the key."""
    with open_shipped("keyed", keyring=keyring) as log:
        ship(log, 3)
    before = root.objects()
    with pytest.raises(Invalid, match="signed") as refused:
        holdfast.compact(root.url)
    assert "keyring" in refused.value.hint
    assert root.objects() == before


# -- damage ------------------------------------------------------------------------------------------------


def flip(root: Root, key: str, at: int = 60) -> None:
    data = bytearray(root.store.get(key))
    data[at] ^= 1
    root.replace(key, bytes(data))


def segment_keys(root: Root) -> list[str]:
    return root.keys("topics/orders/0/segments/")


def test_a_damaged_source_stays_and_is_reported(log: Log, root: Root, compact: Compact):
    ship(log, 3)
    ship(log, 3, topic="others")
    flip(root, segment_keys(root)[1])
    report = compact()
    assert len(report.problems) == 1
    assert "span=3..5" in report.problems[0]
    assert {one.topic: one.files_after for one in report.partitions} == {"orders": 3, "others": 1}
    assert root.numbers(layout.rewrites_folder("orders", 0)) == []
    assert root.keys("topics/orders/0/_intents/") == [], "nothing is left of the attempt"
    assert files(root) == 3


def test_an_output_that_was_damaged_is_never_swapped_in(
    log: Log, root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch
):
    """A disk that changes a bit between writing and reading back."""
    ship(log, 3)
    prove = run_rewrite._prove_rows

    def on_a_bad_disk(run, path: Path, *rest) -> None:
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(data)
        prove(run, path, *rest)

    monkeypatch.setattr(run_rewrite, "_prove_rows", on_a_bad_disk)
    assert compact().problems
    assert root.numbers(layout.rewrites_folder("orders", 0)) == []
    assert files(root) == 3
    assert payloads(root) == expected(9)


def test_rows_in_the_wrong_place_are_never_swapped_in(
    log: Log, root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch
):
    """A compactor that mixes rows up has a sound file in its hands, and finds out."""
    ship(log, 3)
    write = run_rewrite.SegmentWriter.write

    def mixed_up(self, batch: pa.RecordBatch) -> None:
        swapped = batch.column("payload").take(pa.array([1, 0, 2]))
        write(self, batch.set_column(5, batch.schema.field("payload"), swapped))

    monkeypatch.setattr(run_rewrite.SegmentWriter, "write", mixed_up)
    report = compact()
    assert "not those that its manifest object speaks of" in report.problems[0]
    assert root.numbers(layout.rewrites_folder("orders", 0)) == []


def test_a_flipped_bit_in_an_output_is_found(log: Log, root: Root, compact: Compact):
    ship(log, 3)
    compact(delete_after_ms=0)
    compact(delete_after_ms=0)
    (key,) = segment_keys(root)
    flip(root, key)
    with pytest.raises(Corrupt) as damage:
        payloads(root)
    assert damage.value.path == key


def test_a_file_that_was_replaced_under_a_running_read(log: Log, root: Root, compact: Compact):
    """It says so; and asking again finds the rows in the new file."""
    ship(log, 4)
    reading = holdfast.read(root.url, "orders", store={"prefetch_requests": 0})
    batches = reading.batches()
    next(batches)
    compact()
    assert compact(delete_after_ms=0).removed_files == 4
    with pytest.raises(NotFound, match="taken the place") as gone:
        list(batches)
    assert "read again" in gone.value.hint
    assert reading.to_arrow()["payload"].to_pylist() == expected(12)


def test_a_file_that_goes_between_two_ranges_is_reported_the_same_way(
    open_shipped: Callable[..., Log], root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch
):
    """A large file is read in several requests, and may go after the first."""
    monkeypatch.setattr("holdfast.reader.object_bytes._WHOLE_BYTES", 0)
    monkeypatch.setattr("holdfast.reader.object_bytes._TAIL_BYTES", 2000)
    with open_shipped("ranges", segments={"row_group_rows": 50}) as log:
        ship(log, 2, 5_000)
    batches = holdfast.read(root.url, "orders", store={"prefetch_requests": 0}).batches()
    next(batches)
    compact()
    compact(delete_after_ms=0)
    with pytest.raises(NotFound, match="taken the place"):
        list(batches)


def test_an_interrupt_leaves_an_intent_and_no_thread(
    log: Log, root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Ctrl-C while files are made: nothing is replaced, no thread goes on, and no temporary file stays."""
    ship(log, 6, partitions=1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    rewrite = compactor.rewrite

    def interrupted(*arguments, **options):
        rewrite(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(compactor, "rewrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compact()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-compact")]
    assert not list(tmp_path.glob("holdfast-compact-*"))
    assert root.numbers(layout.rewrites_folder("orders", 0)) == []
    assert len(root.keys("topics/orders/0/_intents/")) == 1
    monkeypatch.setattr(compactor, "rewrite", rewrite)
    assert compact(delete_after_ms=0).files_after == 1
    assert root.keys("topics/orders/0/_intents/") == []


def test_a_full_disk_is_reported(log: Log, root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch):
    """Where temporary files have no room, nothing is replaced."""
    ship(log, 3)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compactor, "rewrite", full)
    with pytest.raises(Unavailable, match="No space left") as refused:
        compact()
    assert "nothing was replaced" in refused.value.hint
    assert payloads(root) == expected(9)


def test_a_lost_output_is_no_replaced_file(log: Log, root: Root, compact: Compact):
    ship(log, 4)
    compact()
    compact(delete_after_ms=0)
    root.store.delete(segment_keys(root))
    with pytest.raises(Corrupt, match="is missing"):
        payloads(root)


# -- forged ------------------------------------------------------------------------------------------------


def forged(root: Root) -> RewriteDocument:
    """A rewrite that a writer to the bucket could make: sound, fitting, and not ours."""
    first, last = [one for one in root.manifest("orders") if isinstance(one, SegmentDocument)][:2]
    segment = first.segment
    joined = msgspec.structs.replace(segment, facts=msgspec.structs.replace(segment.facts, rows=first.rows + last.rows))
    document = SegmentDocument.of(joined, slot=first.slot, chain=joined.chain, sealed_us=last.sealed_us)
    return RewriteDocument(
        log=first.log,
        topic="orders",
        partition=0,
        number=0,
        nonce="f" * 16,
        outputs=(RewrittenFile(upto=2, segment=document),),
        rewritten_us=1,
    )


def test_a_forged_rewrite_of_a_signed_root_is_refused(open_shipped, root: Root, keyring, tmp_path: Path):
    keyring.save(tmp_path / "keyring")
    with open_shipped("keyed", keyring=keyring) as log:
        ship(log, 3)
    key = layout.rewrite_key("orders", 0, 0)
    root.store.create(key, Body.of(documents.encode(forged(root))))
    with pytest.raises(Corrupt, match="not signed") as damage:
        payloads(root, keyring=f"file:{tmp_path}/keyring")
    assert damage.value.path == key


def test_a_forged_rewrite_of_a_plain_root_returns_no_other_rows(log: Log, root: Root):
    """Nobody vouches for a plain root; but what is not what the manifest says is Corrupt."""
    ship(log, 3)
    root.store.create(layout.rewrite_key("orders", 0, 0), Body.of(documents.encode(forged(root))))
    with pytest.raises(Corrupt):
        payloads(root)


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(open_log, tmp_path: Path) -> Path:
    with open_log("shipped", settings=Settings.from_mapping({"store": {"url": str(tmp_path / "root")}})) as log:
        ship(log, 5)
    return tmp_path / "root"


def test_the_command_compacts_as_the_function_does(on_disk: Path):
    def run(*arguments: object) -> str:
        done = CliRunner().invoke(program, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "5 before, 1 would be left" in run("compact", on_disk, "--dry-run")
    report = json.loads(run("compact", on_disk, "orders", "--json", "--measure", "--target-size", "1MiB"))
    assert (report["files_before"], report["files_after"], report["target_bytes"]) == (5, 1, 2**20)
    assert "0 files, 0 rows" in run("compact", on_disk)
