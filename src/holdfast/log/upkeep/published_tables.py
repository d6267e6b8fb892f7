"""Keeps the tables that an open log's topics are published as: a stage behind `settled`, in a thread of its own.

Once per interval it looks which topics have settled more, and brings their tables up to date; when the log is closed it
does so once more. With `publish.delta` every topic gets a table; without it, tables that were made before are still
kept up to date: a table that falls behind is of no use, and a tool that cleans it up may take what it does not name for
garbage. Works on what lies at the root, a store's or the log's own, through a connection of its own.

Nothing waits for it. A table that another writer has written to, a topic that cannot be published and a store that does
not answer are logged, stand in `stats()`, and are tried again later; appending, sealing and shipping never notice.
"""

from __future__ import annotations

import logging
from _thread import RLock
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from holdfast.caller import once
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.log.log_context import LogContext
from holdfast.signals import Flag
from holdfast.store import layout

if TYPE_CHECKING:
    from holdfast.publish.publication import Publisher
    from holdfast.publish.publication_report import PublicationReport
    from holdfast.store.port import Store

_LOOK_EVERY = 10
"""Intervals after which topics are looked at that have settled nothing: something may have expired, or been joined."""
_REMIND_S = 3600.0
_AT_END_S = 5.0

logger = logging.getLogger("holdfast.publish")


class TableStats(msgspec.Struct, frozen=True):
    """Published tables at one moment. Totals count since the log was opened."""

    commits_total: int
    """Commits that this handle has made."""
    versions: dict[str, int]
    """The newest version of each topic's table, as far as this handle has published it."""
    problems: dict[str, str]
    """Topics whose tables are not up to date, and why."""


