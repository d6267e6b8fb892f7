"""Keys, encryption, commitments: fail closed, show nothing, never use a nonce twice."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid, Keyring, NotFound, Unavailable
from holdfast.clock import SystemClock
from holdfast.crypto import digests
from holdfast.crypto.cipher import OVERHEAD_BYTES, AesGcmCipher, KeySource, NotAuthentic
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.unit

KEY = bytes(range(32))
TEXT = "k1:" + base64.b64encode(KEY).decode()


def cipher(**changes):
    options = {"master": KEY, "salt": b"s" * 32, "context": b"log", "encrypts": True, **changes}
    return AesGcmCipher(
        KeySource(options["master"], options["salt"], options["context"]),
        encrypts=options["encrypts"],
        random=options.get("random", os.urandom),
    )


def keystream(encrypted: bytes | memoryview, body: bytes) -> bytes:
    """What a body was hidden with: equal ones mean that key and nonce were the same."""
    hidden = bytes(encrypted)[-16 - len(body) : -16]
    return bytes(a ^ b for a, b in zip(hidden, body, strict=True))


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_encrypt_and_decrypt(plaintext, associated):
    """What was encrypted is decrypted, in its place only."""
    made = cipher()
    encrypted = made.encrypt(plaintext, associated)
    assert len(encrypted) == len(plaintext) + OVERHEAD_BYTES
    assert made.decrypt(encrypted, associated) == plaintext
    with pytest.raises(NotAuthentic):
        made.decrypt(encrypted, associated + b"x")


def test_every_changed_byte_is_found():
    """Any flipped byte of an encrypted blob, salt included, and any cut, fails to decrypt."""
    made = cipher()
    encrypted = made.encrypt(b"payload", b"place")
    for i in range(len(encrypted)):
        with pytest.raises(NotAuthentic):
            made.decrypt(encrypted[:i] + bytes([encrypted[i] ^ 1]) + encrypted[i + 1 :], b"place")
        with pytest.raises(NotAuthentic):
            made.decrypt(encrypted[:i], b"place")


@pytest.mark.parametrize("size", [64, 50_000], ids=["small", "large"])
def test_no_two_encryptions_share_key_and_nonce(size):
    """The same body in the same place, encrypted many times, is hidden by another keystream each time."""
    made, body = cipher(), bytes(size)
    streams = {keystream(made.encrypt(body, b"place"), body) for _ in range(2_000_000 // size if size > 64 else 20_000)}
    assert len(streams) == (40 if size > 64 else 20_000)


def test_clones_with_a_cloned_random_source_share_no_key_and_nonce():
    """Where even the system's randomness repeats, another body or another place still gives another keystream."""
    stuck = [cipher(random=lambda count: b"r" * count) for _ in range(2)]
    messages = [(bytes([n]) * 64, b"place %d" % place) for n in range(20) for place in range(20)]
    streams = {keystream(clone.encrypt(body, place), body) for clone in stuck for body, place in messages}
    assert len(streams) == len(messages)  # the two clones encrypted the same messages: those are the same blobs
    one, other = (clone.encrypt(b"the same body", b"and place") for clone in stuck)
    assert one == other


def test_every_encryption_asks_the_random_source_anew():
    """Randomness is drawn at each encryption, as much as a salt has, and never ahead: a clone would have it, too."""
    asked = []

    def random(count):
        asked.append(count)
        return os.urandom(count)

    made = cipher(random=random)
    assert asked == []
    for n in range(1, 6):
        made.encrypt(b"body", b"place")
        assert asked == [24] * n


def test_another_scheme_is_refused():
    """A stored key epoch names its scheme; one that is not ours is not tried."""
    good = Vault(b"l" * 16, Keyring({"k1": KEY})).begin(3, b"s" * 32)
    with pytest.raises(Invalid, match="another cipher"):
        vault_with(msgspec.structs.replace(good, scheme="aes-256-gcm")).cipher(3)


def test_a_cipher_for_decrypting_never_encrypts():
    """An older epoch's cipher cannot reuse its nonces: it refuses to encrypt."""
    with pytest.raises(Unavailable):
        cipher(encrypts=False).encrypt(b"x", b"")


