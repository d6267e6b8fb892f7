"""One scan of Spark's own Parquet reader over exactly the segments that manifests name.

`spark.read.parquet(*paths)` would read the same files, but does not know the topic and partition of each. Deriving them
from file names slows every query down, even a count. A Spark table that is partitioned by folder knows them for free,
and skips whole folders that a filter excludes. So we build one: the files, and for each folder its topic, its partition
and the wanted offsets. That takes five internal classes of Spark (`InMemoryFileIndex`, `PartitionSpec`,
`PartitionPath`, `HadoopFsRelation`, and `ParquetFileFormat`, from which `NativeFormat.java` derives one that skips
nothing by bounds of floats). If they are not as expected, or the files cannot be reached, that is `Unscannable`, and
the caller reads through the format.

Spark silently skips a file that is missing when it lists. So we compare the number and size of what it found with the
manifests: a missing file is never ignored.

Spark treats two scans of the same files as equal. It then reads once for both, or uses the cache of one for the other.
It does not compare the constants of folders. So they are also put into the options of a scan, which it does compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.reader.offsets import PartitionMark, ReadMarks, Where, format_marks
from holdfast.reader.read_plan import Piece
from holdfast.store.address import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = {
    # Whatever the session says: a missing file is an error.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    # Dates and times follow today's calendar, back to the year 1.
    "datetimeRebaseMode": "CORRECTED",
    # Row by row Parquet filters otherwise than Spark, to which -0.0 is 0.0.
    "parquet.filter.record-level.enabled": "false",
    # A flipped bit is an error, of files that carry checksums of their pages.
    "parquet.page.verify-checksum.enabled": "true",
}
_TOLD = "holdfast.folders"
"""An option that nobody reads: it keeps scans apart that differ only in the options of their folders."""
_SCHEMES = {"file": "file", "s3": "s3a", "gs": "gs", "abfss": "abfss"}
"""What Hadoop calls the stores that it may know."""
_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_FILES_OF_SPARK, _FILES_MAX = 32, "100000"
"""Up to so many files the driver looks for itself: by Spark's default, and here, because a job takes longer."""
_FAILURES = (Py4JError, PySparkException)
"""What calls into the JVM raise."""


class Unscannable(Exception):
    """Spark's own reader cannot be used here; the message says why."""


class FolderConstants(NamedTuple):
    """Constants of the files in one folder, one column each."""

    topic: str
    partition: int
    start: int
    end: int


def folders_of(pieces: Sequence[Piece]) -> dict[Where, FolderConstants]:
    """The partitions of these pieces, each with the wanted offsets."""
    found: dict[Where, FolderConstants] = {}
    for piece in pieces:
        where = (piece.head.topic, piece.head.partition)
        known = found.get(where, FolderConstants(*where, piece.start, piece.end))
        found[where] = FolderConstants(*where, min(known.start, piece.start), max(known.end, piece.end))
    return found


def check_reach(spark: SparkSession, address: StoreAddress) -> None:
    """Unscannable if Spark cannot reach a store's files. Sends no request."""
    scheme = _SCHEMES.get(address.scheme)
    if scheme is None:
        raise Unscannable(f"Spark has no way to {address.scheme}://")
    if getattr(spark, "_jvm", None) is None:
        raise Unscannable("the session is remote: what it reaches is not known here")
    if scheme == "file":
        return
    java = _Java(spark)
    try:
        settings = java.session.sessionState().newHadoopConf()
        java.kind("org.apache.hadoop.fs.FileSystem").getFileSystemClass(scheme, settings)
    except _FAILURES:
        raise Unscannable(f"Spark has no Hadoop connector for {scheme}://") from None


def relation_of(
    spark: SparkSession, address: StoreAddress, pieces: Sequence[Piece], places: StructType, columns: StructType
) -> Any:
    """All rows of these pieces' files, for the JVM: `columns` of the files, and `places`, one for each of a Folder."""
    if "${" in columns.simpleString():  # Spark hands names over in a setting of Hadoop's, which replaces that
        raise Unscannable("Spark's own reader would look for columns under other names: they have ${…}")
    base = f"{_SCHEMES[address.scheme]}://{address.place}" + (f"/{address.prefix}" if address.prefix else "")
    try:
        java = _Java(spark)
        options, nothing = java.options({**_OPTIONS, _TOLD: _digest(pieces)}), java.kind("scala.Option").empty()
        of_folders = java.schema(places)
        spec = java.spark("PartitionSpec")(of_folders, java.sequence(_partitions(java, base, pieces, of_folders)))
        cache = getattr(java.spark("NoopCache$"), "MODULE$")
        paths = _paths(java, [f"{base}/{piece.key}" for piece in pieces])
        with _listed_by_driver(spark, len(pieces)):
            index = java.spark("InMemoryFileIndex")(
                java.session, paths, options, nothing, cache, java.kind("scala.Option").apply(spec), nothing
            )
        _check(java, index, pieces)
        return java.spark("HadoopFsRelation")(
            index, of_folders, java.schema(columns), nothing, java.file_format(), options, java.session
        )
    except _FAILURES as error:
        raise Unscannable(f"Spark does not reach the files error={_kind(error)}") from error


