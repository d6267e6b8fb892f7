"""docs/reference/cli.md is the contract: every verb, option, field and exit code is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from holdfast import Receipt
from holdfast.cli import exit_codes, output, prices
from holdfast.cli.executions import execution_lines
from holdfast.cli.inspection import inspect_lines, root_report, summary
from holdfast.cli.program import program
from holdfast.cli.verbs import (
    channel,
    config,
    consumer,
    keys,
    metrics,
    read,
    reconcile,
    seal,
    serve,
    ship,
    spark,
    status,
    token,
    topics,
)
from holdfast.model import record_json, row_json
from holdfast.publish.publication import PublicationReport
from holdfast.reconcile.classify import Finding
from holdfast.reconcile.reconcile_report import Repair
from holdfast.recovery.rebuild import LostRecords
from holdfast.results import CompactionReport, PartitionCompaction, RebuildReport, RestoreReport
from holdfast.segments.retention.retention_report import RemovedSegment, RetentionReport
from pyspark_holdfast.pipeline import run_report as pipeline_report
from pyspark_holdfast.pipeline.run_report import InputReport, RunReport
from pyspark_holdfast.pipeline.table_reports import TableStatus

pytestmark = pytest.mark.disk

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
CONTEXT = click.Context(program)
VERBS = program.list_commands(CONTEXT)


def section(title: str) -> str:
    """The text under one heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


def words(document: str) -> set[str]:
    """Everything that stands in back quotes."""
    return set(re.findall(r"`([^`]+)`", document))


def fields(*types: type[Any]) -> set[str]:
    return {field.encode_name for shape in types for field in msgspec.structs.fields(shape)}


def options_of(command: click.Command) -> set[str]:
    """The options of a verb, and of its actions."""
    given = [option for option in command.params if isinstance(option, click.Option)]
    own = {name for option in given for name in (*option.opts, *option.secondary_opts)}
    actions = command.commands.values() if isinstance(command, click.Group) else []
    return own.union(*map(options_of, actions))


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented(verb: str) -> None:
    """Each verb has a section that explains each of its options, and no option that is not there."""
    command = program.get_command(CONTEXT, verb)
    assert command is not None
    options = options_of(command)
    table = {
        word.split()[0]
        for line in section(f"holdfast {verb}").splitlines()
        if line.startswith("| `--")
        for word in re.findall(r"`(-[^`]+)`", line.split("|")[1])
    }
    assert table == options


def test_every_verb_is_in_the_overview() -> None:
    """The list at the top names each verb once, in the order of the help."""
    assert re.findall(r"^holdfast ([\w-]+)", DOCUMENT, re.MULTILINE) == VERBS


def test_global_options_are_documented() -> None:
    """What all verbs share is explained once."""
    assert {"--version", "-h", "--help", "--json", "--keyring REF"} <= words(section("For all verbs"))


@pytest.mark.parametrize(
    ("title", "types"),
    [
        ("For all verbs", [output.ErrorLine]),
        ("holdfast append", [Receipt]),
        ("holdfast read", [record_json.RecordLine, row_json.JsonRow, read.PositionLine]),
        (
            "holdfast topics",
            [topics.TopicEntryLine, topics.SchemaVersionLine, topics.RetentionPolicy, summary.PartitionStatus],
        ),
        (
            "holdfast topics",
            [root_report.RootTopic, root_report.RootPartition, root_report.RootSchema, root_report.RootTable],
        ),
        ("holdfast status", [root_report.RootStatus, root_report.Claim]),
        (
            "holdfast status",
            [
                status.Status,
                status.ShippingStatus,
                prices.Cost,
                summary.TopicStatus,
                summary.PartitionStatus,
                status.KeyName,
                output.Problem,
            ],
        ),
        ("holdfast seal", [seal.SealLine]),
        ("holdfast metrics", [metrics.MetricLine]),
        ("holdfast retain", [RetentionReport, RemovedSegment]),
        ("holdfast reconcile", [reconcile.ReconcileLine, Finding, Repair]),
        ("holdfast rebuild", [RebuildReport, LostRecords]),
        ("holdfast compact", [CompactionReport, PartitionCompaction]),
        ("holdfast publish", [PublicationReport]),
        ("holdfast ship", [ship.ShipReport, ship.UnshippedLine]),
        ("holdfast restore", [RestoreReport]),
        ("holdfast keys", [keys.KeyLine]),
        ("holdfast serve", [serve.ServingLine]),
        ("holdfast token", [token.TokenLine, token.NewTokenLine]),
        ("holdfast consumer", [consumer.ConsumerLine, consumer.ConsumerReport, consumer.ConsumerPartitionLine]),
        (
            "holdfast channel",
            [
                channel.ChannelLine,
                channel.ChannelReport,
                channel.OutgoingLine,
                channel.WaitingLine,
                channel.MissingLine,
                channel.RepairLine,
                channel.MessageLine,
            ],
        ),
        (
            "holdfast execution",
            [
                execution_lines.ExecutionLine,
                execution_lines.ExecutionReport,
                execution_lines.StepLine,
                execution_lines.EventLine,
                execution_lines.ChangeLine,
                execution_lines.BroughtLine,
                execution_lines.PruneLine,
            ],
        ),
        ("holdfast spark", [spark.SparkAnswer]),
        ("holdfast spark", [RunReport, pipeline_report.TableReport, InputReport, TableStatus]),
        ("holdfast config", [config.Config, config.Setting, prices.Cost]),
    ],
)
def test_every_json_field_is_documented(title: str, types: list[type[Any]]) -> None:
    """Each field that a verb prints with --json is in its section."""
    assert fields(*types) <= words(section(title))


@pytest.mark.parametrize("line", inspect_lines.LINES)
def test_every_line_of_an_inspection_is_documented(line: type[Any]) -> None:
    """Each type of line has a row in the table, which names each of its fields."""
    tag = line.__struct_config__.tag
    rows = [row for row in section("holdfast inspect").splitlines() if row.startswith(f"| `{tag}` |")]
    assert len(rows) == 1
    assert fields(line) <= words(rows[0])


def test_every_exit_code_is_documented() -> None:
    """The table of exit codes has exactly those that there are."""
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("For all verbs"), re.MULTILINE)}
    assert codes == {exit_codes.FINE, exit_codes.REFUSED, exit_codes.USAGE, exit_codes.DAMAGED, exit_codes.INTERRUPTED}


def test_every_kind_of_error_is_documented() -> None:
    """All kinds that `error` can be are named."""
    from holdfast import errors

    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError) and kind is not errors.HoldfastError
    }
    assert kinds | {"Usage", "OSError", "Defect"} <= words(section("For all verbs"))
