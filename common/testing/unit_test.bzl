"""unit_test: a test that its folder's others are compiled and run with.

Most of what it takes to compile a test are the headers that all tests include, and what these have the compiler make: a
folder's tests in one translation unit take less than half. Their names, in anonymous namespaces too, must differ.
"""

_TAG = "unit"

def unit_test(name, srcs, deps):
    """A test that takes seconds at most, and finds nothing changed when others ran before it in the same process.

    `bazel test` of its label runs it alone; patterns (//...) leave that out, and run unit_tests.

    Args:
      name: ends in _test.
      srcs: one file.
      deps: what it needs.
    """
    native.cc_test(name = name, size = "small", srcs = srcs, tags = ["manual", _TAG], deps = deps)

def unit_tests():
    """Behind a folder's every unit_test: all of them in one program."""
    srcs, deps = [], {}
    for rule in native.existing_rules().values():
        if _TAG in rule["tags"]:
            srcs += [label[1:] for label in rule["srcs"]]
            deps.update([(label, None) for label in rule["deps"]])
    native.genrule(
        name = "all_units",
        testonly = True,
        outs = ["all_units_test.cc"],
        cmd = "printf '#include \"%s\"\\n' " + " ".join([native.package_name() + "/" + src for src in srcs]) + " >$@",
    )
    native.cc_library(
        name = "unit_sources",
        testonly = True,
        textual_hdrs = srcs,
    )
    native.cc_test(
        name = "unit_tests",
        size = "medium",
        srcs = ["all_units_test.cc"],
        deps = [":unit_sources"] + deps.keys(),
    )
