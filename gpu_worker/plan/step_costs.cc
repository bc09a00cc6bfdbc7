#include "gpu_worker/plan/step_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/schedule/pushed_nodes.h"
#include "common/spec/moment_format.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/layer_operations.h"

namespace eps::worker {
namespace {

// Whether all is there that the model asks for: of a layer below the lowest that trained when it was measured there is
// no backward.
bool IsWhole(const LayerTimes& times, const ModelSpec& model) {
  const bool has_backward = std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
    return layer.kind == times.kind && layer.id >= model.lowest_trainable_layer();
  });
  return times.forward_seconds > 0 && (!has_backward || times.backward_seconds > 0);
}

// How unlike two shapes are, to choose whose times are scaled: by the width first, as rates change more with the shape
// of a product than with the number of its rows.
double Distance(const LayerShape& a, const LayerShape& b) {
  constexpr double kOfRows = 0.5;     // beside 1 of the width
  constexpr double kOtherDtype = 10;  // farther than e^10 = 22,000 times the width: another dtype's rates come last
  constexpr double kOtherParts = 5;   // experts, of which one has them: their rows and weights are another balance
  const auto ratio = [](int64_t x, int64_t y) {
    return std::abs(
        std::log(static_cast<double>(std::max<int64_t>(x, 1)) / static_cast<double>(std::max<int64_t>(y, 1))));
  };
  return ratio(a.C, b.C) + kOfRows * ratio(a.M(), b.M()) + (a.act_bytes() == b.act_bytes() ? 0 : kOtherDtype) +
         (a.experts.are_on() == b.experts.are_on() ? 0 : kOtherParts);
}

// As operations and bytes together: a byte is as dear as ten operations, within a factor of three of what cpus and GPUs
// give.
double Scaled(double seconds, double operations, double of_operations, double bytes, double of_bytes) {
  constexpr double kOperationsPerByte = 10;
  const double weight = operations + kOperationsPerByte * bytes;
  const double of_weight = of_operations + kOperationsPerByte * of_bytes;
  return of_weight > 0 ? seconds * weight / of_weight : 0;
}

LayerTimes TimesOf(const Profile& profile, const ModelSpec& model, LayerKind kind, const LayerShape& shape) {
  const auto rank = [&](const LayerTimes& times) {
    return std::pair(!IsWhole(times, model), Distance(times.shape, shape));
  };
  const LayerTimes* nearest = nullptr;
  for (const LayerTimes& times : profile.layers) {
    if (times.kind != kind || times.forward_seconds <= 0) continue;
    if (IsWhole(times, model) && HaveSameTimes(kind, times.shape, shape)) return times;
    if (nearest == nullptr || rank(times) < rank(*nearest)) nearest = &times;
  }
  LayerTimes times{.kind = kind, .shape = shape};
  if (nearest == nullptr) return times;
  const LayerOperations to = OperationsOf(kind, shape), from = OperationsOf(kind, nearest->shape);
  times.forward_seconds = Scaled(nearest->forward_seconds, to.forward, from.forward, to.bytes, from.bytes);
  times.recompute_seconds = Scaled(nearest->recompute_seconds, to.recompute, from.recompute, to.bytes, from.bytes);
  // Where none was measured, as the layer was frozen then: as many operations a second as its forward has.
  times.backward_seconds = nearest->backward_seconds > 0
                               ? Scaled(nearest->backward_seconds, to.backward, from.backward, to.bytes, from.bytes)
                               : Scaled(nearest->forward_seconds, to.backward, from.forward, to.bytes, from.bytes);
  return times;
}

// Of the update of one element: its wire form, rest and moments, read and written; contributions are read beside. LAMB
// reads the master and the moments once more before.
double UpdateBytes(const RunConfig& run) {
  const double weights = run.precision.wire == Dtype::kF16 ? 10 : 8;
  const double moments = static_cast<double>(run.optimizer.num_moments()) *
                         static_cast<double>(MomentBytes(run.precision.moments, kTensorAlignElems)) / kTensorAlignElems;
  const bool is_lamb = run.optimizer.rule == OptimizerRule::kLamb;
  const double held = run.defers_updates() ? (is_lamb ? 8 : 4) : 0;  // the sum, in fp32
  return weights + 2 * moments + (is_lamb ? 4 + moments : 0) + held;
}

