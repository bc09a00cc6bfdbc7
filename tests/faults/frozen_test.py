"""What is frozen is written once: every checkpoint has the same file, and is whole without the others."""

import os
import shutil
import signal

from checkpoint_disk import CheckpointDiskTest, verify
from eps_run import ENDLESS, children, committed_steps, latest_checkpoint, merged, wait_for_steps

FROZEN = "model-00002-of-00002.safetensors"
RUN = merged(ENDLESS, {"model": {"lora": {"rank": 2}}, "checkpoint": {"every_steps": 5, "keep": 3}})


class FrozenTest(CheckpointDiskTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec(RUN)

    def files(self):
        """Of each checkpoint, which are all verified, the identity of its frozen tensors' file."""
        folders = sorted(self.checkpoints.glob("step-*"))
        for folder in folders:
            verify(folder)
        return {folder.name: (folder / FROZEN).stat().st_ino for folder in folders}

    def interrupted(self, process, steps):
        """Its checkpoints, when it was ended after so many steps more."""
        wait_for_steps(process, self.out, committed_steps(self.out) + steps)
        process.send_signal(signal.SIGINT)
        self.ends(process, 130)
        return self.files()

    def test_all_checkpoints_have_one_file_through_a_kill_and_a_resume(self):
        process = self.start()
        wait_for_steps(process, self.out, 21)
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        self.ends(process, 1)
        before = self.files()
        # The kill may have come before the one that is too many was removed.
        self.assertIn(len(before), (3, 4))
        self.assertEqual(len(set(before.values())), 1)
        after = self.interrupted(self.start("--resume"), 16)
        self.assertEqual(set(after.values()), set(before.values()))
        self.assertFalse(set(after) & set(before))

        # One of them alone, elsewhere, without any other.
        alone = self.work.path / "kept" / latest_checkpoint(self.out).name
        shutil.copytree(latest_checkpoint(self.out), alone)
        branch = self.work.out("branch")
        self.eps("branch", "--checkpoint", self.out, "--out", branch, "--set", "optimizer.schedule.peak=2e-3")
        self.assertEqual((latest_checkpoint(branch) / FROZEN).stat().st_ino, after[alone.name])
        shutil.rmtree(self.checkpoints)
        for folder in (alone, branch):
            self.assertTrue(self.eps("sample", "--checkpoint", folder, "--prompt", "and the ", "--tokens", 4).stdout)

    def test_on_a_disk_with_room_for_the_base_once_checkpoints_go_on(self):
        self.small_disk(10)
        self.spec = self.work.spec(merged(RUN, {"model": {"layers": 8, "d_model": 192}}))  # 3.6 M frozen, 7.3 MB
        files = self.interrupted(self.start(), 26)
        self.assertEqual((len(files), len(set(files.values()))), (3, 1))
        self.assertNotIn("checkpoint_failed", (self.out / "logs" / "eps_server.log").read_text())

    def test_where_files_cannot_be_linked_each_checkpoint_has_its_own(self):
        trigger = self.work.path / "trigger"
        for calls in ("link", "link made"):
            with self.subTest(calls):
                self.out = self.work.out(calls.replace(" ", "-"))
                self.checkpoints = self.out / "checkpoints"
                trigger.write_text(calls)
                environment = {**os.environ, "LD_PRELOAD": str(self.library("io_error.c")), "EPS_IO_ERROR": str(trigger)}
                files = self.interrupted(self.start(env=environment), 16)
                self.assertEqual((len(files), len(set(files.values()))), (3, 3))
                self.assertIn("frozen_tensors_written_anew why=\"cannot link", (self.out / "logs" / "eps_server.log").read_text())
                self.goes_on_like_a_quiet_run(self.start("--resume"))
