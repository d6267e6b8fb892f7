"""A value that a program made once and gave to the outside is the same after a crash, whatever the effect's class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

PROGRAM = """
import asyncio, os, signal, sys
import holdfast

path, witness, effect, kind, kill = sys.argv[1:]
options = {"effect": effect, **({"on_ambiguous": "rerun"} if effect == "exactly_once_guarded" else {})}


def pay(key, *more):
    with open(witness, "a") as file:
        file.write(f"{key} {more}\\n")
        file.flush()
        os.fsync(file.fileno())
    if kill == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


async def pay_async(key, *more):
    pay(key, *more)


async def wait(seconds):
    await asyncio.sleep(seconds)


def blocking(log):
    with log.execution("order", id="01890000-0000-7000-8000-000000000001") as ctx:
        ctx.step("before", lambda: 1)
        ctx.step("pay", pay, str(ctx.uuid()), ctx.random(), str(ctx.now()), **options)


async def awaiting(log):
    async with log.execution("order", id="01890000-0000-7000-8000-000000000001") as ctx:
        await ctx.step("before", wait, 0)
        winner, _ = await ctx.first(ctx.step("a", wait, 0.0), ctx.step("b", wait, 0.001))
        await ctx.step("pay", pay_async, str(ctx.uuid()), winner, **options)


with holdfast.open(path) as log:
    blocking(log) if kind == "blocking" else asyncio.run(awaiting(log))
"""


@pytest.mark.sampled(1, each="effect")
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
@pytest.mark.parametrize("effect", ["idempotent", "at_least_once", "exactly_once_guarded"])
def test_what_was_given_away_is_given_again(tmp_path: Path, effect: str, kind: str) -> None:
    witness = tmp_path / "witness"
    for kill in ("kill", "kill", "no"):
        arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(witness), effect, kind, kill]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True)
        assert done.returncode == (-9 if kill == "kill" else 0), done.stderr
    given = witness.read_text().splitlines()
    assert len(given) == 3
    assert len(set(given)) == 1
