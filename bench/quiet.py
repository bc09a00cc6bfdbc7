"""Whether anybody else used the processors while something was measured."""

import os
import resource
from pathlib import Path

QUIET = 0.03  # of the processors, at most


class Others:
    """What other processes took of the processors since it was made, the host's share included."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own_seconds = sum(usage.ru_utime + usage.ru_stime for usage in own)
        return sum(fields) / os.sysconf("SC_CLK_TCK"), (user + nice + system + steal) / os.sysconf("SC_CLK_TCK") - own_seconds

    def share(self):
        total, others = (b - a for a, b in zip(self.start, self.now()))
        return max(0.0, others / total)
