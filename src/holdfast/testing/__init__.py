"""What users of holdfast need to test with: a clock that stands still, a disk that fails, power that is cut.

    from holdfast.testing import Fault, FaultyDisk, ManualClock

`FaultyDisk` works on real files of this process: the n-th write, sync or open fails, or the power is cut at
any step and every state that the disk may legally be in afterwards is laid out to be opened. The pytest
fixtures `holdfast_log` and `holdfast_clock` come with the package.
"""

from holdfast.testing.fault import Fault
from holdfast.testing.faulty_disk import FaultyDisk
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.power_cut import PowerCut, State
from holdfast.testing.table_runs import run_table

__all__ = ["Fault", "FaultyDisk", "ManualClock", "PowerCut", "State", "run_table"]
