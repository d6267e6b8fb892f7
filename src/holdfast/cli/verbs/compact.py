"""`holdfast compact`: join the small segments of a root into few large files.

Needs no log: it works on the root that a log ships to, beside that log and beside readers. Spark does the same on a
cluster (`holdfast spark compact`). Given the directory of a log without a store, it opens that log, or has its
owner do it.
"""

from __future__ import annotations

from pathlib import Path

import click

import holdfast
from holdfast import Settings
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import asking_for_key, json_option, keyring_option, load_keyring, own_log, parsed
from holdfast.cli.output import emit_facts, emit_json, emit_table, flush, say
from holdfast.cli.progress import ProgressLine
from holdfast.compaction.compaction_plan import TARGET_BYTES
from holdfast.compaction.compaction_report import CompactionReport, report_of
from holdfast.quantity import counted, parse_bytes, sized

EPILOG = """\b
Examples:
  holdfast compact s3://bucket/prefix
  holdfast compact s3://bucket/prefix orders --target-size 256MiB --dry-run
  holdfast compact data
Rows, offsets, marks and checkpoints of streams stay as they are. Replaced files are removed
shipping.delete_after_ms later, by the next compaction or by the log. Exit code 3 when files are damaged.
How the store is reached (endpoint, region, credentials) comes from the settings under [store]."""


@click.command("compact", epilog=EPILOG)
@click.argument("root", metavar="ROOT")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--target-size",
    metavar="SIZE",
    callback=parsed(parse_bytes),
    help="How large files should become, as 64MiB.  [default: 128MiB]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--measure", is_flag=True, help="Read some of the rows before and after, and report how much faster it is."
)
@keyring_option
@json_option
def compact_command(
    root: str,
    topics: tuple[str, ...],
    target_size: int | None,
    dry_run: bool,
    measure: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Join small segments of ROOT (a store's URL or directory, or a log without a store) into large files."""
    settings = Settings.load()
    if (Path(root) / "FORMAT").is_file():
        if measure:
            raise click.UsageError("--measure is for a root: a log's own directory is compacted without it")
        return _compact_log(Path(root), topics, target_size, reference, settings, dry_run=dry_run, as_json=as_json)
    keyring = reference or settings.crypto.keyring
    with asking_for_key(load_keyring(reference, settings)), ProgressLine() as working:
        report = holdfast.compact(
            root,
            topics,
            target_size=TARGET_BYTES if target_size is None else target_size,
            dry_run=dry_run,
            measure=measure,
            keyring=keyring or None,
            delete_after_ms=settings.shipping.delete_after_ms,
            lease_delay_max_ms=settings.shipping.lease_delay_max_ms,
            clock_jump_max_ms=settings.journal.clock_jump_max_ms,
            store=settings.store,
            progress=lambda what, done, total: working.show(f"{what}: {done} of {total} files"),
        )
    return show_report(report, as_json=as_json)


def _compact_log(
    directory: Path,
    topics: tuple[str, ...],
    target_size: int | None,
    reference: str | None,
    settings: Settings,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Compact the files of a log."""
    with own_log(directory, reference, settings) as log, ProgressLine() as working:
        reports = [
            log.compact(
                topic,
                target_size=TARGET_BYTES if target_size is None else target_size,
                dry_run=dry_run,
                progress=lambda what, done, total: working.show(f"{what}: {done} of {total} files"),
            )
            for topic in topics or (None,)
        ]
    parts = [part for report in reports for part in report.partitions]
    first, seconds = reports[0], sum(report.seconds for report in reports)
    whole = report_of(first.root, first.log, parts, dry_run=dry_run, target_bytes=first.target_bytes, seconds=seconds)
    return show_report(whole, as_json=as_json)


def show_report(report: CompactionReport, *, as_json: bool) -> int:
    """Print what a compaction did; returns the exit code."""
    if as_json:
        emit_json(report)
    else:
        _show(report)
    flush()
    return DAMAGED if report.problems else FINE


def _show(report: CompactionReport) -> None:
    emit_facts(
        [
            ("root", report.root),
            ("files", f"{report.files_before} before, {report.files_after} {_after(report)}"),
            (
                "bytes",
                f"{sized(report.bytes_before)} before"
                + ("" if report.dry_run else f", {sized(report.bytes_after)} after"),
            ),
            ("rewritten", f"{counted(report.rewritten_files, 'file')}, {counted(report.rewritten_rows, 'row')}"),
            (
                "removed",
                f"{counted(report.removed_files, 'file')} of earlier compactions, {sized(report.removed_bytes)}",
            ),
            ("took", f"{report.seconds:.1f} s"),
            *([] if report.speed_up is None else [("reading", f"{report.speed_up:g} times as fast as before")]),
        ]
    )
    changed = [one for one in report.partitions if one.rewritten_files]
    if changed:
        rows = [
            (one.topic, one.partition, one.files_before, one.files_after, one.bytes_before, one.bytes_after)
            for one in changed
        ]
        emit_table(("topic", "partition", "files", "then", "bytes", "then"), rows)
    for one in report.partitions:
        for reason, files in one.skipped.items():
            say(f"{one.topic}/{one.partition}: {counted(files, 'file')} stay as they are: {reason}")
    for problem in report.problems:
        say(f"damaged: {problem}")


def _after(report: CompactionReport) -> str:
    return "would be left" if report.dry_run else "after"
