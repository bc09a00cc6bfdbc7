"""What a worker tells a daemon that serves a model: a proxy between the two, which passes everything on as it is."""

import importlib
import subprocess
import sys
import tempfile
from concurrent import futures

import numpy as np

from eps_run import ROOT

try:
    import grpc
except ImportError:
    grpc = None

OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def control_messages():
    """The messages of proto/control.proto."""
    if "control_pb2" not in sys.modules:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}", "control.proto"],
                           check=True)
            sys.path.insert(0, folder)
            try:
                importlib.import_module("control_pb2")
            finally:
                sys.path.remove(folder)
    return sys.modules["control_pb2"]


class WorkerTap(grpc.GenericRpcHandler if grpc else object):
    """Serves at `address` what the daemon at `daemon` serves; `logits` are the workers' answers, in order."""

    def __init__(self, daemon):
        self.logits = []
        self.messages = control_messages()
        self.channel = grpc.insecure_channel(daemon, OPTIONS)
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), [self], options=OPTIONS)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self):
        self.server.stop(None)
        self.channel.close()

    def service(self, call):  # any method; to gRPC one that is not a stream is a stream of one message
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self.forward(call.method, requests, context))

    def forward(self, method, requests, context):
        if method == "/eps.proto.Control/Events":
            requests = self.listen(requests)
        call = self.channel.stream_stream(method)(requests)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def listen(self, events):
        for event in events:
            inferred = self.messages.WorkerEvent.FromString(event).inferred
            if inferred.logits:
                self.logits.append(np.frombuffer(inferred.logits, "<f4"))
            yield event

    def generate(self, prompt, tokens):
        """The tokens that the daemon's model goes on with."""
        request = self.messages.GenerateRequest(prompt=prompt, max_tokens=tokens, temperature=1, seed=1)
        call = self.channel.unary_stream("/eps.proto.Control/Generate")(request.SerializeToString(), timeout=300)
        return [self.messages.GenerateReply.FromString(reply).token for reply in call]
