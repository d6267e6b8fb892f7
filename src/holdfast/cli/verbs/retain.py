"""`holdfast retain`: apply retention now, say what it would remove, or give a topic its own policy.

`--dry-run` only looks, so it works while a service owns the log. Otherwise the owner does it, where there is one. A
policy is stored in the log and holds for later owners; it replaces what the settings say about that topic.

Of a store, the topics that sinks write are meant: the log's own are retired there by its owner. Nobody has to stop.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli.inspection.at_root import Root, place_argument
from holdfast.cli.inspection.sink_retaining import retain_sinks
from holdfast.cli.options import is_asked, json_option, keyring_option, open_log, own_log, parsed
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say
from holdfast.errors import Invalid
from holdfast.quantity import counted, parse_bytes, parse_seconds, sized
from holdfast.root.objects.documents import RetentionLimits
from holdfast.segments.retention.retention_report import RemovedSegment, RetentionReport

EPILOG = """\b
Examples:
  holdfast retain data --dry-run
  holdfast retain data --topic orders --bytes 10GiB --age 7d
  holdfast retain data --topic orders --unlimited
  holdfast retain s3://bucket/prefix --topic spark-orders --age 30d
Limits hold per partition; whole segments go, the oldest first. A limit that is not given is none."""


_Limits = tuple[int | None, float | None, int | None]
_Waits = tuple[tuple[str, ...], timedelta | int | None]


def parse_limit(text: str) -> timedelta | int:
    """How long, or how much, something waits: a time such as '30d', or a size such as '9GiB'."""
    try:
        return timedelta(seconds=parse_seconds(text))
    except Invalid:
        return parse_bytes(text)


@click.command("retain", epilog=EPILOG)
@place_argument
@click.option("--dry-run", is_flag=True, help="Only say what would go; works beside the log's owner.")
@click.option("--topic", help="Give this topic a policy of its own first.")
@click.option("--bytes", "bytes_max", metavar="SIZE", callback=parsed(parse_bytes), help="Keep so much, as '10GiB'.")
@click.option("--age", metavar="TIME", callback=parsed(parse_seconds), help="Keep what was sealed since, as '7d'.")
@click.option("--records", "records_max", type=click.IntRange(min=1), help="Keep so many records.")
@click.option("--wait-for", multiple=True, metavar="CONSUMER", help="Keep what this consumer has not read; repeatable.")
@click.option(
    "--wait-limit", metavar="LIMIT", callback=parsed(parse_limit), help="For so long, or so much: '30d', '9GiB'."
)
@click.option("--unlimited", is_flag=True, help="Keep everything of the topic, whatever the settings say.")
@keyring_option
@json_option
@click.pass_context
def retain_command(
    ctx: click.Context,
    place: Path | Root,
    dry_run: bool,
    topic: str | None,
    bytes_max: int | None,
    age: float | None,
    records_max: int | None,
    wait_for: tuple[str, ...],
    wait_limit: timedelta | int | None,
    unlimited: bool,
    reference: str | None,
    as_json: bool,
) -> None:
    """Remove old segments of the log in DIR, or of sinks' topics at URL, as policies and settings say."""
    limits = (bytes_max, age, records_max)
    limited = any(limit is not None for limit in limits)
    if (topic is not None) != (limited or unlimited):
        raise click.UsageError("a policy is --topic with --bytes, --age and --records, or with --unlimited", ctx)
    if limited and unlimited:
        raise click.UsageError("--unlimited and a limit exclude each other", ctx)
    if bool(wait_for) != (wait_limit is not None) or (wait_for and not limited):
        raise click.UsageError("--wait-for goes with --wait-limit, and with a limit of the policy", ctx)
    if wait_for and isinstance(place, Root):
        raise click.UsageError("consumers read a log: their positions are not known to a store", ctx)
    if dry_run and topic is not None:
        raise click.UsageError("--dry-run changes nothing: leave the policy out", ctx)
    settings = Settings.load()
    if isinstance(place, Root):
        policy = (
            None if topic is None else RetentionLimits(bytes_max or 0, int((age or 0) * 1_000_000), records_max or 0)
        )
        retain_sinks(place, settings, reference, topic, policy, dry_run=dry_run, as_json=as_json)
    else:
        waits = (wait_for, wait_limit)
        _retain(place, settings, reference, topic, limits, waits, dry_run=dry_run, as_json=as_json)


def _retain(
    directory: Path,
    settings: Settings,
    reference: str | None,
    topic: str | None,
    limits: _Limits,
    waits: _Waits,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    bytes_max, age, records_max = limits
    if dry_run:
        with open_log(directory, reference, settings, read_only=True) as log:
            _tell(log.retain(dry_run=True), as_json=as_json)
        return
    due = _due(directory, reference, settings)
    with own_log(directory, reference, settings) as log:
        due = None if is_asked(log) else due  # what that one keeps is for its settings to say
        if topic is not None:
            age_max = None if age is None else timedelta(seconds=age)
            log.set_retention(
                topic,
                bytes_max=bytes_max,
                age_max=age_max,
                records_max=records_max,
                wait_for=waits[0],
                wait_limit=waits[1],
            )
            say(f"{topic} has a retention policy of its own now")
        _tell(_together(due, log.retain()), as_json=as_json)


def _due(directory: Path, reference: str | None, settings: Settings) -> RetentionReport | None:
    """What is due, read before we own the log: an owner may start removing it on its own."""
    try:
        with open_log(directory, reference, settings, read_only=True) as log:
            return log.retain(dry_run=True)
    except Invalid:  # opening it will raise it again
        return None


def _together(due: RetentionReport | None, done: RetentionReport) -> RetentionReport:
    known = {(item.topic, item.partition, item.number) for item in done.removed}
    earlier = [item for item in (due.removed if due else ()) if (item.topic, item.partition, item.number) not in known]
    freed = done.bytes_freed + sum(item.bytes for item in earlier)
    return msgspec.structs.replace(done, removed=(*earlier, *done.removed), bytes_freed=freed)


def _tell(report: RetentionReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report)
    else:
        if report.removed:
            emit_table(RemovedSegment.__struct_fields__, [msgspec.structs.astuple(item) for item in report.removed])
            emit("")
        would = "would go" if report.dry_run else "removed"
        facts = [(would, f"{counted(len(report.removed), 'segment')}, {sized(report.bytes_freed)}")]
        if report.bytes_short:
            facts.append(("short of", f"{sized(report.bytes_short)}: nothing more may be removed"))
        if report.bytes_waiting:
            facts.append(("waiting", f"{sized(report.bytes_waiting)} that a consumer has not read yet"))
        emit_facts(facts)
    flush()
