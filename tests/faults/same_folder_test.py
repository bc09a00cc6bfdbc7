"""Two sittings, or two sets of data, on one folder: one of them has it, and the other leaves no trace."""

import json
import subprocess
import time

from eps_run import (ENDLESS, EPS, TIME_SCALE, SystemTest, alone, model_hash, sample_text, start_train, summary, train,
                     wait_for_steps)


@alone
class SameFolderTest(SystemTest):
    def status(self, out):
        return subprocess.run([EPS, "status", "--out", out], capture_output=True, text=True, timeout=60)

    def test_of_two_that_start_at_once_in_a_new_folder_one_goes_on(self):
        spec = self.work.spec(ENDLESS)
        for i in range(4):
            out = self.work.out(f"race-{i}")
            both = [self.start_endless(spec, out) for _ in range(2)]
            deadline = time.monotonic() + 60 * TIME_SCALE
            while not (refused := [process for process in both if process.poll() is not None]):
                self.assertLess(time.monotonic(), deadline, "both have it")
                time.sleep(0.01)
            self.assertIn("in use", self.ends(refused[0], 2))
            self.ends_like_a_quiet_run(*(process for process in both if process is not refused[0]), spec, out)

    def test_a_second_sitting_that_is_refused_leaves_the_first_in_reach(self):
        spec = self.work.spec(ENDLESS)
        out = self.work.out("run")
        process = self.start_endless(spec, out)
        wait_for_steps(process, out, 5)
        for more in ((), ("--resume",)):
            second = start_train(spec, out, *more)
            stderr = second.communicate(timeout=60)[1]
            self.assertEqual(second.returncode, 2, stderr)
            self.assertEqual(self.status(out).returncode, 0, self.status(out).stderr)
        stopped = subprocess.run([EPS, "stop", "--out", out], capture_output=True, text=True, timeout=60)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 0, stderr)

    def test_a_run_goes_on_with_the_data_that_it_began_with_or_not_at_all(self):
        out = self.work.out("run")
        data = self.work.path / "own.txt"
        text = sample_text()
        spec = self.work.spec({**ENDLESS, "data": {"path": str(data)}}, name="own.json")
        data.write_bytes(text)
        self.interrupt(spec, out, 3)
        for other in (text[:-100], text + b"more", text[:1000] + b"?" + text[1001:]):
            data.write_bytes(other)
            before = model_hash(out)
            process = start_train(spec, out, "--resume")
            stderr = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 2, stderr)
            self.assertIn("data.path", stderr)
            self.assertIn("is not the file", stderr)
            self.assertEqual(model_hash(out), before)
        data.write_bytes(text)
        self.ends_like_a_quiet_run(self.start_endless(spec, out, "--resume"), spec, out)

    def test_a_refused_run_has_the_tokens_that_it_had(self):
        def tree():
            return {path.name: path.read_bytes() for path in (out / "data").iterdir()}

        out, data = self.work.out("run"), self.work.path / "own.jsonl"
        text = sample_text().decode()
        lines = [json.dumps({"text": text[i: i + 200]}) for i in range(0, len(text), 200)]
        spec = self.work.spec({**ENDLESS, "data": {"path": str(data), "documents": "PACKED"}}, name="own.json")
        data.write_text("\n".join(lines))
        self.interrupt(spec, out, 3)
        before = tree()
        data.write_text("\n".join(lines[1:]))
        self.refused(train(spec, out, "--resume"), 2, f"data.path: {data} is not the file")
        self.assertEqual(tree(), before)
        data.write_text("\n".join(lines))
        for name in before:
            (out / "data" / name).unlink()  # made anew, they are what they were
        self.ends_like_a_quiet_run(self.start_endless(spec, out, "--resume"), spec, out)
        self.assertEqual(tree(), before)

    def test_a_run_that_was_moved_with_its_data_goes_on(self):
        here, there, text = self.work.path / "here", self.work.path / "there", sample_text()
        here.mkdir()
        (here / "own.txt").write_bytes(text)
        changes = {**ENDLESS, "data": {"path": "own.txt"}}
        self.interrupt(self.work.spec(changes, name="here/run.json"), here / "out", 3)
        here.rename(there)
        (there / "own.txt").write_bytes(text[1:] + b"?")
        self.refused(train(there / "run.json", there / "out", "--resume"), 2, f"data.path: {there}/own.txt is not the file")
        (there / "own.txt").write_bytes(text)
        resumed = self.start_endless(there / "run.json", there / "out", "--resume")
        self.ends_like_a_quiet_run(resumed, there / "run.json", there / "out")
        again = self.work.path / "again"  # a run that is done, and its data is gone
        there.rename(again)
        (again / "own.txt").unlink()
        steps = summary(again / "out-quiet")["steps"]
        self.train_ok(again / "run.json", again / "out-quiet", "--resume", "--set", f"steps={steps}")
