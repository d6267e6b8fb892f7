"""Keys of segments: a fresh one per attempt, apart from the journal's, proved before it opens anything."""

from __future__ import annotations

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.segment_data import LOG_ID, head, keyed_vault, raw_batch, write

from holdfast import Corrupt, Invalid, Keyring, Unavailable
from holdfast.crypto.cipher import AesGcmCipher, KeySource, NotAuthentic
from holdfast.crypto.segment_key import decrypting_key, encrypting_key
from holdfast.crypto.vault import Vault
from holdfast.segments.file.segment_reader import SegmentReader

pytestmark = pytest.mark.unit
RING = Keyring({"k1": bytes(range(32))})
SALT = b"s" * 32


class Rot13:
    """A user's own cipher; it says no in its own way."""

    name = "rot13"

    def encrypt(self, plaintext, associated):
        return bytes(b ^ 13 for b in plaintext) + bytes([len(associated) % 256])

    def decrypt(self, encrypted, associated):
        if encrypted[-1] != len(associated) % 256:
            raise ZeroDivisionError
        return bytes(b ^ 13 for b in encrypted[:-1])

    def mac(self, message):
        return bytes([13]) * 32


def test_what_a_segment_key_encrypts_its_twin_decrypts():
    """The key found by EncryptedWith decrypts and stamps alike, and refuses to encrypt."""
    key = encrypting_key(RING, None, LOG_ID, SALT)
    twin = decrypting_key(RING, None, LOG_ID, key.encrypted_with)
    assert twin.decrypt(key.encrypt(b"rows", b"place"), b"place") == b"rows"
    assert twin.mac(b"m") == key.mac(b"m")
    with pytest.raises(NotAuthentic):
        twin.decrypt(key.encrypt(b"rows", b"place"), b"elsewhere")
    with pytest.raises(Unavailable):
        twin.encrypt(b"", b"")


def test_two_encryptions_of_the_same_data_never_share_key_and_nonce(tmp_path):
    """The same records written twice have nothing in common but their length, under two salts and under one."""
    vault, batch = keyed_vault(), raw_batch(0, 90)
    salts = {"one": b"1" * 32, "two": b"2" * 32, "clone": b"2" * 32}
    for name, salt in salts.items():
        write(tmp_path / name, head(), [batch], vault=vault, salt=salt)
    files = [pq.read_table(tmp_path / name)["block"].to_pylist() for name in salts]
    assert [len(blocks) for blocks in files] == [3, 3, 3]
    places = {block[start : start + 16] for blocks in files for block in blocks for start in range(0, 64, 16)}
    assert len(places) == 9 * 4


def test_segments_and_the_journal_share_neither_keys_nor_nonces():
    """One master key and one salt give other subkeys in another use, and another nonce prefix."""
    key = encrypting_key(RING, None, LOG_ID, SALT)
    journal = AesGcmCipher(KeySource(RING.key("k1"), SALT, LOG_ID + bytes(8)), encrypts=False)
    same_context = AesGcmCipher(KeySource(RING.key("k1"), SALT, b"segment|" + LOG_ID), encrypts=False)
    for cipher in (journal, same_context):
        with pytest.raises(NotAuthentic):
            cipher.decrypt(key.encrypt(b"rows", b""), b"")
    with pytest.raises(Invalid, match="prefix"):
        AesGcmCipher(KeySource(RING.key("k1"), SALT, b"", b"long prefix"), encrypts=False)


def test_another_log_or_salt_is_another_key():
    """Salt and log id are part of the key; the commitment finds a difference before anything is opened."""
    good = encrypting_key(RING, None, LOG_ID, SALT).encrypted_with
    for log_id, encrypted_with in (
        (b"x" * 16, good),
        (LOG_ID, msgspec.structs.replace(good, salt=b"t" * 32)),
        (LOG_ID, msgspec.structs.replace(good, commitment=bytes(32))),
        (LOG_ID, msgspec.structs.replace(good, scheme="other")),
        (LOG_ID, msgspec.structs.replace(good, scheme="aes-256-gcm")),
        (LOG_ID, msgspec.structs.replace(good, key_id="k2")),
    ):
        with pytest.raises(Invalid):
            decrypting_key(RING, None, log_id, encrypted_with)
    with pytest.raises(Corrupt, match="salt"):
        decrypting_key(RING, None, LOG_ID, msgspec.structs.replace(good, salt=b""))
    with pytest.raises(Invalid, match="salt"):
        encrypting_key(RING, None, LOG_ID, b"short")
    with pytest.raises(Invalid, match="encrypted"):
        decrypting_key(None, None, LOG_ID, good)


def test_a_plain_vault_has_no_segment_key():
    """Without keys there is nothing to encrypt with, and nothing encrypted is decrypted."""
    assert Vault(LOG_ID).segment_key(SALT) is None
    with pytest.raises(Invalid):
        Vault(LOG_ID).stored_segment_key(Vault(LOG_ID, RING).segment_key(SALT).encrypted_with)


def test_older_keys_decrypt_what_they_encrypted(tmp_path):
    """After a rotation new segments have the new key, and old ones still open."""
    old = Vault(LOG_ID, RING)
    new = Vault(LOG_ID, RING.rotated("k2"))
    batch = raw_batch(0, 10)
    facts = write(tmp_path / "old", head(), [batch], vault=old)
    assert write(tmp_path / "new", head(), [batch], vault=new).key_id == "k2"
    with SegmentReader(tmp_path / "old", head(), facts, new.stored_segment_key) as reader:
        assert reader.verify().key_id == "k1"


def test_the_users_own_cipher_encrypts_segments(tmp_path):
    """An injected cipher is named in the file, and whatever it raises means: not authentic."""
    vault, batch = Vault(LOG_ID, cipher=Rot13()), raw_batch(0, 50)
    facts = write(tmp_path / "segment", head(), [batch], vault=vault)
    assert facts.key_id == ""
    with SegmentReader(tmp_path / "segment", head(), facts, vault.stored_segment_key) as reader:
        assert reader.verify() == facts
        assert sum(part.num_rows for part in reader.batches(0, 50)) == 50
        assert (reader.encrypted_with.scheme, reader.encrypted_with.commitment) == ("rot13", b"")
    key = vault.segment_key(SALT)
    with pytest.raises(NotAuthentic):
        key.decrypt(key.encrypt(b"x", b"a"), b"ab")
    with (
        SegmentReader(tmp_path / "segment", head(), facts, Vault(LOG_ID, RING).stored_segment_key) as reader,
        pytest.raises(Invalid, match="another cipher"),
    ):
        next(reader.batches(0, 50))
