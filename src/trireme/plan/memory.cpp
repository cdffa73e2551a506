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

constexpr double kGradientBytes = 4;      // summed in fp32 over the microbatches of a step
constexpr double kDeviceReserve = 1.0e9;  // context, kernels, communicators
constexpr double kBucketBytes = 2.0e8;    // of gradients on their way

double tokens_of(const Job& job, const Layout& layout) {
  return static_cast<double>(layout.microbatch) * static_cast<double>(job.length) / layout.cp;
}

/// Per token and layer: outside of the split matrices, inside of them, and attention's scores.
struct LayerBytes {
  double outside, inside, scores;
};

LayerBytes layer_bytes(const Job& job, const Layout& layout) {
  const spec::ModelShape& shape = job.shape;
  const bool dropout = shape.dropout > 0;
  const auto width = static_cast<double>(shape.width);
  const auto queries = static_cast<double>(shape.heads * shape.head_size);
  const double keys =
      static_cast<double>(shape.head_size) * std::max<double>(static_cast<double>(shape.kv_heads), layout.tp);
  LayerBytes bytes{};
  // Inputs of both norms, their outputs as inputs of the products, two masks.
  bytes.outside = width * (8 + (dropout ? 2 : 0));
  // Queries, keys, values, what attention gives; what the activation takes and gives.
  bytes.inside = 2 * (queries + 2 * keys) + 2 * queries + static_cast<double>(shape.inner) * (shape.gated ? 6 : 4);
  // Softmax, its mask and what dropout makes of it.
  if (job.attention == AttentionKind::kUnfused)
    bytes.scores = static_cast<double>(shape.heads) * static_cast<double>(job.length) * (dropout ? 5 : 2);
  return bytes;
}

double state_scale(cost::Arithmetic arithmetic) { return arithmetic == cost::Arithmetic::kFp32 ? 2 : 1; }

/// One stage of the pipeline.
MemoryParts stage_memory(const Job& job, const Layout& layout, const Weights& weights, int stage, int layers,
                         double micros_held) {
  const bool first = stage == 0, last = stage == layout.pp - 1;
  const double tokens = tokens_of(job, layout);
  const auto width = static_cast<double>(job.shape.width);
  double count = layers * weights.layer;
  if (first) count += weights.embedding;
  if (last) count += weights.head;
  // A tied head on another rank than the embedding is a copy of it.
  if (last && !first && job.shape.tied) count += static_cast<double>(job.shape.vocabulary) * width;
  count /= layout.tp;

  MemoryParts parts = model_states(count, layout.dp * layout.cp, layout.zero, kGradientBytes, job.arithmetic);
  const double layer = weights.layer / layout.tp, sixteen = 2 * state_scale(job.arithmetic);
  const double whole = whole_layer_activation_bytes(job, layout);
  if (layout.zero == 2) {
    // Gradients are summed over the microbatches that pass a chunk in a row before they are reduced and sharded.
    parts.working += layout.pp > 1 ? kGradientBytes * count / layout.virtual_stages : sixteen * layer;
  }
  if (layout.zero == 3) {
    // The layer at hand, gathered. While its gradients come up its activations go, so half of them count.
    parts.working += sixteen * layer * 1.5;
  }
  parts.activations = layer_activation_bytes(job, layout) * layers * micros_held;
  if (first && job.shape.dropout > 0) parts.activations += tokens * width * micros_held;  // the embedding's mask
  double working = layout.recompute == Recompute::kFull ? whole : 0;
  // Logits in fp32 and in sixteen bits; never at the same time as a layer is recomputed.
  if (last) working = std::max(working, 6 * tokens * static_cast<double>(job.shape.vocabulary) / layout.tp);
  parts.working += working;
  parts.buffers = kDeviceReserve;
  // With sharded gradients the working memory above is what they travel from.
  if (layout.dp * layout.cp > 1 && layout.zero != 2) parts.buffers += std::min(kBucketBytes, kGradientBytes * count);
  if (layout.pp > 1) parts.buffers += 4 * 2 * tokens * width / (layout.sequence_parallel ? layout.tp : 1);
  return parts;
}

}  // namespace

MemoryParts model_states(double weights, int ranks, int zero, double gradient_bytes, cost::Arithmetic arithmetic) {
  const double shard = weights / ranks, scale = state_scale(arithmetic);
  MemoryParts parts;
  parts.weights = 2 * scale * (zero >= 3 ? shard : weights);
  parts.gradients = gradient_bytes * (zero >= 2 ? shard : weights);
  // Two moments, and masters where the weights are narrower than they are.
  parts.optimizer = (arithmetic == cost::Arithmetic::kFp32 ? 8 : 12) * (zero >= 1 ? shard : weights);
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
      return 2 * tokens * static_cast<double>(job.shape.width) / (layout.sequence_parallel ? layout.tp : 1);
  }
  return 0;
}

double in_flight(const Layout& layout, std::int64_t micros, int stage) {
  const auto all = static_cast<double>(micros);
  if (layout.pp == 1) return 1;  // forward and backward of one microbatch follow each other
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

Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const Layout& layout) {
  const Weights weights = count_weights(job.shape);
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);
  const std::int64_t micros = micros_of(job, layout);
  Memory fullest;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const double held = in_flight(layout, micros, stage);
    const MemoryParts parts = stage_memory(job, layout, weights, stage, layers[static_cast<std::size_t>(stage)], held);
    if (stage == 0 || parts.total() > fullest.peak()) {
      fullest.parts = parts;
      fullest.stage = stage;
      fullest.in_flight = held;
    }
  }
  fullest.device = hardware.memory_bytes();
  fullest.fits = fullest.peak() <= kUsable * fullest.device;
  return fullest;
}

std::string Memory::why() const {
  const std::array<std::pair<const char*, double>, 6> named{{{"weights", parts.weights},
                                                             {"gradients", parts.gradients},
                                                             {"optimizer", parts.optimizer},
                                                             {"activations", parts.activations},
                                                             {"working memory", parts.working},
                                                             {"buffers", parts.buffers}}};
  const auto most = std::ranges::max_element(named, {}, &std::pair<const char*, double>::second);
  return fmt::format("stage {}: {:.1f} microbatches in flight, {} take {:.0f} %", stage, in_flight, most->first,
                     100 * most->second / peak());
}

}  // namespace trireme::plan
