#ifndef EPS_COMMON_CHECKPOINT_GROW_MODEL_H_
#define EPS_COMMON_CHECKPOINT_GROW_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/spec/run_config.h"

// A run's folder, made from a checkpoint of another run: of a deeper model, `eps grow`, or of the same one, `eps branch`.
namespace eps {

// What an inserted block begins as.
enum class GrowRule {
  // The block that it is made of, with its moments and its count of updates (progressive stacking: Gong et al., ICML 2019;
  // Du et al., arXiv:2405.15319).
  kCopy,
  // The same, but for its two products into the residual stream, which are zero, of adapters beside them B alone: what
  // enters it leaves it, so that the model computes what it did (LLaMA Pro: Wu et al., arXiv:2401.02415, section 3.2). Its
  // moments are zero, and it has had no update.
  kZeroGated,
};

// A block of the grown model, counted from 0 as in the tensors' names.
struct GrownBlock {
  int64_t source = 0;     // of the model as it was
  bool inserted = false;  // false: it is that block
  GrowRule rule = GrowRule::kCopy;

  friend bool operator==(const GrownBlock&, const GrownBlock&) = default;
};

// Behind block `after` one more, made of it.
struct Insertion {
  int64_t after = 0;
  GrowRule rule = GrowRule::kCopy;
};
// "3:COPY", "11:ZERO_GATED". Errors: INVALID_ARGUMENT what is wrong, and what is wanted
absl::StatusOr<Insertion> ParseInsertion(absl::string_view text);

// Those of a model of num_layers as they are: of a branch.
std::vector<GrownBlock> SameBlocks(int64_t num_layers);
// The blocks of a model of num_layers with `insertions`, which may come several behind one block, in their order.
// Errors: INVALID_ARGUMENT there are none, or one is behind a block that the model does not have
absl::StatusOr<std::vector<GrownBlock>> InsertBlocks(int64_t num_layers, absl::Span<const Insertion> insertions);
// As many as make `layers` of them, spread evenly: each block is followed by as many as any other, or one fewer.
// Errors: INVALID_ARGUMENT `layers` is not above num_layers
absl::StatusOr<std::vector<GrownBlock>> SpreadBlocks(int64_t num_layers, int64_t layers, GrowRule rule);
// All blocks again on top of all blocks, until there are `layers` of them. Errors: as above
absl::StatusOr<std::vector<GrownBlock>> StackBlocks(int64_t num_layers, int64_t layers);

// Writes the checkpoint in `folder` with those blocks into a run's folder `out`: out/checkpoints/step-N and latest, N being
// as it was, out/run.textproto, the run with its model's layers, with which it is resumed, and what the run has kept of the
// model that it began with (model_source.h). `overrides` are laid over that RunSpec, but may not change what the checkpoint's
// tensors and position go by: data, batch, precision but for its wire_versions, the optimizer's rule, preferences but for
// their numbers, and of the model all but experts.balance, and model.freeze, with which each tensor must stay frozen, or
// trained, as what it is made of was. The checkpoint is written aside, synced and renamed, as every other; what fails leaves
// none behind. A process that is killed in the last moment may leave it
// without the RunSpec: another folder is to be given then.
//
// Memory: of the process, a piece of a file; the files' pages are the system's
// Time:   three passes over the files: sums, copy, sums; of a branch's frozen tensors two, whose file is linked where it can be
// Errors: FAILED_PRECONDITION `out` holds checkpoints, a run.textproto or a source, or is a running daemon's ·
//         INVALID_ARGUMENT what the model cannot take: kZeroGated in a BERT, more layers than there may be, a tensor that the
//         grown run's model.freeze would freeze in one of the two models alone, that model.lora.targets would have in one
//         alone, or that would come into another one of optimizer.groups, which no override changes; a kZeroGated block
//         in which nothing trains that could make its zero products more than that; --set and the field;
//         nothing would change, blocks or fields · NOT_FOUND `folder` is no checkpoint of a run · DATA_LOSS naming file and
//         field or tensor · the system's
absl::StatusOr<Manifest> GrowCheckpoint(const std::string& folder, absl::Span<const GrownBlock> blocks,
                                        const std::vector<FieldOverride>& overrides, const std::string& out);
inline constexpr char kGrownRunFile[] = "run.textproto";

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_GROW_MODEL_H_
