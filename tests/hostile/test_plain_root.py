"""A plain root that anybody may have written: rows or one of our errors, in bounded memory, by a process that lives."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid
from holdfast.clock import SystemClock
from holdfast.parquet.thrift import BadStructure
from holdfast.segments.file.segment_columns import RAW_SCHEMA
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.unproven_footer import UnprovenFooter
from holdfast.store import directory, layout, object_limits
from holdfast.store.directory import DirectoryStore
from tests.hostile import roots
from tests.hostile.bombs import BOMBS
from tests.hostile.judging import Trial, lives, place
from tests.hostile.mutations import (
    KINDS,
    SPECIALS,
    Mutation,
    far_away,
    kind_of,
    mutate,
    rethought,
    split_footer,
    vouched,
    with_footer,
)
from tests.hostile.worker import ACTIONS

pytestmark = pytest.mark.store

Seeds = Callable[[int], range]

READS = ("read", "read", "full", "tail", "topics", "restore")
LIMIT = 16 * 2**20
LARGE = ("topic", "frontier", "rewrite", "lease", "checkpoint", "batch", "keys", "segment", "sink")
"""Kinds of objects that grow with what the user has."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> roots.Made:
    """A plain root with one of each kind of object."""
    return roots.make(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def trial(made: roots.Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    trial = Trial(made, tmp_path_factory.mktemp("scratch"))
    yield trial
    trial.close()


@pytest.fixture
def seeds(seed: int, is_sampled: bool) -> Seeds:
    """So many seeds, and a quarter of them in the gate: others for each commit; HOLDFAST_SEED begins elsewhere."""
    first = int(os.environ.get("HOLDFAST_SEED", seed))
    return lambda count: range(first, first + (-(-count // 4) if is_sampled else count))


# -- every object, one at a time --------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["reconcile", "repair", "restore"])
def test_no_number_of_an_object_keeps_anybody_busy(trial: Trial, action: str) -> None:
    for mutation in far_away(trial.objects):
        outcome = trial.attempt(action, mutation)
        assert lives(outcome) == "", (str(mutation), outcome)


def test_the_root_has_every_kind_of_object_and_can_be_read(made: roots.Made, trial: Trial) -> None:
    """Or the trials below would try nothing."""
    assert {kind_of(key) for key in made.objects} == set(KINDS)
    for action in ACTIONS:
        outcome = trial.attempt(action)
        assert (outcome.outcome, lives(outcome)) == ("rows", ""), outcome


def test_no_spoiled_object_ends_the_process_or_eats_the_memory(trial: Trial, seeds: Seeds) -> None:
    """One mutated object at a time, by a forger who can recompute every hash that has no key."""
    assert trial.run(seeds(60), READS, lives) == []
    assert trial.run(seeds(30), READS, lives, "segment") == []


def test_no_spoiled_object_ends_the_owner_that_compares(trial: Trial, seeds: Seeds) -> None:
    """Reconciliation reads all of it, too."""
    assert trial.run(seeds(8), ("reconcile",), lives) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_spoiled_objects(trial: Trial, kind: str, seeds: Seeds) -> None:
    """The same, long enough to find what is rare."""
    assert trial.run(seeds(1500 if kind in ("segment", "checkpoint", "batch") else 400), READS, lives, kind) == []
    assert trial.run(seeds(60), ("reconcile",), lives, kind) == []


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("kind", ["log", "manifest", "topic", "segment", "batch"])
def test_what_is_no_file_is_refused_at_once(made: roots.Made, trial: Trial, kind: str, special: str) -> None:
    """A pipe, a device, a link, a socket, a folder, gigabytes: nobody waits, nobody reads them."""
    key = next(key for key in reversed(made.objects) if kind_of(key) == kind)
    outcome = trial.attempt("tail", Mutation(kind, "special", key, {key: None}, special))
    assert lives(outcome) == ""
    if kind == "log" and special != "folder":
        assert outcome.outcome == "Corrupt"


# -- footers ----------------------------------------------------------------------------------------------


KILLERS = {
    "a column that is required": (b"\x15\x0c\x25\x02\x18\x04kind", b"\x15\x0c\x25\x00\x18\x04kind"),
    "a repetition that is none": (b"\x15\x0c\x25\x02\x18\x04kind", b"\x15\x0c\x25\x22\x18\x04kind"),
    "a repetition below zero": (b"\x15\x0c\x25\x02\x18\x03key", b"\x15\x0c\x25\x01\x18\x03key"),
}
"""Changes of one number in a footer that end the process (abort) when Arrow is asked about its columns."""


@pytest.mark.parametrize("name", KILLERS)
@pytest.mark.parametrize("action", ["read", "full", "restore"])
def test_a_footer_that_ends_arrows_process_is_refused(made: roots.Made, trial: Trial, name: str, action: str) -> None:
    """Size, name and hashes are those of the manifest: the attacker wrote that, too."""
    key = next(key for key in made.objects if kind_of(key) == "segment" and "/orders/1/" in key)
    before, footer = split_footer(made.objects[key])
    old, new = KILLERS[name]
    assert footer.count(old) == 1
    mutation = Mutation("segment", name, key, vouched(made.objects, key, with_footer(before, footer.replace(old, new))))
    outcome = trial.attempt(action, mutation)
    assert outcome.outcome == "Corrupt", outcome


def test_only_what_was_judged_is_in_the_footer_that_arrow_sees(made: roots.Made) -> None:
    """Every number of a foreign footer is either refused, or without effect, or one that was looked at."""
    key = next(key for key in made.objects if kind_of(key) == "segment" and "/orders/1/" in key)
    before, footer = split_footer(made.objects[key])
    own = UnprovenFooter(with_footer(b"", footer), 2**28).admit(RAW_SCHEMA, is_encrypted=False, data_end=len(before))
    refused, same, others = 0, 0, 0
    for content in {rethought(Random(seed), footer) for seed in range(600)}:
        try:
            unproven = UnprovenFooter(with_footer(b"", content), 2**28)
            admitted = unproven.admit(RAW_SCHEMA, is_encrypted=False, data_end=len(before))
        except BadStructure:
            refused += 1
            continue
        same += admitted == own
        others += admitted != own
        assert pq.ParquetFile(pa.BufferReader(admitted)).metadata.num_columns == 7
    assert refused > 100
    assert same > 100
    assert others > 5


# -- bombs ------------------------------------------------------------------------------------------------


def peak_of(call: Callable[[], object]) -> tuple[str, int]:
    """What a call raises, and how much memory a child takes for it, in bytes beyond what it began with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            call()
            said = "nothing"
        except HoldfastError as error:
            said = type(error).__name__
        except BaseException as error:
            said = repr(error)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(writer, f"{said}|{grown * 1024}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said, _, grown = stream.read().partition("|")
    os.waitpid(child, 0)
    return said, int(grown or 2**62)


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("verify", [False, True], ids=["read", "verify"])
def test_a_few_kilobytes_do_not_become_gigabytes(tmp_path: Path, name: str, verify: bool) -> None:
    """What a file says about itself is believed only as far as the reader's limit."""
    path = tmp_path / "segment"
    BOMBS[name](path, 6 * LIMIT)
    assert path.stat().st_size < 64 * 2**10

    def read() -> None:
        with SegmentReader(path, None, None, None, row_group_bytes_max=LIMIT) as reader:
            if verify:
                reader.verify()
            for _ in reader.batches(0, 2**62):
                pass

    said, grown = peak_of(read)
    assert said == "Invalid"
    assert grown < 5 * LIMIT


def test_a_reader_that_wants_more_sets_more(tmp_path: Path) -> None:
    """The limit is a setting: what is refused with one is read with a larger one."""
    path = tmp_path / "segment"
    BOMBS["zeros"](path, 2 * LIMIT)
    with SegmentReader(path, None, None, None, row_group_bytes_max=LIMIT) as reader, pytest.raises(Invalid) as caught:
        list(reader.batches(0, 10))
    assert "store.read_bytes_max" in caught.value.hint
    with SegmentReader(path, None, None, None, row_group_bytes_max=4 * LIMIT) as reader:
        assert sum(batch.num_rows for batch in reader.batches(0, 10)) == 1


def test_readers_of_a_root_take_the_limit_from_the_stores_settings(made: roots.Made) -> None:
    with pytest.raises(Invalid, match="more memory"):
        holdfast.read(str(made.root), "orders", store={"read_bytes_max": 10}).to_arrow()


# -- the directory ----------------------------------------------------------------------------------------


def test_the_root_may_be_a_link_and_nothing_below_it(made: roots.Made, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(made.root)
    assert holdfast.read(str(link), "orders").count() > 0
    copy = tmp_path / "copy"
    roots.lay_out(made.objects, copy)
    (copy / "topics").rename(tmp_path / "elsewhere")
    (copy / "topics").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HoldfastError):
        holdfast.read(str(copy), "orders").count()


def test_a_folder_with_more_names_than_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what lies before `after` takes no memory."""
    store = DirectoryStore(tmp_path, SystemClock())
    for number in range(30):
        (tmp_path / f"{number:020d}.json").touch()
    monkeypatch.setattr(directory, "NAMES_MAX", 10)
    with pytest.raises(Corrupt, match="more names"):
        list(store.list(""))
    assert len(list(store.list("", after=f"{21:020d}.json"))) == 8


def test_every_kind_of_object_has_a_limit_that_fits_its_kind(made: roots.Made) -> None:
    """Far above what we write, far below what hurts."""
    for key, data in made.objects.items():
        most = object_limits.largest(key)
        assert 8 * len(data) < most, key
        assert most <= object_limits.DOCUMENT or kind_of(key) in LARGE, key
    assert object_limits.largest(layout.LOG) == object_limits.DOCUMENT


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("name", ["FORMAT", "LOCK", "durable.db", "durable.db-wal"])
def test_a_logs_own_directory_with_something_else_in_it(tmp_path: Path, name: str, special: str) -> None:
    """A reader of somebody's directory, or opens his own after somebody was there, waits for nobody."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("t").append(b"x")
    path = tmp_path / "log" / name
    path.unlink(missing_ok=True)
    place(special, path)

    def look() -> None:
        for read_only in (True, False):
            try:
                holdfast.open(tmp_path / "log", read_only=read_only).close()
            except HoldfastError:
                pass

    said, grown = peak_of(look)
    assert said == "nothing"
    assert grown < 2**28


def test_mutations_are_the_same_for_the_same_seed(made: roots.Made) -> None:
    """Or a printed seed would be worth nothing."""
    for seed in range(50):
        assert mutate(Random(seed), made.objects) == mutate(Random(seed), made.objects)
