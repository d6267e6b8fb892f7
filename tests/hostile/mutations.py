"""One mutated object at a time, as somebody makes it who may write to a root and has no key.

`mutate` takes the objects of a root and a random generator and gives what is to be changed, with the reason. Whatever
has no key is recomputed: checks of documents, hashes of checkpoints and commit batches, and for segments block hashes,
stamps, footer hashes, SHA-256, the manifest object that vouches for it, and its name. So a mutation meets the decoder
that it is meant for, not the hash in front of it. In a keyed root the recomputed values are worth nothing, by design.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from blake3 import blake3

from holdfast.crypto import digests
from holdfast.parquet import thrift
from holdfast.parquet.outline import outline
from holdfast.root.objects import signature_place
from holdfast.segments.file import footer as footers
from holdfast.segments.file.hashing_sink import BLOCK_BYTES, hash_block
from holdfast.store import layout
from tests.hostile.roots import Objects

EXTREMES = (0, 1, -1, 2, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64)
SPECIALS = ("fifo", "link", "device", "folder", "socket", "huge", "loop")
"""What else than a file may stand in a directory."""


@dataclass
class Mutation:
    """What is changed: other bytes under keys, None for no object, or something that is no file."""

    kind: str
    how: str
    key: str
    objects: dict[str, bytes | None] = field(default_factory=dict)
    special: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.how} {self.special} {self.key}"


KINDS: dict[str, Callable[[str], bool]] = {
    "log": lambda key: key == layout.LOG,
    "epoch": lambda key: key.startswith(layout.EPOCHS),
    "topic": lambda key: "/topic/" in key or "/_topic/" in key,
    "rewrite": lambda key: "/_rewrites/" in key,
    "manifest": lambda key: "manifest/" in key,
    "expired": lambda key: "expired/" in key,
    "frontier": lambda key: key.startswith("frontiers/"),
    "floor": lambda key: key.endswith(".floor"),
    "adopted": lambda key: key.endswith(".adopted"),
    "checkpoint": lambda key: "checkpoints/" in key,
    "batch": lambda key: key.endswith(".arrow"),
    "keys": lambda key: key.endswith(".keys"),
    "segment": lambda key: "/segments/" in key,
    "lease": lambda key: key.startswith(layout.LEASES),
    "sink": lambda key: "/_sink/" in key,
}


def kind_of(key: str) -> str:
    """What kind of object stands under a key."""
    return next(kind for kind, is_kind in KINDS.items() if is_kind(key))


def mutate(chance: Random, objects: Objects, kind: str | None = None) -> Mutation:
    """One mutation of one object."""
    kind = kind or chance.choice(list(KINDS))
    key = chance.choice([key for key in objects if kind_of(key) == kind])
    ways = [*PLAIN, *_TAUGHT.get(kind, DOCUMENT), *_TAUGHT.get(kind, DOCUMENT)]
    made = chance.choice(ways)(chance, objects, key)
    made.kind = kind
    return made


def forge(chance: Random, objects: Objects, kind: str | None = None) -> Mutation:
    """The same on a signed root, by somebody who takes signatures off and puts old ones on again."""
    taken_off = {key: signature_place.detach(key, data) for key, data in objects.items()}
    made = mutate(chance, {key: bare for key, (bare, _) in taken_off.items()}, kind)
    known = [signature for _, signature in taken_off.values() if signature is not None]
    for key, data in made.objects.items():
        own = taken_off.get(key, (b"", None))[1]
        signature = chance.choice((own, own, None, chance.choice(known)))
        if data is not None and signature is not None and signature_place.is_signed_kind(key):
            made.objects[key] = signature_place.attach(key, data, signature)
    return made


# -- whatever it is ---------------------------------------------------------------------------------------


def flipped(chance: Random, data: bytes) -> bytes:
    """A few bits, bytes or stretches changed."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not out:
            break
        at = chance.randrange(len(out))
        way = chance.randrange(5)
        if way <= 1:
            out[at] ^= 1 << chance.randrange(8)
        elif way == 2:
            out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif way == 3:
            del out[at : at + chance.choice((1, 2, 4, 8))]
        else:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8)))
    return bytes(out)


