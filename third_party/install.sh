#!/bin/bash
# Installs the Debian packages of the named groups that are not there yet. See --help.
set -euo pipefail

readonly LIST="$(dirname "${BASH_SOURCE[0]}")/debian-packages.txt"

usage() {
  cat <<EOF
usage: third_party/install.sh [--dry-run] GROUP...

Installs what is missing of the groups' Debian packages, as listed in third_party/debian-packages.txt.
Groups: $(sed -n 's/^\[\(.*\)\]$/\1/p' "$LIST" | tr '\n' ' ')
  --dry-run   only say what would be installed
EOF
}

# The packages of group $1, one a line.
packages_of() {
  awk -v group="[$1]" '
    { sub(/#.*/, ""); gsub(/[ \t]/, "") }
    /^\[/ { inside = ($0 == group); next }
    inside && NF' "$LIST"
}

is_installed() {
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]] || is_provided "$1"
}

# By a package of another name, which Debian's would have to replace: a newer nodejs brings npm along.
is_provided() {
  dpkg-query -W -f='${db:Status-Status} ${Provides}\n' | awk -v name="$1" '
    $1 == "installed" { for (i = 2; i <= NF; ++i) { sub(/,$/, "", $i); if ($i == name) found = 1 } }
    END { exit !found }'
}

fail() {
  echo "install: $1" >&2
  exit 1
}

# Debian's prometheus starts a server on port 9090 of every interface when it is installed, and at each boot. Only its
# programs are used here: the server is masked until the package is there, and is left as one that is switched off.
readonly SERVER=prometheus
server_is_held=false
hold_back_server() {
  [[ -d /run/systemd/system && " ${missing[*]} " == *" $SERVER "* ]] || return 0
  [[ "$(systemctl is-enabled "$SERVER.service" 2>/dev/null)" != masked ]] || return 0  # by somebody else: left alone
  if "${as_root[@]}" systemctl --quiet mask "$SERVER.service"; then
    server_is_held=true
    trap release_server EXIT
  fi
}

release_server() {
  $server_is_held || return 0
  server_is_held=false
  if ! "${as_root[@]}" systemctl --quiet unmask "$SERVER.service"; then
    echo "install: $SERVER.service is left masked" >&2
  elif is_installed "$SERVER" && ! "${as_root[@]}" systemctl --quiet disable "$SERVER.service"; then
    echo "install: $SERVER's server will start at the next boot; systemctl disable $SERVER" >&2
  fi
}

dry_run=false
groups=()
for arg in "$@"; do
  case "$arg" in
    --dry-run) dry_run=true ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) groups+=("$arg") ;;
  esac
done
[[ ${#groups[@]} -gt 0 ]] || { usage >&2; exit 2; }

wanted=()
for group in "${groups[@]}"; do
  mapfile -t some < <(packages_of "$group")
  [[ ${#some[@]} -gt 0 ]] || fail "no group '$group' in $LIST"
  wanted+=("${some[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is not a Debian system (no dpkg-query or apt-get). Needed, from Debian 12: ${wanted[*]}"
fi

missing=()
for package in "${wanted[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "install: all ${#wanted[@]} packages of ${groups[*]} are there"
  exit 0
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  as_root=(sudo)
  if ! command -v sudo >/dev/null && ! $dry_run; then
    fail "neither root nor sudo here. Have an administrator run: apt-get install ${missing[*]}"
  fi
fi

if $dry_run; then
  echo "install: would run: ${as_root[*]:+${as_root[*]} }apt-get install ${missing[*]}"
  exit 0
fi

echo "install: installing ${#missing[@]} packages: ${missing[*]}"
"${as_root[@]}" apt-get update -q ||
  echo "install: apt-get update failed; going on with the package lists that are there" >&2
hold_back_server
status=0
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" ||
  status=$?
release_server
((status == 0)) || fail "apt-get install failed, see above. Needed, from Debian 12: ${missing[*]}"
