"""A process that is cloned while it runs shares no key and nonce with its clones, nor they with each other.

A VM's memory snapshot that is resumed twice, CRIU and fork all copy whatever a process holds: keys, counters, buffers.
Here a process is forked while it encrypts; all of them go on and send what they encrypted through a pipe. Two
messages under one key and nonce are hidden with the same keystream, and that is what is looked for: it shows whatever
the scheme is. (`Counted` is a scheme that has this weakness.)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.disk

BODY = 64
CLONES = 4
TIMES = 50
FORKING = """
import os, sys
from contextlib import ExitStack
from unittest.mock import patch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from holdfast import Keyring
from holdfast.crypto.cipher import AesGcmCipher
from holdfast.crypto.vault import Vault

class Counted(AesGcmCipher):
    count = 0

    def encrypt(self, plaintext, associated):
        self.count += 1
        return AESGCM(self._key).encrypt(self.count.to_bytes(12, "big"), plaintext, associated)

clones, times, size, what, scheme = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
with ExitStack() as stack:
    for module in ("vault", "segment_key") if scheme == "counted" else ():
        counted = lambda source, random: Counted(source, encrypts=True)
        stack.enter_context(patch(f"holdfast.crypto.{module}.encrypting_cipher", counted))
    vault = Vault(b"l" * 16, Keyring({"k1": bytes(range(32))}))
    vault.enter(vault.begin(1, b"s" * 32))
    key = vault if what == "journal" else vault.segment_key(b"t" * 32)

    def streams(who):
        for n in range(times):
            body = bytes([who, n]) * (size // 2)
            hidden = bytes(key.encrypt(body, b"place %d" % n))[-16 - size : -16]
            yield bytes(a ^ b for a, b in zip(hidden, body)).hex()

    lines = list(streams(0))
    pipes = []
    for who in range(1, clones + 1):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                pipe.writelines(line + "\\n" for line in streams(who))
            os._exit(0)
        os.close(writing)
        pipes.append(os.fdopen(reading))
    lines += streams(clones + 1)
    for pipe in pipes:
        lines += pipe.read().split()
        pipe.close()
print("\\n".join(lines))
"""


def keystreams(what: str, scheme: str = "today's") -> list[str]:
    """What all bodies were hidden with, by a process and its clones."""
    command = [sys.executable, "-c", FORKING, str(CLONES), str(TIMES), str(BODY), what, scheme]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, cwd=Path(__file__).parents[2]
    ).stdout.split()
    assert len(found) == (CLONES + 2) * TIMES
    return found


@pytest.mark.parametrize("what", ["journal", "segment"])
def test_clones_of_a_process_share_no_key_and_nonce(what: str) -> None:
    """All that a process and its clones encrypt, entries and blocks of one segment, has a keystream of its own."""
    found = keystreams(what)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("what", ["journal", "segment"])
def test_this_finds_a_scheme_that_counts(what: str) -> None:
    """One whose nonces are a counter is caught: clones go on with the same one."""
    found = keystreams(what, "counted")
    assert len(set(found)) == 2 * TIMES