// Of the update of each blob, in pull order: what a disk reads and writes of its state (optimizer_offload). What stays in
// memory is that of the first blobs.
std::vector<double> DiskBytes(const ModelSpec& model, const RunConfig& run) {
  std::vector<double> disk_bytes(model.blobs.size());
  if (!run.optimizer_offload.is_on()) return disk_bytes;
  const auto rest = static_cast<double>(MasterRestBytes(run.precision.wire));
  const double moments = static_cast<double>(run.optimizer.num_moments()) *
                         static_cast<double>(MomentBytes(run.precision.moments, kTensorAlignElems)) / kTensorAlignElems;
  // LAMB reads them once more before.
  const double passes = run.optimizer.rule == OptimizerRule::kLamb ? 3 : 2;
  auto room = static_cast<double>(run.optimizer_offload.memory_bytes);
  for (size_t b = 0; b < model.blobs.size(); ++b) {
    if (model.blobs[b].frozen) continue;
    const double bytes = static_cast<double>(model.blobs[b].num_elems) * (rest + moments);
    const double resident = std::min(bytes, room);
    room -= resident;
    disk_bytes[b] = passes * (bytes - resident);
  }
  return disk_bytes;
}

// How often contributions are read: where norms are of a blob, once for each before the update. Held ones are read for
// their sum alone.
int ReadsOfContributions(const RunConfig& run) {
  if (run.defers_updates()) return 1;
  return 1 + (run.optimizer.clip == ClipMode::kPerBlob ? 1 : 0) + (run.optimizer.rule == OptimizerRule::kLamb ? 1 : 0);
}

// The share of a vocabulary that does not occur among `tokens` of a text. Frequencies are Zipf's and Mandelbrot's,
// 1 / (rank + 2.7), as those of words in English are; ranks within 1/64 of each other are taken together.
double UnreadShare(int64_t vocab, double tokens) {
  constexpr double kMandelbrotShift = 2.7;
  constexpr int64_t kRanksPerGroup = 64;
  const auto for_ranks = [&](const auto& visit) {  // visit(how many, a frequency)
    for (int64_t rank = 1, width = 1; rank <= vocab; rank += width) {
      width = std::min(std::max<int64_t>(1, rank / kRanksPerGroup), vocab - rank + 1);
      const double middle = static_cast<double>(rank) + 0.5 * static_cast<double>(width - 1);
      visit(static_cast<double>(width), 1 / (middle + kMandelbrotShift));
    }
  };
  double all = 0, unread = 0;
  for_ranks([&](double count, double frequency) { all += count * frequency; });
  for_ranks([&](double count, double frequency) { unread += count * std::exp(-tokens * frequency / all); });
  return unread / static_cast<double>(vocab);
}

// Of a blob's update, the part that need not wait for the embedding's gradient (eps_server/optimizer/unread_rows.h):
// rows of the token table that no token of a step reads. Not counted: that contributions to the table are then read
// once more, which of most chunks lie in a cache still.
double EarlyShare(const BlobSpec& blob, const ModelSpec& model, const RunConfig& run) {
  if (blob.frozen || !run.updates_unread_rows_early()) return 0;
  double elems = 0;
  for (const TensorSpec& tensor : blob.tensors) {
    if (tensor.role == TensorRole::kTokenTable) elems += static_cast<double>(tensor.num_elems());
  }
  if (elems == 0) return 0;
  const double unread = UnreadShare(model.config.vocab, static_cast<double>(run.tokens_per_step()));
  // As the daemon has it of each chunk, with one contribution of each layer: its gain, and what it reads once more.
  const auto contribution = static_cast<double>(SizeOf(run.precision.gradients));
  const bool pays = unread * UpdateBytes(run) > (1 - unread) * 2 * contribution + unread * contribution;
  return pays ? unread * elems / static_cast<double>(blob.num_elems) : 0;
}

// Of one element of what a group pushes: sums, in fp32.
double BytesOfRoots(const GroupParts& group) { return 4 * static_cast<double>(group.roots().size()); }

