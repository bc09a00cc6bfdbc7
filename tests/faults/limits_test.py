"""Limits of the host that are reached: what a user may have at once."""

import os
import resource
import subprocess
from pathlib import Path

from eps_run import EPS, TIME_SCALE, SystemTest, run

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


class MemoryLimitTest(SystemTest):
    def with_limit(self, limit, *arguments):
        """The command as in a control group of so many bytes: a file in a mount namespace of its own says so."""
        in_namespace = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs eps-test /sys/fs/cgroup && "
                        f"echo {limit} > /sys/fs/cgroup/memory.max && exec \"$@\"", "sh"]
        probe = run([*in_namespace, "true"])
        if probe.returncode != 0:
            self.skipTest(f"mounting is not allowed here: {probe.stderr.strip()}")
        return run([*in_namespace, str(EPS), *map(str, arguments)])

    def test_a_daemon_larger_than_its_control_group_is_refused_with_both_figures(self):
        if "SwapTotal:             0 kB" not in Path("/proc/meminfo").read_text():
            self.skipTest("with swap a run may have more than a control group's limit")
        spec, out = self.work.spec({"steps": 1}), self.work.out("run")
        train = ("train", "--run", spec, "--out", out, "--device-memory", "64MiB")
        self.refused(self.with_limit(100_000, *train), 3, "the daemon needs at least",
                     "its control group allows 97.7 KiB (/sys/fs/cgroup/memory.max)")
        self.assertFalse(out.exists(), "a refused run left a folder")
        # A limit that is not reached for sure, as of the daemon's constant 96 MiB, is a warning.
        done = self.with_limit(50 << 20, *train)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("WARNING memory_is_short needed_bytes=", done.stdout)
