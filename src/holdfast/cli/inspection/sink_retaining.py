"""`holdfast retain URL`: retention of the topics of a root that sinks write."""

from __future__ import annotations

import msgspec

from holdfast import Keyring
from holdfast.cli.inspection.at_root import Root
from holdfast.cli.options import load_keyring
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say
from holdfast.clock import SystemClock
from holdfast.crypto.signatures import Signer
from holdfast.errors import Invalid
from holdfast.quantity import counted, sized
from holdfast.root.objects.documents import RetentionLimits
from holdfast.root.rewrite_sweep import Grace
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.settings import Settings
from holdfast.sink.sink_retention import SinkRetained, SinkRetention
from holdfast.store.store_kinds import open_any_store

_NO_LIMITS = RetentionLimits(0, 0, 0)


class SinkRetentionReport(msgspec.Struct, frozen=True):
    """What retention came to at a root."""

    store: str
    dry_run: bool
    partitions: tuple[SinkRetained, ...]
    """Those of which something was retired or removed."""


def retain_sinks(
    place: Root,
    settings: Settings,
    reference: str | None,
    topic: str | None,
    policy: RetentionLimits | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Apply the policies of a root's topics, after one of them was given this one; prints what that came to."""
    store = _opened(place, settings, load_keyring(reference, settings))
    try:
        _require_signer(store)
        grace = Grace(int(settings.shipping.delete_after_ms * 1000), int(settings.shipping.lease_delay_max_ms * 1000))
        retention = SinkRetention(store, SystemClock(), grace, int(settings.journal.clock_jump_max_ms * 1000))
        if topic is not None:
            retention.set_policy(topic, None if policy == _NO_LIMITS else policy)
            say(f"{topic} {'is kept as a whole' if policy == _NO_LIMITS else 'has a retention policy of its own'} now")
        done = [one for document in retention.topics() for one in retention.apply(document, dry_run=dry_run)]
    finally:
        store.close()
    changed = tuple(one for one in done if one.retired or one.removed_files)
    _tell(SinkRetentionReport(store.url, dry_run, changed), as_json=as_json)


def _opened(place: Root, settings: Settings, keyring: Keyring | None) -> RootStore:
    address = msgspec.structs.replace(settings.store, url="", move=False)
    files = open_any_store(place.url, address, SystemClock())
    return RootStore(files, RootTrust(Signer.of(keyring)))


def _require_signer(store: RootStore) -> None:
    store.log()
    if store.trust.is_signed and not store.trust.is_authentic:
        raise Invalid(
            "this root is signed, and there is no key to sign with",
            hint="name the log's keyring: --keyring file:PATH or env:NAME",
        )


def _tell(report: SinkRetentionReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report)
    else:
        if report.partitions:
            emit_table(SinkRetained.__struct_fields__, [msgspec.structs.astuple(one) for one in report.partitions])
            emit("")
        retired, files = (sum(getattr(one, name) for one in report.partitions) for name in ("retired", "removed_files"))
        freed = sum(one.removed_bytes for one in report.partitions)
        would = "would be retired" if report.dry_run else "retired"
        emit_facts([(would, counted(retired, "segment")), ("removed", f"{counted(files, 'file')}, {sized(freed)}")])
    flush()
