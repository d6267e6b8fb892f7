"""Credentials come by reference, are found anew when they must be, and never show themselves."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import Invalid
from holdfast.store.credentials import Credentials, CredentialSource
from holdfast.store.port import StoreRefused, StoreUnavailable
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.store


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def write(path, text):
    path.write_text(text)
    path.chmod(0o600)


def test_the_usual_chain_reads_the_environment(monkeypatch):
    """An empty reference means what every AWS tool means."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert tuple(CredentialSource().get()) == ("id", "secret", "token")


def test_a_profile_is_read_from_the_credentials_file(tmp_path):
    """By its name, with the region that stands beside it."""
    write(tmp_path / "credentials", "[backup]\naws_access_key_id = id\naws_secret_access_key = secret\n")
    write(tmp_path / "config", "[profile backup]\nregion = eu-west-3\n")
    source = CredentialSource("profile:backup")
    assert tuple(source.get()) == ("id", "secret", "")
    assert source.region() == "eu-west-3"


def test_a_missing_profile_is_refused():
    """It will not come by itself."""
    with pytest.raises(StoreRefused) as caught:
        CredentialSource("profile:nobody").get()
    assert caught.value.cause == "credentials"


def test_a_missing_profile_names_no_region():
    """A request for the credentials says so; one for the region does not."""
    assert CredentialSource("profile:nobody").region() == ""


@pytest.mark.parametrize("secret", ["line\n", "two words", "\u20ac"])
def test_credentials_that_cannot_be_sent_are_refused_without_repeating_them(monkeypatch, secret):
    """They would be found out by HTTP otherwise, which repeats them."""
    monkeypatch.setenv("X_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("X_SECRET_ACCESS_KEY", secret)
    with pytest.raises(StoreRefused) as caught:
        CredentialSource("env:X").get()
    assert caught.value.cause == "credentials"
    assert secret not in str(caught.value)


def test_no_credentials_anywhere_is_refused():
    """And says so with the cause by which it is counted."""
    with pytest.raises(StoreRefused) as caught:
        CredentialSource().get()
    assert caught.value.cause == "credentials"


@pytest.fixture
def process(tmp_path):
    """A credential process that counts how often it was asked, and fails on request."""
    counter, script = tmp_path / "count", tmp_path / "process.py"

    def configure(lifetime=timedelta(hours=1)):
        expires = (datetime.now(UTC) + lifetime).isoformat()
        script.write_text(
            "import json, pathlib\n"
            f"c = pathlib.Path({str(counter)!r})\n"
            "n = int(c.read_text()) + 1 if c.exists() else 1\n"
            "c.write_text(str(n))\n"
            f"print(json.dumps(dict(Version=1, AccessKeyId=f'id{{n}}', SecretAccessKey='s', SessionToken='t',"
            f" Expiration={expires!r})))\n"
        )
        write(tmp_path / "config", f"[profile p]\ncredential_process = {sys.executable} {script}\n")
        return counter

    return configure


def test_botocore_is_asked_again_after_a_while_and_refreshes_what_expires(process):
    """Credentials close to their end are exchanged without anybody being refused."""
    process(timedelta(minutes=5))
    clock = ManualClock()
    source = CredentialSource("profile:p", clock=clock)
    first = source.get()
    assert source.get() == first
    assert source.cached() == first
    clock.advance(61)
    assert source.cached() is None
    assert source.get().access_key != first.access_key


def test_what_lasts_is_not_asked_for_again(process):
    """A process that is slow, or counts its calls, is asked once."""
    counter = process()
    clock = ManualClock()
    source = CredentialSource("profile:p", clock=clock)
    source.get()
    clock.advance(3600)
    source.get()
    assert counter.read_text() == "1"


def test_refused_credentials_are_found_anew_once(process):
    """However many requests were refused with the same ones."""
    counter = process()
    source = CredentialSource("profile:p")
    old = source.get()
    for _ in range(5):
        source.invalidate(old)
        source.get()
    assert counter.read_text() == "2"


def test_many_threads_look_once(process):
    """Sixteen requests at once do not ask sixteen times."""
    counter = process()
    source = CredentialSource("profile:p")
    threads = [threading.Thread(target=source.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "1"


def test_a_process_that_fails_may_succeed_later(tmp_path):
    """Not there now is not the same as not there."""
    write(tmp_path / "config", "[profile p]\ncredential_process = false\n")
    with pytest.raises(StoreUnavailable) as caught:
        CredentialSource("profile:p").get()
    assert caught.value.cause == "credentials"


def test_a_prefix_names_variables_of_the_environment(monkeypatch):
    """With or without a session token."""
    monkeypatch.setenv("BACKUP_ACCESS_KEY_ID", "id")
    with pytest.raises(StoreRefused):
        CredentialSource("env:BACKUP").get()
    monkeypatch.setenv("BACKUP_SECRET_ACCESS_KEY", "secret")
    assert tuple(CredentialSource("env:BACKUP").get()) == ("id", "secret", "")
    monkeypatch.setenv("BACKUP_SESSION_TOKEN", "token")
    assert tuple(CredentialSource("env:BACKUP").get()) == ("id", "secret", "token")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"access_key_id": "id", "secret_access_key": "secret", "session_token": "token"}),
        json.dumps({"AccessKeyId": "id", "SecretAccessKey": "secret", "SessionToken": "token", "Version": 1}),
        "access_key_id = id\nsecret_access_key=secret\nsession_token = token\n",
        "# ours\n[default]\naws_access_key_id = id\naws_secret_access_key = secret\naws_session_token = token\n",
    ],
)
def test_a_file_may_be_json_or_lines(tmp_path, text):
    """As people and tools write them."""
    write(tmp_path / "keys", text)
    assert tuple(CredentialSource(f"file:{tmp_path / 'keys'}").get()) == ("id", "secret", "token")


