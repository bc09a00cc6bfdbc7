"""Invariant 5 under fire: a disk that is full, read-only, broken or gone, and kills while a checkpoint is written.

EPS_FAULT_STATE_MB and EPS_FAULT_KILLS set the size of the state that is killed in mid-checkpoint, and how often;
EPS_FAULT_SEED the moments.
"""

import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import time

from checkpoint_disk import PART_BYTES, CheckpointDiskTest, verify
from eps_run import (BIN, ENDLESS, EPS, TIME_SCALE, ByHandTest, alone, children, endpoints, latest_checkpoint,
                     run, start_train, train, train_command, wait_for_steps)

STATE_MB = int(os.environ.get("EPS_FAULT_STATE_MB", "100"))
KILLS = int(os.environ.get("EPS_FAULT_KILLS", "20"))
SEED = int(os.environ.get("EPS_FAULT_SEED", "20260101"))

RUN = {**ENDLESS, "checkpoint": {"every_steps": 10, "keep": 2}}


class HangingDiskTest(ByHandTest):
    def test_a_failed_run_ends_though_its_disk_hangs_in_a_checkpoint(self):
        spec, out = self.work.spec(RUN), self.work.out("run")
        trigger, hangs = self.work.path / "trigger", self.work.path / "trigger.hangs"
        daemon = self.start("/usr/bin/env", f"LD_PRELOAD={self.library('io_error.c')}", f"EPS_IO_ERROR={trigger}",
                            BIN / "eps_server", "--run", spec, "--out", out)
        self.start_worker(endpoints(daemon, out, log=self.logs[daemon])["grpc"])

        def wait_for(what):
            deadline = time.monotonic() + 60 * TIME_SCALE
            while not what():
                self.assertIsNone(daemon.poll(), self.log(daemon))
                self.assertLess(time.monotonic(), deadline, "waited in vain")
                time.sleep(0.02)

        wait_for((out / "checkpoints" / "latest").exists)
        before = latest_checkpoint(out)
        trigger.write_text("hang")
        wait_for(hangs.exists)
        daemon.send_signal(signal.SIGTERM)
        wait_for(lambda: "stop_requested" in self.log(daemon))  # it has seen the first
        time.sleep(1.2)  # within a second it is the same signal
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 1)
        self.assertIn("second signal", self.log(daemon))
        self.assertIn("ended_with_work_under_way", self.log(daemon))
        verify(latest_checkpoint(out))
        self.assertGreaterEqual(latest_checkpoint(out).name, before.name)

    def test_a_failed_run_ends_though_its_disk_hangs_as_it_keeps_why(self):
        diverges = {"steps": 100, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}, "checkpoint": {"every_steps": 0}}
        out, trigger = self.work.out("run"), self.work.path / "trigger"
        trigger.write_text("hang")
        daemon = self.start("/usr/bin/env", f"LD_PRELOAD={self.library('io_error.c')}", f"EPS_IO_ERROR={trigger}",
                            BIN / "eps_server", "--run", self.work.spec(diverges), "--out", out)
        self.start_worker(endpoints(daemon, out, log=self.logs[daemon])["grpc"])
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 1)
        self.assertIn("not finite", self.log(daemon))
        self.assertIn("ended_with_work_under_way", self.log(daemon))
        self.assertTrue((self.work.path / "trigger.hangs").exists())


