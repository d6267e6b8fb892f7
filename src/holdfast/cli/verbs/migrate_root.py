"""`holdfast migrate-root`: move a root that an older holdfast wrote to the present layout and format.

When a second root is named, the old one is not changed; in a log's own directory new documents are written beside its
segments. After an interruption, the same command continues where it stopped.
"""

from __future__ import annotations

import click

from holdfast import Settings
from holdfast.cli.exit_codes import FINE
from holdfast.cli.options import asking_for_key, json_option, keyring_option, load_keyring
from holdfast.cli.output import emit_facts, emit_json, flush
from holdfast.cli.progress import Working
from holdfast.recovery.root_migration import MigrationReport, migrate_root

EPILOG = """\b
Examples:
  holdfast migrate-root s3://bucket/old s3://bucket/new
  holdfast migrate-root data
Close the log first. Afterwards open it once with the new store and HOLDFAST_STORE__MOVE=true: it goes on there.
How stores are reached (endpoint, region, credentials) comes from the settings under [store]."""


@click.command("migrate-root", epilog=EPILOG)
@click.argument("source", metavar="OLD")
@click.argument("target", metavar="[NEW]", required=False)
@keyring_option
@json_option
def migrate_root_command(source: str, target: str | None, reference: str | None, as_json: bool) -> int:
    """Move the root OLD of an older format to NEW, a root of its own; or a log's directory in place."""
    settings = Settings.load()
    keyring = load_keyring(reference, settings)
    with asking_for_key(keyring), Working() as working:
        report = migrate_root(
            source, target, settings=settings, keyring=keyring,
            progress=lambda what, done, total: working.show(f"{what}: {done} of {total}"),
        )  # fmt: skip
    if as_json:
        emit_json(report)
    else:
        _show(report)
    flush()
    return FINE


def _show(report: MigrationReport) -> None:
    facts: list[tuple[str, object]] = [
        ("log", report.log),
        ("from", report.source),
        ("to", report.target),
        ("documents", report.documents),
        ("commit batches", report.batches),
        ("segments", f"{report.segments} segments, {report.bytes} bytes copied"),
    ]
    if report.resumed:
        facts.append(("there already", f"{report.resumed} objects"))
    if report.left_out:
        facts.append(("left out", f"{report.left_out} objects that are not this log's, or of no use any more"))
    if report.unproved:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.unproved.items()))
        facts.append(("not proved", f"{kinds}: the old format did not sign them"))
    emit_facts(facts)
