"""Who may: tokens, their scopes and patterns, by reference, revoked and expired; and who is refused before that."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Keyring
from holdfast.cli.program import program
from holdfast.errors import Corrupt, Denied, Full, HoldfastError, Invalid, Unavailable
from holdfast.server.access import Access
from holdfast.server.guards.browser_guard import BrowserGuard, WrongHost
from holdfast.server.request_caller import Caller, NotKnown
from holdfast.server.serving import HttpServer
from holdfast.server.tokens import SCOPES, StoredToken, TokenFile, TokenMemory, hash_of, make, split
from holdfast.server_settings import ServerSettings
from holdfast.testing.manual_clock import ManualClock
from tests.server.conftest import Server, serving

pytestmark = pytest.mark.disk


def create(directory: Path, name: str, *options: str) -> str:
    arguments = ["token", "create", str(directory), name, "--json", *options]
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["token"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with tokens: one for each scope, one for a few topics, one that may ask twice a second."""
    directory = tmp_path_factory.mktemp("guarded") / "log"
    with holdfast.open(directory) as log:
        for name in ("orders", "orders.eu", "private"):
            log.topic(name).append(b"first")
        log.topic("orders").consumer("c").close()  # which makes the topic of positions
    tokens = {
        scope: create(directory, scope, "--scope", scope, "--topic", "*") for scope in ("append", "read", "admin")
    }
    tokens["some"] = create(directory, "some", "--scope", "read", "--scope", "append", "--topic", "orders*")
    tokens["own"] = create(directory, "own", "--scope", "read", "--topic", "_*")
    member = ("--scope", "consume:c", "--topic", "orders")
    tokens["member"] = create(directory, "member", *member)
    tokens["member2"] = create(directory, "member2", *member)
    tokens["device"] = create(directory, "device", "--scope", "append", "--scope", "produce:device-*", "--topic", "*")
    tokens["device2"] = create(
        directory, "device2", "--scope", "append", "--scope", "produce:device-*", "--topic", "orders"
    )
    tokens["slow"] = create(directory, "slow", "--scope", "read", "--topic", "*", "--rate", "2")
    with serving() as start:
        yield start(directory, heartbeat_ms=200), tokens


def test_without_a_token_nothing_but_health_is_answered(guarded):
    server, _ = guarded
    for path in ("/v1", "/v1/topics", "/v1/topics/orders/records", "/metrics", "/v1/stats", "/v1/topics/nothere"):
        reply = server.get(path)
        assert (reply.status, reply.kind) == (401, "Denied"), path
        assert reply.headers["www-authenticate"].startswith("Bearer")
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
        assert server.get(path).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic {token}",
        "Bearer {token}x",
        "Bearer {token} {token}",
        "{token}",
        "Bearer {cut}",
        "Bearer hft1_00000000_" + "A" * 43,
        "Bearer " + "A" * 8000,
        "Bearer {other}",
    ],
)
def test_what_is_not_the_token_is_refused(guarded, header):
    """Also one with the right id and another secret; no answer repeats what was given."""
    server, tokens = guarded
    token = tokens["admin"]
    other = token[:-1] + ("A" if token[-1] != "A" else "Q")
    sent = header.format(token=token, cut=token[:-2], other=other)
    reply = server.get("/v1", headers={"authorization": sent})
    assert reply.status == 401
    assert token[14:] not in reply.body.decode()


def test_a_token_reaches_the_topics_of_its_patterns_alone(guarded):
    """A token reaches the topics that its patterns match, and does not learn of others."""
    server, tokens = guarded
    assert server.get("/v1/topics/orders.eu/records", token=tokens["some"]).status == 200
    for path in ("private", "_consumers", "nothere"):
        assert server.get(f"/v1/topics/{path}/records", token=tokens["some"]).status == 403
    names = [one["name"] for one in server.get("/v1/topics", token=tokens["some"]).json["topics"]]
    assert names == ["orders", "orders.eu"]
    for path in ("/v1/stats", "/metrics", "/v1/executions", "/v1/spaces"):
        assert server.get(path, token=tokens["some"]).status == 403
    transaction = {
        "operations": [{"append": "orders", "record": {"payload": "x"}}, {"put": "s", "key": "k", "body": "b"}]
    }
    assert server.post("/v1/transactions", transaction, token=tokens["some"]).status == 403
    assert server.get("/v1/topics/_consumers/records", token=tokens["read"]).status == 403
    assert server.get("/v1/topics/_consumers/records", token=tokens["own"]).status == 200
    assert server.post("/v1/topics/orders.new/records", {"payload": "x"}, token=tokens["some"]).status == 404


