"""Compiles CUDA sources with nvcc for the GPUs that //third_party/cuda:gpus names, or all that this project supports."""

load("@cuda_toolkit//:found.bzl", "NVCC")

# Of each GPU the PTX that its machine code is made from. Making PTX is most of nvcc's work, so that some share theirs.
_PTX = {
    "80": "80",
    "86": "80",
    "89": "80",
    "90a": "90a",
    "100": "100",
    "120": "100",
}
_EVERY_GPU = "all"

_FLAGS = [
    "-std=c++20",
    "-O3",
    "-x",
    "cu",
    "-c",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-O3,-fno-omit-frame-pointer",
]

GpusInfo = provider("Which GPUs are compiled for.", fields = ["key", "flags"])

def _gpus_impl(ctx):
    value = ctx.build_setting_value
    gpus = _PTX.keys() if value == _EVERY_GPU else value.split(",")
    codes = {}
    for gpu in gpus:
        if gpu not in _PTX:
            fail("%s: there is no GPU \"%s\"; write %s, or some of %s with commas between them" %
                 (ctx.label, gpu, _EVERY_GPU, ", ".join(_PTX.keys())))
        if "sm_" + gpu in codes.get(_PTX[gpu], []):
            fail("%s: %s is there twice" % (ctx.label, gpu))
        codes.setdefault(_PTX[gpu], []).append("sm_" + gpu)
    if "sm_80" in codes.get("80", []):
        # A driver compiles it for any GPU that comes later. Never without sm_80: an sm_8x would else run what its driver
        # made of it, and be taken for one that runs nvcc's (gpu_worker/device/cuda/kernel_code.h).
        codes["80"].append("compute_80")
    return [GpusInfo(
        key = value.replace(",", "-"),
        flags = ["-gencode=arch=compute_%s,code=[%s]" % (ptx, ",".join(code)) for ptx, code in codes.items()],
    )]

gpus = rule(
    implementation = _gpus_impl,
    doc = "Of which GPUs there is machine code: all, or for instance 80 or 90a,100.",
    build_setting = config.string(flag = True),
)

def _cuda_objects_impl(ctx):
    headers = depset(
        ctx.files.hdrs,
        transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps],
    )
    fused = ctx.files.fused_srcs
    gpus = ctx.attr._gpus[GpusInfo]
    objects = []
    for source in ctx.files.srcs:
        name = source.basename[:source.basename.index(".")]
        object = ctx.actions.declare_file("%s_%s/%s.o" % (ctx.label.name, gpus.key, name))  # a folder for each list
        ctx.actions.run(
            executable = NVCC,
            arguments = _FLAGS + gpus.flags + ["-fmad=true" if source in fused else "-fmad=false"] +
                        ["-I.", "-I" + ctx.bin_dir.path, source.path, "-o", object.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [object],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = "Objects for the `srcs` of a cc_library. Only where @cuda_toolkit was found.",
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
        "fused_srcs": attr.label_list(
            doc = "Those of `srcs` in which nvcc may make one rounding of a product and a sum. In the others that is where it " +
                  "is written, and nowhere else: two kernels whose bits have to agree do not hang on how each is compiled.",
            allow_files = [".cu.cc"],
        ),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_gpus": attr.label(default = "//third_party/cuda:gpus"),
    },
)