// The seconds of each step, by its kind.
class StepSeconds {
 public:
  StepSeconds(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
              LinkKind link, const GroupParts* group)
      : profile_(profile),
        model_(model),
        link_(link),
        group_(group != nullptr ? std::optional(*group) : std::nullopt),
        shape_(MakeLayerShape(model, run, kernels.compute_dtype)),
        gradients_(run.precision.gradients) {
    for (size_t i = 0; i < kLayerKinds.size(); ++i) times_[i] = TimesOf(profile, model, kLayerKinds[i], shape_);
    for (const LayerSpec& layer : model.layers) {
      const LayerSizes sizes = SizesOf(model, layer, shape_, kernels);
      sizes_.push_back(sizes);
      inner_bytes_ = std::max(inner_bytes_, sizes.inner_bytes);
    }
    const LayerOperations head = OperationsOf(LayerKind::kHead, shape_);
    second_logits_seconds_ =
        Scaled(TimesOfLayer(model.layers.back()).forward_seconds, head.recompute, head.forward, 0, head.bytes);
  }

  double operator()(const RelayStep& step) const {
    const LayerSpec& layer = model_.layer(step.layer);
    const LayerSizes& sizes = sizes_[static_cast<size_t>(step.layer.value())];
    const LayerTimes& times = TimesOfLayer(layer);
    const auto trained = static_cast<double>(layer.trainable_elems);
    switch (step.kind) {
      case Kind::kPull:
        return group_.has_value() ? PullPartSeconds(layer) : PullSeconds(sizes.wire_bytes);
      case Kind::kExpand:
        if (times.expand_seconds > 0) return times.expand_seconds;
        return Gradient(static_cast<double>(sizes.wire_bytes + sizes.expanded_bytes));
      case Kind::kLoadTokens:
        return In(shape_.token_bytes());
      case Kind::kLoadDocuments:
        return In(shape_.documents_bytes());
      case Kind::kLoadBoundary:
      case Kind::kLoadGradient:
        return In(shape_.boundary_bytes());
      case Kind::kStoreBoundary:
      case Kind::kStoreGradient:
        return Out(shape_.boundary_bytes());
      case Kind::kLoadInner:
        return In(inner_bytes_);
      case Kind::kStoreInner:
        return Out(inner_bytes_);
      case Kind::kForward:
        return times.forward_seconds;
      case Kind::kRecompute:
        return times.recompute_seconds;
      case Kind::kLogits:
      case Kind::kLoss:
        return times.forward_seconds;
      case Kind::kHead:
        return std::max(0.0, times.backward_seconds - (step.keeps_logits ? second_logits_seconds_ : 0) -
                                 SavedByStarting(step, sizes));
      case Kind::kBackward:
        return std::max(0.0, times.backward_seconds - SavedByStarting(step, sizes));
      case Kind::kZeroGradient:
        return Gradient(static_cast<double>(sizes.zeroed_gradient_bytes));
      case Kind::kFinishLeaf:  // read, rounded in place
        return Gradient(2 * 4 * trained);
      case Kind::kAddGradient:
        return Gradient(3 * 4 * trained);
      case Kind::kEmitGradient:
        if (group_.has_value()) return Gradient(8 * (trained + PartElems(layer.id)));  // its own part goes apart
        return Gradient((4 + static_cast<double>(SizeOf(PushedDtype(step.node, gradients_)))) * trained);
      case Kind::kEmitLeaf:  // read once
        return Gradient((4 + static_cast<double>(SizeOf(gradients_))) * trained);
      case Kind::kPush:
        return PushSeconds(static_cast<double>(SizeOf(PushedDtype(step.node, gradients_))) * trained);
      case Kind::kExchange:
        return ExchangeSeconds(layer.id, step.round);
      case Kind::kSumGroup:
        return Gradient(3 * 4 * static_cast<double>(group_->sums().size()) * PartElems(layer.id));
      case Kind::kPushPart:
        return PushSeconds(BytesOfRoots(*group_) * PartElems(layer.id));
      case Kind::kStartRecord:
      case Kind::kStoreRecord:
        return 0;
    }
    return 0;
  }

