"""What an open log tells of itself, for `holdfast.telemetry`: values when they are collected, spans of its appends."""
