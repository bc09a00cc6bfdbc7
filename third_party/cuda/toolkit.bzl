"""The CUDA toolkit of the machine: $CUDA_PATH, else /usr/local/cuda. Nothing is downloaded."""

_DEFAULT_PATH = "/usr/local/cuda"
_MAJOR_VERSION = 13  # another one is as none: which driver is needed, and which names libraries have, go by it
_VERSION_IS = "#define CUDART_VERSION "

_BUILD = """
package(default_visibility = ["//visibility:public"])

# cuda_runtime_api.h, cublasLt.h, cudnn.h, nccl.h, and the runtime, linked statically: a program starts without a driver.
# The libraries are loaded when they are first used.
cc_library(
    name = "runtime",
    srcs = ["lib/libcudart_static.a"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
)
"""

_NOTHING = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "runtime")
"""

def _major_version(repository_ctx, path):
    header = path.get_child("include").get_child("cuda_runtime_api.h")
    if not header.exists:
        return None
    for line in repository_ctx.read(header).splitlines():
        if line.startswith(_VERSION_IS):
            return int(line[len(_VERSION_IS):].strip()) // 1000
    return None

def _cuda_toolkit_impl(repository_ctx):
    path = repository_ctx.path(repository_ctx.os.environ.get("CUDA_PATH") or _DEFAULT_PATH)
    nvcc = path.get_child("bin").get_child("nvcc")
    library = path.get_child("lib64").get_child("libcudart_static.a")
    version = _major_version(repository_ctx, path)
    found = nvcc.exists and library.exists and version == _MAJOR_VERSION
    if version not in [None, _MAJOR_VERSION]:
        # buildifier: disable=print
        print("%s is of CUDA %d; built without a CUDA device, which needs CUDA %d" % (path, version, _MAJOR_VERSION))
    if found:
        repository_ctx.symlink(path.get_child("include"), "include")
        repository_ctx.symlink(library, "lib/libcudart_static.a")
    repository_ctx.file("BUILD", _BUILD if found else _NOTHING)
    # Packages of their own: not every toolkit has them.
    include = path.get_child("include")
    values = {
        "CUDA_FOUND": found,
        "CUDNN_FOUND": found and include.get_child("cudnn_graph.h").exists,
        "NCCL_FOUND": found and include.get_child("nccl.h").exists,
        "NVCC": str(nvcc),
    }
    repository_ctx.file("found.bzl", "".join(["%s = %r\n" % item for item in values.items()]))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    doc = "@NAME//:found.bzl says whether there is a toolkit (CUDA_FOUND) and where its compiler is (NVCC), " +
          "and whether it has cuDNN and NCCL (CUDNN_FOUND, NCCL_FOUND); " +
          "@NAME//:runtime are its headers and its runtime.",
    environ = ["CUDA_PATH"],
    local = True,
)
