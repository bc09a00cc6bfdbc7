#include "common/model/freeze.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/model/model_builder.h"

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

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("model.freeze: ", what)); }

absl::Status CheckBounds(const std::vector<std::string>& patterns) {
  if (patterns.size() > kMaxFreezePatterns) {
    return Wrong(absl::StrCat(patterns.size(), " patterns, must be at most ", kMaxFreezePatterns));
  }
  for (const std::string& pattern : patterns) {
    if (pattern.size() <= kMaxFreezePatternBytes) continue;
    return Wrong(absl::StrCat("a pattern of ", pattern.size(), " bytes, must be at most ", kMaxFreezePatternBytes));
  }
  return absl::OkStatus();
}

using FrozenByName = std::map<std::string, bool>;

absl::StatusOr<FrozenByName> Choose(const ModelSpec& model, const std::vector<std::string>& patterns) {
  FrozenByName frozen;
  ForEachTensor(model, [&](const TensorSpec& tensor) { frozen[tensor.name] = false; });
  for (const std::string& written : patterns) {
    absl::string_view pattern = written;
    const bool freezes = !absl::ConsumePrefix(&pattern, "!");
    bool any = false;
    for (auto& [name, is_frozen] : frozen) {
      if (!MatchesGlob(pattern, name)) continue;
      any = true;
      is_frozen = freezes;
    }
    if (any) continue;
    return Wrong(absl::StrCat("\"", written, "\" matches no tensor; names are those of an exported folder, such as ",
                              NearestName(model, pattern)));
  }
  if (std::all_of(frozen.begin(), frozen.end(), [](const auto& tensor) { return tensor.second; })) {
    return Wrong("every tensor is frozen: nothing is left to train");
  }
  return frozen;
}

// The tensors of `blob` that are frozen, or the others, one behind the other.
BlobSpec PartOfBlob(const BlobSpec& blob, const FrozenByName& frozen, bool of_frozen) {
  BlobSpec part;
  part.frozen = of_frozen;
  for (const TensorSpec& tensor : blob.tensors) {
    if (frozen.at(tensor.name) == of_frozen) part.tensors.push_back(tensor);
  }
  const bool is_whole = part.tensors.size() == blob.tensors.size();
  part.name = is_whole || !of_frozen ? blob.name : absl::StrCat(blob.name, ".frozen");
  if (of_frozen) {
    std::stable_partition(part.tensors.begin(), part.tensors.end(),
                          [](const TensorSpec& tensor) { return tensor.shape.size() < 2; });
  }
  for (TensorSpec& tensor : part.tensors) {
    tensor.offset_elems = part.num_elems;
    part.num_elems = RoundUp(part.num_elems + tensor.num_elems(), kTensorAlignElems);
  }
  return part;
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

absl::StatusOr<ModelSpec> Freeze(ModelSpec model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return model;
  EPS_RETURN_IF_ERROR(CheckBounds(patterns));
  EPS_ASSIGN_OR_RETURN(const FrozenByName frozen, Choose(model, patterns));
  ModelBuilder builder(model.config);
  std::vector<std::vector<BlobId>> trained(model.blobs.size()), kept(model.blobs.size());  // by blob: what it became
  for (const BlobSpec& blob : model.blobs) {
    for (const bool of_frozen : {false, true}) {
      BlobSpec part = PartOfBlob(blob, frozen, of_frozen);
      if (part.tensors.empty()) continue;
      (of_frozen ? kept : trained)[static_cast<size_t>(blob.id.value())].push_back(builder.AddBlob(std::move(part)));
    }
  }
  for (const LayerSpec& layer : model.layers) {
    std::vector<BlobId> blobs;
    for (const auto& of_kind : {trained, kept}) {
      for (const BlobUse& use : layer.blobs) {
        const std::vector<BlobId>& became = of_kind[static_cast<size_t>(use.blob.value())];
        blobs.insert(blobs.end(), became.begin(), became.end());
      }
    }
    builder.AddLayer(layer.kind, layer.name, blobs);
  }
  return builder.Build();
}

}  // namespace eps
