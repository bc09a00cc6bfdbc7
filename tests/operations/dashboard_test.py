"""The dashboard shows the daemons that are chosen, and tells phases apart."""

import json
import re
import tempfile
import unittest
from pathlib import Path

from eps_run import ROOT, run
from prometheus import DEPLOY, PROGRAMS, dashboard_queries

DASHBOARD = json.loads((DEPLOY / "grafana" / "eps-run.json").read_text())
OF_PHASE = {"starting": "blue", "waiting_for_workers": "orange", "training": "green", "finishing": "green",
            "finished": "blue", "failed": "red", "serving": "green"}
FIRING = """
rule_files: []
tests:
  - interval: 15s
    input_series:
      - {series: 'ALERTS{alertname="EpsRunFailed", alertstate="firing", instance="a"}', values: '1x4'}
      - {series: 'ALERTS{alertname="EpsStepWaits", alertstate="firing", instance="b"}', values: '1x4'}
      - {series: 'ALERTS{alertname="EpsWorkerLostDaemon", alertstate="firing", instance="w1", daemon="a"}', values: '1x4'}
      - {series: 'ALERTS{alertname="EpsWorkerLostDaemon", alertstate="firing", instance="w2", daemon="b"}', values: '1x4'}
      - {series: 'ALERTS{alertname="EpsRelayWaits", alertstate="pending", instance="a"}', values: '1x4'}
      - {series: 'ALERTS{alertname="OfOthers", alertstate="firing", instance="a"}', values: '1x4'}
    promql_expr_test:
"""
COUNT = """      - {expr: %s, eval_time: 30s, exp_samples: [{labels: '{}', value: %d}]}
"""


def panel(title):
    return next(each for each in DASHBOARD["panels"] if each["title"] == title)


class DashboardTest(unittest.TestCase):
    @unittest.skipUnless(all(PROGRAMS), "prometheus is not installed")
    def test_alerts_are_those_of_the_chosen_daemons_and_their_workers(self):
        text = FIRING
        for instance, count in (("a", 2), ("b", 2), (".*", 4), ("(a|b)", 4), ("c", 0)):
            expr = next(expr for title, _, expr in dashboard_queries({"instance": instance}) if title == "Alerts")
            text += COUNT % (json.dumps(expr), count)
        with tempfile.TemporaryDirectory() as folder:
            rules = Path(folder) / "alerts_of_daemons.yml"
            rules.write_text(text)
            done = run(["promtool", "test", "rules", rules])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_workers_are_those_of_the_chosen_daemons(self):
        worker = next(each for each in DASHBOARD["templating"]["list"] if each["name"] == "worker")
        self.assertIn('daemon=~"$instance"', worker["definition"])
        self.assertEqual(worker["query"]["query"], worker["definition"])
        for title, legend, expr in dashboard_queries({}):
            if not re.search(r"\bworker[_:]", expr):
                self.assertNotIn("$worker", expr, title)
                continue
            self.assertIn('daemon=~"$instance", instance=~"$worker"', expr, title)
            self.assertIn("{{daemon}} worker {{worker}}", legend, title)

    def test_each_phase_has_its_colour(self):
        phase = panel("Phase")
        known = re.search(r"\| `eps_run_phase` .*`phase`: ([\w, ]+\w)", (ROOT / "docs" / "metrics.md").read_text())[1]
        self.assertEqual(known.split(", "), list(OF_PHASE))
        # Else phases of the last hour would be shown as well, each with its last value.
        self.assertTrue(phase["targets"][0]["instant"])
        for name, colour in OF_PHASE.items():
            # Grafana takes the whole name.
            found = [each["properties"] for each in phase["fieldConfig"]["overrides"]
                     if re.fullmatch(each["matcher"]["options"], f"10.0.0.7:9464 {name}")]
            self.assertEqual(found, [[{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]], name)
