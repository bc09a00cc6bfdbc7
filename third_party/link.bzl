"""Link flags for libraries that Debian installs in the linker's own search path."""

def system_libs(libs):
    """Links each of `libs` (the name after -l) if, and only if, something in it is used."""
    return ["-Wl,--push-state,--as-needed"] + ["-l" + lib for lib in libs] + ["-Wl,--pop-state"]
