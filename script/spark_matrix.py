#!/usr/bin/env python3
"""The tests of Spark on each Spark that is supported: `script/test spark-matrix`.

    script/spark_matrix.py                  a chosen part, on each of them; some minutes for each
    script/spark_matrix.py --all            everything in tests/spark
    script/spark_matrix.py --all --write    the same, and the table of docs/reference/spark.md is what came out
    SPARK=4.1.4 script/spark_matrix.py      on this one only; SPARK=older: on all but the newest
    script/spark_matrix.py -- -k sink       words after -- go to pytest

An environment lies in .venv-spark/VERSION and is kept. It has a Spark of its own, which requirements/spark.txt names
with its hash, and takes all other packages from .venv, so that nothing else differs. What an older Spark cannot do is
refused with a sentence that names the version; such a test counts as refused, and any other failure ends with code 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-spark"
PAGE = ROOT / "docs/reference/spark.md"
BEGIN, END = "<!-- spark-matrix: made by script/spark_matrix.py -->\n", "<!-- /spark-matrix -->\n"
REFUSED = "this needs Spark"
PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"

AREAS = {
    "batch reads, SQL, marks": ("source", "include_tail", "differential", "flipped_bits", "bundles", "trace_ids"),
    "Spark's own reader": ("native", "native_rule", "plain_parquet"),
    "streams": ("stream", "stream_kill", "many_streams", "native_stream", "lag", "model"),
    "sink": ("sink", "sink_kill", "chain"),
    "pipelines": (
        *("pipeline", "pipeline_kill", "pipeline_examples", "table_writing", "backfill", "row_dependence"),
        *("run_table", "builtin_tables", "execution_tables", "channels_example", "busy"),
    ),
    "compaction": ("compact_job", "compact_kill"),
    "a cluster, declarative pipelines": ("cluster", "declarative_example"),
}
"""Rows of the table: what a user looks for, and its test modules."""
CHOSEN = ("source", "native_rule", "stream", "native_stream", "sink", "pipeline", "table_writing", "compact_job")
"""The part that takes minutes: each difference between versions is met in it."""


def main() -> int:
    """Run the tests on each version, print the table, and say by the exit code whether all is well."""
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    mine, words = sys.argv[1:at], sys.argv[at + 1 :]
    modules = [name for area in AREAS.values() for name in area] if "--all" in mine else list(CHOSEN)
    pins = dict(
        re.findall(r"^pyspark==(\S+) (.*)$", (ROOT / "requirements/spark.txt").read_text("utf-8"), re.MULTILINE)
    )
    newest = run(ROOT / ".venv/bin/python", "-c", "import pyspark; print(pyspark.__version__)").strip()
    wanted = os.environ.get("SPARK", "")
    versions = {"": [*pins, newest], "older": [*pins]}.get(wanted, [wanted])
    if not {*versions} <= {*pins, newest}:
        sys.exit(f"spark-matrix: there is no {wanted} here, but: older, {', '.join(pins)}, {newest}")
    for version in versions:
        python = ROOT / ".venv/bin/python" if version == newest else environment(version, pins[version])
        tests = [f"tests/spark/test_{name}.py" for name in modules]
        report = HOME / f"{version}.xml"
        command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *words, *tests]
        print(f"spark-matrix: {version}", file=sys.stderr, flush=True)
        report.parent.mkdir(exist_ok=True)
        report.unlink(missing_ok=True)
        subprocess.run(command, cwd=ROOT, check=False)
    return report_on({version: outcomes(HOME / f"{version}.xml") for version in versions}, is_written="--write" in mine)


def report_on(found: dict[str, dict[str, Counter[str]]], *, is_written: bool) -> int:
    """Print the table; put it into the page with --write."""
    text = table(found)
    print(text, end="")
    if is_written:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")
    counted = [sum(areas.values(), Counter()) for areas in found.values()]
    return int(any(count["failed"] or not count["passed"] for count in counted))


def environment(version: str, hashes: str) -> Path:
    """The Python of a version's environment, made where it is missing."""
    place = HOME / version
    done = place / "done"
    if not done.exists():
        shared = run(ROOT / ".venv/bin/python", "-c", PACKAGES).strip()
        run(ROOT / ".venv/bin/python", "-m", "venv", "--clear", "--without-pip", place)
        own = Path(run(place / "bin/python", "-c", PACKAGES).strip())
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write(f"pyspark=={version} {hashes}\n")
            requirements.flush()
            pip = ["-m", "pip", "--python", place / "bin/python", "install", "-q", "--disable-pip-version-check"]
            run(ROOT / ".venv/bin/python", *pip, "--no-deps", "--require-hashes", "-r", requirements.name)
        (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", "utf-8")  # after its own
        (place / "bin/weed").symlink_to(ROOT / ".venv/bin/weed")  # the S3 server of tests; found beside their Python
        done.touch()
    return place / "bin/python"


def run(*command: str | Path) -> str:
    """What a command prints; its failure ends this."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def outcomes(report: Path) -> dict[str, Counter[str]]:
    """How many tests of each area passed, were refused and failed, from pytest's report."""
    found = {area: Counter[str]() for area in AREAS}
    areas = {f"tests.spark.test_{module}": area for area, modules in AREAS.items() for module in modules}
    for case in ElementTree.parse(report).iter("testcase"):
        area = next((areas[name] for name in areas if re.match(rf"{name}(\.|$)", case.get("classname", ""))), None)
        if area is None:
            area = areas.get(case.get("name", ""), next(iter(AREAS)))  # a module that could not be imported
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        words = " ".join(f"{child.get('message')} {child.text}" for child in problems)
        if not problems:
            found[area]["passed"] += 1
        elif any(child.tag != "skipped" for child in problems):
            found[area]["failed"] += 1
        elif REFUSED in words:
            found[area]["refused"] += 1
    return found


def table(found: dict[str, dict[str, Counter[str]]]) -> str:
    """The outcomes in Markdown: a row for each area that was tested, a column for each version."""
    lines = [f"| tests | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for area in AREAS:
        counts = [areas[area] for areas in found.values()]
        if any(counts):
            lines.append(f"| {area} | {' | '.join(map(cell, counts))} |")
    return "\n".join(lines) + "\n"


def cell(count: Counter[str]) -> str:
    """One area on one version."""
    parts = [f"{count['passed']} pass", *(f"{count[kind]} {kind}" for kind in ("refused", "failed") if count[kind])]
    return ", ".join(parts) if count else "not run"


if __name__ == "__main__":
    sys.exit(main())
