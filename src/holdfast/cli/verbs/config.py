"""`holdfast config show`: every setting in force and where it comes from, and what shipping with them costs.

Nothing is opened and no store is contacted. Settings hold references to secrets, never secrets. Each section refuses a
value that is one before anything is printed, and a keyring in place of a reference is refused here.
"""

from __future__ import annotations

import click
import msgspec

from holdfast import Settings
from holdfast.cli.options import json_option, store_option, with_store
from holdfast.cli.output import emit, emit_facts, emit_json, emit_table, flush
from holdfast.cli.prices import Cost, cost_of, dollars
from holdfast.errors import Invalid
from holdfast.settings import origins
from holdfast.shipping.shipping_settings import PROFILES, ShippingSettings

_DEFAULT, _OPTION = "default", "option"

EPILOG = """\b
Examples:
  holdfast config show
  holdfast config show --json | jq '.settings[] | select(.origin != "default")'
Prices are list prices of S3 Standard in us-east-1, for orientation: storage, traffic and segments come on top."""


class Setting(msgspec.Struct, frozen=True):
    """One setting."""

    name: str
    """`section.key`."""
    value: str | int | float | bool
    origin: str
    """`default`, `file`, `environment`, `profile` or `option`."""


class Config(msgspec.Struct, frozen=True):
    """All settings in force."""

    file: str | None
    """The settings file, or `null`."""
    store: str | None
    """The store's address, or `null`: nothing is shipped."""
    settings: list[Setting]
    """Each in force."""
    cost: Cost
    """What commit batches cost while records come all the time."""
    profiles: list[Cost]
    """The same for each profile by itself."""


@click.command("config", epilog=EPILOG)
@click.argument("action", type=click.Choice(["show"]))
@store_option
@json_option
def config_command(action: str, url: str | None, as_json: bool) -> None:
    """Show the settings in force, where each comes from, and what shipping with them costs."""
    config = _config(url)
    if as_json:
        emit_json(config)
    else:
        _show(config)
    flush()


def _config(url: str | None) -> Config:
    settings = with_store(Settings.load(), url)
    _check_keyring(settings.crypto.keyring)
    file, names = origins()
    known = {**names, **({"store.url": _OPTION} if url is not None else {})}
    return Config(
        file=None if file is None else str(file),
        store=settings.store.url or None,
        settings=[
            Setting(f"{section}.{key}", value, known.get(f"{section}.{key}", _DEFAULT))
            for section in settings.__struct_fields__
            for key, value in msgspec.structs.asdict(getattr(settings, section)).items()
        ],
        cost=cost_of(settings.shipping),
        profiles=[cost_of(ShippingSettings(**ShippingSettings.with_profile({"profile": name}))) for name in PROFILES],
    )


def _check_keyring(reference: str) -> None:
    if reference and not reference.startswith(("env:", "file:")):
        raise Invalid("crypto.keyring is no reference to a keyring", hint="write 'env:NAME' or 'file:PATH'")


def _show(config: Config) -> None:
    emit_table(("setting", "value", "origin"), [msgspec.structs.astuple(setting) for setting in config.settings])
    emit("")
    emit_facts(
        [
            ("settings file", config.file or "none"),
            ("store", config.store or "none: nothing is shipped"),
            ("shipping", config.cost.words(config.store)),
        ]
    )
    emit("")
    emit_table(
        ("profile", "batch timeout", "PUTs per second", "PUTs per month", "a month on S3"),
        [_profile_row(cost) for cost in config.profiles],
    )


def _profile_row(cost: Cost) -> tuple[object, ...]:
    return (
        cost.profile,
        f"{cost.batch_timeout_ms:g} ms",
        f"{cost.puts_per_second:g}",
        cost.puts_per_month,
        dollars(cost.dollars_per_month),
    )
