"""`holdfast execution list|show|timeline|start|resume|cancel|fork|rewind|settle|resolve|signal|prune`: from outside.

Looking opens the log for reading only, so the service that owns it can go on; what is shown is what is durable. Changes
own the log for a moment; where a service owns it, that does them. Payloads are printed only with --reveal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click
import msgspec

from holdfast import Log, Settings, disk
from holdfast.cli.action_group import Actions
from holdfast.cli.executions.changing import ask
from holdfast.cli.executions.execution_lines import (
    LIST_COLUMNS,
    STEP_COLUMNS,
    BroughtLine,
    ChangeLine,
    PruneLine,
    execution_line,
    facts,
    list_row,
    report,
    step_line,
    step_row,
)
from holdfast.cli.executions.waterfall import waterfall
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import completed, directory_argument, json_option, keyring_option, open_log
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush, say, say_problems
from holdfast.cli.text import printable_json
from holdfast.clock import SystemClock
from holdfast.errors import ExecutionError, Invalid, NotFound, printable
from holdfast.execution.journal.entries import STATUSES
from holdfast.execution.journal.execution_id import fresh_id, given_id
from holdfast.execution.work.calls import encode_call, encode_outcome
from holdfast.execution.work.work_queue import DEFAULT

EPILOG = """\b
Examples:
  holdfast execution list data --status failed
  holdfast execution timeline data 0192f3c4-7a51-7cc0-b1d2-3f0a9d6b1e55
  holdfast execution start data import --args '["orders.csv"]' --kwargs '{"dry_run": true}'
  holdfast execution fork data 0192f3c4-7a51-7cc0-b1d2-3f0a9d6b1e55 --before charge
  holdfast execution settle data 0192f3c4-7a51-7cc0-b1d2-3f0a9d6b1e55 charge --value '"paid"'
