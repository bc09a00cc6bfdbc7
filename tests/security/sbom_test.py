"""The list of dependencies for a review: complete, and of this build."""

import hashlib
import json
import re
import subprocess
import unittest

from eps_run import BIN, ROOT, SANITIZER, SystemTest, run

LISTED = ROOT / "third_party" / "debian-packages.txt"


@unittest.skipIf(SANITIZER, "it describes the programs in bin/")
class SbomTest(SystemTest):
    def setUp(self):
        super().setUp()
        done = run([str(ROOT / "third_party" / "sbom")])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.document = json.loads(done.stdout)
        self.packages = {package["SPDXID"]: package for package in self.document["packages"]}

    def test_it_is_spdx_and_every_relation_leads_somewhere(self):
        self.assertEqual(self.document["spdxVersion"], "SPDX-2.3")
        self.assertEqual(len(self.packages), len(self.document["packages"]), "an id stands twice")
        for relation in self.document["relationships"]:
            for end in (relation["spdxElementId"], relation["relatedSpdxElement"]):
                self.assertTrue(end in self.packages or end == "SPDXRef-DOCUMENT", end)

    def test_every_package_that_is_built_with_is_in_it_with_the_installed_version(self):
        group = re.search(r"\[build\]\n(.*?)\n\[", LISTED.read_text(), re.S).group(1)
        names = [line for line in (line.partition("#")[0].strip() for line in group.splitlines()) if line]
        by_name = {package["name"]: package for package in self.packages.values()}
        self.assertIn("libgrpc++-dev", names)
        for name in names:
            version = subprocess.check_output(["dpkg-query", "-W", "-f=${Version}", name], text=True)
            self.assertEqual(by_name[name]["versionInfo"], version)

    def test_it_describes_the_programs_of_this_build_and_what_they_load(self):
        for name in ("eps", "eps_server", "gpu_worker"):
            program = self.packages[f"SPDXRef-Program-{name.replace('_', '-')}"]
            digest = hashlib.sha256((BIN / name).read_bytes()).hexdigest()
            self.assertEqual(program["checksums"][0]["checksumValue"], digest)
            loads = {self.packages[r["relatedSpdxElement"]]["name"] for r in self.document["relationships"]
                     if r["spdxElementId"] == program["SPDXID"] and r["relationshipType"] == "DYNAMIC_LINK"}
            for library in ("libssl3", "libgrpc++1.51", "libc6"):
                self.assertIn(library, loads)
