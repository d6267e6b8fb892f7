"""Shipping in virtual time: the real loop against a model of a store, over thousands of seeded schedules."""
