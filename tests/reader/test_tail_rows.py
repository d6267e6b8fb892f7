"""includeTail: what a store has above the marks, each offset once, without a gap, whatever is settled meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Keyring, Log, Record, Settings
from holdfast.clock import SystemClock
from holdfast.crypto import digests
from holdfast.errors import Corrupt, Invalid
from holdfast.model.entry import Entry, Place, header_of
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_columns import RAW, RowShaper, schema_of
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Task, TimeBounds, pieces_of, tasks_of
from holdfast.reader.resolve import OffsetSpan, resolve
from holdfast.reader.tail_rows import TailReader, TailTask, plan_tail
from holdfast.root.objects import commit_batch
from holdfast.root.objects.commit_batch import TailEntry
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.testing.manual_clock import ManualClock
from tests.reader.manifests import manifests
from tests.segments.planting import TEN
from tests.store import shipped_logs
from tests.store.servers import weed

pytestmark = pytest.mark.store

Model = dict[int, list[bytes]]
"""What was appended, by partition."""


class Written:
    """A log that ships, and what was appended to it."""

    def __init__(
        self, open_one: Callable[..., Log], topic: str = "orders", partitions: int = 2, **options: Any
    ) -> None:
        self._open = lambda: open_one(**options)
        self.name, self.partitions = topic, partitions
        self.log = self._open()
        self.topic: Any = self.log.topic(topic, partitions=partitions)
        self.model: Model = {number: [] for number in range(partitions)}

    def append(self, partition: int = 0, count: int = 1) -> None:
        """One commit, on the store when this returns."""
        first = len(self.model[partition])
        values = [b"%d:%d" % (partition, first + i) for i in range(count)]
        self.topic.append_batch(values, partition=partition, durability="shipped")
        self.model[partition] += values

    def settle(self) -> None:
        """Everything is in segments on the store."""
        self.log.seal()
        self.log.ship(20)

    def reopen(self) -> None:
        """Closed, which removes batches that are settled, and opened again, under the next epoch."""
        self.log.close()
        self.log = self._open()
        self.topic = self.log.topic(self.name, partitions=self.partitions)


def values(table: pa.Table | list[pa.RecordBatch]) -> Model:
    """Values by partition, in the order in which they came; their offsets must be dense from 0 on."""
    table = pa.Table.from_batches(table, schema_of(RAW)) if isinstance(table, list) else table
    found: Model = {}
    for row in table.to_pylist():
        own = found.setdefault(row["partition"], [])
        assert row["offset"] == len(own), "twice, left out, or out of order"
        own.append(row["payload"])
    return found


def kept(model: Model) -> Model:
    return {partition: found for partition, found in model.items() if found}


def batch_paths(root: Path) -> list[Path]:
    return sorted((root / "tail").rglob("*.arrow"))


def read(root: Path, topic: str = "orders", **options: Any) -> holdfast.SettledReading:
    return holdfast.read(str(root), topic, include_tail=True, **options)


@pytest.fixture
def written(open_shipped) -> Written:
    """Ten settled records and some more in batches."""
    made = Written(open_shipped, segments=TEN)
    made.append(0, 10)
    made.settle()
    for partition, count in ((0, 1), (1, 3), (0, 2), (1, 1)):
        made.append(partition, count)
    return made


# -- what is given ------------------------------------------------------------------------------------------


def test_the_tail_follows_the_segments_without_a_gap(written, root):
    reading = read(root)
    assert reading.marks == f'{{"{written.log.id}":{{"orders":{{"0":[0,10],"1":[0,0]}}}}}}'
    assert values(reading.to_arrow()) == written.model
    assert reading.count() == 17
    assert holdfast.read(str(root), "orders").count() == 10


def test_all_columns_are_those_of_segments(open_shipped, root):
    """The same rows, read from batches and from the segments that they become."""
    log = open_shipped()
    topic = log.topic("orders")
    records = [
        Record(b"v", key=b"k", kind="order", headers={"trace": b"\0", "ü": b""}, time=5),
        Record(b""),
        Record(b"x", key=b""),
        Record(b"y", headers={}, kind="x", time=-7),
    ]
    topic.append_batch(records, durability="shipped")
    topic.append_batch([Record(b"z")], durability="shipped")
    tail = read(root).to_arrow()
    log.seal()
    log.ship(20)
    settled = holdfast.read(str(root), "orders").to_arrow()
    assert tail.schema == settled.schema
    assert tail.to_pylist() == settled.to_pylist()


def test_a_topic_of_which_nothing_is_settled_is_all_tail(open_shipped, root):
    made = Written(open_shipped)
    made.append(1, 5)
    assert values(read(root).to_arrow()) == kept(made.model)


def test_nothing_to_add_adds_nothing(open_shipped, root):
    made = Written(open_shipped)
    made.append(0, 5)
    made.settle()
    made.log.close()
    assert values(read(root).to_arrow()) == kept(made.model)


def test_several_topics_and_only_those_that_are_asked_for(open_shipped, root):
    log = open_shipped()
    for name in ("orders", "payments", "other"):
        log.topic(name).append(name.encode(), durability="shipped")
    rows = holdfast.read(str(root), ["payments", "orders"], include_tail=True).to_arrow().to_pylist()
    assert sorted((row["topic"], row["payload"]) for row in rows) == [("orders", b"orders"), ("payments", b"payments")]
    assert holdfast.read(str(root), topic_pattern="o.*", include_tail=True).count() == 2


def test_typed_topics_and_their_newer_versions_are_read_too(open_shipped, root):
    log = open_shipped()
    old, new = pa.schema({"city": pa.string()}), pa.schema({"city": pa.string(), "count": pa.int64()})
    log.topic("cities", schema=old).append([{"city": "Ulm"}], durability="shipped")
    log.seal()
    log.ship(20)
    log.topic("cities", schema=old).append([{"city": "Bonn"}, {"city": None}], durability="shipped")
    log.topic("cities", schema=new).append([{"city": "Jena", "count": 3}], durability="shipped")
    rows = read(root, "cities").to_arrow().select(["_offset", "city", "count"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, "Ulm", None),
        (1, "Bonn", None),
        (2, None, None),
        (3, "Jena", 3),
    ]
    with pytest.raises(Invalid, match="2 versions of their schema"):
        read(root, "cities", schema_mode="strict").to_arrow()


def test_a_schema_that_only_the_tail_has_counts_as_a_version(open_shipped, root):
    log = open_shipped()
    reading = None
    for names in ("a", "ab"):
        schema = pa.schema({name: pa.int64() for name in names})
        log.topic("t", schema=schema).append([dict.fromkeys(names, 1)], durability="shipped")
        reading = reading or read(root, "t")
    assert reading is not None
    assert reading.schema.names[4:] == ["a"]
    assert reading.to_arrow().num_rows == 1


def test_columns_are_chosen_in_the_tail_as_in_segments(written, root):
    rows = read(root, columns=["payload", "offset"], starting_offsets='{"orders":{"0":9}}').to_arrow()
    assert rows.schema.names == ["payload", "offset"]
    assert rows.to_pylist()[:3] == [
        {"payload": b"0:9", "offset": 9},
        {"payload": b"0:10", "offset": 10},
        {"payload": b"0:11", "offset": 11},
    ]


def test_counting_reads_no_batch(written, root):
    reading = read(root)
    for path in batch_paths(root):
        path.unlink()
    assert reading.count() == 17


def test_offsets_cut_entries_of_the_tail(open_shipped, root):
    """A commit of many records is one entry; a read may begin and end inside of it."""
    made = Written(open_shipped, partitions=1)
    made.append(0, 10)
    made.append(0, 10)
    rows = read(root, starting_offsets='{"orders":{"0":3}}', ending_offsets='{"orders":{"0":14}}').to_arrow()
    assert rows.column("offset").to_pylist() == list(range(3, 14))


def test_latest_as_a_start_is_the_tail_alone(written, root):
    rows = read(root, starting_offsets="latest").to_arrow()
    assert sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == [
        (0, 10),
        (0, 11),
        (0, 12),
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
    ]


def test_an_end_that_is_not_on_the_store_yet_is_refused_with_what_is(written, root):
    with pytest.raises(Invalid, match="not on the store yet topic=orders partition=0 offset=14 end=13"):
        read(root, ending_offsets='{"orders":{"0":14}}')
    assert read(root, ending_offsets='{"orders":{"0":13,"1":-2}}').count() == 13


def test_times_choose_records_of_the_tail(open_shipped, root):
    log = open_shipped()
    topic = log.topic("orders")
    for first in (0, 10, 20):
        topic.append_batch([Record(b"x", time=first + i) for i in range(10)], durability="shipped")
    for since, before in ((0, 30), (5, 25), (10, 20), (20, 21), (30, 40)):
        reading = read(root, starting_timestamp=since, ending_timestamp=before)
        wanted = [time for time in range(30) if since <= time < before]
        assert reading.to_arrow().column("offset").to_pylist() == wanted
        assert reading.count() == len(wanted)


# -- what counts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2, 3])
def test_a_hole_below_what_was_acknowledged_is_said_and_a_reader_that_insists_reads_up_to_it(open_shipped, root, at):
    """As a restore would: whole commits, up to the first batch that is missing; the newest one, too."""
    made = Written(open_shipped)
    for partition in (0, 1, 0, 1):
        made.append(partition, 2)
    made.log.close()
    batch_paths(root)[at].unlink()
    with pytest.raises(Corrupt, match=rf"acknowledged as shipped are missing from={at + 1} acknowledged=4"):
        read(root)
    rest = read(root, fail_on_data_loss=False)
    assert values(rest.to_arrow()) == {0: made.model[0][: 2 * (at - 1)], 1: made.model[1][:2]}


def test_batches_of_several_epochs_are_one_tail(open_shipped, root):
    made = Written(open_shipped, segments=TEN)
    for _ in range(3):
        made.append(0, 4)
        made.append(1, 1)
        made.reopen()
    assert values(read(root).to_arrow()) == made.model


def test_a_log_that_was_taken_over_is_read_as_its_new_owner_has_it(open_shipped, root, tmp_path, open_log):
    made = Written(open_shipped)
    made.append(0, 3)
    made.log.close()
    holdfast.restore(str(root), tmp_path / "new")
    log = open_log("new", settings=Settings.from_mapping({"store": {"url": str(root)}}))
    log.topic("orders", partitions=2).append(b"0:3", partition=0, durability="shipped")
    assert values(read(root).to_arrow()) == {0: [*made.model[0], b"0:3"]}


def test_a_log_of_ones_own_has_no_tail(open_log):
    log = open_log()
    log.topic("orders").append(b"x")
    log.seal()
    log.close()
    with pytest.raises(Invalid, match="there is no tail at this root") as refused:
        read(log.path)
    assert "includeTail" in refused.value.hint


def test_the_tail_is_read_where_all_claims_are_lost(open_shipped, root):
    """It is there: that nobody claims the root any more hides no record that was acknowledged as shipped."""
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    for claim in (root / "epochs").iterdir():
        claim.unlink()
    assert read(root).to_arrow().num_rows == 1


def test_a_store_without_commit_batches_is_read_up_to_its_marks(open_shipped, root):
    log = open_shipped(shipping={"commit_batches": False})
    log.topic("orders").append_batch([b"a", b"b"])
    log.seal()
    log.ship(20)
    log.topic("orders").append(b"c")
    assert read(root).count() == 2


# -- while it is settled ------------------------------------------------------------------------------------


def test_what_is_settled_after_planning_is_found_in_segments(written, root):
    """All batches are gone when the rows are asked for; and again, when they are asked for again."""
    reading = read(root)
    model = {partition: list(found) for partition, found in written.model.items()}
    written.append(0, 5)  # not planned, so not given
    written.settle()
    written.log.close()
    assert batch_paths(root) == []
    for _ in range(2):
        assert values(reading.to_arrow()) == model


def test_what_is_settled_between_marks_and_planning_is_not_left_out(written, shipped_store):
    root = SettledRoot(RootStore(shipped_store, RootTrust(None)))
    options = ReadOptions(topics=("orders",), include_tail=True)
    resolved = resolve(root, options)
    written.settle()
    written.append(0, 1)
    assert plan_tail(root, resolved, options).spans == (OffsetSpan("orders", 0, 10, 14), OffsetSpan("orders", 1, 0, 4))


class Hasty(DirectoryStore):
    """A store whose first listing of the tail lacks all but its last batch: the others went, their floor came late."""

    is_late = True

    def list(self, prefix: str, after: str | None = None) -> Any:
        found = list(super().list(prefix, after))
        if prefix == layout.TAIL and self.is_late:
            self.is_late = False
            return iter(found[-1:])
        return iter(found)


def test_a_listing_that_misses_the_floor_cuts_nothing_off(written, root):
    """Batches were removed while the names were read: what lies behind them has not gone with them."""
    _, task = planned(Hasty(root, SystemClock()))
    assert task.spans == (OffsetSpan("orders", 0, 10, 13), OffsetSpan("orders", 1, 0, 4))


class Interfering(DirectoryStore):
    """A store in which something happens when an object is asked for, once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, SystemClock())
        self.happens: Callable[[], None] | None = None
        self.at = ""
        self.listed = 0

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        happens, is_due = self.happens, self.at in key
        if happens is not None and is_due:
            self.happens = None
            happens()
        return super().get(key, bytes_max)

    def list(self, prefix: str, after: str | None = None) -> Any:
        self.listed += prefix == layout.TAIL
        return super().list(prefix, after)


