"""`holdfast reconcile`: compare the manifest with the segment files, and with `--fix` repair what can be proved.

With `--remote` the objects of the log's store are compared instead of its own files.

Without `--fix` the log is opened for reading only, so this works while a service owns it, appends, seals and expires;
what is in flight is counted and never reported. If findings are left, the exit code is 3.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Log, Settings
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log, own_log, with_store
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say, say_problems
from holdfast.cli.progress import ProgressLine
from holdfast.journal.proving.inspected_database import control_rows
from holdfast.log_directory import Directory
from holdfast.model.record_json import iso
from holdfast.quantity import counted, sized
from holdfast.reconcile.classify import Finding
from holdfast.reconcile.reconcile_report import ReconcileReport, Repair

EPILOG = """\b
Findings: missing, size_mismatch, content_mismatch (--deep), untracked, overlap, gap.
--fix removes provable garbage, moves what is not ours to quarantine/, and puts misplaced segments back;
it never changes the manifest. Exit code 3 when findings are left.
--remote compares the log's store instead: the one of the settings, else the one that the log is shipped to.
Examples:
  holdfast reconcile data --deep
  holdfast reconcile data --remote
  holdfast reconcile data --fix"""


class ReconcileLine(msgspec.Struct, frozen=True):
    """What a pass found; without `complete`, what it found so far."""

    findings: tuple[Finding, ...]
    """What is left."""
    repairs: tuple[Repair, ...]
    """What was repaired."""
    segments: int
    """How many were compared."""
    files: int
    """How many were compared."""
    in_flight: int
    """Segments and files on their way in or out."""
    evidence: int
    """Commit batches of the store behind a loss that a restore accepted: no finding, and nothing that `--fix`
    removes.
    """
    bytes_expected: int
    """Bytes of live segments, by the manifest."""
    bytes_actual: int
    """Bytes of their files."""
    deep: bool
    """Whether files were read."""
    mode: str
    """`report` or `fix`."""
    fixes_skipped: str | None
    """Why nothing was repaired although `--fix` was given, or null."""
    complete: bool
    """Whether everything was compared."""
    started: str | None
    """When it began."""
    completed: str | None
    """When it was complete; null until then."""
    where: str
    """What was compared: the `log`'s own files, or the `store`."""


@click.command("reconcile", epilog=EPILOG)
@directory_argument
@click.option("--remote", is_flag=True, help="Compare the objects of the log's store instead of its own files.")
@click.option("--deep", is_flag=True, help="Read and prove every file.")
@click.option("--fix", is_flag=True, help="Repair what can be proved, or have the log's owner do it.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many units of work.")
@keyring_option
@json_option
def reconcile_command(
    directory: Path, remote: bool, deep: bool, fix: bool, limit: int | None, reference: str | None, as_json: bool
) -> int:
    """Compare the manifest of the log in DIR with its files; exit code 3 when something is wrong."""
    settings = _with_own_store(directory, Settings.load()) if remote else Settings.load()
    opened = (
        own_log(directory, reference, settings) if fix else open_log(directory, reference, settings, read_only=True)
    )
    with opened as log:
        report = _run(log, remote=remote, fix=fix, deep=deep, limit=limit)
        if as_json:
            emit_json(_reconciled(report))
        else:
            _show(report)
        say_problems(log.problems, as_json=as_json)
        flush()
        if not report.complete:
            say(f"note: stopped after {limit} units of work; the rest was not compared")
        return DAMAGED if report.findings or log.problems else FINE


def _with_own_store(directory: Path, settings: Settings) -> Settings:
    """The settings; if they name no store, with the one that the log ships to."""
    if settings.store.url:
        return settings
    place = Directory(directory.absolute())
    place.require_log()
    shipping = control_rows(place.database).shipping
    return settings if shipping is None else with_store(settings, shipping.root)


def _run(log: Log, *, remote: bool, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
    """A pass, unit by unit, showing how far it is."""
    done = 0
    with ProgressLine() as working:
        while True:
            report = log.reconcile(remote=remote, fix=fix, deep=deep, limit=1)
            done += 1
            working.show(f"compared {counted(report.segments, 'segment')}, {counted(len(report.findings), 'finding')}")
            if report.complete or done == limit:
                return report


def _reconciled(report: ReconcileReport) -> ReconcileLine:
    values = msgspec.structs.asdict(report)
    started, completed = values.pop("started_us"), values.pop("completed_us")
    return ReconcileLine(**values, started=iso(started), completed=None if completed is None else iso(completed))


def _show(report: ReconcileReport) -> None:
    if report.findings:
        emit_table(Finding.__struct_fields__, [msgspec.structs.astuple(finding) for finding in report.findings])
        emit("")
    if report.repairs:
        emit_table(Repair.__struct_fields__, [msgspec.structs.astuple(repair) for repair in report.repairs])
        emit("")
    emit_facts(
        [
            (
                "compared",
                f"{counted(report.segments, 'segment')}, {counted(report.files, 'file')}"
                + ", every one proved" * report.deep,
            ),
            ("in flight", report.in_flight),
            *(
                [("evidence", f"{counted(report.evidence, 'commit batch')} after an accepted loss")]
                * bool(report.evidence)
            ),
            ("size", f"{sized(report.bytes_actual)} of {sized(report.bytes_expected)}"),
            ("repairs", report.fixes_skipped or len(report.repairs)),
            ("findings", len(report.findings)),
        ]
    )
