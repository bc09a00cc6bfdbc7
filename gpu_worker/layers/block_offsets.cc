#include "gpu_worker/layers/block_offsets.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gpu_worker/layers/tensor_offsets.h"

namespace eps::worker {
namespace {

using Role = TensorRole;

// The tensors of one layer by role.
class Places {
 public:
  Places(const ModelSpec& model, LayerId layer) : model_(model), layer_(layer) {}

  int64_t At(Role role) const { return TensorOffset(model_, layer_, role); }
  int64_t OrNone(Role role, LoraPart part = LoraPart::kNone) const {
    return FindTensorOffset(model_, layer_, role, part).value_or(-1);
  }
  BlockOffsets::Norm Norm(Role scale, Role shift) const { return {.scale = At(scale), .shift = OrNone(shift)}; }

  // One of several products of one input.
  struct Part {
    int64_t out = 0;
    Role weight, bias;
    bool is_apart = false;  // its output lies elsewhere than those before it
  };
  // Without a bias or an adapter.
  Linear Product(int64_t in, int64_t out, Role weight) const {
    return {.in = in, .out = out, .weight = At(weight), .is_out_in = model_.config.has_out_in_weights()};
  }
  // Of each expert, `out` columns of one input beside each other by each of `weights`.
  std::vector<ExpertLinear> ExpertProducts(int64_t in, int64_t out, const std::vector<Role>& weights) const {
    std::vector<Linear> firsts;
    for (const Role weight : weights) {
      Linear& first = firsts.emplace_back(Product(in, out, weight));
      first.first_column = static_cast<int64_t>(firsts.size() - 1) * out;
    }
    std::vector<ExpertLinear> products;
    for (const Linear& first : Joined(firsts, trainable_elems())) {
      const Role weight = weights[static_cast<size_t>(first.first_column / out)];  // the first of those that are joined
      products.push_back({.first = first, .stride = ExpertStride(model_, model_.layer(layer_), weight)});
    }
    return products;
  }
  Linears Products(int64_t in, BlockDropoutUse adapters_dropout_use, const std::vector<Part>& parts) const {
    Linears linears{.products = OwnProducts(in, parts), .dropout_use = adapters_dropout_use};
    AddAdapters(in, parts, linears);
    return linears;
  }

 private:
  int64_t trainable_elems() const { return model_.layer(layer_).trainable_elems; }

  std::vector<Linear> OwnProducts(int64_t in, const std::vector<Part>& parts) const {
    std::vector<Linear> products, together;
    int64_t column = 0;
    const auto end_together = [&] {
      for (const Linear& l : Joined(together, trainable_elems())) products.push_back(l);
      together.clear();
    };
    for (const Part& part : parts) {
      if (part.is_apart) end_together();
      together.push_back({.in = in,
                          .out = part.out,
                          .weight = At(part.weight),
                          .bias = OrNone(part.bias),
                          .is_out_in = model_.config.has_out_in_weights(),
                          .first_column = column,
                          .has_adapter = OrNone(part.weight, LoraPart::kA) >= 0});
      column += part.out;
    }
    end_together();
    return products;
  }

  void AddAdapters(int64_t in, const std::vector<Part>& parts, Linears& linears) const {
    const int64_t rank = model_.config.lora.rank;
    std::vector<Linear> as;
    int64_t column = 0;
    for (const Part& part : parts) {
      const int64_t a = OrNone(part.weight, LoraPart::kA), b = OrNone(part.weight, LoraPart::kB);
      if (a >= 0) {
        const int64_t t_column = linears.t_width();
        as.push_back({.in = in, .out = rank, .weight = a, .is_out_in = true, .first_column = t_column});
        linears.adapters.push_back(
            {.b = {.in = rank, .out = part.out, .weight = b, .is_out_in = true, .first_column = column},
             .t_column = t_column});
      }
      column += part.out;
    }
    linears.as = Joined(as, trainable_elems());
  }

