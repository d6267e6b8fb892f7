"""`holdfast ship`: bring everything that is durable to the log's store, and return when it is there.

It needs ownership; a service that owns the log ships by itself. Exit code 0 means that every record that was durable is
on the store and every sealed segment is listed there. Anything less exits with another code and says what is left.
`--rebuild-store` first brings back a store that was emptied, made again or restored from an old copy.
Nothing is at risk when it ends early: what is left is durable here, and the next owner continues exactly there.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from holdfast import Log, Settings
from holdfast.cli.exit_codes import FINE, INTERRUPTED
from holdfast.cli.options import (
    directory_argument,
    is_asked,
    json_option,
    keyring_option,
    own_log,
    parsed,
    store_option,
    with_store,
)
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say
from holdfast.cli.prices import dollars
from holdfast.cli.progress import ProgressLine
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.journal.proving.inspected_database import ControlRows, InspectedDatabase, control_rows
from holdfast.log_directory import Directory
from holdfast.quantity import counted, parse_seconds, sized
from holdfast.shipping.refill.store_loss import LostSpan, StoreForgot, StoreRebuildReport
from holdfast.shipping.shipping_stats import ShippingStats
from holdfast.store.address import parse_url

_TICK_S = 0.25

EPILOG = """\b
Examples:
  holdfast ship data
  holdfast ship data --store s3://bucket/prefix --seal --timeout 10min
  holdfast ship data --rebuild-store
Without --store it is the store of the settings, else the one that the log is shipped to already."""


class UnshippedLine(msgspec.Struct, frozen=True):
    """Records of one partition that are on this machine only."""

    topic: str
    partition: int
    first: int
    """The first offset."""
    records: int
    """How many."""


class ShipReport(msgspec.Struct, frozen=True):
    """What was shipped, and what is left."""

    store: str
    """The store's address."""
    epoch: int
    """The claim on the store; 0 where nothing was to be shipped."""
    records: int
    """Records that are on the store now and were not, by the marks."""
    segments: int
    """Segments that were settled."""
    batches: int
    """Commit batches that were acknowledged."""
    objects: int
    """Objects that the store has taken."""
    bytes: int
    """Their bytes."""
    seconds: float
    """From opening the log to its end."""
    puts: int
    """PUT requests, failed ones included."""
    dollars: float
    """All requests that were counted, at the list price of S3."""
    records_left: int
    """Records that are not there."""
    segments_left: int
    """Segments that are not there."""
    left: list[UnshippedLine]
    """The records that are not there."""
    rebuilt: StoreRebuildReport | None = None
    """With `--rebuild-store`; else null."""


