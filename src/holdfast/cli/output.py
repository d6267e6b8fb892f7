"""Where the command line writes: data to stdout, words to stderr, a table only to a terminal.

Data is UTF-8 whatever the locale says. Text of any origin leaves through one of four functions (`emit`, `emit_json`,
`say`, and `Warnings` for log lines), and none of them passes anything on that a terminal would act on. Only payloads
that were requested raw go out as they are. Nothing is buffered across `flush`. A reader that has gone raises
BrokenPipeError, which `program` turns into a quiet end.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size

import msgspec

from holdfast.cli.text import printable_json, printable_lines
from holdfast.errors import Corrupt, HoldfastError, printable

_BAD = "BAD"
"""What a failed check says; red where there are colours. The journal defines it, but is too slow to load for this."""


class Problem(msgspec.Struct, frozen=True):
    """Damage that was found, for JSON."""

    message: str
    """What is wrong."""
    topic: str | None
    partition: int | None
    offset: int | None
    hint: str
    """What to do."""


class ErrorLine(msgspec.Struct, frozen=True):
    """An error, for JSON; `error` is the kind."""

    error: str
    """A kind of error, as `Invalid`; `Usage` for wrong usage, `OSError` for a failed file or pipe, `Defect` for a bug
    in holdfast.
    """
    message: str
    """What went wrong; never a payload or a key."""
    hint: str
    """What to do, perhaps empty."""


def problem(error: Corrupt) -> Problem:
    """Damage for JSON."""
    return Problem(error.message, error.topic, error.partition, error.offset, error.hint)


def emit(text: str) -> None:
    """A line of data."""
    emit_bytes(printable(text).encode() + b"\n")


def emit_bytes(data: bytes) -> None:
    """Data as it is."""
    sys.stdout.buffer.write(data)


def emit_json(value: object) -> None:
    """One JSON object, on one line."""
    emit_json_bytes(msgspec.json.encode(value))


def emit_json_bytes(encoded: bytes) -> None:
    """One JSON object that is encoded already."""
    emit_bytes(printable_json(encoded) + b"\n")


def flush() -> None:
    """Hand over everything that is buffered."""
    sys.stdout.buffer.flush()


def silence_stdout() -> None:
    """The reader has gone: keep the interpreter from failing when it flushes on exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as in tests
        pass


def say(words: str) -> None:
    """Words for people, on one line."""
    say_lines(printable(words))


def say_lines(words: str) -> None:
    """Our own words on several lines: usage, help, a traceback."""
    sys.stderr.write(printable_lines(words) + "\n")
    sys.stderr.flush()


class Warnings(logging.Handler):
    """Warnings as words on stderr: a store that does not answer, a key file that others can read.

    A message may quote a hostile directory or store, so it stays on one line.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        try:
            say(f"warning: {record.getMessage()}")
        except Exception:
            self.handleError(record)


def say_error(kind: str, message: str, hint: str, *, as_json: bool) -> None:
    """An error: what, then what to do."""
    if as_json:
        say(printable_json(msgspec.json.encode(ErrorLine(kind, printable(message), printable(hint)))).decode())
        return
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")


def say_holdfast_error(error: HoldfastError, *, as_json: bool) -> None:
    """One of the library's errors."""
    say_error(kind_of(error), error.message, error.hint, as_json=as_json)


def say_problems(problems: Iterable[HoldfastError], *, as_json: bool) -> None:
    """Damage that was found."""
    for error in problems:
        say_holdfast_error(error, as_json=as_json)


def kind_of(error: HoldfastError) -> str:
    """The documented kind of an error; what was raised may be a subclass that a room keeps to itself."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)


def emit_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values, aligned."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        emit(f"{name:<{width}}  {_cell(value)}")


def emit_lines(lines: Sequence[msgspec.Struct], nothing: str, *, as_json: bool) -> None:
    """Lines of one kind, as JSON objects or as a table; these words where there are none."""
    if as_json:
        for line in lines:
            emit_json(line)
    elif lines:
        emit_table(lines[0].__struct_fields__, [msgspec.structs.astuple(line) for line in lines])
    else:
        say(nothing)


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their columns, numbers to the right: drawn on a terminal that is wide enough, else plain text."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(value is None or isinstance(value, int) for value in column) for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 3 * len(widths) < get_terminal_size().columns:
        _draw(columns, cells, right)
        return
    for line in (columns, *cells):
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        emit("  ".join(padded).rstrip())


def emit_problems(problems: Sequence[Corrupt]) -> None:
    """What is damaged, at the end of a report."""
    if problems:
        emit("")
        emit(f"problems: {len(problems)}")
        for found in problems:
            emit(f"  {printable(found.message)}")


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))


def _draw(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name, to_right in zip(columns, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for line in cells:
        # Text, not str: what a log holds must not be read as rich's markup.
        table.add_row(*[Text(cell, style="bold red" if cell == _BAD else "") for cell in line])
    console = Console()
    with console.capture() as captured:
        console.print(table)
    emit_bytes(captured.get().rstrip("\n").encode() + b"\n")  # its cells are printable, its colours are not
