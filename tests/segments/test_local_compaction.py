"""Compaction of a log's own files: records, offsets and marks stay as they are, whatever is read and goes on."""

from __future__ import annotations

import json
import threading

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Corrupt, Invalid, Log, Settings
from holdfast.cli.program import program
from holdfast.store import layout
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import TEN, files, fill, offsets

pytestmark = pytest.mark.disk

COUNT = 8
ALL = list(range(10 * COUNT))
DAY_S = 86_400.0
NEVER = {"interval_ms": 3_600_000}
SOON = {"delete_after_ms": 0}


def numbers(log: Log) -> list[int]:
    return [int(path.name[:20]) for path in files(log, "orders")]


def from_root(log: Log, keyring: str | None = None) -> list[int]:
    """What others read in the log's own directory."""
    reading = holdfast.read(str(log.path), "orders", columns=["offset"], keyring=keyring)
    found: list[int] = reading.to_arrow()["offset"].to_pylist()
    return found


@pytest.fixture
def filled(open_log):
    """A log of eight small segments; what is replaced goes at once, when somebody looks."""

    def make(name: str = "log", **options) -> Log:
        sections = {"segments": TEN, "retention": NEVER, "shipping": SOON, **options}
        log = open_log(name, **sections)
        fill(log, "orders", COUNT)
        return log

    return make


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def keys(request, keyring):
    return keyring if request.param else None


def test_small_files_become_one_and_everybody_reads_the_same(filled, open_log, keys, tmp_path):
    """Forwards, backwards, by time; from the log, from another handle, from its directory; and after it is reopened."""
    if keys is not None:
        keys.save(tmp_path / "keys")
    reference = None if keys is None else f"file:{tmp_path / 'keys'}"
    log = filled(keyring=keys)
    topic = log.topic("orders")
    times = {record.offset: record.time for record in topic.read()}
    before = log.marks("orders")
    report = log.compact()
    assert (report.files_before, report.files_after, report.rewritten_rows) == (COUNT, 1, len(ALL))
    assert numbers(log) == [0]
    assert log.marks("orders") == before
    assert offsets(topic) == ALL
    assert [record.offset for record in topic.read(reverse=True)] == ALL[::-1]
    assert [record.offset for record in topic.read(start=33, end=47)] == ALL[33:47]
    assert [r.offset for r in topic.read(since=times[31], until=times[44])] == [
        offset for offset in ALL if times[31] <= times[offset] <= times[44]
    ]
    assert from_root(log, reference) == ALL
    assert log.reconcile(deep=True).clean
    fill(log, "orders", 2)
    log.close()
    again = open_log(segments=TEN, shipping=SOON, keyring=keys)
    assert offsets(again.topic("orders")) == list(range(100))
    assert again.compact().files_after == 1
    assert again.reconcile(deep=True).clean
    assert from_root(again, reference) == list(range(100))


def test_a_dry_run_changes_nothing(filled):
    log = filled()
    report = log.compact(dry_run=True)
    assert (report.files_before, report.files_after, report.dry_run) == (COUNT, 1, True)
    assert numbers(log) == list(range(COUNT))
    assert not (log.path / "segments" / layout.rewrites_folder("orders", 0)).exists()
    assert not (log.path / "compacting").exists()


def test_replaced_files_stay_for_readers_and_go_with_time(filled):
    """The log removes them by itself; a crash or a close in between does not matter."""
    clock = ManualClock()
    log = filled(shipping={"delete_after_ms": DAY_S * 1000}, clock=clock)
    log.compact()
    assert numbers(log) == sorted([0, *range(COUNT)])
    assert log.reconcile(deep=True).clean
    clock.advance(DAY_S + 1)
    compaction = log._maintenance._compaction
    assert compaction is not None
    compaction.check(clock.monotonic())
    assert numbers(log) == [0]
    assert offsets(log.topic("orders")) == ALL


@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_that_was_under_way_finds_the_same_records(filled, reverse):
    """Its next file is gone: what it held is in the longer one, each record once."""
    log = filled()
    reading = iter(log.topic("orders").read(reverse=reverse))
    got = [next(reading).offset for _ in range(15)]
    log.compact()
    assert numbers(log) == [0]
    got += [record.offset for record in reading]
    assert got == (ALL[::-1] if reverse else ALL)


def test_a_handle_that_was_open_before_reads_what_was_compacted_since(filled):
    log = filled()
    with holdfast.open(log.path, read_only=True) as observer:
        topic = observer.topic("orders")
        assert offsets(topic) == ALL
        log.compact()
        assert offsets(topic) == ALL
        assert observer.reconcile(deep=True).clean


