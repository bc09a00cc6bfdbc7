"""How fast a GPU's clock was while parts ran, and what held it back: nvidia-smi's samples, beside each part's figures.

Two runs that part by some percent may have had other clocks: power and heat decide these, and what ran before.
"""

import contextlib
import dataclasses
import shutil
import statistics

import gpu_machine
import processes
from part_report import Failed, Outcome, Table

SAMPLES = "clocks.csv"  # beside the report
EVERY_MS = 500
FIELDS = "clocks.sm,power.draw,temperature.gpu"
# What older drivers call it; and without, where a driver knows neither.
REASONS_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", None)
IDLE = 1
REASONS = {IDLE: "idle", 2: "application clocks", 4: "power cap", 8: "hardware slowdown", 16: "sync boost", 32: "heat",
           64: "heat (hardware)", 128: "power brake", 256: "display clocks"}  # nvmlClocksEventReason*


def number_of(text):
    """None of what is not known, such as [N/A]."""
    with contextlib.suppress(ValueError):
        return int(text, 16) if text.startswith("0x") else float(text)
    return None


def names_of(mask):
    names = [name for bit, name in REASONS.items() if mask & bit]
    unknown = mask & ~sum(REASONS)
    return [*names, *([hex(unknown)] if unknown else [])]


def figures_of(lines):
    """Of samples, those of an idle GPU left out of the clocks, where it is known that it was; {} of none."""
    rows = [[number_of(cell.strip()) for cell in line.split(",")] for line in lines]
    rows = [row for row in rows if len(row) >= 3 and any(value is not None for value in row)]  # it may say other things
    masks = [int(row[3]) if len(row) > 3 and row[3] is not None else 0 for row in rows]
    clocks = [row[0] for row, mask in zip(rows, masks) if row[0] is not None and not mask & IDLE]
    watts, degrees = ([row[i] for row in rows if row[i] is not None] for i in (1, 2))
    reasons = 0
    for mask in masks:
        reasons |= mask
    figures = {"sm_mhz": statistics.median(clocks) if clocks else None, "least_sm_mhz": min(clocks, default=None),
               "most_watts": max(watts, default=None), "most_degrees": max(degrees, default=None),
               "reasons": names_of(reasons)}
    return {"samples": len(rows), **figures} if rows else {}


class Clocks:
    """Samples while it is entered; none where nvidia-smi is not there, or knows nothing of this GPU. Ends its process
    whatever ends it."""

    def __init__(self, device, folder):
        self.device, self.file = device, folder / SAMPLES
        self.rows = []  # of the table, a part's each
        self.samples = False
        self._left = contextlib.ExitStack()

    def __enter__(self):
        self.file.unlink(missing_ok=True)  # an earlier report's
        kind, _, index = self.device.partition(":")
        if kind == "cuda" and (program := shutil.which("nvidia-smi")):
            name = gpu_machine.name_of_gpu(int(index or 0))
            with contextlib.suppress(Failed):
                self.start(program, [f"--id={name}"] if name else [])
        return self

    def __exit__(self, *_):
        self._left.close()

    def start(self, program, which):
        for reasons in REASONS_FIELDS:
            fields = ",".join(filter(None, (FIELDS, reasons)))
            if gpu_machine.ask_nvidia_smi(fields, *which):
                by_line = [found, "-oL"] if (found := shutil.which("stdbuf")) else []  # or samples come by the page
                command = [*by_line, program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", *which,
                           "-lms", EVERY_MS]
                process = processes.Process(command, log=self.file, env=gpu_machine.OWN_ENVIRONMENT)
                self._left.enter_context(process)
                self.samples = True
                return

    def lines(self):
        """So far, without one that is still being written."""
        try:
            return self.file.read_text(errors="replace").split("\n")[:-1]
        except OSError:
            return []

    def table(self):
        """Of all parts that have ended; the same list of rows each time."""
        return Table("The GPU's clock while parts ran",
                     ["part", "samples", "SM MHz, median", "least", "most W", "most degrees C", "held back by"],
                     self.rows,
                     [f"By nvidia-smi, each {EVERY_MS / 1000} s. Clocks: while the GPU was not idle. Held back by: all "
                      "that was seen in any sample."])

    def beside(self, part, report):
        """The part, whose figures have what was sampled while it ran, as has the report's table."""
        def run(deadline):
            start, figures = len(self.lines()), {}  # these are filled in when it has ended, however it did

            def added(outcome):
                return dataclasses.replace(outcome, figures={**outcome.figures, "clocks": figures})

            try:
                outcome = part.run(deadline)
                return added(Outcome(outcome) if isinstance(outcome, str) else outcome)
            except Failed as error:
                raise Failed(str(error), added(error.outcome or Outcome(""))) from None
            finally:
                if found := figures_of(self.lines()[start:]):
                    figures.update(found)
                    self.tell(part.name, figures, report)
        return dataclasses.replace(part, run=run) if self.samples else part

    def tell(self, name, figures, report):
        if not self.rows:
            report.tables.append(self.table())
        self.rows.append([name, figures["samples"], figures["sm_mhz"], figures["least_sm_mhz"], figures["most_watts"],
                          figures["most_degrees"], ", ".join(figures["reasons"])])
