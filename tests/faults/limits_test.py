"""Limits of the host that are reached: what a user may have at once."""

import os
import resource
import subprocess

from eps_run import TIME_SCALE, SystemTest

USER = 65531  # with no process but the test's; need not be in /etc/passwd


class ProcessLimitTest(SystemTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can become a user without other processes")
        self.spec = self.work.spec({"steps": 3})
        self.hand_over_to(USER)

    def with_limit(self, limit, program, *arguments):
        return subprocess.run(
            [str(word) for word in (self.bin / program, *arguments)], capture_output=True, text=True,
            timeout=120 * TIME_SCALE, stdin=subprocess.DEVNULL, user=USER, group=USER, extra_groups=[],
            cwd=self.work.path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)))

    def test_a_run_that_may_not_start_its_threads_says_how_many_it_needs_and_makes_nothing(self):
        out = self.work.out("run")
        for limit in (8, 20, 30, 45):
            self.refused(self.with_limit(limit, "eps", "train", "--run", self.spec, "--out", out, "--workers", 2), 1,
                         "threads, and may start", "ulimit -u", "pids.max")
            self.assertFalse(out.exists())
        done = self.with_limit(1000, "eps", "train", "--run", self.spec, "--out", out, "--workers", 2, "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_program_says_it_for_itself(self):
        out = self.work.out("run")
        self.refused(self.with_limit(12, "eps_server", "--run", self.spec, "--out", out), 1, "eps_server: needs")
        self.assertFalse(out.exists())
        self.refused(self.with_limit(12, "gpu_worker", "--connect", "127.0.0.1:1"), 1, "gpu_worker: needs")
        self.refused(self.with_limit(4, "eps", "status", "--connect", "127.0.0.1:1"), 1, "eps: needs")
