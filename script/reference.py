"""Make the parts of docs/reference that definitions say themselves: no name or default there is written by hand.

    .venv/bin/python script/reference.py

A page says in a comment what belongs there, `<!-- generated: settings journal -->`, and this writes what stands between
it and `<!-- end -->`. Text comes from docstrings, from the table of routes and verbs, from the options of the command
line and the list of metrics. tests/docs/test_site.py holds the pages to it; a public name that no page has is an error.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/reference"
BLOCK = re.compile(r"(<!-- generated: (\w+)([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
MODULES = ("holdfast", "holdfast.results", "holdfast.channels", "holdfast.execution", "holdfast.telemetry",
           "pyspark_holdfast", "pyspark_holdfast.pipeline")  # fmt: skip
"""Each name of their `__all__` is on some page."""
PLAIN_TWIN = r"What `\w+` does, for coroutines\.|`\w+` for coroutines\."


def reference() -> dict[Path, str]:
    """The pages as they should be."""
    shown: set[str] = set()

    def made(found: re.Match[str]) -> str:
        words = found[3].split()
        shown.update(words, [f"{found[2]} {' '.join(words)}"])
        return f"{found[1]}\n{KINDS[found[2]](*words).strip()}\n\n{found[4]}"

    pages = {page: BLOCK.sub(made, page.read_text(encoding="utf-8")) for page in sorted(PAGES.glob("*.md"))}
    if missing := [name for name in names() if name not in shown]:
        raise LookupError(f"no page of docs/reference has {', '.join(missing)}")
    return pages


def names() -> Iterator[str]:
    """What the pages must have between them."""
    from holdfast.cli.program import VERBS
    from holdfast.settings import Settings
    from holdfast.telemetry.metric_list import SECTIONS

    public = [f"{module}.{name}" for module in MODULES for name in import_module(module).__all__]
    on_other_pages = ("holdfast.channels.ChannelSettings", "pyspark_holdfast.DefaultSource")
    yield from (name for name in public if name not in on_other_pages and not _is_error(named(name)))
    yield from (f"options {verb}" for verb in VERBS)
    yield from (f"settings {name}" for name in Settings.__struct_fields__)
    yield from (f"metrics {section.title}" for section in SECTIONS)


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Rows below a head such as `name | meaning`."""
    lines = [f"| {head} |", "|" + "---|" * len(head.split(" | "))]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def cell(text: str) -> str:
    """Text in one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- Python -----------------------------------------------------------------------------------------------------------


def named(path: str) -> Any:
    """What a dotted name stands for."""
    module = path
    while True:
        module = module.rpartition(".")[0]
        try:
            found = import_module(module)
        except ModuleNotFoundError:
            continue
        for part in path.removeprefix(f"{module}.").split("."):
            found = getattr(found, part)
        return found


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def functions(*names: str) -> str:
    """Functions, each with its call and its docstring."""
    return "\n\n".join(entry(name, [(name, named(name))], "###") for name in names)


def new(*names: str) -> str:
    """Types that programs make, with the call that does."""
    return types(*names, call=True)


def types(*names: str, call: bool = False) -> str:
    """Types with their attributes and methods; `-name` leaves out one that is not for programs."""
    left_out = {name[1:] for name in names if name.startswith("-")}
    parts: list[str] = []
    for path in names:
        if path.startswith("-"):
            continue
        kind, name = named(path), path.rpartition(".")[2]
        parts.append(f"### `{name}`")
        if call:
            parts.append(_fenced(signature(name, kind)))
        parts.append(prose(kind))
        if call and "__init__" in vars(kind):
            parts.append(prose(kind.__init__))
        found = {member: value for member, value in members(kind) if member not in left_out}
        rows = [
            [_code(member), _code(_annotation(kind, member, value)), about(kind, member, value)]
            for member, value in found.items()
            if not callable(_unwrapped(value))
        ]
        rows += ([_code(one), _code(note), cell(text)] for one, note, text in instance_attributes(kind)
                 if one not in {*left_out, *found} and (note or text))  # fmt: skip
        if rows:
            parts.append(table("attribute | type | meaning", rows))
        for member, value in found.items():
            if callable(_unwrapped(value)) and member.removesuffix("_async") not in found.keys() - {member}:
                twin = [(f"{member}_async", found[f"{member}_async"])] if f"{member}_async" in found else []
                parts.append(entry(f"{name}.{member}", [(member, value), *twin]))
    return "\n\n".join(part for part in parts if part)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What is public of a type, in the order of its definition; bases of other packages are left out."""
    seen: set[str] = set(dir(Exception)) if _is_error(kind) else set()
    for base in kind.__mro__:
        if not base.__module__.startswith(("holdfast", "pyspark_holdfast")):
            continue
        for name in [*getattr(base, "__struct_fields__", ()), *vars(base)]:
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, inspect.getattr_static(kind, name)


