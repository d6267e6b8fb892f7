"""Moving records from the journal's tail into segments."""
