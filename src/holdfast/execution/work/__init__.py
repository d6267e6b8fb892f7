"""Who runs executions, and who looks after them."""
