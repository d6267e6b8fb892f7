"""`holdfast channel list|show|history`: the reliable channels that are kept in a log, seen from outside.

The log is opened for reading only, so the service that owns it can go on. What is shown is what is kept: the owner may
be ahead of it by what is under way, and by more while its disk refuses writes. All of a channel is proved before any of
it is shown. A damaged channel is reported, the others are listed, and the exit code is 3.

`list` and `show` print ids, sizes and times; only `history` prints contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from holdfast import Log, Settings
from holdfast.channels.keeping.snapshot import (
    BufferedMessage,
    ChannelData,
    RepairRequest,
    RepairResponse,
    UnacknowledgedMessage,
)
from holdfast.channels.wire.message import HistoryEntry
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say, say_holdfast_error, say_problems
from holdfast.cli.text import shown
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound, printable
from holdfast.model.record_json import Encoding, encoded, iso

LIST, SHOW, HISTORY = "list", "show", "history"

EPILOG = """\b
Examples:
  holdfast channel list data
  holdfast channel show data room
  holdfast channel history data room --participant alice --limit 20 --json
What is shown is what is kept; the process that owns the log may be ahead of it."""


class ChannelLine(msgspec.Struct, frozen=True):
    """A channel in the list."""

    participant: str
    """Whose it is."""
    channel: str
    """Its id."""
    dialect: str | None
    """Its wire format: `nim`, `rfc`, or `null` where nothing says."""
    history: int
    """Messages that it remembers."""
    unacknowledged: int
    """Own messages that nobody is known to have."""
    waiting: int
    """Messages that wait for others."""
    missing: int
    """Messages that are waited for and are not here."""
    lamport: int
    """Its Lamport time: seconds (`nim`) or milliseconds (`rfc`) since 1970, or ahead of that."""
    sealed: bool
    """Whether its messages travel under a key."""


class OutgoingLine(msgspec.Struct, frozen=True):
    """A message of the participant's own that nobody has acknowledged."""

    message_id: str
    lamport: int | None
    bytes: int
    """Size of its content."""
    sent: str | None
    """When, the last time."""
    age_seconds: float
    """Since then."""
    attempts: int
    """How often it was sent again."""
    possible_acks: int
    """Filters that knew it; `rfc` needs two."""


class WaitingLine(msgspec.Struct, frozen=True):
    """A message that waits for others."""

    message_id: str
    sender_id: str
    lamport: int | None
    bytes: int
    """Size of its content."""
    received: str | None
    """When; null where that was not kept."""
    age_seconds: float | None
    """Since then."""
    missing: list[str]
    """The ids that it waits for."""


class MissingLine(msgspec.Struct, frozen=True):
    """A message that others wait for, and that is missing here."""

    message_id: str
    sender_id: str
    """Empty where that is unknown."""
    retrieval_hint: str
    """From the one who named it; base64 if `retrieval_hint_encoding` says so."""
    waiting: int
    """How many wait for it."""
    due_seconds: float | None
    """Until we ask for it; null if we shall not."""
    retrieval_hint_encoding: Encoding = msgspec.UNSET


class RepairLine(msgspec.Struct, frozen=True):
    """A request that is to be sent, or an answer to another participant's."""

    message_id: str
    sender_id: str
    due: str | None
    """When."""
    due_seconds: float
    """From now; negative: it goes with the next message."""


class ChannelReport(msgspec.Struct, frozen=True):
    """Everything that is kept of a channel, except its history."""

    participant: str
    """Whose it is."""
    channel: str
    """Its id."""
    dialect: str | None
    """Its wire format: `nim`, `rfc`, or `null` where nothing says."""
    lamport: int
    """Its Lamport time: seconds (`nim`) or milliseconds (`rfc`) since 1970, or ahead of that."""
    history: int
    """Messages that it remembers."""
    unacknowledged: list[OutgoingLine]
    """Own messages that nobody is known to have."""
    waiting: list[WaitingLine]
    """Messages that wait for others."""
    missing: list[MissingLine]
    """What is waited for and does not wait here itself."""
    requests: list[RepairLine]
    """What will be requested."""
    responses: list[RepairLine]
    """What will be sent for others."""
    met: list[str]
    """Ids that count as delivered although they were not: marked so, or lost."""
    sealed: bool
    """Whether its messages travel under a key."""


class MessageLine(msgspec.Struct, frozen=True):
    """A message of history; `…_encoding` is there only where the value is base64."""

    message_id: str
    sender_id: str
    lamport: int | None
    """Its Lamport time."""
    bytes: int
    """Size of its content."""
    causes: list[str]
    """Ids that it names as its causes, oldest first."""
    content: str
    """Base64 if `content_encoding` says so."""
    content_encoding: Encoding = msgspec.UNSET


