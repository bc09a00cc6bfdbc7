"""The optimizer's state on a disk (optimizer_offload): the same bits, with less memory, and nothing that is left behind."""

import hashlib
import os
import resource
import signal

from checkpoint_disk import verify
from eps_run import (ENDLESS, SystemTest, children, committed_steps, latest_checkpoint, measures_the_process,
                     merged, run, sample_text, start_train, summary, train, wait_for_steps)
from resident_memory import resident_peaks

# 53 chunks of state, more than there are buffers for, in steps of some tens of milliseconds.
LARGER = {"model": {"layers": 4, "d_model": 512, "context": 16},
          "batch": {"virtual_nodes": 2, "micro_batches": 1, "micro_batch": 1}, "steps": 4,
          "checkpoint": {"every_steps": 2}}
STATE_BYTES = 10 * 12_600_000  # of AdamW beside a bf16 wire, about


def files_hash(out):
    """Of everything that a checkpoint has of the model: weights and moments."""
    folder = latest_checkpoint(out)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert "optimizer.safetensors" in names, names
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()


class OffloadTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.disk = self.work.path / "disk"
        self.disk.mkdir()
        self.offload = {"optimizer_offload": {"path": "disk"}}

    def on_disk(self, memory_bytes=0):
        return ("--set", f"optimizer_offload.path={self.disk}", "--set", f"optimizer_offload.memory_bytes={memory_bytes}")

    def test_the_bits_are_those_of_a_state_in_memory_in_every_mode(self):
        # All in buffers and on the disk, a part in memory, and all of it as if nothing had been asked for.
        for name, changes, kept in (
                ("exact", {}, (0, STATE_BYTES // 4, 100 * STATE_BYTES)),
                ("lagged", {"optimizer": {"clip": {"mode": "LAGGED"}}}, (0,)),
                ("fp8", {"optimizer": {"clip": None}, "precision": {"moments": "FP8", "wire_versions": 1}}, (1_000_000,)),
                ("lamb", {"optimizer": {"adamw": None, "lamb": {}, "clip": None}, "precision": {"wire": "FP16"}}, (0,))):
            with self.subTest(name):
                spec, in_memory = self.work.spec(merged(LARGER, changes), name=f"{name}.json"), self.work.out(name)
                self.train_ok(spec, in_memory)
                for memory_bytes in kept:
                    out = self.work.out(f"{name}-{memory_bytes}")
                    self.train_ok(spec, out, "--workers", 2, *self.on_disk(memory_bytes))
                    self.assertEqual((files_hash(out), summary(out)["loss"]),
                                     (files_hash(in_memory), summary(in_memory)["loss"]), memory_bytes)
                    # What is compared did lie there, unless memory was said to hold it.
                    log = (out / "logs" / "eps_server.log").read_text()
                    self.assertEqual("offload_opened" in log, memory_bytes <= STATE_BYTES, log)

    def test_a_checkpoint_is_served_and_measured_where_the_disk_is_not(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(merged(LARGER, {"optimizer": {"adamw": None, "sgd": {}}, "steps": 2})), out,
                      *self.on_disk())
        self.disk.rmdir()
        self.assertTrue(self.eps("sample", "--checkpoint", out, "--prompt", "and ", "--tokens", 3).stdout)
        (self.work.path / "short.txt").write_bytes(sample_text(2_000))
        self.eps("evaluate", "--checkpoint", out, "--data", self.work.path / "short.txt")

    def test_a_run_goes_on_wherever_its_state_lies(self):
        quiet, spec = self.work.out("quiet"), self.work.spec(LARGER)
        self.train_ok(spec, quiet)
        for name, first, then in (("onto", (), self.on_disk()), ("off", self.on_disk(), ()),
                                  ("other", self.on_disk(), self.on_disk(STATE_BYTES // 2))):
            out = self.work.out(name)
            self.begin(spec, out, 3, *first)
            self.train_ok(spec, out, "--resume", *then)
            self.assertEqual((files_hash(out), summary(out)["loss"]), (files_hash(quiet), summary(quiet)["loss"]), name)

    def test_processes_that_are_killed_leave_no_file_and_a_resume_has_the_same_bits(self):
        spec = self.work.spec(merged(merged(LARGER, ENDLESS), {**self.offload, "checkpoint": {"every_steps": 2}}))
        out = self.work.out("run")
        process = self.start_endless(spec, out, "--workers", 2, "--restarts", 2)
        wait_for_steps(process, out, 3)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        self.wait_for_first_checkpoint(out)
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        wait_for_steps(process, out, committed_steps(out) + 3)
        self.assertEqual(list(self.disk.iterdir()), [])
        process.kill()
        process.communicate()
        self.ends_like_a_quiet_run(self.start_endless(spec, out, "--resume"), spec, out)
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_a_disk_that_fails_ends_the_run_and_the_checkpoint_stands(self):
        spec = self.work.spec(merged(merged(LARGER, ENDLESS), {**self.offload, "checkpoint": {"every_steps": 3}}))
        out = self.work.out("run")
        process = self.start_endless(spec, out)
        self.wait_for_first_checkpoint(out)
        daemon, = children(process.pid, "eps_server")
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, (60_000_000, 60_000_000))  # writes beyond it fail from here on
        said = self.ends(process, 1)
        self.assertRegex(said, r"optimizer_offload\.path: byte \d+ of a file: .*File too large")
        verify(latest_checkpoint(out))
        self.ends_like_a_quiet_run(self.start_endless(spec, out, "--resume"), spec, out)

    @measures_the_process
    def test_the_daemon_takes_no_more_memory_than_the_plan_says(self):
        spec = self.work.spec(merged(LARGER, {
            "model": {"layers": 10, "d_model": 640, "heads": 10}, "optimizer": {"clip": None},
            "checkpoint": {"buffer_bytes": 20_000_000}, **self.offload}))
        in_memory = self.plan(spec, "--set", "optimizer_offload.memory_bytes=10000000000")["host"]
        plan = self.plan(spec)["host"]
        self.assertGreater(plan["offloaded_bytes"], 490_000_000)
        self.assertEqual(in_memory["offloaded_bytes"], 0)
        self.assertLess(plan["model_state_bytes"], in_memory["model_state_bytes"] - 400_000_000)
        self.assertIn("on a disk", self.eps("plan", "--run", spec).stdout)
        out = self.work.out("run")
        process = start_train(spec, out)
        peak = resident_peaks(process, ("eps_server",))["eps_server"]["VmHWM"]
        self.assertEqual(process.returncode, 0, process.communicate())
        self.assertEqual(summary(out)["model_state_bytes"], plan["model_state_bytes"])
        self.assertLessEqual(peak, 1.05 * plan["total_bytes"], plan)

    def test_a_place_that_will_not_do_is_refused_by_field(self):
        spec, out = self.work.spec(LARGER), self.work.out("run")
        gone = train(spec, out, "--set", f"optimizer_offload.path={self.disk / 'gone'}")
        self.refused(gone, 2, "optimizer_offload.path", "gone", "No such file")
        self.refused(train(spec, out, "--set", "optimizer_offload.memory_bytes=1"), 2, "optimizer_offload.path: missing")
        asked = self.eps("doctor", "--run", spec, "--set", f"optimizer_offload.path={self.disk / 'gone'}",
                         "--no-measuring", code=1)
        self.assertIn("there is no folder", asked.stdout)
        made = run(["mount", "-t", "tmpfs", "-o", "size=16m", "eps-test", str(self.disk)])
        if made.returncode != 0:
            self.skipTest(f"mounting is not allowed here: {made.stderr.strip()}")
        self.addCleanup(run, ["umount", "--lazy", str(self.disk)])
        self.refused(train(spec, out, *self.on_disk()), 1, "optimizer_offload.path", "No space left")
        self.assertFalse((out / "checkpoints" / "latest").exists())
        # With room for it there, it is said to be of no use.
        self.assertEqual(run(["mount", "-o", "remount,size=120m", str(self.disk)]).returncode, 0)
        self.train_ok(spec, out, *self.on_disk(STATE_BYTES // 4))
        self.assertIn("offload_in_memory", (out / "logs" / "eps_server.log").read_text())
