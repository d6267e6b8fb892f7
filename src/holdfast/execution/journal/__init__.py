"""What is stored of executions: entries, in order, and a row for each execution."""