def planned(store: DirectoryStore, **options: Any) -> tuple[TailReader, TailTask]:
    root = SettledRoot(RootStore(store, RootTrust(None)))
    read_options = ReadOptions(topics=("orders",), include_tail=True, starting_offsets="latest", **options)
    plan = plan_tail(root, resolve(root, read_options), read_options)
    reader = TailReader(
        root, read_options, RowShaper([c.source for c in RAW], schema_of(RAW), is_raw=True), TimeBounds()
    )
    return reader, TailTask(bytes.fromhex(root.log), True, plan.spans)


@pytest.mark.parametrize("number", [1, 4, 9, 17, 20])
def test_batches_that_go_while_they_are_read_are_found_in_segments(open_shipped, root, number):
    """Rows from batches, then from a segment that begins before them: none twice, none left out."""
    made = Written(open_shipped)
    for _ in range(10):
        made.append(0, 2)
        made.append(1, 1)
    store = Interfering(root)
    reader, task = planned(store)

    def settled_and_removed() -> None:
        made.settle()
        made.log.close()
        assert batch_paths(root) == []

    store.happens, store.at = settled_and_removed, f"{number:020d}-"
    assert values(list(reader.read(task))) == made.model
    assert store.happens is None


def test_a_floor_that_makes_way_for_a_newer_one_is_looked_for_again(open_shipped, root):
    made = Written(open_shipped, segments=TEN)
    made.append(0, 3)
    made.settle()
    made.reopen()
    made.append(0, 3)
    (floor,) = (root / "tail").rglob("*.floor")
    store = Interfering(root)
    reader, task = planned(store)

    def next_floor() -> None:
        made.settle()
        made.log.close()
        assert not floor.exists()

    store.happens, store.at = next_floor, ".floor"
    assert [row["payload"] for batch in reader.read(task) for row in batch.to_pylist()] == made.model[0][3:]


