"""Which segments may go, and removing them."""
