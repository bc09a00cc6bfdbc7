"""Keys that are exchanged while a run goes on, and what each role's token opens, with the real programs."""

import os
import shutil
import time
import urllib.request

from doors_test import DoorsTest
from eps_run import ENDLESS, EPS, TIME_SCALE, committed_steps, endpoints, run, wait_for_steps
from terminal import Terminal

DEVICE_MEMORY = ["--device-memory", "64MiB"]


class KeysInUse(DoorsTest):
    """A daemon and a worker, each with files of its own, which are those of `keys` at first."""

    def setUp(self):
        super().setUp()
        self.out = self.work.out("run")
        self.daemons, self.workers = (self.folder(name) for name in ("daemons", "workers"))
        for name in ("ca.crt", "server.crt", "server.key", "tokens"):
            self.put(self.keys / name, self.daemons / name)
        self.give_client_files(self.keys)

    def folder(self, name):
        path = self.work.path / name
        path.mkdir()
        return path

    def put(self, content, place):
        """As a careful hand does: never half a file. `content` a path, or bytes."""
        beside = place.with_name(f".{place.name}")
        beside.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        beside.chmod(0o600)
        os.replace(beside, place)

    def give_client_files(self, keys):
        for name in ("ca.crt", "client.crt", "client.key"):
            self.put(keys / name, self.workers / name)
        self.put(keys / "worker.token", self.workers / "token")

    def start_run(self, *args):
        flags = self.server_flags(self.daemons, client_ca=True, token=False)
        self.server, self.address = self.start_daemon(self.work.spec(ENDLESS), self.out, "--token-file",
                                                      self.daemons / "tokens", *flags, *args)

    def attach(self):
        return self.start_worker(self.address, *DEVICE_MEMORY, *self.client_flags(self.workers, certificate=True))

    def as_role(self, keys, name):
        return ["--connect", self.address, *self.client_flags(keys, certificate=True, token=False), "--token-file",
                str(keys / name)]

    def ask(self, command, keys, name="token"):
        return run([str(EPS), command, *self.as_role(keys, name)])

    def waits_until(self, what, condition):
        deadline = time.monotonic() + 60 * TIME_SCALE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def daemon_takes(self, what, files):
        """Puts the files into the daemon's places, and waits until it goes by them."""
        before = self.log(self.server).count(f"keys_reloaded what={what}")
        for name, content in files.items():
            self.put(content, self.daemons / name)
        self.waits_until(f"new {what}", lambda: self.log(self.server).count(f"keys_reloaded what={what}") > before)
        self.waits_until("all taken", lambda: not self.stale())

    def metric(self, name):
        page = endpoints(self.server, self.out)["metrics"]
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=20) as reply:
            lines = reply.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def stale(self):
        return self.metric("eps_keys_stale") == 1

    def no_secrets_of(self, folders, *texts):
        secrets = [line.split()[0] for folder in folders for line in (folder / "tokens").read_text().splitlines()]
        secrets += [(folder / name).read_text().splitlines()[1] for folder in folders for name in ("server.key", "client.key")]
        for text in texts:
            for secret in secrets:
                self.assertNotIn(secret, text)

    def more_steps(self):
        wait_for_steps(self.server, self.out, committed_steps(self.out) + 3)