def _flip(chance: Random, objects: Objects, key: str) -> Mutation:
    return Mutation("", "flip", key, {key: flipped(chance, objects[key])})


def _cut(chance: Random, objects: Objects, key: str) -> Mutation:
    return Mutation("", "cut", key, {key: objects[key][: chance.randrange(len(objects[key]))]})


def _extend(chance: Random, objects: Objects, key: str) -> Mutation:
    more = chance.choice((b"\0", b"\n", chance.randbytes(chance.randrange(1, 99)), objects[key]))
    return Mutation("", "extend", key, {key: objects[key] + more})


def _swap(chance: Random, objects: Objects, key: str) -> Mutation:
    return Mutation("", "swap", key, {key: objects[chance.choice(list(objects))]})


def _remove(chance: Random, objects: Objects, key: str) -> Mutation:
    return Mutation("", "remove", key, {key: None})


def _special(chance: Random, objects: Objects, key: str) -> Mutation:
    return Mutation("", "special", key, {key: None}, chance.choice(SPECIALS))


PLAIN = (_flip, _cut, _extend, _swap, _remove, _special)
Way = Callable[[Random, Objects, str], Mutation]


# -- documents --------------------------------------------------------------------------------------------


def checked(document: dict[str, Any]) -> bytes:
    """A document with the check that anybody can compute."""
    blank = json.dumps({**document, "check": ""}, separators=(",", ":"), ensure_ascii=False).encode()
    check = blake3(blank, derive_key_context="holdfast 1 store document").digest(length=16).hex()
    return json.dumps({**document, "check": check}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _values(chance: Random, objects: Objects, key: str) -> Mutation:
    document = json.loads(objects[key])
    name = chance.choice([name for name in document if name != "check"])
    document[name] = other_value(chance, document[name])
    return Mutation("", f"value {name}={str(document[name])[:40]!r}", key, {key: checked(document)})


def other_value(chance: Random, value: Any) -> Any:
    """Another value in place of this one: of its type, or of another one; of a mapping one item is changed."""
    if chance.random() < 0.1:
        return chance.choice((None, True, "", [], {}, 1.5, "x" * 100_000, [[]] * 1000))
    if isinstance(value, bool) or value is None:
        return chance.choice((True, 0, {"bytes_max": -1, "age_max_us": 2**70, "records_max": 1}))
    if isinstance(value, int | float):
        return chance.choice((value + 1, value - 1, *EXTREMES))
    if isinstance(value, str):
        return _other_text(chance, value)
    if isinstance(value, bytes):
        return flipped(chance, value)
    if isinstance(value, list):
        return [other_value(chance, item) for item in value] if value else [{}]
    name = chance.choice(list(value) or ["new"])
    return {**value, name: other_value(chance, value.get(name, 0))}


def _other_text(chance: Random, value: str) -> str:
    if len(value) > 64 and chance.random() < 0.8:  # an Arrow schema, perhaps
        try:
            return base64.b64encode(flipped(chance, base64.b64decode(value, validate=True))).decode()
        except ValueError:
            pass
    hexed = "".join(chance.choice("0123456789abcdef") for _ in value)
    return chance.choice((hexed, value[:-1], value + "0", "../../etc", "a\0b", "\u202e", "0" * len(value)))


def _again(chance: Random, objects: Objects, key: str) -> Mutation:
    """The next number of the same kind: the highest counts."""
    folder, _, name = key.rpartition("/")
    number = layout.parse_number(key)
    if number is None:
        return _swap(chance, objects, key)
    other = f"{folder}/{number + chance.choice((1, 2, 10**19 - number)):020d}{name[20:]}"
    document = json.loads(objects[key])
    for field_ in ("slot", "version", "upto", "epoch", "seq", "number"):
        if field_ in document and chance.random() < 0.7:
            document[field_] = layout.parse_number(other)
    return Mutation("", "again", other, {other: checked(document)})


def far_away(objects: Objects) -> list[Mutation]:
    """A document of each kind once more, under a number that no log reaches: counting up to it never ends."""
    found: dict[str, Mutation] = {}
    for key, data in sorted(objects.items()):
        folder, _, name = key.rpartition("/")
        if layout.parse_number(name) is not None and name.endswith(".json"):
            found[kind_of(key)] = Mutation(kind_of(key), "far away", other := f"{folder}/{10**19}.json", {other: data})
    return list(found.values())


DOCUMENT: tuple[Way, ...] = (_values, _values, _values, _again)


# -- checkpoints and commit batches -----------------------------------------------------------------------


def _hashed(context: str, *parts: bytes) -> bytes:
    hasher = blake3(derive_key_context=context)
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=16)


