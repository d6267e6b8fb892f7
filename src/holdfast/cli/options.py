"""What several verbs take, and how they open a log with it.

Keys come by reference only, on the command line (`--keyring env:NAME` or `file:PATH`) or as the setting
`crypto.keyring`; a key itself is never an argument, for arguments are seen by everybody on the machine.
"""

from __future__ import annotations

from pathlib import Path

import click

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.cli.glance import is_keyed
from holdfast.errors import Invalid

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
topic_argument = click.argument("topic", metavar="TOPIC")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line, errors included.")
keyring_option = click.option(
    "--keyring",
    "reference",
    metavar="REF",
    help="Where the keys are: env:NAME or file:PATH, never a key.  [env: HOLDFAST_CRYPTO__KEYRING]",
)

NEEDS_KEY = "give --keyring env:NAME or --keyring file:PATH, or set HOLDFAST_CRYPTO__KEYRING"


def load_keyring(reference: str | None, settings: Settings) -> Keyring | None:
    """The keyring that the option or else the settings name, if any."""
    named = reference or settings.crypto.keyring
    return Keyring.from_reference(named) if named else None


def open_log(directory: Path, reference: str | None, settings: Settings, *, read_only: bool) -> Log:
    """Open a log as the options and settings say."""
    keyring = load_keyring(reference, settings)
    try:
        return holdfast.open(directory, settings=settings, keyring=keyring, read_only=read_only)
    except Invalid as error:
        if keyring is None and is_keyed(directory):
            raise Invalid(error.message, hint=NEEDS_KEY) from error
        raise
