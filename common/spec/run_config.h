#ifndef EPS_COMMON_SPEC_RUN_CONFIG_H_
#define EPS_COMMON_SPEC_RUN_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/graph_use.h"
#include "common/spec/moment_format.h"
#include "common/spec/preference_config.h"
#include "common/tensor/dtype.h"

namespace eps {

// The run as plain structs: checked, defaults filled in, paths absolute. Made from a RunSpec by
// LoadRunConfig; nothing above common/spec sees the proto. Field meanings: proto/run_spec.proto.

// What data.path holds, or is made into: bytes, ids, or text for a model's tokenizer.
enum class TokenForm { kBytes, kTokenFile, kModel };
enum class DocumentMode { kJoined, kPacked, kPadded };
enum class DataOrder { kSequential, kShuffled };
enum class OptimizerRule { kAdamW, kSgd, kLion, kLamb, kAdam };
enum class ScheduleDecay { kConstant, kLinear, kCosine, kOneMinusSqrt, kInverseSqrt };
enum class ClipMode { kNone, kExact, kPerBlob, kLagged };
enum class InnerPolicy { kAuto, kKeep, kSwap, kRecompute };
enum class BoundaryPolicy { kAuto, kHost, kDevice };
enum class TransportChoice { kAuto, kGrpc, kSharedMemory };

// What a model learns to say of a sample.
enum class Objective {
  kNextToken,     // of each token, the one behind it
  kMaskedTokens,  // those that were masked
  kClasses,       // the sample's class
  kPreferences,   // of two answers the one that was preferred (PreferenceConfig)
};

// Which tokens are masked: proto/run_spec.proto's Mask.
struct MaskConfig {
  double share = 0.15;
  int32_t token = -1;  // -1: that of the tokenizer
  std::vector<int32_t> never;

  friend bool operator==(const MaskConfig&, const MaskConfig&) = default;
};

struct DataConfig {
  // Of the RunSpec, for errors: where the fields below stand, and where `path` does.
  std::string field = "data", path_field = "data.path";
  std::string path;
  std::string made_from;  // the file whose tokens were written to `path` at the run's start, for errors; "": none
  bool is_jsonl = false;
  bool is_table = false;  // of texts and their classes
  TokenForm tokenizer = TokenForm::kBytes;
  int token_bytes = 2;                 // kTokenFile only: 2 or 4
  std::string tokenizer_path;          // kModel only: a folder or file
  std::string chat_template = "auto";  // is_jsonl only
  bool counts_all = false;             // is_jsonl only: not the answers alone
  bool specials_as_tokens = false;     // texts and conversations that are tokenized
  bool skips_bad_lines = false;        // is_jsonl and is_table only
  DocumentMode documents = DocumentMode::kJoined;
  bool keeps_uncounted = false;  // documents only: what of them stands in a sample and has nothing that is counted
  DataOrder order = DataOrder::kSequential;
  uint64_t seed = 0;
  MaskConfig mask;                                            // Objective::kMaskedTokens only
  std::string text_column, second_text_column, label_column;  // is_table only
  bool has_table_header = true;                               // is_table only

  const std::string& users_path() const { return made_from.empty() ? path : made_from; }
  // For the middle of a sentence. From 0, as the index of a token file numbers them, or from 1 in the user's own file.
  std::string DocumentName(int64_t document) const;
  // Whether a token file has to be made of it first.
  bool needs_tokenizing() const { return is_jsonl || is_table || tokenizer == TokenForm::kModel; }
  // Whether a sample consists of documents that are seen alone; padding is one, too.
  bool has_documents() const { return documents != DocumentMode::kJoined; }

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

// One of several files that samples are taken of.
struct DataSource {
  DataConfig data;  // but for order and seed, which are those of RunConfig::data
  double weight = 1;