@click.command("channel", epilog=EPILOG)
@click.argument("action", type=click.Choice([LIST, SHOW, HISTORY]))
@directory_argument
@click.argument("channel", metavar="[CHANNEL]", required=False)
@click.option("--participant", help="Whose channel; may be left out where only one participant has it.")
@click.option("--limit", type=click.IntRange(min=1), help="Of history: how many of the newest messages.")
@keyring_option
@json_option
@click.pass_context
def channel_command(
    ctx: click.Context,
    action: str,
    directory: Path,
    channel: str | None,
    participant: str | None,
    limit: int | None,
    reference: str | None,
    as_json: bool,
) -> int:
    """List the reliable channels that are kept in the log in DIR, show one, or print its history."""
    _check_usage(ctx, action, channel, limit)
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        say_problems(log.problems, as_json=as_json)
        if channel is None:
            whole = _list(log, participant, as_json=as_json)
        else:
            whole = _one(log, action, directory, channel, participant, limit, as_json=as_json)
        flush()
        return FINE if whole and not log.problems else DAMAGED


def _check_usage(ctx: click.Context, action: str, channel: str | None, limit: int | None) -> None:
    if action == LIST and channel is not None:
        raise click.UsageError("list shows all channels: leave CHANNEL out", ctx)
    if action != LIST and channel is None:
        raise click.UsageError(f"{action} needs a CHANNEL; 'holdfast channel list DIR' names them", ctx)
    if limit is not None and action != HISTORY:
        raise click.UsageError("--limit goes with history", ctx)