def test_what_is_nowhere_any_more_is_an_error_with_its_offsets(written, root):
    """Batches are removed that nothing stands for; it is looked for a few times, and not forever."""
    store = Interfering(root)
    reader, task = planned(store)
    written.log.close()
    for path in batch_paths(root)[-2:]:
        path.unlink()
    store.listed = 0
    with pytest.raises(
        Corrupt, match=r"neither in segments nor in commit batches any more offsets=11\.\.12"
    ) as nowhere:
        list(reader.read(task))
    assert (nowhere.value.topic, nowhere.value.partition, nowhere.value.offset) == ("orders", 0, 11)
    assert store.listed <= 10


def test_rows_that_were_given_before_something_went_missing_are_not_given_again(written, root):
    store = Interfering(root)
    reader, task = planned(store)
    written.log.close()
    batch_paths(root)[-1].unlink()
    given: list[tuple[int, int]] = []
    with pytest.raises(Corrupt):
        for batch in reader.read(task):
            given += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
    assert sorted(given) == [(0, 10), (0, 11), (0, 12), (1, 0), (1, 1), (1, 2)]


def test_another_log_at_the_same_root_is_not_read(written, root):
    reader, task = planned(DirectoryStore(root, SystemClock()))
    with pytest.raises(Corrupt, match="another log is at this root"):
        list(reader.read(TailTask(bytes(16), True, task.spans)))