@pytest.mark.parametrize("change", [{"master": b"m" * 32}, {"salt": b"t" * 32}, {"context": b"gol"}])
def test_every_input_of_a_subkey_matters(change):
    """Another master key, salt or log gives another subkey, MAC key and commitment."""
    one, other = cipher(), cipher(**change)
    with pytest.raises(NotAuthentic):
        other.decrypt(one.encrypt(b"x", b""), b"")
    assert one.commitment != other.commitment
    assert one.mac(b"m") != other.mac(b"m")


def test_subkeys_are_independent():
    """Commitment and MAC key reveal nothing that decrypts: they differ from each other and from the AEAD key."""
    one = cipher()
    assert one.commitment != one._mac_key
    assert len({one.commitment, one._mac_key, KEY}) == 3


def test_canonical_rows_are_injective():
    """Values cannot slide from one column into the next, nor from one table into another."""
    rows = [("a", 1, 2), ("a", 12), ("a", "12"), ("a", b"12"), ("a", None), ("b", 1, 2), ("a", "1", "2"), ("a",)]
    assert len({digests.canonical(*row) for row in rows}) == len(rows)


def test_keyrings_are_read_from_references(tmp_path, monkeypatch):
    """Environment, file, callable and reference text all give the same keyring."""
    monkeypatch.setenv("RING", f"# comment\n{TEXT}, k0:{base64.urlsafe_b64encode(b'?' * 32).decode()}")
    ring = Keyring.from_env("RING")
    assert ring.current == "k1"
    assert ring.key("k1") == KEY
    assert ring.key("k0") == b"?" * 32
    ring.save(tmp_path / "ring")
    assert stat.S_IMODE((tmp_path / "ring").stat().st_mode) == 0o600
    for again in (
        Keyring.from_file(tmp_path / "ring"),
        Keyring.from_callable(lambda: os.environ["RING"]),
        Keyring.from_reference("env:RING"),
        Keyring.from_reference(f"file:{tmp_path / 'ring'}"),
    ):
        assert (again.current, again.key("k0"), again.key("k1")) == ("k1", b"?" * 32, KEY)


@pytest.mark.parametrize("there", ["another key", "the same name", "a key more", "no keyring"])
def test_a_file_is_never_replaced_by_a_keyring_that_lacks_one_of_its_keys(tmp_path, there):
    """`Keyring.generate().save(path)` twice keeps the first key: the second is Invalid and says the two ways out."""
    saved = Keyring.generate("k1")
    ring = {
        "another key": Keyring.generate("k2"),
        "the same name": Keyring.generate("k1"),
        "a key more": saved,
        "no keyring": saved,
    }[there]
    (saved.rotated("k0") if there == "a key more" else saved).save(tmp_path / "ring")
    if there == "no keyring":
        (tmp_path / "ring").write_text("my notes")
    before = (tmp_path / "ring").read_bytes()
    with pytest.raises(Invalid) as caught:
        ring.save(tmp_path / "ring")
    assert (tmp_path / "ring").read_bytes() == before
    assert "another name" in caught.value.hint
    assert "rotated" in caught.value.hint


def test_a_file_is_replaced_by_a_keyring_that_has_its_keys(tmp_path):
    """A rotated keyring, or the same one; and an empty file has nothing to lose."""
    (tmp_path / "ring").touch(mode=0o644)
    ring = Keyring.generate("k1")
    for one in (ring, ring, ring.rotated("k2")):
        one.save(tmp_path / "ring")
        assert Keyring.from_file(tmp_path / "ring").ids == one.ids
        assert stat.S_IMODE((tmp_path / "ring").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#",
        "k1",
        "k1:",
        ":" + TEXT,
        "k1:!!!!",
        "k1:" + base64.b64encode(b"short").decode(),
        f"{TEXT},{TEXT}",
        "a b:" + base64.b64encode(KEY).decode(),
        base64.b64encode(KEY).decode(),
    ],
)
def test_malformed_keyrings_fail_closed_and_show_nothing(text):
    """A keyring that cannot be read is Invalid, and no part of it is in the message."""
    with pytest.raises(Invalid) as caught:
        Keyring.from_callable(lambda: text)
    assert base64.b64encode(KEY).decode()[:12] not in str(caught.value)