class PublishedTables:
    """The tables of one open log."""

    def __init__(self, context: LogContext) -> None:
        self._journal = context.journal
        self._settings = context.settings
        self._clock = context.clock
        self._own_root = context.manifest.root if context.journal.shipping is None else None
        self._store: Store | None = None
        self._opened: Publisher | None = None
        self._lock = RLock()
        self._stop = Flag()
        self._seen: dict[str, object] = {}
        """What each topic had settled when its table was brought up to date."""
        self._kept: set[str] = set()
        """Topics that are known to have a table."""
        self._round = 0
        self._commits = 0
        self._versions: dict[str, int] = {}
        self._problems: dict[str, tuple[str, float]] = {}
        """Why a table is not up to date, and when that was last logged."""
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin; the first look is one interval from now."""
        if not self._journal.owned:
            return
        if self._journal.signer is not None:
            if self._settings.publish.delta:
                self._tell("", "an encrypted log cannot be published: no other reader can decrypt its topics")
            return
        self._thread = Thread(target=self._work, name="holdfast-tables", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Bring what is published up to date once more, if that does not take long, and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_AT_END_S)

    def forget(self) -> None:
        """In a forked child: the thread and the connections are the parent's."""
        self._thread = self._store = self._opened = None
        self._lock = RLock()

    def stats(self) -> TableStats:
        """Published tables at this moment."""
        problems = {topic: message for topic, (message, _) in list(self._problems.items())}
        return TableStats(self._commits, dict(self._versions), problems)

    def before_removal(self, topic: str) -> None:
        """Segments of the log's own directory have expired, and their files are about to go: tables first.

        Never raises: retention goes on whatever happens here.
        """
        if self._thread is not None:
            try:
                self._publish(topic, may_look=True)
            except Exception:
                logger.exception("a table could not be published", extra={"action": "tables_failed", "topic": topic})

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.wait(self._settings.publish.interval_ms / 1000):
            self._look()
        self._kept.update(self._in_own_root())
        if self._settings.publish.delta or self._kept:
            self._look(is_last=True)
        if self._store is not None:
            self._store.close()

    def _in_own_root(self) -> set[str]:
        """Topics that have a table in the log's own directory; costs nothing where there is none."""
        root = self._own_root
        return set() if root is None else {t for t in self._journal.topics if (root / layout.delta_folder(t)).is_dir()}

    def _look(self, *, is_last: bool = False) -> None:
        """Bring up to date what has changed; now and then also what seems not to have."""
        is_thorough = self._round % _LOOK_EVERY == 0 and not is_last
        self._round += 1
        for topic, partitions in list(self._journal.topics.items()):
            now = tuple((partition.settled, partition.sealed.first_segment) for partition in partitions)
            if not is_thorough and self._seen.get(topic) == now:
                continue
            try:
                if self._publish(topic, may_look=is_thorough or topic in self._problems):
                    self._seen[topic] = now
            except Exception:
                logger.exception("a table could not be published", extra={"action": "tables_failed", "topic": topic})

    def _publish(self, topic: str, *, may_look: bool = False) -> bool:
        """Publish one topic if it is to be; False where that must be tried again."""
        from holdfast.publish.publication import failed

        try:
            with once(self._lock):
                publisher = self._publisher()
                publisher.require_publishable()
                if not self._is_wanted(publisher, topic, may_look=may_look):
                    return True
                report = publisher.publish(topic)
        except NotFound:
            return False  # nothing of it lies at the root yet
        except (Invalid, Corrupt) as error:
            if topic not in self._kept and not self._settings.publish.delta:
                return True  # nobody asked for a table
            report = failed(topic, error)
        except (HoldfastError, OSError) as error:
            if topic in self._kept or self._settings.publish.delta:  # or nobody asked for a table
                self._tell(topic, error.message if isinstance(error, HoldfastError) else str(error))
            return False
        self._took(topic, report)
        return report.state not in ("foreign", "damaged")

    def _is_wanted(self, publisher: Publisher, topic: str, *, may_look: bool) -> bool:
        if topic in self._kept or may_look:
            is_there = publisher.is_published(topic)  # another process may have made one, or removed it
            (self._kept.add if is_there else self._kept.discard)(topic)
        return topic in self._kept or (self._settings.publish.delta and not topic.startswith("_"))

    def _publisher(self) -> Publisher:
        # Only now: a log that publishes nothing does not load what publishing needs.
        from holdfast.publish.publication import Publisher
        from holdfast.root.root_store import RootStore
        from holdfast.root.root_trust import RootTrust
        from holdfast.store import store_kinds
        from holdfast.store.directory import DirectoryStore

        if self._opened is None:
            settings, clock = self._settings, self._clock
            if self._own_root is not None:
                self._store = DirectoryStore(self._own_root, clock)
            else:
                self._store = store_kinds.open_any_store(settings.store.url, settings.store, clock)
            root = RootStore(self._store, RootTrust(None, log=self._journal.log_id.hex()))
            keep = settings.shipping.delete_after_ms
            self._opened = Publisher(root, clock, delete_after_ms=keep, is_owner=True)
        return self._opened

    def _took(self, topic: str, report: PublicationReport) -> None:
        if report.reason is not None:
            self._tell(topic, f"{report.reason}; {report.hint}", is_alarm=report.state != "refused")
            return
        self._kept.add(topic)
        self._commits += report.commits
        self._versions[topic] = report.version
        if self._problems.pop(topic, None) is not None:
            logger.info("publishing goes on topic=%s", topic, extra={"action": "table_recovered", "topic": topic})

    def _tell(self, topic: str, message: str, *, is_alarm: bool = False) -> None:
        """Say what is wrong: at once, when it is something else, and every hour."""
        before, now = self._problems.get(topic), self._clock.monotonic()
        if before is not None and before[0] == message and now < before[1] + _REMIND_S:
            return
        self._problems[topic] = (message, now)
        logger.log(
            logging.ERROR if is_alarm else logging.WARNING,
            "a table is not up to date topic=%s: %s",
            topic,
            message,
            extra={"action": "table_alarm" if is_alarm else "table_late", "topic": topic},
        )
