"""Celery's prefork pool, as its page shows it: every order that was sent is stored once, also of killed processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

import holdfast
from tests.howto.pages import command, write_files
from tests.howto.servers import Server

pytestmark = pytest.mark.crash
PAGE = "celery.md"
SUCCEEDED = re.compile(r"succeeded in .*'worker': (\d+)")
DIE_ONCE = """
from celery.signals import task_success

app.conf.worker_lost_wait = 0.5  # ten seconds are much for a test


@task_success.connect  # the record is written, and Celery does not know yet
def die_once(**_):
    if os.path.exists("die") and str(os.getpid()) in open("data/LOCK").read().split()[:1]:
        os.unlink("die")
        os.kill(os.getpid(), 9)
"""
"""Kills the owner inside of a task. At another moment it could hold the lock of the pipe that Celery's processes share
where the broker is a folder: then nobody gets a task any more."""


@pytest.fixture
def folder(tmp_path):
    write_files(PAGE, tmp_path)
    (tmp_path / "broker").mkdir()
    tasks = tmp_path / "tasks.py"
    tasks.write_text(tasks.read_text() + DIE_ONCE)
    return tmp_path


def test_the_owner_is_killed_while_tasks_run(folder):
    """Both processes write; kill -9 of the owner after its append: the task runs again, no order is stored twice."""
    send = command(PAGE, "python send.py")[:-1]
    days: list[str] = []

    def order() -> None:
        days.append(f"day{len(days)}")
        subprocess.run([*send, days[-1]], cwd=folder, check=True)

    order()
    with Server(command(PAGE, "celery"), folder, C_FORCE_ROOT="1") as worker:
        # One that is ready early may take all that is there before the other one is.
        while len(set(worker.wait_for(SUCCEEDED, count=100 * len(days)))) < 2:
            order()
        (folder / "die").touch()
        order()
        worker.wait_for("signal 9 \\(SIGKILL\\)")
        worker.wait_for(SUCCEEDED, count=100 * len(days))
        assert worker.end() == 0
    with holdfast.open(folder / "data", read_only=True) as log:
        stored = Counter(record.payload.decode() for record in log.topic("orders").read())
    sent = [f"{day}-{number}" for day in days for number in range(100)]
    assert stored == Counter(sent)
    assert len(set(worker.wait_for(SUCCEEDED))) >= 2
    assert "unclosed log" not in worker.output
    assert not (folder / "data" / "SOCKET").exists()


def test_a_sender_needs_no_log(folder):
    """Importing the tasks opens nothing."""
    done = subprocess.run([sys.executable, "-c", "import tasks"], cwd=folder, check=False)
    assert done.returncode == 0
    assert not (folder / "data").exists()