def test_a_file_that_changed_is_read_again(tmp_path):
    """Without a restart, and without having been refused first."""
    write(tmp_path / "keys", "access_key_id=a\nsecret_access_key=b")
    source = CredentialSource(f"file:{tmp_path / 'keys'}")
    source.get()
    write(tmp_path / "keys", "access_key_id=new\nsecret_access_key=b")
    assert source.cached() is None
    assert source.get().access_key == "new"


def test_a_file_that_is_being_replaced_leaves_the_old_credentials(tmp_path):
    """Until the store refuses them: then there are none."""
    write(tmp_path / "keys", "access_key_id=a\nsecret_access_key=b")
    source = CredentialSource(f"file:{tmp_path / 'keys'}")
    old = source.get()
    write(tmp_path / "keys", "access_key_id=")
    assert source.get() == old
    source.invalidate(old)
    with pytest.raises(StoreRefused):
        source.get()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"access_key_id": 1}', "access_key_id=a", "a=1\na=2", "\0\xff"])
def test_a_file_without_credentials_is_refused(tmp_path, text):
    """Whatever is in it."""
    write(tmp_path / "keys", text)
    with pytest.raises(StoreRefused) as caught:
        CredentialSource(f"file:{tmp_path / 'keys'}").get()
    assert caught.value.cause == "credentials"


def test_two_sections_in_a_file_are_refused(tmp_path):
    """Nothing says which one is meant."""
    section = "access_key_id = id\nsecret_access_key = secret\n"
    write(tmp_path / "keys", f"[one]\n{section}[two]\n{section}")
    with pytest.raises(StoreRefused):
        CredentialSource(f"file:{tmp_path / 'keys'}").get()


def test_a_file_that_others_can_read_is_warned_about(tmp_path, caplog):
    """As with keyrings."""
    path = tmp_path / "keys"
    write(path, "access_key_id=a\nsecret_access_key=b")
    path.chmod(0o644)
    CredentialSource(f"file:{path}").get()
    assert [record.action for record in caplog.records] == ["credentials_mode"]


@pytest.mark.parametrize("reference", ["AKIASECRET", "env:", "file:", "profile:", "AKIA:SECRET"])
def test_what_is_no_reference_is_refused_without_repeating_it(reference):
    """It may be the secret itself."""
    with pytest.raises(Invalid) as caught:
        CredentialSource(reference)
    assert "SECRET" not in str(caught.value)


def test_no_secret_shows(monkeypatch):
    """Not in a repr, not in a pickle; and credentials themselves are not pickled at all."""
    monkeypatch.setenv("X_ACCESS_KEY_ID", "hidden-id")
    monkeypatch.setenv("X_SECRET_ACCESS_KEY", "hidden-secret")
    source = CredentialSource("env:X")
    found = source.get()
    shown = f"{source!r} {source} {found!r} {found} {[found]} {vars(source)}".encode() + pickle.dumps(source)
    assert b"hidden" not in shown
    with pytest.raises(Invalid):
        pickle.dumps(found)


def test_a_source_can_be_had_anew(monkeypatch):
    """For a forked child: the same reference, and nothing of what the other one holds."""
    monkeypatch.setenv("X_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("X_SECRET_ACCESS_KEY", "secret")
    source = CredentialSource("env:X")
    source.get()
    other = source.anew()
    assert other.cached() is None
    assert (repr(other), other.get()) == (repr(source), source.get())


@pytest.mark.parametrize(
    ("library", "code"),
    [
        ("h11", "import holdfast.store.s3.async_store"),
        ("h11", "import holdfast; holdfast.read('s3://logs/x', 'orders')"),
        ("botocore", "from holdfast.store.credentials import CredentialSource; CredentialSource().get()"),
    ],
)
def test_without_the_extra_it_says_what_to_install(library, code):
    """Not an ImportError from the depths."""
    program = f"""
import sys
sys.modules[{library!r}] = None
from holdfast.errors import Invalid
try:
    {code}
except Invalid as error:
    assert "holdfast-log[s3]" in error.hint
    print("raised")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "raised\n"


def test_the_usual_credentials_do_not_load_botocore_before_they_are_asked_for():
    """Opening a log costs nothing that shipping alone needs."""
    program = """
import sys
from holdfast.store.credentials import CredentialSource
CredentialSource()
print("botocore" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "False\n"


def test_equal_credentials_are_equal():
    """So that a refusal of older ones does not throw away newer ones."""
    assert Credentials("a", "b") == Credentials("a", "b") != Credentials("a", "b", "c")
