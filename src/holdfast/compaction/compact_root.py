"""`holdfast.compact`: many small segments of a root into few large ones, without the log that ships there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from holdfast.arguments import flag, texts
from holdfast.clock import Clock, SystemClock
from holdfast.compaction.compaction_plan import TARGET_BYTES
from holdfast.compaction.compaction_report import CompactionReport, PartitionCompaction, report_of
from holdfast.compaction.compactor import Compactor, Progress, ThreadWorkers, Workers
from holdfast.compaction.read_time import ReadTime
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name
from holdfast.quantity import parse_bytes
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.settled_reading import root_place, store_settings
from holdfast.root.objects.documents import TopicDocument
from holdfast.root.rewrite_sweep import Grace
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.shared_stores import shared_store
from holdfast.root.store_manifest import in_parallel
from holdfast.store.store_settings import StoreSettings

_DAY_MS = 24 * 3600 * 1000.0
_WORKERS_MAX = 4


def compact(
    root: str,
    topic: str | Sequence[str] = (),
    *,
    target_size: int | str = TARGET_BYTES,
    dry_run: bool = False,
    measure: bool = False,
    keyring: str | None = None,
    delete_after_ms: float = 7 * _DAY_MS,
    lease_delay_max_ms: float = 30 * _DAY_MS,
    clock_jump_max_ms: float = _DAY_MS,
    workers: int | None = None,
    store: Mapping[str, Any] | StoreSettings | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Join small segments of a root into files of about `target_size` bytes; all topics, or those that are named.

    Rows, offsets, marks and checkpoints of streams stay as they are. Every file is compared with what it replaces
    before one object per partition puts it in place; readers see the files from before or those from after. Replaced
    files are removed by a later call, or by the log, `delete_after_ms` later, by a clock that is at most
    `clock_jump_max_ms` ahead of what was written last. It can run beside the log, beside readers and beside another
    compaction, and can be ended at any time. `measure` reads some of the rows before and after.

        report = holdfast.compact("s3://bucket/prefix", "orders")
        print(report.files_before, report.files_after)
    """
    settings = store if isinstance(store, StoreSettings) else store_settings({} if store is None else store)
    count = min(_WORKERS_MAX, os.cpu_count() or 1) if workers is None else _positive(workers, "workers")
    with TemporaryDirectory(prefix="holdfast-compact-") as folder:
        hands = ThreadWorkers(Path(folder), count, settings)
        return compact_with(
            hands,
            root,
            topic,
            target_size=target_size,
            dry_run=dry_run,
            measure=measure,
            keyring=keyring,
            delete_after_ms=delete_after_ms,
            lease_delay_max_ms=lease_delay_max_ms,
            clock_jump_max_ms=clock_jump_max_ms,
            store=settings,
            progress=progress,
        )


def compact_with(
    workers: Workers,
    root: str,
    topic: str | Sequence[str] = (),
    *,
    target_size: int | str = TARGET_BYTES,
    dry_run: bool = False,
    measure: bool = False,
    keyring: str | None = None,
    delete_after_ms: float = 7 * _DAY_MS,
    lease_delay_max_ms: float = 30 * _DAY_MS,
    clock_jump_max_ms: float = _DAY_MS,
    store: StoreSettings,
    progress: Progress | None = None,
    at_once: int = 1,
) -> CompactionReport:
    """The same with other hands: `workers` rewrite runs, of `at_once` partitions at a time."""
    target, is_dry, clock = target_bytes(target_size), flag(dry_run, "dry_run"), SystemClock()
    grace = Grace(_microseconds(delete_after_ms), _microseconds(lease_delay_max_ms))
    opened = open_for_compaction(root, keyring=keyring, store=store, clock=clock)
    begun = clock.monotonic()
    jump_max_us = _microseconds(clock_jump_max_ms)
    compactor = Compactor(opened.store, opened.log, target, clock, workers, grace=grace, jump_max_us=jump_max_us)
    places = [(one.topic, number) for one in opened.topics(topic) for number in range(one.partitions)]
    times = ReadTime(root_place(root), store, keyring or "", clock) if flag(measure, "measure") else None
    if times is not None and not is_dry:
        for place in places:
            times.before(compactor.look(*place).runs)

    def done(place: tuple[str, int]) -> PartitionCompaction:
        return compactor.compact(*place, dry_run=is_dry, progress=progress or _silent)

    partitions = in_parallel(done, places, at_once) if at_once > 1 else [done(place) for place in places]
    seconds = clock.monotonic() - begun
    return report_of(
        opened.store.url,
        opened.log,
        partitions,
        dry_run=is_dry,
        target_bytes=target,
        seconds=seconds,
        speed_up=None if times is None else times.speed_up(),
    )


class CompactionRoot(NamedTuple):
    """A root that may be compacted."""

    store: RootStore
    settled: SettledRoot
    settings: StoreSettings

    @property
    def log(self) -> str:
        """The log's id."""
        return self.settled.log

    def topics(self, named: str | Sequence[str]) -> list[TopicDocument]:
        """The topics that are asked for, or all."""
        names = (named,) if isinstance(named, str) else texts(named, "topic", "orders")
        return self.settled.topics(
            ReadOptions(topics=tuple(map(check_name, names))) if names else ReadOptions(topic_pattern=".*")
        )


def open_for_compaction(
    root: str, *, keyring: str | None, store: Mapping[str, Any] | StoreSettings | None, clock: Clock
) -> CompactionRoot:
    """Open a root, and refuse one that cannot be compacted; nothing is written."""
    settings = store if isinstance(store, StoreSettings) else store_settings({} if store is None else store)
    keys = Keyring.from_reference(keyring) if keyring else None
    opened = RootStore(shared_store(root_place(root), settings, clock), RootTrust(Signer.of(keys)))
    settled = SettledRoot(opened, is_keyed=keys is not None)
    if opened.trust.is_signed and not opened.trust.is_authentic:
        raise Invalid(
            "this root is signed, and there is no key to sign with",
            hint="name the log's keyring: keyring='file:PATH' or 'env:NAME', --keyring on the command line",
        )
    if not settled.is_store():
        raise Invalid(
            f"this is a log's own directory, and no store root={opened.url}",
            hint="the log compacts its own files: log.compact(), or holdfast compact DIR while no process has it open",
        )
    return CompactionRoot(opened, settled, settings)


def target_bytes(size: int | str) -> int:
    """How large files should become, in bytes; raises Invalid."""
    target = parse_bytes(size) if isinstance(size, str) else size
    if isinstance(target, bool) or not isinstance(target, int) or not 2**16 <= target <= 2**32:
        raise Invalid("target_size is between 64KiB and 4GiB", hint="for instance target_size='128MiB'")
    return target


def _positive(count: object, name: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise Invalid(f"{name} must be above zero", hint=f"for instance {name}=2")
    return count


def _microseconds(milliseconds: object) -> int:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not 0 <= milliseconds < 2**50:
        raise Invalid("a time in milliseconds is a number, and not negative", hint="for instance 604800000, a week")
    return int(milliseconds * 1000)


def _silent(what: str, done: int, total: int) -> None:
    pass
