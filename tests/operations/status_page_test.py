"""The page that shows a run in a browser: of a real daemon, and what it makes of what that says."""

import json
import re
import shutil
import subprocess
import unittest

from eps_run import EPS, ROOT, TIME_SCALE, SystemTest, run, start_train, wait_for_steps
from prometheus import get

PAGE = ROOT / "eps_server" / "status_page"
LONG = {"steps": 1000000, "checkpoint": {"every_steps": 200}}
# Of a status on standard input, what the page shows of it.
VIEW = """
import { readFileSync } from "node:fs";
const { remember, viewOf } = await import(process.argv[1]);
const status = JSON.parse(readFileSync(0, "utf8"));
const sizes = { loss: { width: 600, height: 200 }, rate: { width: 300, height: 200 } };
console.log(JSON.stringify(viewOf(status, remember(null, status), sizes)));
"""


def node(*args, **kwargs):
    return subprocess.run(["node", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120 * TIME_SCALE, check=False, **kwargs)


class StatusPageTest(SystemTest):
    def train(self, *args):
        out = self.work.out("out")
        process = start_train(self.work.spec(LONG), out, *args)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        wait_for_steps(process, out, 20)
        return process, out, json.loads((out / "endpoints.json").read_text())["metrics"]

    def test_all_that_it_loads_is_served_by_the_daemon_itself(self):
        _, _, address = self.train()
        seen, left = set(), ["/"]
        while left:
            path = left.pop()
            if path in seen:
                continue
            seen.add(path)
            code, text = get(address, path)
            self.assertEqual(code, 200, path)
            if path.endswith(".js") or path == "/":
                left += re.findall(r'(?:src|href)="(/[^"]*)"', text)
                left += ["/" + name for name in re.findall(r'from "\./([^"]+)"', text)]
                self.assertNotRegex(text, r"""(src|href|from|import)\s*[=(]?\s*["']https?:""", path)
        self.assertLessEqual({"/page.css", "/page.js", "/view.js", "/metrics", "/healthz"}, seen)

    @unittest.skipIf(shutil.which("node") is None, "node is not installed")
    def test_it_shows_what_a_real_daemon_says(self):
        process, out, address = self.train("--workers", 2)
        code, text = get(address, "/status.json")
        self.assertEqual(code, 200)
        shown = node("--input-type=module", "-e", VIEW, PAGE / "view.js", input=text)
        self.assertEqual(shown.returncode, 0, shown.stdout)
        view = json.loads(shown.stdout)
        self.assertEqual(view["head"]["name"], "out")
        self.assertRegex(view["head"]["progress"]["step"], r"^step [1-9][\d,]* of 1,000,000$")
        self.assertEqual(len(view["workers"]["rows"]), 2)
        self.assertLessEqual({row["state"] for row in view["workers"]["rows"]}, {"idle", "running"})
        self.assertTrue(all(row["deviceModel"] for row in view["workers"]["rows"]))
        figures = {figure["label"]: figure["value"] for figure in view["figures"]}
        self.assertRegex(figures["loss"], r"^\d\.\d+$")
        self.assertRegex(figures["model FLOP/s"], r"^[\d.]+ [MGT]FLOP/s$")
        said = json.loads(text)
        self.assertEqual(len(view["relay"]["cells"]), int(said["blobs"]))
        self.assertIsNotNone(view["charts"]["loss"])
        # The same as eps status says, by the same names.
        status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
        passing = {"start_order", "step_wait", "evaluation", "evaluating"}  # there or not, by the moment
        self.assertEqual(set(status) - passing, set(said) - passing)
        self.assertEqual(status["run"], said["run"])
        self.assertNotIn(status["incarnation"], text, "anybody may read the page")
        self.assertIsNone(process.poll())

    @unittest.skipIf(shutil.which("node") is None, "node is not installed")
    def test_its_own_decisions(self):
        done = node("--test", PAGE / "view_test.mjs")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^. pass [1-9]\d*$")

    def test_it_knows_after_how_many_skipped_steps_a_run_fails(self):
        progress = (ROOT / "eps_server" / "step" / "run_progress.h").read_text()
        self.assertEqual(re.search(r"kMaxSkippedInARow = (\d+);", progress)[1],
                         re.search(r"MOST_SKIPPED_IN_A_ROW = (\d+);", (PAGE / "warnings.js").read_text())[1])

    def test_train_says_where_it_is(self):
        out = self.work.out("out")
        command = [str(EPS), "train", "--run", str(self.work.spec()), "--out", str(out)]
        done = run(command)
        self.assertEqual(done.returncode, 0, done.stderr)
        address = json.loads((out / "endpoints.json").read_text())["metrics"]
        self.assertIn(f"eps: http://{address}/ shows the run\n", done.stdout)