@click.command("ship", epilog=EPILOG)
@directory_argument
@store_option
@click.option("--seal", is_flag=True, help="Seal first, so that all of it is in segments on the store.")
@click.option(
    "--rebuild-store",
    is_flag=True,
    help="First bring back a store that has lost what it had; refused where something would be given up.",
)
@click.option(
    "--accept-loss", is_flag=True, help="With --rebuild-store: give up what only the store had; it is listed."
)
@click.option(
    "--timeout",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=parsed(parse_seconds),
    help="How long to wait in all, as '10min'.",
)
@keyring_option
@json_option
def ship_command(
    directory: Path,
    url: str | None,
    seal: bool,
    rebuild_store: bool,
    accept_loss: bool,
    timeout: float,
    reference: str | None,
    as_json: bool,
) -> int:
    """Ship what is durable in the log in DIR to its store, and wait until it is there."""
    if accept_loss and not rebuild_store:
        raise click.UsageError("--accept-loss goes with --rebuild-store")
    place = Directory(directory.absolute())
    place.require_log()
    before = control_rows(place.database)
    settings = _settings(before, url)
    clock = SystemClock()
    began = clock.monotonic()
    failure: HoldfastError | None = None
    interrupted = False
    try:
        log = own_log(directory, reference, settings)
    except KeyboardInterrupt:  # opening waits a moment for the store's first word
        say("interrupted while the log was being opened; what is not on the store is durable here as before")
        return INTERRUPTED
    rebuilt: StoreRebuildReport | None = None
    with log:
        if is_asked(log) and (before.shipping is None or before.shipping.root != settings.store.url):
            raise Unavailable(
                f"the log is open in process {place.holder()}, which does not ship it there"
                f" path={place.path} pid={place.holder()}",
                hint="open it there with that store, or close it there first",
            )
        try:
            if rebuild_store:
                rebuilt = log.rebuild_store(accept_loss=accept_loss, timeout=timeout)
            _Shipping(log, place, began + timeout, clock).run(seal=seal)
        except KeyboardInterrupt:
            interrupted = True
        except HoldfastError as error:
            failure = error
        log.close()  # which ships what can be shipped within shipping.drain_timeout_ms
        report = _report(log, _shipped(before, settings), clock.monotonic() - began, rebuilt)
    _tell(report, as_json=as_json)
    if interrupted:
        say(f"interrupted; {_words(report.records_left, report.segments_left)} left, durable here as before")
        return INTERRUPTED
    is_left = bool(report.records_left or report.segments_left)
    if failure is not None and (is_left or not isinstance(failure, Unavailable) or isinstance(failure, StoreForgot)):
        raise failure
    return FINE


def _settings(control: ControlRows, url: str | None) -> Settings:
    """The settings with the store to use: the one that is given, the one that is set, or the log's own."""
    settings = with_store(Settings.load(), url)
    remembered = control.shipping.root if control.shipping is not None else ""
    if not settings.store.url and not remembered:
        raise Invalid("this log is shipped to no store", hint="give --store URL, or set HOLDFAST_STORE__URL")
    return settings if settings.store.url else with_store(settings, remembered)


class _Shipping:
    """Waits for the store until a deadline, and shows how far it is."""

    def __init__(self, log: Log, place: Directory, deadline: float, clock: SystemClock) -> None:
        self._log = log
        self._place = place
        self._deadline = deadline
        self._clock = clock
        self._batches = log.settings.shipping.commit_batches

    def run(self, *, seal: bool) -> None:
        """Seal if asked to, then wait until everything is there; raises if it is not there in time."""
        with ExitStack() as stack:
            working = stack.enter_context(ProgressLine())
            if seal:
                working.show("sealing")
                self._log.seal(timeout=self._remaining())
            place = self._place.database
            database = stack.enter_context(InspectedDatabase.open(place)) if working.is_shown else None
            events = stack.enter_context(self._log.subscribe())
            while self._is_behind():
                self._require_store()
                remaining = self._remaining()
                if not remaining:
                    raise self._late()
                if database is not None:
                    sizes = database.bytes_of(database.control_rows(1)).values()
                    working.show(self._progress(sum(size.unshipped + size.unsettled for size in sizes)))
                if self._batches and self._log.unshipped():
                    events.get(min(_TICK_S, remaining))  # raises what ended shipping
                else:
                    self._settle(min(_TICK_S, remaining))
        self._require_store()
        if self._log.unshipped():
            raise Unavailable(
                "what is not sealed cannot be shipped: shipping.commit_batches is off",
                hint="give --seal, or switch commit batches on",
            )

    def _require_store(self) -> None:
        """Raise if the store has lost what it had: then the marks are not true."""
        forgotten = self._stats().forgotten
        if forgotten is not None:
            raise StoreForgot(forgotten)

    def _is_behind(self) -> bool:
        return bool((self._batches and self._log.unshipped()) or self._stats().unsettled_segments)

    def _settle(self, timeout: float) -> None:
        try:
            self._log.ship(timeout)
        except Unavailable:
            if self._stats().ended is not None:
                raise

    def _stats(self) -> ShippingStats:
        return _stats(self._log)

    def _remaining(self) -> float:
        return max(0.0, self._deadline - self._clock.monotonic())

    def _progress(self, size: int) -> str:
        stats = self._stats()
        words = f"{_words(stats.lag_records, stats.unsettled_segments)} left, {sized(size)}"
        return words if stats.alarm is None else f"{words}; {stats.alarm.message}"

    def _late(self) -> Unavailable:
        stats = self._stats()
        return Unavailable(
            f"not everything is on the store in time store={stats.store}",
            hint="run it again with more time" if stats.last_error is None else f"the store said: {stats.last_error}",
        )


