"""Debian's Prometheus with the rules and the scrape configuration of deploy/prometheus, for a test."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from eps_run import ROOT, TIME_SCALE

DEPLOY = ROOT / "deploy"
PROGRAMS = [shutil.which("prometheus"), shutil.which("promtool")]


# http_proxy is for the web.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(address, path, timeout=30):
    """(status code, body) of a page."""
    try:
        with OPENER.open(f"http://{address}{path}", timeout=timeout) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    """The same rules, faster: minutes of `for:`, and of the counters that alerts look back on, become seconds."""

    LOOK_BACK = "20s"

    def __init__(self, folder, daemon):
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        shutil.copytree(DEPLOY / "prometheus", folder)
        for name in ("alerts.yml", "recording.yml"):
            text = (folder / name).read_text()
            text = re.sub(r"for: \d+m", "for: 2s", text)
            text = re.sub(r"\[1[05]m\]", f"[{self.LOOK_BACK}]", text)
            text = text.replace("[1m]", "[10s]")
            (folder / name).write_text(text)
        config = (folder / "prometheus.yml").read_text()
        config = re.sub(r"_interval: \d+s", "_interval: 1s", config)
        (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:9464", daemon))
        self.set_daemons([daemon])
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}", "--log.level=warn"], stdout=log, stderr=log)

    def set_daemons(self, addresses):
        """Workers are found by themselves: the daemon tells where they are."""
        beside = self.folder / "targets" / ".eps_server"
        beside.write_text(json.dumps([{"targets": addresses}]))
        beside.replace(self.folder / "targets" / "eps_server.json")

    def api(self, path, **arguments):
        status, body = get(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        if status == 503:
            raise ConnectionError(f"{path}: it is starting: {body}")
        reply = json.loads(body)
        if reply["status"] != "success":
            raise AssertionError(f"{path} {arguments}: {reply}")
        return reply["data"]

    def query(self, expr):
        return self.api("query", query=expr)["result"]

    def series(self, expr, begin, end):
        return self.api("query_range", query=expr, start=begin, end=end, step=1)["result"]

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"}

    def wait_for(self, what, condition, timeout=60):
        deadline = time.monotonic() + timeout * TIME_SCALE
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass  # it does not listen yet, or is starting, or the machine is busy
            if time.monotonic() > deadline:
                raise AssertionError(f"not in {timeout} s: {what}; firing: {self.firing()}")
            time.sleep(0.3)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30 * TIME_SCALE)


def dashboard_queries(variables):
    """(panel title, legend, expression) of every query of the dashboard, with its variables filled in."""
    queries = []
    for panel in json.loads((DEPLOY / "grafana" / "eps-run.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in variables.items():
                expr = expr.replace(f"${name}", value)
            queries.append((panel["title"], target["legendFormat"], expr))
    return queries