The beginning of an ID is enough. Payloads are printed only with --reveal."""

_WIDTH_MAX = 240
_TOKEN_BYTES_MAX = 4096

_PREFIX = re.compile(r"[0-9a-f-]{4,35}")
_LOOKED_THROUGH = 10_000
"""Of the newest executions, where only the beginning of an id is given."""

id_argument = click.argument(
    "execution", metavar="ID", shell_complete=completed(lambda log: [str(one.id) for one in log.executions.list()])
)
reveal_option = click.option(
    "--reveal", is_flag=True, help="Print payloads, too: arguments, results, errors. They may be secret."
)
repeat_option = click.option(
    "--repeat-guarded", is_flag=True, help="Continue although guarded effects after that step would happen again."
)


@click.group("execution", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def execution_command() -> None:
    """List the durable executions of a log, show one or its timeline, start, resume, cancel, fork, rewind, settle;
    settle a promise, send a signal.
    """


def _one_of(log: Log, given: str) -> str:
    """The id that is given, or of which the beginning is given."""
    try:
        return str(given_id(given))
    except Invalid:
        if not _PREFIX.fullmatch(given.lower()):
            raise
    found = [str(one.id) for one in log.executions.list(limit=_LOOKED_THROUGH)]
    found = [one for one in found if one.startswith(given.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(f"{len(found)} executions have ids that begin with {given!r}", hint="give more of it")
    raise NotFound(f"no execution has an id that begins with {given!r}", hint="holdfast execution list shows them")


def _chosen(directory: Path, reference: str | None, given: str) -> str:
    """The same for those who change it; the log is looked at only where not all of the id is given."""
    try:
        return str(given_id(given))
    except Invalid:
        with open_log(directory, reference, Settings.load(), read_only=True) as log:
            return _one_of(log, given)


# -- looking --------------------------------------------------------------------------------------------------


@contextmanager
def _looking(directory: Path, reference: str | None, *, as_json: bool) -> Iterator[Log]:
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        say_problems(log.problems, as_json=as_json)
        yield log
        flush()


@execution_command.command("list")
@directory_argument
@click.option("--status", multiple=True, type=click.Choice(STATUSES), help="Only these; may be given several times.")
@click.option("--kind", help="Only this kind.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many of the newest.")
@keyring_option
@json_option
def list_action(
    directory: Path, status: tuple[str, ...], kind: str | None, limit: int, reference: str | None, as_json: bool
) -> int:
    """List executions, the newest first."""
    with _looking(directory, reference, as_json=as_json) as log:
        found = log.executions.list(status=status or None, kind=kind, limit=limit)
        if as_json:
            for one in found:
                emit_json(execution_line(one))
        elif found:
            now = SystemClock().now_us()
            emit_table(LIST_COLUMNS, [list_row(one, now) for one in found])
        else:
            say("no executions")
        return DAMAGED if log.problems else FINE


@execution_command.command("show")
@directory_argument
@id_argument
@reveal_option
@keyring_option
@json_option
def show_action(directory: Path, execution: str, reveal: bool, reference: str | None, as_json: bool) -> int:
    """Show an execution: its steps, and what happened to it."""
    if reveal:
        say("warning: payloads follow; they may be secret")
    with _looking(directory, reference, as_json=as_json) as log:
        details = log.executions.show(_one_of(log, execution), reveal=reveal)
        shown = report(details)
        if as_json:
            emit_json(shown)
            return DAMAGED if log.problems else FINE
        emit_facts(facts(details))
        if details.steps:
            emit("")
            emit_table(STEP_COLUMNS, [step_row(step) for step in details.steps])
        emit("")
        for event in shown.events:
            emit(f"{event.at}  {event.event}  {event.detail}".rstrip())
        if reveal:
            _emit_payloads(shown.input, shown.result, [(step.path, step.value) for step in shown.steps])
        return DAMAGED if log.problems else FINE


def _emit_payloads(called_with: Any, result: Any, steps: list[tuple[str, Any]]) -> None:
    emit("")
    for name, value in [("input", called_with), *steps, ("result", result)]:
        if value is not msgspec.UNSET:
            emit(f"{printable(name)} = {printable_json(msgspec.json.encode(value)).decode()}")


@execution_command.command("timeline")
@directory_argument
@id_argument
@click.option("--width", type=click.IntRange(min=40), help="Columns.  [default: the terminal's]")
@click.option("--limit", type=click.IntRange(min=1), default=500, show_default=True, help="How many of the last steps.")
@keyring_option
@json_option
def timeline_action(
    directory: Path, execution: str, width: int | None, limit: int, reference: str | None, as_json: bool
) -> int:
    """Draw an execution's steps one below the other, each where it happened."""
    with _looking(directory, reference, as_json=as_json) as log:
        details = log.executions.show(_one_of(log, execution))
        if as_json:
            for step in details.steps[-limit:]:
                emit_json(step_line(step))
            return DAMAGED if log.problems else FINE
        left = len(details.steps) - limit
        details = msgspec.structs.replace(details, steps=details.steps[-limit:])
        now = details.summary.ended_us or SystemClock().now_us()
        emit(f"{details.summary.kind}  {details.summary.id}  {details.summary.status}")
        for line in waterfall(details, min(width or get_terminal_size().columns, _WIDTH_MAX), now):
            emit(line)
        if left > 0:
            say(f"{left} earlier steps are left out: see --limit")
        return DAMAGED if log.problems else FINE


# -- changing -------------------------------------------------------------------------------------------------