def _shipped(before: ControlRows, settings: Settings) -> dict[tuple[str, int], int]:
    """How far partitions were on this store before; what retention has removed is not shipped any more."""
    same = before.shipping is not None and before.shipping.root == parse_url(settings.store.url).url
    names, found = before.topic_names, {}
    for head in before.heads:
        mark = before.watermarks.get(head.partition_id)
        first = 0 if mark is None else mark.first_offset
        shipment = before.shipment(head.partition_id) if same else None
        shipped = 0 if shipment is None else shipment.shipped_offset
        found[names.get(head.topic_id, ""), head.number] = max(first, shipped)
    return found


def _report(
    log: Log, before: dict[tuple[str, int], int], seconds: float, rebuilt: StoreRebuildReport | None
) -> ShipReport:
    stats = _stats(log)
    left = [UnshippedLine(span.topic, span.partition, span.first, span.records) for span in log.unshipped()]
    records = 0
    for topic in log.topics():
        for number, marks in enumerate(log.marks(topic)):
            records += max(0, (marks.shipped or 0) - before.get((topic, number), 0))
    return ShipReport(
        store=stats.store,
        epoch=stats.epoch,
        records=records,
        segments=stats.segments_total,
        batches=stats.batches_total,
        objects=stats.objects_total,
        bytes=stats.bytes_total,
        seconds=round(seconds, 3),
        puts=stats.requests.get("put", 0),
        dollars=stats.dollars,
        records_left=sum(span.records for span in left),
        segments_left=stats.unsettled_segments,
        left=left,
        rebuilt=rebuilt,
    )


def _stats(log: Log) -> ShippingStats:
    stats = log.stats().shipping
    assert stats is not None  # it was opened with a store
    return stats


def _words(records: int, segments: int) -> str:
    return f"{counted(records, 'record')} and {counted(segments, 'segment')}"


def _rebuilt_facts(rebuilt: StoreRebuildReport | None) -> list[tuple[str, object]]:
    if rebuilt is None:
        return []
    lost = sum(span.records for span in rebuilt.lost)
    missing = f"{_words(rebuilt.records, rebuilt.segments)}, {counted(rebuilt.manifests, 'manifest object')}"
    return [
        ("missing there", f"{missing}: sent again"),
        ("given up", f"{counted(lost, 'record')} that only the store had"),
    ]


def _tell(report: ShipReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report)
    else:
        emit_facts(
            [
                ("store", report.store),
                ("epoch", report.epoch or "none: nothing was to be shipped"),
                (
                    "shipped",
                    f"{counted(report.records, 'record')} in {counted(report.batches, 'commit batch')}, "
                    + counted(report.segments, "segment"),
                ),
                ("sent", f"{counted(report.objects, 'object')}, {sized(report.bytes)} in {report.seconds:g} s"),
                ("requests", f"{report.puts} PUTs; {dollars(report.dollars)} for all requests at S3's list price"),
                ("left", _words(report.records_left, report.segments_left)),
                *_rebuilt_facts(report.rebuilt),
            ]
        )
        if report.rebuilt is not None and report.rebuilt.lost:
            emit("")
            emit_table(LostSpan.__struct_fields__, [msgspec.structs.astuple(span) for span in report.rebuilt.lost])
        if report.left:
            emit("")
            emit_table(UnshippedLine.__struct_fields__, [msgspec.structs.astuple(left) for left in report.left])
    flush()
