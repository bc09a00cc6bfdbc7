#include "eps_server/daemon_identity.h"

#include <filesystem>
#include <system_error>

#include "common/base/ascii_text.h"
#include "eps_server/incarnation.h"

namespace eps::server {
namespace {

// "books" of "runs/books/", and of "." there.
std::string NameOf(const std::string& folder) {
  std::error_code unknown;  // then the path is as it was
  std::filesystem::path path = std::filesystem::absolute(folder, unknown).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

DaemonIdentity NewDaemonIdentity(const std::string& out) {
  return {.incarnation = NewIncarnation(),
          .page_incarnation = NewIncarnation(),
          .folder = out,
          .run = AsciiText(NameOf(out))};
}

}  // namespace eps::server