def test_retention_goes_on_behind_a_compaction(filled):
    """A long file goes as a whole, when the rest holds enough."""
    log = filled()
    log.compact(target_size=2**16)
    fill(log, "orders", 3)
    log.set_retention("orders", records_max=25)
    assert [item.rows for item in log.retain().removed] in ([10 * COUNT], []), "or the roller was faster"
    assert numbers(log) == [COUNT, COUNT + 1, COUNT + 2]
    assert offsets(log.topic("orders")) == list(range(10 * COUNT, 10 * COUNT + 30))
    assert from_root(log) == list(range(10 * COUNT, 10 * COUNT + 30))
    assert log.reconcile(deep=True).clean
    assert log.compact().problems == ()


def test_a_long_file_of_which_nothing_is_left_goes(filled, monkeypatch):
    """All of it expired between the swap and the moment when retention learned of it."""
    log = filled()
    assert offsets(log.topic("orders")) == ALL  # from now on the log knows that there are no long files
    take_up = log._maintenance._compaction._take_up

    def late(partition):
        log.set_retention("orders", records_max=1)
        fill(log, "orders", 1)
        log.retain()
        take_up(partition)

    monkeypatch.setattr(log._maintenance._compaction, "_take_up", late)
    log.compact()
    assert numbers(log) == [COUNT]
    assert log.reconcile(deep=True).clean


def test_a_compacted_log_is_rebuilt_from_its_files(filled, open_log, keys):
    """Its database is gone; the documents beside the files say which segments a long one holds."""
    log = filled(keyring=keys)
    log.compact(target_size=2**16)
    log.set_retention("orders", records_max=10 * COUNT - 15)
    fill(log, "orders", 2)
    log.close()
    for path in log.path.glob("durable.db*"):
        path.unlink()
    report = holdfast.rebuild(log.path, keyring=keys)
    assert report.records == 10 * COUNT + 20
    again = open_log(segments=TEN, shipping=SOON, keyring=keys)
    assert offsets(again.topic("orders")) == list(range(10 * COUNT + 20))
    assert again.reconcile(deep=True).clean
    fill(again, "orders", 1)
    assert offsets(again.topic("orders")) == list(range(10 * COUNT + 30))


def test_a_rebuild_tells_what_a_damaged_long_file_held(filled, open_log):
    log = filled()
    log.compact()
    fill(log, "orders", 1)
    log.close()
    (long, _) = files(log, "orders")
    data = long.read_bytes()
    long.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    for path in log.path.glob("durable.db*"):
        path.unlink()
    report = holdfast.rebuild(log.path)
    assert (0, 10 * COUNT) in [(lost.first, lost.records) for lost in report.lost]
    again = open_log(segments=TEN)
    with pytest.raises(Corrupt):
        offsets(again.topic("orders"))
    assert [record.offset for record in again.topic("orders").read(start=10 * COUNT)] == list(
        range(10 * COUNT, 10 * COUNT + 10)
    )


def test_a_pass_beside_compactions_has_no_finding(filled):
    """Whatever is half done: files are in effect, replaced, or announced."""
    log = filled()
    done, failed = threading.Event(), []

    def compact() -> None:
        try:
            for _ in range(6):
                log.compact()
                fill(log, "orders", 4)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=compact)
    thread.start()
    while not done.is_set():
        report = log.reconcile(fix=True)
        assert (report.findings, report.repairs) == ((), ())
    thread.join()
    assert failed == []
    assert offsets(log.topic("orders")) == list(range(10 * COUNT + 240))


# -- what is refused ------------------------------------------------------------------------------------------


def test_a_log_that_ships_leaves_its_own_files_alone(open_log, tmp_path):
    log = open_log(settings=Settings.from_mapping({"store": {"url": str(tmp_path / "store")}, "segments": TEN}))
    with pytest.raises(Invalid, match="ships to a store") as refused:
        log.compact()
    assert "holdfast compact file://" in (refused.value.hint or "")


def test_a_compacted_log_is_not_given_a_store(filled, open_log, tmp_path):
    """Its segments cannot be shipped as they were sealed; it opens without one as before."""
    log = filled()
    log.compact()
    log.close()
    with pytest.raises(Invalid, match="were compacted"):
        open_log(settings=Settings.from_mapping({"store": {"url": str(tmp_path / "store")}}))
    assert offsets(open_log().topic("orders")) == ALL


def test_a_handle_that_only_reads_does_not_compact(filled):
    log = filled()
    with holdfast.open(log.path, read_only=True) as observer, pytest.raises(Invalid, match="reading only"):
        observer.compact()


@pytest.mark.parametrize("size", [0, -1, "x", 2**40, True])
def test_a_size_that_makes_no_sense_is_refused(filled, size):
    with pytest.raises(Invalid):
        filled().compact(target_size=size)


# -- the command line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", [False, True])
def test_the_command_line_compacts_a_log_or_has_its_owner_do_it(filled, open_log, owned):
    log = filled()
    log.close()
    owner = open_log() if owned else None
    got = CliRunner().invoke(program, ["compact", str(log.path), "--json"])
    assert got.exit_code == 0, got.output
    assert (json.loads(got.stdout)["files_before"], json.loads(got.stdout)["files_after"]) == (COUNT, 1)
    assert offsets((owner or open_log()).topic("orders")) == ALL
