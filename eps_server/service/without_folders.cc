#include "eps_server/service/without_folders.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace eps::server {
namespace {

bool IsSpace(char letter) { return absl::ascii_isspace(static_cast<unsigned char>(letter)); }
bool IsQuote(char letter) { return letter == '"' || letter == '\''; }
bool MayPrecedePath(char letter) {
  return IsSpace(letter) || IsQuote(letter) || absl::string_view("(=[:<").find(letter) != absl::string_view::npos;
}

}  // namespace

std::string WithoutFolders(absl::string_view text, absl::string_view folder) {
  const std::string own = absl::StrCat(folder, "/");
  const std::string left = folder.empty() ? std::string(text) : absl::StrReplaceAll(text, {{own, ""}});
  std::string result;
  for (size_t i = 0; i < left.size();) {
    const char begin = left[i];
    if ((begin != '/' && !IsQuote(begin)) || (i > 0 && !MayPrecedePath(left[i - 1]))) {
      result += left[i++];
      continue;
    }
    const auto is_end = [begin](char letter) { return IsQuote(begin) ? letter == begin : IsSpace(letter); };
    if (IsQuote(begin)) result += left[i++];
    size_t name = i;
    for (; i < left.size() && !is_end(left[i]); ++i) {
      if (left[i] == '/') name = i + 1;
    }
    result.append(left, name, i - name);
    if (i < left.size()) result += left[i++];  // what ends it begins nothing
  }
  return result;
}

}  // namespace eps::server