def test_a_member_belongs_to_the_token_that_made_it(guarded):
    server, tokens = guarded
    place = "/v1/topics/orders/consumers/c/members"
    member = server.post(place, token=tokens["member"]).json["member"]
    assert server.post(f"{place}/{member}/poll", token=tokens["member2"]).status == 404
    assert server.ask("DELETE", f"{place}/{member}", token=tokens["admin"]).status == 404
    assert server.ask("DELETE", f"{place}/{member}", token=tokens["member"]).status == 204


def test_a_token_has_its_own_rate(guarded):
    server, tokens = guarded
    replies = [server.get("/v1", token=tokens["slow"]) for _ in range(8)]
    refused = [reply for reply in replies if reply.status == 429]
    assert refused
    assert (refused[0].kind, refused[0].headers["retry-after"]) == ("Full", "1")
    assert server.get("/v1", token=tokens["read"]).status == 200


def test_a_revoked_token_is_refused_and_its_followers_end(serve, tmp_path):
    import http.client

    from tests.server.conftest import PATIENCE, events

    holdfast.open(tmp_path / "log").close()
    token = create(tmp_path / "log", "web", "--scope", "admin", "--topic", "*")
    server = serve(tmp_path / "log", heartbeat_ms=100)
    server.append("t", "x", token=token)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", "/v1/topics/t/follow", headers={"authorization": f"Bearer {token}"})
    stream = events(connection.getresponse())
    assert next(stream)[0] == ":"
    assert CliRunner().invoke(program, ["token", "revoke", str(tmp_path / "log"), "web"]).exit_code == 0
    assert [event for event in stream if event[0] != ":"] == [("end", "", '{"reason":"revoked"}')]
    connection.close()
    assert server.get("/v1", token=token).status == 401
    (tmp_path / "log" / "TOKENS").unlink()  # that does not open the door
    assert server.get("/v1").status == 401
    code, said = server.stop()
    assert code == 0
    assert token not in said


