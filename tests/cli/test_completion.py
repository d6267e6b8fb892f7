"""Completion, by the protocol that bash, zsh and fish speak with the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Keyring
from holdfast.cli.program import program
from tests.cli.conftest import tamper

pytestmark = pytest.mark.disk

PROGRAM = [sys.executable, "-m", "holdfast"]


def complete(*words: str, shell: str = "bash") -> list[str]:
    """What a shell learns about the last of these words."""
    line = " ".join(["holdfast", *words])
    asked = words[-1] if shell == "fish" else str(len(words))
    environment = {"_HOLDFAST_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": asked}
    done = CliRunner(env=environment).invoke(program, [], prog_name="holdfast")
    assert (done.stderr, done.exit_code) == ("", 0)
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_verbs_options_and_directories() -> None:
    """Verbs by their beginning, options of a verb, directories where a log is asked for."""
    assert complete("sta") == ["plain,status"]
    assert "plain,--limit" in complete("read", "data", "orders", "--l")
    assert complete("help", "rec") == ["plain,reconcile"]
    assert complete("channel", "hi") == ["plain,history"]
    for verb in ("read", "status", "append", "topics"):
        assert complete(verb, "da") == ["dir,da"]


@pytest.mark.parametrize("verb", ["read", "append", "tail"])
def test_topics_of_the_named_log_are_completed(log: Path, verb: str) -> None:
    """The topics of the log that was named before; none of what is no log, or is damaged, and no error."""
    assert complete(verb, str(log), "o") == ["plain,orders"]
    assert complete(verb, str(log), "''") == ["plain,idle", "plain,orders"]
    assert complete(verb, "nowhere", "o") == []
    assert complete(verb, "s3://bucket/prefix", "o") == []
    (log / "durable.db").write_bytes(b"hello" * 1000)
    assert complete(verb, str(log), "o") == []


def test_executions_and_consumers(tmp_path: Path) -> None:
    """Ids and names of the log that was named before; without its key, nothing and no error."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"x")
        consumer = log.topic("orders").consumer("billing")
        assert [record.payload for record in consumer.poll()] == [b"x"]
        consumer.commit()
        with log.execution("import") as ctx:
            known = str(ctx.id)
    assert complete("consumer", "show", str(log.path), "b") == ["plain,billing"]
    assert complete("execution", "show", str(log.path), known[:6]) == [f"plain,{known}"]
    with holdfast.open(tmp_path / "secret", keyring=Keyring.generate()) as log:
        log.topic("orders").append(b"x")
    assert complete("consumer", "show", str(log.path), "b") == []


def test_hostile_names_are_not_offered(log: Path) -> None:
    """A name that nobody could have given goes to no shell."""
    tamper(log, "UPDATE topics SET name = 'orders$(touch x)' WHERE name = 'orders'")
    assert complete("read", str(log), "o") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str) -> None:
    """The same for zsh and fish."""
    assert "status" in " ".join(complete("sta", shell=shell))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_a_script(shell: str) -> None:
    """What the documentation says to evaluate is a script, and bash takes it."""
    environment = {**os.environ, "_HOLDFAST_COMPLETE": f"{shell}_source"}
    script = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True).stdout
    assert "holdfast" in script
    if shell == "bash" and shutil.which("bash"):
        sourced = subprocess.run(
            ["bash", "-c", f"{script}\ncomplete -p holdfast"], capture_output=True, text=True, check=True
        )
        assert "_holdfast_completion" in sourced.stdout
