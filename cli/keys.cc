// eps keys: a small CA, certificates and tokens for a cluster.

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/shell_word.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/security/key_set.h"
#include "common/security/secret_file.h"

namespace eps::cli {
namespace {

// Clocks of two machines may differ by so much.
constexpr absl::Duration kClockDifference = absl::Minutes(10);

struct KeysFlags {
  std::string out;
  std::vector<std::string> hosts;
  int days = 365;
};

// A new folder, readable by its owner alone; nothing is ever written over.
absl::Status MakeFolder(const std::string& path) {
  if (DirName(path) != path) EPS_RETURN_IF_ERROR(MakeDirs(DirName(path)));
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return FileError(errno, "create", path);
  return absl::AlreadyExistsError(
      absl::StrCat("--out ", path, " is there already, and keys are never written over: give another folder"));
}

absl::Status WriteKeySet(const std::string& out, const KeySet& set) {
  const std::pair<const char*, const std::string&> files[] = {{"ca.crt", set.ca_certificate},
                                                              {"server.crt", set.server_certificate},
                                                              {"server.key", set.server_key},
                                                              {"client.crt", set.client_certificate},
                                                              {"client.key", set.client_key}};
  for (const auto& [name, content] : files) EPS_RETURN_IF_ERROR(WriteSecretFile(absl::StrCat(out, "/", name), content));
  const std::pair<const char*, std::string> tokens[] = {{"tokens", set.TokenLines()},
                                                        {"token", set.operator_token + "\n"},
                                                        {"worker.token", set.worker_token + "\n"},
                                                        {"viewer.token", set.viewer_token + "\n"}};
  for (const auto& [name, content] : tokens) {
    EPS_RETURN_IF_ERROR(WriteSecretFile(absl::StrCat(out, "/", name), content));
  }
  return SyncDirectory(out);
}

// Where workers reach the daemon, by the first host that was named. A pattern stands for many.
std::string DaemonAddress(const std::string& named) {
  const std::string host = absl::StartsWith(named, "*.") ? absl::StrCat("HOST", named.substr(1)) : named;
  return absl::StrCat(host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]"), ":7070");
}

void PrintUse(const KeysFlags& flags, absl::Time until) {
  const auto file = [&](const char* name) { return ShellWord(absl::StrCat(flags.out, "/", name)); };
  const std::string address = DaemonAddress(flags.hosts.front());
  std::printf(
      "%s holds the keys of one cluster, valid until %s. Who has client.key and a token is let in.\n\n"
      "The daemon's machine keeps ca.crt, server.crt, server.key and tokens:\n"
      "  eps_server --run RUN --out DIR --listen 0.0.0.0:7070 \\\n"
      "    --tls-cert %s --tls-key %s --tls-client-ca %s --token-file %s\n\n"
      "Each worker's machine gets ca.crt, client.crt, client.key and worker.token, over a way that nobody else reads:\n"
      "  gpu_worker --connect %s \\\n"
      "    --tls-ca %s --tls-cert %s --tls-key %s --token-file %s\n\n"
      "eps status and eps top take the same flags with %s, which may look and do no more; eps checkpoint, eps drain,\n"
      "eps resize and eps stop with %s, which may do everything.\n",
      flags.out.c_str(), absl::FormatTime("%Y-%m-%d", until, absl::UTCTimeZone()).c_str(), file("server.crt").c_str(),
      file("server.key").c_str(), file("ca.crt").c_str(), file("tokens").c_str(), ShellWord(address).c_str(),
      file("ca.crt").c_str(), file("client.crt").c_str(), file("client.key").c_str(), file("worker.token").c_str(),
      file("viewer.token").c_str(), file("token").c_str());
}

// Without a "/" or "/." at the end, by which the folder itself would be made as if it were the one around the new one.
std::string WithoutEnd(const std::string& path) {
  std::string normal = std::filesystem::path(path).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

absl::Status RunKeys(const KeysFlags& flags) {
  KeysFlags all = flags;
  all.out = WithoutEnd(all.out);
  // Commands on the daemon's own machine reach it over loopback.
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    if (std::find(all.hosts.begin(), all.hosts.end(), host) == all.hosts.end()) all.hosts.push_back(host);
  }
  const absl::Time now = absl::Now(), until = now + absl::Hours(24) * flags.days;
  // Before anything is written: a bad host leaves nothing behind.
  EPS_ASSIGN_OR_RETURN(const KeySet set,
                       MakeKeySet({.hosts = all.hosts, .from = now - kClockDifference, .until = until}));
  EPS_RETURN_IF_ERROR(MakeFolder(all.out));
  if (absl::Status status = WriteKeySet(all.out, set); !status.ok()) {
    std::error_code ignored;  // half a set would be in the way of the next try
    std::filesystem::remove_all(all.out, ignored);
    return status;
  }
  PrintUse(all, until);
  return absl::OkStatus();
}

}  // namespace

void AddKeys(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "keys", "Makes what closes a daemon to strangers: a CA, a server and a client certificate, and tokens");
  auto flags = std::make_shared<KeysFlags>();
  command->add_option("--out", flags->out, "A new folder (mode 0700) for the files (mode 0600)")
      ->type_name("DIR")
      ->check(NotEmpty())
      ->required();
  command
      ->add_option("--host", flags->hosts,
                   "A name or address by which workers reach the daemon; may be given again (localhost, 127.0.0.1 "
                   "and ::1 are always in)")
      ->type_name("NAME_OR_IP")
      ->expected(1)
      ->take_all();
  command->add_option("--days", flags->days, "How long the certificates are valid")
      ->type_name("N")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  command->footer(
      "The CA's private key is thrown away: nobody can sign further certificates, and nothing of it can be stolen.\n"
      "For another host, or before the end, make a new set: daemon and workers take it while they run\n"
      "(docs/security.md, Keys).");
  command->callback([flags, exit_code] { *exit_code = ReportStart(RunKeys(*flags)); });
}

}  // namespace eps::cli
