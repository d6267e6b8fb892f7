"""The OpenAPI document, made of the table of routes and the types of bodies; and the page that shows it. Pure.

Written once per process, when it is first asked for. The page has no script and loads nothing.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

import holdfast
from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.api_answers import JSON

if TYPE_CHECKING:
    from holdfast.server.route_table import RouteDefinition

_REF = "#/components/schemas/{name}"
_STATUS_OF = {"PUT": "200", "DELETE": "204"}


def openapi() -> dict[str, Any]:
    """The document."""
    from holdfast.server.route_table import ROUTES

    types = [kind for route in ROUTES for kind in (route.body, route.answer) if kind is not None]
    unique = list(dict.fromkeys([*types, ErrorBody]))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    known = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast", "version": holdfast.__version__, "description": "A durable log over HTTP."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "hft1"}},
        },
    }


def _operation(route: RouteDefinition, known: dict[Any, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]
    answer = {form: {"schema": known.get(route.answer, {}) if form == JSON else {}} for form in route.forms}
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}",
        "parameters": parameters,
        "responses": {
            _STATUS_OF.get(route.method, "200"): {"description": "done", "content": answer},
            "default": {"description": "refused or failed", "content": {JSON: {"schema": known[ErrorBody]}}},
        },
        "security": [] if route.about == "open" else [{"token": list(route.scopes)}],
    }
    if route.body is not None:
        content = {form: {"schema": known[route.body] if form == JSON else {}} for form in route.takes}
        found["requestBody"] = {"content": content}
    return found


def openapi_page(document: dict[str, Any]) -> str:
    """The document as HTML."""
    parts = [_HEAD]
    for path, methods in document["paths"].items():
        parts += [_section(path, method, one) for method, one in methods.items()]
    parts.append("<h2>Types</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{escape(json.dumps(schema, indent=1))}</pre>')
    return "".join(parts)


def _section(path: str, method: str, one: dict[str, Any]) -> str:
    scopes = " or ".join(one["security"][0]["token"]) or "any token" if one["security"] else "no token"
    query = ", ".join(p["name"] for p in one["parameters"] if p["in"] == "query")
    lines = [f"<p>{escape(one['summary'])}. Needs: {escape(scopes)}.</p>"]
    if query:
        lines.append(f"<p>Query: <code>{escape(query)}</code></p>")
    if "requestBody" in one:
        lines.append(f"<p>Body: {_forms(one['requestBody']['content'])}</p>")
    answer = next(iter(one["responses"].values()))
    lines.append(f"<p>Answer: {_forms(answer['content'])}</p>")
    return f"<section><h3><b>{method.upper()}</b> <code>{escape(path)}</code></h3>{''.join(lines)}</section>"


def _forms(content: dict[str, Any]) -> str:
    return ", ".join(f"<code>{escape(form)}</code>{_link(one['schema'])}" for form, one in content.items())


def _link(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f' (<a href="#{escape(name)}">{escape(name)}</a>)' if name else ""


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>holdfast: HTTP API</title>
<meta name="viewport" content="width=device-width"><style>
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
section{border-top:1px solid #8886;padding:.5rem 0}h3{margin:.5rem 0}pre{overflow:auto;background:#8882;padding:.75rem}
b{display:inline-block;min-width:4.5rem}p{margin:.25rem 0}</style></head><body><h1>holdfast</h1>
<p>The routes of this server. The same for tools: <a href="/openapi.json">/openapi.json</a>. Tokens go into
<code>Authorization: Bearer hft1_…</code>; errors have a <code>kind</code>, a <code>message</code> and a
<code>hint</code>.</p>"""
