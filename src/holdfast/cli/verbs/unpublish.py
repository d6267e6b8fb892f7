"""`holdfast unpublish`: removes the tables that topics were published as. No record is touched."""

from __future__ import annotations

import click

from holdfast import Settings
from holdfast.cli.exit_codes import FINE
from holdfast.cli.options import json_option
from holdfast.cli.output import emit_json, emit_table, flush, say
from holdfast.cli.progress import Working
from holdfast.log.table_verbs import unpublish_tables

EPILOG = """\b
Example:
  holdfast unpublish s3://bucket/prefix orders
An owner with publish.delta = true publishes the topic again; unset it first.
A table that was published again begins at version 0: whoever follows it must begin anew."""


@click.command("unpublish", epilog=EPILOG)
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
    with Working() as working:
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
