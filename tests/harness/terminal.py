"""Programs that draw on a terminal."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from eps_run import TIME_SCALE


class Terminal:
    """A program on a terminal of 100 by 40, and what it writes there. `stderr`: a file, in place of the terminal."""

    def __init__(self, command, stderr=None):
        self.fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=stderr or slave,
                                        start_new_session=True)
        os.close(slave)
        self.text = ""

    def read_until(self, condition, timeout=20):
        deadline = time.monotonic() + timeout * TIME_SCALE
        while not condition(self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"not in {timeout} s: {self.text!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    return

    def end(self):
        self.read_until(lambda _: False)  # to the last byte
        os.close(self.fd)
        return self.process.wait(timeout=10 * TIME_SCALE)
