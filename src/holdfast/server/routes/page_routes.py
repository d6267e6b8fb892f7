"""The OpenAPI document, and a page that shows it: one HTML file that needs nothing from elsewhere."""

from __future__ import annotations

from functools import cache

from holdfast.server.api_answers import JSON, Answer, encode
from holdfast.server.api_request import ApiRequest
from holdfast.server.openapi import openapi, openapi_page
from holdfast.server.served import Served

_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@cache
def _document() -> bytes:
    return encode(openapi())


@cache
def _page() -> bytes:
    return openapi_page(openapi()).encode()


async def document(request: ApiRequest, served: Served) -> Answer:
    """The OpenAPI 3.1 document."""
    return Answer(_document(), JSON)


async def page(request: ApiRequest, served: Served) -> Answer:
    """The same as a page that needs nothing from elsewhere."""
    return Answer(_page(), "text/html; charset=utf-8", headers=[(b"content-security-policy", _POLICY)])
