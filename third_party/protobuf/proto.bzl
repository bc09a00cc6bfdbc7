"""eps_proto_library: C++ from .proto files with Debian's protoc, without a download."""

def _proto_srcs(dep):
    """The label of the .proto files behind an eps_proto_library label."""
    if dep.startswith("//") and ":" not in dep:
        dep = dep + ":" + dep.split("/")[-1]
    return dep + "_protos"

def eps_proto_library(name, srcs, deps = [], grpc = False, visibility = None, testonly = False):
    """A cc_library of the messages (and with grpc = True the services) in `srcs`.

    Paths count from the root of the tree, in .proto imports and in C++ alike: `import "proto/run_spec.proto";` and
    `#include "proto/run_spec.pb.h"`. The well-known types (google/protobuf/*.proto) need no dep. Generated headers are
    marked as system headers: our warnings do not apply to them.

    Args:
      name: the cc_library. `<name>_protos` holds the .proto files, its own and those of its deps.
      srcs: .proto files of this package.
      deps: other eps_proto_library targets whose files are imported.
      grpc: also run grpc_cpp_plugin: <file>.grpc.pb.h, with the stub's mock in <file>_mock.grpc.pb.h.
      visibility: as everywhere.
      testonly: as everywhere.
    """
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_proto_srcs(dep) for dep in deps],
        testonly = testonly,
        visibility = visibility,
    )

    hdrs = []
    sources = []
    for src in srcs:
        if not src.endswith(".proto"):
            fail("eps_proto_library %s: %s is not a .proto file" % (name, src))
        stem = src[:-len(".proto")]
        hdrs.append(stem + ".pb.h")
        sources.append(stem + ".pb.cc")
        if grpc:
            hdrs += [stem + ".grpc.pb.h", stem + "_mock.grpc.pb.h"]
            sources.append(stem + ".grpc.pb.cc")

    cmd = "set -e; protoc --proto_path=. --cpp_out=$(GENDIR)"
    if grpc:
        cmd += " --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)"
        cmd += " --grpc_out=generate_mock_code=true:$(GENDIR)"
    for src in srcs:
        cmd += " $(location %s)" % src
    cmd += "; for out in $(OUTS); do case $$out in *.h) sed -i '1i #pragma GCC system_header' $$out;; esac; done"

    native.genrule(
        name = name + "_gen",
        srcs = srcs + [name + "_protos"],
        outs = hdrs + sources,
        cmd_bash = cmd,
        testonly = testonly,
        message = "protoc",
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = hdrs,
        copts = ["-w"],
        testonly = testonly,
        visibility = visibility,
        deps = deps + (["//third_party/grpc:grpcpp"] if grpc else ["//third_party/protobuf"]),
    )
