"""Celery's prefork pool, as its page shows it: every order that was sent is stored once, also of killed processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

import holdfast
from tests.howto.pages import command, write_files
from tests.howto.servers import Server, owner

pytestmark = pytest.mark.crash
PAGE = "celery.md"
SUCCEEDED = re.compile(r"succeeded in .*'worker': (\d+)")


@pytest.fixture
def folder(tmp_path):
    write_files(PAGE, tmp_path)
    (tmp_path / "broker").mkdir()
    tasks = tmp_path / "tasks.py"  # ten seconds are much for a test
    tasks.write_text(tasks.read_text() + "\napp.conf.worker_lost_wait = 0.5\n")
    return tmp_path


def test_the_owner_is_killed_while_tasks_run(folder):
    """Both processes write; kill -9 of the owner: its task runs again, and no order is stored twice."""
    send = command(PAGE, "python send.py")[:-1]
    for day in ("monday", "tuesday"):
        subprocess.run([*send, day], cwd=folder, check=True)
    with Server(command(PAGE, "celery"), folder, C_FORCE_ROOT="1") as worker:
        while len(set(worker.wait_for(SUCCEEDED, count=10))) < 2:
            worker.wait_for(SUCCEEDED, count=len(worker.wait_for(SUCCEEDED)) + 1)
        os.kill(owner(folder / "data"), signal.SIGKILL)
        late = subprocess.Popen([*send, "wednesday"], cwd=folder)
        assert late.wait(60) == 0
        worker.wait_for(SUCCEEDED, count=300)
        assert worker.end() == 0
    with holdfast.open(folder / "data", read_only=True) as log:
        stored = Counter(record.payload.decode() for record in log.topic("orders").read())
    sent = [f"{day}-{number}" for day in ("monday", "tuesday", "wednesday") for number in range(100)]
    assert stored == Counter(sent)
    assert len(set(worker.wait_for(SUCCEEDED))) >= 2
    assert "unclosed log" not in worker.output
    assert not (folder / "data" / "SOCKET").exists()


def test_whoever_sends_needs_no_log(folder):
    """Importing the tasks opens nothing."""
    done = subprocess.run([sys.executable, "-c", "import tasks"], cwd=folder, check=False)
    assert done.returncode == 0
    assert not (folder / "data").exists()
