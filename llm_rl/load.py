# SPDX-License-Identifier: Apache-2.0
"""How busy the machine was with other work while a run went on: its seconds compare with another run's only where both had it quiet."""

from __future__ import annotations

import psutil

BUSY = 0.1
"""Share of the machine's CPU time that others took, or that the hypervisor held back (steal), from which it counts as busy."""


class Load:
    """CPU time that a process and what it started left to others.

    `sample` is called about twice a second: CPU time that a process takes between the last sample and its end counts as
    others'.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._own: dict[tuple[int, float], float] = {}
        self._now = self._before = self._read()

    def sample(self) -> None:
        self._now = self._read()

    def take(self) -> dict[str, float]:
        """Shares of the machine's CPU time since the last call: `others` of other processes, `steal` held back."""
        self.sample()
        total, busy, steal, own = (now - before for now, before in zip(self._now, self._before, strict=True))
        self._before = self._now
        if total <= 0:
            return {"others": 0.0, "steal": 0.0}
        return {"others": round(max(busy - own, 0.0) / total, 3), "steal": round(steal / total, 3)}

    def _read(self) -> tuple[float, float, float, float]:
        """CPU seconds since the start of the machine: all, busy, stolen; and those of the process and what it started."""
        try:
            processes = [psutil.Process(), process := psutil.Process(self._pid), *process.children(recursive=True)]
        except psutil.Error:
            processes = [psutil.Process()]
        for process in processes:
            try:
                times = process.cpu_times()
                self._own[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                pass
        cpu = psutil.cpu_times()
        steal = getattr(cpu, "steal", 0.0)
        guest = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)  # in user and nice as well
        idle = cpu.idle + getattr(cpu, "iowait", 0.0)
        total = sum(cpu) - guest
        return total, total - idle - steal, steal, sum(self._own.values())


def busy(load: dict[str, float]) -> bool:
    """Whether `Load.take` found the machine busy with other work."""
    return max(load["others"], load["steal"]) >= BUSY
