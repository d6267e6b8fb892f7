"""What requests to a store cost at list price.

Prices are list prices of S3 Standard in us-east-1, noted in November 2026, without taxes, discounts, storage or
traffic: PUT and LIST $0.005 per 1,000, GET and HEAD $0.0004 per 1,000, DELETE free. They may have changed since, and
other stores have others: orientation, not accounting.
"""

from __future__ import annotations

from typing import Literal

Request = Literal["put", "list", "get", "head", "delete"]

PRICES: dict[Request, int] = {"put": 5_000, "list": 5_000, "get": 400, "head": 400, "delete": 0}
"""Billionths of a dollar for one request."""