  friend bool operator==(const DataSource&, const DataSource&) = default;
};

struct BatchConfig {
  int virtual_nodes = 1;  // V
  int micro_batches = 1;  // per vnode
  int micro_batch = 1;    // sequences that a layer runs at once
  // Tokens of a micro-batch that a block's feed-forward part computes at a time; 0: all. Part of what makes a run's bits.
  int64_t feed_forward_tile = 0;

  int64_t sequences_per_vnode() const { return int64_t{micro_batches} * micro_batch; }
  int64_t sequences_per_step() const { return virtual_nodes * sequences_per_vnode(); }

  friend bool operator==(const BatchConfig&, const BatchConfig&) = default;
};

// Tensors with a learning rate or a weight decay of their own (common/spec/parameter_groups.h).
struct ParameterGroupConfig {
  std::vector<std::string> tensors;  // patterns over their names
  double learning_rate_scale = 1;
  std::optional<double> weight_decay = std::nullopt;  // of all of them; none: the rule's

  friend bool operator==(const ParameterGroupConfig&, const ParameterGroupConfig&) = default;
};

struct OptimizerConfig {
  OptimizerRule rule = OptimizerRule::kAdamW;
  double beta1 = 0.9, beta2 = 0.999;  // all but SGD
  double eps = 1e-8;                  // AdamW, Adam, LAMB
  double max_trust_ratio = 0x1p64;    // LAMB; beyond it steps would leave fp32
  double momentum = 0;                // SGD
  double weight_decay = 0;            // of tensors of two or more dimensions that no group gives another
  std::vector<ParameterGroupConfig> groups;
  double peak_learning_rate = 0;
  double final_learning_rate = 0;
  int64_t warmup_steps = 0;
  ScheduleDecay decay = ScheduleDecay::kConstant;
  int64_t decay_steps = 0;  // 0: all that the warm-up leaves
  ClipMode clip = ClipMode::kNone;
  double clip_norm = 0;

  // Rules with AdamW's two moments and its bias correction.
  bool has_adam_moments() const {
    return rule == OptimizerRule::kAdamW || rule == OptimizerRule::kAdam || rule == OptimizerRule::kLamb;
  }
  // Values that the rule keeps of each parameter: Adam's m and v, the momentum of SGD and Lion.
  int num_moments() const {
    if (has_adam_moments()) return 2;
    return rule == OptimizerRule::kLion || momentum != 0 ? 1 : 0;
  }

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

// What the wire form lacks of an fp32 master, of each element: 16 bits beside bf16 (common/numeric/bf16.h), the master itself
// beside fp16.
constexpr int64_t MasterRestBytes(Dtype wire) { return wire == Dtype::kBf16 ? 2 : wire == Dtype::kF16 ? 4 : 0; }

struct PrecisionConfig {
  Dtype wire = Dtype::kBf16;
  Dtype gradients = Dtype::kBf16;
  MomentFormat moments = MomentFormat::kFp32;
  int wire_versions = 2;  // of the weights, that the daemon keeps
  ChoiceRule algorithms = ChoiceRule::kFirst;
  bool tf32 = false;                                       // FP32 wire only
  bool plain_attention = false;                            // of GPUs
  std::optional<LossScaleRule> loss_scale = std::nullopt;  // exactly where wire or gradients is FP16

  friend bool operator==(const PrecisionConfig&, const PrecisionConfig&) = default;
};

struct CheckpointConfig {
  int64_t every_steps = 0;       // 0: none but the last
  int keep = 2;                  // newest checkpoints that stay; >= 1
  int64_t buffer_bytes = 0;      // copied and not yet written, at most; 0: eps_server/checkpoint/capture_size.h decides
  bool last = true;              // one after the last step
  int64_t keep_every_steps = 0;  // those of its multiples stay, too; 0: none; else a multiple of every_steps

  bool keeps_for_good(int64_t step) const { return keep_every_steps > 0 && step % keep_every_steps == 0; }
  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

// Where what of the state updates alone read lies. Changes no bits.
struct OptimizerOffloadConfig {
  std::string path;          // a folder, in which it lies in a file; "": all of it in memory
  int64_t memory_bytes = 0;  // that stay in memory all the same

