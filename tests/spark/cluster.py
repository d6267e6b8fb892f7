"""A real standalone Spark cluster on loopback: a master and two workers, each a JVM of its own, from the pip package.

Jobs are handed in with spark-submit, as on any cluster. Everything is written below one directory; when the cluster is
left, its processes are gone.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from pyspark_holdfast.java import java_home
from pyspark_holdfast.versions.newest_java import newest_java
from tests.spark.jvm import BRIEF

HOME = Path(pyspark.__file__).parent
PATIENCE = 180


class Cluster:
    """Where jobs go."""

    def __init__(self, url: str, environment: dict[str, str], directory: Path) -> None:
        self.url = url
        self._environment = environment
        self._directory = directory

    def submit(self, job: Path, *arguments: str, timeout: int = 360) -> subprocess.CompletedProcess[str]:
        """Run a job on the cluster, with its driver here."""
        settings = {
            "spark.driver.extraJavaOptions": BRIEF,
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": BRIEF,
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            "spark.ui.enabled": "false",
        }
        pairs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.url, *pairs, str(job), *arguments]
        return subprocess.run(
            command,
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """A master and two workers with a core each."""
    environment = {
        "HOME": str(directory),
        "JAVA_HOME": str(java_home(os.environ, directory / "java", newest_java())),
        "PATH": os.environ.get("PATH", os.defpath),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": BRIEF,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_WORKER_DIR": str(directory / "work"),
        "TZ": "UTC",
    }
    with ExitStack() as stack:
        port = free_port()
        url = f"spark://127.0.0.1:{port}"
        master = [
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ]
        stack.enter_context(process(master, environment, directory / "master.log", r"New state: ALIVE"))
        for number in (1, 2):
            worker = [
                "org.apache.spark.deploy.worker.Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                url,
            ]
            log = directory / f"worker-{number}.log"
            stack.enter_context(process(worker, environment, log, r"Successfully registered with master"))
        yield Cluster(url, environment, directory)


@contextmanager
def process(command: list[str], environment: dict[str, str], log: Path, ready: str) -> Iterator[None]:
    """One of Spark's daemons, from when it says that it is ready."""
    with log.open("wb") as stream:
        running = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *command],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while re.search(ready, log.read_text(errors="replace")) is None:
                assert running.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() < deadline, log.read_text(errors="replace")
                time.sleep(0.1)
            yield
        finally:
            running.terminate()
            try:
                running.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
