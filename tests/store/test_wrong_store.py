"""The starter of a process hears of a wrong store: on stderr, in a line or two, without a secret.

Each is a script of a newcomer: open with a store, append, close; no logging is configured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

pytestmark = pytest.mark.store

SCRIPT = """
import sys
import holdfast

with holdfast.open("data", store=sys.argv[1]) as log:
    topic = log.topic("orders")
    for number in range(3):
        topic.append(b"%d" % number)
    if sys.argv[2:]:
        try:
            topic.append(b"and now", durability="shipped")
        except holdfast.Unavailable as error:
            print(error)
"""
WRONG_SECRET = "not-the-secret-at-all"
CLI = (sys.executable, "-c", "from holdfast.cli import main; main()")


class Done(NamedTuple):
    code: int
    out: str
    words: str


def start(folder: Path, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process in an empty folder, with nothing in its environment but this."""
    folder.mkdir(exist_ok=True)
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
    piped = subprocess.PIPE
    return subprocess.Popen(command, env=clean | env, cwd=folder, stdin=piped, stdout=piped, stderr=piped, text=True)


def finish(process: subprocess.Popen[str]) -> Done:
    out, words = process.communicate("one", timeout=100)
    return Done(process.returncode, out, words)


def keys(access: str = ACCESS_KEY, secret: str = SECRET_KEY) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def other_region() -> Iterator[str]:
    """A server that answers as AWS does to a signature for another region, and never says which would be right."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message></Error>"
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


WRONGS = {
    "no credentials": ("there are no credentials", "AWS_ACCESS_KEY_ID"),
    "wrong secret": ("SignatureDoesNotMatch", "credentials"),
    "unknown key": ("InvalidAccessKeyId", "credentials"),
    "wrong bucket": ("bucket", "no-such-bucket"),
    "wrong endpoint": ("no connection to the store", "check the address"),
    "wrong region": ("the store redirects in vain status=400", "set store.region"),
}


def wrong(kind: str, server: S3Server, other_region: str) -> tuple[str, dict[str, str]]:
    """A store's address and the environment that makes it wrong."""
    bucket = "no-such-bucket" if kind == "wrong bucket" else BUCKET
    endpoint = {"wrong endpoint": "http://127.0.0.1:9", "wrong region": other_region}.get(kind, server.endpoint)
    env = {
        "no credentials": {"AWS_REGION": "us-east-1"},
        "wrong secret": keys(secret=WRONG_SECRET),
        "unknown key": keys("AKIDNOBODY", WRONG_SECRET),
    }.get(kind, keys())
    return f"s3://{bucket}/here", {
        "HOLDFAST_STORE__ENDPOINT": endpoint,
        "HOLDFAST_SHIPPING__DRAIN_TIMEOUT_MS": "2000",
        "HOLDFAST_SHIPPING__CONNECT_TIMEOUT_MS": "500",
        **env,
    }


LISTENERS = {
    "basic": "logging.basicConfig(level='ERROR')",
    "null": "logging.getLogger('holdfast').addHandler(logging.NullHandler())",
}


@pytest.fixture(scope="module")
def done(s3_server: S3Server, other_region: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """All of them, side by side: they wait more than they work."""
    folder = tmp_path_factory.mktemp("wrong")
    started = {}
    for kind in WRONGS:
        store, env = wrong(kind, s3_server, other_region)
        started[kind] = start(folder / kind, (sys.executable, "-c", SCRIPT, store), env)
    store, env = wrong("wrong bucket", s3_server, other_region)
    for name, setup in LISTENERS.items():
        script = f"import logging; {setup}\n{SCRIPT}"
        started[name] = start(folder / name, (sys.executable, "-c", script, store), env)
    soon = env | {"HOLDFAST_SHIPPING__SHIPPED_TIMEOUT_MS": "500"}
    started["shipped"] = start(folder / "shipped", (sys.executable, "-c", SCRIPT, store, "shipped"), soon)
    env["HOLDFAST_STORE__URL"] = store
    started["append"] = start(folder / "cli", (*CLI, "append", "data", "orders"), env)
    found = {name: finish(process) for name, process in started.items()}
    found["ship"] = finish(start(folder / "cli", (*CLI, "ship", "data", "--timeout", "1s"), env))
    return found


@pytest.mark.parametrize("kind", WRONGS)
def test_the_user_hears_of_it_on_stderr(done, kind):
    """How many records are where, why, and what to do; in few lines, and the script itself goes on."""
    assert done[kind].code == 0, done[kind].words
    lines = done[kind].words.splitlines()
    assert 1 <= len(lines) <= 2, lines
    assert lines[-1].startswith("holdfast: warning: closed with 3 records and ")
    for part in WRONGS[kind]:
        assert part in lines[-1], lines


def test_no_secret_is_shown(done):
    """In none of them, by nobody."""
    for result in done.values():
        for secret in (SECRET_KEY, WRONG_SECRET):
            assert secret not in result.words + result.out


def test_shipped_that_is_not_names_the_cause(done):
    """What the store said is in the error, with the remedy for it."""
    out = done["shipped"].out
    assert out.startswith("durable here, but not on the store within 0.5 s: "), out
    assert "code=NoSuchBucket" in out
    assert "hint: create the bucket, or correct the store's URL" in out


@pytest.mark.parametrize("listener", LISTENERS)
def test_an_application_that_listens_itself_is_not_talked_over(done, listener):
    """With logging configured, or with a NullHandler, nothing is written beside it."""
    assert done[listener] == (0, "", "")


def test_the_command_line_tells_it_too(done):
    """`holdfast append` stores the record and says what is not on the store; `holdfast ship` fails with the cause."""
    assert done["append"].code == 0
    assert "closed with 1 record and " in done["append"].words
    assert "no-such-bucket" in done["append"].words
    assert done["ship"].code == 1
    assert "code=NoSuchBucket" in done["ship"].words


def test_the_endpoint_that_other_tools_take_from_the_environment(tmp_path: Path, s3_server: S3Server) -> None:
    """Who has set up MinIO for the usual tools need not say it again; what is no endpoint is refused by its name."""
    command = [sys.executable, "-c", SCRIPT, f"s3://{BUCKET}/usual", "ship"]
    done = finish(start(tmp_path / "usual", command, keys() | {"AWS_ENDPOINT_URL": s3_server.endpoint}))
    assert (done.code, done.out, done.words) == (0, "", "")
    done = finish(start(tmp_path / "wrong", command, keys() | {"AWS_ENDPOINT_URL": "minio:9000"}))
    assert done.code == 1
    assert "AWS_ENDPOINT_URL: store.endpoint must begin with https://" in done.words
