#include "cli/verify/comparison.h"

#include <algorithm>
#include <bit>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps::cli {
namespace {

std::vector<std::string> TensorNames(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) names.push_back(tensor.name);
  }
  return names;
}

bool HasTensors(const StepDigests& step, const std::vector<std::string>& names) {
  return std::equal(step.tensors.begin(), step.tensors.end(), names.begin(), names.end(),
                    [](const TensorDigests& tensor, const std::string& name) { return tensor.name == name; });
}

bool SameBits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

Difference CompareStep(const StepDigests& was, const StepDigests& is) {
  Difference difference = {.step = was.step,
                           .loss_differs = !SameBits(was.loss, is.loss),
                           .loss_was = was.loss,
                           .loss_is = is.loss,
                           .num_tensors = was.tensors.size()};
  for (size_t i = was.tensors.size(); i-- > 0;) {  // blobs are in pull order: from the last one on is backward's
    if (was.tensors[i].gradient != is.tensors[i].gradient) difference.gradients.push_back(was.tensors[i].name);
    if (was.tensors[i].master != is.tensors[i].master) difference.masters.push_back(was.tensors[i].name);
  }
  return difference;
}

// By tensor: the layer it belongs to, or the blob that several layers share.
std::map<std::string, std::string> LayersOf(const ModelSpec& model) {
  std::map<std::string, std::string> layers;
  for (const BlobSpec& blob : model.blobs) {
    const std::string& layer = blob.uses.size() == 1 ? model.layer(blob.uses.front()).name : blob.name;
    for (const TensorSpec& tensor : blob.tensors) layers[tensor.name] = layer;
  }
  return layers;
}

// "and 11 more of 52, all of h.3", "and 25 more of 52, from h.3 down to wte", "and those of all other 51 tensors"; "no
// other tensor's" where `names` is one alone.
std::string Others(const std::vector<std::string>& names, const std::map<std::string, std::string>& layers,
                   size_t num_tensors) {
  if (names.size() == 1) return "no other tensor's";
  const std::string& first = layers.at(names.front());
  const std::string& last = layers.at(names.back());
  if (names.size() == num_tensors) return absl::StrCat("and those of all other ", num_tensors - 1, " tensors");
  return absl::StrCat(
      "and ", names.size() - 1, " more of ", num_tensors,
      first == last ? absl::StrCat(", all of ", first) : absl::StrCat(", from ", first, " down to ", last));
}

// "the forward of h.1 (vnode 0, micro-batch 1)", "the head", or no more than "forward".
std::string ForwardBegin(const ModelSpec& model, int64_t step, const ForwardDigests& was, const ForwardDigests& is) {
  bool any = false;
  for (auto at = was.lower_bound({.step = step}); at != was.end() && at->first.step == step; ++at) {
    const auto other = is.find(at->first);
    if (other == is.end() || at->first.layer < 0 || at->first.layer >= static_cast<int>(model.layers.size())) continue;
    any = true;
    if (at->second == other->second) continue;
    return absl::StrCat("the forward of ", model.layer(LayerId(at->first.layer)).name, " (vnode ", at->first.vnode,
                        ", micro-batch ", at->first.micro_batch, ")");
  }
  return any ? "the head: what comes to it has the same bits" : "forward";
}

}  // namespace

absl::StatusOr<std::optional<Difference>> Compare(const ModelSpec& model, absl::Span<const StepDigests> was,
                                                  absl::Span<const StepDigests> is) {
  if (was.size() != is.size()) {
    return absl::DataLossError(absl::StrCat("it has digests of ", is.size(), " steps, the baseline of ", was.size()));
  }
  const std::vector<std::string> names = TensorNames(model);
  for (size_t i = 0; i < was.size(); ++i) {
    if (!HasTensors(was[i], names) || !HasTensors(is[i], names)) {
      return absl::DataLossError(absl::StrCat("step ", i, ": the digests are not those of the model's tensors"));
    }
    Difference difference = CompareStep(was[i], is[i]);
    if (difference.loss_differs || !difference.gradients.empty() || !difference.masters.empty()) return difference;
  }
  return std::nullopt;
}

FirstDifference Explain(const ModelSpec& model, const Difference& difference, const ForwardDigests& was_forward,
                        const ForwardDigests& is_forward) {
  const std::map<std::string, std::string> layers = LayersOf(model);
  const std::string losses = absl::StrFormat("%.17g, not %.17g", difference.loss_is, difference.loss_was);
  if (difference.gradients.empty() && difference.masters.empty()) {
    return {.what = "loss", .rest = absl::StrCat(losses, ", and no gradient")};
  }
  FirstDifference first;
  if (difference.gradients.empty()) {
    first = {.what = "master",
             .tensor = difference.masters.front(),
             .rest = absl::StrCat(Others(difference.masters, layers, difference.num_tensors),
                                  "; no gradient differs: it begins in the update")};
  } else {
    first = {.what = "gradient",
             .tensor = difference.gradients.front(),
             .rest = Others(difference.gradients, layers, difference.num_tensors)};
    if (difference.loss_differs) {
      absl::StrAppend(&first.rest, "; the loss too (", losses, "): it begins in ",
                      ForwardBegin(model, difference.step, was_forward, is_forward));
    } else {
      absl::StrAppend(&first.rest, "; the loss is the same: it begins in the backward of ",
                      layers.at(difference.gradients.front()));
    }
    if (difference.masters.size() > difference.gradients.size()) {
      absl::StrAppend(&first.rest, "; after the update ", difference.masters.size(), " tensors differ");
    }
  }
  first.layer = layers.at(first.tensor);
  return first;
}

std::string ToString(const Difference& difference, const FirstDifference& first) {
  std::string text = absl::StrCat("step ", difference.step, ", ", first.what);
  if (!first.tensor.empty()) absl::StrAppend(&text, " of ", first.tensor, " (", first.layer, ")");
  return absl::StrCat(text, ", ", first.rest);
}

}  // namespace eps::cli