def test_missing_references(tmp_path, monkeypatch):
    """What is not there is NotFound with a hint; other schemes are refused."""
    monkeypatch.delenv("RING", raising=False)
    for call in (lambda: Keyring.from_env("RING"), lambda: Keyring.from_file(tmp_path / "absent")):
        with pytest.raises(NotFound) as caught:
            call()
        assert caught.value.hint
    for reference in ("", "env:", "vault:x", TEXT):
        with pytest.raises(Invalid) as invalid:
            Keyring.from_reference(reference)
        assert TEXT[5:20] not in str(invalid.value)


def test_a_keyring_never_shows_its_keys():
    """repr, str and errors have ids only; pickling is refused."""
    ring = Keyring({"k1": KEY})
    assert repr(ring) == "Keyring(current='k1', older=[])"
    with pytest.raises(Invalid, match="pickled"):
        pickle.dumps(ring)
    with pytest.raises(Invalid, match="no key 'nope'"):
        ring.key("nope")


def test_a_keyring_file_open_to_others_is_warned_about(tmp_path, caplog):
    """A key file that others can read is reported, by path."""
    (tmp_path / "ring").write_text(TEXT)
    (tmp_path / "ring").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        Keyring.from_file(tmp_path / "ring")
    assert [r.action for r in caplog.records] == ["keyring_mode"]


def test_rotated_keyrings():
    """The new key comes first, the older ones stay; an id is never used twice."""
    ring = Keyring.generate("a")
    newer = ring.rotated("b")
    assert newer.current == "b"
    assert newer.key("a") == ring.key("a")
    with pytest.raises(Invalid, match="in use"):
        newer.rotated("a")
    assert Keyring.generate("x", clock=ManualClock()).key("x") == Keyring.generate("x", clock=ManualClock()).key("x")


def vault_with(epoch: KeyEpoch | None, ring: Keyring | None = None) -> Vault:
    vault = Vault(b"l" * 16, ring or Keyring({"k1": KEY}))
    vault.attach(lambda number: epoch)
    return vault


def test_stored_epochs_are_proved_before_use():
    """A key epoch that was changed, moved or is missing is refused."""
    good = Vault(b"l" * 16, Keyring({"k1": KEY})).begin(3, b"s" * 32)
    assert vault_with(good).verify(3, b"row", _stamp(good))
    changes = {
        "number": 4,
        "scheme": "rot13",
        "key_id": "k2",
        "salt": b"t" * 32,
        "commitment": b"c" * 32,
        "stamp": b"x" * 32,
    }
    for field, value in changes.items():
        values = {f: getattr(good, f) for f in KeyEpoch.__struct_fields__} | {field: value}
        with pytest.raises((Corrupt, Invalid)):
            vault_with(KeyEpoch(**values)).cipher(3)
    with pytest.raises(Corrupt, match="missing"):
        vault_with(None).cipher(3)
    beyond = Vault(b"l" * 16, Keyring({"k1": KEY})).begin(3, b"s" * 32)
    with pytest.raises(Corrupt, match="missing"):  # a number that no epoch can have is damage, not an OverflowError
        vault_with(KeyEpoch(-1, beyond.scheme, "k1", beyond.salt, beyond.commitment, beyond.stamp)).cipher(-1)
    with pytest.raises(Invalid, match="not the key"):
        vault_with(good, Keyring({"k1": b"z" * 32})).cipher(3)


def _stamp(epoch: KeyEpoch) -> bytes:
    encrypting = Vault(b"l" * 16, Keyring({"k1": KEY}))
    encrypting.enter(encrypting.begin(epoch.number, epoch.salt))
    return encrypting.stamp(b"row")


def test_a_keyed_vault_accepts_nothing_plain():
    """Under a key, an entry or row that claims to be plain is not authentic."""
    vault = vault_with(None)
    with pytest.raises(NotAuthentic):
        vault.decrypt(0, b"body", b"")
    assert not vault.verify(0, b"row", digests.plain_stamp(b"row"))
    plain = Vault(b"l" * 16)
    assert plain.decrypt(0, b"body", b"") == b"body"
    assert plain.verify(0, b"row", plain.stamp(b"row"))
    with pytest.raises(Corrupt):
        plain.decrypt(1, b"body", b"")


@pytest.mark.parametrize("count", [1, 24, 32, 256, 257, 100_000])
def test_the_systems_randomness_is_as_long_as_it_was_asked_for(count):
    """However much is asked for, and each time something else."""
    one, other = SystemClock().random_bytes(count), SystemClock().random_bytes(count)
    assert len(one) == len(other) == count
    assert count < 24 or one != other
