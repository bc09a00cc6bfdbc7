#include "common/model/name_patterns.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

template <typename Visit>
void ForEachTensor(const ModelSpec& model, const Visit& visit) {
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) visit(tensor);
  }
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}
size_t CommonSuffix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.rbegin(), a.rbegin() + most, b.rbegin()).first - a.rbegin());
}

// The name that begins and ends most like the pattern.
std::string NearestName(const ModelSpec& model, absl::string_view pattern) {
  std::string nearest;
  size_t most = 0;
  ForEachTensor(model, [&](const TensorSpec& tensor) {
    const size_t alike = CommonPrefix(pattern, tensor.name) + CommonSuffix(pattern, tensor.name);
    if (!nearest.empty() && alike <= most) return;
    most = alike;
    nearest = tensor.name;
  });
  return nearest;
}

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckBounds(const std::vector<std::string>& patterns, absl::string_view field) {
  if (patterns.size() > kMaxNamePatterns) {
    return Wrong(field, absl::StrCat(patterns.size(), " patterns, must be at most ", kMaxNamePatterns));
  }
  for (const std::string& pattern : patterns) {
    if (pattern.size() <= kMaxNamePatternBytes) continue;
    return Wrong(field,
                 absl::StrCat("a pattern of ", pattern.size(), " bytes, must be at most ", kMaxNamePatternBytes));
  }
  return absl::OkStatus();
}

}  // namespace

bool MatchesGlob(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0;
  // Where to go on if what follows the last star fits no more: the star takes one character more.
  size_t star = absl::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == absl::string_view::npos;
}

absl::StatusOr<std::map<std::string, bool>> ChooseTensors(const ModelSpec& model,
                                                          const std::vector<std::string>& patterns,
                                                          absl::string_view field,
                                                          absl::FunctionRef<bool(const TensorSpec&)> otherwise) {
  EPS_RETURN_IF_ERROR(CheckBounds(patterns, field));
  std::map<std::string, bool> chosen;
  ForEachTensor(model, [&](const TensorSpec& tensor) { chosen[tensor.name] = otherwise(tensor); });
  for (const std::string& written : patterns) {
    absl::string_view pattern = written;
    const bool chooses = !absl::ConsumePrefix(&pattern, "!");
    bool any = false;
    for (auto& [name, is_chosen] : chosen) {
      if (!MatchesGlob(pattern, name)) continue;
      any = true;
      is_chosen = chooses;
    }
    if (any) continue;
    return Wrong(field,
                 absl::StrCat("\"", written, "\" matches no tensor; names are those of an exported folder, such as ",
                              NearestName(model, pattern)));
  }
  return chosen;
}

absl::StatusOr<std::map<std::string, bool>> ChooseTensors(const ModelSpec& model,
                                                          const std::vector<std::string>& patterns,
                                                          absl::string_view field) {
  return ChooseTensors(model, patterns, field, [](const TensorSpec&) { return false; });
}

}  // namespace eps