def instance_attributes(kind: type) -> Iterator[tuple[str, str, str]]:
    """What `__init__` sets that is public: name, type (often that of the argument of this name), text."""
    for base in kind.__mro__:
        made = definitions(base.__module__).get(f"{base.__qualname__}.__init__")
        if not isinstance(made, ast.FunctionDef):
            continue
        notes = {one.arg: one.annotation for one in [*made.args.args, *made.args.kwonlyargs]}
        for node, below in pairwise([*made.body, ast.Pass()]):
            for target in ast.walk(node):
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and target.attr[0] != "_":
                    note = node.annotation if isinstance(node, ast.AnnAssign) else notes.get(target.attr)
                    yield target.attr, spelled(ast.unparse(note), {}) if note else "", _text(below)


def _text(node: ast.stmt) -> str:
    """What a bare string says."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""


def _doc(value: Any) -> str:
    return inspect.getdoc(_unwrapped(value)) or ""


def _unwrapped(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def entry(title: str, calls: list[tuple[str, Any]], level: str = "####") -> str:
    """A function, or a method and its form for coroutines, under one heading."""
    first, *twins = calls
    lines = [signature(*first)]
    for name, value in twins:
        is_same = inspect.signature(value).parameters == inspect.signature(first[1]).parameters
        returns = spelled(inspect.signature(value).return_annotation, value.__globals__)
        lines.append(f"async def {name}(…) -> {returns}  # the same arguments" if is_same else signature(name, value))
    texts = dict.fromkeys(text for _, value in calls if not re.fullmatch(PLAIN_TWIN, text := prose(value)))
    return "\n\n".join([f"{level} `{title}`", _fenced("\n".join(lines)), *texts])


def signature(name: str, value: Any) -> str:
    """A call, on as many lines as it needs."""
    function = _unwrapped(value)
    found, scope = inspect.signature(function), vars(sys.modules[function.__module__])
    arguments = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    returns = "" if isinstance(value, type) else f" -> {spelled(found.return_annotation, scope)}"
    begin = "async def " if inspect.iscoroutinefunction(function) else ""
    texts = [str(one.replace(annotation=inspect.Parameter.empty)) for one in arguments]
    for place, one in enumerate(arguments):
        if one.annotation is not inspect.Parameter.empty:
            default = "" if one.default is inspect.Parameter.empty else f" = {_default_of(one.default)}"
            stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
            texts[place] = f"{stars}{one.name}: {spelled(one.annotation, scope)}{default}"
    kinds = [one.kind for one in arguments]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        texts.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    short = f"{begin}{name}({', '.join(texts)}){returns}"
    return short if len(short) <= 80 else f"{begin}{name}(\n    " + ",\n    ".join(texts) + f",\n){returns}"


def _default_of(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return "…" if re.match("<|UNSET|typing", repr(value)) else repr(value)


def spelled(note: Any, scope: dict[str, Any]) -> str:
    """A type as the source has it, without the names of modules; a name for certain words is these words."""

    def words(found: re.Match[str]) -> str:
        value = scope.get(found[0])
        is_literal = get_origin(value) is Literal
        return f"Literal[{', '.join(map(_default_of, get_args(value)))}]" if is_literal else found[0]

    written = getattr(note, "__forward_arg__", None) or getattr(note, "__name__", str(note))
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])|\bbuiltins\.", "", note if isinstance(note, str) else written)
    return re.sub(r"\b[A-Z]\w+", words, text)


def _annotation(kind: type, name: str, value: Any) -> str:
    getter = getattr(value, "fget", None) or getattr(value, "func", None)
    if getter is not None:
        return spelled(inspect.signature(getter).return_annotation, vars(sys.modules[getter.__module__]))
    found = ((inspect.get_annotations(base).get(name), base) for base in kind.__mro__)
    return next((spelled(note, vars(sys.modules[base.__module__])) for note, base in found if note is not None), "")


def about(kind: type, name: str, value: Any) -> str:
    """What an attribute means: its own docstring, or the text below the field."""
    is_property = isinstance(value, property) or hasattr(value, "func")
    text = _doc(value) if is_property else field_texts(kind).get(name)
    return cell((text or "").partition("\n\n    ")[0])


def field_texts(kind: type) -> dict[str, str]:
    """The texts below the fields of a class and its bases."""
    return {name: text for base in reversed(kind.__mro__)
            for name, text in texts_of(base.__module__).get(base.__name__, {}).items()}  # fmt: skip


@cache
def texts_of(module: str) -> dict[str, dict[str, str]]:
    """By class: the texts below its fields."""
    return {
        node.name: {
            field.target.id: _text(below)
            for field, below in pairwise([*node.body, ast.Pass()])
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in definitions(module).values()
        if isinstance(node, ast.ClassDef)
    }


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions(module: str) -> dict[str, Definition]:
    """Classes, functions and methods of a module of ours, by their qualified names."""
    found: dict[str, Definition] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, Definition):
                found[prefix + node.name] = node
                visit(node.body, f"{prefix}{node.name}.")

    if module.startswith(("holdfast", "pyspark_holdfast")):
        visit(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    return found


def prose(value: Any) -> str:
    """A docstring as Markdown: examples are fenced."""
    parts: list[str] = []
    for part in re.split(r"\n{2,}", _doc(value)):
        is_code = part.startswith(("    ", ">>> "))
        if is_code and parts and parts[-1].endswith("```"):
            parts[-1] = parts[-1][:-4] + f"\n\n{textwrap.dedent(part)}\n```"
        else:
            parts.append(_fenced(textwrap.dedent(part)) if is_code else part)
    return "\n\n".join(parts)


def _fenced(text: str) -> str:
    return f"```py\n{text}\n```"


# -- settings, errors -------------------------------------------------------------------------------------------------


def settings(name: str) -> str:
    """A section of the settings: names, defaults, meanings."""
    from holdfast.settings import Settings

    kind = next(field.type for field in msgspec.structs.fields(Settings) if field.name == name)
    rows = ([f"`{one.name}`", setting(one.name, one.default), about(kind, one.name, None)]
            for one in msgspec.structs.fields(kind))  # fmt: skip
    return table("key | default | meaning", rows)


def setting(name: str, value: object) -> str:
    """A default as one would write it into a file."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (int, float)) and value:
        if "bytes" in name:
            return _quantity(value, (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)))
        if name.endswith("_ms"):
            return _quantity(value, (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)))
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return {None: "none", "": "empty", 0: "0"}.get(value, f"`{value}`")


