"""What docs say of this tree: every flag and decision is in a page, and only who may includes whom."""

import re

from eps_run import EPS, ROOT, SystemTest, run

INCLUDE = re.compile(r'^#include "((\w+)/[^"]+)"', re.M)
# docs/architecture.md, "Who may include whom": folder, and folders beside common and proto that it may include.
MAY_INCLUDE = {
    "common": (),
    "eps_server": ("eps_server/",),
    "gpu_worker": ("gpu_worker/",),
    "cli": ("cli/", "eps_server/memory/", "gpu_worker/plan/", "gpu_worker/profile/", "gpu_worker/device_sizes.h",
            "gpu_worker/device/stream_id.h"),
}
MAY_INCLUDE_PROTOBUF = ("common/spec/", "common/choices/", "common/grpc/", "eps_server/service/", "gpu_worker/transport/",
                        "cli/")


class TreeTest(SystemTest):
    def test_every_flag_is_in_a_page(self):
        pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
        commands = run([str(EPS), "--help"]).stdout
        names = re.findall(r"^  ([a-z]+) ", commands[commands.index("Subcommands"):], re.M)
        self.assertIn("train", names)
        helps = [[str(EPS), name] for name in names]
        helps += [[str(EPS.parent / program)] for program in ("eps_server", "gpu_worker")]
        missing = []
        for command in helps:
            flags = re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]+)", run([*command, "--help"]).stdout, re.M)
            self.assertIn("--help", flags)
            missing += [f"{' '.join(command)} {flag}" for flag in sorted(set(flags) - {"--help"})
                        if not re.search(rf"{flag}(?![a-z-])", pages)]
        self.assertEqual(missing, [])

    def test_every_decision_is_listed(self):
        index = (ROOT / "docs/index.md").read_text()
        for page in (ROOT / "docs/decisions").glob("*.md"):
            self.assertIn(f"](decisions/{page.name})", index)

    def test_only_who_may_includes_whom(self):
        found = []
        for folder, others in MAY_INCLUDE.items():
            sources = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc"))
            self.assertGreater(len(sources), 50, folder)
            for source in sources:
                name = str(source.relative_to(ROOT))
                included = [header for header, top in INCLUDE.findall(source.read_text())
                            if top in (*MAY_INCLUDE, "proto")]
                found += [f"{name} includes {header}" for header in included
                          if not header.startswith(("common/", "proto/", *others))
                          or header.startswith("proto/") and not name.startswith(MAY_INCLUDE_PROTOBUF)]
        self.assertEqual(found, [])
