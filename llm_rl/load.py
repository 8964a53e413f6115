# SPDX-License-Identifier: Apache-2.0
"""Machine load by other processes during a run; times of two runs are comparable only if it was low in both."""

from __future__ import annotations

import os

import psutil

BUSY = 0.1
"""Share of CPU time used by other processes, or stolen by the hypervisor, from which the machine counts as busy."""


class Load:
    """Measures CPU time of all processes except this one, process `pid` and its children. In the demo (llm_rl.demo) the
    processes of both arms are excluded.

    Call `sample` about twice a second: CPU time that a child uses after the last sample counts as other processes'.
    """

    def __init__(self, pid: int) -> None:
        self._pid = os.getppid() if "SAM_TURNS" in os.environ else pid
        self._ours: dict[tuple[int, float], float] = {}
        self._now = self._before = self._read()

    def sample(self) -> None:
        self._now = self._read()

    def take(self) -> dict[str, float]:
        """Shares of the machine's CPU time since the previous call: `others` (other processes) and `steal`."""
        self.sample()
        total, busy, steal, ours = (now - before for now, before in zip(self._now, self._before, strict=True))
        self._before = self._now
        if total <= 0:
            return {"others": 0.0, "steal": 0.0}
        return {"others": round(max(busy - ours, 0.0) / total, 3), "steal": round(steal / total, 3)}

    def _read(self) -> tuple[float, float, float, float]:
        """CPU seconds since the machine's start: total, busy, stolen, and those of this process and its children."""
        try:
            processes = [psutil.Process(), process := psutil.Process(self._pid), *process.children(recursive=True)]
        except psutil.Error:
            processes = [psutil.Process()]
        for process in processes:
            try:
                times = process.cpu_times()
                self._ours[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                pass
        cpu = psutil.cpu_times()
        steal = getattr(cpu, "steal", 0.0)
        guest = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)  # also counted in user and nice
        idle = cpu.idle + getattr(cpu, "iowait", 0.0)
        total = sum(cpu) - guest
        return total, total - idle - steal, steal, sum(self._ours.values())


def busy(load: dict[str, float]) -> bool:
    """Whether shares from `Load.take` mean that the machine was busy with other work."""
    return max(load["others"], load["steal"]) >= BUSY
