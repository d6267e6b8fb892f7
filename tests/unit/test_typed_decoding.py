"""Types that several threads decode for the first time at once: msgspec itself ends the process then."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import sys, threading, types
import msgspec
from holdfast.model.typed_decoding import converted, from_json, from_msgpack

sys.setswitchinterval(1e-6)
VALUE = {"rows": [{"n": 1, "more": [{"z": 1, "text": "q"}]}], "named": {"k": {"z": 2, "text": "t"}}}
PACKED, TEXT = msgspec.msgpack.encode(VALUE), msgspec.json.encode(VALUE)


def fresh():
    class Row(msgspec.Struct):
        n: int
        more: "list[Inner]"

    class Inner(msgspec.Struct):
        z: int
        text: str

    class Whole(msgspec.Struct):
        rows: list[Row]
        named: dict[str, "Inner"]

    module = types.ModuleType("fresh")
    module.Row, module.Inner, module.Whole = Row, Inner, Whole
    sys.modules["fresh"] = module
    for one in (Row, Inner, Whole):
        one.__module__ = "fresh"
    return Whole


found = []
for _ in range(int(sys.argv[1])):
    kind, begin = fresh(), threading.Barrier(4)
    ways = (lambda: from_msgpack(PACKED, kind), lambda: from_json(TEXT, kind), lambda: converted(VALUE, kind))

    def decode(way):
        begin.wait()
        found.append(msgspec.to_builtins(way()) == VALUE)

    threads = [threading.Thread(target=decode, args=(ways[n % 3],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(found), all(found))
"""


def test_threads_that_decode_a_type_for_the_first_time_at_once_get_their_values():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "150"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "600 True\n"), done.stderr[-2000:]
