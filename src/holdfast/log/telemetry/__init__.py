"""What an open log tells of itself, for `holdfast.telemetry`: values when somebody collects, spans of its appends."""