def _quantity(value: float, units: tuple[tuple[str, int], ...]) -> str:
    return next((f"`{value // size:g}{unit}`" for unit, size in units if value % size == 0), f"{value:,}")


def profiles() -> str:
    """The settings that each profile of shipping stands for."""
    from holdfast.shipping.shipping_settings import PROFILES

    rows = ([f"`{name}`", ", ".join(f"`{key}` {setting(key, value)}" for key, value in values.items())]
            for name, values in PROFILES.items())  # fmt: skip
    return table("profile | sets", rows)


def errors() -> str:
    """Every kind of error, below the one that it is a kind of."""
    from holdfast.errors import HoldfastError

    def rows(kind: type, depth: int) -> Iterator[list[str]]:
        arguments = inspect.signature(kind.__init__).parameters.keys() if "__init__" in vars(kind) else ()
        named = [name for name in arguments if name not in ("self", "message", "hint")]
        hint = vars(kind).get("default_hint", "")
        text = _doc(kind).replace("\n\n", " ")
        own = ["message", "hint"] if kind is HoldfastError else named
        yield ["↳ " * depth + f"`{kind.__name__}`", cell(text), cell(hint), _codes(own)]
        for below in kind.__subclasses__():
            if below.__module__ == kind.__module__:
                yield from rows(below, depth + 1)

    return table("kind | meaning | hint, where the error has no better one | attributes", rows(HoldfastError, 0))


# -- telemetry --------------------------------------------------------------------------------------------------------


def metrics(*title: str) -> str:
    """The metrics of a section."""
    from holdfast.telemetry.metric_list import SECTIONS

    section = next(section for section in SECTIONS if section.title == " ".join(title))
    rows = ([f"`{one.name}`", one.kind, f"`{one.unit}`", f"`{one.sample}`",
             _codes(attribute.name for attribute in one.attributes[2:]), one.about]
            for one, _ in section.metrics)  # fmt: skip
    return table("metric | kind | unit | in Prometheus | attributes | meaning", rows)