def test_a_reading_while_a_writer_goes_on_is_always_a_gapless_prefix(open_shipped, root, is_sampled):
    """With sealing, settling and removal of batches all the time; what is seen only grows."""
    log = open_shipped(segments={"rows_max": 200})
    topic = log.topic("orders", partitions=2)
    topic.append(b"0:0", partition=0, durability="shipped")
    done = threading.Event()

    def write() -> None:
        chance = random.Random(7)
        count = [1, 0]
        while not done.is_set():
            partition, size = chance.randrange(2), chance.randrange(1, 60)
            batch = [b"%d:%d" % (partition, count[partition] + i) for i in range(size)]
            topic.append_batch(batch, partition=partition, durability="shipped")
            count[partition] += size

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen, rounds = {0: 0, 1: 0}, 0
        while rounds < (8 if is_sampled else 25) or sum(seen.values()) < 500:
            rounds += 1
            found = values(read(root).to_arrow())
            for partition, own in found.items():
                assert own == [b"%d:%d" % (partition, offset) for offset in range(len(own))]
                assert len(own) >= seen[partition]
                seen[partition] = len(own)
    finally:
        done.set()
        writer.join()


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_read_as_they_were_written(open_shipped, root, seed):
    chance = random.Random(seed)
    made = Written(open_shipped, segments={"rows_max": 15})
    made.append()
    readings: list[tuple[holdfast.SettledReading, Model]] = []
    for _ in range(25):
        match chance.randrange(8):
            case 0:
                made.settle()
            case 1:
                made.reopen()
            case 2 | 3:
                model = {partition: list(found) for partition, found in made.model.items()}
                readings.append((read(root), model))
            case _:
                made.append(chance.randrange(2), chance.randrange(1, 8))
        for reading, model in chance.sample(readings, min(2, len(readings))):
            assert values(reading.to_arrow()) == kept(model)
    for reading, model in readings:
        assert reading.count() == sum(map(len, model.values()))


