"""Real processes of another user at the socket: refused at both ends, also where somebody opened the modes to all.

Only root can become another user, so these are skipped elsewhere.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Unavailable
from holdfast.owner import wire
from holdfast.sharing.membership import settings_digests

pytestmark = [pytest.mark.disk, pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")]

NOBODY = 65534
SETTINGS = {"segments": {"seal_on_close": False}}
SAYS_HELLO = """
import os, socket, sys
assert os.geteuid() == int(sys.argv[2])
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(30)
sock.connect(sys.argv[1])
try:
    sock.sendall(bytes.fromhex(sys.argv[3]))
    print(len(sock.recv(4096)))
except ConnectionError:
    print(0)
"""
LISTENS = """
import os, socket, sys
assert os.geteuid() == int(sys.argv[2])
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print("listens", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach: pytest's own, and what TMPDIR names, may be closed to others."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/tmp"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


def run_as(user: int, program: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of another user: one of ours that becomes it, since Python may be where no other user can reach it."""
    become = f"import os, socket, sys\nos.setgroups([]); os.setgid({user}); os.setuid({user})\n" if user else ""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", become + program, *arguments],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hello_of(log: Log, *, shares: bool = True) -> bytes:
    """What a member or a caller of this log would say, all of it right."""
    digests = settings_digests(log.settings)
    session, nonce = os.urandom(16), os.urandom(32)
    hello = wire.Hello(
        wire.PROTOCOL, holdfast.__version__, bytes.fromhex(log.id), session, 1, digests, nonce, shares=shares
    )
    return b"".join(wire.frame(wire.HELLO, hello))


def answered(place: Path, user: int, hello: bytes) -> int:
    """How many bytes an owner answers to a hello of a user."""
    process = run_as(user, SAYS_HELLO, str(place / "SOCKET"), str(user), hello.hex())
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return int(output)


@pytest.mark.parametrize("share", [True, False])
def test_another_user_gets_no_answer_where_the_directory_was_opened_by_mistake(
    place: Path, caplog: pytest.LogCaptureFixture, share: bool
) -> None:
    path = place / "log"
    with holdfast.open(path, share=share, settings=SETTINGS) as log:
        log.topic("t").append(b"one")
        path.chmod(0o777)
        (path / "SOCKET").chmod(0o777)
        with caplog.at_level(logging.WARNING, "holdfast.sharing"):
            assert answered(path, NOBODY, hello_of(log, shares=share)) == 0
        assert [one.action for one in caplog.records if f"uid={NOBODY}" in one.message] == ["client_refused"]
        assert answered(path, 0, hello_of(log, shares=share)) > 0  # the same bytes, from the owner's own user
        assert log.topic("t").append(b"goes on").offset == 1


def test_another_user_does_not_even_reach_a_socket_as_it_is_made(place: Path) -> None:
    """A user who may enter the directory, by mistake, still finds a socket that is its owner's alone."""
    path = place / "log"
    with holdfast.open(path, share=True, settings=SETTINGS) as log:
        path.chmod(0o777)
        process = run_as(NOBODY, SAYS_HELLO, str(path / "SOCKET"), str(NOBODY), hello_of(log).hex())
        process.communicate(timeout=60)
        assert process.returncode != 0


def test_a_socket_that_another_user_put_in_place_of_the_owners_is_not_spoken_to(place: Path) -> None:
    """A user who can write into the directory could listen there: a member says nothing to it, and learns why."""
    path = place / "log"
    holdfast.open(path, share=True, settings=SETTINGS).close()
    path.chmod(0o777)
    process = run_as(NOBODY, LISTENS, str(path / "SOCKET"), str(NOBODY))
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"
    try:
        with pytest.raises(Unavailable, match=f"another user .*uid={NOBODY}"):
            holdfast.open(path, share=True, settings=SETTINGS)
    finally:
        process.communicate(timeout=60)
