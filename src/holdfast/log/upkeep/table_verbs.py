"""`holdfast.publish_tables` and `holdfast.unpublish_tables`: topics of any root as tables that other engines read.

The log need not be here or open: all is done by what lies at its root. An owner that publishes at the same time does no
harm. How a store is reached comes from the settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.arguments import flag, path_of, text, texts
from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name
from holdfast.publish.publication import Publisher
from holdfast.publish.publication_report import PublicationReport
from holdfast.root.root_place import root_url
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.settings import Settings
from holdfast.store.store_kinds import open_any_store

Progress = Callable[[str, int, int], None]
"""A topic's name, how many topics are done, and of how many."""


def publish_tables(
    root: str | os.PathLike[str],
    topics: str | Sequence[str] = (),
    *,
    as_format: str = "delta",
    dry_run: bool = False,
    settings: Settings | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[PublicationReport]:
    """Bring the tables of these topics (of all, if none is named) up to what is settled now: one report each.

    A topic that cannot be published, or whose table another writer has written to, is reported and not raised. Raises
    NotFound where there is no root, Invalid where nothing of it can be published (encrypted, or of the old layout).
    """
    with publisher_at(root, as_format, settings) as publisher:
        publisher.require_publishable()
        names = _names(topics) or publisher.topics()
        reports = []
        for at, name in enumerate(names):
            if progress is not None:
                progress(name, at, len(names))
            reports.append(publisher.attempt(name, dry_run=flag(dry_run, "dry_run")))
        return reports


def unpublish_tables(
    root: str | os.PathLike[str],
    topics: str | Sequence[str] = (),
    *,
    as_format: str = "delta",
    force: bool = False,
    settings: Settings | Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Remove the tables of these topics (of all, if none is named), and no data: topics, and how many objects went.

    Raises NotFound where there is no root, and for a named topic without a table; Invalid for a table that was not made
    here, unless `force`.
    """
    with publisher_at(root, as_format, settings) as publisher:
        publisher.require_root()
        names = _names(topics) or tuple(name for name in publisher.all_topics() if publisher.is_published(name))
        return {name: publisher.unpublish(name, force=flag(force, "force")) for name in names}


@contextmanager
def publisher_at(
    root: str | os.PathLike[str], as_format: str = "delta", settings: Settings | Mapping[str, Any] | None = None
) -> Iterator[Publisher]:
    """What publishes the topics of a root."""
    settings = Settings.given(settings)
    clock = SystemClock()
    store = open_any_store(root_url(_place(root)), settings.store, clock)
    try:
        yield Publisher(
            RootStore(store, RootTrust(None)),
            clock,
            as_format=text(as_format, "as_format", "delta"),
            delete_after_ms=settings.shipping.delete_after_ms,
        )
    finally:
        store.close()


def _names(topics: str | Sequence[str]) -> tuple[str, ...]:
    return (
        (check_name(topics),) if isinstance(topics, str) else tuple(map(check_name, texts(topics, "topics", "orders")))
    )


def _place(root: object) -> str:
    if isinstance(root, str) and ("://" in root or root.startswith("file:")):
        if "\0" in root:
            raise Invalid("a root's address has a null byte", hint="give the URL of a store, or a directory")
        return root
    return str(path_of(root, "a root"))
