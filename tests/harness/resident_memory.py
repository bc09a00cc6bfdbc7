"""What the processes of a run have of the host's memory."""

import time
from pathlib import Path

from eps_run import children


def resident_peaks(process, programs):
    """The most that each program of the run had, while it ran: {program: {"RssAnon": bytes, "RssShmem": bytes, "VmHWM": bytes}}."""
    peaks = {program: {"RssAnon": 0, "RssShmem": 0, "VmHWM": 0} for program in programs}
    while process.poll() is None:
        for program, peak in peaks.items():
            for pid in children(process.pid, program):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for name, value in (line.split(":", 1) for line in status.splitlines()):
                    if name in peak:
                        peak[name] = max(peak[name], int(value.split()[0]) * 1024)
        time.sleep(0.02)
    return peaks
