"""`holdfast restore`: bring a log back from its store into a new directory, and take it over.

Taking over shuts the old owner out, wherever it still runs, so this asks first; `--copy` leaves the store and its owner
alone. What is fetched is proved by hash and chain. Interrupted, the same command goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path

import click

import holdfast
from holdfast import RestoreReport, Settings
from holdfast.cli.exits import FINE, REFUSED
from holdfast.cli.options import (
    NEEDS_KEY,
    directory_argument,
    json_option,
    keyring_option,
    load_keyring,
    parsed_url,
)
from holdfast.cli.output import emit_facts, emit_json, flush, say
from holdfast.cli.progress import Working
from holdfast.errors import Invalid

EPILOG = """\b
Examples:
  holdfast restore s3://bucket/prefix data
  holdfast restore file:///backup/log look --copy
Everything is there whose 'shipped' was acknowledged. What an old owner appended and did not ship is not:
it stays readable in its own directory.
How the store is reached (endpoint, region, credentials) comes from the settings under [store]."""


@click.command("restore", epilog=EPILOG)
@click.argument("url", metavar="URL", callback=parsed_url)
@directory_argument
@click.option("--copy", is_flag=True, help="Only copy: the owner goes on, and the copy never ships.")
@click.option("--log-id", default="", metavar="ID", help="Refuse any other log than this one.")
@click.option("--allow-unsigned", is_flag=True, help="Take an encrypted log from a root that nobody signed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyring_option
@json_option
def restore_command(
    url: str, directory: Path, copy: bool, log_id: str, allow_unsigned: bool, yes: bool, reference: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Bring the log at the store URL back into DIR, which is new or empty, and take it over."""
    settings = Settings.load()
    keyring = load_keyring(reference, settings)
    _announce(url, directory, copy=copy)
    if not copy and not yes and not _confirmed():
        say("nothing was changed")
        return REFUSED
    try:
        with Working() as working:
            report = holdfast.restore(
                url, directory, settings=settings, keyring=keyring, copy=copy, log_id=log_id,
                allow_unsigned=allow_unsigned,
                progress=lambda what, done, total: working.show(f"{what}: {done} of {total}"),
            )  # fmt: skip
    except Invalid as error:
        if keyring is None and "keyring" in error.hint:
            raise Invalid(error.message, hint=NEEDS_KEY) from error
        raise
    if as_json:
        emit_json(report)
    else:
        _show(report)
    flush()
    return FINE


def _announce(url: str, directory: Path, *, copy: bool) -> None:
    if copy:
        say(f"copying the log at {url} into {directory}; its owner goes on, and the copy never ships")
        return
    say(f"restoring the log at {url} into {directory}")
    say("this takes the log over: whoever owns it now is shut out and ships nothing more (--copy only copies)")


def _confirmed() -> bool:
    try:
        return click.confirm("Take it over?", err=True)
    except click.Abort:  # nobody is there to answer
        say("")
        say("hint: give --yes to go on without being asked")
        return False


def _show(report: RestoreReport) -> None:
    facts: list[tuple[str, object]] = [
        ("log", report.log),
        ("store", report.store),
        ("epoch", report.epoch or "none: a copy"),
        ("topics", report.topics),
        ("partitions", report.partitions),
        ("records", f"{report.records}, of them {report.tail_records} in the tail"),
        ("segments", f"{report.segments} segments, {report.bytes} bytes"),
    ]
    if report.resumed:
        facts.append(("here already", f"{report.resumed} segments"))
    if report.expired:
        facts.append(("expired", f"{report.expired} segments"))
    if report.cut_batches:
        facts.append(("left out", f"{report.cut_batches} commit batches behind a hole; none was acknowledged"))
    emit_facts(facts)
