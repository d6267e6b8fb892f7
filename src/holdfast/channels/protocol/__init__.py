"""The protocol of a channel as a pure state machine: values in, values out, no I/O and no clock."""