 private:
  using Kind = RelayStep::Kind;
  static double Over(double bytes, double bytes_per_second) {
    return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
  }
  double In(int64_t bytes) const { return Over(static_cast<double>(bytes), profile_.in_bytes_per_second); }
  double Out(int64_t bytes) const { return Over(static_cast<double>(bytes), profile_.out_bytes_per_second); }
  double Gradient(double bytes) const { return Over(bytes, profile_.gradient_bytes_per_second); }
  // What a backward that starts a gradient has less to do than one that adds to it, which is what was measured.
  double SavedByStarting(const RelayStep& step, const LayerSizes& sizes) const {
    return step.starts_gradient ? Gradient(static_cast<double>(sizes.gradient_bytes - sizes.zeroed_gradient_bytes)) : 0;
  }
  const LayerTimes& TimesOfLayer(const LayerSpec& layer) const {
    return times_[static_cast<size_t>(std::find(kLayerKinds.begin(), kLayerKinds.end(), layer.kind) -
                                      kLayerKinds.begin())];
  }

  double PullSeconds(int64_t bytes) const {
    if (link_ == LinkKind::kInPlace) return 0;
    if (link_ == LinkKind::kHostMemory) return In(bytes);
    return Over(static_cast<double>(bytes), profile_.network_bytes_per_second);
  }
  double PushSeconds(double bytes) const {
    const double copy = Over(bytes, profile_.out_bytes_per_second);
    return link_ == LinkKind::kNetwork ? copy + Over(bytes, profile_.network_bytes_per_second) : copy;
  }

  // ---- as a member of group_ ----
  double PartElems(LayerId layer) const { return static_cast<double>(group_->PartElems(layer, group_->rank())); }
  // Its own part from the daemon, which it gives the others, and theirs.
  double PullPartSeconds(const LayerSpec& layer) const {
    if (link_ == LinkKind::kInPlace) return 0;
    const int64_t own = group_->WeightPartBytes(layer.id, group_->rank(), shape_.wire);
    return PullSeconds(own) + ExchangeSeconds(static_cast<double>(own * (group_->size() - 1)),
                                              static_cast<double>(model_.wire_bytes(layer, shape_.wire) - own));
  }
  // It gives of its node what is the others', and gets of each other's node what is its own.
  double ExchangeSeconds(LayerId layer, int round) const {
    double given = 0, got = 0;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank == group_->rank()) continue;
      if (group_->Node(group_->rank(), round).has_value()) {
        given += 4 * static_cast<double>(group_->PartElems(layer, rank));
      }
      if (group_->Node(rank, round).has_value()) got += 4 * PartElems(layer);
    }
    return ExchangeSeconds(given, got);
  }
  double ExchangeSeconds(double given_bytes, double got_bytes) const {
    if (!absl::StartsWith(profile_.device, "cuda")) return Over(given_bytes + got_bytes, profile_.out_bytes_per_second);
    return Over(std::max(given_bytes, got_bytes),
                std::min(profile_.in_bytes_per_second, profile_.out_bytes_per_second));
  }

  const Profile profile_;
  const ModelSpec& model_;
  const LinkKind link_;
  const std::optional<GroupParts> group_;  // none: it goes alone
  const LayerShape shape_;
  const Dtype gradients_;
  std::array<LayerTimes, kLayerKinds.size()> times_;  // as kLayerKinds
  std::vector<LayerSizes> sizes_;                     // by layer
  int64_t inner_bytes_ = 0;                           // what is swapped: a slot
  double second_logits_seconds_ = 0;                  // of the head, whose times are those of one that keeps none
};

}  // namespace

bool HaveSameTimes(LayerKind kind, const LayerShape& a, const LayerShape& b) {
  const auto of_all = [&](const LayerShape& s) {
    return std::tuple(s.B, s.T, s.C, s.act_bytes(), SizeOf(s.wire), s.has_documents, s.residual_dropout > 0);
  };
  const auto of_block = [](const LayerShape& s) {
    return std::tuple(s.H, s.kv_heads, s.D, s.F, s.tile_rows(), s.experts.num, s.experts.per_token, s.is_causal,
                      s.is_gated, s.is_rotary, s.has_qk_norm, s.window, s.attention_dropout > 0, s.lora.rank,
                      s.lora.in_columns, s.lora.out_columns, s.lora.down_columns, s.lora.frozen_elems,
                      s.lora.dropout > 0, s.quantized_elems, s.quantized_format);
  };
  if (of_all(a) != of_all(b)) return false;
  if (kind == LayerKind::kBlock) return of_block(a) == of_block(b);
  return std::tuple(a.V, a.num_classes, a.has_dense_head) == std::tuple(b.V, b.num_classes, b.has_dense_head);
}

