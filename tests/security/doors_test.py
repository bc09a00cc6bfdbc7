"""Each door tried and shut, with the real programs: TLS, client certificates, tokens, files, addresses."""

import os
import signal
import socket
import ssl
import threading
import time

from eps_run import BIN, ENDLESS, EPS, TIME_SCALE, ByHandTest, endpoints, run, wait_for_steps

# The daemon waits for a worker, and is asked things meanwhile.
SPEC = {"steps": 4}


class OldCa:
    """A CA of OpenSSL's, whose certificates may have ended: `openssl ca` can put a date of the past into one."""

    CONFIG = """
[ca]
default_ca=it
[it]
database=index
new_certs_dir=.
rand_serial=yes
default_md=sha256
policy=any
unique_subject=no
[any]
commonName=supplied
[req]
distinguished_name=name
[name]
[authority]
basicConstraints=critical,CA:TRUE
[client]
extendedKeyUsage=clientAuth
[server]
extendedKeyUsage=serverAuth
subjectAltName=DNS:localhost,IP:127.0.0.1
"""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "index").write_text("")
        (folder / "ca.cnf").write_text(self.CONFIG)
        self.openssl("req", "-x509", *self.new_key("ca"), "-extensions", "authority", "-subj", "/CN=ca", "-out",
                     "ca.crt")

    def openssl(self, command, *args):
        done = run(["openssl", command, "-config", "ca.cnf", *args], cwd=self.folder)
        if done.returncode != 0:
            raise AssertionError(f"openssl {command}: {done.stderr}")

    def new_key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]

    def sign(self, name, kind, end):
        """A certificate NAME.crt with NAME.key, from 2020 to the day `end`, YYYYMMDD."""
        self.openssl("req", "-new", *self.new_key(name), "-subj", f"/CN={name}", "-out", f"{name}.csr")
        self.openssl("ca", "-batch", "-notext", "-cert", "ca.crt", "-keyfile", "ca.key", "-in", f"{name}.csr",
                     "-extensions", kind, "-startdate", "20200101000000Z", "-enddate", f"{end}000000Z", "-out",
                     f"{name}.crt")
        (self.folder / f"{name}.key").chmod(0o600)
        return [str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key")]


class DoorsTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.keys = self.make_keys("keys")

    def make_keys(self, name, *args):
        folder = self.work.path / name
        done = run([str(EPS), "keys", "--out", str(folder), *args])
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder

    def server_flags(self, keys, tls=True, client_ca=False, token=True):
        flags = ["--tls-cert", keys / "server.crt", "--tls-key", keys / "server.key"] if tls else []
        flags += ["--tls-client-ca", keys / "ca.crt"] if client_ca else []
        return [str(flag) for flag in flags + (["--token-file", keys / "token"] if token else [])]

    def client_flags(self, keys, tls=True, certificate=False, token=True):
        flags = ["--tls-ca", keys / "ca.crt"] if tls else []
        flags += ["--tls-cert", keys / "client.crt", "--tls-key", keys / "client.key"] if certificate else []
        return [str(flag) for flag in flags + (["--token-file", keys / "token"] if token else [])]

    def server_command(self, *flags):
        return [str(BIN / "eps_server"), "--run", str(self.work.spec(SPEC)), "--out", str(self.work.out("run")), *flags]

    def start_server(self, *flags):
        self.server, self.address = self.start_daemon(self.work.spec(SPEC), self.work.out("run"), *flags)
        return self.address

    def status(self, *flags):
        return run([str(EPS), "status", "--connect", self.address, *flags])

    def let_in(self, *flags):
        done = self.status(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("state", done.stdout)

    def kept_out(self, *flags):
        done = self.status(*flags)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def no_secrets_in(self, *texts):
        token = (self.keys / "token").read_text().strip()
        key = (self.keys / "server.key").read_text().splitlines()[1]
        for text in texts:
            self.assertNotIn(token, text)
            self.assertNotIn(key, text)


class TlsTest(DoorsTest):
    def test_the_right_token_is_let_in_and_no_other(self):
        other = self.make_keys("other")
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        self.let_in(*self.client_flags(self.keys))
        self.assertIn("--token-file", self.kept_out(*self.client_flags(self.keys, token=False)))
        wrong = ["--tls-ca", str(self.keys / "ca.crt"), "--token-file", str(other / "token")]
        self.assertIn("the token is not", self.kept_out(*wrong))
        self.no_secrets_in(self.log(self.server))

    def test_a_daemon_of_another_ca_is_not_believed(self):
        other = self.make_keys("other")
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        self.kept_out("--tls-ca", str(other / "ca.crt"), "--token-file", str(self.keys / "token"))

    def test_only_clients_of_the_ca_are_let_in(self):
        other = self.make_keys("other")
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys, client_ca=True, token=False))
        self.let_in(*self.client_flags(self.keys, certificate=True, token=False))
        self.kept_out(*self.client_flags(self.keys, token=False))
        self.kept_out("--tls-ca", str(self.keys / "ca.crt"), "--tls-cert", str(other / "client.crt"), "--tls-key",
                      str(other / "client.key"))

    def test_plaintext_to_tls_and_tls_to_plaintext(self):
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        self.kept_out()
        self.kept_out("--token-file", str(self.keys / "token"))
        self.server.kill()
        self.server.wait()
        self.start_server("--listen", "127.0.0.1:0")
        self.let_in()
        self.kept_out(*self.client_flags(self.keys, token=False))

    def test_who_forgets_tls_or_asks_the_page_is_told_where_to_look(self):
        address = self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        page = endpoints(self.server, self.work.out("run"))["metrics"]
        worker = [str(BIN / "gpu_worker"), "--device-memory", "64MiB", "--reconnect-seconds", "1"]
        self.refused(run([*worker, "--connect", address]), 1, "; docs/operations.md, Across machines, says")
        for program in (worker, [str(EPS), "status"]):
            self.refused(run([*program, "--connect", page]), 1, "`grpc` in the run's endpoints.json")
            self.refused(run([*program, "--connect", f"http://{page}"]), 2, "want HOST:PORT, without http://")

    def test_old_versions_of_tls_are_refused(self):
        host, port = self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys)).split(":")
        for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True),
                               (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
            context.set_alpn_protocols(["h2"])
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                try:
                    context.wrap_socket(plain, server_hostname="localhost").close()
                    self.assertTrue(works, version)
                except (ssl.SSLError, OSError):
                    self.assertFalse(works, version)

    def test_a_run_over_tls_gives_the_bits_of_one_without(self):
        plain = self.work.out("plain")
        self.train_ok(self.work.spec(SPEC), plain, "--device-memory", "64MiB")
        address = self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys, client_ca=True))
        worker = self.start_worker(address, "--device-memory", "64MiB", *self.client_flags(self.keys, certificate=True))
        self.ends(self.server, 0)
        self.ends(worker, 0, timeout=30)
        model = "checkpoints/step-00000004/model.safetensors"
        self.assertEqual((self.work.out("run") / model).read_bytes(), (plain / model).read_bytes())
        self.no_secrets_in(self.log(self.server), self.log(worker))

    def test_a_worker_that_finds_another_daemon_ends_at_once_and_says_why(self):
        other = self.make_keys("other")
        address = self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        start = time.monotonic()
        done = run([str(BIN / "gpu_worker"), "--connect", address, "--device-memory", "64MiB", "--tls-ca",
                    str(other / "ca.crt"), "--token-file", str(self.keys / "token")])
        self.refused(done, 1, "certificate verify failed", "; docs/operations.md, Across machines, says")
        self.assertLess(time.monotonic() - start, 10 * TIME_SCALE)

    def test_a_worker_with_a_wrong_token_ends_at_once_and_says_why(self):
        other = self.make_keys("other")
        address = self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys))
        start = time.monotonic()
        done = run([str(BIN / "gpu_worker"), "--connect", address, "--device-memory", "64MiB", "--tls-ca",
                    str(self.keys / "ca.crt"), "--token-file", str(other / "token")])
        self.refused(done, 1, "the token is not this daemon's")
        self.assertLess(time.monotonic() - start, 10 * TIME_SCALE)
        self.no_secrets_in(done.stderr)


