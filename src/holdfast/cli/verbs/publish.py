"""`holdfast publish` and `holdfast unpublish`: topics as tables that other engines read in place.

Writes the table's own log beside the segments, and no data. Can be run at any time, also while a log ships to the root.
Exit code 1 where a topic that was named cannot be published, or where another writer has written to a table.
"""

from __future__ import annotations

import click

from holdfast import Settings
from holdfast.cli.exit_codes import DAMAGED, FINE, REFUSED
from holdfast.cli.options import json_option
from holdfast.cli.output import emit_json, emit_table, flush, say
from holdfast.cli.progress import ProgressLine
from holdfast.log.upkeep.table_verbs import publish_tables, unpublish_tables
from holdfast.publish.publication_report import PublicationReport

EPILOG = """\b
Examples:
  holdfast publish s3://bucket/prefix
  holdfast publish data orders payments --as delta --dry-run
The owner of the log does it by itself with publish.delta = true in its settings.
How stores are reached (endpoint, region, credentials) comes from the settings under [store]."""


@click.command("publish", epilog=EPILOG)
@click.argument("root", metavar="ROOT")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--as", "as_format", metavar="FORMAT", default="delta", show_default=True, help="The table format: delta."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be published.")
@json_option
def publish_command(root: str, topics: tuple[str, ...], as_format: str, dry_run: bool, as_json: bool) -> int:
    """Publish topics at ROOT (a store's URL, or a log's directory) as tables; all of them, unless some are named."""
    settings = Settings.load()
    with ProgressLine() as working:
        reports = publish_tables(
            root,
            topics,
            as_format=as_format,
            dry_run=dry_run,
            settings=settings,
            progress=lambda name, done, total: working.show(f"{name}: {done} of {total} topics"),
        )
    if as_json:
        for report in reports:
            emit_json(report)
    else:
        _show(reports, dry_run=dry_run)
    flush()
    return _code(reports, is_named=bool(topics))


def _show(reports: list[PublicationReport], *, dry_run: bool) -> None:
    if not reports:
        say("no topics")
        return
    words = {"published": "would be published"} if dry_run else {}
    emit_table(
        ("topic", "state", "version", "files", "rows", "added", "removed", "table"),
        [
            (
                one.topic,
                words.get(one.state, one.state),
                one.version,
                one.files,
                one.rows,
                one.added,
                one.removed,
                one.table,
            )
            for one in reports
        ],
    )
    for one in reports:
        if one.reason:
            say(f"{one.topic}: {one.reason}")
            say(f"hint: {one.hint}")


def _code(reports: list[PublicationReport], *, is_named: bool) -> int:
    states = {one.state for one in reports}
    if "damaged" in states:
        return DAMAGED
    return REFUSED if "foreign" in states or (is_named and "refused" in states) else FINE


UNPUBLISH_EPILOG = """\b
Example:
  holdfast unpublish s3://bucket/prefix orders
An owner with publish.delta = true publishes the topic again; unset it first.
A table that was published again begins at version 0: streams that follow it must start over."""


@click.command("unpublish", epilog=UNPUBLISH_EPILOG)
@click.argument("root", metavar="ROOT")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--as", "as_format", metavar="FORMAT", default="delta", show_default=True, help="The table format: delta."
)
@click.option("--force", is_flag=True, help="Also a table that holdfast did not make.")
@json_option
def unpublish_command(root: str, topics: tuple[str, ...], as_format: str, force: bool, as_json: bool) -> int:
    """Remove the tables of topics at ROOT, and no data; of all topics, unless some are named."""
    settings = Settings.load()
    with ProgressLine() as working:
        working.show("removing")
        removed = unpublish_tables(root, topics, as_format=as_format, force=force, settings=settings)
    if as_json:
        for topic, objects in removed.items():
            emit_json({"topic": topic, "objects": objects})
    elif removed:
        emit_table(("topic", "objects removed"), list(removed.items()))
    else:
        say("no published tables")
    flush()
    return FINE
