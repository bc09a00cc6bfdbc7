"""Runs the parts of a long measurement one after another within a time, and keeps a report of them, JSON and Markdown.

The report is written anew as each part begins and ends, so that a run that is killed leaves what it had.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Callable


OVERTIME = 2.5  # times what a part is thought to want, of time that the others do not want
LEAST = 0.75  # of what it is thought to want; with less it is not begun
LEAST_IN_PIECES = 0.2  # the same, where a piece is worth having
ENDLESS = 1e9  # seconds


class Failed(Exception):
    """A part did not find what it was to show; `outcome` has what it did find."""

    def __init__(self, why, outcome=None):
        super().__init__(why)
        self.outcome = outcome


class Interrupted(BaseException):
    """A signal asks for the end. No Exception, so that no part takes it for a failure of its own."""


@contextlib.contextmanager
def signals_interrupt():
    """Within it the first of the signals that ask for the end raises Interrupted; further ones are ignored, and those
    that were ignored before (nohup) still are."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def interrupt(number, _):
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


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
    state: str = "passed"  # "partly": nothing is wrong, and not all was reached; "skipped": not possible here


class Progress:
    """What a part has found so far; the report has it while the part runs."""

    def __init__(self):
        self.changed = lambda said: None

    def say(self, said):
        self.changed(said)


@dataclasses.dataclass
class Part:
    name: str
    run: Callable  # of the time until which it may run, time.monotonic()'s; an Outcome, or a line
    about_seconds: float  # what it is thought to want; kept for it while those before it run
    by_default: bool = True
    in_pieces: bool = False  # it says what it had when time is up
    progress: Progress = dataclasses.field(default_factory=Progress)


def text_of(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def cell(value):
    """What programs said may be of several lines."""
    return " ".join(text_of(value).split()).replace("|", "\\|")


def markdown_table(table):
    lines = ["| " + " | ".join(table.columns) + " |", "| " + " | ".join("---" for _ in table.columns) + " |"]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in table.rows]
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"\n## {table.title}\n\n" + "\n".join(lines) + f"\n{notes}"


class Report:
    """report.json and report.md in a folder."""

    def __init__(self, out, device, machine):
        self.out = Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.head = {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "device": device, "machine": machine}
        self.parts, self.tables, self.warnings = {}, [], []

    def begin(self, name):
        self.parts[name] = {"state": "running", "said": "", "seconds": 0}
        self.write()

    def say(self, name, said):
        self.parts[name]["said"] = said
        self.write()

    def add(self, name, state, outcome, seconds):
        self.parts[name] = {"state": state, "said": outcome.said, "seconds": seconds, **outcome.figures}
        self.tables += outcome.tables
        print(f"{name}: {state} in {seconds} s: {outcome.said}", flush=True)
        self.write()

    def write(self):
        """A report that cannot be written ends no measurement."""
        try:
            tables = [dataclasses.asdict(table) for table in self.tables]
            said = {**self.head, "warnings": self.warnings, "parts": self.parts, "tables": tables}
            self.replace("report.json", json.dumps(said, indent=1, default=str) + "\n")
            self.replace("report.md", self.markdown())
        except Exception as error:
            print(f"{self.out}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def replace(self, name, text):
        """Whole at any time: it may be read, or all may end, meanwhile."""
        part = self.out / f"{name}.part"
        part.write_text(text)
        os.replace(part, self.out / name)

    def markdown(self):
        seen = ", ".join(f"{key} {value}" for key, value in self.head["machine"].items())
        rows = [[name, part["state"], part["said"], f"{part['seconds']} s"] for name, part in self.parts.items()]
        return (f"# {self.head['device']}\n\n{self.head['when']}; {seen}\n"
                + "".join(f"\n**{cell(warning)}**\n" for warning in self.warnings)
                + markdown_table(Table("Parts", ["part", "", "", ""], rows))
                + "".join(markdown_table(table) for table in self.tables))


def until_when(part, start, deadline, wanted_later):
    """A part may run over what it is thought to want, but not into what those after it are thought to want."""
    most = min(deadline, start + OVERTIME * part.about_seconds)
    return min(most, max(start + part.about_seconds, deadline - wanted_later))


def run_one(part, report, until):
    """Its state and outcome, whatever it runs into."""
    try:
        outcome = part.run(until)
        outcome = Outcome(outcome) if isinstance(outcome, str) else outcome
        return outcome.state, outcome
    except Failed as error:
        return "failed", dataclasses.replace(error.outcome or Outcome(""), said=str(error))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", Outcome(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")


def run_in_turn(parts, report, seconds, deadline):
    for i, part in enumerate(parts):
        start = time.monotonic()
        if deadline - start < (LEAST_IN_PIECES if part.in_pieces else LEAST) * part.about_seconds:
            report.add(part.name, "skipped", Outcome(
                f"it takes about {part.about_seconds:.0f} s, and {max(0.0, deadline - start):.0f} s are left"), 0.0)
            continue
        report.begin(part.name)
        part.progress.changed = lambda said, name=part.name: report.say(name, said)
        later = sum(other.about_seconds for other in parts[i + 1:])
        state, outcome = run_one(part, report, until_when(part, start, deadline, later) if seconds else deadline)
        report.add(part.name, state, outcome, round(time.monotonic() - start, 1))


def run_parts(parts, report, seconds, began=None):
    """Each in its turn, as long as there is time for it, and none for much longer than it is thought to want; 0
    `seconds`, from `began` on: as long as they take. How many failed, or were cut off."""
    deadline = (began or time.monotonic()) + (seconds or ENDLESS)
    planned = sum(part.about_seconds for part in parts)
    print(f"planned: {', '.join(f'{part.name} {part.about_seconds:.0f} s' for part in parts)}; {planned:.0f} s"
          + (f", and {deadline - time.monotonic():.0f} s are left" if seconds else ""), flush=True)
    try:
        run_in_turn(parts, report, seconds, deadline)
    except (Interrupted, KeyboardInterrupt) as error:
        for part in parts:
            had = report.parts.get(part.name, {"state": "", "said": ""})
            if had["state"] in ("", "running"):
                state = "interrupted" if had["state"] else "not reached"
                report.add(part.name, state, Outcome(": ".join(filter(None, (str(error), had["said"])))), 0.0)
    states = [part["state"] for part in report.parts.values()]
    for state in ("partly", "interrupted", "not reached"):
        if names := [name for name, part in report.parts.items() if part["state"] == state]:
            print(f"{state}: {', '.join(names)}")
    passed, skipped = states.count("passed") + states.count("partly"), states.count("skipped")
    failed = len(states) - passed - skipped
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return failed


def choose(parts, names, everything, parser):
    """The parts of these names, in their order; of none: those that run by default, or `everything`."""
    by_name = {part.name: part for part in parts}
    if unknown := set(names) - set(by_name):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if names:
        return [by_name[name] for name in dict.fromkeys(names)]
    return [part for part in parts if part.by_default or everything]