  const ModelSpec& model_;
  const LayerId layer_;
};

}  // namespace

BlockOffsets BlockOffsetsOf(const ModelSpec& model, LayerId layer) {
  const ModelConfig& c = model.config;
  const int64_t d = c.d_model, q = c.num_heads * c.head_dim(), kv = c.kv_heads() * c.head_dim(), ff = c.ff_width();
  const Places at(model, layer);
  BlockOffsets offsets;
  offsets.attention_norm = at.Norm(Role::kAttentionNormScale, Role::kAttentionNormShift);
  offsets.mlp_norm = at.Norm(Role::kMlpNormScale, Role::kMlpNormShift);
  offsets.attention_out =
      at.Products(q, kAttentionOutAdaptersUse, {{d, Role::kAttentionOutWeight, Role::kAttentionOutBias}});
  if (!c.experts.are_on()) {
    offsets.down = at.Products(ff, kDownAdaptersUse, {{d, Role::kDownWeight, Role::kDownBias}});
  }
  if (c.family == ModelFamily::kGpt2) {
    offsets.qkv = at.Products(d, kQkvAdaptersUse, {{3 * d, Role::kQkvWeight, Role::kQkvBias}});
    offsets.up = at.Products(d, kUpAdaptersUse, {{ff, Role::kUpWeight, Role::kUpBias}});
    return offsets;
  }
  offsets.qkv = at.Products(d, kQkvAdaptersUse,
                            {{q, Role::kQueryWeight, Role::kQueryBias},
                             {kv, Role::kKeyWeight, Role::kKeyBias},
                             {kv, Role::kValueWeight, Role::kValueBias, /*is_apart=*/c.qk_norm}});
  if (c.family == ModelFamily::kBert) {
    offsets.up = at.Products(d, kUpAdaptersUse, {{ff, Role::kUpWeight, Role::kUpBias}});
    return offsets;
  }
  offsets.query_norm = at.OrNone(Role::kQueryNormScale);
  offsets.key_norm = at.OrNone(Role::kKeyNormScale);
  if (c.experts.are_on()) {
    offsets.router = {.products = {at.Product(d, c.experts.num, Role::kRouterWeight)}};
    offsets.expert_up = at.ExpertProducts(d, ff, {Role::kGateWeight, Role::kUpWeight});
    offsets.expert_down = at.ExpertProducts(ff, d, {Role::kDownWeight});
    return offsets;
  }
  offsets.up =
      at.Products(d, kUpAdaptersUse, {{ff, Role::kGateWeight, Role::kUpBias}, {ff, Role::kUpWeight, Role::kUpBias}});
  return offsets;
}

LoraShape LoraShapeOf(const ModelSpec& model) {
  const LoraConfig& config = model.config.lora;
  if (!config.is_on()) return {};
  LoraShape shape = {.rank = config.rank, .scale = config.scale(), .dropout = config.dropout};
  const auto raise = [](int64_t& most, int64_t value) { most = std::max(most, value); };
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    const BlockOffsets offsets = BlockOffsetsOf(model, layer.id);
    int64_t in_columns = 0, out_columns = 0, frozen_elems = 0;
    const auto elems_if_frozen = [&](const Linear& l) { return l.weight < layer.trainable_elems ? 0 : l.in * l.out; };
    for (const Linears* linears : {&offsets.qkv, &offsets.attention_out, &offsets.up, &offsets.down, &offsets.router}) {
      for (const Linear& l : linears->products) frozen_elems += elems_if_frozen(l);
      if (linears->adapters.empty()) continue;
      raise(shape.t_width, linears->t_width());
      const bool is_feed_forward = linears == &offsets.up || linears == &offsets.down;
      raise(is_feed_forward ? shape.widest_feed_forward_input : shape.widest_input, linears->in());
      in_columns += static_cast<int64_t>(linears->adapters.size()) * linears->in();
      for (const Adapter& adapter : linears->adapters) out_columns += adapter.b.out;
    }
    for (const ExpertLinear& l : offsets.expert_products()) {
      frozen_elems += model.config.experts.per_token * elems_if_frozen(l.first);
    }
    raise(shape.in_columns, in_columns);
    raise(shape.out_columns, out_columns);
    raise(shape.frozen_elems, frozen_elems);
    if (!offsets.down.adapters.empty()) raise(shape.down_columns, offsets.down.in() + offsets.down.adapters[0].b.out);
  }
  return shape;
}

}  // namespace eps::worker
