"""Runs the parts of a long measurement one after another within a time, and keeps a report of them, JSON and Markdown.

The report is written anew after each part, so that a run that is killed leaves what it had.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Callable


OVERTIME = 2.5  # times what a part is thought to want


class Failed(Exception):
    """A part did not find what it was to show; `outcome` has what it did find."""

    def __init__(self, why, outcome=None):
        super().__init__(why)
        self.outcome = outcome


def seconds_until(deadline):
    """What a process may take: at least a second, at most an hour."""
    return min(3600.0, max(1.0, deadline - time.monotonic()))


@dataclasses.dataclass
class Table:
    title: str
    columns: list
    rows: list  # of values, one for each column; None: not known
    notes: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outcome:
    said: str  # in a line
    tables: list = dataclasses.field(default_factory=list)
    figures: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Part:
    name: str
    run: Callable  # of the time until which it may run, time.monotonic()'s; an Outcome, or a line
    about_seconds: float  # it is not begun with less time than that
    by_default: bool = True


def text_of(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown_table(table):
    lines = ["| " + " | ".join(table.columns) + " |", "| " + " | ".join("---" for _ in table.columns) + " |"]
    lines += ["| " + " | ".join(text_of(value) for value in row) + " |" for row in table.rows]
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"\n## {table.title}\n\n" + "\n".join(lines) + f"\n{notes}"


class Report:
    """report.json and report.md in a folder."""

    def __init__(self, out, device, machine):
        self.out = Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.head = {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "device": device, "machine": machine}
        self.parts, self.tables = {}, []

    def add(self, name, state, outcome, seconds):
        self.parts[name] = {"state": state, "said": outcome.said, "seconds": seconds, **outcome.figures}
        self.tables += outcome.tables
        print(f"{name}: {state} in {seconds} s: {outcome.said}", flush=True)
        self.write()

    def write(self):
        tables = [dataclasses.asdict(table) for table in self.tables]
        (self.out / "report.json").write_text(json.dumps({**self.head, "parts": self.parts, "tables": tables}, indent=1)
                                              + "\n")
        seen = ", ".join(f"{key} {value}" for key, value in self.head["machine"].items())
        rows = [[name, part["state"], part["said"], f"{part['seconds']} s"] for name, part in self.parts.items()]
        (self.out / "report.md").write_text(
            f"# {self.head['device']}\n\n{self.head['when']}; {seen}\n"
            + markdown_table(Table("Parts", ["part", "", "", ""], rows))
            + "".join(markdown_table(table) for table in self.tables))


def run_parts(parts, report, seconds):
    """Each in its turn, as long as there is time for it, and none for much longer than it is thought to want; 0
    `seconds`: as long as they take. How many failed."""
    deadline = time.monotonic() + (seconds or 1e9)
    for part in parts:
        start = time.monotonic()
        state = "passed"
        if deadline - start < part.about_seconds:
            state = "skipped"
            outcome = Outcome(f"it takes about {part.about_seconds:.0f} s, and {deadline - start:.0f} s are left")
        else:
            try:
                outcome = part.run(min(deadline, start + OVERTIME * part.about_seconds) if seconds else deadline)
                if isinstance(outcome, str):
                    outcome = Outcome(outcome)
            except Failed as error:
                state, outcome = "failed", dataclasses.replace(error.outcome or Outcome(""), said=str(error))
            except Exception as error:  # whatever a part runs into, the report is written
                state, outcome = "failed", Outcome(f"{type(error).__name__}: {error}")
        report.add(part.name, state, outcome, round(time.monotonic() - start, 1))
    states = [part["state"] for part in report.parts.values()]
    skipped = f", {states.count('skipped')} skipped" if "skipped" in states else ""
    print(f"{states.count('passed')} passed, {states.count('failed')} failed{skipped}")
    return states.count("failed")


def choose(parts, names, everything, parser):
    """The parts of these names; of none: those that run by default, or `everything`."""
    if unknown := set(names) - {part.name for part in parts}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return [part for part in parts if part.name in names or (not names and (part.by_default or everything))]
