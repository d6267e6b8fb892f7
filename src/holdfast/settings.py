"""All settings in one frozen value, from defaults, a TOML file, the environment and arguments.

Each stage owns its settings, with defaults, meaning and bounds in one place (`journal/journal_settings.py` …); here
they are only put together. Every value has one name: `journal.queue_bytes_max` in Python is `queue_bytes_max`
under `[journal]` in TOML and `HOLDFAST_JOURNAL__QUEUE_BYTES_MAX` in the environment. Sizes and durations may
be text ("64MiB", "5ms"). A name that does not exist is an error, never ignored; all problems are reported at once.

Nested dictionaries are merged key by key over the file and the environment. A `Settings` value is complete: nothing is
added to it, and a log is not opened with one that leaves out the keys or the store that file or environment name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple

from holdfast.arguments import path_of
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.crypto.encryption_settings import CryptoSettings
from holdfast.errors import Invalid, NotFound
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.journal.journal_settings import JournalSettings
from holdfast.model.typed_decoding import converted
from holdfast.publish.publish_settings import PublishSettings
from holdfast.quantity import parse_bytes, parse_seconds
from holdfast.segments.segment_settings import DiskSettings, ReconcileSettings, RetentionSettings, SegmentSettings
from holdfast.server_settings import ServerSettings
from holdfast.shipping.shipping_settings import PROFILES, ShippingSettings
from holdfast.store.store_settings import StoreSettings
from holdfast.suggestions import meant
from holdfast.telemetry.telemetry_settings import TelemetrySettings

_PREFIX = "HOLDFAST_"
_FILE = "holdfast.toml"
_FILE_VARIABLE = "HOLDFAST_CONFIG"
_OTHERS = ("CONFIG", "DEBUG", "TOKEN", "KEYS", "SEED", "RECORD", "LOCKED")
"""Variables that are no settings: of the command line, those that the documentation refers to, and of the tests."""
_OF_TESTS = "TEST_"
_EXAMPLE = "for instance holdfast.Settings.from_mapping({'journal': {'queue_bytes_max': '128MiB'}})"


class Settings(msgspec.Struct, frozen=True):
    """Everything that can be set.

    >>> Settings.from_mapping({"journal": {"queue_bytes_max": "128MiB"}}).journal.queue_bytes_max
    134217728
    """

    journal: JournalSettings = JournalSettings()
    crypto: CryptoSettings = CryptoSettings()
    segments: SegmentSettings = SegmentSettings()
    retention: RetentionSettings = RetentionSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    disk: DiskSettings = DiskSettings()
    store: StoreSettings = StoreSettings()
    shipping: ShippingSettings = ShippingSettings()
    publish: PublishSettings = PublishSettings()
    channels: ChannelSettings = ChannelSettings()
    executions: ExecutionSettings = ExecutionSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    server: ServerSettings = ServerSettings()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from nested dictionaries; what is not there keeps its default."""
        if not isinstance(values, Mapping):
            raise Invalid(f"settings are a mapping, not {type(values).__name__}", hint=_EXAMPLE)
        return _build(values)

    @classmethod
    def given(cls, settings: Settings | Mapping[str, Any] | None, *references: str | None) -> Settings:
        """What a caller gave: complete settings, or nested dictionaries that are merged over file and environment.

        Raises Invalid for variables that look like settings and are none; `references` names the caller's own ones.
        """
        if settings is None or isinstance(settings, Mapping):
            values = _loaded(None, os.environ)
            settings = _build(_merged(values, settings or {}))
        if not isinstance(settings, cls):
            raise Invalid(f"settings are holdfast.Settings, not {type(settings).__name__}", hint=_EXAMPLE)
        for name, section in _sections().items():
            if not isinstance(getattr(settings, name), section):
                found = type(getattr(settings, name)).__name__
                raise Invalid(f"settings.{name} is {section.__name__}, not {found}", hint=_EXAMPLE)
        _check_variables(os.environ, settings, references)
        return settings

    @classmethod
    def load(cls, file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from a TOML file, overridden by the environment.

        The file is `file`, or what HOLDFAST_CONFIG names, or `holdfast.toml` in the working directory if there
        is one.
        """
        environ = os.environ if environ is None else environ
        if not isinstance(environ, Mapping):
            raise Invalid(f"environ is a mapping, not {type(environ).__name__}", hint="for instance environ=os.environ")
        return _build(_loaded(None if file is None else path_of(file, "a settings file"), environ))

    def check_is_complete(self, *, has_keys: bool, has_store: bool) -> None:
        """Raise Invalid where these settings leave out the keys, or the store, that the file or the environment names.

        A log would be plain, or shipped nowhere; unless the caller names keys or a store of its own.
        """
        named = Settings.load()
        is_keyed = has_keys or self.crypto.keyring or self.crypto.encrypt
        is_stored = has_store or self.store.url
        for what, own, left_out in (
            ("encryption", "keyring", not is_keyed and (named.crypto.keyring or named.crypto.encrypt)),
            ("store", "store", not is_stored and named.store.url),
        ):
            if left_out:
                raise Invalid(
                    f"settings= leaves out the {what} that the settings file or the environment sets",
                    hint=f"give nested dictionaries, which are merged over both, or {own}=…, or Settings.load()",
                )


Origin = Literal["default", "file", "environment", "profile"]


class Origins(NamedTuple):
    """Where values come from: the settings file, if there is one, and an origin for each `section.key` that is set."""

    file: Path | None
    names: dict[str, Origin]


def origins(environ: Mapping[str, str] | None = None) -> Origins:
    """Where `Settings.load` gets its values from; what is not named has its default."""
    environ = os.environ if environ is None else environ
    path = Path(environ.get(_FILE_VARIABLE) or _FILE)
    names: dict[str, Origin] = {}
    for key in PROFILES.get(Settings.load(environ=environ).shipping.profile, ()):
        names[f"shipping.{key}"] = "profile"
    sources: dict[Origin, Mapping[str, Any]] = {
        "file": _read_file(None, environ),
        "environment": _read_environment(environ),
    }
    for origin, values in sources.items():
        names.update({f"{section}.{key}": origin for section, keys in values.items() for key in keys})
    return Origins(path.absolute() if path.exists() else None, names)


def _sections() -> dict[str, type[msgspec.Struct]]:
    return {field.name: field.type for field in msgspec.structs.fields(Settings)}


def _build(values: Mapping[str, Any]) -> Settings:
    problems: list[str] = []
    built: dict[str, Any] = {}
    sections = _sections()
    for name, keys in values.items():
        if not isinstance(name, str) or name not in sections:
            problems.append(_unknown("section", str(name), list(sections)))
        elif not isinstance(keys, Mapping):
            problems.append(f"{name} must be a section with keys")
        else:
            built[name] = _build_section(sections[name], name, keys, problems)
    if problems:
        raise Invalid("; ".join(problems), hint="correct these settings; all problems found are listed")
    return Settings(**built)


def _build_section(
    section: type[msgspec.Struct], name: str, keys: Mapping[str, Any], problems: list[str]
) -> msgspec.Struct | None:
    types = {field.name: field.type for field in msgspec.structs.fields(section)}
    taken: dict[str, Any] = {}
    for key, value in keys.items():
        if not isinstance(key, str) or key not in types:
            problems.append(_unknown("setting", str(key), list(types), f"{name}."))
            continue
        try:
            taken[key] = converted(_quantity(key, value), types[key], strict=False)
        except Invalid as error:
            problems.append(f"{name}.{key}: {error.message}: {error.hint}")
        except msgspec.ValidationError as error:
            problems.append(f"{name}.{key}: {error}")
    try:
        return section(**(ShippingSettings.with_profile(taken) if section is ShippingSettings else taken))
    except Invalid as error:
        problems.append(error.message)
        return None


def _quantity(key: str, value: Any) -> Any:
    """Text with a unit as a number in the unit that the key's name says."""
    if not isinstance(value, str) or value.strip().replace(".", "", 1).isdigit():
        return value
    if key.endswith("_ms"):
        return parse_seconds(value) * 1000
    return parse_bytes(value) if "bytes" in key else value


def _unknown(what: str, name: str, known: list[str], section: str = "") -> str:
    return f"unknown {what} {section + name!r}{meant(name, known, section)}"


def _loaded(file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    return _merged(_read_file(file, environ), _read_environment(environ))


def _merged(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with the keys of both; what is no section is left for `_build` to refuse."""
    for section, keys in over.items():
        below = values.get(section)
        values[section] = {**below, **keys} if isinstance(below, Mapping) and isinstance(keys, Mapping) else keys
    return values


def _check_variables(environ: Mapping[str, str], settings: Settings, references: Iterable[str | None]) -> None:
    """Raise Invalid for variables that begin as settings do and are none, nor named by a reference; capitals count.

    So are empty ones: what should have filled in the keyring or the store was missing.
    """
    named = [*references, *(value for name in _sections() for value in astuple(getattr(settings, name)))]
    prefixes = tuple(value.removeprefix("env:") for value in named if isinstance(value, str) and value[:4] == "env:")
    known = [f"{name}__{field}".upper() for name, section in _sections().items() for field in section.__struct_fields__]
    problems = [
        f"there is no setting {name}{meant(rest, known, _PREFIX)}"
        for name, rest in ((name, name.removeprefix(_PREFIX)) for name in environ)
        if (name.startswith(_PREFIX) or (name.upper().startswith(_PREFIX) and name.upper()[len(_PREFIX) :] in known))
        and rest not in (*known, *_OTHERS)
        and not rest.startswith(_OF_TESTS)
        and not name.startswith(prefixes)
    ]
    settable = (_FILE_VARIABLE, *(_PREFIX + name for name in known))
    problems += [f"{name} is empty" for name in settable if environ.get(name) == ""]
    if problems:
        hint = "correct or unset them; a variable of your own takes a name that does not begin with HOLDFAST_"
        raise Invalid("; ".join(problems), hint=hint)


def _read_file(file: str | Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = file or environ.get(_FILE_VARIABLE)
    path = Path(named or _FILE)
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        if named:
            raise NotFound(f"no settings file path={path}", hint=f"create it, or unset {_FILE_VARIABLE}") from None
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"cannot read the settings file path={path}: {error}", hint="it must be TOML") from error


def _read_environment(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for variable, value in environ.items():
        section, separator, key = str(variable).removeprefix(_PREFIX).partition("__")
        if str(variable).startswith(_PREFIX) and separator:
            sections.setdefault(section.lower(), {})[key.lower()] = value
    return sections
