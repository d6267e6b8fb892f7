"""Bronze: the records of a topic as a table, decoded, each one with its place. Nothing is ever left out.

A record whose payload cannot be decoded is a row like the others: `_problem` says what is wrong with it, `_payload`
has its bytes, and the decoded columns are null. Columns that belong to the log begin with `_`, as in typed topics, so
fields of a payload may be called `offset` or `time`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from holdfast.errors import Invalid
from pyspark_holdfast.pipeline.table_definition import Table, append, table, topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_BROKEN = "_holdfast_broken"
_OWN = ("_partition", "_offset", "_time", "_key", "_kind", "_headers", "_payload", "_problem")
NOT_TEXT, NOT_JSON, NOT_FITTING = "not UTF-8", "not a JSON object", "does not fit the schema"
"""What `_problem` says."""


def bronze(
    name: str,
    *,
    schema: str | StructType | None = None,
    keep_payload: bool = False,
    called: str = "",
    **options: str | int | bool,
) -> Table:
    """The records of topic `name`: payloads as text, or as JSON objects with a schema ("id string, amount double").

    Rows of a typed topic are taken as they are. `keep_payload` keeps the bytes of all payloads, not only of those that
    could not be decoded. `called` is the table's name, "bronze_<topic>" by default; options are those of the format.
    """
    fields = _fields(schema)

    @table(
        inputs=topic(name, **options),
        kind=append(),
        name=called or f"bronze_{name}",
        description=f"The records of {name}, decoded; those that cannot be decoded have a _problem.",
    )
    def made(records: DataFrame) -> DataFrame:
        return records if "_offset" in records.columns else decoded(records, fields, keep_payload=keep_payload)

    return made


def _fields(schema: str | StructType | None) -> StructType | str | None:
    """Names are checked when they can be: text is parsed by Spark, which need not run yet."""
    if schema is not None and not isinstance(schema, str):
        _check_names(schema)
    return schema


def _check_names(schema: StructType) -> None:
    taken = [name for name in schema.fieldNames() if name in (*_OWN, _BROKEN)]
    if taken:
        raise Invalid(
            f"these columns of a bronze table belong to the log columns={','.join(taken)}",
            hint="leave them out of the schema; keep_payload=True keeps all that the payload says",
        )


def decoded(records: DataFrame, schema: StructType | str | None, *, keep_payload: bool = False) -> DataFrame:
    """Raw records with their payloads decoded; one row for each."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    text = F.col("value").cast("string")
    is_text = F.is_valid_utf8(text)
    if schema is None:
        problem = F.when(~is_text, NOT_TEXT)
        columns = [F.when(is_text, text).alias("value")]
        rows = records
    else:
        fields = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
        _check_names(fields)
        rows = records.withColumn(_BROKEN, F.when(is_text, _parsed(text, fields)))
        problem = _json_problem(is_text)
        columns = [F.when(problem.isNull(), F.col(f"{_BROKEN}.`{name}`")).alias(name) for name in fields.fieldNames()]
    kept = F.col("value") if keep_payload else F.when(problem.isNotNull(), F.col("value"))
    return rows.select(
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_time"),
        F.col("key").alias("_key"),
        F.col("kind").alias("_kind"),
        F.col("headers").alias("_headers"),
        *columns,
        kept.alias("_payload"),
        problem.alias("_problem"),
    )


def _parsed(text: Column, fields: StructType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructField, StructType

    # Spark puts what it cannot read, or cannot read all of, into this column, and goes on.
    schema = StructType([*fields.fields, StructField(_BROKEN, StringType())])
    return F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN})


def _json_problem(is_text: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("value").cast("string")
    # Spark's parsers read one value, and pass over whatever follows it. What is valid inside of an array, and also as a
    # member of an object, is one value from its first to its last character.
    is_value = F.lit(True)
    for before, after in (("[", "]"), ('{"a":', "}")):
        is_value &= F.try_parse_json(F.concat(F.lit(before), text, F.lit(after))).isNotNull()
    is_object = is_value & text.rlike(r"\A[ \t\r\n]*\{")  # an array would give its first element
    whole = F.col(_BROKEN).isNotNull() & F.col(f"{_BROKEN}.{_BROKEN}").isNull()
    return F.when(~is_text, NOT_TEXT).when(~is_object, NOT_JSON).when(~whole, NOT_FITTING)
