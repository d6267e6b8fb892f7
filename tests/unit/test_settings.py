"""Settings: one name everywhere, nothing ignored, all problems told at once."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Invalid, NotFound, Settings
from holdfast.journal.journal_settings import JournalSettings
from holdfast.quantity import parse_bytes, parse_seconds

pytestmark = pytest.mark.unit


def test_text_sizes_and_durations():
    """Sizes and durations are read as people write them."""
    settings = Settings.from_mapping(
        {"journal": {"queue_bytes_max": "128MiB", "ack_timeout_ms": "2s", "flush_interval_ms": "0.5ms"}}
    )
    assert settings.journal.queue_bytes_max == 128 * 2**20
    assert settings.journal.ack_timeout_ms == 2000
    assert settings.journal.flush_interval_ms == 0.5
    assert [parse_bytes(t) for t in ("1", "1k", "1 kB", "1.5GiB", "2tb")] == [1, 1024, 1000, 1610612736, 2 * 10**12]
    assert [parse_seconds(t) for t in ("5us", "5ms", "1.5h", "2d", "3min")] == pytest.approx(
        [5e-6, 0.005, 5400, 172800, 180]
    )


@pytest.mark.parametrize("text", ["", "x", "-5MiB", "5 parsecs", "1e3", "MiB", "5MiBs", "0x10"])
def test_nonsense_sizes_are_invalid(text):
    """What cannot be read is refused with a hint."""
    with pytest.raises(Invalid) as caught:
        parse_bytes(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "5", "5 fortnights", "ms", "-1s"])
def test_nonsense_durations_are_invalid(text):
    """A duration needs its unit."""
    with pytest.raises(Invalid):
        parse_seconds(text)


def test_file_and_environment(tmp_path):
    """The environment overrides the file; both use the same names."""
    file = tmp_path / "h.toml"
    file.write_text('[journal]\nqueue_records_max = 10\npayload_bytes_max = "1MiB"\n[crypto]\nkeyring = "env:X"\n')
    environ = {"HOLDFAST_JOURNAL__QUEUE_RECORDS_MAX": "20", "OTHER": "x", "HOLDFAST_CRYPTO__ENCRYPT": "true"}
    settings = Settings.load(file, environ)
    assert settings.journal.queue_records_max == 20
    assert settings.journal.payload_bytes_max == 2**20
    assert settings.crypto.keyring == "env:X"
    assert settings.crypto.encrypt is True
    assert Settings.load(environ={"HOLDFAST_CONFIG": str(file)}).journal.queue_records_max == 10


def test_the_working_directory_may_hold_a_file(tmp_path, monkeypatch):
    """holdfast.toml in the working directory is used when nothing else is named."""
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ={}) == Settings()
    (tmp_path / "holdfast.toml").write_text("[journal]\nqueue_records_max = 11\n")
    assert Settings.load(environ={}).journal.queue_records_max == 11


def test_missing_and_broken_files(tmp_path):
    """A named file must exist and be TOML."""
    with pytest.raises(NotFound):
        Settings.load(tmp_path / "absent.toml", {})
    (tmp_path / "bad.toml").write_text("= nonsense")
    with pytest.raises(Invalid, match="cannot read"):
        Settings.load(tmp_path / "bad.toml", {})


def test_an_unknown_key_is_an_error_with_a_suggestion():
    """A misspelt setting is never ignored."""
    with pytest.raises(Invalid, match=r"did you mean 'journal\.queue_bytes_max'"):
        Settings.from_mapping({"journal": {"queue_byte_max": 1}})
    with pytest.raises(Invalid, match="did you mean 'journal'"):
        Settings.from_mapping({"jurnal": {}})
    with pytest.raises(Invalid, match="unknown setting"):
        Settings.load(environ={"HOLDFAST_JOURNAL__NOPE": "1"})


def test_all_problems_are_told_at_once():
    """One error lists every wrong setting."""
    with pytest.raises(Invalid) as caught:
        Settings.from_mapping(
            {"journal": {"nope": 1, "queue_records_max": "many", "ack_timeout_ms": "5 parsecs"}, "x": 1, "crypto": 5}
        )
    for part in ("journal.nope", "journal.queue_records_max", "journal.ack_timeout_ms", "'x'", "crypto"):
        assert part in caught.value.message


@pytest.mark.parametrize("name", JournalSettings.__struct_fields__)
def test_every_bound_must_be_above_zero(name):
    """Zero and negative limits are refused, by name; there may be no file of groups, but no tiny one."""
    for value in (0, -1) if name != "group_file_bytes" else (-1, 1):
        with pytest.raises(Invalid, match=rf"journal\.{name}"):
            JournalSettings(**{name: value})


def test_bounds_must_fit_together():
    """A payload or batch that could never enter the queue is refused."""
    with pytest.raises(Invalid, match="queue_bytes_max"):
        JournalSettings(queue_bytes_max=1000)
    with pytest.raises(Invalid, match="1GiB"):
        JournalSettings(payload_bytes_max=2**31, queue_bytes_max=2**32)


def test_settings_are_frozen_values():
    """Settings can be compared and not changed."""
    assert Settings() == Settings.from_mapping({})
    with pytest.raises(AttributeError):
        Settings().journal.queue_records_max = 5  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(Settings()), type=Settings) == Settings()
