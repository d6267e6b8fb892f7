"""Orders as a shop has them: rows that the benches of the pipeline write, the same in every run.

Seven columns: two numbers that are dense, texts of many and of few values, a price, a small number, a time. Orders are
in no order, and changes hit all of them alike: the worst case for whoever could leave files alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_STATES = ("new", "paid", "packed", "sent", "delivered", "returned")


def order_rows(ids: np.ndarray, seed: int, first_offset: int) -> pa.Table:
    """One row for each of these orders."""
    chance, count = np.random.default_rng(seed), len(ids)
    customers = pa.array(chance.integers(0, 1_000_000, count)).cast(pa.string())
    offsets = np.arange(first_offset, first_offset + count)
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "offset": pa.array(offsets, pa.int64()),
            "customer": pc.binary_join_element_wise("customer", customers, "-"),
            "status": pa.array(_STATES).take(pa.array(chance.integers(0, len(_STATES), count))),
            "amount": pa.array(chance.integers(1, 10_000_000, count) / 100),
            "quantity": pa.array(chance.integers(1, 100, count), pa.int32()),
            "updated": pa.array(1_700_000_000_000_000 + offsets * 1000).cast(pa.timestamp("us", "UTC")),
        }
    )


def all_orders(count: int) -> pa.Table:
    """So many orders, in no order."""
    return order_rows(np.random.default_rng(1).permutation(count), 2, 0)


def changed_orders(of: int, count: int, round_: int) -> pa.Table:
    """So many of them, changed: other ones in each round, and later than all before."""
    ids = np.random.default_rng(100 + round_).choice(of, count, replace=False)
    return order_rows(ids, 200 + round_, of + round_ * count)
