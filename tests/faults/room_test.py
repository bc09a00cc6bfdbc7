"""A worker that is ahead of the others holds few gradients and waits for room; it goes on when they do, or when it is to do their work."""

import json
import signal
import time

from eps_run import TIME_SCALE, ByHandTest, committed_steps, model_hash, summary, wait_for_steps

STEPS = 30
# So many layers that the daemon's window and what a worker may have under way hold a part of them alone.
SPEC = {"model": {"layers": 24, "d_model": 64}, "batch": {"virtual_nodes": 4}, "steps": STEPS}
STOPPED_SECONDS = 1.0


class RoomTest(ByHandTest):
    def shares_of_room(self, out):
        """Of each step: how much of the workers' pass time compute waited for room."""
        return [json.loads(line)["waits"].get("room", 0) for line in (out / "metrics.jsonl").read_text().splitlines()]

    def test_who_waits_for_a_worker_that_stands_still_goes_on_with_it_or_without_it(self):
        quiet = self.work.out("quiet")
        self.train_ok(self.work.spec(SPEC), quiet)
        for transport in ("SHARED_MEMORY", "GRPC"):
            out = self.work.out(transport)
            spec = self.work.spec({**SPEC, "transport": transport}, name=f"{transport}.json")
            daemon, address = self.start_daemon(spec, out, "--expect-workers", 2)
            ahead, behind = (self.start_worker(address, "--device-memory", "64MiB", "--threads", 1) for _ in range(2))
            wait_for_steps(daemon, out, 3)
            behind.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS * TIME_SCALE)
            goes_on_at = committed_steps(out)
            behind.send_signal(signal.SIGCONT)
            wait_for_steps(daemon, out, goes_on_at + 5)
            self.assertNotIn("worker_lost", self.log(daemon))
            self.assertGreater(max(self.shares_of_room(out)[:goes_on_at + 1]), 0.2)

            behind.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS * TIME_SCALE)
            killed_at = committed_steps(out)
            behind.kill()
            for process in (ahead, daemon):
                self.assertEqual(process.wait(120 * TIME_SCALE), 0, self.log(process))
            self.assertIn("worker_lost", self.log(daemon))
            self.assertGreater(self.shares_of_room(out)[killed_at], 0.2)  # of the survivor alone
            self.assertEqual(model_hash(out), model_hash(quiet))
            self.assertEqual(summary(out)["loss"], summary(quiet)["loss"])
