#include "cli/log_notes.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps::cli {
namespace {

constexpr absl::string_view kShownEvents[] = {"INFO data_tokenized ", "INFO data_documents ", "INFO kept_source_taken ",
                                              "INFO worker_leaves ", "INFO worker_drained "};

bool IsWarning(absl::string_view entry) {
  return absl::StartsWith(entry, "WARNING ") || absl::StartsWith(entry, "ERROR ");
}

bool IsShown(absl::string_view entry) {
  for (const absl::string_view event : kShownEvents) {
    if (absl::StartsWith(entry, event)) return true;
  }
  return IsWarning(entry);
}

}  // namespace

LogNotes::LogNotes(const std::string& path, std::streamoff start_byte) : path_(path), log_(path) {
  log_.seekg(start_byte);
}

std::vector<std::string> LogNotes::Next() {
  std::vector<std::string> notes;
  log_.clear();  // what it ended at the call before may have grown since
  for (std::string line; std::getline(log_, line);) {
    begun_ += line;
    if (log_.eof()) break;
    const std::string whole = std::exchange(begun_, "");
    const std::string entry = whole.substr(whole.find(' ') + 1);  // behind its time
    if (!IsShown(entry)) continue;
    const bool is_warning = IsWarning(entry);
    if (const int count = ++(is_warning ? warnings_ : others_); count > kMostNotes) {
      const absl::string_view what = is_warning ? "warnings" : "lines like these";
      if (count == kMostNotes + 1) notes.push_back(absl::StrCat("eps: more ", what, " are in ", path_));
      continue;
    }
    notes.push_back(absl::StrCat("eps_server: ", entry));
  }
  return notes;
}

}  // namespace eps::cli