# -- damage -------------------------------------------------------------------------------------------------


def test_a_damaged_batch_is_corrupt_with_its_key_in_planning_and_in_reading(written, root):
    written.log.close()
    reading = read(root)
    path = batch_paths(root)[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    key = str(path.relative_to(root))
    for attempt in (lambda: read(root), reading.to_arrow):
        with pytest.raises(Corrupt) as damage:
            attempt()
        assert damage.value.path == key


def forge(root: Path, change: Callable[[TailEntry], TailEntry]) -> str:
    """Change the last entry of the last batch, hash included; the key of that batch."""
    path = batch_paths(root)[-1]
    key = str(path.relative_to(root))
    batch = commit_batch.decode(path.read_bytes(), key)
    entries = [*batch.entries[:-1], change(batch.entries[-1])]
    path.write_bytes(commit_batch.encode(batch._replace(entries=entries)))
    return key


def resigned(log: str, entry: TailEntry) -> TailEntry:
    """With a digest that fits, as anybody can make it who has no key."""
    row = Entry(entry.seq, 0, *entry[3:-1])
    return entry._replace(
        digest=digests.digest(header_of(Place(bytes.fromhex(log), entry.topic, entry.partition), row), entry.body)
    )


def test_an_entry_that_was_changed_does_not_pass(written, root):
    written.log.close()
    reading = read(root)
    key = forge(root, lambda entry: entry._replace(body=bytes(entry.body)[:-1] + b"!"))
    with pytest.raises(Corrupt, match="digest does not match") as damage:
        reading.to_arrow()
    assert (damage.value.path, damage.value.partition, damage.value.offset) == (key, 1, 3)


def test_an_entry_of_another_history_does_not_pass(written, root):
    """Its own digest fits; it does not follow the entry before it."""
    written.log.close()
    reading = read(root)
    forge(root, lambda entry: resigned(written.log.id, entry._replace(link=b"x" * 16)))
    with pytest.raises(Corrupt, match="does not follow the one before it"):
        reading.to_arrow()


def test_an_entry_with_another_number_of_records_than_it_says_does_not_pass(open_shipped, root):
    made = Written(open_shipped)
    made.append(0, 3)
    made.log.close()
    reading = read(root)
    forge(root, lambda entry: resigned(made.log.id, entry._replace(count=4)))
    with pytest.raises(Corrupt, match="as many records as it says"):
        reading.to_arrow()


def test_typed_rows_in_a_raw_topic_do_not_pass(open_shipped, root):
    made = Written(open_shipped)
    made.append(0, 3)
    made.log.close()
    reading = read(root)
    forge(root, lambda entry: resigned(made.log.id, entry._replace(kind=2, schema=b"s" * 16)))
    with pytest.raises(Corrupt, match="unexpected kind=2"):
        reading.to_arrow()


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path, keyring: Keyring) -> str:
    keyring.save(tmp_path / "keys")
    return f"file:{tmp_path / 'keys'}"


