"""fuzz_test: a fuzzer of outside bytes, which is also a plain test over its seeds and what they are changed into."""

_MUTATIONS = 10000  # in each test run: a second at most

def fuzz_test(name, srcs, deps):
    """A cc_test that replays testdata/<name>/*, and what these are changed into.

    Built with --config=fuzz it searches for new inputs. See CONTRIBUTING.md.

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
        args = select({
            "//third_party/sanitizers:is_fuzz": [],
            "//conditions:default": ["--mutations=%d" % _MUTATIONS, native.package_name() + "/" + seeds],
        }),
        data = native.glob([seeds + "/**"]),
        tags = ["fuzz"],
        deps = deps + ["//third_party/sanitizers:fuzz_main"],
    )
