"""Writes the page's files as the source of StatusPageFiles: embed.py FILE..."""

import sys
from pathlib import Path

CONTENT_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
                 ".js": "text/javascript; charset=utf-8"}


def literal(line):
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def file_entry(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    name = "" if path.name == "index.html" else path.name
    if path.suffix not in CONTENT_TYPES:
        sys.exit(f"embed.py: {path}: of no type that it knows: {', '.join(CONTENT_TYPES)}")
    return "\n".join([f'    {{"/{name}", "{CONTENT_TYPES[path.suffix]}",', *(" " * 5 + literal(line) for line in lines),
                      "    },"])


print("""#include "eps_server/status_page/status_page.h"

namespace eps::server {

absl::Span<const StatusPageFile> StatusPageFiles() {
  static constexpr StatusPageFile kFiles[] = {""")
for argument in sys.argv[1:]:
    print(file_entry(Path(argument)))
print("""  };
  return kFiles;
}

}  // namespace eps::server""")