def test_encrypted_entries_are_decrypted_also_those_of_an_older_key(open_shipped, root, keyring, tmp_path):
    made = Written(open_shipped, keyring=keyring)
    made.append(0, 3)
    rotated = keyring.rotated("k2", clock=ManualClock(seed=9))
    made.log.rotate_key(rotated)
    made.append(0, 2)
    rotated.save(tmp_path / "keys")
    assert values(read(root, keyring=f"file:{tmp_path / 'keys'}").to_arrow()) == kept(made.model)


def test_without_a_key_encrypted_entries_are_refused_and_can_still_be_counted(open_shipped, root, keyring):
    made = Written(open_shipped, keyring=keyring)
    made.append(0, 3)
    reading = read(root)
    assert reading.count() == 3
    with pytest.raises(Invalid, match="is encrypted, and there is no key key_id=k1"):
        reading.to_arrow()


def test_with_another_key_encrypted_entries_are_refused(open_shipped, root, keyring, tmp_path):
    made = Written(open_shipped, keyring=keyring)
    made.append(0, 3)
    Keyring.generate(clock=ManualClock(seed=99)).save(tmp_path / "keys")
    with pytest.raises(Invalid, match="did not sign this root"):
        read(root, keyring=f"file:{tmp_path / 'keys'}").to_arrow()


def test_plain_entries_do_not_pass_where_a_key_was_given(written, root, key_file):
    """A reader that names a keyring expects encrypted records: plain ones may have been put there."""
    with pytest.raises(Invalid, match="a keyring was passed, and the log at this root has no keys"):
        read(root, keyring=key_file).to_arrow()


# -- tasks --------------------------------------------------------------------------------------------------

spans = st.builds(
    OffsetSpan, st.text(min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 2**62), st.integers(0, 2**62)
)


@pytest.mark.unit
@given(st.binary(min_size=16, max_size=16), st.booleans(), st.lists(spans).map(tuple))
def test_a_task_of_the_tail_comes_back_from_its_bytes(log, is_raw, wanted):
    task = TailTask(log, is_raw, wanted)
    assert TailTask.decode(task.encode()) == task


@pytest.mark.unit
@given(manifests(min_size=1))
def test_a_task_of_segments_is_none_of_the_tail(segments):
    for task in [*tasks_of(pieces_of(segments, 0, 2**62, TimeBounds()), 2**20), Task(())]:
        assert TailTask.decode(task.encode()) is None


@pytest.mark.unit
def test_reading_the_tail_loads_no_writer_and_no_database():
    """Shapes and codecs are all that is shared with what wrote it."""
    code = "import sys, holdfast.reader.tail_rows; print(*sys.modules, 'apsw' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *loaded, has_database = done.stdout.split()
    writers = ("holdfast.journal", "holdfast.log.", "holdfast.shipping", "holdfast.segments.sealing")
    assert [name for name in loaded if name.startswith(writers)] == []
    assert has_database == "False"


# -- on S3 --------------------------------------------------------------------------------------------------


def test_the_tail_is_read_from_s3_before_and_after_it_is_settled(tmp_path):
    with weed(tmp_path / "weed") as server:
        url, settings = shipped_logs.url("tail"), shipped_logs.settings(server.endpoint)
        own = msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, url=url))
        with holdfast.open(tmp_path / "log", settings=own) as log:
            topic = log.topic("orders")
            model = [b"%d" % i for i in range(20)]
            for value in model:
                topic.append(value, durability="shipped")
            reading = holdfast.read(url, "orders", include_tail=True, store=settings.store)
            assert values(reading.to_arrow()) == {0: model}
            log.seal()
            log.ship(20)
        assert values(reading.to_arrow()) == {0: model}
