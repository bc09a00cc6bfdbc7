"""deploy/kubernetes: what its pods run is run here, with its RunSpec, keys, ports and probes, and its parts fit each other."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from eps_run import BIN, TIME_SCALE, ByHandTest, run, summary, wait_for_steps
from prometheus import free_port

RECIPE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
# What `eps keys` writes, and whom the daemon's certificate is for.
MADE_BY_KEYS = {"ca.crt", "server.crt", "server.key", "client.crt", "client.key", "token", "tokens", "viewer.token",
                "worker.token"}


def objects():
    return {(part["kind"], part["metadata"]["name"]): part for name in ("volume.yaml", "run.yaml")
            for part in yaml.safe_load_all((RECIPE / name).read_text())}


def pod_of(name):
    return objects()["Job", name]["spec"]["template"]["spec"]


def volumes_of(job):
    return {volume["name"]: volume for volume in pod_of(job)["volumes"]}


class KubernetesTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.ports = {"7070": free_port(), "9464": free_port()}
        for folder in ("runs/data", "etc/eps/run"):
            (self.work.path / folder).mkdir(parents=True)
        shutil.copy(self.work.path / "text.txt", self.work.path / "runs/data/text.txt")
        keys = run([str(BIN / "eps"), "keys", "--out", str(self.work.path / "made"), "--host", "eps-server"])
        self.assertEqual(keys.returncode, 0, keys.stderr)
        self.write_run()

    def here(self, text):
        """A word of a command, for this machine: folders of the test's own, ports that are free."""
        for place in ("/runs", "/etc/eps", "/run/eps"):
            text = re.sub(rf"(^|[ \"]){place}(/|$)", rf"\g<1>{self.work.path}{place}\2", text)
        text = text.replace("eps-server:7070", f"127.0.0.1:{self.ports['7070']}")
        return re.sub(r"^0\.0\.0\.0:(\d+)$", lambda port: f"127.0.0.1:{self.ports[port[1]]}", text)

    def write_run(self, changes=()):
        text = objects()["ConfigMap", "eps-run"]["data"]["run.textproto"].replace('"/runs', f'"{self.work.path}/runs')
        for was, now in changes:
            self.assertIn(was, text)
            text = text.replace(was, now)
        (self.work.path / "etc/eps/run/run.textproto").write_text(text)

    def serve(self, job, name):
        """The pod's steps, one behind the other: its Secret, what takes the keys out of it, and the program."""
        pod = pod_of(job)
        secret, own = self.work.path / "etc/eps/keys", self.work.path / "run/eps/keys"
        for folder in (secret, own):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        items = next(volume["secret"]["items"] for volume in pod["volumes"] if volume["name"] == "secret")
        for item in items:
            shutil.copy(self.work.path / "made" / item["key"], secret / item["path"])
            os.chmod(secret / item["path"], 0o644)  # as Kubernetes gives it to a group
        for container in pod["initContainers"]:
            subprocess.run([self.here(word) for word in container["command"]], check=True)
        container, = pod["containers"]
        self.assertEqual(container["name"], name)
        program, = container["command"]
        args = [self.here(word) for word in container["args"]]
        if "--linger-seconds" in args:
            args[args.index("--linger-seconds") + 1] = "1"
        # Each pod has its own: here they are read when the program starts.
        mine = self.work.path / "run" / f"{name}-{time.monotonic_ns()}"
        shutil.copytree(own, mine)
        return self.start(BIN / program, *(word.replace(str(own), str(mine)) for word in args))

    def probe(self, job, which):
        container, = pod_of(job)["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        get = container[which]["httpGet"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[str(ports[get['port']])]}{get['path']}") as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def serve_worker(self):
        self.ports["9465"] = free_port()  # of a pod of its own
        return self.serve("eps-worker", "gpu-worker")

    def test_the_run_goes_on_after_its_daemon_is_lost_with_more_workers_and_ends_every_pod_with_0(self):
        self.write_run([("steps: 1000", "steps: 60"), ("every_steps: 100", "every_steps: 5")])
        out = self.work.path / "runs/run"
        daemon = self.serve("eps-server", "eps-server")
        workers = [self.serve_worker() for _ in range(objects()["Job", "eps-worker"]["spec"]["parallelism"])]
        wait_for_steps(daemon, out, 7)
        for job, probes in (("eps-server", ("startupProbe", "livenessProbe", "readinessProbe")),
                            ("eps-worker", ("livenessProbe",))):
            self.assertEqual({probe: self.probe(job, probe) for probe in probes}, dict.fromkeys(probes, 200), job)
        self.assertRegex(self.log(daemon), "doors .*tls=yes client_certificates=yes tokens=3")
        daemon.kill()
        self.assertEqual(daemon.wait(), -signal.SIGKILL, "it was done before it could be killed")
        again = self.serve("eps-server", "eps-server")
        workers.append(self.serve_worker())
        self.assertEqual(again.wait(timeout=120 * TIME_SCALE), 0, self.log(again))
        self.assertEqual([worker.wait(timeout=60 * TIME_SCALE) for worker in workers], [0, 0, 0])
        self.assertEqual(summary(out)["steps"], 60)

    def test_workers_stay_for_the_daemon_that_takes_the_place_of_one_that_was_deleted(self):
        out = self.work.path / "runs/run"
        daemon, workers = self.serve("eps-server", "eps-server"), [self.serve_worker(), self.serve_worker()]
        wait_for_steps(daemon, out, 3)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 143, self.log(daemon))
        self.assertTrue((out / "checkpoints/latest").exists())
        steps = summary(out)["steps"]
        wait_for_steps(self.serve("eps-server", "eps-server"), out, steps + 3)
        self.assertEqual([worker.poll() for worker in workers], [None, None])  # one that ends with 0 ends its Job
        workers[0].send_signal(signal.SIGTERM)  # its pod is deleted, as where there are to be fewer
        self.assertEqual(workers[0].wait(timeout=60 * TIME_SCALE), 143, self.log(workers[0]))

    def test_a_run_that_is_refused_fails_its_job_for_good(self):
        self.write_run([("heads: 4", "heads: 5")])
        daemon = self.serve("eps-server", "eps-server")
        code = daemon.wait(timeout=60 * TIME_SCALE)
        self.assertIn("model.heads", self.log(daemon))
        for job, name in (("eps-server", "eps-server"), ("eps-worker", "gpu-worker")):
            disrupted, failed = objects()["Job", job]["spec"]["podFailurePolicy"]["rules"]  # the first that fits counts
            self.assertEqual((disrupted["action"], disrupted["onPodConditions"][0]["type"]), ("Ignore", "DisruptionTarget"))
            self.assertEqual(failed["action"], "FailJob")
            self.assertEqual((failed["onExitCodes"]["containerName"], failed["onExitCodes"]["operator"]), (name, "In"))
            self.assertIn(code, failed["onExitCodes"]["values"])
            # A step that was lost, and a signal, are begun anew.
            self.assertFalse({0, 75, 137, 143} & set(failed["onExitCodes"]["values"]))

    def test_its_parts_fit_each_other(self):
        parts = objects()
        certificate = run(["openssl", "x509", "-in", str(self.work.path / "made/server.crt"), "-noout", "-ext",
                           "subjectAltName"])
        service = parts["Service", "eps-server"]
        self.assertIn(f"DNS:{service['metadata']['name']}", certificate.stdout)
        for job in ("eps-server", "eps-worker"):
            template = parts["Job", job]["spec"]["template"]
            pod, labels = template["spec"], template["metadata"]["labels"]
            self.assertEqual(pod["restartPolicy"], "Never")  # which podFailurePolicy wants
            volumes = volumes_of(job)
            for container in pod["initContainers"] + pod["containers"]:
                self.assertEqual(container["image"], "eps")
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, set(volumes))
            self.assertLessEqual({item["key"] for item in volumes["secret"]["secret"]["items"]}, MADE_BY_KEYS)
            others = "client.key" if job == "eps-server" else "server.key"
            self.assertNotIn(others, [item["key"] for item in volumes["secret"]["secret"]["items"]])
            if job == "eps-server":
                self.assertEqual(service["spec"]["selector"], labels)
                self.assertEqual(parts["NetworkPolicy", "eps-server"]["spec"]["podSelector"]["matchLabels"], labels)
                named = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
                self.assertEqual({port["targetPort"]: port["port"] for port in service["spec"]["ports"]}, named)
                self.assertIn(("PersistentVolumeClaim", volumes["runs"]["persistentVolumeClaim"]["claimName"]), parts)
                self.assertIn(("ConfigMap", volumes["run"]["configMap"]["name"]), parts)
            else:
                sender = parts["NetworkPolicy", "eps-server"]["spec"]["ingress"][0]["from"][0]
                self.assertEqual(sender["podSelector"]["matchLabels"], labels)
        self.assertEqual({path.name for path in (self.work.path / "made").iterdir()}, MADE_BY_KEYS)
        plan = run([str(BIN / "eps"), "plan", "--run", str(self.work.path / "etc/eps/run/run.textproto"), "--json"])
        self.assertEqual(plan.returncode, 0, plan.stderr)
        planned = json.loads(plan.stdout)
        # The cpu device's arena is in the worker's memory, as far as its cap goes: a part of what the pod has.
        for job, num_bytes in (("eps-server", planned["host"]["total_bytes"]),
                               ("eps-worker", planned["device"]["arena_bytes"] + planned["device"]["outside_bytes"] +
                                planned["worker_host"]["total_bytes"])):
            container, = pod_of(job)["containers"]
            gib = int(re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"])[1])
            self.assertLess(num_bytes, gib << 30, job)
        filler = parts["Pod", "eps-files"]["spec"]
        self.assertEqual(filler["volumes"], [volumes_of("eps-server")["runs"]])
