"""Rebuilding a log whose database is lost or damaged, from its segment files.

Every file is read and proved first; then a new database is made beside the old one and takes its place at the end. The
damaged one is kept (`durable.db.damaged-1` …). As far as it can still be read, what was only in its tail is saved into
segments first; what cannot be saved is reported as lost, exactly where the heads are known, and those offsets are never
given away again. Segment files are never changed or removed. Where compaction has put longer files in the place of
segments, the documents beside them say which (`compacted_files`).

A crash at any step leaves a log that can be rebuilt again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast import disk
from holdfast.arguments import path_of
from holdfast.clock import Clock, SystemClock, check_clock
from holdfast.crypto.cipher import PayloadCipher, check_cipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.journal.create import KnownPartition, KnownTopic, create_database
from holdfast.journal.journal import Journal
from holdfast.journal.journal_context import JournalContext
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.open_journal import open_read_only
from holdfast.log_directory import Directory
from holdfast.model.control_rows import EXPIRED, LIVE, DiskFailed
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentHead
from holdfast.recovery.compacted_files import compacted
from holdfast.recovery.rebuild_plan import PartitionPlan, SegmentFound, plan
from holdfast.recovery.salvage import salvage
from holdfast.root.rewrites import InEffect
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.store import layout
from holdfast.telemetry import spans

logger = logging.getLogger("holdfast")

Progress = Callable[[str, int], None]
"""Called with what is being done and how many files were read so far."""


class LostRecords(msgspec.Struct, frozen=True):
    """Records of one partition that are gone."""

    topic: str
    partition: int
    first: int
    """The first offset."""
    records: int | None
    """None when nobody knows how many: whatever was appended from `first` on and never sealed."""
    reason: str
    """Why, in words."""


class RebuildReport(msgspec.Struct, frozen=True):
    """What a rebuild brought back, and what it could not."""

    topics: int
    """How many are back, as of the next two."""
    partitions: int
    segments: int
    records: int
    """What the log has now."""
    salvaged: int
    """Records that were only in the damaged database's tail, and were saved."""
    lost: tuple[LostRecords, ...]
    """What is gone."""
    set_aside: str | None
    """Where the damaged database is now."""


class _Topic(NamedTuple):
    """A topic as far as it is known."""

    name: str
    partitions: int
    schemas: tuple[tuple[bytes, bytes], ...]
    """Fingerprint and definition of each version."""
    policy: tuple[int, int, int] | None
    codec: str = ""


