from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import apsw
import pytest
from click.testing import Result

from holdfast import Keyring
from tests.cli.conftest import Run, tamper

pytestmark = pytest.mark.disk


def forbidden(path: Path, keyring: Keyring) -> list[str]:
    """Everything that must not be printed: keys, salts, nonces and bodies, in hex and base64, and contents."""
    connection = apsw.Connection(str(path / "durable.db"))
    (salt,) = connection.execute("SELECT salt FROM key_epochs").fetchone()
    (body,) = connection.execute("SELECT body FROM entries").fetchone()
    connection.close()
    values = [keyring.key("k1"), salt, body, body[:8], body[8:24]]
    spelled = [spell for value in values for spell in (value.hex(), b64encode(value).decode().rstrip("="))]
    return [*spelled, "the-secret-payload", "the-secret-key", "the-secret-header"]


def everything(result: Result) -> str:
    return result.stdout + result.stderr + repr(result.exception)


@pytest.mark.parametrize("keys", [[], ["--keyring", "file:keys"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("damage", [None, "UPDATE entries SET count = 2", "UPDATE heads SET stamp = zeroblob(32)"])
def test_no_secret_is_printed(
    run: Run, secret_log: Path, keyring: Keyring, keys: list[str], form: list[str], damage: str | None
) -> None:
    """Status and inspect print no key, salt, nonce, body or payload, with or without the key, damaged or not."""
    secrets = forbidden(secret_log, keyring)
    if damage is not None:
        tamper(secret_log, damage)
    verbs = [["status"], ["topics"], ["inspect"], ["inspect", "--records"]]
    for verb, *options in verbs:
        text = everything(run(verb, secret_log, *options, *keys, *form, HOLDFAST_DEBUG="1"))
        assert [secret for secret in secrets if secret in text] == []


def test_a_plain_log_does_not_show_its_payloads_either(run: Run, log: Path) -> None:
    """Without --reveal no payload is printed, though nothing hides it."""
    for arguments in (["status"], ["inspect"], ["inspect", "--records"], ["inspect", "--records", "--json"]):
        assert "payload-" not in everything(run(arguments[0], log, *arguments[1:]))


@pytest.mark.parametrize(
    "verb",
    [
        ["append", "log", "t", "x"],
        ["read", "log", "t"],
        ["tail", "log", "t"],
        ["topics", "log"],
        ["status", "log"],
        ["seal", "log"],
        ["retain", "log"],
        ["reconcile", "log"],
        ["rebuild", "log", "--yes"],
        ["inspect", "log"],
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_key_that_was_given_by_mistake_is_not_repeated(run: Run, log: Path, verb: list[str], form: list[str]) -> None:
    """A key in place of a reference to it is refused without showing it, as option or as setting."""
    key = "k1:" + b64encode(b"\x07" * 32).decode()
    for result in (run(*verb, *form, "--keyring", key), run(*verb, *form, HOLDFAST_CRYPTO__KEYRING=key)):
        assert result.exit_code == 1
        assert key[3:] not in everything(result)
        assert "env:NAME" in result.stderr


def test_a_malformed_keyring_is_not_repeated(run: Run, log: Path) -> None:
    """A keyring that cannot be read is refused without showing what is in it."""
    result = run("status", log, "--keyring", "env:KEYS", KEYS="k1:not-a-key-but-secret")
    assert result.exit_code == 1
    assert "secret" not in everything(result)