def plain_relation(spark: SparkSession, address: StoreAddress, sizes: Mapping[str, int], columns: StructType) -> Any:
    """All rows of some files, by their keys and sizes, for the JVM; a column that a file lacks is null there."""
    base = f"{_SCHEMES[address.scheme]}://{address.place}" + (f"/{address.prefix}" if address.prefix else "")
    try:
        java = _Java(spark)
        options, nothing = java.options(_OPTIONS), java.kind("scala.Option").empty()
        cache = getattr(java.spark("NoopCache$"), "MODULE$")
        # Without folders that say something: Spark would make columns of those that are called "day=…".
        spec = java.spark("PartitionSpec")(java.schema(StructType([])), java.sequence([]))
        paths = _paths(java, [f"{base}/{key}" for key in sizes])
        with _listed_by_driver(spark, len(sizes)):
            index = java.spark("InMemoryFileIndex")(
                java.session, paths, options, nothing, cache, java.kind("scala.Option").apply(spec), nothing
            )
        _check_sizes(java, index, len(sizes), sum(sizes.values()))
        return java.spark("HadoopFsRelation")(
            index, java.schema(StructType([])), java.schema(columns), nothing, java.file_format(), options, java.session
        )
    except _FAILURES as error:
        raise Unscannable(f"Spark does not reach the files error={_kind(error)}") from error


def rows_of(spark: SparkSession, relation: Any) -> DataFrame:
    """A relation as a DataFrame."""
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def compiled(gateway: Any, name: str) -> Any:
    """An object of a Java class of ours, compiled now. Spark brings a compiler for its generated code."""
    compiler = JavaClass("org.codehaus.janino.SimpleCompiler", gateway._gateway_client)()
    thread = JavaClass("java.lang.Thread", gateway._gateway_client).currentThread()
    compiler.setParentClassLoader(thread.getContextClassLoader())
    compiler.cook(files("pyspark_holdfast").joinpath("jvm", f"{name}.java").read_text(encoding="utf-8"))
    made = compiler.getClassLoader().loadClass(name)
    return made.getConstructors()[0].newInstance(gateway.new_array(gateway.jvm.java.lang.Object, 0))


@cache
def _file_format(gateway: Any) -> Any:
    """What reads files; one per JVM."""
    return compiled(gateway, "NativeFormat")


def _digest(pieces: Sequence[Piece]) -> str:
    """A short digest of the folders' constants."""
    marks = {where: PartitionMark(folder.start, folder.end) for where, folder in folders_of(pieces).items()}
    return sha256(format_marks(ReadMarks("", marks)).encode()).hexdigest()


def _partitions(java: _Java, base: str, pieces: Sequence[Piece], schema: Any) -> Iterator[Any]:
    """Folders and their constants, each with an explicit type: py4j would turn every small number into an Integer."""
    names = {(piece.head.topic, piece.head.partition): piece.key.rpartition("/")[0] for piece in pieces}
    for where, folder in folders_of(pieces).items():
        row = java.kind("org.apache.spark.sql.catalyst.expressions.SpecificInternalRow")(schema)
        row.update(0, java.kind("org.apache.spark.unsafe.types.UTF8String").fromString(folder.topic))
        row.setInt(1, folder.partition)
        row.setLong(2, folder.start)
        row.setLong(3, folder.end)
        path = java.kind("org.apache.hadoop.fs.Path")(f"{base}/{names[where]}")
        yield java.spark("PartitionPath")(row, path)


def _paths(java: _Java, paths: Sequence[str]) -> Any:
    """Paths for the JVM in one call: one by one, a thousand of them take a tenth of a second."""
    if not paths:
        return java.sequence([])
    texts = java.kind("java.util.regex.Pattern").compile("\0").split("\0".join(paths))
    found = java.kind("org.apache.hadoop.util.StringUtils").stringToPath(texts)
    return java.kind("scala.collection.immutable.ArraySeq").unsafeWrapArray(found)


def _check(java: _Java, index: Any, pieces: Sequence[Piece]) -> None:
    _check_sizes(java, index, len(pieces), sum(piece.facts.size for piece in pieces))


def _check_sizes(java: _Java, index: Any, files: int, size: int) -> None:
    """Check that Spark found what was named: the same number of files and bytes."""
    unfiltered = java.sequence([])
    folders = index.listFiles(unfiltered, unfiltered)
    count = sum(folders.apply(at).files().size() for at in range(folders.size()))
    if (count, index.sizeInBytes()) != (files, size):
        raise Unscannable(f"Spark found other files than the manifests name files={count} named={files}")


@contextmanager
def _listed_by_driver(spark: SparkSession, files: int) -> Iterator[None]:
    """Let the driver list files, unless the session says when to start a job for that."""
    if files <= _FILES_OF_SPARK or spark.conf.get(_THRESHOLD, None) is not None:
        yield
        return
    spark.conf.set(_THRESHOLD, _FILES_MAX)
    try:
        yield
    finally:
        spark.conf.unset(_THRESHOLD)


class _Java:
    """The JVM's side of a session. Classes by their full names: py4j asks about every part of `jvm.a.b.C`."""

    def __init__(self, spark: SparkSession) -> None:
        self.session: Any = spark._jsparkSession
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def kind(self, name: str) -> Any:
        """A class."""
        return JavaClass(name, self._jvm._gateway_client)

    def spark(self, name: str) -> Any:
        """A class of Spark's data sources."""
        return self.kind(f"org.apache.spark.sql.execution.datasources.{name}")

    def file_format(self) -> Any:
        return _file_format(self._gateway)

    def schema(self, schema: StructType) -> Any:
        return self.session.parseDataType(schema.json())

    def sequence(self, items: Iterable[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))

    def options(self, options: Mapping[str, str]) -> Any:
        return self._jvm.PythonUtils.toScalaMap(options)


def _kind(error: BaseException) -> str:
    """What went wrong, in one word: foreign messages may hold anything."""
    java = getattr(error, "java_exception", None)
    return type(error).__name__ if java is None else str(java.getClass().getSimpleName())
