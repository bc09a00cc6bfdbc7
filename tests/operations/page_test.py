"""Metrics, health, readiness and the operator's views, of real processes."""

import json
import os
import re
import resource
import signal
import socket
import time
import unittest

from eps_run import BIN, EPS, TIME_SCALE, SystemTest, alive, children, run, start, start_train, train, wait_for_steps
from prometheus import get
from terminal import Terminal

try:
    import grpc
except ImportError:
    grpc = None

LONG = {"steps": 1000000, "checkpoint": {"every_steps": 200}}


def metrics_address(out):
    return json.loads((out / "endpoints.json").read_text())["metrics"]


def values(page):
    """{series: value} of a /metrics page."""
    return {name: float(value) for name, value in re.findall(r"^([^#\s][^\s]*) (\S+)$", page, re.M)}


SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse


def health(address, metadata=None):
    """What grpc.health.v1 answers for the server as a whole: a HealthCheckRequest without a service."""
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20 * TIME_SCALE, metadata=metadata)


def wait_until(condition, timeout=60):
    deadline = time.monotonic() + timeout * TIME_SCALE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout} s")
        time.sleep(0.05)


class PageTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.started = []

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        super().tearDown()

    def start(self, command, **kwargs):
        log = open(self.work.path / f"process-{len(self.started)}.log", "w", encoding="utf-8")
        with log:
            self.started.append(start(command, stdout=log, stderr=log, **kwargs))
        return self.started[-1], self.work.path / f"process-{len(self.started) - 1}.log"

    def train(self, *args, changes=None, steps=20):
        out = self.work.out("out")
        process = start_train(self.work.spec(changes or LONG), out, *args)
        self.started.append(process)
        wait_for_steps(process, out, steps)
        return process, out

    def test_the_daemons_page_follows_the_run(self):
        process, out = self.train("--workers", 2)
        address = metrics_address(out)
        self.assertEqual(get(address, "/healthz"), (200, "training\n"))
        self.assertEqual(get(address, "/readyz"), (200, "training\n"))
        self.assertEqual(get(address, "/elsewhere")[0], 404)
        first = values(get(address, "/metrics")[1])
        growing = {"eps_step", "eps_tokens", "eps_steps_total", "eps_tokens_total", "eps_versions_published_total",
                   "eps_passes_total", "eps_updated_parameters_total", "eps_update_busy_seconds_total",
                   "eps_pass_seconds_total"}
        second = {}

        def all_have_grown():
            second.update(values(get(address, "/metrics")[1]))
            return all(second[name] > first[name] for name in growing)

        wait_until(all_have_grown)
        moved = {way: sum(v for name, v in second.items() if name.startswith(f"eps_{way}_bytes_total"))
                 for way in ("pulled", "pushed")}
        self.assertGreater(moved["pulled"], 0)
        self.assertGreater(moved["pushed"], 0)
        self.assertEqual(second['eps_run_phase{phase="training"}'], 1)
        self.assertEqual(second["eps_workers_attached_total"], 2)
        self.assertLess(second['eps_memory_bytes{kind="resident"}'], second['eps_memory_limit_bytes{kind="resident"}'])
        self.assertEqual(second["eps_checkpoint_failing"], 0)
        self.assertGreater(second['eps_memory_bytes{kind="checkpoint"}'], 0)
        wait_until(lambda: "eps_checkpoint_step" in values(get(address, "/metrics")[1]))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 143)

    def test_what_an_offloaded_state_moves_is_on_the_page(self):
        # More chunks of state than there are buffers for.
        (self.work.path / "disk").mkdir()
        _, out = self.train(steps=4, changes={
            **LONG, "model": {"layers": 4, "d_model": 512, "context": 16}, "optimizer_offload": {"path": "disk"},
            "batch": {"virtual_nodes": 1, "micro_batches": 1, "micro_batch": 1}})
        page = values(get(metrics_address(out), "/metrics")[1])
        self.assertGreater(page["eps_offloaded_bytes"], 10 * 12_000_000)
        for direction in ("read", "written"):
            self.assertGreater(page[f'eps_offload_bytes_total{{direction="{direction}"}}'], page["eps_offloaded_bytes"])
        self.assertGreater(page["eps_offload_wait_seconds_total"], 0)

    def test_a_killed_worker_is_counted_and_what_it_left_is_redone(self):
        process, out = self.train("--workers", 2)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        address = metrics_address(out)
        wait_until(lambda: values(get(address, "/metrics")[1])["eps_workers_lost_total"] == 1)
        page = values(get(address, "/metrics")[1])
        self.assertEqual(page["eps_workers_attached_total"], 2)
        self.assertEqual(page['eps_workers{state="running"}'] + page['eps_workers{state="idle"}'], 1)
        top = run([str(EPS), "top", "--out", str(out), "--once"])
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertRegex(top.stdout, r"attached 2  lost 1")
        self.assertRegex(top.stdout, r"\d+  running|\d+  idle")
        process.send_signal(signal.SIGTERM)  # that a worker was lost long before changes nothing of how the run ends
        _, errors = process.communicate(timeout=60 * TIME_SCALE)
        self.assertEqual(process.returncode, 143, errors)

    def test_counters_of_a_resumed_run_begin_anew(self):
        process, out = self.train()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 143)
        process.communicate()
        before = json.loads((out / "summary.json").read_text())
        process = start_train(self.work.spec(LONG), out, "--resume")
        self.started.append(process)
        wait_for_steps(process, out, before["steps"] + 1)
        page = values(get(metrics_address(out), "/metrics")[1])
        self.assertEqual(page["eps_step"] - page["eps_steps_total"], before["steps"])
        self.assertEqual(page["eps_tokens"] - page["eps_tokens_total"], before["tokens"])

    def test_the_daemon_tells_where_its_workers_pages_are(self):
        _, out = self.train("--workers", 2)
        status, body = get(metrics_address(out), "/targets")
        self.assertEqual(status, 200)
        groups = json.loads(body)
        self.assertEqual({(group["labels"]["job"], group["labels"]["worker"]) for group in groups},
                         {("gpu_worker", "1"), ("gpu_worker", "2")})
        shown = run([str(EPS), "status", "--out", str(out)]).stdout
        for group in groups:
            self.assertEqual(get(group["targets"][0], "/readyz")[0], 200)
            self.assertIn(f"page {group['targets'][0]}", shown)

    def by_hand(self, changes, *args):
        """A daemon and a worker; the daemon's process and folder."""
        out = self.work.out("out")
        daemon, _ = self.start([str(BIN / "eps_server"), "--run", str(self.work.spec(changes)), "--out", str(out),
                                *args])
        wait_until(lambda: (out / "endpoints.json").exists())
        endpoint = json.loads((out / "endpoints.json").read_text())["grpc"]
        self.start([str(BIN / "gpu_worker"), "--connect", endpoint, "--device-memory", "16MiB"])
        return daemon, out

    def test_a_run_that_failed_is_seen_while_it_lingers(self):
        # Soon no step has a finite gradient.
        daemon, out = self.by_hand({"steps": 1000, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}},
                                   "--linger-seconds", "600")
        address = metrics_address(out)
        wait_until(lambda: get(address, "/healthz") == (503, "failed\n"))
        wait_until(lambda: "page_lingers" in (self.work.path / "process-0.log").read_text())
        page = values(get(address, "/metrics")[1])
        self.assertEqual(page['eps_run_phase{phase="failed"}'], 1)
        self.assertEqual(page["eps_workers_lost_total"], 0)
        self.assertNotIn("eps_eta_seconds", page)
        self.assertEqual(get(address, "/readyz"), (503, "failed\n"))
        status = json.loads(get(address, "/status.json")[1])
        self.assertEqual([worker["state"] for worker in status["workers"]], ["left"])
        self.assertEqual(json.loads((out / "failure.json").read_text())["failure"], status["failure"])
        time.sleep(1)
        self.assertGreater(values(get(address, "/metrics")[1])["eps_step_age_seconds"], page["eps_step_age_seconds"] + 0.9)
        self.assertIsNone(daemon.poll())
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=20 * TIME_SCALE), 1)

    def test_a_run_that_ended_well_is_seen_and_leaves_its_folder_free(self):
        daemon, out = self.by_hand({"steps": 5}, "--linger-seconds", "600")
        address = metrics_address(out)
        wait_until(lambda: get(address, "/healthz") == (200, "finished\n"))
        wait_until(lambda: "page_lingers" in (self.work.path / "process-0.log").read_text())
        page = values(get(address, "/metrics")[1])
        self.assertEqual(page["eps_step"], 5)
        self.assertEqual(get(address, "/readyz")[0], 503)
        again = run([str(BIN / "eps_server"), "--run", str(self.work.spec({"steps": 5})), "--out", str(out), "--resume"])
        self.assertEqual(again.returncode, 0, again.stderr)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=20 * TIME_SCALE), 0)

    def test_a_run_that_was_told_to_end_before_has_not_finished(self):
        daemon, out = self.by_hand({"steps": 1_000_000}, "--linger-seconds", "600")
        address = metrics_address(out)
        wait_for_steps(daemon, out, 3)
        self.assertEqual(run([str(EPS), "stop", "--out", str(out)]).returncode, 0)
        wait_until(lambda: "page_lingers" in (self.work.path / "process-0.log").read_text())
        page = values(get(address, "/metrics")[1])
        self.assertEqual((page['eps_run_phase{phase="finished"}'], page['eps_run_phase{phase="finishing"}']), (0, 1))
        self.assertEqual(get(address, "/healthz")[0], 200)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=20 * TIME_SCALE), 0)

    def test_lingering_ends_by_itself(self):
        daemon, _ = self.by_hand({"steps": 5}, "--linger-seconds", "1")
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 0)

    def test_when_the_certificate_ends_is_known(self):
        for of_clients, ends in ((40, 30), (20, 20)):
            folder = self.work.path / str(ends)
            keys, out = {}, self.work.out(f"out-{ends}")
            for name, days in (("server", 30), ("clients", of_clients)):
                keys[name] = folder / name
                made = run([str(EPS), "keys", "--out", str(keys[name]), "--host", "127.0.0.1", "--days", str(days)])
                self.assertEqual(made.returncode, 0, made.stderr)
            self.start([str(BIN / "eps_server"), "--run", str(self.work.spec(LONG)), "--out", str(out),
                        "--tls-cert", str(keys["server"] / "server.crt"), "--tls-key", str(keys["server"] / "server.key"),
                        "--tls-client-ca", str(keys["clients"] / "ca.crt")])
            wait_until(lambda: (out / "endpoints.json").exists())
            page = values(get(metrics_address(out), "/metrics")[1])
            days = (page["eps_certificate_expiry_time_seconds"] - time.time()) / 86400
            self.assertGreater(days, ends - 1)
            self.assertLess(days, ends + 1)

    @unittest.skipIf(grpc is None, "python3-grpcio is not installed")
    def test_a_worker_serves_grpc_health_where_it_is_asked_to(self):
        _, log = self.start([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--device-memory", "16MiB",
                             "--health-listen", "127.0.0.1:0"])
        wait_until(lambda: "worker_page" in log.read_text())
        address = re.search(r"worker_page .*health=(\S+)", log.read_text()).group(1)
        self.assertEqual(health(address), NOT_SERVING)
        refused = run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--health-listen", "0.0.0.0:0"])
        self.refused(refused, 2, "--health-listen", "0.0.0.0:0", "--metrics-any-address")

    def test_workers_have_a_page_of_their_own(self):
        _, out = self.train("--workers", 1)
        log = (out / "logs" / "gpu_worker-1.log").read_text()
        address = re.search(r"worker_page metrics=(\S+)", log).group(1)
        self.assertEqual(get(address, "/healthz")[0], 200)
        self.assertEqual(get(address, "/readyz")[0], 200)
        page = values(get(address, "/metrics")[1])
        self.assertGreater(page["worker_passes_total"], 0)
        self.assertEqual(page["worker_attachments_total"], 1)
        self.assertLessEqual(page['worker_device_memory_bytes{kind="peak"}'],
                             page['worker_device_memory_bytes{kind="cap"}'])

    def test_a_worker_without_a_daemon_is_alive_and_not_ready(self):
        with socket.socket() as nobody:  # bound, and nobody listens
            nobody.bind(("127.0.0.1", 0))
            _, log = self.start([str(BIN / "gpu_worker"), "--connect", f"127.0.0.1:{nobody.getsockname()[1]}",
                                 "--device-memory", "16MiB"])
            wait_until(lambda: "worker_page" in log.read_text())
            address = re.search(r"worker_page metrics=(\S+)", log.read_text()).group(1)
            self.assertEqual(get(address, "/healthz"), (200, "connecting\n"))
            self.assertEqual(get(address, "/readyz"), (503, "connecting\n"))

    def test_a_page_for_others_than_this_host_must_be_asked_for(self):
        spec = self.work.spec()
        for address in ("0.0.0.0:0", "example.org:80", "127.0.0.1"):
            refused = run([str(BIN / "eps_server"), "--run", str(spec), "--out", str(self.work.out("x")),
                           "--metrics-listen", address])
            self.refused(refused, 2, "--metrics-listen", address)
            self.assertFalse(self.work.out("x").exists())
            refused = run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--metrics-listen", address])
            self.refused(refused, 2, "--metrics-listen", address)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for flag in ("--metrics-listen", "--listen"):
                refused = run([str(BIN / "eps_server"), "--run", str(spec), "--out", str(self.work.out("x")), flag, address])
                self.refused(refused, 2, f"cannot listen on {address}: Address already in use")
            for flag in ("--metrics-listen", "--health-listen"):
                refused = run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", flag, address])
                self.refused(refused, 2, f"{flag}: cannot listen on {address}")
            self.refused(train(spec, self.work.out("x"), "--metrics-listen", address), 2, address)
            self.assertFalse(self.work.out("x").exists())

    def test_a_step_that_waits_names_worker_vnodes_and_blobs(self):
        out = self.work.out("out")
        daemon, log = self.start([str(BIN / "eps_server"), "--run", str(self.work.spec(LONG)), "--out", str(out),
                                  "--lease-millis", "600000"])
        wait_until(lambda: (out / "endpoints.json").exists())
        endpoint = json.loads((out / "endpoints.json").read_text())["grpc"]
        worker, _ = self.start([str(BIN / "gpu_worker"), "--connect", endpoint, "--device-memory", "16MiB"])
        wait_for_steps(daemon, out, 10)
        worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: "step_waits" in log.read_text(), timeout=40)
        line = re.search(r".*step_waits.*", log.read_text()).group(0)
        self.assertIn("WARNING", line)
        self.assertRegex(line, r"cause=(compute|push)")
        self.assertRegex(line, r"worker_vnodes=\"?1:\{0,1,2,3\}")
        self.assertRegex(line, r"blobs=\S+")
        for command in (["status"], ["top", "--once"]):
            said = run([str(EPS), *command, "--out", str(out)])
            self.assertRegex(said.stdout, r"(?i)this step waits for +(compute|push), .* s, of worker 1\n")
        page = values(get(metrics_address(out), "/metrics")[1])
        self.assertEqual(page["eps_step_waits_total"], 1)
        waits = {name: value for name, value in page.items() if name.startswith("eps_step_wait_seconds") and value > 0}
        self.assertEqual(len(waits), 1, waits)  # the one cause
        self.assertRegex(next(iter(waits)), "compute|push")
        self.assertGreater(next(iter(waits.values())), 9)
        self.assertGreater(page["eps_step_age_seconds"], 9)
        self.assertGreater(page["eps_lease_age_seconds"], 9)
        worker.send_signal(signal.SIGCONT)
        self.assertTrue(alive(daemon.pid))

    def test_a_checkpoint_that_cannot_be_written_is_counted(self):
        out = self.work.out("out")
        spec = self.work.spec({"steps": 1000000, "checkpoint": {"every_steps": 10}, "transport": "GRPC"})
        limit = 1_000_000  # bytes of a file, shared memory too: room for the wire buffers, none for the moments
        daemon, _ = self.start([str(BIN / "eps_server"), "--run", str(spec), "--out", str(out)],
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        wait_until(lambda: (out / "endpoints.json").exists())
        endpoint = json.loads((out / "endpoints.json").read_text())["grpc"]
        self.start([str(BIN / "gpu_worker"), "--connect", endpoint, "--device-memory", "16MiB"])
        page = {}

        def failed():
            page.update(values(get(metrics_address(out), "/metrics")[1]))
            return page["eps_checkpoint_failures_total"] > 0

        wait_until(failed)
        self.assertEqual(page["eps_checkpoints_written_total"], 0)
        self.assertNotIn("eps_checkpoint_step", page)
        self.assertEqual(page["eps_checkpoint_failing"], 1)
        self.assertEqual(page['eps_run_phase{phase="failed"}'], 0)
        top = run([str(EPS), "top", "--out", str(out), "--once"])
        self.assertRegex(top.stdout, r"checkpoint  none yet(  being written: .*)?\ncheckpoints FAILED \d+ times: .*safetensors")
        daemon.kill()

    def test_top_is_live_on_a_terminal_and_gives_it_back(self):
        process, out = self.train("--workers", 2)
        terminal = Terminal([str(EPS), "top", "--out", str(out), "--interval-seconds", "0.2"])
        terminal.read_until(lambda text: text.count("\033[H") >= 4 and "|" in text)
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.end(), 0)
        self.assertTrue(terminal.text.startswith("\033[?1049h"))
        self.assertTrue(terminal.text.endswith("\033[?25h\033[?1049l"))
        views = terminal.text.split("\033[H")[1:]
        steps = [int(re.search(r"step (\d+) of 1000000", view).group(1)) for view in views]
        self.assertGreater(steps[-1], steps[0])
        self.assertIn("waits for", views[-1])  # the table of workers

        terminal = Terminal([str(EPS), "top", "--out", str(out), "--interval-seconds", "0.2"])
        terminal.read_until(lambda text: "\033[H" in text)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(terminal.end(), 0)
        self.assertRegex(terminal.text, r"\033\[\?1049l.*the daemon is gone .* last seen: ")

    def test_top_without_a_daemon_says_so(self):
        gone = run([str(EPS), "top", "--out", str(self.work.out("nothing"))])
        self.assertNotEqual(gone.returncode, 0)
        self.assertIn(str(self.work.out("nothing")), gone.stderr)

    @unittest.skipIf(grpc is None, "python3-grpcio is not installed")
    def test_health_over_grpc(self):
        _, out = self.train("--workers", 1)
        token = (out / "token").read_text().strip()
        endpoint = json.loads((out / "endpoints.json").read_text())["grpc"]
        self.assertEqual(health(endpoint, [("authorization", f"Bearer {token}")]), SERVING)

        _, log = self.start([str(BIN / "gpu_worker"), "--connect", endpoint, "--device-memory", "16MiB",
                             "--token-file", str(out / "token"), "--health-listen", "127.0.0.1:0"])
        wait_until(lambda: "worker_ready" in log.read_text())
        address = re.search(r"worker_page .*health=(\S+)", log.read_text()).group(1)
        self.assertEqual(health(address), SERVING)
