"""Debian's Prometheus scrapes a real run; a worker is killed: dashboard queries, alerts and rules."""

import json
import os
import re
import signal
import time
import unittest

import dashboard_picture
from eps_run import TIME_SCALE, SystemTest, children, long, run, start_train, wait_for_steps
from page_test import metrics_address
from prometheus import DEPLOY, PROGRAMS, Prometheus, dashboard_queries

VARIABLES = {"instance": ".*", "worker": ".*"}
# What a machine that others keep busy may rightly raise, where minutes of `for:` are two seconds.
OF_SPEED = {"EpsRelayWaits", "EpsSlowWorker", "EpsLeaseNearlyOut", "EpsStepWaits", "EpsCheckpointHoldsSteps"}


@unittest.skipUnless(all(PROGRAMS), "prometheus is not installed")
class RulesTest(unittest.TestCase):
    def test_promtool_accepts_rules_and_configuration(self):
        folder = DEPLOY / "prometheus"
        for command in (["check", "rules", "alerts.yml", "recording.yml"], ["check", "config", "prometheus.yml"],
                        ["test", "rules", "rules_test.yml"]):
            done = run(["promtool", *command], cwd=folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_a_unit_test(self):
        alerts = set(re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text()))
        tested = set(re.findall(r"- alertname: (\w+)", (DEPLOY / "prometheus" / "rules_test.yml").read_text()))
        self.assertEqual(alerts, tested)


@unittest.skipUnless(all(PROGRAMS), "prometheus is not installed")
class PrometheusTest(SystemTest):
    @long
    def test_a_run_that_loses_a_worker_as_prometheus_sees_it(self):
        out = self.work.out("out")
        begin = time.time()
        spec = self.work.spec({"steps": 1000000, "checkpoint": {"every_steps": 50},
                               # A state that no cache holds, and experts and preferences, which the dashboard has a row for.
                               "model": {"family": "LLAMA", "layers": 2, "d_model": 512, "d_ff": 512,
                                         "experts": {"num": 4, "per_token": 2}},
                               "data": {"path": "pairs.jsonl"}, "preferences": {"loss": "SIMPO"},
                               "batch": {"virtual_nodes": 4, "micro_batches": 1, "micro_batch": 2},
                               "evaluation": {"held_out": 0.01, "every_steps": 5, "samples": 16}})
        (self.work.path / "pairs.jsonl").write_text("".join(
            json.dumps({"prompt": f"{i}?", "chosen": f"{i}!", "rejected": "no"}) + "\n" for i in range(2000)))
        process = start_train(spec, out, "--workers", 2, "--threads", 1)
        prometheus = None
        try:
            wait_for_steps(process, out, 5)
            prometheus = Prometheus(self.work.path / "prometheus", metrics_address(out))
            self.follow(process, prometheus)
            picture = os.environ.get("EPS_DASHBOARD_PICTURE")
            if picture:
                dashboard_picture.draw(prometheus, VARIABLES, begin, time.time(), picture)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
            if prometheus is not None:
                prometheus.stop()

    def follow(self, process, prometheus):
        prometheus.wait_for("all scraped", lambda: len(prometheus.query("up == 1")) == 3)
        found = {(sample["metric"]["worker"], sample["metric"]["daemon"])
                 for sample in prometheus.query('up{job="gpu_worker"}')}
        daemon = prometheus.query('up{job="eps_server"}')[0]["metric"]["instance"]
        self.assertEqual(found, {("1", daemon), ("2", daemon)})  # by what the daemon told
        # Long enough that every rate has points on both sides.
        prometheus.wait_for("waits are known", lambda: prometheus.query("eps:wait_share:rate15m"))
        prometheus.wait_for("a checkpoint", lambda: prometheus.query("eps_checkpoint_write_seconds > 0"))
        time.sleep(12)
        self.assertEqual(prometheus.firing() - OF_SPEED, set())

        victim = children(process.pid, "gpu_worker")[0]
        os.kill(victim, signal.SIGKILL)
        prometheus.wait_for("EpsWorkerLost fires", lambda: "EpsWorkerLost" in prometheus.firing())
        self.assertNotIn("EpsNoWorkers", prometheus.firing())
        self.assertNotIn("EpsDaemonDown", prometheus.firing())
        empty = [(title, expr) for title, _, expr in dashboard_queries(VARIABLES) if not prometheus.query(expr)]
        self.assertEqual(empty, [])
        names = {name for name in prometheus.api("label/__name__/values") if name.startswith(("eps_", "worker_"))}
        self.assertLessEqual({"eps_steps_total", "worker_passes_total"}, names)
        prometheus.wait_for("EpsWorkerLost clears", lambda: "EpsWorkerLost" not in prometheus.firing())

        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60 * TIME_SCALE)
        self.assertEqual(process.returncode, 143, errors)
        prometheus.wait_for("EpsDaemonDown fires", lambda: "EpsDaemonDown" in prometheus.firing())
        prometheus.set_daemons([])  # it was told to end: its address is taken out
        prometheus.wait_for("EpsDaemonDown clears", lambda: "EpsDaemonDown" not in prometheus.firing())
