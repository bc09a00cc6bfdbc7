"""Processes that end in time, with all that they started.

Each gets a session of its own. Its children stay in that session even where they lead process groups of their own, as
those of `eps train` do, and are ended with it. Output goes to files: a pipe would stay open in a child that is left.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from part_report import Failed

KILL_SECONDS = 5  # a process that waits within a driver cannot be killed: it is left

_running, _lock = set(), threading.Lock()
_closed = False


class OutOfTime(Failed):
    """It was ended; `stdout` is what it had said."""

    def __init__(self, why, stdout):
        super().__init__(why)
        self.stdout = stdout


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def in_session(session):
    """Of all processes, zombies left out."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split() if entry.isdigit() else []
        except OSError:  # it has just ended
            continue
        if fields and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry))
    return found


class Process:
    """`log`: a file that takes both outputs, at its end; else they are `stdout` and `stderr`."""

    def __init__(self, command, log=None, env=None):
        self.words = [str(word) for word in command]
        self.began = time.monotonic()
        self._out = open(log, "ab") if log else tempfile.TemporaryFile()
        self._err = self._out if log else tempfile.TemporaryFile()
        with _lock:
            if _closed:
                raise Failed(f"{self.name} is not started: all is to end")
            try:
                self._process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=self._out,
                                                 stderr=self._err, env=env, start_new_session=True)
            except OSError as error:
                raise Failed(f"{self.words[0]} cannot be started: {error.strerror}") from None
            _running.add(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self._out.close()
        self._err.close()

    @property
    def name(self):
        return Path(self.words[0]).name

    @property
    def pid(self):
        return self._process.pid

    @property
    def returncode(self):
        """None while it runs."""
        return self._process.poll()

    def wait(self, deadline):
        """Whether it ends by itself until then."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def signal(self, number):
        """To it alone."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def end(self):
        """Kills what is left of its session."""
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            self._process.poll()  # it may have become a zombie
            if not (left := in_session(self.pid)):  # again, as one may have been forking
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        with _lock:
            _running.discard(self)

    def stdout(self):
        return self._text(self._out)

    def stderr(self):
        return self._text(self._err)

    @staticmethod
    def _text(file):
        # Not through the file's own position, which is the process's too.
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def run(command, deadline, env=None):
    """Its end. Raises OutOfTime when that is not by `deadline`, time.monotonic()'s."""
    with Process(command, env=env) as process:
        if process.wait(deadline):
            return Done(process.returncode, process.stdout(), process.stderr())
        seconds = time.monotonic() - process.began
        process.end()
        said = (process.stderr() or process.stdout()).strip()
        raise OutOfTime(f"{process.name} was ended after {seconds:.0f} s: ...{said[-200:]}", process.stdout())


def end_all():
    """Of all threads; none is started after that."""
    global _closed
    with _lock:
        _closed = True
        left = list(_running)
    for process in left:
        process.end()
