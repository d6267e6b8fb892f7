"""Compaction of one partition: look, plan, rewrite, swap, look again, until there is nothing to do.

At most `RUNS_AT_ONCE` files are made for one swap, so that a long backlog is not lost when it is interrupted. A swap
that is overtaken by another one is given up and planned again, a few times; then the other one may finish alone. A
source that is damaged is reported, and its run stays as it is; the other runs are rewritten.

Needs no lock and no claim. Temporary files lie in the folder that the caller owns, one per worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast import disk
from holdfast.clock import Clock
from holdfast.compaction.compaction_plan import FileRun, plan
from holdfast.compaction.compaction_report import PartitionCompaction
from holdfast.compaction.run_rewrite import RewriteCancelled, rewrite
from holdfast.compaction.source_files import SourceFiles
from holdfast.compaction.swap import NumberTaken, Swap, upload
from holdfast.errors import Corrupt, Unavailable
from holdfast.model.trusted_time import JUMP_MAX_US
from holdfast.process_lifetime import Threads
from holdfast.root.objects.documents import RewrittenFile, SegmentDocument
from holdfast.root.rewrite_sweep import Grace, Swept, sweep
from holdfast.root.rewrites import OUTPUTS_MAX, InEffect, in_effect, read_rewrites, tells_all
from holdfast.root.root_store import RootStore
from holdfast.root.root_time import RootTime
from holdfast.root.store_manifest import read_manifest
from holdfast.signals import Flag
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings
from holdfast.telemetry import spans

RUNS_AT_ONCE = 64
_LOST_MAX = 3
OVERTAKEN = "another compaction was faster"
"""Why files were left as they are."""

Progress = Callable[[str, int, int], None]
"""What is being done, how many files are done, and how many there are."""


class RunResult(NamedTuple):
    """What became of a run: a file on the store, or why not."""

    run: FileRun
    output: RewrittenFile | None
    problem: str = ""
    """What is damaged; empty where a source is gone, because another process was faster."""


class Workers(Protocol):
    """Rewrites runs and uploads the results: threads here, or executors of Spark."""

    may_repeat: bool
    """Whether a file may be made more than once."""

    def make(self, store: RootStore, nonce: str, runs: Sequence[FileRun]) -> list[RunResult]:
        """One file for each run, on the store."""


class SettledPartition(NamedTuple):
    """One partition as it is now."""

    files: list[InEffect]
    runs: list[FileRun]
    rewrites: int
    """How many there are."""
    long: list[InEffect]
    """Files that earlier rewrites made, retired ones included."""
    segments: list[SegmentDocument]
    """As the manifest has them."""

    def kept_beside(self, outputs: Sequence[RewrittenFile]) -> list[RewrittenFile] | None:
        """What stays of earlier rewrites when these come, where the next rewrite should tell that."""
        if not tells_all(self.rewrites) or len(self.long) > OUTPUTS_MAX:
            return None
        taken = {number for output in outputs for number in range(output.segment.number, output.upto)}
        return [
            RewrittenFile(upto=file.upto, segment=file.segment)
            for file in self.long
            if file.segment.number not in taken
        ]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.segment.size for file in self.files)


class Compactor:
    """Compacts partitions of one root."""

    def __init__(
        self,
        store: RootStore,
        log: str,
        target: int,
        clock: Clock,
        workers: Workers,
        *,
        grace: Grace | None = None,
        jump_max_us: int = JUMP_MAX_US,
    ) -> None:
        """Without `grace` nothing is removed; `jump_max_us` is how far the clock may be ahead of the segments."""
        self._store, self._log, self._target, self._clock = store, log, target, clock
        self._workers, self._grace = workers, grace
        self._time = RootTime(store, log, clock, jump_max_us)

    def look(self, topic: str, partition: int, tried: frozenset[str] = frozenset()) -> SettledPartition:
        """A partition's files, and the runs among them; those with a file in `tried` are left out."""
        made = read_rewrites(self._store, self._log, topic, partition)  # before the manifest
        manifest = read_manifest(self._store, self._log, topic, partition)
        segments, retired = manifest.segments, 0 if manifest.expired is None else manifest.expired.upto
        files = in_effect(segments, made)
        runs = [
            run
            for run in plan(segments, files, self._target, retired=retired)
            if not any(file.segment.key in tried for file in run.files)
        ]
        there = [file for file in files if file.upto > retired and not file.segment.is_filler]
        long = [file for file in files if file.rewrite is not None]
        return SettledPartition(there, runs, len(made), long, segments)

    def compact(self, topic: str, partition: int, *, dry_run: bool = False, progress: Progress) -> PartitionCompaction:
        """Compact one partition, and remove what earlier compactions left."""
        with spans.span(spans.COMPACT, {"holdfast.topic": topic, "holdfast.partition": partition}) as span:
            report = self._compact(topic, partition, dry_run, progress)
            span.set_attribute("holdfast.files_before", report.files_before)
            span.set_attribute("holdfast.files_after", report.files_after)
            return report

    def _compact(self, topic: str, partition: int, dry_run: bool, progress: Progress) -> PartitionCompaction:
        before = now = self.look(topic, partition)
        counts: Counter[str] = Counter()
        problems: dict[str, str] = {}
        while now.runs and counts["lost"] <= _LOST_MAX and not dry_run:
            done, left = counts["files"], sum(len(run.files) for run in now.runs)
            progress(f"{topic}/{partition}", done, done + left)
            try:
                made = self._swap(topic, partition, now)
            except NumberTaken:
                counts["lost"] += 1
            else:
                counts += _counted(made)
                problems |= {one.run.first.key: one.problem for one in made if one.problem}
            now = self.look(topic, partition, frozenset(problems))
        swept = Swept() if dry_run else self._sweep(topic, partition, now.segments, problems)
        return _report(topic, partition, before, now, counts, swept, tuple(problems.values()), dry_run=dry_run)

    def _swap(self, topic: str, partition: int, now: SettledPartition) -> list[RunResult]:
        runs = now.runs[:RUNS_AT_ONCE]
        swap = Swap(self._store, self._log, topic, partition, now.rewrites, self._clock)
        swap.announce([run.numbers for run in runs])
        made = self._workers.make(self._store, swap.nonce, runs)
        outputs = [one.output for one in made if one.output is not None]
        if not outputs:
            swap.give_up([])
            return made
        try:
            swap.commit(outputs, now.kept_beside(outputs), may_repeat=self._workers.may_repeat)
        except NumberTaken:
            swap.give_up(outputs)
            raise
        return made

    def _sweep(
        self, topic: str, partition: int, segments: Sequence[SegmentDocument], problems: dict[str, str]
    ) -> Swept:
        """Remove what may go; where that is unknown, nothing goes, and all that was compacted stays so."""
        if self._grace is None:
            return Swept()
        try:
            terms = self._time.removal(segments, self._grace)
            swept = sweep(self._store, self._log, topic, partition, *terms)
        except Corrupt as damage:
            problems["sweep"] = damage.message
            return Swept()
        if swept.kept:
            self._time.warn(terms.now_us)
        return swept


