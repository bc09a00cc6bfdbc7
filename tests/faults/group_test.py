"""Workers that pull and push as one group: the bits of one worker alone, also when members are killed."""

import os
import re
import signal
import time

from eps_run import (ENDLESS, TIME_SCALE, ByHandTest, SystemTest, children, committed_steps, long, model_hash, summary,
                     wait_for_steps)

# Blobs of several chunks, so that members have different parts of them, and eight vnodes, so that eight have work.
GROUPED = {
    "model": {"layers": 2, "d_model": 160, "heads": 2, "context": 16, "vocab": 5000},
    "batch": {"virtual_nodes": 8, "micro_batches": 2, "micro_batch": 1},
    "checkpoint": {"every_steps": 0},
}
MEMBERS = (2, 3, 4, 8)
IN_GROUPS = ("--set", "relay.group_members=8")


class Grouped:
    """What cases of groups ask of a run, before a SystemTest."""

    def endless(self, name, changes):
        return self.work.spec({**GROUPED, **ENDLESS, **changes}, name=f"{name}.json")

    def quiet_run(self, name, changes):
        spec = self.work.spec({**GROUPED, **changes}, name=f"{name}.json")
        out = self.work.out(f"{name}-alone")
        self.train_ok(spec, out)
        return spec, (model_hash(out), summary(out)["loss"])

    def log(self, out):
        return (out / "logs" / "eps_server.log").read_text()

    def groups_formed(self, out):
        """How many members each group had, in order."""
        return [int(members) for members in re.findall(r"group_formed .*members=(\d+)", self.log(out))]

    def same(self, out, expected):
        self.assertEqual((model_hash(out), summary(out)["loss"]), expected)

    def wait_until(self, process, out, condition):
        deadline = time.monotonic() + 60 * TIME_SCALE
        while not condition():
            self.assertIsNone(process.poll(), self.log(out)[-3000:])
            self.assertLess(time.monotonic(), deadline, self.log(out)[-3000:])
            time.sleep(0.001)