def split_footer(data: bytes) -> tuple[bytes, bytes]:
    """What is before a Parquet file's Thrift footer, and that footer."""
    length = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - length], data[-8 - length : -8]


def with_footer(before: bytes, footer: bytes) -> bytes:
    """A Parquet file with another footer."""
    return before + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def checkpoint_of(before: bytes, footer: bytes) -> bytes:
    """A checkpoint whose hash is right."""
    after = with_footer(b"", footer)
    return before + _hashed("holdfast 1 checkpoint", before, after) + after


def _checkpoint_footer(chance: Random, objects: Objects, key: str) -> Mutation:
    before, footer = split_footer(objects[key])
    return Mutation(
        "",
        "footer",
        key,
        {key: checkpoint_of(before[:-16], chance.choice((flipped, rethought, rethought))(chance, footer))},
    )


def _checkpoint_pages(chance: Random, objects: Objects, key: str) -> Mutation:
    before, footer = split_footer(objects[key])
    return Mutation("", "pages", key, {key: checkpoint_of(same_size(chance, before[:-16]), footer)})


def same_size(chance: Random, data: bytes) -> bytes:
    """Some bytes changed, none added: offsets elsewhere still point to where they pointed."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        out[chance.randrange(4, len(out))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(out)


def _batch_bytes(chance: Random, objects: Objects, key: str) -> Mutation:
    change = chance.choice((flipped, same_size))
    data = objects[key][:-16]
    size = int.from_bytes(data[4:8], "little") + 8
    cut = size if chance.random() < 0.5 else len(data)  # the schema message alone, or all of it
    data = change(chance, data[:cut]) + data[cut:]
    context = "holdfast 1 commit batch" if key.endswith(".arrow") else "holdfast 1 idempotency keys"
    return Mutation("", "bytes", key, {key: data + _hashed(context, data)})


class _Spying(thrift.Walk):
    """Keeps where every value lies."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.found: list[tuple[int, int, int]] = []

    def _value(self, kind: int) -> Any:
        start = self.at
        value = super()._value(kind)
        self.found.append((kind, start, self.at))
        return value