def spans() -> str:
    """Every span that is made."""
    from holdfast.telemetry.spans import SPANS

    rows = ([f"`{name}`", _codes(one.attributes), one.about] for name, one in SPANS.items())
    return table("span | attributes | what", rows)


def attributes() -> str:
    """What distinguishes the values of a metric."""
    from holdfast.telemetry.metric_list import METRICS

    found = dict.fromkeys(attribute for metric in METRICS for attribute in metric.attributes)
    rows = ([f"`{one.name}`", one.about, _codes(one.values) or "names of this log"] for one in found)
    return table("attribute | meaning | values", rows)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def routes(*patterns: str) -> str:
    """The routes of these paths: who may, and what goes in and out."""
    from holdfast.server.route_table import ROUTES

    found = [one for one in ROUTES if any(fnmatchcase(one.path, pattern) for pattern in patterns)]
    return table("route | scope | what", ([_route_name(one), _scopes_of(one), route_text(one)] for one in found))


def _route_name(route: Any) -> str:
    return f"`{route.method} {route.path}`"


def route_text(route: Any) -> str:
    """What a route does, and the fields of what it takes and gives."""
    parts = [cell(_doc(route.handler) or f"{route.summary}.")]
    parts += [f"Query: {_codes(route.query)}."] if route.query else []
    parts += [f"Body: `{fields_of(route.body, with_defaults=True)}`."] if _is_struct(route.body) else []
    parts += [f"Answer: `{fields_of(route.answer)}`."] if _is_struct(route.answer) else []
    return " ".join(parts)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def fields_of(kind: type, *, with_defaults: bool = False) -> str:
    """The fields of a body; those that may be left out with their defaults, those that have fields with them."""
    texts = []
    for field in msgspec.structs.fields(kind):
        inner = next((one for one in get_args(field.type) if _is_struct(one)), None)
        text = f'"{field.encode_name}"'
        if inner is not None and not with_defaults:
            text += f": [{fields_of(inner)}]" if get_origin(field.type) in (tuple, list) else f": {fields_of(inner)}"
        elif with_defaults and not field.required:
            made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            text += f": {json.dumps(made)}"
        texts.append(text)
    return f"{{{', '.join(texts)}}}"


def calls() -> str:
    """The routes of verbs for `holdfast.connect`."""
    from holdfast.owner.verbs import TABLE

    rows = ([f"`POST /v1/calls/{one.name}`{' *' if one.has_events else ''}", _verb_scopes(one),
             f"`{one.request.__name__}` → `{one.result.__name__}`"] for one in TABLE if one.right)  # fmt: skip
    return table("route | scope | request and answer", rows)


def rights() -> str:
    """Every route but those of verbs: who may, and about what."""
    from holdfast.owner.verbs import TABLE
    from holdfast.server.route_table import ROUTES

    of_verbs = {one.route: one for one in TABLE if one.route}
    rows = ([_route_name(one), _scopes_of(one),
             _verb_about(verb) if (verb := of_verbs.get(f"{one.method} {one.path}")) else ABOUT[one.about]]
            for one in ROUTES if not one.path.startswith("/v1/calls/"))  # fmt: skip
    return table("route | scope | about", rows)


ABOUT = {
    "topic": "the topic", "spaces": "`_spaces`", "executions": "`_executions`", "log": "the whole log",
    "any": "what the token reaches", "open": "nothing of the log", "handler": "what it names",
}  # fmt: skip


def _scopes_of(route: Any) -> str:
    return {"open": "no token", "any": "any token"}.get(route.about) or _codes(route.scopes)


def verbs() -> str:
    """What the owner of a log does for others: who may ask, and about what."""
    from holdfast.owner.verbs import TABLE

    return table("verb | scope | about", ([f"`{one.name}`", _verb_scopes(one), _verb_about(one)] for one in TABLE))


def _verb_scopes(verb: Any) -> str:
    if verb.right is None:
        return "none: for members of a shared log" if verb.among_members else "none: for processes beside the owner"
    return (
        "`append`, or `admin` by its action"
        if callable(verb.right.scopes)
        else _codes(verb.right.scopes) or "any token"
    )


def _verb_about(verb: Any) -> str:
    if verb.right is None:
        return ""
    text = _doc(verb.right.about).rstrip(".")
    return text[0].lower() + text[1:] + ("; never holdfast's own" if verb.right.changes else "")


# -- the command line -------------------------------------------------------------------------------------------------