def _value(_ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    """An option that is JSON."""
    if text is None:
        return msgspec.UNSET
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # the text may be secret
        raise click.BadParameter("this is not JSON; text needs quotes: '\"paid\"'") from None


def _moment(_ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("this is no ISO 8601 time: 2026-12-01T03:00:00Z") from None
    if moment.tzinfo is None:
        raise click.BadParameter("it needs a time zone: 2026-12-01T03:00:00Z")
    return int(moment.timestamp() * 1_000_000)


def _change(directory: Path, reference: str | None, action: str, shown: str, as_json: bool, **fields: Any) -> int:
    """Ask for a change, and say what came of it."""
    status = str(ask(directory, reference, Settings.load(), action, fields))
    if as_json:
        emit_json(ChangeLine(shown, action, status))
    else:
        emit(f"{shown}  {status}")
    flush()
    return FINE


@execution_command.command("start")
@directory_argument
@click.argument("kind")
@click.option("--args", "given", metavar="JSON", callback=_value, help="Arguments by place: a JSON list.")
@click.option("--kwargs", "named", metavar="JSON", callback=_value, help="Arguments by name: a JSON object.")
@click.option("--id", "execution", metavar="ID", help="Its id: asking twice is asking once.  [default: a new one]")
@click.option("--queue", default=DEFAULT, show_default=True, help="Where it waits for a worker.")
@click.option("--priority", type=int, default=0, show_default=True, help="The highest goes first.")
@click.option(
    "--not-before", metavar="TIME", callback=_moment, help="When it may run first: ISO 8601 with a time zone."
)
@keyring_option
@json_option
@click.pass_context
def start_action(
    ctx: click.Context,
    directory: Path,
    kind: str,
    given: Any,
    named: Any,
    execution: str | None,
    queue: str,
    priority: int,
    not_before: int | None,
    reference: str | None,
    as_json: bool,
) -> int:
    """Queue an execution of this KIND for a worker."""
    args, kwargs = ([] if given is msgspec.UNSET else given), ({} if named is msgspec.UNSET else named)
    if not isinstance(args, list):
        raise click.UsageError("--args is a JSON list: '[1, \"two\"]'", ctx)
    if not isinstance(kwargs, dict):
        raise click.UsageError("--kwargs is a JSON object: '{\"name\": 1}'", ctx)
    chosen = str(fresh_id(SystemClock()) if execution is None else given_id(execution))
    body = encode_call(args, kwargs, Settings.load().executions.payload_bytes_max)
    return _change(
        directory,
        reference,
        "start",
        chosen,
        as_json,
        id=chosen,
        kind=kind,
        input=body,
        queue=queue,
        priority=priority,
        due_us=not_before or 0,
    )


@execution_command.command("resume")
@directory_argument
@id_argument
@click.option("--queue", default=DEFAULT, show_default=True, help="Where it waits for a worker, if it had no queue.")
@keyring_option
@json_option
def resume_action(directory: Path, execution: str, queue: str, reference: str | None, as_json: bool) -> int:
    """Let a worker go on with an execution that failed, was aborted, or was left by its program."""
    chosen = _chosen(directory, reference, execution)
    return _change(directory, reference, "resume", chosen, as_json, id=chosen, queue=queue)


@execution_command.command("cancel")
@directory_argument
@id_argument
@click.option("--reason", default="canceled by hand", show_default=True, help="Kept with it. No secrets.")
@keyring_option
@json_option
def cancel_action(directory: Path, execution: str, reason: str, reference: str | None, as_json: bool) -> int:
    """End an execution as canceled, for good; one that has ended keeps its end."""
    chosen = _chosen(directory, reference, execution)
    return _change(directory, reference, "cancel", chosen, as_json, id=chosen, reason=reason)


@execution_command.command("fork")
@directory_argument
@id_argument
@click.option("--before", metavar="PATH", help="Keep what was recorded before this step.  [default: all of it]")
@click.option("--id", "fork", metavar="ID", help="The new execution's id.  [default: a new one]")
@repeat_option
@keyring_option
@json_option
def fork_action(
    directory: Path,
    execution: str,
    before: str | None,
    fork: str | None,
    repeat_guarded: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Make a new execution that begins with what this one recorded before a step."""
    made = str(fresh_id(SystemClock()) if fork is None else given_id(fork))
    return _change(
        directory,
        reference,
        "fork",
        made,
        as_json,
        id=_chosen(directory, reference, execution),
        before=before,
        fork=made,
        repeat_guarded=repeat_guarded,
    )


@execution_command.command("rewind")
@directory_argument
@id_argument
@click.option("--before", metavar="PATH", required=True, help="Forget what was recorded from this step on.")
@repeat_option
@keyring_option
@json_option
def rewind_action(
    directory: Path, execution: str, before: str, repeat_guarded: bool, reference: str | None, as_json: bool
) -> int:
    """Forget what an execution recorded from a step on, and queue it again."""
    chosen = _chosen(directory, reference, execution)
    return _change(
        directory, reference, "rewind", chosen, as_json, id=chosen, before=before, repeat_guarded=repeat_guarded
    )


@execution_command.command("settle")
@directory_argument
@id_argument
@click.argument("path")
@click.option("--value", metavar="JSON", callback=_value, help="What the step gave.")
@click.option("--error", metavar="TEXT", help="What it failed with.")
@keyring_option
@json_option
@click.pass_context
def settle_action(
    ctx: click.Context,
    directory: Path,
    execution: str,
    path: str,
    value: Any,
    error: str | None,
    reference: str | None,
    as_json: bool,
) -> int:
    """Record what became of a guarded effect at PATH that was begun, and whose outcome was unknown."""
    if (value is msgspec.UNSET) == (error is None):
        raise click.UsageError("say what became of it: --value JSON or --error TEXT", ctx)
    chosen = _chosen(directory, reference, execution)
    payload = encode_outcome(value if error is None else ExecutionError(error), is_error=error is not None)
    return _change(
        directory,
        reference,
        "settle",
        chosen,
        as_json,
        id=chosen,
        path=path,
        payload=payload,
        is_error=error is not None,
    )


@execution_command.command("prune")
@directory_argument
@click.option("--dry-run", is_flag=True, help="Only say how many would go.")
@keyring_option
@json_option
def prune_action(directory: Path, dry_run: bool, reference: str | None, as_json: bool) -> int:
    """Remove executions that ended long enough ago, as the settings say; a log does so by itself now and then."""
    with _looking(directory, reference, as_json=as_json) as log:
        count = log.executions.prune(dry_run=True)
    if not dry_run:  # to own a log is to prune it: this waits until it is done, and may find nothing left to do
        count = max(count, int(ask(directory, reference, Settings.load(), "prune", {})))
    if as_json:
        emit_json(PruneLine(count, dry_run))
    else:
        emit(f"{count} {'would go' if dry_run else 'removed'}")
    flush()
    return FINE


# -- from outside ---------------------------------------------------------------------------------------------


def _token(_ctx: click.Context, _option: click.Parameter, given: str) -> str:
    """A promise's token: by reference, because arguments are seen by everybody on the machine."""
    kind, _, where = given.partition(":")
    try:
        if given == "-":
            return sys.stdin.readline().strip()
        if kind == "env":
            return os.environ[where].strip()
        if kind == "file":
            return disk.read_file(Path(where), _TOKEN_BYTES_MAX).decode("ascii").strip()
    except KeyError:
        raise click.BadParameter(f"there is no environment variable {where!r}") from None
    except (OSError, UnicodeDecodeError, disk.NotRegular, disk.TooLong):
        raise click.BadParameter("the token's file cannot be read") from None
    raise click.BadParameter("give env:NAME, file:PATH, or - for stdin, never the token itself")


def _brought(directory: Path, reference: str | None, action: str, as_json: bool, fields: dict[str, Any]) -> int:
    """Bring something to an execution, and say whether that was news."""
    is_new = bool(ask(directory, reference, Settings.load(), action, fields))
    if as_json:
        emit_json(BroughtLine(action, is_new))
    else:
        emit("done" if is_new else "it was done before")
    flush()
    return FINE


@execution_command.command("resolve")
@directory_argument
@click.option(
    "--token",
    metavar="REF",
    required=True,
    callback=_token,
    help="Where the promise's token is: env:NAME, file:PATH, or - for stdin.",
)
@click.option("--value", metavar="JSON", callback=_value, help="What it is settled with.  [default: null]")
@click.option("--reject", "reason", metavar="TEXT", help="Settle it without a value, for this reason.")
@keyring_option
@json_option
@click.pass_context
def resolve_action(
    ctx: click.Context,
    directory: Path,
    token: str,
    value: Any,
    reason: str | None,
    reference: str | None,
    as_json: bool,
) -> int:
    """Settle a promise that an execution waits for; the first one counts."""
    if value is not msgspec.UNSET and reason is not None:
        raise click.UsageError("a promise is settled with --value or with --reject", ctx)
    given = None if value is msgspec.UNSET else value
    payload = msgspec.msgpack.encode(given if reason is None else reason)
    fields = {"token": token, "payload": payload, "is_error": reason is not None}
    return _brought(directory, reference, "settle_promise", as_json, fields)


@execution_command.command("signal")
@directory_argument
@id_argument
@click.argument("name")
@click.option("--value", metavar="JSON", callback=_value, help="What comes with it.  [default: null]")
@click.option("--id", "signal", metavar="ID", help="Its own id: sending twice is sending once.  [default: a new one]")
@keyring_option
@json_option
def signal_action(
    directory: Path, execution: str, name: str, value: Any, signal: str | None, reference: str | None, as_json: bool
) -> int:
    """Send a signal to an execution, which takes it by its NAME, now or later."""
    payload = msgspec.msgpack.encode(None if value is msgspec.UNSET else value)
    own = str(fresh_id(SystemClock()) if signal is None else given_id(signal))
    fields = {"id": _chosen(directory, reference, execution), "name": name, "payload": payload, "signal": own}
    return _brought(directory, reference, "signal", as_json, fields)
