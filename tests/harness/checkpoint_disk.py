"""Runs whose checkpoints are looked at, byte for byte, while their disk is made to fail."""

import hashlib
import json
import time
import zlib

from eps_run import EPS, TIME_SCALE, SystemTest, latest_checkpoint, run

PART_BYTES = 1 << 20


def verify(folder):
    """Every file of a checkpoint against its manifest, by a reader that shares no code with the writer."""
    text = (folder / "manifest.json").read_bytes()
    manifest = json.loads(text)
    body = text[:text.rindex(b"  \"sha256\": ")]
    assert hashlib.sha256(body).hexdigest() == manifest["sha256"], f"{folder}: manifest.json"
    assert manifest["step"] == int(folder.name[len("step-"):]), folder
    for name, wanted in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert len(content) == wanted["bytes"], f"{folder}: {name}"
        assert hashlib.sha256(content).hexdigest() == wanted["sha256"], f"{folder}: {name}"
        crcs = "".join(f"{zlib.crc32(content[i:i + PART_BYTES]):08x}" for i in range(0, len(content), PART_BYTES))
        assert crcs == wanted["crc32_per_mib"], f"{folder}: {name}"


class CheckpointDiskTest(SystemTest):
    """Cases of one run: self.spec, which each class makes, in self.out."""

    def setUp(self):
        super().setUp()
        self.out = self.work.out("run")
        self.checkpoints = self.out / "checkpoints"

    def status(self):
        done = run([str(EPS), "status", "--out", str(self.out), "--json"])
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def wait_for(self, process, what, timeout=60):
        deadline = time.monotonic() + timeout * TIME_SCALE
        while not (found := what()):
            self.assertIsNone(process.poll(), f"ended early: {process.returncode}")
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            time.sleep(0.02)
        return found

    def wait_for_failure(self, process):
        """The status once a checkpoint has failed; its run goes on."""
        return self.wait_for(process, lambda: (s := self.status()) and int(s["checkpoint_failures"]) > 0 and s)

    def wait_for_checkpoint(self, process):
        self.wait_for(process, (self.checkpoints / "latest").exists)

    def start(self, *args, **kwargs):
        return self.start_endless(self.spec, self.out, *args, **kwargs)

    def like_a_quiet_run(self, spec, out):
        verify(latest_checkpoint(out))
        super().like_a_quiet_run(spec, out)

    def goes_on_like_a_quiet_run(self, process):
        self.ends_like_a_quiet_run(process, self.spec, self.out)

    def small_disk(self, megabytes):
        """The checkpoints' folder becomes a file system of its own."""
        self.checkpoints.mkdir(parents=True)
        made = run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "eps-test", str(self.checkpoints)])
        if made.returncode != 0:
            self.skipTest(f"mounting is not allowed here: {made.stderr.strip()}")
        self.addCleanup(run, ["umount", "--lazy", str(self.checkpoints)])