def overview() -> str:
    """Every verb, and what its help begins with."""
    from holdfast.cli.program import program

    verbs_of = program.list_commands(click.Context(program))
    found = [(verb, _command(verb)) for verb in verbs_of]
    rows = ([f"[{_code(_usage(*one))}](#holdfast-{one[0]})", _marked(_summary(one[1]))] for one in found)
    return table("verb | what", rows)


def options(*words: str) -> str:
    """The options of a verb, and its actions with theirs."""
    command = _command(*words)
    if isinstance(command, click.Group):
        return "\n\n".join(
            f"#### `{_usage(' '.join((*words, name)), one)}`\n\n"
            f"{_marked(_summary(one))}\n\n{options(*words, name)}"
            for name, one in command.commands.items() if not isinstance(one, click.Group)
        )  # fmt: skip
    context = click.Context(command)
    shared = [one for one in SHARED if one in {name for option in command.params for name in option.opts}]
    records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
    rows = [[_code(names.replace(" RANGE", "")), _marked(text)]
            for names, text in filter(None, records) if names.partition(" ")[0] not in SHARED]  # fmt: skip
    return table(
        "option | meaning", [*rows, [_codes(SHARED[one] for one in shared), "as of [all verbs](#for-all-verbs)"]]
    )


SHARED = {"--keyring": "--keyring REF", "--json": "--json"}
"""Options of many verbs, which the page explains once."""


def fields(*names: str) -> str:
    """What `--json` prints: the fields of an object, then those of the objects in it, but for those named `-Name`."""
    left = [(named(name), "") for name in names if not name.startswith("-")]
    parts, seen = [], {name[1:] for name in names if name.startswith("-")}
    while left:
        kind, inside = left.pop(0)
        if kind.__name__ in seen:
            continue
        seen.add(kind.__name__)
        given = msgspec.structs.fields(kind)
        rows = ([f"`{one.encode_name}`", _code(_annotation(kind, one.name, None)), about(kind, one.name, None)]
                for one in given)  # fmt: skip
        caption = f"Of {inside}: {_doc(kind)}" if inside else _doc(kind)
        parts += [cell(caption.partition("\n\n")[0]), table("field | type | meaning", rows)]
        left = [(one, f"`{field.encode_name}`") for field in given for one in _structs(field.type)] + left
    return "\n\n".join(parts)


def _structs(note: Any) -> list[type]:
    return [note] if _is_struct(note) else [kind for one in get_args(note) for kind in _structs(one)]


def inspection() -> str:
    """The lines of `holdfast inspect`, each with its fields."""
    from holdfast.cli.inspection.line_types import LINES

    def told(line: type, field: str) -> str:
        text = about(line, field, None).rstrip(".")
        return f"`{field}` ({text[0].lower()}{text[1:]})" if text else f"`{field}`"

    rows = ([f"`{line.__struct_config__.tag}`", ", ".join(told(line, one) for one in line.__struct_encode_fields__)]
            for line in LINES)  # fmt: skip
    return table("`type` | fields", rows)


def _command(*words: str) -> click.Command:
    from holdfast.cli.program import program

    command: click.Command = program
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, words
        command = found
    return command


def _usage(name: str, command: click.Command) -> str:
    pieces = [piece for piece in command.collect_usage_pieces(click.Context(command)) if piece != "[OPTIONS]"]
    return " ".join(["holdfast", name, *(["ACTION …"] if isinstance(command, click.Group) else pieces)])


def _summary(command: click.Command) -> str:
    return (command.help or "").partition("\n\n")[0]


def _marked(text: str) -> str:
    """A text of the help, with options and what stands in quotation marks as code, without the ranges of numbers."""
    text = cell(re.sub(r"(; |(?P<alone>\[))(\d+<=)?x[<>=]+\d+(?(alone)\])", "", text))
    return re.sub(r"(?<!\w)'([^']+)'(?!\w)|(?<![\w`-])(--[a-z-]+)", lambda found: f"`{found[1] or found[2]}`", text)


KINDS: dict[str, Callable[..., str]] = {
    "function": functions, "type": types, "new": new, "settings": settings, "errors": errors, "metrics": metrics,
    "attributes": attributes, "spans": spans, "profiles": profiles, "routes": routes, "calls": calls, "rights": rights,
    "verbs": verbs, "overview": overview, "options": options, "fields": fields,
    "inspection": inspection,
}  # fmt: skip

if __name__ == "__main__":
    for page, text in reference().items():
        page.write_text(text, encoding="utf-8")