LinkKind LinkOf(const std::string& device, TransportChoice transport) {
  if (transport == TransportChoice::kGrpc) return LinkKind::kNetwork;
  return absl::StartsWith(device, "cuda") ? LinkKind::kHostMemory : LinkKind::kInPlace;
}

StepCosts CostsOf(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
                  LinkKind link, const GroupParts* group) {
  EPS_CHECK(profile.update_bytes_per_second > 0);
  StepCosts costs;
  costs.seconds = StepSeconds(profile, model, run, kernels, link, group);
  costs.handover_seconds = profile.handover_seconds;
  costs.between_steps_seconds = profile.between_steps_seconds;
  costs.sharing = profile.sharing;
  // Of a group, what all members push of a layer.
  const double group_bytes = group != nullptr ? BytesOfRoots(*group) : 0;
  costs.contribution_seconds = [&model, group_bytes, gradients = run.precision.gradients,
                                rate = profile.update_bytes_per_second /
                                       ReadsOfContributions(run)](const RelayStep& step) {
    const double bytes = step.kind == RelayStep::Kind::kPushPart
                             ? group_bytes
                             : static_cast<double>(SizeOf(PushedDtype(step.node, gradients)));
    return static_cast<double>(model.layer(step.layer).trainable_elems) * bytes / rate;
  };
  const std::vector<double> disk_bytes = DiskBytes(model, run);
  for (size_t b = 0; b < model.blobs.size(); ++b) {
    const BlobSpec& blob = model.blobs[b];
    const double elems = blob.frozen ? 0 : static_cast<double>(blob.num_elems);
    costs.update_seconds.push_back(std::max(elems * UpdateBytes(run) / profile.update_bytes_per_second,
                                            disk_bytes[b] / profile.disk_bytes_per_second));
    costs.early_update_seconds.push_back(costs.update_seconds.back() * EarlyShare(blob, model, run));
    if (run.defers_updates()) {
      costs.sum_seconds.push_back(elems * 4 / profile.update_bytes_per_second);  // kept in fp32
    }
  }
  return costs;
}

Profile BesideOthers(Profile profile, LinkKind link, int workers) {
  if (workers <= 1) return profile;
  if (link == LinkKind::kNetwork) {  // the daemon's is shared; each worker's memory is its own
    profile.network_bytes_per_second /= workers;
    return profile;
  }
  // A copy within the host's memory reads and writes it; updates alone have all of its bandwidth.
  const double traffic = link == LinkKind::kInPlace ? 2 : 1;
  const double most = profile.update_bytes_per_second / (workers * traffic);
  profile.in_bytes_per_second = std::min(profile.in_bytes_per_second, most);
  profile.out_bytes_per_second = std::min(profile.out_bytes_per_second, most);
  constexpr double kLeastSpeed = 0.01;  // so that updates end, however many workers there are
  for (const Activity copies : {Activity::kIn, Activity::kOut}) {
    double& speed = profile.sharing[static_cast<size_t>(Activity::kUpdate)][static_cast<size_t>(copies)];
    speed = std::max(kLeastSpeed, std::pow(speed, workers));
  }
  return profile;
}

bool HasExactTimes(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels) {
  const LayerShape shape = MakeLayerShape(model, run, kernels.compute_dtype);
  return std::all_of(kLayerKinds.begin(), kLayerKinds.end(), [&](LayerKind kind) {
    return std::any_of(profile.layers.begin(), profile.layers.end(), [&](const LayerTimes& times) {
      return times.kind == kind && IsWhole(times, model) && HaveSameTimes(kind, times.shape, shape);
    });
  });
}

}  // namespace eps::worker