class GroupTest(Grouped, SystemTest):
    def killed(self, name, spec, *victims):
        """A run of whose four workers two are killed: each once what it is told to wait for has come."""
        out = self.work.out(name)
        process = self.start_endless(spec, out, "--workers", 4, *IN_GROUPS)
        wait_for_steps(process, out, 6)
        members = children(process.pid, "gpu_worker")
        for which, wait in victims:
            wait(process, out)
            os.kill(members[which], signal.SIGKILL)
        self.last_group_has(process, out, 2)
        self.ends_like_a_quiet_run(process, spec, out)
        return out

    def last_group_has(self, process, out, members):
        """Waits for a group of so many."""
        self.wait_until(process, out, lambda: self.groups_formed(out)[-1:] == [members])

    def said(self, words):
        """Waits for them in the daemon's log."""
        return lambda process, out: self.wait_until(process, out, lambda: words in self.log(out))

    def test_a_second_member_lost_while_the_step_is_done_again_changes_no_bit(self):
        spec = self.endless("redo", {"transport": "SHARED_MEMORY"})
        at_once = lambda process, out: None  # noqa: E731
        for milliseconds in (0, 3, 15, 40):
            with self.subTest(f"{milliseconds} ms later"):
                later = lambda process, out, s=milliseconds / 1e3: time.sleep(s)  # noqa: E731
                out = self.killed(f"redo-{milliseconds}", spec, (1, at_once), (2, later))
                self.assertEqual(self.groups_formed(out)[0], 4)
                self.assertEqual(self.groups_formed(out)[-1], 2)

    def test_a_member_lost_while_the_next_group_forms_changes_no_bit(self):
        spec = self.endless("forming", {"transport": "SHARED_MEMORY"})
        at_once = lambda process, out: None  # noqa: E731
        for which in (0, 3):  # who founds the next one, and who joins it
            with self.subTest(which):
                out = self.killed(f"forming-{which}", spec, (1, at_once), (which, self.said("group_ended")))
                self.assertEqual(self.groups_formed(out)[-1], 2)

    @long
    def test_a_group_of_any_size_gives_the_bits_of_one_worker(self):
        for name, changes in {"shared-bf16": {"transport": "SHARED_MEMORY"},
                              "grpc-fp32": {"transport": "GRPC", "precision": {"wire": "FP32", "gradients": "FP32"}},
                              "grpc-bf16-unclipped": {"transport": "GRPC", "optimizer": {"clip": None}}}.items():
            with self.subTest(name):
                spec, expected = self.quiet_run(name, changes)
                for members in MEMBERS:
                    out = self.work.out(f"{name}-{members}")
                    self.train_ok(spec, out, "--workers", members, *IN_GROUPS)
                    self.assertEqual(self.groups_formed(out), [members])
                    self.assertNotIn("group_failed", self.log(out))
                    self.same(out, expected)

    @long
    def test_a_member_killed_in_mid_step_changes_no_bit_and_the_others_form_a_new_group(self):
        for transport in ("SHARED_MEMORY", "GRPC"):
            spec = self.endless(transport, {"transport": transport})
            for members in MEMBERS:
                with self.subTest(f"{transport}, {members} members"):
                    out = self.work.out(f"killed-{transport}-{members}")
                    process = self.start_endless(spec, out, "--workers", members, *IN_GROUPS)
                    wait_for_steps(process, out, 8)
                    # The oldest process, mostly the founder, who has the memory; or the youngest.
                    victim = sorted(children(process.pid, "gpu_worker"))[0 if members % 2 == 0 else -1]
                    os.kill(victim, signal.SIGKILL)
                    if members > 2:
                        self.last_group_has(process, out, members - 1)
                    self.ends_like_a_quiet_run(process, spec, out)
                    self.assertEqual(self.groups_formed(out), [members, members - 1] if members > 2 else [2])

    def test_members_killed_one_after_the_other_leave_one_that_finishes_alone(self):
        spec = self.endless("shared", {"transport": "SHARED_MEMORY"})
        out = self.work.out("one-by-one")
        process = self.start_endless(spec, out, "--workers", 4, *IN_GROUPS)
        for members, which in ((4, 0), (3, -1), (2, 0)):
            wait_for_steps(process, out, committed_steps(out) + 6)
            self.last_group_has(process, out, members)
            os.kill(children(process.pid, "gpu_worker")[which], signal.SIGKILL)
        self.ends_like_a_quiet_run(process, spec, out)
        self.assertEqual(self.groups_formed(out), [4, 3, 2])

    @long
    def test_a_member_that_hangs_is_given_up_and_the_run_goes_on(self):
        spec = self.endless("grpc", {"transport": "GRPC"})
        out = self.work.out("hangs")
        process = self.start_endless(spec, out, "--workers", 3, *IN_GROUPS)
        wait_for_steps(process, out, 8)
        os.kill(children(process.pid, "gpu_worker")[1], signal.SIGSTOP)
        self.wait_until(process, out, lambda: "worker_lost" in self.log(out))  # the lease is ten seconds
        self.ends_like_a_quiet_run(process, spec, out)


class GroupByHandTest(Grouped, ByHandTest):
    def log(self, out):
        return "".join(self.logs[daemon].read_text() for daemon in self.daemons)

    def daemon(self, spec, out, *args):
        daemon, address = self.start_daemon(spec, out, "--expect-workers", 3, "--set", "relay.group_members=8", *args)
        self.daemons.append(daemon)
        return daemon, address

    def setUp(self):
        super().setUp()
        self.daemons = []

    def test_a_daemon_started_again_while_members_exchange_finds_them_in_a_new_group(self):
        spec = self.endless("again", {"transport": "SHARED_MEMORY", "checkpoint": {"every_steps": 4}})
        out = self.work.out("again")
        daemon, address = self.daemon(spec, out)
        workers = [self.start_worker(address, "--device-memory", "64MiB") for _ in range(3)]
        wait_for_steps(daemon, out, 14)
        daemon.kill()
        daemon.wait()
        daemon, _ = self.daemon(spec, out, "--listen", address, "--resume")
        self.wait_until(daemon, out, lambda: len(self.groups_formed(out)) == 2)
        self.ends_like_a_quiet_run(daemon, spec, out)
        for worker in workers:
            self.ends(worker, 0)
        self.assertEqual(self.groups_formed(out), [3, 3])

    def test_members_of_one_way_to_the_daemon_form_a_group_and_others_go_alone(self):
        spec, expected = self.quiet_run("mixed", {"steps": 20})
        out = self.work.out("mixed")
        daemon, address = self.daemon(spec, out)
        workers = [self.start_worker(address, "--device-memory", "64MiB", "--transport", transport)
                   for transport in ("shared_memory", "grpc", "shared_memory")]
        for process in (daemon, *workers):
            self.ends(process, 0)
        self.same(out, expected)
        self.assertEqual(self.groups_formed(out), [2])