def _one(
    log: Log, action: str, directory: Path, channel: str, participant: str | None, limit: int | None, *, as_json: bool
) -> bool:
    """Show a channel; False where it is not found and the log is damaged, which may be why."""
    try:
        owner = _owner(log, directory, channel, participant)
    except NotFound as error:
        if not log.problems:
            raise
        say_holdfast_error(error, as_json=as_json)
        return False
    data = log.kept_channel(owner, channel)
    if action == SHOW:
        _show(_report(owner, channel, data, SystemClock().now_us() // 1000), as_json=as_json)
    else:
        _history(data, limit, as_json=as_json)
    return True


def _owner(log: Log, directory: Path, channel: str, participant: str | None) -> str:
    """The participant whose channel it is; there must be exactly one."""
    owners = [owner for owner, kept in log.kept_channels() if kept == channel]
    chosen = [owner for owner in owners if participant in (None, owner)]
    if not chosen:
        whose = "" if participant is None else f" participant={participant!r}"
        raise NotFound(
            f"no such channel is kept here channel={channel!r}{whose}", hint=f"see 'holdfast channel list {directory}'"
        )
    if len(chosen) > 1:
        raise Invalid(
            f"{len(chosen)} participants have this channel channel={channel!r}",
            hint=f"say whose with --participant: {', '.join(chosen)}",
        )
    return chosen[0]


# -- all of them ----------------------------------------------------------------------------------------------


def _list(log: Log, participant: str | None, *, as_json: bool) -> bool:
    """List what is intact, and report what is not; returns whether everything is."""
    found: list[ChannelLine] = []
    problems: list[Corrupt] = []
    for owner, channel in log.kept_channels():
        if participant in (None, owner):
            try:
                found.append(_line(owner, channel, log.kept_channel(owner, channel)))
            except Corrupt as damage:
                problems.append(
                    Corrupt(f"{damage.message} participant={owner!r} channel={channel!r}", hint=damage.hint)
                )
    if as_json:
        for line in found:
            emit_json(line)
    elif found:
        rows = [msgspec.structs.astuple(line) for line in found]
        emit_table(ChannelLine.__struct_fields__, rows)
    elif not problems:
        say("no channels")
    say_problems(problems, as_json=as_json)
    return not problems


def _line(owner: str, channel: str, data: ChannelData) -> ChannelLine:
    meta = data.meta
    return ChannelLine(
        participant=_id(owner),
        channel=_id(channel),
        dialect=meta.dialect or None,
        history=len(data.history),
        unacknowledged=len(meta.outgoing),
        waiting=len(meta.incoming),
        missing=len(_missing(meta.incoming)),
        lamport=meta.lamport,
        sealed=meta.encrypted,
    )


def _missing(incoming: Iterable[BufferedMessage]) -> dict[str, tuple[HistoryEntry, int]]:
    """What is waited for and is not here, not even waiting itself: its name, and how many wait for it."""
    buffered = {entry.message.message_id: entry for entry in incoming}
    found: dict[str, tuple[HistoryEntry, int]] = {}
    for entry in buffered.values():
        named = {cause.message_id: cause for cause in entry.message.causal_history}
        for message_id in entry.missing:
            if message_id not in buffered:
                known, count = found.get(message_id, (named.get(message_id, HistoryEntry(message_id)), 0))
                found[message_id] = known, count + 1
    return found


# -- one of them ----------------------------------------------------------------------------------------------


def _report(owner: str, channel: str, data: ChannelData, now: int) -> ChannelReport:
    meta = data.meta
    due = {request.entry.message_id: request.due_ms for request in meta.requests}
    return ChannelReport(
        participant=_id(owner),
        channel=_id(channel),
        dialect=meta.dialect or None,
        lamport=meta.lamport,
        history=len(data.history),
        unacknowledged=[_outgoing(entry, now) for entry in meta.outgoing],
        waiting=[_waiting(entry, now) for entry in meta.incoming],
        missing=[_missing_line(entry, count, due, now) for entry, count in _missing(meta.incoming).values()],
        requests=[_repair(request, now) for request in meta.requests],
        responses=[_repair(response, now) for response in meta.responses],
        met=[_id(message_id) for message_id in meta.met],
        sealed=meta.encrypted,
    )


def _outgoing(entry: UnacknowledgedMessage, now: int) -> OutgoingLine:
    message = entry.message
    return OutgoingLine(
        _id(message.message_id),
        message.lamport,
        len(message.content),
        iso(entry.sent_ms * 1000),
        _seconds(now - entry.sent_ms),
        entry.attempts,
        entry.possible_acks,
    )


def _waiting(entry: BufferedMessage, now: int) -> WaitingLine:
    """A snapshot of another implementation does not say since when a message waits."""
    message, since = entry.message, entry.received_ms
    return WaitingLine(
        _id(message.message_id),
        _id(message.sender_id),
        message.lamport,
        len(message.content),
        iso(since * 1000) if since else None,
        _seconds(now - since) if since else None,
        [*map(_id, entry.missing)],
    )


def _missing_line(entry: HistoryEntry, count: int, due: Mapping[str, int], now: int) -> MissingLine:
    hint, encoding = encoded(entry.retrieval_hint)
    asked = due.get(entry.message_id)
    return MissingLine(
        _id(entry.message_id),
        _id(entry.sender_id),
        hint,
        count,
        None if asked is None else _seconds(asked - now),
        encoding,
    )


def _repair(repair: RepairRequest | RepairResponse, now: int) -> RepairLine:
    entry = repair.entry
    return RepairLine(
        _id(entry.message_id), _id(entry.sender_id), iso(repair.due_ms * 1000), _seconds(repair.due_ms - now)
    )


def _show(report: ChannelReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report)
        return
    emit_facts(
        [
            ("participant", report.participant),
            ("channel", report.channel),
            ("dialect", report.dialect),
            ("key", "every message is encrypted" if report.sealed else "none"),
            ("lamport", report.lamport),
            ("history", f"{report.history} messages"),
            ("marked as met", f"{len(report.met)} ids"),
        ]
    )
    _table("not acknowledged", report.unacknowledged)
    _table("waiting for others", report.waiting)
    _table("missing", report.missing)
    _table("to be asked for", report.requests)
    _table("to be sent for others", report.responses)


def _table(title: str, lines: Sequence[msgspec.Struct]) -> None:
    """One part of the report; an empty one is left out."""
    if not lines:
        return
    emit("")
    emit(f"{title}: {len(lines)}")
    names = [name for name in lines[0].__struct_fields__ if not name.endswith("_encoding")]
    emit_table(names, [[_cell(getattr(line, name)) for name in names] for line in lines])


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:.1f}" if isinstance(value, float) else value


def _history(data: ChannelData, limit: int | None, *, as_json: bool) -> None:
    for message in data.history[-limit:] if limit is not None else data.history:
        if as_json:
            content, encoding = encoded(message.content)
            causes = [_id(cause.message_id) for cause in message.causal_history]
            emit_json(
                MessageLine(
                    _id(message.message_id),
                    _id(message.sender_id),
                    message.lamport,
                    len(message.content),
                    causes,
                    content,
                    encoding,
                )
            )
        else:
            ids = f"{_shown(message.message_id)}  {_shown(message.sender_id)}"
            emit(f"{message.lamport or 0:>14}  {ids}  {len(message.content):>7}  {shown(message.content)}")


# -- pieces ---------------------------------------------------------------------------------------------------


def _id(value: str) -> str:
    """An id for JSON; bytes that are not UTF-8 become escapes."""
    return value.encode("utf-8", "backslashreplace").decode()


def _shown(value: str) -> str:
    return printable(value) or "-"


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000
