"""`holdfast restore`: bring a log back from its store into a new directory, and take it over.

Taking over shuts out the old owner, wherever it still runs, so this asks first; `--copy` leaves the store and its owner
alone. Everything is proved before any owner is fenced. The report says what could not be proved, and by which retention
policies this log will delete. After an interruption, the same command continues where it stopped.
"""

from __future__ import annotations

from pathlib import Path

import click

import holdfast
from holdfast import Settings
from holdfast.cli.exit_codes import FINE, REFUSED
from holdfast.cli.options import (
    asking_for_key,
    directory_argument,
    json_option,
    keyring_option,
    load_keyring,
    parsed_url,
)
from holdfast.cli.output import emit_facts, emit_json, flush, say
from holdfast.cli.progress import ProgressLine
from holdfast.quantity import counted, sized
from holdfast.recovery.restore_report import RestoredPolicy, RestoreReport

EPILOG = """\b
Examples:
  holdfast restore s3://bucket/prefix data
  holdfast restore file:///backup/log look --copy
Everything is there whose 'shipped' was acknowledged. What an old owner appended and did not ship is not:
it stays readable in its own directory.
Where something is missing that was acknowledged, nothing is taken over; --accept-loss goes on without it.
How the store is reached (endpoint, region, credentials) comes from the settings under [store]."""


@click.command("restore", epilog=EPILOG)
@click.argument("url", metavar="URL", callback=parsed_url)
@directory_argument
@click.option("--copy", is_flag=True, help="Only copy: the owner continues, and the copy never ships.")
@click.option("--log-id", default="", metavar="ID", help="Refuse any other log than this one.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Bring back what comes before a hole, although more was acknowledged; leave out damaged commit batches.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyring_option
@json_option
def restore_command(
    url: str,
    directory: Path,
    copy: bool,
    log_id: str,
    accept_loss: bool,
    yes: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Bring the log at the store URL back into DIR, which is new or empty, and take it over."""
    settings = Settings.load()
    keyring = load_keyring(reference, settings)
    _announce(url, directory, copy=copy)
    if not copy and not yes and not _confirmed():
        say("nothing was changed")
        return REFUSED
    with asking_for_key(keyring), ProgressLine() as working:
        report = holdfast.restore(
            url,
            directory,
            settings=settings,
            keyring=keyring,
            copy=copy,
            accept_loss=accept_loss,
            log_id=log_id,
            progress=lambda what, done, total: working.show(f"{what}: {done} of {total}"),
        )
    if as_json:
        emit_json(report)
    else:
        _show(report)
    flush()
    return FINE


def _announce(url: str, directory: Path, *, copy: bool) -> None:
    if copy:
        say(f"copying the log at {url} into {directory}; its owner continues, and the copy never ships")
        return
    say(f"restoring the log at {url} into {directory}")
    say("this takes the log over: its current owner is fenced and ships nothing more (--copy only copies)")


def _confirmed() -> bool:
    try:
        return click.confirm("Take it over?", err=True)
    except click.Abort:  # nobody is there to answer
        say("")
        say("hint: pass --yes to skip the confirmation")
        return False


def _show(report: RestoreReport) -> None:
    facts: list[tuple[str, object]] = [
        ("log", report.log),
        ("store", report.store),
        ("epoch", report.epoch or "none: a copy"),
        ("topics", report.topics),
        ("partitions", report.partitions),
        ("records", f"{report.records}, of them {report.tail_records} in the tail"),
        ("segments", f"{counted(report.segments, 'segment')}, {sized(report.bytes)}"),
    ]
    if report.resumed:
        facts.append(("here already", counted(report.resumed, "segment")))
    facts.append(("idempotency keys", report.keys))
    if report.cut_batches:
        others = "none was acknowledged" if not report.lost_commits else "they stay on the store"
        records = counted(report.cut_records, "record")
        facts.append(
            ("left out", f"{counted(report.cut_batches, 'commit batch')} after a hole with {records}; {others}")
        )
    if report.lost_commits:
        facts.append(("LOST", f"{report.lost_commits} commits that were acknowledged, up to {report.acknowledged_seq}"))
    facts += [
        ("LOST", f"{lost.topic}/{lost.partition}: {counted(lost.records, 'settled record')}, from offset {lost.first}")
        for lost in report.lost_settled
    ]
    facts += [("will be deleted", _policy(policy)) for policy in report.policies]
    facts += [
        ("expired", f"{gone.topic}/{gone.partition}: {counted(gone.records, 'record')} below offset {gone.first}")
        for gone in report.expiries
    ]
    facts += [("not restored", f"{topic}: a sink writes it; it stays on the store") for topic in report.sink_topics]
    facts += [("not proved", doubt) for doubt in report.not_proved]
    emit_facts(facts)


def _policy(policy: RestoredPolicy) -> str:
    """What a topic's own retention keeps, in words."""
    limits = [
        sized(policy.bytes_max) if policy.bytes_max else "",
        f"{policy.age_max_us / 1_000_000:g} seconds" if policy.age_max_us else "",
        counted(policy.records_max, "record") if policy.records_max else "",
    ]
    kept = ", ".join(filter(None, limits))
    return f"{policy.topic}: what is beyond {kept}" if kept else f"{policy.topic}: nothing"
