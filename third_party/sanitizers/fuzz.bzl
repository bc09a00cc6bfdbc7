"""fuzz_test: a fuzzer of outside bytes, which is also a plain test over its seeds."""

def fuzz_test(name, srcs, deps):
    """A cc_test that replays testdata/<name>/*; built with --config=fuzz it searches for new inputs. See CONTRIBUTING.md.

    Args:
      name: ends in _fuzz. `./test` finds it by its tag.
      srcs: one file that defines LLVMFuzzerTestOneInput.
      deps: what it needs.
    """
    seeds = "testdata/" + name
    native.cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = [native.package_name() + "/" + seeds],
        data = native.glob([seeds + "/**"]),
        tags = ["fuzz"],
        deps = deps + ["//third_party/sanitizers:fuzz_main"],
    )
