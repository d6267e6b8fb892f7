"""A server and other processes on one log: the server owns it while it is there, and somebody else afterwards."""

from __future__ import annotations

import http.client
import json

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli.program import program
from tests.server.conftest import PATIENCE, events

pytestmark = pytest.mark.disk


def test_programs_and_a_server_use_one_log_at_the_same_time(serve, tmp_path):
    """What a program appends is followed over HTTP, and the other way round; a killed server is no loss."""
    server = serve(tmp_path / "log")
    server.append("t", "from the server")
    with holdfast.open(tmp_path / "log", share=True) as log:
        assert [record.payload for record in log.topic("t").read()] == [b"from the server"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("GET", "/v1/topics/t/follow")
        stream = events(connection.getresponse())
        assert next(stream)[0] == ":"
        assert log.topic("t").append(b"from a program").offset == 1
        data = next(data for kind, _, data in stream if kind == "record")
        assert json.loads(data)["payload"] == "from a program"
        connection.close()
        server.process.kill()
        server.process.wait(PATIENCE)
        assert log.topic("t").append(b"it goes on", timeout=PATIENCE).offset == 2
        again = serve(tmp_path / "log")  # it is handed the log
        assert again.payloads("t") == ["from the server", "from a program", "it goes on"]
        headers = {"holdfast-producer": "p", "holdfast-sequence": "1"}
        replies = [again.post("/v1/topics/t/records", {"payload": "once"}, headers=headers) for _ in range(2)]
        assert [reply.json["repeated"] for reply in replies] == [False, True]
        assert log.topic("t").append(b"beside it", timeout=PATIENCE).offset == 4
    code, said = again.stop()
    assert code == 0, said


def test_a_server_that_owns_its_log_alone(serve, tmp_path):
    server = serve(tmp_path / "log", "--no-share")
    server.append("t", "a")
    with pytest.raises(holdfast.HoldfastError):
        holdfast.open(tmp_path / "log")
    assert server.stop()[0] == 0


def test_without_the_extra_one_line_says_which(tmp_path, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith(("holdfast.server.", "httptools"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httptools", None)
    result = CliRunner().invoke(program, ["serve", str(tmp_path / "log")])
    assert result.exit_code == 1
    assert "pip install 'holdfast-log[server]'" in result.stderr
    assert not (tmp_path / "log").exists()


def test_a_log_has_one_server_and_the_second_learns_why(serve, tmp_path):
    server = serve(tmp_path / "log")
    second = CliRunner().invoke(program, ["serve", str(tmp_path / "log"), "--listen", "127.0.0.1:0"])
    assert second.exit_code == 1
    assert "keeps it: it serves it" in second.stderr
    assert server.append("t", "a").status == 200
    assert server.stop()[0] == 0
