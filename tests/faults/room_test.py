"""A worker that is ahead of the others holds few gradients and waits for room; it goes on when they do, or when it is to do their work."""

import signal
import time

from eps_run import ENDLESS, TIME_SCALE, ByHandTest, alone, committed_steps, metrics, model_hash, wait_for_steps

# So many layers that the daemon's window and what a worker may have under way hold a part of them alone.
SPEC = {"model": {"layers": 24, "d_model": 64}, "batch": {"virtual_nodes": 4}}
STOPPED_SECONDS = 1.0


@alone
class RoomTest(ByHandTest):
    def shares_of_room(self, out):
        """Of each step: how much of the workers' pass time compute waited for room."""
        return [line["waits"].get("room", 0) for line in metrics(out)]

    def stop_at_the_beginning_of_a_step(self, worker, out):
        """Stands still for a while; returns which step that was."""
        before = committed_steps(out)
        while committed_steps(out) == before:
            self.assertIsNone(worker.poll())
            time.sleep(0.001)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS * TIME_SCALE)
        return committed_steps(out)

    def test_who_waits_for_a_worker_that_stands_still_goes_on_with_it_or_without_it(self):
        for transport in ("SHARED_MEMORY", "GRPC"):
            out = self.work.out(transport)
            spec = self.work.spec({**ENDLESS, **SPEC, "transport": transport}, name=f"{transport}.json")
            daemon, address = self.start_daemon(spec, out, "--expect-workers", 2)
            ahead, behind = (self.start_worker(address, "--device-memory", "64MiB", "--threads", 1) for _ in range(2))
            wait_for_steps(daemon, out, 3)
            for _ in range(3):  # it may be hit behind its last gradient
                waited_in = self.stop_at_the_beginning_of_a_step(behind, out)
                behind.send_signal(signal.SIGCONT)
                wait_for_steps(daemon, out, waited_in + 3)
                if self.shares_of_room(out)[waited_in] > 0.2:
                    break
            else:
                self.fail(f"{self.shares_of_room(out)}")
            self.assertNotIn("worker_lost", self.log(daemon))

            self.stop_at_the_beginning_of_a_step(behind, out)
            behind.kill()
            self.ends_like_a_quiet_run(daemon, spec, out)
            self.ends(ahead, 0)
            self.assertIn("worker_lost", self.log(daemon))

    def test_the_head_and_blocks_that_are_depth_first_do_not_wait_for_each_other(self):
        model = {"model": {"layers": 3}, "batch": {"virtual_nodes": 8}, "steps": 3}
        quiet = self.work.out("quiet")
        self.train_ok(self.work.spec({**SPEC, **model}, name="quiet.json"), quiet)
        for blocks, workers in ((1, 1), (3, 1), (3, 2)):
            with self.subTest(blocks=blocks, workers=workers):
                out = self.work.out(f"{blocks}-blocks-{workers}-workers")
                spec = self.work.spec({**SPEC, **model, "relay": {"depth_first_blocks": blocks}}, name=f"{blocks}.json")
                daemon, address = self.start_daemon(spec, out, "--expect-workers", workers,
                                                    "--contribution-window", 1)  # it takes what comes next alone
                all_workers = [self.start_worker(address, "--device-memory", "8MiB") for _ in range(workers)]
                for process in (*all_workers, daemon):
                    self.ends(process, 0)
                for worker in all_workers:
                    self.assertIn(f"depth_first_blocks={blocks}", self.log(worker))
                self.assertEqual(model_hash(out), model_hash(quiet))
