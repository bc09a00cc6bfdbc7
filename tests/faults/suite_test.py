"""A suite of tests that is ended takes with it what its cases have started, runs without an end among it."""

import os
import signal
import sys
from pathlib import Path

from eps_run import ROOT, SystemTest, alive, children, start, wait_for_steps

CASES = """
import os
import subprocess
import sys
sys.path.insert(0, sys.argv.pop(1))
import eps_run

class EndlessTest(eps_run.ByHandTest):
    def test_run(self):
        self.train_ok(self.work.spec(eps_run.ENDLESS), os.environ["OUT"])

    def test_beside(self):
        eps_run.start_train(self.work.spec(eps_run.ENDLESS), os.environ["OUT"]).wait()

    @eps_run.alone
    def test_apart(self):
        self.test_beside()

    def test_by_hand(self):
        daemon, address = self.start_daemon(self.work.spec(eps_run.ENDLESS), os.environ["OUT"])
        self.start_worker(address, "--device-memory", "64MiB")
        daemon.wait()

if __name__ == "__main__":
    sys.exit(eps_run.main(os.path.dirname(__file__)))
"""


def below(pid):
    """All processes that come from this one."""
    names = (Path(sys.executable).name[:15], "eps", "eps_server", "gpu_worker")
    return [found for name in names for child in children(pid, name) for found in (child, *below(child))]


class SuiteTest(SystemTest):
    def test_a_suite_that_is_ended_leaves_no_run_behind(self):
        folder = self.work.path / "cases"
        folder.mkdir()
        (folder / "endless_test.py").write_text(CASES)
        for number in (signal.SIGINT, signal.SIGTERM):
            for case, processes in (("run", 4), ("beside", 4), ("apart", 3), ("by_hand", 3)):
                with self.subTest(case=case, signal=number):
                    out = self.work.out(f"{case}-{number}")
                    suite = start([sys.executable, folder / "endless_test.py", ROOT / "tests" / "harness", f"test_{case}"],
                                  env={**os.environ, "OUT": str(out), "TMPDIR": str(self.work.path)})
                    self.addCleanup(self.end_if_running, suite)
                    wait_for_steps(suite, out, 3)
                    pids = below(suite.pid)
                    self.assertEqual(len(pids), processes)
                    suite.send_signal(number)
                    self.assertEqual(suite.wait(), -number)
                    try:
                        self.gone(pids)
                    finally:
                        for pid in filter(alive, pids):
                            os.kill(pid, signal.SIGKILL)