def test_who_waits_when_a_token_is_revoked_is_not_given_what_comes_then(serve, tmp_path):
    """Neither by a read that waits, nor by a consumer's member."""
    holdfast.open(tmp_path / "log").close()
    admin = create(tmp_path / "log", "admin", "--scope", "admin", "--topic", "*")
    token = create(tmp_path / "log", "web", "--scope", "read", "--scope", "consume:c", "--topic", "*")
    server = serve(tmp_path / "log", heartbeat_ms=100)
    server.append("t", "before", token=admin)
    members = "/v1/topics/t/consumers/c/members"
    member = server.post(members, {"start": "next"}, token=token).json["member"]
    with ThreadPoolExecutor() as pool, server.socket() as follower, follower.makefile("rb") as stream:
        waiting = [
            pool.submit(server.get, "/v1/topics/t/records?start=1&wait=30", token=token),
            pool.submit(server.post, f"{members}/{member}/poll", {"timeout": 30}, token=token),
        ]
        follower.sendall(
            f"GET /v1/topics/t/follow HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        )
        assert stream.readline().startswith(b"HTTP/1.1 200")  # the others came before it, and wait
        assert CliRunner().invoke(program, ["token", "revoke", str(tmp_path / "log"), "web"]).exit_code == 0
        while server.get("/v1", token=token).status != 401:
            pass
        server.append("t", "after", token=admin)
        replies = [one.result() for one in waiting]
        followed = b""
        while b'{"reason":"revoked"}' not in followed:
            followed += stream.readline()
    assert [reply.status for reply in replies] == [401, 401]
    assert not any(b"after" in body for body in (followed, *(reply.body for reply in replies)))


def test_a_server_beyond_loopback_needs_tokens(tmp_path):
    """And says how they are made; a token by reference will do."""
    for listen in ("0.0.0.0:0", "[::]:0"):
        result = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--listen", listen])
        assert result.exit_code == 1
        assert "loopback only" in result.stderr
        assert "holdfast token create" in result.stderr


def test_a_token_by_reference(serve, tmp_path, monkeypatch):
    text, _ = make("x", ("admin",), ("*",), ManualClock())
    (tmp_path / "t").write_text(text + "\n")
    refused = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--token", f"file:{tmp_path / 't'}"])
    assert "others may read" in refused.stderr
    (tmp_path / "t").chmod(0o600)
    server = serve(tmp_path / "log", "--token", f"file:{tmp_path / 't'}")
    assert server.started["tokens"] is True
    assert server.get("/v1").status == 401
    assert server.get("/v1", token=text).json["token"]["scopes"] == sorted(SCOPES)
    plain = CliRunner().invoke(program, ["serve", str(tmp_path / "other"), "--token", text])
    assert plain.exit_code == 1
    assert text not in plain.stderr


# -- without a server ---------------------------------------------------------------------------------------


def test_the_file_has_hashes_only_and_is_the_owners(tmp_path):
    holdfast.open(tmp_path / "log").close()
    token = create(tmp_path / "log", "web", "--scope", "append", "--topic", "orders", "--expires", "1d")
    path = tmp_path / "log" / "TOKENS"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert token not in path.read_text()
    assert token.rpartition("_")[2] not in path.read_text()
    listed = CliRunner().invoke(program, ["token", "list", str(tmp_path / "log"), "--json"])
    assert json.loads(listed.stdout)["name"] == "web"
    assert token.rpartition("_")[2] not in listed.output
    again = CliRunner().invoke(
        program, ["token", "create", str(tmp_path / "log"), "web", "--scope", "read", "--topic", "*"]
    )
    assert again.exit_code == 1
    missing = CliRunner().invoke(program, ["token", "revoke", str(tmp_path / "log"), "nobody"])
    assert missing.exit_code == 1
    holdfast.open(tmp_path / "log").close()  # the log does not mind the file


@pytest.mark.parametrize("content", ["", "{}", '{"format": "holdfast tokens 9", "tokens": []}', "\x00" * 100])
def test_a_damaged_file_lets_nobody_in(tmp_path, content):
    file = TokenFile(tmp_path / "TOKENS")
    text, stored = make("a", ("read",), ("*",), ManualClock())
    file.add(stored, ManualClock())
    clock = ManualClock()
    access = Access(file, None, clock, 0)
    assert access.caller(f"Bearer {text}").id == stored.id
    (tmp_path / "TOKENS").write_text(content)
    clock.advance(2)
    with pytest.raises(HoldfastError):
        access.caller(f"Bearer {text}")
    with pytest.raises(HoldfastError):
        Access(file, None, clock, 0)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("TOKENS", 0o602), ("TOKENS", 0o640), ("", 0o770), ("", 0o702), ("TOKENS", "another user"), ("", "another user")],
)
def test_a_file_that_is_not_the_owners_alone_lets_nobody_in(tmp_path, name, mode):
    """Others may read, write or replace it: neither at the start nor later. A sticky bit helps."""
    clock, file = ManualClock(), TokenFile(tmp_path / "TOKENS")
    text, stored = make("a", ("read",), ("*",), clock)
    file.add(stored, clock)
    tmp_path.chmod(0o1777)
    access = Access(file, None, clock, 0)
    if isinstance(mode, int):
        (tmp_path / name).chmod(mode)
    elif os.geteuid():
        pytest.skip("only root can give files away")
    else:
        os.chown(tmp_path / name, 12345, -1)
    clock.advance(2)
    with pytest.raises(Unavailable):
        access.caller(f"Bearer {text}")
    with pytest.raises(Invalid, match=r"others may|another user"):
        Access(file, None, clock, 0)


def test_a_token_expires(tmp_path):
    clock = ManualClock()
    file = TokenFile(tmp_path / "TOKENS")
    text, stored = make("a", ("read",), ("*",), clock, expires_us=clock.now_us() + 5_000_000)
    file.add(stored, clock)
    access = Access(file, None, clock, 0)
    assert access.caller(f"Bearer {text}").id == stored.id
    clock.advance(6)
    with pytest.raises(NotKnown):
        access.caller(f"Bearer {text}")


