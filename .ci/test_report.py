#!/usr/bin/python3
"""Counts test cases from a Bazel build event file and shows what failed.

usage: test_report.py EVENTS.json

EVENTS.json is what `bazel test --build_event_json_file` wrote. Each case in a test's test.xml counts; a test without one
counts as one case. A test that fails though none of its cases does (a crash, a leak found at exit, a timeout) counts as
one failed case, and so does a target that does not build. Prints the failing cases and the end of the failing tests'
logs, then `counts PASSED FAILED SKIPPED` as the last line.
"""

import dataclasses
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

LOG_TAIL_LINES = 60
LOG_HEADER_LINES = 3  # Bazel's own, before what the test printed


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclasses.dataclass
class Attempt:
    """The last attempt of one test (of one shard of it)."""

    number: int
    status: str
    files: dict  # name, e.g. test.xml -> local path


def local_path(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def read_events(path):
    """Returns ({(label, run, shard): Attempt}, {label that did not build: why})."""
    attempts, broken = {}, {}
    with open(path, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            kind = event["id"]
            if "testResult" in kind:
                read_test_result(kind["testResult"], event.get("testResult"), attempts)
            elif "targetCompleted" in kind:
                completed = event.get("completed", {})
                if "completed" in event and not completed.get("success", False):
                    broken[kind["targetCompleted"]["label"]] = "does not build"
            elif "configuredLabel" in kind and "aborted" in event:
                broken.setdefault(kind["configuredLabel"]["label"], event["aborted"].get("reason", "aborted"))
            elif "pattern" in kind and "aborted" in event:
                what = " ".join(kind["pattern"]["pattern"])
                broken[what] = event["aborted"].get("description", "no such target")
    return attempts, broken


def read_test_result(ident, result, attempts):
    if not result:
        return
    key = (ident["label"], ident.get("run", 1), ident.get("shard", 1))
    number = ident.get("attempt", 1)
    if key in attempts and attempts[key].number > number:
        return
    files = {f["name"]: local_path(f["uri"]) for f in result.get("testActionOutput", []) if "uri" in f}
    attempts[key] = Attempt(number, result.get("status", "NO_STATUS"), files)


def is_skipped(case):
    return case.find("skipped") is not None or case.get("result") == "skipped" or case.get("status") == "notrun"


def is_failed(case):
    return case.find("failure") is not None or case.find("error") is not None


def count_cases(attempt):
    """Returns (Counts, names of the failing cases)."""
    counts, failing = Counts(), []
    try:
        cases = list(ElementTree.parse(attempt.files["test.xml"]).iter("testcase"))
    except (KeyError, OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        if is_failed(case):
            counts.failed += 1
            failing.append(".".join(n for n in (case.get("classname"), case.get("name")) if n))
        elif is_skipped(case):
            counts.skipped += 1
        else:
            counts.passed += 1
    if attempt.status not in ("PASSED", "FLAKY") and not counts.failed:
        counts.failed += 1
        failing.append(f"({attempt.status})")
    elif not cases:
        counts.passed += 1
    return counts, failing


def print_tail(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()[LOG_HEADER_LINES:]
    except OSError as error:
        print(f"    no log: {error}")
        return
    if len(lines) > LOG_TAIL_LINES:
        print(f"    ... (the last {LOG_TAIL_LINES} of {len(lines)} lines; whole: {path})")
    for line in lines[-LOG_TAIL_LINES:]:
        print(f"    {line}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        attempts, broken = read_events(sys.argv[1])
    except (OSError, ValueError, KeyError) as error:
        print(f"test: cannot read Bazel's event file: {error}")
        print("counts 0 1 0")
        return
    total = Counts()
    for (label, _, shard), attempt in sorted(attempts.items()):
        counts, failing = count_cases(attempt)
        total.passed += counts.passed
        total.failed += counts.failed
        total.skipped += counts.skipped
        if failing:
            print(f"\nFAILED {label}" + (f" (shard {shard})" if shard > 1 else ""))
            for name in failing:
                print(f"  {name}")
            print_tail(attempt.files.get("test.log", ""))
    tested = {label for label, _, _ in attempts}
    for label, why in sorted(broken.items()):
        if label not in tested:
            print(f"\nFAILED {label}: {why}")
            total.failed += 1
    print(f"counts {total.passed} {total.failed} {total.skipped}")


if __name__ == "__main__":
    main()