  bool is_on() const { return !path.empty(); }
  friend bool operator==(const OptimizerOffloadConfig&, const OptimizerOffloadConfig&) = default;
};

// How many vnodes of a step each worker computes. Changes no bits.
enum class VnodeShares {
  kBySpeed,  // such that all are done at about the same time
  kEven,
};

// Of what device models workers may be that compute in a run, over all its sittings.
enum class DeviceModelRule {
  kAny,
  kOne,  // bits are promised for one
};

struct RelayConfig {
  InnerPolicy inner = InnerPolicy::kAuto;
  BoundaryPolicy boundaries = BoundaryPolicy::kAuto;
  bool resident = false;
  int weight_slots = 0;               // 0: two, and as many more as the planner finds of use
  int group_members = 1;              // at most; 1: no groups
  GraphUse graphs = GraphUse::kAuto;  // of cuda devices
  VnodeShares vnode_shares = VnodeShares::kBySpeed;
  DeviceModelRule device_models = DeviceModelRule::kAny;
  std::optional<int> depth_first_blocks =
      std::nullopt;  // or all that have a backward; none: as the planner finds of use

  friend bool operator==(const RelayConfig&, const RelayConfig&) = default;
};

struct EvaluationConfig {
  std::string path;         // in the form of data.path; "": of what is held out
  double held_out = 0;      // share of data's samples; 0: of `path`
  int64_t every_steps = 0;  // 0: nothing is evaluated
  int64_t samples = 0;      // at most; 0: all
  bool at_start = false;    // before the first step, too

  bool is_on() const { return every_steps > 0; }
  // Whether the weights of `version` are evaluated, in a run of `steps`.
  bool IsDue(int64_t version, int64_t steps) const {
    if (version == 0) return is_on() && at_start;
    return is_on() && (version % every_steps == 0 || version == steps);
  }
  // How many of a source's samples are not trained on: the last ones. 0 of a single one, which cannot be divided.
  int64_t HeldOut(int64_t num_samples) const;

  friend bool operator==(const EvaluationConfig&, const EvaluationConfig&) = default;
};

struct RunConfig {
  ModelConfig model;
  std::string model_from;  // folder the weights come from; empty: initialised from model.init_seed
  DataConfig data;         // with `sources`: no path, order and seed of all, and documents where any of them has some
  std::vector<DataSource> sources;  // in place of data.path; empty: of that alone
  BatchConfig batch;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  RelayConfig relay;
  TransportChoice transport = TransportChoice::kAuto;
  CheckpointConfig checkpoint;
  int64_t steps = 0;
  EvaluationConfig evaluation;
  LayerDropConfig layer_drop;  // depth.drop
  OptimizerOffloadConfig optimizer_offload;
  PreferenceConfig preferences;

