#ifndef EPS_CLI_VERIFY_COMPARISON_H_
#define EPS_CLI_VERIFY_COMPARISON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/verify/digest_file.h"
#include "common/model/model_spec.h"

namespace eps::cli {

// The first step in which two runs of one RunSpec have other bits, and all that differs in it. Later steps follow from
// it and are not looked at.
struct Difference {
  int64_t step = 0;
  bool loss_differs = false;
  double loss_was = 0, loss_is = 0;
  // Names in the order in which backward comes to them: from the head down, within a layer from its last tensor up.
  // Gradients are as they were summed: clipping, which would spread one wrong tensor over all, is not in them.
  std::vector<std::string> gradients;
  std::vector<std::string> masters;
  size_t num_tensors = 0;  // of the model
};

// nullopt: the same bits in every step. `was` is what is held to be right.
// Errors: DATA_LOSS the runs do not have the same steps, or not the model's tensors
absl::StatusOr<std::optional<Difference>> Compare(const ModelSpec& model, absl::Span<const StepDigests> was,
                                                  absl::Span<const StepDigests> is);

// Where a difference begins, as far as its step tells.
struct FirstDifference {
  std::string what;    // "gradient", "master" or "loss"
  std::string tensor;  // its name; "" for the loss alone
  std::string layer;   // "h.3"; of a tensor that two layers share: the blob's name, "wte"
  // The rest for people: how many more, of which layers, and what follows from that.
  std::string rest;
};
// was_forward, is_forward: of the two runs, for a difference that begins on the way there; they may be empty.
FirstDifference Explain(const ModelSpec& model, const Difference& difference, const ForwardDigests& was_forward = {},
                        const ForwardDigests& is_forward = {});

// "step 1, gradient of transformer.h.3.ln_2.weight (h.3), and 11 more of 52, all of h.3; the loss is the same: ..."
std::string ToString(const Difference& difference, const FirstDifference& first);

}  // namespace eps::cli

#endif  // EPS_CLI_VERIFY_COMPARISON_H_