def rethought(chance: Random, content: bytes) -> bytes:
    """A Thrift struct with one value changed, and everything around it as it was: numbers too large, texts and lists
    cut, repeated or left out, kinds changed.
    """
    spy = _Spying(content)
    spy.struct()
    wanted = chance.choice(((thrift.I32, thrift.I64), (thrift.I32, thrift.I64), (thrift.LIST, thrift.STRUCT), (8,)))
    kind, start, end = chance.choice([found for found in spy.found if found[0] in wanted])
    value = content[start:end]
    if kind in (thrift.I32, thrift.I64):
        new = thrift.encode_signed(chance.choice((*EXTREMES, *range(12))))
    elif kind == thrift.BINARY:
        new = thrift.encode_binary(chance.choice((b"", b"x", b"\0" * 9, value * 3)))
    else:
        head = bytes([(value[0] + (chance.choice((-1, 1)) << 4)) & 255])
        new = chance.choice((b"\0", value * 2, value[: len(value) // 2], head + value[1:]))
    if chance.random() < 0.15:  # the field's head is the byte before it, most of the time
        return content[: start - 1] + bytes([content[start - 1] & 240 | chance.randrange(1, 13)]) + content[start:]
    return content[:start] + new + content[end:]


# -- segments ---------------------------------------------------------------------------------------------


def vouched(objects: Objects, key: str, data: bytes) -> dict[str, bytes | None]:
    """A segment's file replaced, and everything without a key made to match it: its name, its manifest object, and the
    batch of a sink that names it.

    Checkpoints of the partition go: they would name the old one.
    """
    digest = sha256(data).digest()
    partition = key.partition("/segments/")[0]
    number = layout.parse_segment_name(key.rpartition("/")[2])
    assert number is not None
    changed: dict[str, bytes | None] = {key: None}
    changed[f"{partition}/segments/{layout.segment_name(number.number, digest)}"] = data
    length = int.from_bytes(data[-8:-4], "little") + 8
    facts = {"sha256": digest.hex(), "size": len(data), "footer": hash_block(data[-length:]).hex()}
    place = (int(partition.rpartition("/")[2]), number.number)
    for other, content in objects.items():
        if kind_of(other) == "sink" and other.startswith(partition.rpartition("/")[0] + "/"):
            batch = json.loads(content)
            named = [one for one in batch["segments"] if (one["partition"], one["number"]) == place]
            if named:
                named[0].update(facts)
                changed[other] = checked(batch)
        if not other.startswith(partition + "/"):
            continue
        if kind_of(other) == "checkpoint":
            changed[other] = None
        if kind_of(other) == "manifest":
            document = json.loads(content)
            if document["type"] == "segment" and document["number"] == number.number:
                changed[other] = checked(document | facts)
    return changed


def restamped(data: bytes, before: bytes) -> bytes:
    """The same file with other data before its footer: block hashes and the plain stamp are those of the new data."""
    _, footer = split_footer(data)
    pairs = footers.decode_pairs(outline(with_footer(b"", footer), 50_000).pairs)
    old, old_mac = pairs["holdfast.blocks"], pairs["holdfast.mac"]
    blocks = b"".join(hash_block(before[at : at + BLOCK_BYTES]) for at in range(0, len(before), BLOCK_BYTES)).hex()
    if len(blocks) == len(old):
        pairs["holdfast.blocks"] = blocks
        mac = digests.plain_stamp(footers.message(pairs)).hex()
        footer = footer.replace(old.encode(), blocks.encode()).replace(old_mac.encode(), mac.encode())
    return with_footer(before, footer)


def _segment_footer(chance: Random, objects: Objects, key: str) -> Mutation:
    before, footer = split_footer(objects[key])
    changed = damaged_footer(chance, footer)
    return Mutation("", "footer", key, vouched(objects, key, with_footer(before, changed)))


def damaged_footer(chance: Random, footer: bytes) -> bytes:
    """A footer whose metadata are mostly changed where Parquet reads them, and sometimes in our own pairs."""
    if chance.random() < 0.5:
        return rethought(chance, footer)
    middle = footer.find(b"holdfast.format")  # Parquet's own come first
    change = chance.choice((flipped, same_size))
    if chance.random() < 0.15:
        return footer[:middle] + flipped(chance, footer[middle:])
    return change(chance, footer[:middle]) + footer[middle:]


def _segment_pages(chance: Random, objects: Objects, key: str) -> Mutation:
    before, _ = split_footer(objects[key])
    data = restamped(objects[key], same_size(chance, before))
    return Mutation("", "pages", key, vouched(objects, key, data))


def _segment_schema(chance: Random, objects: Objects, key: str) -> Mutation:
    """The Arrow schema of the records, damaged, and stamped anew."""
    before, footer = split_footer(objects[key])
    pairs = footers.decode_pairs(outline(with_footer(b"", footer), 50_000).pairs)
    old, old_mac = pairs["holdfast.arrow_schema"], pairs["holdfast.mac"]
    schema = base64.b64encode(same_size(chance, base64.b64decode(old))).decode()
    mac = digests.plain_stamp(footers.message({**pairs, "holdfast.arrow_schema": schema})).hex()
    at = footer.find(b"holdfast.arrow_schema")
    footer = footer[:at] + footer[at:].replace(old.encode(), schema.encode(), 1).replace(old_mac.encode(), mac.encode())
    return Mutation("", "schema", key, vouched(objects, key, with_footer(before, footer)))


_TAUGHT: dict[str, tuple[Way, ...]] = {
    "checkpoint": (_checkpoint_footer, _checkpoint_pages),
    "batch": (_batch_bytes,),
    "keys": (_batch_bytes,),
    "segment": (_segment_footer, _segment_footer, _segment_pages, _segment_schema),
}