def _counted(made: Sequence[RunResult]) -> Counter[str]:
    done = [one.run for one in made if one.output is not None]
    return Counter(
        runs=len(done),
        files=sum(len(run.files) for run in done),
        rows=sum(run.rows for run in done),
        lost=not all(one.output or one.problem for one in made),
    )


class ThreadWorkers:
    """Rewrites runs in threads of this process, a few at a time, with temporary files in one folder."""

    may_repeat = False

    def __init__(self, folder: Path, count: int, settings: StoreSettings) -> None:
        self._folder, self._count, self._settings = folder, count, settings
        self._cancelled = Flag()

    def make(self, store: RootStore, nonce: str, runs: Sequence[FileRun]) -> list[RunResult]:
        """See `Workers`. Whatever ends it early, no thread of it is left working."""
        self._cancelled.clear()
        opened = SourceFiles(store.files, self._settings, trusted=store.trust.is_authentic)
        with Threads(self._count, "holdfast-compact") as threads:
            try:
                coming = [threads.submit(self._make, store, opened, nonce, run) for run in runs]
                return [one.result() for one in coming]
            except BaseException:
                self._cancelled.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _make(self, store: RootStore, opened: SourceFiles, nonce: str, run: FileRun) -> RunResult:
        path = self._folder / f"{nonce}-{run.numbers[0]}.parquet.tmp"
        return make_one(store.files, run, path, opened, nonce, self._cancelled.is_set)


def make_one(
    files: Store, run: FileRun, path: Path, opened: SourceFiles, nonce: str, cancelled: Callable[[], bool]
) -> RunResult:
    """One run as one file on the store. Damage, and sources that are gone, are reported; all else is raised."""
    try:
        if cancelled():
            raise RewriteCancelled
        output = rewrite(run, path, opened, nonce, cancelled=cancelled)
        upload(files, output, path)
        return RunResult(run, output)
    except Corrupt as damage:
        return RunResult(run, None, damage.message)
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise Unavailable(
                f"the folder for temporary files is gone path={path.parent}", hint="compact again; TMPDIR says where"
            ) from error
        return RunResult(run, None)
    except OSError as error:
        raise Unavailable(
            f"cannot write a temporary file path={path}: {error.strerror}",
            hint=disk.remedy(error, "check the disk; TMPDIR names another folder") + "; nothing was replaced",
        ) from error
    finally:
        path.unlink(missing_ok=True)


def _report(
    topic: str,
    partition: int,
    before: SettledPartition,
    now: SettledPartition,
    counts: Counter[str],
    swept: Swept,
    problems: tuple[str, ...],
    *,
    dry_run: bool,
) -> PartitionCompaction:
    planned = before.runs if dry_run else []
    joined = sum(len(run.files) for run in planned)
    left = {OVERTAKEN: [] if dry_run else now.runs}
    skipped = {reason: sum(len(run.files) for run in runs) for reason, runs in left.items() if runs}
    return PartitionCompaction(
        topic=topic,
        partition=partition,
        files_before=len(before.files),
        files_after=len(now.files) - joined + len(planned),
        bytes_before=before.size,
        bytes_after=now.size,
        runs=counts["runs"] + len(planned),
        rewritten_files=counts["files"] + joined,
        rewritten_rows=counts["rows"] + sum(run.rows for run in planned),
        removed_files=swept.files,
        removed_bytes=swept.bytes,
        skipped=skipped,
        problems=problems,
    )
