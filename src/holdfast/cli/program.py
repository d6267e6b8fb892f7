"""The program: its verbs, its errors, its exit codes.

    0  fine        1  refused or not found        2  wrong usage        3  damage was found        130  interrupted

A verb is a file of this package with a command of the same name, imported when it is used; it returns its exit code.
Everything that holdfast raises becomes `error:` and `hint:` on stderr, without a traceback unless HOLDFAST_DEBUG=1.
Whatever else is raised is a defect and is named by its type alone: its text might hold a payload.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import click

import holdfast
from holdfast import disk
from holdfast.cli.exit_codes import DAMAGED, FINE, INTERRUPTED, REFUSED, USAGE
from holdfast.cli.output import Warnings, say_error, say_holdfast_error, say_lines, silence_stdout
from holdfast.errors import Corrupt, HoldfastError
from holdfast.suggestions import meant

VERBS = {
    "append": "Append PAYLOAD, or stdin, to TOPIC of the log in DIR, and print receipts.",
    "read": "Print records of TOPIC of the log in DIR, also while another process owns it, or of the store at URL.",
    "tail": "Print the last records of TOPIC of the log in DIR, also while another process owns it.",
    "topics": "List the topics of the log in DIR, or of the store at URL: kind, records, marks, segments, schemas.",
    "status": (
        "Show owner, size, topics and marks of the log in DIR, and damage (exit code 3); or what the store at URL has."
    ),
    "metrics": "Print the metrics of the log in DIR for Prometheus, without touching it.",
    "seal": "Seal what is durable in TOPIC, or in all topics, of the log in DIR into segments.",
    "ship": "Ship what is durable in the log in DIR to its store, and wait until it is there.",
    "retain": "Remove old segments of the log in DIR, or of sinks' topics at URL, as policies and settings say.",
    "reconcile": "Compare the manifest of the log in DIR with its files; exit code 3 when something is wrong.",
    "rebuild": "Rebuild the database of the log in DIR from its segments, and say exactly what was lost.",
    "restore": "Bring the log at the store URL back into DIR, which is new or empty, and take it over.",
    "compact": "Join small segments of ROOT (a store's URL or directory, or a log without a store) into large files.",
    "publish": (
        "Publish topics at ROOT (a store's URL, or a log's directory) as tables; all of them, unless some are named."
    ),
    "unpublish": "Remove the tables of topics at ROOT, and no data; of all topics, unless some are named.",
    "inspect": "Print what is in a log and whether it is intact; PATH is its directory or its durable.db.",
    "keys": "Make a keyring FILE, put a new key in front of it, or list the names of its keys, never the keys.",
    "consumer": "Show the consumers of the log in DIR and how far they lag behind, or move one.",
    "producer": "Show the producers of the log in DIR and their last sequence numbers, or forget one.",
    "channel": "List the reliable channels that are kept in the log in DIR, show one, or print its history.",
    "execution": (
        "List the durable executions of a log, show one or its timeline, start, resume, cancel, fork, "
        "rewind, settle; settle a promise, send a signal."
    ),
    "spark": (
        "Read what is settled at a root (a store's URL or a directory) through Spark, compact it there, or "
        "run a pipeline of tables."
    ),
    "serve": "Serve the log in DIR over HTTP.",
    "token": "Make, list and revoke the tokens of 'holdfast serve'.",
    "config": "Show the settings in force, where each comes from, and what shipping with them costs.",
}
"""Each with what its help begins with: listing them imports none of them."""

_TOGETHER = {"unpublish": "publish"}
"""Verbs that stand in the file of another one."""


class Program(click.Group):
    """The group of all verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a newcomer meets them."""
        return [*VERBS, "help"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, imported now."""
        if cmd_name in VERBS:
            name = cmd_name.replace("-", "_")
            home = import_module(f"holdfast.cli.verbs.{_TOGETHER.get(name, name)}")
            return cast("click.Command", getattr(home, f"{name}_command"))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that was asked for, or the one that was meant."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_verb(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their whole summaries: click would cut them to one line each, and import each verb."""
        with formatter.section("Commands"):
            formatter.write_dl([*VERBS.items(), ("help", help_command.get_short_help_str())])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb. An interrupt, and a reader that has seen enough, end it quietly.

        What it was reading is closed at once, not with the interpreter: Arrow's threads may be at work on it.
        """
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except (KeyboardInterrupt, BrokenPipeError) as error:
            traceback.clear_frames(error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                ctx.exit(INTERRUPTED)
            silence_stdout()
            ctx.exit(FINE)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, tell errors, exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(arguments, *rest, **extra)
        except (Exception, KeyboardInterrupt) as error:
            _let_go_of_stdout()
            code = tell(error, as_json=_wants_json(arguments))
        sys.exit(code or FINE)


def _wants_json(arguments: list[str]) -> bool:
    """Whether errors are JSON. Refused arguments were never parsed, so the raw ones are searched here."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairwise(options)


