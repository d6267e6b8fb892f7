"""The root that a sink writes to: opened, or made where there is nothing yet.

A sink may write to the root that a log ships to, into topics of its own; and to an empty place, which then gets a
`log.json` that says so. It never writes into a log's own directory, whose `segments/` belongs to the process that owns
the log. In a root with keys everything is signed and encrypted: without the keyring
nothing is written. All of this is refused before the first byte is.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.errors import Invalid, NotFound
from holdfast.log_directory import is_log
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LogDocument
from holdfast.root.root_place import root_url
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.shared_stores import shared_store
from holdfast.sink.sink_target import SinkTarget
from holdfast.store import layout
from holdfast.store.address import parse_url
from holdfast.store.port import Body, Store
from holdfast.store.repeated_create import create_repeatedly

_LOG_ID_BYTES = 16


class SinkRoot(NamedTuple):
    """A root, opened for writing."""

    store: RootStore
    log: str
    keyring: Keyring | None


def open_root(target: SinkTarget, clock: Clock) -> SinkRoot:
    """The root of a target; raises NotFound where there is none, Invalid where a sink may not write."""
    _refuse_log(target.place)
    keyring = Keyring.from_reference(target.keyring) if target.keyring else None
    files = shared_store(target.place, target.store, clock)
    store = RootStore(files, RootTrust(Signer.of(keyring), log=target.log_id))
    log = store.log().log
    _check_keys(store.trust)
    return SinkRoot(store, log, keyring)


def open_or_create_root(target: SinkTarget, clock: Clock) -> SinkRoot:
    """The same; an empty place becomes a root."""
    try:
        return open_root(target, clock)
    except NotFound:
        if target.log_id:
            raise
    files = shared_store(target.place, target.store, clock)
    if _is_empty(files):
        _create(files, target, clock)
    return open_root(target, clock)


def _is_empty(files: Store) -> bool:
    """Whether there is nothing yet, or another sink is just making it a root; Invalid where it is something else."""
    found = next(iter(files.list("")), None)
    if found is None:
        return True
    if files.head(layout.LOG) is None:
        raise Invalid(
            f"this place holds something else: no log.json, but {found.key[:100]!r} store={files.url}",
            hint="pass the root of a log, or an empty place, where the sink creates a root",
        )
    return False


def _create(files: Store, target: SinkTarget, clock: Clock) -> None:
    signer = Signer.of(Keyring.from_reference(target.keyring)) if target.keyring else None
    document = LogDocument(log=clock.random_bytes(_LOG_ID_BYTES).hex(), created_us=clock.now_us())
    # A trust of its own: if another sink is faster, its log counts, not this one.
    store = RootStore(files, RootTrust(signer))
    create_repeatedly(store, layout.LOG, Body.of(documents.encode(document)))


def _refuse_log(place: str) -> None:
    url = root_url(place)
    if not url.startswith("file://"):
        return
    path = Path(parse_url(url).place)
    if is_log(path) or (path.name == "segments" and is_log(path.parent)):
        raise Invalid(
            f"this is a log's own directory, which only the log writes to path={path}",
            hint="append to the log itself; or give the store that the log ships to, or an empty directory",
        )


def _check_keys(trust: RootTrust) -> None:
    if trust.is_signed and not trust.is_authentic:
        raise Invalid(
            "the log at this root has keys, and a sink without them would write in plain",
            hint="give the keyring by reference: option keyring, env:NAME or file:PATH",
        )
