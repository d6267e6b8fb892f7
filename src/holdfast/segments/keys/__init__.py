"""The index of keys that sealing writes into a segment: which rows may have a key, without looking at them."""
