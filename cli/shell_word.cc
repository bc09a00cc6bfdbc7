#include "cli/shell_word.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace eps::cli {
namespace {

// Also what is not ASCII: a name of letters is a word in any shell.
bool IsPlain(char c) {
  constexpr absl::string_view kPlain = "_-./:=@%+,";
  const auto byte = static_cast<unsigned char>(c);
  return absl::ascii_isalnum(byte) || byte >= 0x80 || kPlain.find(c) != absl::string_view::npos;
}

}  // namespace

std::string ShellWord(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsPlain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace eps::cli