  // The data of evaluation.path.
  DataConfig evaluation_data() const;
  // The files that samples are taken of: `sources`, or `data` alone.
  std::vector<DataSource> all_sources() const;
  // Whether bytes are the tokens of all of them.
  bool is_of_bytes() const;
  // Whether no weight is updated before the whole step's gradient is known to be finite, and its norm.
  bool defers_updates() const { return optimizer.clip == ClipMode::kExact || precision.loss_scale.has_value(); }
  // Whether rows of the token table that no token of a step reads are updated before the embedding's gradient is there: no
  // norm decides before, the version that is read is not overwritten, and no disk has to read the state once more.
  bool updates_unread_rows_early() const {
    return !defers_updates() && optimizer.clip != ClipMode::kPerBlob && optimizer.rule != OptimizerRule::kLamb &&
           precision.wire_versions == 2 && !optimizer_offload.is_on();
  }
  // Whether a step's weights stay as they are until all of it is in, so that a part of it can be run again.
  bool keeps_weights_of_step() const { return precision.wire_versions > 1 || defers_updates(); }
  Objective objective() const {
    if (preferences.is_on()) return Objective::kPreferences;
    if (model.family != ModelFamily::kBert) return Objective::kNextToken;
    return model.is_classifier() ? Objective::kClasses : Objective::kMaskedTokens;
  }
  // That one of SampleSource's samples has.
  int sequences_per_sample() const { return preferences.is_on() ? 2 : 1; }
  int64_t samples_per_step() const { return batch.sequences_per_step() / sequences_per_sample(); }
  int64_t tokens_per_step() const { return batch.sequences_per_step() * model.context; }

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

// One `--set field.path=value`; a plain value for a scalar, the enum's name for an enum.
struct FieldOverride {
  std::string path;
  std::string value;
};
// What is typed behind --set. Errors: INVALID_ARGUMENT no "=", or nothing in front of it
absl::StatusOr<FieldOverride> ParseFieldOverride(const std::string& text);

// Those that are paths, as they are seen from this process's folder, made absolute: evaluation.path, data.path,
// data.tokenizer_path, optimizer_offload.path, and those of sources. Errors: NOT_FOUND this process's folder is gone
absl::StatusOr<std::vector<FieldOverride>> WithPathsFromHere(std::vector<FieldOverride> overrides);

// Reads a RunSpec (.textproto or .json, by the file's ending), applies the overrides, reads the
// model's config.json if `model.from` is given, fills defaults, and checks every value.
//
// Paths:  relative ones are taken from the folder of `path`, and are absolute in the result
// Errors: NOT_FOUND no such file · INVALID_ARGUMENT naming the file, the line where known, the
//         field, the value found and what is allowed
absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<FieldOverride>& overrides);
// The same of a run that is gone on with: what the RunSpec leaves open of a data file is as `was` has it, and what is gone
// of the folder model.from, its config.json or its tokenizer, is taken from the folder `kept` ("": there is none).
// Errors: NOT_FOUND naming both folders: neither has a config.json
absl::StatusOr<RunConfig> LoadResumedRunConfig(const std::string& path, const std::vector<FieldOverride>& overrides,
                                               const RunConfig& was, const std::string& kept = "");

// The same of a run that is only planned: the model of a Hugging Face config.json, everything else as `overrides` say or by
// default; its data is named, and is nowhere. A context of more than kPlannedContext tokens is cut to that unless told.
// model: the file, which is called config.json, or its folder
// Errors: NOT_FOUND no such file · LoadRunConfig's
inline constexpr int64_t kPlannedContext = 4096;
absl::StatusOr<RunConfig> RunConfigOfModel(const std::string& model, const std::vector<FieldOverride>& overrides);

// The run as canonical text, with the model explicit and every default written out: what the daemon
// sends to workers and keeps in a checkpoint. ParseRunConfig(SerializeRunConfig(c)) == c, for every
// c that LoadRunConfig gives; ParseRunConfig reads no file, checks every value again, and its
// errors are LoadRunConfig's.
std::string SerializeRunConfig(const RunConfig& config);
absl::StatusOr<RunConfig> ParseRunConfig(const std::string& text);

// `config` with the overrides laid over it, checked as a whole again. Paths in them are absolute.
// Errors: INVALID_ARGUMENT naming the field, the value found and what is allowed
absl::StatusOr<RunConfig> WithOverrides(const RunConfig& config, const std::vector<FieldOverride>& overrides);

// Whether so many workers have something to do, each a vnode at least; `flag` is what asks for them.
// Errors: INVALID_ARGUMENT naming the flag and batch.virtual_nodes: there are more of them
absl::Status CheckWorkers(absl::string_view flag, int workers, const BatchConfig& batch);

// The fields whose change would change bits, as "optimizer.schedule.peak: was 0.0006, now 0.001";
// empty when `now` may resume `was`. relay, transport, checkpoint, optimizer_offload and precision.wire_versions change no
// bits and may differ, and of evaluation everything but held_out.
// steps may not: with the same steps done, the schedule would be another one.
std::vector<std::string> DifferencesThatMatter(const RunConfig& was, const RunConfig& now);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_RUN_CONFIG_H_