@alone
class FireTest(CheckpointDiskTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec(RUN)

    def fill_disk(self):
        ballast = self.checkpoints / "ballast"
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
        return ballast

    # ---- the disk ----

    def test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_nothing_else(self):
        self.small_disk(16)
        ballast = self.fill_disk()
        process = self.start("--resume")  # the folder is there, without a run
        status = self.wait_for_failure(process)
        self.assertIn("No space left", status["checkpoint_error"])
        self.assertEqual(status["newest_checkpoint"], "")
        asked = run([str(EPS), "checkpoint", "--out", str(self.out)])
        self.refused(asked, 1, "No space left")
        self.assertNotIn("--tls", asked.stderr)
        ballast.unlink()
        self.wait_for_checkpoint(process)
        self.goes_on_like_a_quiet_run(process)
        log = (self.out / "logs" / "eps_server.log").read_text()
        failed = [line for line in log.splitlines() if "checkpoint_failed" in line]
        self.assertTrue(failed)
        self.assertTrue(all(" ERROR checkpoint_failed " in line for line in failed), failed[0])

    def test_a_disk_without_room_for_a_single_checkpoint_is_told_before_anything_is_trained(self):
        self.small_disk(1)
        done = train(self.work.spec({"steps": 2}), self.out, "--resume")
        self.refused(done, 1, "eps: warning: the next checkpoint of this run takes ", f" free for {self.checkpoints}: make room",
                     "the last checkpoint", "No space left")
        self.assertLess(done.stderr.index("eps: warning: the next checkpoint"), done.stderr.index("the last checkpoint"))

    def test_a_disk_that_stays_full_ends_the_run_with_1_and_what_was_written_before_stands(self):
        self.small_disk(16)
        process = self.start("--resume")
        self.wait_for_checkpoint(process)
        ballast = self.fill_disk()
        run([str(EPS), "stop", "--out", str(self.out)])
        stderr = self.ends(process, 1)
        stands = latest_checkpoint(self.out)
        verify(stands)
        for words in ("the last checkpoint", "No space left", stands.name, "--resume"):
            self.assertIn(words, stderr)
        self.assertNotIn("told to end", stderr)  # `eps train` had not to end a daemon that was stuck
        self.assertEqual([p.name for p in self.checkpoints.iterdir() if p.name.startswith(".")], [])
        ballast.unlink()
        self.goes_on_like_a_quiet_run(self.start("--resume"))

    def test_where_the_log_cannot_be_written_either_that_is_said_in_place_of_the_reason(self):
        self.checkpoints = self.out  # all of the run's folder
        self.small_disk(16)
        self.interrupt(self.spec, self.out, 7)
        log = self.out / "logs" / "eps_server.log"
        with open(log, "ab") as file:  # up to a page's end: the next byte wants room
            file.write(b"x" * (4095 - log.stat().st_size % 4096) + b"\n")
        self.fill_disk()
        self.refused(train(self.spec, self.out, "--resume"), 1,
                     "the daemon ended: exit code 1; its log could not be written to the end: its disk is full", str(log))

    def test_a_disk_that_is_read_only_for_a_while_costs_checkpoints_and_nothing_else(self):
        self.small_disk(16)
        process = self.start("--resume")
        self.wait_for_checkpoint(process)
        # Refused while a file is open for writing.
        self.wait_for(process, lambda: run(["mount", "-o", "remount,ro", str(self.checkpoints)]).returncode == 0)
        status = self.wait_for_failure(process)
        self.assertIn("Read-only file system", status["checkpoint_error"])
        verify(latest_checkpoint(self.out))
        self.assertEqual(run(["mount", "-o", "remount,rw", str(self.checkpoints)]).returncode, 0)
        self.goes_on_like_a_quiet_run(process)

    def test_a_limit_on_the_size_of_files_is_an_error_and_no_death(self):
        done = subprocess.run(train_command(self.spec, self.out, "--steps", "20"), capture_output=True, text=True,
                              timeout=300 * TIME_SCALE, stdin=subprocess.DEVNULL,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000)))
        self.refused(done, 1, "the last checkpoint", "File too large", "optimizer.safetensors")
        self.assertEqual(list(self.checkpoints.iterdir()), [])

    def test_a_directory_that_vanishes_is_made_anew(self):
        process = self.start()
        self.wait_for_checkpoint(process)
        self.checkpoints.rename(self.out / "moved-away")
        self.wait_for_checkpoint(process)
        self.goes_on_like_a_quiet_run(process)

    def test_a_file_in_the_directorys_place_costs_checkpoints_until_it_is_gone(self):
        def put_file():
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            try:
                self.checkpoints.write_text("not a folder")
            except IsADirectoryError:
                return False  # it was made anew meanwhile
            return True

        process = self.start()
        self.wait_for_checkpoint(process)
        self.wait_for(process, put_file)
        self.assertIn("checkpoints", self.wait_for_failure(process)["checkpoint_error"])
        self.checkpoints.unlink()
        self.goes_on_like_a_quiet_run(process)

    def test_a_disk_with_input_output_errors_costs_checkpoints_and_nothing_else(self):
        library = self.library("io_error.c")
        trigger = self.work.path / "trigger"
        for call in ("pwrite", "fsync", "rename"):
            with self.subTest(call=call):
                self.out = self.work.out(f"run-{call}")
                self.checkpoints = self.out / "checkpoints"
                trigger.unlink(missing_ok=True)
                environment = {**os.environ, "LD_PRELOAD": str(library), "EPS_IO_ERROR": str(trigger)}
                process = self.start(env=environment)
                self.wait_for_checkpoint(process)
                before = latest_checkpoint(self.out)
                trigger.write_text(call)
                status = self.wait_for_failure(process)
                self.assertIn("Input/output error", status["checkpoint_error"])
                verify(latest_checkpoint(self.out))
                self.assertGreaterEqual(latest_checkpoint(self.out).name, before.name)
                trigger.unlink()
                self.goes_on_like_a_quiet_run(process)

    # ---- damage ----

    def test_damage_is_named_by_its_place_and_the_older_checkpoint_that_is_offered_gives_the_same_bits(self):
        process = self.start()
        wait_for_steps(process, self.out, 45)
        process.send_signal(signal.SIGTERM)
        self.ends(process, 143)
        newest = latest_checkpoint(self.out)
        older = max(p for p in self.checkpoints.glob("step-*") if p != newest)
        for name in ("model.safetensors", "optimizer.safetensors"):
            with open(newest / name, "r+b") as file:
                file.seek(-5, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
        size = (newest / "model.safetensors").stat().st_size
        first = (size - 5) // PART_BYTES * PART_BYTES
        done = train(self.spec, self.out, "--resume")
        self.assertNotEqual(done.returncode, 0)
        for words in (f"{newest}/model.safetensors", f"first between byte {first} and {size - 1}",
                      f"remove the folder {newest}", f"from {older.name}, which is whole"):
            self.assertIn(words, done.stderr)
        shutil.rmtree(newest)
        self.goes_on_like_a_quiet_run(self.start("--resume"))

    # ---- kills ----

    def big_run(self):
        """A run whose state (14 bytes a parameter) has about STATE_MB, with little to compute in a step."""
        d_model = 512
        layers = max(1, round(STATE_MB * 1e6 / 14 / (12 * d_model * d_model)))
        return self.work.spec({
            "model": {"layers": layers, "d_model": d_model, "heads": 8, "context": 16},
            "batch": {"virtual_nodes": 1, "micro_batches": 1, "micro_batch": 1},
            "steps": 8 * KILLS + 20, "checkpoint": {"every_steps": 1, "keep": 1}}, name="big.json")

    def being_written(self):
        """Names of the checkpoints that are being written now."""
        try:
            return {name for name in os.listdir(self.checkpoints) if name.startswith(".tmp-step-")}
        except FileNotFoundError:
            return set()

    def sit(self, spec, moments, which, seconds):
        """Trains until `seconds` after the sitting's checkpoint number `which` is begun; then the daemon is killed.

        Returns how long the checkpoints before took."""
        begun, seen, took = {}, self.being_written(), []  # what the kill before left half-written does not count
        process = start_train(spec, self.out, *(["--resume"] if (self.checkpoints / "latest").exists() else []))
        deadline = time.monotonic() + 600 * TIME_SCALE
        while len(begun) < which:
            self.assertIsNone(process.poll(), f"ended before its kill: {moments}")
            self.assertLess(time.monotonic(), deadline)
            now, writing = time.monotonic(), self.being_written()
            for name in writing - seen:
                begun[name] = now
            took += [now - begun[name] for name in seen - writing if name in begun]
            seen = writing
            time.sleep(0.001)
        time.sleep(seconds)
        daemon, = children(process.pid, "eps_server")
        os.kill(daemon, signal.SIGKILL)
        self.ends(process, 1)
        return took

    def test_killed_at_any_moment_of_a_checkpoint_the_newest_one_is_whole_and_the_bits_stay(self):
        spec = self.big_run()
        rng = random.Random(SEED)
        print(f"{KILLS} kills, about {STATE_MB} MB of state, seed {SEED}", flush=True)
        moments = []
        took = self.sit(spec, moments, 4, 0)
        left_half_written = 0
        for _ in range(KILLS):
            moments.append((rng.randint(1, 2), rng.uniform(0, 1.2) * statistics.median(took)))
            took += self.sit(spec, moments, *moments[-1])
            left_half_written += bool(self.being_written())
            verify(latest_checkpoint(self.out))
            complete = [p for p in self.checkpoints.glob("step-*")]
            self.assertGreaterEqual(len(complete), 1)
            for folder in complete:
                verify(folder)
        print(f"a checkpoint took {statistics.median(took):.2f} s; "
              f"{left_half_written} of {KILLS} kills left one half-written", flush=True)
        self.assertGreater(left_half_written, KILLS // 4, "the kills missed the writing")
        self.train_ok(spec, self.out, "--resume", "--set", "checkpoint.every_steps=0", timeout=1800)
        self.assertEqual(self.being_written(), set())
        self.like_a_quiet_run(spec, self.out)
