"""The tables that topics of a log's own directory are published as, for `status DIR` and `inspect`; read, not changed.

A log that ships to a store has its tables there, and the store is not contacted: `holdfast status URL` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.log_directory import Directory
from holdfast.publish.publication_report import PublicationReport
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore


def own_tables(place: Directory) -> Iterator[PublicationReport]:
    """The published tables, by topic; none where the directory is no root."""
    if not (place.segments / layout.LOG).exists() or not any(place.segments.glob("topics/*/_delta_log")):
        return
    from holdfast.publish.publication import Publisher  # slow to load, and most logs have no tables

    clock = SystemClock()
    publisher = Publisher(RootStore(DirectoryStore(place.segments, clock), RootTrust(None)), clock, delete_after_ms=0)
    try:
        for topic in publisher.all_topics():
            report = publisher.state(topic)
            if report is not None:
                yield report
    except HoldfastError:
        return  # what is wrong with the root itself is found by those who look for damage
