"""The orders of `examples.pipeline_orders` as a Spark declarative pipeline: Spark keeps the tables, holdfast the log.

    python -m examples.declarative.run [DIRECTORY]

It copies this project (spark-pipeline.yml, transformations/) to a directory, writes a day of orders, runs it with
`spark-pipelines`, writes another day and runs it again: the second run reads only what is new. Needs the extra that
Spark has for it: pip install 'pyspark[pipelines]'. Where Spark's own tables are enough, this is the shortest way; what
our pipelines add is in docs/howto/pipeline.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from examples import pipeline_orders

from pyspark_holdfast.java import java_home
from pyspark_holdfast.spark_session import java_options

HERE = Path(__file__).parent


def copy(directory: Path) -> Path:
    """The project with the paths of this place in it; Spark writes nowhere else."""
    directory = directory.absolute()
    project = directory / "project"
    shutil.copytree(HERE, project, ignore=shutil.ignore_patterns("__pycache__", "run.py", "__init__.py"))
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        text = (project / name).read_text(encoding="utf-8").replace("DIRECTORY", str(directory))
        (project / name).write_text(text.replace("JAVA_OPTIONS", java_options(directory)), encoding="utf-8")
    # The server of a run tells at length that its client has left.
    with (directory / "log4j2.properties").open("a", encoding="ascii") as settings:
        settings.write("logger.left.name = org.apache.spark.sql.connect.utils.ErrorUtils\nlogger.left.level = off\n")
    return project


def spark_pipelines(project: Path, root: Path, *words: str) -> None:
    """Run Spark's own command line; raises when it fails."""
    directory = project.parent
    environment = {
        **os.environ,
        "ORDERS_ROOT": str(root.absolute()),
        "SPARK_CONF_DIR": str(project / "conf"),
        "JAVA_HOME": str(java_home(os.environ, directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    program = Path(sysconfig.get_path("scripts")) / "spark-pipelines"
    subprocess.run([str(program), *words], cwd=project, env=environment, check=True)  # noqa: S603


def run(directory: Path) -> None:
    """Two days of orders, and a run after each."""
    project = copy(directory)
    for day in (0, 1):
        rows = pipeline_orders.write(directory, day)
        print(f"day {day + 1}: {rows} changes of orders; Spark starts …", flush=True)
        spark_pipelines(project, directory / "store", "run")


def tables(directory: Path) -> dict[str, list[dict[str, object]]]:
    """The rows of Spark's tables, read without Spark."""
    import pyarrow.parquet as pq

    folders = [folder for folder in sorted((directory / "warehouse").iterdir()) if folder.is_dir()]
    return {folder.name: pq.read_table(folder).to_pylist() for folder in folders}


def main() -> int:
    """Write, run, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="where to keep it (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        run(directory)
        for name, rows in tables(directory).items():
            print(f"{name}: {len(rows)} rows, as {rows[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
