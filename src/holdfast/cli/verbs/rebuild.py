"""`holdfast rebuild`: make a log's database again from its segment files, when it is lost or damaged.

The last resort: what was only in the tail of a lost database is gone, and the report says exactly what. It asks first.
Segment files are not changed, and a damaged database is kept aside.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

import holdfast
from holdfast import Settings
from holdfast.cli.exit_codes import DAMAGED, FINE, REFUSED
from holdfast.cli.options import asking_for_key, directory_argument, json_option, keyring_option, load_keyring
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say
from holdfast.cli.progress import ProgressLine
from holdfast.recovery.rebuild import RebuildReport

EPILOG = """\b
Example:
  holdfast rebuild data --yes
Try 'holdfast status' and a copy of the database first: a rebuild cannot bring back what was never sealed.
Exit code 3 when something was lost."""


@click.command("rebuild", epilog=EPILOG)
@directory_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyring_option
@json_option
def rebuild_command(directory: Path, yes: bool, reference: str | None, as_json: bool) -> int:
    """Rebuild the database of the log in DIR from its segments, and say exactly what was lost."""
    keyring = load_keyring(reference, Settings.load())
    if not yes and not _confirmed(directory):
        say("nothing was changed")
        return REFUSED
    with asking_for_key(keyring), ProgressLine() as working:
        report = holdfast.rebuild(
            directory, keyring=keyring, progress=lambda what, read: working.show(f"{what}: {read} files read")
        )
    if as_json:
        emit_json(report)
    else:
        _show(report)
    flush()
    return DAMAGED if report.lost else FINE


def _confirmed(directory: Path) -> bool:
    try:
        return click.confirm(
            f"Make the database of {directory} anew? What was never sealed and cannot be saved is lost.", err=True
        )
    except click.Abort:  # nobody is there to answer
        say("")
        say("hint: pass --yes to skip the confirmation")
        return False


def _show(report: RebuildReport) -> None:
    emit_facts(
        [
            ("topics", report.topics),
            ("partitions", report.partitions),
            ("segments", report.segments),
            ("records", report.records),
            ("saved from the tail", report.salvaged),
            ("old database", report.set_aside),
            ("lost", "nothing" if not report.lost else f"in {len(report.lost)} places"),
        ]
    )
    if report.lost:
        emit("")
        rows = [msgspec.structs.astuple(lost) for lost in report.lost]
        emit_table(
            ("topic", "partition", "first", "records", "reason"),
            [tuple("unknown" if value is None else value for value in row) for row in rows],
        )