class ExpiredPeerTest(DoorsTest):
    """Certificates of the right CA whose time is over. Our own programs would not start with them: others show them."""

    def setUp(self):
        super().setUp()
        self.ca = OldCa(self.work.path / "old-ca")

    def is_let_in(self, client):
        """Whether the daemon takes the certificate: it says more than a fatal alert."""
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(*client)
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as one:
                    one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
                    return bool(one.recv(9))  # its SETTINGS
            except ssl.SSLError as error:
                self.assertIn("expired", str(error))
                return False

    def test_a_client_whose_certificate_has_expired_is_kept_out(self):
        now, old = self.ca.sign("now", "client", "20900101"), self.ca.sign("old", "client", "20210101")
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys, token=False), "--tls-client-ca",
                          str(self.ca.folder / "ca.crt"))
        self.assertTrue(self.is_let_in(now))
        self.assertFalse(self.is_let_in(old))

    def is_believed(self, server):
        """Whether a command ends the handshake with a daemon that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(*server)
        believed = []

        def serve(listener):
            while True:
                with listener.accept()[0] as plain:
                    try:
                        if plain.recv(1, socket.MSG_PEEK) == b".":  # the last one: all that came before it was served
                            return
                        with context.wrap_socket(plain, server_side=True) as one:
                            believed.append(bool(one.recv(1)))  # with TLS 1.3 it may still say no
                    except OSError:  # also one that resets the connection
                        believed.append(False)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = threading.Thread(target=serve, args=[listener], daemon=True)
            serving.start()
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
            self.kept_out("--tls-ca", str(self.ca.folder / "ca.crt"))
            with socket.create_connection(listener.getsockname()) as last:
                last.sendall(b".")
            serving.join(20)
            self.assertFalse(serving.is_alive())
        self.assertTrue(believed)
        return any(believed)

    def test_a_daemon_whose_certificate_has_expired_is_not_believed(self):
        self.assertTrue(self.is_believed(self.ca.sign("now", "server", "20900101")))
        self.assertFalse(self.is_believed(self.ca.sign("old", "server", "20210101")))


class AddressTest(DoorsTest):
    def refuse(self, code, flags, *words):
        done = run(self.server_command(*flags))
        self.refused(done, code, *words)
        self.assertFalse(self.work.out("run").exists(), "something was started")

    def test_an_address_of_other_machines_needs_doors(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            self.refuse(2, ["--listen", address], "--tls-cert", "--token-file", "eps keys")
            self.refuse(2, ["--listen", address, *self.server_flags(self.keys, tls=False)], "--tls-cert")
            self.refuse(2, ["--listen", address, *self.server_flags(self.keys, token=False)], "--token-file")

    def test_with_doors_it_is_served_and_endpoints_names_what_this_machine_reaches(self):
        address = self.start_server("--listen", "0.0.0.0:0", *self.server_flags(self.keys))
        self.assertIn("door_without_client_certificates", self.log(self.server))
        self.assertTrue(address.startswith("127.0.0.1:"), address)
        self.let_in(*self.client_flags(self.keys))
        done = run([str(EPS), "status", "--out", str(self.work.out("run")), *self.client_flags(self.keys)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_of_a_daemon_that_every_user_of_the_machine_reaches_the_log_warns(self):
        self.start_server("--listen", "127.0.0.1:0", *self.server_flags(self.keys, tls=False))
        self.assertNotIn("door_without_token", self.log(self.server))
        self.server.kill()
        self.server.wait()
        self.start_server("--listen", "127.0.0.1:0")
        self.assertIn("WARNING door_without_token", self.log(self.server))

    def test_nothing_is_said_to_another_machine_in_plaintext(self):
        for program in ([str(EPS), "status"], [str(BIN / "gpu_worker")]):
            for flags in ([], self.client_flags(self.keys, tls=False)):
                self.refused(run([*program, "--connect", "192.0.2.1:7070", *flags]), 2, "--tls-ca")


class FileTest(DoorsTest):
    def refuse(self, flags, *words):
        done = run(self.server_command("--listen", "127.0.0.1:0", *flags))
        self.refused(done, 2, *words)
        self.no_secrets_in(done.stderr)
        self.assertFalse(self.work.out("run").exists(), "something was started")

    def test_secrets_that_others_may_read_are_refused_with_the_mend(self):
        for name in ("token", "server.key"):
            (self.keys / name).chmod(0o640)
            self.refuse(self.server_flags(self.keys), "0640", f"chmod 600 {self.keys / name}")
            (self.keys / name).chmod(0o600)
        (self.keys / "token").chmod(0o644)
        done = run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", *self.client_flags(self.keys)])
        self.refused(done, 2, "0644", "chmod 600")

    def test_a_key_of_another_certificate(self):
        self.refuse(["--tls-cert", str(self.keys / "server.crt"), "--tls-key", str(self.keys / "client.key")],
                    "client.key", "is not the key of")

    def test_an_expired_certificate(self):
        crt, key = OldCa(self.work.path / "old-ca").sign("old", "server", "20200102")
        self.refuse(["--tls-cert", crt, "--tls-key", key], "old.crt", "expired on 2020-01-02")

    def test_what_is_not_there_or_no_key_is_named(self):
        (self.work.path / "empty").write_bytes(b"")
        (self.work.path / "empty").chmod(0o600)
        empty, nowhere = str(self.work.path / "empty"), str(self.work.path / "nowhere")
        crt, key = str(self.keys / "server.crt"), str(self.keys / "server.key")
        for flags in (["--tls-cert", empty, "--tls-key", key], ["--tls-cert", nowhere, "--tls-key", key],
                      ["--tls-cert", crt, "--tls-key", empty], ["--tls-cert", crt, "--tls-key", nowhere],
                      ["--token-file", empty], ["--token-file", nowhere],
                      ["--tls-cert", crt, "--tls-key", key, "--tls-client-ca", empty]):
            self.refuse(flags, "empty" if empty in flags else "nowhere")

    def test_half_of_the_flags_is_bad_usage(self):
        crt = str(self.keys / "server.crt")
        self.assertEqual(run(self.server_command("--tls-cert", crt)).returncode, 2)
        self.assertEqual(run(self.server_command("--tls-client-ca", crt)).returncode, 2)
        self.assertEqual(run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--tls-cert", crt]).returncode, 2)


class KeysTest(DoorsTest):
    FILES = {"ca.crt", "server.crt", "server.key", "client.crt", "client.key", "token", "tokens", "viewer.token",
             "worker.token"}

    def test_files_are_the_owners_alone_and_the_cas_key_is_not_there(self):
        self.assertEqual({path.name for path in self.keys.iterdir()}, self.FILES)
        self.assertEqual(self.keys.stat().st_mode & 0o7777, 0o700)
        for path in self.keys.iterdir():
            self.assertEqual(path.stat().st_mode & 0o7777, 0o600, path)

    def test_nothing_is_written_over(self):
        before = {path.name: path.read_bytes() for path in self.keys.iterdir()}
        self.refused(run([str(EPS), "keys", "--out", str(self.keys)]), 2, "never written over")
        self.assertEqual({path.name: path.read_bytes() for path in self.keys.iterdir()}, before)

    def test_a_bad_host_leaves_nothing(self):
        folder = self.work.path / "bad"
        self.refused(run([str(EPS), "keys", "--out", str(folder), "--host", "a,DNS:b"]), 2, "--host a,DNS:b")
        self.assertFalse(folder.exists())

    def test_it_prints_how_to_use_them_and_no_secret(self):
        done = run([str(EPS), "keys", "--out", str(self.work.path / "more"), "--host", "10.0.0.7", "--host", "node7"])
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("--tls-client-ca", "--tls-ca", "gpu_worker --connect 10.0.0.7:7070", "--token-file"):
            self.assertIn(word, done.stdout)
        for line in (self.work.path / "more" / "tokens").read_text().splitlines():
            self.assertNotIn(line.split()[0], done.stdout)
        text = run(["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in",
                    str(self.work.path / "more" / "server.crt")]).stdout
        for name in ("IP Address:10.0.0.7", "DNS:node7", "DNS:localhost", "IP Address:127.0.0.1"):
            self.assertIn(name, text)

    def test_openssl_agrees_with_the_chain(self):
        for purpose, name in (("sslserver", "server.crt"), ("sslclient", "client.crt")):
            done = run(["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(self.keys / "ca.crt"),
                        str(self.keys / name)])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class OneMachineTest(DoorsTest):
    """`eps train` closes loopback to other users of the machine by a token of its own."""

    def test_the_run_is_closed_to_whoever_cannot_read_its_folder(self):
        out = self.work.out("run")
        # No checkpoint comes or goes by itself while the folder is walked through.
        process = self.start_endless(self.work.spec(ENDLESS), out, "--device-memory", "64MiB")
        try:
            self.address = endpoints(process, out)["grpc"]
            self.assertIn("token", self.kept_out())
            wait_for_steps(process, out, 1)
            for command in ("status", "checkpoint"):
                done = run([str(EPS), command, "--out", str(out)])
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(out.stat().st_mode & 0o077, 0)
            paths = list(out.rglob("*"))
            self.assertIn("model.safetensors", {path.name for path in paths})
            for path in paths:
                self.assertEqual(path.stat().st_mode & 0o077, 0, path)
            # Arguments and environments can be looked at with ps: the secret is in neither.
            token = (out / "token").read_bytes().strip()
            for folder in (p for p in os.listdir("/proc") if p.isdigit()):
                try:
                    with open(f"/proc/{folder}/cmdline", "rb") as file:
                        self.assertNotIn(token, file.read())
                except OSError:
                    pass
            for log in (out / "logs").iterdir():
                self.assertNotIn(token, log.read_bytes())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60 * TIME_SCALE)

    def test_help_names_no_secret(self):
        for program in ([str(BIN / "eps_server")], [str(BIN / "gpu_worker")], [str(EPS), "keys"], [str(EPS), "status"]):
            done = run([*program, "--help"])
            self.assertEqual(done.returncode, 0)
            self.no_secrets_in(done.stdout)
