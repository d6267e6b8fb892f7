"""Arrow values and types: which stand for the same, how Python values become them and are shown as others."""
