"""A run between two machines: two network namespaces with a cable between them; the daemon in one, the worker in the
other."""

import os

from eps_run import BIN, EPS, ByHandTest, endpoints, run, summary

DAEMON, WORKER = "10.99.0.1", "10.99.0.2"


class TwoMachines:
    """Two namespaces. Everything in them goes when they are deleted."""

    def __init__(self):
        self.names = [f"eps-{os.getpid()}-a", f"eps-{os.getpid()}-b"]

    def set_up(self):
        a, b = self.names
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", "eps0", "netns", a, "type", "veth", "peer", "name", "eps1", "netns", b)
        for name, device, address in ((a, "eps0", DAEMON), (b, "eps1", WORKER)):
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            self.ip("-n", name, "link", "set", device, "up")
            self.ip("-n", name, "link", "set", "lo", "up")

    def ip(self, *words):
        done = run(["ip", *words])
        if done.returncode != 0:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def inside(self, which, command):
        return ["ip", "netns", "exec", self.names[which], *map(str, command)]

    def remove(self):
        for name in self.names:
            run(["ip", "netns", "delete", name])


class NetworkTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.machines = TwoMachines()
        self.addCleanup(self.machines.remove)
        try:
            self.machines.set_up()
        except OSError as error:
            self.skipTest(f"this user may not make network namespaces: {error}")
        self.keys = self.work.path / "keys"
        self.assertEqual(run([str(EPS), "keys", "--out", str(self.keys), "--host", DAEMON]).returncode, 0)

    def start_in(self, which, *command):
        return self.start(*self.machines.inside(which, command))

    def train(self, name, listen, worker_in, server_flags, worker_flags):
        out = self.work.out(name)
        server = self.start_in(0, BIN / "eps_server", "--run", self.work.spec({"steps": 30}), "--out", out, "--listen",
                               listen, *server_flags)
        address = endpoints(server, out, log=self.logs[server])["grpc"]
        worker = self.start_in(worker_in, BIN / "gpu_worker", "--connect", address, "--device-memory", "64MiB",
                               *worker_flags)
        self.ends(server, 0, timeout=180)
        self.ends(worker, 0, timeout=30)
        return out

    def test_a_run_over_tls_between_two_machines(self):
        plain = self.train("plain", "127.0.0.1:0", 0, [], ["--transport", "grpc"])
        k = self.keys
        tls = self.train("tls", f"{DAEMON}:0", 1,
                         ["--tls-cert", k / "server.crt", "--tls-key", k / "server.key", "--tls-client-ca",
                          k / "ca.crt", "--token-file", k / "token"],
                         ["--tls-ca", k / "ca.crt", "--tls-cert", k / "client.crt", "--tls-key", k / "client.key",
                          "--token-file", k / "token"])
        model = "checkpoints/step-00000030/model.safetensors"
        self.assertEqual((tls / model).read_bytes(), (plain / model).read_bytes())
        print(f"tokens/s: {summary(tls)['tokens_per_second']:.0f} over TLS between two machines, "
              f"{summary(plain)['tokens_per_second']:.0f} in plaintext over loopback")

    def test_a_stranger_on_the_network_gets_nothing(self):
        k, out = self.keys, self.work.out("run")
        server = self.start_in(0, BIN / "eps_server", "--run", self.work.spec(), "--out", out, "--listen", "0.0.0.0:7070",
                               "--tls-cert", k / "server.crt", "--tls-key", k / "server.key", "--token-file", k / "token")
        endpoints(server, out, log=self.logs[server])
        status = [EPS, "status", "--connect", f"{DAEMON}:7070", "--tls-ca", k / "ca.crt"]
        self.refused(run(self.machines.inside(1, status)), 1, "token")
        let_in = run(self.machines.inside(1, [*status, "--token-file", k / "token"]))
        self.assertEqual(let_in.returncode, 0, let_in.stderr)
