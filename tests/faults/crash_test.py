"""What crashes is started again where eps train is told so; what one wire version cannot outlive. The final bits are those of
a quiet run."""

import os
import signal
import time
import unittest.mock

from eps_run import (DEVICE, ENDLESS, EPS, TIME_SCALE, SystemTest, children, committed_steps, merged, run,
                     summary, train, wait_for_steps)

CHECKPOINTS = {"checkpoint": {"every_steps": 10}}


class CrashTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec({**ENDLESS, **CHECKPOINTS})

    def another(self, process, name, than, timeout=30):
        """The process of the name that comes after `than`."""
        deadline = time.monotonic() + timeout * TIME_SCALE
        while not (found := [pid for pid in children(process.pid, name) if pid not in than]):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, f"no other {name} was started")
            time.sleep(0.01)
        return found[0]

    def listens(self, out, times):
        """Until a daemon has come to listen so often."""
        deadline = time.monotonic() + 30 * TIME_SCALE
        while (out / "logs" / "eps_server.log").read_text().count("daemon_listening") < times:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def kill(self, process, name):
        victims = children(process.pid, name)
        os.kill(victims[0], signal.SIGKILL)
        return victims

    def test_the_only_worker_is_started_again_each_time_it_is_killed(self):
        out = self.work.out("worker")
        process = self.start_endless(self.spec, out, "--restarts", 2)
        for steps in (7, 30):
            wait_for_steps(process, out, steps)
            killed = self.kill(process, "gpu_worker")
            self.another(process, "gpu_worker", than=killed)
        self.ends_like_a_quiet_run(process, self.spec, out)
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertEqual(log.count("worker_lost"), 2)
        self.assertEqual(log.count("daemon_listening"), 1)  # it went on all the time

    def test_a_wall_clock_that_is_set_back_keeps_no_worker_from_being_started_again(self):
        out, back = self.work.out("clock"), self.work.path / "back"
        preloaded = {"LD_PRELOAD": str(self.library("wall_clock.c")), "EPS_CLOCK_BACK": str(back)}
        with unittest.mock.patch.dict(os.environ, preloaded):
            process = self.start_endless(self.spec, out, "--restarts", 2)
        for steps in (7, 30):
            wait_for_steps(process, out, steps)
            killed = self.kill(process, "gpu_worker")
            self.another(process, "gpu_worker", than=killed)
            back.touch()
            time.sleep(3)  # Abseil asks the system for the time every two seconds, and reckons in between
        process.send_signal(signal.SIGINT)
        self.ends(process, 130)

    def test_a_daemon_that_is_killed_goes_on_from_its_newest_checkpoint(self):
        out = self.work.out("daemon")
        process = self.start_endless(self.spec, out, "--workers", 2, "--restarts", 2)
        for steps in (5, 40):  # before the first checkpoint, and after some
            wait_for_steps(process, out, steps)
            killed = self.kill(process, "eps_server")
            self.another(process, "eps_server", than=killed)
            self.listens(out, times=2 if steps == 5 else 3)
        self.ends_like_a_quiet_run(process, self.spec, out)
        self.assertEqual(committed_steps(out), len(summary(out)["loss"]))  # one line each, though some were done twice

    def test_all_that_is_started_again_are_as_many_workers_as_were_last_asked_for(self):
        out = self.work.out("resized")
        process = self.start_endless(self.spec, out, "--restarts", 5)
        killed = []
        for number, (asked, workers) in enumerate(((["resize", "3"], 3), (["drain", "1"], 2)), start=2):
            wait_for_steps(process, out, committed_steps(out) + 12)
            done = run([str(EPS), asked[0], "--out", str(out), asked[1]])
            self.assertEqual(done.returncode, 0, done.stderr)
            time.sleep(TIME_SCALE)  # in seconds ten times as long as `eps train` takes to see who has ended
            killed = self.kill(process, "eps_server")
            self.another(process, "eps_server", than=killed)
            self.listens(out, times=number)
            wait_for_steps(process, out, committed_steps(out) + 12)
            self.assertEqual(len(children(process.pid, "gpu_worker")), workers)
        process.send_signal(signal.SIGTERM)
        stderr = self.ends(process, 143)
        for words in (", with 3 workers; restarts left: 4", ", with 2 workers; restarts left: 3"):
            self.assertIn(words, stderr)

    def test_no_more_than_was_allowed(self):
        for name in ("gpu_worker", "eps_server"):
            with self.subTest(name):
                out = self.work.out(f"bounded-{name}")
                process = self.start_endless(self.spec, out, "--restarts", 1)
                wait_for_steps(process, out, 12)
                killed = self.kill(process, name)
                os.kill(self.another(process, name, than=killed), signal.SIGKILL)
                stderr = self.ends(process, 1)
                self.assertIn(f"{'gpu_worker 1' if name == 'gpu_worker' else 'the daemon'} ended: signal 9 (Killed), "
                              "perhaps for want of memory: ", stderr)

    def test_nothing_is_started_again_unless_it_is_asked_for(self):
        out = self.work.out("default")
        process = self.start_endless(self.spec, out)
        wait_for_steps(process, out, 7)
        self.kill(process, "eps_server")
        self.ends(process, 1)
        self.assertEqual((out / "logs" / "eps_server.log").read_text().count("daemon_starts"), 1)

    def test_a_run_that_failed_by_itself_stays_so(self):
        spec = self.work.spec({"steps": 1000, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}}, name="bad.json")
        out = self.work.out("diverged")
        done = train(spec, out, "--restarts", 5)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual((out / "logs" / "eps_server.log").read_text().count("daemon_starts"), 1)
        self.assertFalse((out / "logs" / "gpu_worker-2.log").exists())

    def test_a_worker_that_was_let_go_is_not_started_again(self):
        out = self.work.out("drained")
        process = self.start_endless(self.spec, out, "--workers", 2, "--restarts", 5)
        wait_for_steps(process, out, 7)
        self.assertEqual(run([str(EPS), "drain", "--out", str(out), "1"]).returncode, 0)
        deadline = time.monotonic() + 60 * TIME_SCALE
        while len(children(process.pid, "gpu_worker")) > 1:
            self.assertLess(time.monotonic(), deadline, "it did not leave")
            time.sleep(0.01)
        time.sleep(TIME_SCALE)  # in seconds ten times as long as `eps train` takes to see who has ended
        process.send_signal(signal.SIGTERM)
        self.ends(process, 143)
        self.assertFalse((out / "logs" / "gpu_worker-3.log").exists())

    def test_a_worker_that_cannot_start_is_not_started_again(self):
        out = self.work.out("does-not-fit")
        done = train(self.spec, out, "--restarts", 5, "--device-memory", "100KiB")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("needs at least", done.stderr)

    def test_a_signal_ends_it_as_ever_after_a_restart(self):
        out = self.work.out("signal")
        process = self.start_endless(self.spec, out, "--restarts", 5)
        wait_for_steps(process, out, 12)
        killed = self.kill(process, "eps_server")
        self.another(process, "eps_server", than=killed)
        wait_for_steps(process, out, 25)
        process.send_signal(signal.SIGTERM)
        stderr = self.ends(process, 143)
        self.assertIn("ended by a signal", stderr)
        self.ends_like_a_quiet_run(self.start_endless(self.spec, out, "--resume"), self.spec, out)


