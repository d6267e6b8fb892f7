"""What a program may wait for: promises, timers, signals, schedules."""
