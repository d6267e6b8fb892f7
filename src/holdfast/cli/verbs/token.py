"""`holdfast token create|list|revoke`: who may use `holdfast serve`.

The log need not be free: a server that runs takes the change over within a second. The log itself notes each change,
here where it can be opened or is shared, else by its server. In a log with keys the file is signed, with its keyring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli.action_group import Actions
from holdfast.cli.exit_codes import FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log
from holdfast.cli.output import emit, emit_json, emit_table, flush, say
from holdfast.clock import SystemClock
from holdfast.disk import write_new_file
from holdfast.errors import Closed, Invalid, NotFound, Unavailable
from holdfast.log_directory import Directory
from holdfast.model.record_json import iso
from holdfast.quantity import parse_seconds
from holdfast.server.tokens import FILE, StoredToken, TokenFile, TokenMemory, make

EPILOG = """\b
Examples:
  holdfast token create data web --scope append --topic 'orders*'
  holdfast token create data dashboards --scope read --topic '*' --expires 90d --to web.token
  holdfast token list data
  holdfast token revoke data web
A token is shown once. The log's directory keeps its hash."""

_DAY_S = 86_400
_SCOPES = "append, read, admin, audit, consume:NAME or produce:NAME; may be repeated."


class TokenLine(msgspec.Struct, frozen=True):
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...]
    created: str | None
    """When it was made."""
    expires: str | None
    """When it ends; null for never."""
    rate_max: float | None
    """Requests per second; null for no limit of its own."""


class NewTokenLine(msgspec.Struct, frozen=True):
    """A token that was just made; the only time that it is shown."""

    id: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...]
    expires: str | None
    """When it ends; null for never."""
    token: str | None
    """The token; null with `--to`."""
    file: str | None
    """The file that has it; else null."""


tokens_option = click.option(
    "--tokens", type=click.Path(path_type=Path), help="The file of tokens; default: TOKENS in DIR."
)
name_argument = click.argument("name", metavar="NAME")


@click.group("token", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def token_command() -> None:
    """Make, list and revoke the tokens of 'holdfast serve'."""


@token_command.command("create")
@directory_argument
@name_argument
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help=_SCOPES)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="PATTERN",
    help="A topic, or a pattern with '*', which in front stands for no '_'; may be repeated.",
)
@click.option("--expires", metavar="TIME", help="When it ends: 12h, 90d …; default: never.")
@click.option("--rate", type=float, help="Requests per second, at most.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Write it to a new file of mode 0600 instead.")
@tokens_option
@keyring_option
@json_option
def create_command(
    directory: Path,
    name: str,
    scopes: tuple[str, ...],
    topics: tuple[str, ...],
    expires: str | None,
    rate: float | None,
    target: Path | None,
    tokens: Path | None,
    reference: str | None,
    as_json: bool,
) -> int:
    """Make a token and print it, once."""
    clock = SystemClock()
    until = None if expires is None else clock.now_us() + int(_seconds(expires) * 1e6)
    text, stored = make(name, scopes, topics, clock, expires_us=until, rate_max=rate)
    with _file(directory, tokens, reference, change=True) as file:
        if target is not None:
            try:
                write_new_file(target.absolute(), text.encode() + b"\n", token=clock.random_bytes(8).hex())
            except FileExistsError:
                raise Invalid(f"a file is there already path={target}", hint="name another one, or remove it") from None
        file.add(stored, clock)
    if as_json:
        place = (text, None) if target is None else (None, str(target))
        emit_json(NewTokenLine(stored.id, name, stored.scopes, stored.topics, _time(until), *place))
    elif target is None:
        say("this is the only time that it is shown:")
        emit(text)
    else:
        say(f"written to {target}")
    flush()
    return FINE


@token_command.command("list")
@directory_argument
@tokens_option
@keyring_option
@json_option
def list_command(directory: Path, tokens: Path | None, reference: str | None, as_json: bool) -> int:
    """List tokens, without their secrets."""
    with _file(directory, tokens, reference, change=False) as file:
        lines = [_line(one) for one in file.read()]
    if as_json:
        for line in lines:
            emit_json(line)
    elif lines:
        cells = [(*(_cell(v) for v in msgspec.structs.astuple(line)),) for line in lines]
        emit_table(TokenLine.__struct_fields__, cells)
    else:
        say("no tokens")
    flush()
    return FINE


@token_command.command("revoke")
@directory_argument
@name_argument
@tokens_option
@keyring_option
@json_option
def revoke_command(directory: Path, name: str, tokens: Path | None, reference: str | None, as_json: bool) -> int:
    """Revoke a token, by its name or id; a server that runs refuses it within a second."""
    with _file(directory, tokens, reference, change=True) as file:
        found = file.revoke(name, SystemClock())
    if as_json:
        emit_json(_line(found))
    else:
        say(f"revoked {found.name}")
    flush()
    return FINE


@contextmanager
def _file(directory: Path, tokens: Path | None, reference: str | None, *, change: bool) -> Iterator[TokenFile]:
    """The tokens of a log, proved by what it remembers; after a `change` it remembers that."""
    settings = Settings.load()
    path = tokens or settings.server.tokens
    place = Directory(directory.absolute())
    if place.log_id() is None:
        raise NotFound(f"there is no log path={directory}", hint="it is made by 'holdfast append' or 'holdfast serve'")
    path = place.path / FILE if path is None else Path(path).absolute()
    with open_log(directory, reference, settings, read_only=True) as log:
        yield TokenFile(path, TokenMemory(log))
    if not change:
        return
    try:
        with open_log(directory, reference, settings, read_only=False) as log:
            TokenFile(path, TokenMemory(log)).remember()
    except (Unavailable, Closed):
        say("note: the log is in use, and notes this once its server has seen it")


def _seconds(text: str) -> float:
    days = text.removesuffix("d")
    if days != text and days.isdecimal():
        return int(days) * _DAY_S
    return parse_seconds(text)


def _line(one: StoredToken) -> TokenLine:
    return TokenLine(one.id, one.name, one.scopes, one.topics, iso(one.created_us), _time(one.expires_us), one.rate_max)


def _time(moment: int | None) -> str | None:
    return None if moment is None else iso(moment)


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value