class OneVersionTest(SystemTest):
    """precision.wire_versions: 1, of which a lost worker may cost the step."""

    def setUp(self):
        super().setUp()
        lagged = merged(ENDLESS, {**CHECKPOINTS, "optimizer": {"clip": {"mode": "LAGGED"}}})
        self.two = self.work.spec(lagged, name="two.json")
        self.one = self.work.spec({**lagged, "precision": {"wire_versions": 1}}, name="one.json")

    def kill_one_that_owes(self, process, out):
        """Stopped until nothing goes on: the others have done their part of the step, and it has not."""
        wait_for_steps(process, out, 15)
        victim = children(process.pid, "gpu_worker")[0]
        os.kill(victim, signal.SIGSTOP)
        steps = -1
        while steps != committed_steps(out):
            steps = committed_steps(out)
            time.sleep(0.3 * TIME_SCALE)
        os.kill(victim, signal.SIGKILL)

    def test_a_lost_worker_costs_the_step_and_a_resume_gives_the_bits_of_two_versions(self):
        out = self.work.out("lost")
        process = self.start_endless(self.one, out, "--workers", 2)
        self.kill_one_that_owes(process, out)
        stderr = self.ends(process, 1)
        self.assertIn("cannot be run again, as precision.wire_versions is 1", stderr)
        self.assertIn("checkpoint", stderr)
        self.assertIn("the daemon ended: exit code 75", stderr)
        resumed = self.start_endless(self.two, out, "--resume")  # how many there are may change
        self.ends_like_a_quiet_run(resumed, self.two, out)

    def test_with_restarts_it_goes_on_by_itself(self):
        out = self.work.out("restarted")
        process = self.start_endless(self.one, out, "--workers", 2, "--restarts", 1)
        self.kill_one_that_owes(process, out)
        self.assertIn("restarts left: 0", self.ends_like_a_quiet_run(process, self.two, out))
        self.assertEqual((out / "logs" / "eps_server.log").read_text().count("daemon_listening"), 2)
        less = summary(f"{out}-quiet")["model_state_bytes"] - summary(out)["model_state_bytes"]
        self.assertGreaterEqual(less, 2 * summary(out)["parameters"])

    def test_where_updates_wait_for_the_step_a_lost_worker_costs_nothing(self):
        spec = self.work.spec({**ENDLESS, "precision": {"wire_versions": 1}}, name="exact.json")
        out = self.work.out("exact")
        process = self.start_endless(spec, out, "--workers", 2)
        self.kill_one_that_owes(process, out)
        self.ends_like_a_quiet_run(process, self.work.spec(ENDLESS, name="exact-two.json"), out)
        self.assertEqual((out / "logs" / "eps_server.log").read_text().count("worker_lost"), 1)

    def test_every_version_is_read_before_it_is_overwritten(self):
        done = run([str(EPS), "verify", "--run", str(self.one), "--steps", "4", *DEVICE])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