class RotationTest(KeysInUse):
    def test_a_whole_set_is_exchanged_by_the_documented_steps_and_no_step_is_lost(self):
        new = self.make_keys("new", "--days", "700")
        self.start_run()
        first = self.attach()
        wait_for_steps(self.server, self.out, 2)
        self.assertEqual(self.ask("status", self.keys).returncode, 0)
        self.assertEqual(self.ask("status", new).returncode, 1)
        ends = self.metric("eps_certificate_expiry_time_seconds")

        both = (new / "ca.crt").read_bytes() + (self.keys / "ca.crt").read_bytes()
        self.put(both, self.workers / "ca.crt")
        self.daemon_takes("certificates", {"ca.crt": both})
        self.daemon_takes("tokens", {"tokens": (new / "tokens").read_bytes() + (self.keys / "tokens").read_bytes()})

        self.put(new / "server.crt", self.daemons / "server.crt")
        self.waits_until("half of a pair is told", self.stale)
        self.assertIn("is not the key of", self.log(self.server))
        seen = self.ask("status", self.keys).stdout
        self.assertRegex(seen, r"\nkeys +new ones are NOT in use, the old ones go on: .*server.key.* is not the key of")
        self.assertRegex(seen, r"\ncertificate +ends in 36\d d")
        self.more_steps()
        self.give_client_files(new)
        self.daemon_takes("certificates", {"server.key": new / "server.key"})
        second = self.attach()
        self.waits_until("the second worker", lambda: "attached 2," in self.ask("status", new).stdout)

        self.daemon_takes("certificates", {"ca.crt": new / "ca.crt"})
        self.daemon_takes("tokens", {"tokens": new / "tokens"})
        self.assertGreater(self.metric("eps_certificate_expiry_time_seconds"), ends + 300 * 86400)
        # What is old opens nothing, whichever it is of the two that are wanted.
        of_both = ["--connect", self.address, "--tls-ca", str(new / "ca.crt")]
        for certificate, token in ((self.keys, new), (new, self.keys)):
            done = run([str(EPS), "status", *of_both, "--tls-cert", str(certificate / "client.crt"), "--tls-key",
                        str(certificate / "client.key"), "--token-file", str(token / "token")])
            self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.ask("status", new).returncode, 0)
        self.more_steps()  # both workers are there still
        self.assertNotIn("worker_lost", self.log(self.server))
        self.assertEqual(self.ask("stop", new).returncode, 0)
        for process in (self.server, first, second):
            self.ends(process, 0)
        self.no_secrets_of([self.keys, new], self.log(self.server), self.log(first), self.log(second))

    def test_a_worker_waits_for_the_keys_of_the_daemon_that_came_back_with_new_ones(self):
        new = self.make_keys("new")
        self.start_run("--set", "checkpoint.every_steps=2")
        worker = self.attach()
        wait_for_steps(self.server, self.out, 5)
        self.server.kill()
        self.server.wait()
        for name in ("ca.crt", "server.crt", "server.key", "tokens"):
            self.put(new / name, self.daemons / name)
        self.start_run("--resume", "--listen", self.address)
        self.waits_until("the worker is refused", lambda: "certificate verify failed" in self.log(worker))
        self.give_client_files(new)
        self.more_steps()
        self.assertEqual(self.ask("stop", new).returncode, 0)
        self.ends(self.server, 0)
        self.ends(worker, 0)
        self.assertIn("keys_reloaded", self.log(worker))

    def test_a_token_that_is_taken_back_opens_nothing_more(self):
        self.start_run()
        self.attach()
        wait_for_steps(self.server, self.out, 2)
        lines = (self.keys / "tokens").read_text().splitlines(keepends=True)
        self.daemon_takes("tokens", {"tokens": "".join(line for line in lines if "worker" not in line).encode()})
        self.ends(late := self.attach(), 1)
        self.assertIn("the token is not this daemon's", self.log(late))
        self.assertEqual(self.ask("status", self.keys).returncode, 0)

    def test_eps_top_gives_the_screen_back_and_says_so_when_its_token_is_taken_back(self):
        self.start_run()
        self.attach()
        wait_for_steps(self.server, self.out, 2)
        said = self.work.path / "top.log"
        with open(said, "w") as log:
            top = Terminal([str(EPS), "top", "--interval-seconds", "0.2", *self.as_role(self.keys, "viewer.token")], log)
        self.addCleanup(self.end_if_running, top.process)
        top.read_until(lambda text: "training" in text)
        lines = (self.keys / "tokens").read_text().splitlines(keepends=True)
        self.daemon_takes("tokens", {"tokens": "".join(line for line in lines if "viewer" not in line).encode()})
        self.assertEqual(top.end(), 1, said.read_text())
        self.assertIn("the token is not this daemon's", said.read_text())
        self.assertTrue(top.text.startswith("\033[?1049h") and top.text.endswith("\033[?1049l"), top.text)
        self.more_steps()


class RolesTest(KeysInUse):
    def test_a_viewer_looks_and_an_operator_orders(self):
        self.start_run()
        worker = self.attach()
        wait_for_steps(self.server, self.out, 2)
        self.assertEqual(self.ask("status", self.keys, "viewer.token").returncode, 0)
        for name, role in (("viewer.token", "viewer"), ("worker.token", "worker")):
            for command in ("checkpoint", "stop"):
                self.refused(self.ask(command, self.keys, name), 1, f"the token is a {role}'s",
                             f"{command.capitalize()} wants an operator's")
            drain = run([str(EPS), "drain", "1", *self.as_role(self.keys, name)])
            self.refused(drain, 1, f"the token is a {role}'s")
        self.more_steps()
        self.put(self.keys / "viewer.token", self.workers / "token")
        self.ends(viewer := self.attach(), 1)
        self.assertIn("Control/Attach wants a worker's", self.log(viewer))
        self.assertIn("call_refused", self.log(self.server))
        self.assertEqual(self.ask("stop", self.keys).returncode, 0)
        self.ends(self.server, 0)
        self.ends(worker, 0)

    def test_a_daemon_with_the_operators_token_alone_is_what_it_was(self):
        shutil.copy(self.keys / "token", self.daemons / "tokens")
        self.start_run()
        self.put(self.keys / "token", self.workers / "token")
        self.attach()
        wait_for_steps(self.server, self.out, 2)
        self.assertEqual(self.ask("status", self.keys, "viewer.token").returncode, 1)
        self.assertEqual(self.ask("stop", self.keys).returncode, 0)
        self.ends(self.server, 0)
