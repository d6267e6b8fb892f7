"""Durable executions: programs whose finished steps are never run again.

`journal` is what is stored of an execution, `steps` how a program runs on it, `waits` what a program may wait for
(promises, timers, signals, schedules), `work` who runs programs and who looks after them. All of it lives in spaces and
in the topic `_executions` of a log, and changes in commit units: nothing here knows how a log stores anything.
"""