def rebuild(
    path: str | os.PathLike[str],
    *,
    keyring: Keyring | str | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make the database of a log anew from its segments; the log must not be open.

    With an encrypted log give its keyring or cipher. Returns what was brought back and, exactly, what was lost.
    """
    directory = Directory(path_of(path))
    keyring, clock = Keyring.given(keyring), check_clock(clock)
    check_cipher(cipher)
    if not directory.segments.is_dir():
        raise NotFound(f"there are no segments path={directory.segments}", hint="give the directory of a log")
    directory.own(damaged=True)
    try:
        with spans.span(spans.REBUILD, {}) as span:
            report = _Rebuild(directory, keyring, cipher, clock or SystemClock(), progress or _silent).run()
            span.set_attribute("holdfast.records", report.records)
        return report
    except OSError as error:
        hint = disk.remedy(error, "check the disk")
        raise Unavailable(f"cannot rebuild path={directory.path}: {error.strerror}", hint=hint) from error
    except DiskFailed as error:
        raise Unavailable(
            f"the disk failed path={directory.path}",
            hint=disk.remedy_at(directory.path, "check the disk, then rebuild again"),
        ) from error
    finally:
        directory.release()


class _Rebuild:
    """One rebuild."""

    def __init__(
        self,
        directory: Directory,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._keyring, self._cipher = keyring, cipher
        self._clock = clock
        self._progress = progress
        self._read = 0
        self._damaged: list[LostRecords] = []
        """What was in long files that cannot be read."""
        self._unknown: list[tuple[tuple[str, int], SegmentHead, Path]] = []
        """Long files that no rewrite speaks of."""

    def run(self) -> RebuildReport:
        directory = self._directory
        directory.finish_setting_aside()
        log_id = self._log_id()
        old = self._old_journal(log_id)
        try:
            known = {} if old is None else {p: p.durable for p in old.partitions.values() if p.damage is None}
            durable = {(p.topic, p.number): offset for p, offset in known.items()}
            firsts = {(p.topic, p.number): p.sealed.first_offset for p in known}
            salvaged = 0 if old is None else self._salvage(old)
            topics = self._topics(old)
            found = self._found(log_id)
            created_us = self._created_us(old, found)
        finally:
            if old is not None:
                old.close(0)
        plans = {key: plan(0, files, durable.get(key)) for key, files in found.items()}
        for key, offset in durable.items():
            plans.setdefault(key, plan(0, (), offset, firsts[key]))
        complete = _complete(topics, plans, found)
        known_topics = [
            KnownTopic(topic.name, _partitions(topic, plans), topic.schemas, topic.policy, topic.codec)
            for topic in complete
        ]
        vault = Vault(log_id, self._keyring, self._cipher, self._clock.random_bytes)
        create_database(directory.rebuilt, vault, known_topics, self._clock, created_us=created_us)
        set_aside = directory.set_aside_database()
        directory.adopt_rebuilt()
        if directory.log_id() is None:
            directory.declare(log_id)
        lost = (*_unaccounted(plans, firsts), *self._lost(plans, durable), *self._damaged)
        live = [row for planned in plans.values() for row in planned.rows if row.state == LIVE]
        return RebuildReport(
            len(complete),
            sum(topic.partitions for topic in complete),
            len(live),
            sum(row.rows for row in live),
            salvaged,
            lost,
            None if set_aside is None else str(set_aside),
        )

    # -- what there is ------------------------------------------------------------------------------------

    def _log_id(self) -> bytes:
        try:
            known = self._directory.log_id()
        except Corrupt:
            known = None
        if known is not None:
            return known
        from holdfast.segments.file.segment_reader import SegmentReader

        for _, path in self._files():
            try:
                with SegmentReader(path, None, None, None) as reader:
                    return reader.head.log_id
            except Corrupt:
                continue
        raise Corrupt("neither FORMAT nor any segment says which log this is", path=str(self._directory.path))

    def _old_journal(self, log_id: bytes) -> Journal | None:
        """The damaged database, as far as it can be read."""
        for database in self._directory.databases():
            try:
                return open_read_only(
                    database, log_id, JournalContext(JournalSettings(), self._clock, self._keyring, self._cipher)
                )
            except Invalid:
                raise
            except HoldfastError as error:
                logger.warning("the database cannot be read: %s", error.message, extra={"action": "rebuild"})
        return None

    def _salvage(self, old: Journal) -> int:
        """Write what is only in the tail into segments, as far as it can be read."""
        manifest = Manifest(old, self._directory.segments)
        saved = 0
        for partition in old.partitions.values():
            self._progress("saving the tail", self._read)
            saved += salvage(old, manifest, partition, self._clock)
        return saved

    def _files(self) -> Iterator[tuple[tuple[str, int], Path]]:
        for path in sorted(self._directory.segments.glob("topics/*/*/segments/*.parquet")):
            topic, number = path.parts[-4], path.parts[-3]
            if layout.parse_segment_name(path.name) is not None and number.isdecimal():
                yield (topic, int(number)), path

    def _found(self, log_id: bytes) -> dict[tuple[str, int], list[SegmentFound]]:
        """All segment files that prove themselves, and what long files hold, by topic and partition."""
        vault = Vault(log_id, self._keyring, self._cipher)
        long = compacted(self._directory.segments, vault, self._clock)
        found: dict[tuple[str, int], list[SegmentFound]] = {}
        for key, path in self._files():
            self._read += 1
            self._progress("reading segments", self._read)
            found.setdefault(key, [])
            if key in long and path.name in long[key].names:
                continue
            file = self._proved(key, path, vault)
            if file is not None:
                found[key].append(file)
        for key, partition in long.items():
            held = list(partition.held(partial(self._about_long, vault)))
            numbers = {file.head.number for file in held}
            found[key] = held + [file for file in found.get(key, []) if file.head.number not in numbers]
        self._require_known(found)
        return found

    def _created_us(self, old: Journal | None, found: dict[tuple[str, int], list[SegmentFound]]) -> int:
        """When the log was created, as far as that is known: all that is trusted of the time when it is opened next."""
        sealed = [file.sealed_us for files in found.values() for file in files]
        return min([self._clock.now_us(), *([] if old is None else [old.created_us]), *sealed])

    def _require_known(self, found: dict[tuple[str, int], list[SegmentFound]]) -> None:
        """A long file that no rewrite speaks of was never in use, if what it begins with is there without it."""
        for (topic, partition), head, path in self._unknown:
            if not any(file.head.number == head.number for file in found[topic, partition]):
                raise Corrupt(
                    "a file holds several segments, and the rewrite that says which is gone",
                    path=str(path),
                    topic=topic,
                    partition=partition,
                    offset=head.first,
                    hint="put the folders _rewrites and _manifest back that were beside the log's segments",
                )
            logger.info("left out what a compaction began: %s", path, extra={"action": "rebuild_left_out"})

    def _proved(self, key: tuple[str, int], path: Path, vault: Vault, *, is_long: bool = False) -> SegmentFound | None:
        """A file that proves itself, and belongs here; `is_long` where a rewrite says that it is in effect."""
        from holdfast.segments.file.segment_reader import SegmentReader

        try:
            with SegmentReader(path, None, None, vault.segment_keys) as reader:
                if reader.encrypted_with is not None and not vault.keyed:
                    raise Invalid("this log is encrypted", hint="give its keyring or cipher")
                head, facts, schema, codec = reader.head, reader.verify(), reader.schema, reader.codec
                if reader.is_rewritten and not is_long:
                    self._unknown.append((key, head, path))
                    return None
        except Corrupt as damage:
            logger.error("a segment is damaged: %s", damage.message, extra={"action": "rebuild_damaged"})
            return None
        if path.name != layout.segment_name(head.number, facts.sha256):
            # Parts of a footer are proved by nothing inside the file; its name has the hash of all of it.
            logger.error("a segment is not what its name says: %s", path, extra={"action": "rebuild_damaged"})
            return None
        if (head.log_id, head.topic, head.partition) != (vault.log_id, *key):
            return None
        columns = None if head.schema == NO_SCHEMA else schema.remove(0).remove(0)
        return SegmentFound(Segment(head=head, facts=facts), path.stat().st_mtime_ns // 1000, columns, codec)

    def _about_long(self, vault: Vault, file: InEffect) -> tuple[object, str]:
        """The columns and the codec of a topic's long file; one that cannot be read is reported, and has none."""
        segment = file.segment
        key, path = (segment.topic, segment.partition), self._directory.segments / segment.key
        try:
            found = self._proved(key, path, vault, is_long=True)
        except FileNotFoundError:
            found = None
        if found is None or found.segment != segment.segment:
            self._damaged.append(LostRecords(*key, segment.first, segment.rows, "their file is missing or damaged"))
            return None, ""
        return found.columns, found.codec

    def _topics(self, old: Journal | None) -> dict[str, _Topic]:
        if old is None:
            return {}
        topics = {}
        for name, partitions in old.topics.items():
            policy = old.policies.get(name)
            versions = tuple((row.fingerprint, row.definition) for row in old.schemas.get(name, ()))
            limits = None if policy is None else (policy.bytes_max, policy.age_max_us, policy.records_max)
            topics[name] = _Topic(name, len(partitions), versions, limits, old.codecs.get(name, ""))
        return topics

    def _lost(
        self, plans: dict[tuple[str, int], PartitionPlan], durable: dict[tuple[str, int], int]
    ) -> Iterator[LostRecords]:
        for (topic, number), planned in sorted(plans.items()):
            end = planned.rows[-1].end if planned.rows else 0
            for first, records in planned.lost:
                reason = (
                    "only in the damaged journal" if first + records == end else "their segment is missing or damaged"
                )
                yield LostRecords(topic, number, first, records, reason)
            if (topic, number) not in durable:
                yield LostRecords(
                    topic, number, end, None, "the journal cannot be read: what it had not sealed is unknown"
                )


def _partitions(topic: _Topic, plans: dict[tuple[str, int], PartitionPlan]) -> tuple[KnownPartition, ...]:
    nothing = PartitionPlan([], [], [])
    return tuple(KnownPartition(plans.get((topic.name, n), nothing).rows) for n in range(topic.partitions))


def _unaccounted(
    plans: dict[tuple[str, int], PartitionPlan], firsts: dict[tuple[str, int], int]
) -> Iterator[LostRecords]:
    """What the journal had not expired, and no file holds: gone since, by retention or otherwise."""
    for (topic, number), first in sorted(firsts.items()):
        left = [row.first_offset for row in plans[topic, number].rows if row.state != EXPIRED]
        if left and left[0] > first:
            reason = "their segments are not there: lost, or expired after this journal was written"
            yield LostRecords(topic, number, first, left[0] - first, reason)


def _complete(
    topics: dict[str, _Topic],
    plans: dict[tuple[str, int], PartitionPlan],
    found: dict[tuple[str, int], list[SegmentFound]],
) -> list[_Topic]:
    """The topics with what only their files tell: partitions, and schemas as they are stored."""
    for topic, number in plans:
        known = topics.get(topic, _Topic(topic, 0, (), None))
        topics[topic] = known._replace(partitions=max(known.partitions, number + 1))
    for (topic, _), files in sorted(found.items()):
        for file in sorted(files, key=lambda file: (file.head.epoch, file.head.number)):
            fingerprint = file.head.schema
            known = topics[topic] = topics[topic]._replace(codec=topics[topic].codec or file.codec)
            if (
                fingerprint != NO_SCHEMA
                and file.columns is not None
                and fingerprint not in {mark for mark, _ in known.schemas}
            ):
                topics[topic] = known._replace(schemas=(*known.schemas, *_versions(file)))
    return [topics[name] for name in sorted(topics)]


def _versions(file: SegmentFound) -> list[tuple[bytes, bytes]]:
    """A schema as a file tells it. Where its types were declared otherwise (dictionaries, say), it is two versions:
    one by which the file is found, and one under whose fingerprint rows are appended from now on.
    """
    from holdfast.model.schema import declare

    stored = declare(file.columns)
    return [(mark, stored.serialize()) for mark in dict.fromkeys((file.head.schema, stored.fingerprint))]


def _silent(_what: str, _read: int) -> None:
    pass