def _let_go_of_stdout() -> None:
    """Flush what was printed before an error; if that fails, the error is still what is reported."""
    try:
        sys.stdout.flush()
    except OSError:
        silence_stdout()


def unknown_verb(ctx: click.Context, name: str) -> click.UsageError:
    """The error for a verb that does not exist."""
    return click.UsageError(f"no such verb {name!r}{meant(name, [*VERBS, 'help'])}", ctx)


def tell(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong and return the exit code for it."""
    if os.environ.get("HOLDFAST_DEBUG") == "1":
        say_lines("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return _tell_usage(error, as_json)
    if isinstance(error, HoldfastError):
        say_holdfast_error(error, as_json=as_json)
        return DAMAGED if isinstance(error, Corrupt) else REFUSED
    if isinstance(error, OSError):
        say_error("OSError", _of_file(error), disk.remedy(error, "check files and disk"), as_json=as_json)
        return REFUSED
    hint = "this is a defect in holdfast; HOLDFAST_DEBUG=1 shows where"
    say_error("Defect", f"unexpected {type(error).__name__}", hint, as_json=as_json)
    return REFUSED


def _of_file(error: OSError) -> str:
    """What the system says, and of which file."""
    what = error.strerror or "input or output failed"
    return what if error.filename is None else f"{what} path={os.fsdecode(error.filename)}"


def _tell_usage(error: click.ClickException, as_json: bool) -> int:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx is not None else "holdfast"
    if ctx is not None and not as_json:
        say_lines(ctx.get_usage())
    say_error("Usage", " ".join(error.format_message().split()), f"see '{path} -h'", as_json=as_json)
    return USAGE


EPILOG = """\b
Exit codes: 0 fine, 1 refused or not found, 2 wrong usage, 3 damage was found.
Data goes to stdout, words go to stderr. Settings come from holdfast.toml and HOLDFAST_…;
HOLDFAST_DEBUG=1 shows tracebacks, NO_COLOR=1 switches colours off."""


@click.group(
    cls=Program, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(holdfast.__version__, "--version", message="holdfast %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """An embedded durable log: append, read, inspect, maintain and ship it."""
    if ctx.invoked_subcommand is None:
        say_lines(ctx.get_help())
        ctx.exit(USAGE)
    logger = logging.getLogger("holdfast")
    if not any(isinstance(handler, Warnings) for handler in logger.handlers):
        logger.addHandler(Warnings(logging.WARNING))
    logging.lastResort = Warnings(logging.WARNING)  # what other libraries log


def _complete_verb(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [verb for verb in [*VERBS, "help"] if verb.startswith(incomplete)]


@program.command("help")
@click.argument("verb", required=False, shell_complete=_complete_verb)
@click.pass_context
def help_command(ctx: click.Context, verb: str | None) -> None:
    """Explain a verb."""
    parent = ctx.find_root()
    if verb is None:
        click.echo(parent.get_help())
        return
    command = program.get_command(parent, verb)
    if command is None:
        raise unknown_verb(ctx, verb)
    with click.Context(command, info_name=verb, parent=parent) as own:
        click.echo(command.get_help(own))
