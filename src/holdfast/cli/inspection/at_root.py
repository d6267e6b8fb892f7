"""The argument of verbs that take a store in place of DIR: a log's directory, or its root on a store.

A URL (`s3://…`, `file:///…`) names a root, and so does a directory that a log ships to: it has `log.json` and no
FORMAT. Endpoint, region and credentials come from the settings under `[store]`, keys by reference, as everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from holdfast import Settings
from holdfast.cli.options import complete_directory, parsed
from holdfast.reader.read_options import ReadOptions
from holdfast.root.root_place import root_url
from holdfast.store import layout
from holdfast.store.address import parse_url

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:")


class Root(NamedTuple):
    """The root of a log on a store."""

    url: str

    def options(self, reference: str | None, log_id: str, settings: Settings) -> ReadOptions:
        """How it is read, by options and settings; every topic, unless one is named."""
        return ReadOptions(
            topic_pattern=".*",
            keyring=reference or settings.crypto.keyring,
            log_id=log_id,
            store=msgspec.structs.replace(settings.store, url="", move=False),
        )


def _place(ctx: click.Context, argument: click.Parameter, text: str | None) -> Path | Root | None:
    if text is None:  # the shell is completing the line
        return None
    if not _URL.match(text):
        path = Path(text)
        return Root(root_url(text)) if (path / layout.LOG).exists() and not (path / "FORMAT").exists() else path
    if text.startswith(("s3a://", "file:")):
        text = root_url(text) if not text.startswith("file://") else text
    address = parsed(parse_url)(ctx, argument, text)  # one that carries a secret is refused and not repeated
    assert address is not None
    return Root(root_url(address.url))


place_argument = click.argument("place", metavar="DIR|URL", callback=_place, shell_complete=complete_directory)
log_id_option = click.option(
    "--log-id", metavar="ID", default="", help="Of a store: refuse any other log than this one (32 hex digits)."
)


def refuse_log_id(place: Path | Root, log_id: str) -> None:
    """Only a store's log can be another one than expected."""
    if log_id and not isinstance(place, Root):
        raise click.UsageError("--log-id goes with a store's URL")
