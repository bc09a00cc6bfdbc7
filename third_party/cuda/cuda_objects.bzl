"""Compiles CUDA sources with nvcc for every GPU that this project supports."""

load("@cuda_toolkit//:found.bzl", "NVCC")

# PTX for these, which is most of nvcc's work, and from it machine code for those. The least one's is kept beside: a
# driver compiles it for any GPU that comes later.
_ARCHITECTURES = {
    "80": ["compute_80", "sm_80", "sm_86", "sm_89"],
    "90a": ["sm_90a"],
    "100": ["sm_100", "sm_120"],
}

_FLAGS = [
    "-std=c++20",
    "-O3",
    "-x",
    "cu",
    "-c",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-O3,-fno-omit-frame-pointer",
] + ["-gencode=arch=compute_%s,code=[%s]" % (ptx, ",".join(codes)) for ptx, codes in _ARCHITECTURES.items()]

def _cuda_objects_impl(ctx):
    headers = depset(
        ctx.files.hdrs,
        transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps],
    )
    fused = ctx.files.fused_srcs
    objects = []
    for source in ctx.files.srcs:
        name = source.basename[:source.basename.index(".")]
        object = ctx.actions.declare_file("%s_/%s.o" % (ctx.label.name, name))
        ctx.actions.run(
            executable = NVCC,
            arguments = _FLAGS + ["-fmad=true" if source in fused else "-fmad=false"] +
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
    },
)
