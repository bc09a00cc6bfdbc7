#include "gpu_worker/relay/assignment_check.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/model/layer_drop.h"

namespace eps::worker {
namespace {

std::string ToText(const std::vector<LayerId>& layers) {
  return absl::StrCat(
      "{", absl::StrJoin(layers, ", ", [](std::string* out, LayerId layer) { absl::StrAppend(out, layer.value()); }),
      "}");
}

absl::Status CheckBatch(const VnodeBatch& batch, const ModelSpec& model, const RunConfig& run,
                        const LayerShape& shape) {
  const size_t want = static_cast<size_t>(run.batch.sequences_per_vnode() * model.config.context);
  const size_t want_labels = static_cast<size_t>(run.batch.sequences_per_vnode() * model.config.labels_per_sample());
  if (batch.tokens.size() != want || batch.labels.size() != want_labels) {
    return absl::InvalidArgumentError(absl::StrCat(batch.tokens.size(), " tokens and ", batch.labels.size(),
                                                   " labels, want ", want, " and ", want_labels));
  }
  if (!batch.types.empty() && (!shape.has_types || batch.types.size() != want)) {
    return absl::InvalidArgumentError(
        absl::StrCat(batch.types.size(), " types of tokens, want ", shape.has_types ? want : 0));
  }
  if (batch.document_first.size() != (shape.has_documents ? want : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(batch.document_first.size(), " tokens with documents, want ", shape.has_documents ? want : 0));
  }
  EPS_RETURN_IF_ERROR(DocumentEnds(batch.document_first, model.config.context).status());
  for (size_t i = 0; i < want; ++i) {
    if (!batch.types.empty() && (batch.types[i] < 0 || batch.types[i] >= model.config.num_types)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, ": type ", batch.types[i], ", the model has ", model.config.num_types));
    }
    if (batch.tokens[i] < 0 || batch.tokens[i] >= model.config.vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, ": id ", batch.tokens[i], ", the vocabulary has ", model.config.vocab));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAssignment(const Assignment& assignment, const ModelSpec& model, const RunConfig& run,
                             const LayerShape& shape) {
  if (assignment.counted_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("counted tokens ", assignment.counted_tokens, ", must be >= 0"));
  }
  // Both know it from the run: who sees it otherwise is another program, and would train another model.
  const std::vector<LayerId> dropped = assignment.evaluation_round.has_value()
                                           ? std::vector<LayerId>()
                                           : LayerDrop(model, run.layer_drop).DroppedIn(assignment.step);
  if (assignment.dropped != dropped) {
    return absl::InvalidArgumentError(absl::StrCat("dropped layers: the daemon says ", ToText(assignment.dropped),
                                                   ", depth.drop of the run gives ", ToText(dropped),
                                                   "; use worker and daemon of one version"));
  }
  int last = -1;
  for (const VnodeBatch& batch : assignment.vnodes) {
    if (batch.vnode <= last || batch.vnode >= run.batch.virtual_nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("vnode ", batch.vnode, " after ", last, ": must rise, below ", run.batch.virtual_nodes));
    }
    last = batch.vnode;
    EPS_RETURN_IF_ERROR_WITH(CheckBatch(batch, model, run, shape), absl::StrCat("vnode ", batch.vnode));
  }
  return absl::OkStatus();
}

}  // namespace eps::worker