def test_the_example_of_the_format_is_what_is_made():
    page = (Path(__file__).parents[2] / "docs/formats/0016-tokens.md").read_text()
    text, hashed = (line.strip() for line in page.splitlines() if re.match(r"    \S", line))
    token_id, secret = split(text) or ("", b"")
    assert (token_id, secret) == ("0011aabb", bytes(range(32)))
    assert hash_of(token_id, secret).hex() == hashed


def test_a_token_is_bound_to_its_id(tmp_path):
    """The secret of one is none of another, whatever id stands in front of it."""
    clock = ManualClock()
    file = TokenFile(tmp_path / "TOKENS")
    pairs = [make(name, ("read",), ("*",), clock) for name in ("a", "b")]
    for _, stored in pairs:
        file.add(stored, clock)
    access = Access(file, None, clock, 0)
    mixed = f"hft1_{pairs[0][1].id}_{pairs[1][0].rpartition('_')[2]}"
    with pytest.raises(NotKnown):
        access.caller(f"Bearer {pairs[0][0][:14]}{pairs[1][0][14:]}")
    assert split(mixed) is None or mixed not in [text for text, _ in pairs]


def test_without_tokens_everybody_may_until_there_is_one(tmp_path):
    clock, file = ManualClock(), TokenFile(tmp_path / "TOKENS")
    access = Access(file, None, clock, 1)
    assert access.caller(None).may("admin", "_own")
    with pytest.raises(Full):
        access.caller(None)
    file.add(make("a", ("read",), ("*",), clock)[1], clock)
    clock.advance(2)
    with pytest.raises(NotKnown):
        access.caller(None)


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders*", "orders.eu", True),
        ("*", "orders", True),
        ("*", "_own", False),
        ("_*", "_own", True),
        ("_*", "own", False),
        ("*.eu", "orders.eu", True),
        ("o.ders", "orders", False),
        ("a*c*e", "abcde", True),
        ("*", "a\nb", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("ab*ba", "aba", False),
        ("a*b*b", "ab", False),
        ("**", "", True),
        ("a**", "a", True),
        ("a*b*a", "aba", True),
        ("*", "a" * 256, False),
        ("a*" * 127 + "b", "a" * 254, False),
    ],
)
def test_patterns_mean_what_they_say(pattern, topic, matches):
    token = StoredToken("id", "n", "", ("read",), (pattern,), 0)
    caller = Caller(token, None)
    assert caller.may("read", topic) is matches
    assert not caller.may("append", topic)
    if not matches:
        with pytest.raises(Denied):
            caller.require(("read",), topic)


@pytest.mark.parametrize(
    ("host", "origin", "site", "refused"),
    [
        ("localhost:7474", None, None, None),
        ("127.0.0.1", None, "same-origin", None),
        ("[::1]:7474", None, "none", None),
        ("localhost:7474", "http://localhost:7474", None, None),
        ("LOCALHOST", None, None, None),
        ("evil.example:7474", None, None, WrongHost),
        (None, None, None, WrongHost),
        ("localhost.evil.example", None, None, WrongHost),
        ("127.0.0.1.evil.example", None, None, WrongHost),
        ("localhost:7474", "http://evil.example", None, Denied),
        ("localhost:7474", "null", None, Denied),
        ("localhost:7474", "http://localhost:8080", None, Denied),
        ("localhost:7474", None, "cross-site", Denied),
        ("localhost:7474", None, "same-site", Denied),
        ("localhost:1@evil.example", None, None, WrongHost),
        ("localhost, evil.example", None, None, WrongHost),
        ("[::1]evil.example", None, None, WrongHost),
        ("localhost:7474", "http://[", None, Denied),
        ("localhost:7474", "file://localhost:7474", None, Denied),
    ],
)
def test_browsers_of_others_and_foreign_names_are_refused(host, origin, site, refused):
    guard = BrowserGuard("127.0.0.1", "", is_loopback=True)
    given = {b"host": host, b"origin": origin, b"sec-fetch-site": site}
    headers = {name: value.encode() for name, value in given.items() if value is not None}
    for _ in range(2):
        if refused is None:
            guard.check(headers)
        else:
            with pytest.raises(refused):
                guard.check(headers)


