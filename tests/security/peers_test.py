"""What peers can do to a daemon beside asking: many connections, silence, nonsense. It goes on serving others."""

import resource
import socket
import ssl
import time

from eps_run import EPS, TIME_SCALE, ByHandTest, measures_the_process, run

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


class PeersTest(ByHandTest):
    def start_server(self, *flags):
        self.server, self.address = self.start_daemon(self.work.spec(), self.work.out("run"), *flags)
        host, port = self.address.split(":")
        self.where = (host, int(port))

    def open_many_files(self, wanted):
        """Raises this process' own limit, which is 1,024 on Debian. The daemon is started before and keeps its own."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        if most < wanted:
            self.skipTest(f"this user may have {hard} files open, and it takes {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def serves(self, *flags):
        return run([str(EPS), "status", "--connect", self.address, *flags]).returncode == 0

    def resident_bytes(self):
        with open(f"/proc/{self.server.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))

    @staticmethod
    def is_closed(one):
        """Whether the daemon has ended it. What it has said is read and dropped."""
        one.setblocking(False)
        try:
            while one.recv(4096):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    @measures_the_process
    def test_two_thousand_connections_are_bounded_in_number_memory_and_time(self):
        self.start_server("--max-connections", "512")
        self.open_many_files(2500)
        before = self.resident_bytes()
        start = time.monotonic()
        sockets = [socket.create_connection(self.where, timeout=10) for _ in range(2000)]
        self.assertLess(time.monotonic() - start, 60)
        # Those without a place are told so without a wait for the time of a handshake.
        while (closed := sum(map(self.is_closed, sockets))) < 1400:
            self.assertLess(time.monotonic() - start, 60, f"{closed} of 2000 are closed")
            time.sleep(0.05)
        self.assertLess(self.resident_bytes() - before, 64 << 20)
        # Silence is ended after 10 s, and then others are served, while the 2,000 are still there.
        while not self.serves():
            self.assertLess(time.monotonic() - start, 90)
            time.sleep(0.2)
        for one in sockets:
            one.close()
        self.assertIn("connection_refused", self.log(self.server))

    def test_half_open_peers_are_ended_and_others_served_meanwhile(self):
        self.start_server()
        sockets = [socket.create_connection(self.where, timeout=30) for _ in range(20)]
        for i, one in enumerate(sockets):
            one.sendall(PREFACE[:i])
        self.assertTrue(self.serves())
        start = time.monotonic()
        for one in sockets:
            try:
                while one.recv(4096):
                    pass
            except ConnectionError:
                pass
        self.assertLess(time.monotonic() - start, 25 * TIME_SCALE)  # 10 s, on a busy machine

    def test_peers_that_send_a_byte_now_and_then_are_ended_and_others_served_meanwhile(self):
        self.start_server()
        start = time.monotonic()
        slow = [socket.create_connection(self.where, timeout=30) for _ in range(20)]
        for i in range(len(PREFACE)):  # the last byte would come after 16 s
            for one in slow:
                try:
                    one.sendall(PREFACE[i:i + 1])
                except OSError:
                    pass
            time.sleep(0.5)
            if all(map(self.is_closed, slow)):
                break
        self.assertTrue(all(map(self.is_closed, slow)))
        self.assertGreater(time.monotonic() - start, 5)
        self.assertTrue(self.serves())

    def test_half_open_tls_peers_are_ended(self):
        keys = self.work.path / "keys"
        self.assertEqual(run([str(EPS), "keys", "--out", str(keys)]).returncode, 0)
        self.start_server("--tls-cert", str(keys / "server.crt"), "--tls-key", str(keys / "server.key"))
        silent = socket.create_connection(self.where, timeout=30)
        half = socket.create_connection(self.where, timeout=30)
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        handshaken = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        handshaken.set_alpn_protocols(["h2"])
        mute = handshaken.wrap_socket(socket.create_connection(self.where, timeout=30), server_hostname="localhost")
        start = time.monotonic()
        for one in (silent, half, mute):
            try:
                while one.recv(4096):
                    pass
            except OSError as error:
                self.assertNotIsInstance(error, TimeoutError)
        self.assertLess(time.monotonic() - start, 25 * TIME_SCALE)
        self.assertTrue(self.serves("--tls-ca", str(keys / "ca.crt")))

    def test_nonsense_ends_its_own_connection_alone(self):
        self.start_server()
        frame = lambda length, kind, flags, stream, body=b"": (  # noqa: E731
            length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body)
        for bad in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 100,
                    PREFACE + frame((1 << 24) - 1, 0, 0, 1, b"x" * 1000),  # 16 MiB, more than was agreed on
                    PREFACE + frame(5, 4, 0, 0, b"12345"),                 # SETTINGS of 5 bytes
                    PREFACE + frame(4, 1, 5, 1, b"\xff\xff\xff\xff"),      # headers that cannot be decoded
                    PREFACE + frame(3, 8, 0, 0, b"\0\0\1")):               # WINDOW_UPDATE of 3 bytes
            # The limit of the handshake ends `silent` before any connection that comes later.
            with socket.create_connection(self.where) as silent, socket.create_connection(self.where, timeout=20) as one:
                try:
                    one.sendall(bad)
                    while one.recv(4096):
                        pass
                except ConnectionError:
                    pass
                if not bad.startswith(PREFACE):
                    self.assertFalse(self.is_closed(silent), bad)
            self.assertTrue(self.serves(), bad[:60])
        self.assertIsNone(self.server.poll())

    def test_headers_that_are_known_to_end_other_builds_of_grpc(self):
        """CVE-2023-1428: certain headers, and then more than 8 KiB."""
        self.start_server()
        literal = lambda name, value: b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value  # noqa: E731
        for name in (b"te", b":scheme", b"grpclb_client_stats"):
            block = literal(b":method", b"POST") + literal(b":path", b"/x/y") + literal(name, b"x")
            block += b"".join(literal(b"x-%d" % i, b"v" * 100) for i in range(120))
            with socket.create_connection(self.where, timeout=20) as one:
                one.sendall(PREFACE + len(block).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + block)
                one.recv(4096)
            self.assertTrue(self.serves(), name)
        self.assertIsNone(self.server.poll())

    @measures_the_process
    def test_a_peer_that_sends_endless_headers_costs_about_what_it_sends(self):
        self.start_server()
        before = self.resident_bytes()
        with socket.create_connection(self.where, timeout=20) as one:
            one.sendall(PREFACE)
            body = b"\x00\x05x-abc\x7f\x80\x7f" + b"v" * (127 + 127 * 128)  # a literal header of 16 KiB
            try:
                one.sendall(b"\x00\x40\x00\x01\x00\x00\x00\x00\x01" + body[:16384].ljust(16384, b"v"))
                for _ in range(2000):  # 32 MiB of CONTINUATION
                    one.sendall(b"\x00\x40\x00\x09\x00\x00\x00\x00\x01" + b"v" * 16384)
            except (ConnectionError, TimeoutError):
                pass
        # gRPC 1.51 keeps them until they end (docs/security.md); others are served all the same.
        self.assertLess(self.resident_bytes() - before, 96 << 20)
        self.assertTrue(self.serves())
