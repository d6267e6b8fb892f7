"""Restores a log from its store into a new directory: segments, tail and marks, all of it proved.

    fetch and prove everything → claim the epoch → list again, and fetch what is new → record on the store what counts
    (an adoption, a start object in the next manifest slot of every partition) → create the database → FORMAT

Everything is fetched before the claim, so that a restore that cannot succeed (missing key, damaged object, full disk)
fences nobody, and a running owner is fenced as late as possible. What counts is what is on the store after the claim:
everything acknowledged to an old owner is in those listings, and what it ships later does not count. With `copy=True`
the store is only read, its owner goes on, and the copy never ships; a listing out of date by then is taken again.

Segments are fetched a few at a time, in pieces, each compared with its hash, and kept when a restore is interrupted;
the next run resumes, under the same claim unless another one followed. Nothing is a log before its FORMAT is written,
at the very end. Idempotency keys come back with their records. Everything is proved before the claim: every block of
every segment and every entry of the tail is decrypted or compared with a keyed hash, and every commit acknowledged as
shipped must exist (unless `accept_loss`). Objects beyond such a loss stay on the store for inspection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from holdfast import disk
from holdfast.arguments import flag, path_of, store_address
from holdfast.clock import Clock, SystemClock, check_clock
from holdfast.crypto.cipher import PayloadCipher, check_cipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.log_directory import Directory
from holdfast.model.control_rows import EXPIRED, DiskFailed, SegmentRow
from holdfast.reader.read_options import check_log_id
from holdfast.recovery import restore_report
from holdfast.recovery.entry_proof import EntryProof
from holdfast.recovery.fetching import KeyDemand, Progress, SegmentFetching, Steps
from holdfast.recovery.key_walk import hash_cipher_of
from holdfast.recovery.restore_attempt import MARKER, RestoreAttempt, earlier, refuse_foreign
from holdfast.recovery.restore_report import RestoreReport
from holdfast.recovery.restored_database import (
    Counting,
    RestoredDatabase,
    RestoreOptions,
    RootContents,
    counting,
    settled_in,
)
from holdfast.recovery.spooling import Spool
from holdfast.root import tail_walk
from holdfast.root.acknowledged import acknowledged, takeovers
from holdfast.root.numbered_objects import segments_from
from holdfast.root.objects import commit_batch
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import (
    EpochDocument,
    FrontierDocument,
    LogDocument,
    SegmentDocument,
    SinkTopicDocument,
    TopicDocument,
)
from holdfast.root.objects.frontiers import newest_frontier
from holdfast.root.rewrites import in_effect
from holdfast.root.root_contents import RootReader, Where, check_schemas
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import StoreManifest, all_continued, by_partition, in_parallel
from holdfast.root.tail_listing import TailListing
from holdfast.root.tail_walk import TailContents
from holdfast.settings import Settings
from holdfast.shipping.ownership.takeover import Takeover
from holdfast.store import layout, store_kinds
from holdfast.store.port import ObjectInfo
from holdfast.telemetry import spans

_AT_ONCE = 6
_ATTEMPTS = 5

logger = logging.getLogger("holdfast")

_Found = tuple[list[Counting], dict[Where, int], int, int]
"""Commit batches, what is settled, the floor and the frontier: what a walk depends on."""


def restore(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    keyring: Keyring | str | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    copy: bool = False,
    accept_loss: bool = False,
    log_id: str = "",
    progress: Progress | None = None,
) -> RestoreReport:
    """Bring a log back from its store into a new or empty directory, and take it over.

    The old owner, wherever it still runs, can ship nothing more. With `copy=True` the store is left as it is, and the
    log here is a copy to look at. An encrypted log needs its keyring or cipher: without it nothing is taken over, here
    or there, and nothing is believed that its keys did not sign. `log_id` says which log must be there. Interrupted,
    it can be run again.

    Raises Closed if another restore of the same log was faster, Corrupt at what is damaged on the store, also where
    commits are missing that were acknowledged as shipped. With `accept_loss=True` the log is brought back up to there,
    and what lies behind stays on the store.
    """
    place = path_of(path, "the new log")
    settings = Settings.given(settings, keyring.variable if isinstance(keyring, Keyring) else keyring)
    keyring = Keyring.given(keyring)
    check_cipher(cipher)
    for name, value in (("copy", copy), ("accept_loss", accept_loss)):
        flag(value, name)
    if keyring is None and cipher is None and settings.crypto.keyring:
        keyring = Keyring.from_reference(settings.crypto.keyring)
    clock = check_clock(clock) or SystemClock()
    address = msgspec.structs.replace(settings.store, url=store_address(store))
    trust = RootTrust(Signer.of(keyring, cipher), log=check_log_id(log_id))
    source = RootStore(store_kinds.open_any_store(address.url, address, clock), trust)
    directory = Directory(place)
    directory.refuse_within(address.directory)
    try:
        refuse_foreign(directory)  # before anything is written here
        log = source.log()
        directory.own(damaged=True)
        refuse_foreign(directory)  # once more, now that nobody else can begin here
        options = RestoreOptions(copy, accept_loss, settings.journal.idempotency_keys_max, progress or _silent)
        with spans.span(spans.RESTORE, {"holdfast.copy": copy}) as span:
            report = _Restore(source, log, directory, keyring, cipher, clock, options).run()
            span.set_attribute("holdfast.records", report.records)
        return report
    except OSError as error:
        raise Unavailable(
            f"cannot write what is restored path={directory.path}: {error.strerror}",
            hint=f"{disk.remedy(error, 'check the disk, then run it again')}: it resumes where it stopped",
        ) from error
    except DiskFailed as error:
        hint = disk.remedy_at(directory.path, "check the disk, run it again")
        raise Unavailable(f"the disk failed path={directory.path}", hint=hint) from error
    finally:
        directory.release()
        source.close()


class _Survey(NamedTuple):
    """What the small objects of a root say, all of it proved."""

    frontier: FrontierDocument | None
    inherited: TailListing
    topics: tuple[TopicDocument, ...]
    manifests: dict[Where, StoreManifest]


class _Restore:
    """One restore."""

    def __init__(
        self,
        store: RootStore,
        log: LogDocument,
        directory: Directory,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
        options: RestoreOptions,
    ) -> None:
        self._store = store
        self._log = log
        self._log_id = bytes.fromhex(log.log)
        self._directory = directory
        self._keyring, self._cipher = keyring, cipher
        self._clock = clock
        self._options = options
        self._steps = Steps(options.progress)
        self._root = RootReader(store, log.log)
        self._keys = KeyDemand(keyring, cipher)
        vault = Vault(self._log_id, keyring, cipher)
        self._segments = SegmentFetching(store, directory.segments, vault, self._keys, self._steps)
        self._marker = directory.path / MARKER
        self._spool = Spool(store, directory.path / "restoring", self._segments.requests)
        self._database = RestoredDatabase(directory, log, store.url, keyring, cipher, clock, options, self._spool)
        self._walked: tuple[_Found, TailContents] | None = None
        self._sinks: tuple[str, ...] = ()
        """Topics of the root that sinks write."""
        self._damaged: set[str] = set()
        """Objects that are left out, because the loss was accepted."""
        self._own = 0
        """Our own claim, also that of an interrupted attempt: it draws no line before the restore is done."""
        self._unread = 0
        """Batches behind a hole that cannot be read."""

    def run(self) -> RestoreReport:
        """All of it."""
        attempt = self._begin()
        if attempt.report is not None and self._directory.log_id() is not None:
            return self._tidy(attempt.report)
        takeover = Takeover(self._store, self._log, bytes.fromhex(attempt.owner), self._clock)
        current = takeover.current()
        self._own = 0 if current is None else current.epoch
        seen = self._gather(attempt.owner)
        if self._options.copy:
            return self._make(seen, attempt, 0)
        claim = takeover.claim(above=0 if seen.frontier is None else seen.frontier.epoch)
        self._own = claim.epoch
        return self._make(self._take_over(takeover, claim), attempt, claim.epoch, takeover)

    def _begin(self) -> RestoreAttempt:
        """Say what is being done here, and who we are; an interrupted attempt is taken up again."""
        attempt = earlier(self._directory)
        if attempt is None:
            attempt = RestoreAttempt(self._log.log, self._store.url, self._clock.random_bytes(16).hex())
            disk.write_file(self._marker, msgspec.json.encode(attempt))
        elif (attempt.log, attempt.store) != (self._log.log, self._store.url):
            raise Invalid(
                f"another log was being restored here path={self._directory.path} log={attempt.log} "
                f"store={attempt.store}",
                hint="use another directory, or continue with that one",
            )
        disk.make_directory(self._directory.segments)
        self._spool.begin()
        return attempt

    # -- what is there, brought here ----------------------------------------------------------------------

    def _gather(self, owner: str = "") -> RootContents:
        """Look at everything and bring it here; given who this directory is to the store, with its database.

        What is missing or seems damaged is looked at again: an owner that goes on removes what is settled, and writes
        between two listings. What is so twice is so.
        """
        last_seen, attempts = "", 0
        while attempts < _ATTEMPTS:
            try:
                return self._bring(self._survey(), owner)
            except NotFound as gone:
                if gone.message == last_seen:
                    raise Corrupt(f"an object of the store is missing: {gone.message}") from gone
                last_seen = gone.message
            except Corrupt as damage:
                if damage.message == last_seen and not self._leaves_out(damage):
                    raise
                last_seen, attempts = damage.message, -1 if damage.message == last_seen else attempts
            attempts += 1
        raise Unavailable(f"the store changes faster than it can be read store={self._store.url}", hint="run it again")

    def _bring(self, survey: _Survey, owner: str) -> RootContents:
        """Segments, and beside them the tail and the database: what does not fit on the disk shuts nobody out."""
        manifests = survey.manifests.values()
        if _AT_ONCE == 1:
            self._segments.fetch(manifests)
            seen = self._bring_tail(survey, owner)
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="holdfast-segments") as thread:
                fetching = thread.submit(self._segments.fetch, manifests)
                try:
                    seen = self._bring_tail(survey, owner)
                except BaseException:
                    self._segments.stop()
                    raise
                fetching.result()
        self._bring_segments(seen, more=bool(seen.named))
        return seen

    def _bring_segments(self, seen: RootContents, *, more: bool) -> None:
        """The segments that count are here when this returns, and no others."""
        if more:
            self._segments.fetch(seen.manifests.values())
        self._segments.keep_only(seen.manifests.values())

    def _bring_tail(self, survey: _Survey, owner: str) -> RootContents:
        seen = self._read_tail(survey)
        if owner:
            self._database.prepare(seen, owner)
        return seen

    def _leaves_out(self, damage: Corrupt) -> bool:
        """Whether the loss of a damaged object of the tail was accepted; then it is as if it were not there."""
        key = damage.path or ""
        is_tail = layout.parse_batch_key(key) is not None or layout.parse_keys_key(key) is not None
        if not is_tail or not self._options.accept_loss or key in self._damaged:
            return False
        logger.warning("left out: %s", damage.message, extra={"action": "restore_left_out", "path": key})
        self._damaged.add(key)
        return True

    def _survey(self) -> _Survey:
        # The frontier and the tail first: what is settled, or removed, in between is in the manifests then.
        frontier = newest_frontier(self._store, self._log.log, without=self._own)
        inherited, found = self._root.tail(self._damaged), self._root.topics()
        # What a sink writes was never this log's: it stays where it is, and nothing of it is claimed.
        topics = tuple(topic for topic in found if not isinstance(topic, SinkTopicDocument))
        self._sinks = tuple(topic.topic for topic in found if isinstance(topic, SinkTopicDocument))
        places = [(topic.topic, number) for topic in topics for number in range(topic.partitions)]
        read = self._steps.over("reading manifests", self._root.manifest, places, _AT_ONCE)
        segments = [segment for manifest in read for segment in manifest.segments]
        for manifest in read:
            in_effect(manifest.segments, manifest.rewrites)  # or nobody knows which files to fetch
        check_schemas(topics, {(segment.topic, bytes.fromhex(segment.schema)) for segment in segments})
        self._keys.expect({segment.key_id for segment in segments})
        return _Survey(frontier, inherited, topics, dict(zip(places, read, strict=True)))

    def _read_tail(self, survey: _Survey) -> RootContents:
        """Bring the tail here, and prove it."""
        frontier, inherited, topics, _ = survey
        batches = [(key, batch.last_seq) for key, batch in inherited.batches if batch.last_seq > inherited.floor]
        self._steps.over("fetching commit batches", self._spool.fetch_batch, [key for key, _ in batches], _AT_ONCE)
        in_parallel(self._fetch_keys, [info for info, _ in inherited.keys], _AT_ONCE)
        named = self._named(batches)
        manifests = self._with_named(survey, named)
        settled = settled_in(topics, manifests)
        # Looked at again, mostly nothing has changed; and all of it would be read and proved once more.
        found = (batches, settled, inherited.floor, inherited.frontier)
        walked = self._walked[1] if self._walked is not None and self._walked[0] == found else self._walk(*found)
        self._walked = (found, walked)
        check_schemas(topics, walked.schemas)
        acks, beyond = self._look_beyond(inherited, settled, walked)
        others = {epoch: seq for epoch, seq in takeovers(manifests.values()).items() if epoch != self._own}
        if frontier is not None:
            acks[frontier.epoch] = max(acks.get(frontier.epoch, 0), frontier.seq)
        acked = acknowledged(inherited, acks, others)
        seen = RootContents(
            topics,
            manifests,
            inherited,
            batches,
            walked,
            beyond,
            acked,
            named,
            frontier,
            self._files_beyond(manifests, walked),
        )
        if not self._options.accept_loss:
            seen.require_whole(self._store)
        return seen

    def _files_beyond(self, manifests: Mapping[Where, StoreManifest], walked: TailContents) -> dict[Where, int]:
        places = [where for where in manifests if where not in walked.ends]
        counts = in_parallel(
            lambda where: segments_from(self._store, *where, len(manifests[where].segments)), places, _AT_ONCE
        )
        return {where: count for where, count in zip(places, counts, strict=True) if count}

    def _named(self, batches: Iterable[Counting]) -> tuple[SegmentDocument, ...]:
        """The segments that batches name which count as a whole."""
        names = [(key, layout.parse_batch_key(key), last_seq) for key, last_seq in batches]
        whole = [key for key, name, last_seq in names if name is not None and name.last_seq == last_seq]
        return tuple(segment for key in whole for segment in self._spool.segments(key))

    def _with_named(self, survey: _Survey, named: tuple[SegmentDocument, ...]) -> dict[Where, StoreManifest]:
        """The manifests as they are once all that is named has its object."""
        manifests = all_continued(survey.manifests, named, self._log.log)
        check_schemas(survey.topics, {(segment.topic, bytes.fromhex(segment.schema)) for segment in named})
        self._keys.expect({segment.key_id for segment in named})
        return manifests

    def _fetch_keys(self, info: ObjectInfo) -> None:
        """Bring an object of idempotency keys here, and prove that it can be used."""
        keys = self._spool.fetch_keys(info)
        if keys.log_id != self._log_id:
            raise Corrupt("an object of idempotency keys belongs to another log", path=info.key)
        self._keys.require(is_encrypted=keys.key is not None, path=info.key)
        try:
            hash_cipher_of(self._log_id, self._keyring, self._cipher, keys.key)
        except Invalid as missing:
            if not self._options.accept_loss:
                raise
            raise Corrupt(f"idempotency keys cannot be read: {missing.message}", path=info.key) from missing

    def _look_beyond(
        self, inherited: TailListing, settled: Mapping[Where, int], walked: TailContents
    ) -> tuple[dict[int, int], int]:
        """What all batches say was acknowledged, by epoch, and how many records lie behind a hole."""
        acks, records, self._unread = dict(walked.acks), 0, 0
        for batch in in_parallel(self._beyond, inherited.beyond, _AT_ONCE):
            if batch is None:
                self._unread += 1
            else:
                acks[batch.epoch] = max(acks.get(batch.epoch, 0), batch.acked)
                records += sum(e.count for e in batch.entries if e.first >= settled.get((e.topic, e.partition), 0))
        return acks, records

    def _walk(self, batches: Iterable[Counting], settled: Mapping[Where, int], floor: int, limit: int) -> TailContents:
        proof = EntryProof(self._log_id, self._keyring, self._cipher, self._keys)
        return tail_walk.walk(self._log_id, counting(self._spool, batches), settled, floor, limit, proof)

    def _beyond(self, key: str) -> CommitBatch | None:
        """A batch that does not count; a damaged one harms nobody."""
        try:
            return commit_batch.decode(self._store.get(key), key)
        except (Corrupt, NotFound):
            return None

    # -- taking over --------------------------------------------------------------------------------------

    def _take_over(self, takeover: Takeover, claim: EpochDocument) -> RootContents:
        """From the claim on: what counts, said on the store, and what came since the first look, brought here."""
        seen = self._gather()
        seq, settled = seen.walked.last_seq, seen.settled
        takeover.adopt(claim, seen.inherited, seq)
        seen = self._settle(takeover, claim, seen)
        manifests = self._steps.over(
            "taking over partitions",
            lambda manifest: takeover.start(claim, manifest, seq, settled[manifest.topic, manifest.partition]),
            seen.manifests.values(),
            _AT_ONCE,
        )
        # An old owner may have settled more until it found its slot taken.
        seen = seen._replace(manifests={(m.topic, m.partition): m for m in manifests})
        if seen.settled != settled:
            seen = seen._replace(walked=self._walk(seen.batches, seen.settled, seen.inherited.floor, seq))
            self._bring_segments(seen, more=True)
        ends = {where: manifest.settled for where, manifest in seen.manifests.items()}
        settled = {where: end for where, end in ends.items() if end is not None}
        takeover.say_settled(claim, settled, seq, seen.inherited.key_runs)
        return seen

    def _settle(self, takeover: Takeover, claim: EpochDocument, seen: RootContents) -> RootContents:
        """Write the manifest objects of what batches name."""
        if not seen.named:
            return seen
        takeover.require_newest(claim.epoch)
        manifests = dict(seen.manifests)
        for where, named in by_partition(seen.named).items():
            manifests[where] = takeover.settle(manifests[where], named)
        return seen._replace(manifests=manifests)

    # -- making it a log ----------------------------------------------------------------------------------

    def _make(
        self, seen: RootContents, attempt: RestoreAttempt, epoch: int, takeover: Takeover | None = None
    ) -> RestoreReport:
        self._steps.tell("making the database", 0, 1)
        made = self._database.finished(seen, attempt.owner, epoch)
        report = self._report(seen, made.rows, epoch, made.keys)
        if takeover is not None:
            takeover.require_newest(epoch)
        self._finish(attempt, report)
        self._steps.tell("making the database", 1, 1)
        return report

    def _report(self, seen: RootContents, rows: list[SegmentRow], epoch: int, keys: int) -> RestoreReport:
        live, walked, beyond = restore_report.live(rows), seen.walked, seen.inherited.beyond
        cut = walked.cut_records + seen.beyond_records
        restore_report.warn_of_losses(rows, seen, cut)
        keyed = self._keyring is not None or self._cipher is not None
        return RestoreReport(
            self._log.log,
            self._store.url,
            epoch,
            len(seen.topics),
            len(seen.manifests),
            len(live),
            sum(row.rows for row in live) + walked.records,
            walked.records,
            self._segments.bytes,
            self._segments.resumed,
            sum(row.state == EXPIRED for row in rows),
            len(beyond),
            cut,
            seen.acknowledged,
            seen.lost,
            keys,
            restore_report.policies(seen.topics),
            restore_report.expiries(seen.manifests.values()),
            restore_report.not_proved(rows, seen, keyed=keyed, damaged=len(self._damaged), unread=self._unread),
            self._sinks,
            restore_report.lost_settled(seen),
        )

    def _finish(self, attempt: RestoreAttempt, report: RestoreReport) -> None:
        """From here on it is a log."""
        self._directory.adopt_rebuilt()
        disk.write_file(self._marker, msgspec.json.encode(msgspec.structs.replace(attempt, report=report)))
        self._directory.declare(self._log_id)
        self._tidy(report)
        logger.info("restored from %s", self._store.url, extra={"action": "restored", "store": self._store.url})

    def _tidy(self, report: RestoreReport) -> RestoreReport:
        """Remove what only the restore needed; it is a log already, whatever becomes of this."""
        try:
            self._spool.remove()
            disk.remove(self._marker)
        except OSError as error:
            logger.warning("what is left of a restore cannot be removed: %s", error, extra={"action": "restored"})
        return report


def _silent(_what: str, _done: int, _total: int) -> None:
    pass
