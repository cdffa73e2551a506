#include "trireme/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/cost/roofline.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/memory.h"

namespace trireme::plan {
namespace {

constexpr double kBucketBytes = 2.0e8;  // of gradients in flight

double tokens_of(const Job& job, const Layout& layout) {
  return static_cast<double>(layout.micro_batch_size) * static_cast<double>(job.length) / layout.cp;
}

/// Per token and layer: outside of the split matrices, inside of them, and attention's scores.
struct LayerBytes {
  double outside, inside, scores;
};

/// What the activation of an MLP takes and gives, for each token; with experts also the copies of tokens that were sent
/// to them and what came back.
double mlp_bytes(const Job& job) {
  const spec::ModelShape& shape = job.shape;
  const double each = shape.gated ? 6 : 4;
  const Experts& experts = job.mixture.experts;
  const double mixed = static_cast<double>(expert_layers(shape, experts)) / layers_of(shape);
  const double dense = (1 - mixed) * each * static_cast<double>(shape.ffn_size);
  if (mixed == 0) return dense;
  const double padded = std::max(1.0, experts.capacity_factor) * static_cast<double>(experts.top_k);
  const auto inner = static_cast<double>(expert_inner(shape, experts));
  return dense + mixed * (each * inner * (padded + static_cast<double>(experts.num_shared_experts)) +
                          4 * padded * static_cast<double>(shape.hidden_size));
}

LayerBytes layer_bytes(const Job& job, const Layout& layout) {
  const spec::ModelShape& shape = job.shape;
  const bool dropout = shape.dropout > 0;
  const auto width = static_cast<double>(shape.hidden_size);
  auto queries = static_cast<double>(shape.num_heads * shape.head_dim), attended = queries;
  double keys =
      static_cast<double>(shape.head_dim) * std::max<double>(static_cast<double>(shape.num_kv_heads), layout.tp);
  double values = keys;
  const Mla& latent = job.mixture.mla;
  if (latent.q_lora_rank > 0) {
    queries = keys = static_cast<double>(shape.num_heads * (shape.head_dim + latent.qk_rope_head_dim));
    attended = values = static_cast<double>(shape.num_heads * latent.v_head_dim);
  }
  LayerBytes bytes{};
  // Inputs of both norms, their outputs as inputs of the GEMMs, two masks.
  bytes.outside = width * (8 + (dropout ? 2 : 0));
  // Queries, keys, values, what attention gives; what the activation takes and gives.
  bytes.inside = 2 * (queries + keys + values) + 2 * attended + mlp_bytes(job);
  // Softmax, its mask and what dropout makes of it.
  if (job.attention == AttentionKind::kUnfused)
    bytes.scores = static_cast<double>(shape.num_heads) * static_cast<double>(job.length) * (dropout ? 5 : 2);
  return bytes;
}

double state_scale(cost::Arithmetic arithmetic) { return arithmetic == cost::Arithmetic::kFp32 ? 2 : 1; }

/// Weights that a rank of a stage holds: of layers, of tables and heads, and routed experts.
struct StageWeights {
  double dense = 0, tables = 0, experts = 0;
  double gradient_bytes(const Job& job) const {
    return (dense + experts) * job.of_layers.gradient_bytes + tables * job.of_tables.gradient_bytes;
  }
};

void add_states(MemoryParts& parts, const MemoryParts& more) {
  parts.weights += more.weights;
  parts.gradients += more.gradients;
  parts.optimizer += more.optimizer;
}

StageWeights stage_weights(const Job& job, const Layout& layout, const WeightCounts& weights, int stage, int layers) {
  const bool first = stage == 0, last = stage == layout.pp - 1;
  double tables = 0;
  if (first) tables += weights.embedding;
  if (last) tables += weights.head;
  // A tied head on another rank than the embedding is a copy of it.
  if (last && !first && job.shape.tied) tables += static_cast<double>(job.shape.vocab_size * job.shape.hidden_size);
  return {.dense = layers * weights.layer / layout.tp,
          .tables = tables / layout.tp,
          .experts = layers * weights.experts / layout.tp / layout.ep};
}

/// Moves to the host what is kept there; the device keeps what is just being used.
void offload(const Layout& layout, double sixteen_layer, StageMemory& memory) {
  if (layout.offload == Offload::kNone) return;
  MemoryParts& parts = memory.parts;
  memory.host += parts.optimizer + parts.gradients;
  parts.optimizer = parts.gradients = 0;
  parts.working += sixteen_layer;  // a layer's gradients being sent
  if (layout.offload != Offload::kWeights) return;
  memory.host += parts.weights;
  parts.weights = 0;
  parts.working += 2 * sixteen_layer;  // the layer at hand, and the next one on its way in
}

/// One stage of the pipeline.
void add_parts(const cost::Hardware& hardware, const Job& job, const Layout& layout, const WeightCounts& weights,
               StageMemory& memory) {
  const bool first = memory.stage == 0, last = memory.stage == layout.pp - 1;
  const double tokens = tokens_of(job, layout);
  const auto width = static_cast<double>(job.shape.hidden_size);
  const StageWeights held = stage_weights(job, layout, weights, memory.stage, memory.layers);
  const double gradients = held.gradient_bytes(job);

  MemoryParts& parts = memory.parts;
  parts = {};
  const auto add = [&](double count, int ranks, const StateTypes& types) {
    add_states(parts, model_states(count, ranks, layout.zero, types, job.arithmetic, job.moments));
  };
  add(held.dense, layout.sharers(), job.of_layers);
  add(held.tables, layout.sharers(), job.of_tables);
  add(held.experts, layout.expert_sharers(), job.of_layers);
  const double layer = weights.layer_share(layout), sixteen = 2 * state_scale(job.arithmetic);
  const double whole = whole_layer_activation_bytes(job, layout);
  if (layout.zero == 2) {
    // Gradients are summed over the micro-batches that pass a chunk in a row before they are reduced and sharded.
    parts.working += layout.pp > 1 ? gradients / layout.virtual_stages : sixteen * layer;
  }
  if (layout.zero == 3) {
    // The layer at hand, gathered. While its gradients come up its activations go, so half of them count.
    parts.working += sixteen * layer * 1.5;
  }
  parts.activations = layer_activation_bytes(job, layout) * memory.layers * memory.in_flight;
  if (first && job.shape.dropout > 0) parts.activations += tokens * width * memory.in_flight;  // the embedding's mask
  double working = layout.recompute == Recompute::kFull ? whole : 0;
  // Logits in fp32 and in sixteen bits; never at the same time as a layer is recomputed.
  if (last) working = std::max(working, 6 * tokens * static_cast<double>(job.shape.vocab_size) / layout.tp);
  parts.working += working;
  parts.buffers = hardware.device.software_gb * 1e9;
  // With sharded gradients the working memory above is what they travel from.
  if (layout.dp * layout.cp > 1 && layout.zero != 2) parts.buffers += std::min(kBucketBytes, gradients);
  if (layout.pp > 1) parts.buffers += 4 * 2 * tokens * width / (layout.sequence_parallel ? layout.tp : 1);
  offload(layout, sixteen * layer, memory);
}

}  // namespace

MemoryParts model_states(double weights, int ranks, int zero, const StateTypes& types, cost::Arithmetic arithmetic,
                         int moments) {
  const double shard = weights / ranks, scale = state_scale(arithmetic);
  MemoryParts parts;
  parts.weights = 2 * scale * (zero >= 3 ? shard : weights);
  parts.gradients = types.gradient_bytes * (zero >= 2 ? shard : weights);
  // Moments, and master weights where the weights are narrower than they are.
  const double master_weights = types.master_weights && arithmetic != cost::Arithmetic::kFp32 ? 4 : 0;
  parts.optimizer = (types.moment_bytes * moments + master_weights) * (zero >= 1 ? shard : weights);
  return parts;
}

double whole_layer_activation_bytes(const Job& job, const Layout& layout) {
  const LayerBytes bytes = layer_bytes(job, layout);
  const double outside = layout.sequence_parallel ? bytes.outside / layout.tp : bytes.outside;
  return tokens_of(job, layout) * state_scale(job.arithmetic) * (outside + (bytes.inside + bytes.scores) / layout.tp);
}

double layer_activation_bytes(const Job& job, const Layout& layout) {
  const double tokens = tokens_of(job, layout) * state_scale(job.arithmetic);
  const LayerBytes bytes = layer_bytes(job, layout);
  switch (layout.recompute) {
    case Recompute::kNone:
      return whole_layer_activation_bytes(job, layout);
    case Recompute::kSelective:
      return whole_layer_activation_bytes(job, layout) - tokens * bytes.scores / layout.tp;
    case Recompute::kFull:
      return 2 * tokens * static_cast<double>(job.shape.hidden_size) / (layout.sequence_parallel ? layout.tp : 1);
  }
  return 0;
}

double in_flight(const Layout& layout, std::int64_t micros, int stage) {
  const auto all = static_cast<double>(micros);
  if (layout.pp == 1) return 1;  // forward and backward of one micro-batch follow each other
  const double ahead = layout.pp - stage;
  if (layout.schedule == "1f1b" || (layout.schedule == "interleaved" && layout.virtual_stages == 1))
    return std::min(all, ahead);
  if (layout.schedule == "interleaved") {
    const double units = 2 * (ahead - 1) + (layout.virtual_stages - 1) * layout.pp + 1;
    return std::min(all * layout.virtual_stages, units) / layout.virtual_stages;
  }
  if (layout.schedule == "gpipe" || layout.schedule == "breadth-first") return all;
  const schedule::Shape shape{
      .ranks = layout.pp, .micros = static_cast<int>(micros), .chunks_per_rank = layout.virtual_stages};
  if (const auto formula = schedule::find_kind(layout.schedule).memory(shape)) return *formula;
  const auto peaks = schedule::peak_in_flight(schedule::build(layout.schedule, shape));
  return static_cast<double>(peaks[static_cast<std::size_t>(stage)]) / layout.virtual_stages;
}

std::vector<StageMemory> stage_memories(const cost::Hardware& hardware, const Job& job, const Layout& layout) {
  const WeightCounts weights = count_weights(job);
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);
  const std::int64_t micros = micros_of(job, layout);
  std::vector<StageMemory> stages;
  for (int stage = 0; stage < layout.pp; ++stage) {
    StageMemory one{.stage = stage, .layers = layers[static_cast<std::size_t>(stage)]};
    one.in_flight = in_flight(layout, micros, stage);
    add_parts(hardware, job, layout, weights, one);
    stages.push_back(one);
  }
  return stages;
}

Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const Layout& layout) {
  const std::vector<StageMemory> stages = stage_memories(hardware, job, layout);
  const auto fullest = std::ranges::max_element(stages, {}, [](const StageMemory& one) { return one.parts.total(); });
  Memory memory{.parts = fullest->parts, .stage = fullest->stage, .in_flight = fullest->in_flight};
  for (const StageMemory& one : stages) memory.host = std::max(memory.host, one.host);
  memory.device = hardware.memory_bytes();
  memory.host_device = hardware.cluster.host.memory_gib * 1073741824.0;
  memory.fits = memory.peak() <= kUsable * memory.device && memory.host <= kUsable * memory.host_device;
  return memory;
}

std::pair<const char*, double> MemoryParts::largest() const {
  const std::array<std::pair<const char*, double>, 6> named{{{"weights", weights},
                                                             {"gradients", gradients},
                                                             {"optimizer", optimizer},
                                                             {"activations", activations},
                                                             {"working memory", working},
                                                             {"buffers", buffers}}};
  return *std::ranges::max_element(named, {}, &std::pair<const char*, double>::second);
}

std::string Memory::why() const {
  const auto [name, bytes] = parts.largest();
  return fmt::format("stage {}: {:.1f} micro-batches in flight, {} take {:.0f} %", stage, in_flight, name,
                     100 * bytes / peak());
}

}  // namespace trireme::plan
