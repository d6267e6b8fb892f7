"""`holdfast keys new|rotate|list`: make a keyring file, put a new key in front, list its keys.

Keys are made here and never shown: only their names are printed, and which of them a log still needs. `new` makes a
file and never replaces one, not even in a race. `rotate` replaces the whole file, durably, with the older keys behind
the new one. A log that is open keeps the keyring it was opened with; `log.rotate_key`, or opening it again, takes the
new key into use.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

import click
import msgspec

from holdfast import Keyring
from holdfast.cli.options import json_option
from holdfast.cli.output import emit_json, emit_table, flush, say
from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.journal.proving.inspected_database import InspectedDatabase
from holdfast.log_directory import Directory

NEW, ROTATE, LIST = "new", "rotate", "list"

EPILOG = """\b
Examples:
  holdfast keys new keyring
  holdfast keys rotate keyring --id 2026-12
  holdfast keys list keyring --log data
Lose the keyring and the log is lost: keep a copy elsewhere. Older keys stay behind
the new one for as long as anything encrypted with them is read."""


class KeyLine(msgspec.Struct, frozen=True):
    """A key, by name; what a log has under it is None where no log is given."""

    id: str
    """The key's name."""
    current: bool
    """Whether it encrypts what is written with this keyring."""
    known: bool
    """Whether it is in the keyring."""
    sealing: bool | None = None
    """With `--log`: whether the log encrypts with it now; else null, as the rest."""
    entries: int | None = None
    """Journal entries of the log that only this key opens."""
    segments: int | None = None
    """Segments of the log that only this key opens. A store keeps more: documents there are never removed."""


class _Use(msgspec.Struct):
    entries: int = 0
    segments: int = 0
    sealing: bool = False


@click.command("keys", epilog=EPILOG)
@click.argument("action", type=click.Choice([NEW, ROTATE, LIST]))
@click.argument("file", metavar="FILE")
@click.option(
    "--id", "key_id", metavar="ID", help="The new key's name.  [default: today's date, with a number if that is taken]"
)
@click.option(
    "--log",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="With list: also what this log has under each key, and keys that it needs and FILE lacks.",
)
@json_option
@click.pass_context
def keys_command(
    ctx: click.Context, action: str, file: str, key_id: str | None, directory: Path | None, as_json: bool
) -> None:
    """Make a keyring FILE, put a new key in front of it, or list the names of its keys, never the keys."""
    if action == LIST and key_id is not None:
        raise click.UsageError("--id names a new key: it goes with new and rotate", ctx)
    if action != LIST and directory is not None:
        raise click.UsageError("--log goes with list", ctx)
    if action == LIST:
        keyring = Keyring.from_reference(file if file.startswith(("env:", "file:")) else f"file:{file}")
    else:
        keyring = _made(_path(file), key_id, is_new=action == NEW)
    _tell(_lines(keyring, {} if directory is None else _uses(directory), with_log=directory is not None), as_json)
    if action != LIST:
        done = "made" if action == NEW else "rotated"
        say(f"{done} {file}; its current key is {keyring.current}. Keep a copy elsewhere")
    flush()


def _path(file: str) -> Path:
    if file.startswith("env:"):
        raise click.UsageError("a keyring in the environment cannot be written; give a file")
    return Path(file.removeprefix("file:"))


def _free(taken: Collection[str]) -> str:
    """A name for a new key: today's date, with a number if that name is taken."""
    today = datetime.fromtimestamp(SystemClock().now_us() / 1_000_000, UTC).date().isoformat()
    return next(name for name in chain([today], (f"{today}-{n}" for n in count(2))) if name not in taken)


def _made(path: Path, key_id: str | None, *, is_new: bool) -> Keyring:
    if is_new:
        keyring = Keyring.generate(key_id or _free(()))
        keyring.save(path, replace=False)
        return keyring
    while True:
        present = Keyring.from_file(path)
        keyring = present.rotated(key_id or _free(present.ids))
        try:
            keyring.save(path)
            return keyring
        except Invalid:
            if Keyring.from_file(path).ids == present.ids:
                raise  # else another process put its key in front meanwhile: ours goes in front of that one


def _uses(directory: Path) -> dict[str, _Use]:
    """What a log has under each key, by its name, read without a key."""
    place = Directory(directory.absolute())
    place.require_log()
    with InspectedDatabase.open(place.database) as database:
        key_epochs, (entries, segments) = (control := database.control_rows()).key_epochs, database.key_uses(control)
    names = dict.fromkeys([*(epoch.key_id for epoch in key_epochs), *entries, *segments])
    newest = key_epochs[-1].key_id if key_epochs else ""
    uses = {name: _Use(entries[name], segments[name], name == newest) for name in names if name}
    if not uses:
        say("note: this log uses no key of a keyring")
    return uses


def _lines(keyring: Keyring, uses: dict[str, _Use], *, with_log: bool) -> list[KeyLine]:
    unknown = [name for name in uses if name not in keyring]
    if unknown:
        say(f"note: the log uses keys that the keyring does not have: {', '.join(unknown)}")
    lines = []
    for name in [*keyring.ids, *unknown]:
        use = uses.get(name, _Use()) if with_log else None
        found = (None, None, None) if use is None else (use.sealing, use.entries, use.segments)
        lines.append(KeyLine(name, name == keyring.current, name in keyring, *found))
    return lines


def _tell(lines: list[KeyLine], as_json: bool) -> None:
    if as_json:
        for line in lines:
            emit_json(line)
        return
    wide = 6 if lines[0].sealing is not None else 3
    columns = ("key", "current", "in keyring", "log encrypts with it", "entries", "segments")[:wide]
    emit_table(columns, [[_word(value) for value in msgspec.structs.astuple(line)[:wide]] for line in lines])


def _word(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