def test_a_page_of_another_site_cannot_append(guarded, server: Server):
    """Not with a form, which browsers send without asking, and not by a name that leads here."""
    form = {"content-type": "text/plain", "origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert server.ask("POST", "/v1/topics/csrf/records", '{"payload": "x"}', form).status == 403
    assert server.ask("POST", "/v1/flush", "{}", {"content-type": "text/plain"}).status == 415
    rebound = server.ask("POST", "/v1/topics/csrf/records", {"payload": "x"}, {"host": "evil.example:80"})
    assert (rebound.status, rebound.kind) == (421, "Denied")
    assert server.get("/v1/topics/csrf").status == 404
    asked = server.ask("OPTIONS", "/v1/topics/csrf/records", None, {"origin": "http://evil.example"})
    assert not [name for name in asked.headers if name.startswith("access-control")]


def test_a_token_moves_no_producer_of_other_topics(guarded):
    """Who trusts its last number would leave out what somebody else has sent under its name."""
    server, tokens = guarded

    def send(token: str, topic: str, sequence: int) -> int:
        headers = {"holdfast-producer": "device-7", "holdfast-sequence": str(sequence)}
        path = f"/v1/topics/{topic}/records"
        return server.post(path, {"payload": "x"}, headers=headers, token=tokens[token]).status

    def last(token: str) -> tuple[int, object]:
        reply = server.get("/v1/producers/device-7", token=tokens[token])
        return reply.status, reply.json.get("last")

    assert send("device", "private", 1) == 200
    assert last("device") == (200, 1)
    assert send("device2", "orders", 2) == 403
    assert last("device2") == (403, None)
    with holdfast.connect(server.url, token=lambda: tokens["device2"]) as log, pytest.raises(holdfast.HoldfastError):
        log.producer("device-7").append("orders", b"x", sequence=2)
    assert last("device") == (200, 1)
    assert send("device", "private", 2) == 200


def tokens_of(log: holdfast.Log) -> TokenFile:
    return TokenFile(log.path / "TOKENS", TokenMemory(log))


@pytest.fixture(params=["plain", "keyed"])
def remembering(request, tmp_path, monkeypatch):
    """A log with a token that was made and another that was revoked; the file as it was before, and the revoked one."""
    if request.param == "keyed":
        monkeypatch.setenv("RING", Keyring.generate().encode().decode())
        monkeypatch.setenv("HOLDFAST_CRYPTO__KEYRING", "env:RING")
    path = tmp_path / "log"
    holdfast.open(path).close()
    create(path, "kept", "--scope", "read", "--topic", "*")
    revoked = create(path, "gone", "--scope", "admin", "--topic", "*")
    before = (path / "TOKENS").read_bytes()
    assert CliRunner().invoke(program, ["token", "revoke", str(path), "gone"]).exit_code == 0
    return path, before, revoked


def test_an_older_file_does_not_revive_what_was_revoked(remembering):
    """The log remembers how often the file was changed; one that is put back is refused, at the start and later."""
    path, before, revoked = remembering
    now = (path / "TOKENS").read_bytes()
    with holdfast.open(path) as log:
        clock, file = ManualClock(), tokens_of(log)
        access = Access(file, None, clock, 0)
        with pytest.raises(NotKnown):
            access.caller(f"Bearer {revoked}")
        (path / "TOKENS").write_bytes(before)
        clock.advance(2)
        with pytest.raises(Unavailable, match="cannot be checked"):
            access.caller(f"Bearer {revoked}")
        with pytest.raises(Invalid, match="older than what the log knows"):
            Access(file, None, clock, 0)
        (path / "TOKENS").write_bytes(now)
        assert [one.name for one in Access(file, None, clock, 0)._stored.values()] == ["kept"]


def test_a_log_that_had_tokens_does_not_serve_without_them(remembering, tmp_path):
    """Not once the file is lost, nor after a restore; --no-tokens says it out loud; new ones are taken."""
    path, before, _ = remembering
    with holdfast.open(path, store=tmp_path / "root") as log:
        log.seal()
        log.ship()
    back = tmp_path / "back"
    holdfast.restore(tmp_path / "root", back)
    (path / "TOKENS").unlink()
    for place in (path, back):
        with holdfast.open(place, store=tmp_path / "root" if place == back else None) as log:
            quiet = ServerSettings(listen="127.0.0.1:0")
            with pytest.raises(Invalid, match="had tokens") as caught:
                HttpServer(log, quiet)
            assert "--no-tokens" in caught.value.hint
            HttpServer(log, quiet, no_tokens=True).close()
    (back / "TOKENS").write_bytes(before)
    (back / "TOKENS").chmod(0o600)
    with holdfast.open(back, store=tmp_path / "root") as log, pytest.raises(Invalid, match="older"):
        HttpServer(log, quiet)
    (back / "TOKENS").unlink()
    os.environ["HOLDFAST_STORE__URL"] = str(tmp_path / "root")
    try:
        token = create(back, "anew", "--scope", "read", "--topic", "*")
    finally:
        del os.environ["HOLDFAST_STORE__URL"]
    with holdfast.open(back, store=tmp_path / "root") as log:
        server = HttpServer(log, quiet)
        assert server.access.caller(f"Bearer {token}").token.name == "anew"
        with pytest.raises(Invalid, match="there are tokens"):
            HttpServer(log, quiet, no_tokens=True)
        server.close()


def test_a_forged_file_is_not_believed_in_a_log_with_keys(tmp_path, monkeypatch):
    """A writer of the file who has no key gives himself nothing; nor does a file of another log."""
    monkeypatch.setenv("RING", Keyring.generate().encode().decode())
    monkeypatch.setenv("HOLDFAST_CRYPTO__KEYRING", "env:RING")
    for name in ("one", "other"):
        holdfast.open(tmp_path / name).close()
        create(tmp_path / name, "web", "--scope", "read", "--topic", "orders")
    place = tmp_path / "one" / "TOKENS"
    honest = json.loads(place.read_text())
    wider = {**honest, "tokens": [{**honest["tokens"][0], "scopes": ["admin"], "topics": ["*"]}]}
    with holdfast.open(tmp_path / "one") as log:
        for forged in (
            wider,
            {**honest, "change": 9},
            {**honest, "mac": ""},
            {**honest, "mac": "zz"},
            {**wider, "key_id": "k9"},
            json.loads((tmp_path / "other" / "TOKENS").read_text()),
            {**honest, "key_id": "", "mac": ""},
        ):
            place.write_text(json.dumps(forged))
            with pytest.raises(Corrupt, match="not signed"):
                tokens_of(log).read()
        place.write_text(json.dumps(honest))
        assert tokens_of(log).read()


@pytest.mark.parametrize("how", ["link", "folder", "pipe"])
def test_a_name_that_leads_elsewhere_is_not_believed(tmp_path, how):
    """Nobody gets in, and nobody waits."""
    file, place = TokenFile(tmp_path / "TOKENS"), tmp_path / "TOKENS"
    if how == "link":
        TokenFile(tmp_path / "real").add(make("a", ("read",), ("*",), ManualClock())[1], ManualClock())
        place.symlink_to(tmp_path / "real")
    elif how == "folder":
        place.mkdir()
    else:
        os.mkfifo(place, 0o600)
    with pytest.raises(HoldfastError):
        Access(file, None, ManualClock(), 0)


def test_tokens_that_are_made_while_a_server_runs_are_noted_by_it(serve, tmp_path):
    """A log that loses the file afterwards is one that had tokens, although it began without."""
    path = tmp_path / "log"
    holdfast.open(path).close()
    server = serve(path, "--no-share")
    token = create(path, "web", "--scope", "admin", "--topic", "*", "--topic", "_*")
    deadline = time.monotonic() + 60
    while server.get("/v1/topics/_tokens", token=token).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.stop()
    (path / "TOKENS").unlink()
    with holdfast.open(path) as log, pytest.raises(Invalid, match="had tokens"):
        HttpServer(log, ServerSettings(listen="127.0.0.1:0"))
