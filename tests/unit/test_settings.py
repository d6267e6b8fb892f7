"""Settings: one name everywhere, nothing ignored, all problems reported at once."""

from __future__ import annotations

import pickle

import msgspec
import pytest

import holdfast
from holdfast import Invalid, Keyring, NotFound, Settings
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


def test_all_problems_are_reported_at_once():
    """One error lists every wrong setting."""
    with pytest.raises(Invalid) as caught:
        Settings.from_mapping(
            {"journal": {"nope": 1, "queue_records_max": "many", "ack_timeout_ms": "5 parsecs"}, "x": 1, "crypto": 5}
        )
    for part in ("journal.nope", "journal.queue_records_max", "journal.ack_timeout_ms", "'x'", "crypto"):
        assert part in caught.value.message


def test_a_mapping_is_merged_key_by_key_over_file_and_environment(tmp_path, monkeypatch):
    """What a caller does not name keeps the file's and the environment's value, encryption above all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CRYPTO__KEYRING", "env:APP_KEYS")
    monkeypatch.setenv("HOLDFAST_JOURNAL__ACK_TIMEOUT_MS", "7s")
    (tmp_path / "holdfast.toml").write_text(
        "[journal]\nqueue_records_max = 11\nack_timeout_ms = 1\n[crypto]\nencrypt = true\n"
    )
    settings = Settings.given({"journal": {"queue_records_max": 12}, "crypto": {"encrypt": False}})
    assert (settings.journal.queue_records_max, settings.journal.ack_timeout_ms) == (12, 7000)
    assert (settings.crypto.keyring, settings.crypto.encrypt) == ("env:APP_KEYS", False)


def test_a_log_is_encrypted_as_the_environment_says_whatever_else_is_set(tmp_path, monkeypatch):
    """Settings in a call do not put payloads in the clear; complete settings without the key are refused."""
    monkeypatch.setenv("APP_KEYS", Keyring.generate().encode().decode())
    monkeypatch.setenv("HOLDFAST_CRYPTO__KEYRING", "env:APP_KEYS")
    with holdfast.open(tmp_path / "merged", settings={"segments": {"seal_on_close": False}}) as log:
        log.topic("t").append(b"in the clear")
    assert not any(b"in the clear" in file.read_bytes() for file in (tmp_path / "merged").rglob("*") if file.is_file())
    with pytest.raises(Invalid, match="leaves out the encryption"):
        holdfast.open(tmp_path / "complete", settings=Settings())
    assert not (tmp_path / "complete").exists()
    with holdfast.open(tmp_path / "said", settings={"crypto": {"keyring": ""}}):
        pass  # said out loud


def test_a_log_ships_where_the_environment_says_whatever_else_is_set(tmp_path, monkeypatch):
    """Complete settings without its store are refused: nothing would be shipped, and nobody would know."""
    monkeypatch.setenv("HOLDFAST_STORE__URL", f"file://{tmp_path}/store")
    for given in ({"keyring": Keyring.generate()}, {}):
        with pytest.raises(Invalid, match="leaves out the store"):
            holdfast.open(tmp_path / "complete", settings=Settings(), **given)
    assert not list(tmp_path.iterdir())
    holdfast.open(tmp_path / "own", settings=Settings(), store=tmp_path / "other").close()
    holdfast.open(tmp_path / "said", settings={"store": {"url": ""}}).close()
    assert not (tmp_path / "store").exists()
    holdfast.open(tmp_path / "own", settings=Settings(), read_only=True).close()  # writes nothing, ships nothing
    holdfast.open(tmp_path / "merged", settings={"segments": {"seal_on_close": False}}).close()
    assert (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("HOLDFAST_STORE_URL", "HOLDFAST_STORE__URL"),
        ("HOLDFAST_ENCRYPT", "HOLDFAST_CRYPTO__ENCRYPT"),
        ("HOLDFAST_KEYRING", "HOLDFAST_CRYPTO__KEYRING"),
        ("holdfast_crypto__keyring", "HOLDFAST_CRYPTO__KEYRING"),
        ("HOLDFAST_JOURNAL__QUEUE_BYTE_MAX", "queue_bytes_max"),
    ],
)
@pytest.mark.parametrize("settings", [None, {"journal": {}}, Settings()], ids=["loaded", "mapping", "complete"])
def test_a_variable_that_is_no_setting_is_refused_at_open(tmp_path, monkeypatch, name, nearest, settings):
    """A misspelt variable is Invalid with the nearest name, however settings are given, and nothing is made."""
    monkeypatch.setenv(name, "1")
    for opened in (
        lambda: holdfast.open(tmp_path / "log", settings=settings),
        lambda: holdfast.connect("http://127.0.0.1:1", settings=settings),
        lambda: holdfast.restore(tmp_path / "root", tmp_path / "back", settings=settings),
    ):
        with pytest.raises(Invalid) as caught:
            opened()
        assert nearest.lower() in str(caught.value).lower()
    assert not list(tmp_path.iterdir())
    if name.startswith("HOLDFAST_STORE"):
        with pytest.raises(Invalid, match=nearest):
            holdfast.read(tmp_path / "root", "t")


@pytest.mark.parametrize("name", ["HOLDFAST_CRYPTO__KEYRING", "HOLDFAST_STORE__URL", "HOLDFAST_CONFIG"])
def test_an_empty_variable_does_not_turn_anything_off(tmp_path, monkeypatch, name):
    """`HOLDFAST_CRYPTO__KEYRING=${RING}` where nobody has set RING: the log would be in the clear."""
    monkeypatch.setenv(name, "")
    for settings in (None, {"journal": {}}):
        with pytest.raises(Invalid, match=f"{name} is empty"):
            holdfast.open(tmp_path / "log", settings=settings)
    assert not list(tmp_path.iterdir())


def test_variables_that_are_used_elsewhere_are_no_settings(tmp_path, monkeypatch):
    """The command line's, those of the tests, and whatever a reference names."""
    for name in ("HOLDFAST_DEBUG", "HOLDFAST_SEED", "HOLDFAST_TEST_X", "HOLDFAST_TOKEN", "HOLDFAST_S3_KEY_ID"):
        monkeypatch.setenv(name, "1")
    for name in ("HOLDFAST_RING", "HOLDFAST_OTHER_RING"):
        monkeypatch.setenv(name, Keyring.generate().encode().decode())
    store = {"store": {"credentials": "env:HOLDFAST_S3"}, "crypto": {"keyring": "env:HOLDFAST_RING"}}
    holdfast.open(tmp_path / "a", settings=store, keyring="env:HOLDFAST_OTHER_RING").close()
    holdfast.open(tmp_path / "b", settings=store, keyring=Keyring.from_env("HOLDFAST_OTHER_RING")).close()


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


def test_errors_show_control_characters_as_escapes():
    """A name, a path or a peer that an error quotes cannot move a terminal's cursor, nor forge a line of a log."""
    for bad in ("\x1b]0;x\x07", "a\nERROR forged", "\u202eabc", "\x9b31m", "\udcff"):
        error = Invalid(f"no such thing {bad}", hint=f"not {bad}")
        for again in (error, error.again(), pickle.loads(pickle.dumps(error))):
            assert again.message.isprintable()
            assert again.hint.isprintable()
            assert str(again).count("\n") == 1
            assert bad not in str(again)
    assert str(Invalid("größe 日本 …", hint="größe")) == "größe 日本 …\nhint: größe"
