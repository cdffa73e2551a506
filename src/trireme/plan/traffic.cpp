#include "trireme/plan/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::plan {
namespace {

using spec::ContextKind;

class Count {
 public:
  explicit Count(const TrafficTask& task) : task_(task), layout_(task.layout) {
    const auto micros = static_cast<double>(task.micros);
    tokens_ = static_cast<double>(task.rows * task.sequence / layout_.cp);
    hidden_ = tokens_ * static_cast<double>(task.shape.hidden_size) * task.compute_bytes * micros;
    again_ = task.recompute == spec::RecomputeKind::kFull ? 1 : 0;
  }

  std::vector<TrafficLine> run() {
    data();
    tensor();
    context();
    if (layout_.pp > 1) {
      const double between = layout_.sequence_parallel ? 1.0 / layout_.tp : 1.0;
      add("pp", fmt::format("{} messages between stages", task_.pipeline_messages),
          static_cast<double>(task_.pipeline_messages) * hidden_ / static_cast<double>(task_.micros) * between);
      // Two counts of work, whether a rank has a new term of the loss, and the sum and count of each term.
      const int terms = task_.shape.z_loss > 0 ? 2 : 1;
      add("pp", "losses and work of a step, added up", 2.0 * (3 + 2 * terms) * sizeof(double) * share(layout_.pp));
    }
    return std::move(lines_);
  }

 private:
  void add(std::string group, std::string what, double bytes) {
    lines_.push_back({std::move(group), std::move(what), bytes});
  }
  static double share(double ranks) { return (ranks - 1) / ranks; }

  void data() {
    const int copies = layout_.dp.value_or(1) * layout_.cp;
    if (copies == 1) return;
    const auto elements = static_cast<double>(task_.parameters);
    const double gradients = elements * task_.reduce_bytes, values = elements * task_.compute_bytes;
    if (layout_.zero == 0) {
      add("data", "gradient all-reduce, once a step: 2 Psi (N-1)/N", 2 * gradients * share(copies));
      return;
    }
    const int ranks =
        layout_.zero_group.value_or(layout_.dp.value_or(1)) == layout_.dp.value_or(1) ? copies : *layout_.zero_group;
    const int across = copies / ranks;
    const auto micros = static_cast<double>(task_.micros);
    if (layout_.zero == 1) {
      add("shard", "reduce-scatter of gradients, once a step: Psi (N-1)/N", gradients * share(ranks));
    } else {
      add("shard", fmt::format("reduce-scatter of gradients, each of {} micros: Psi (N-1)/N", task_.micros),
          micros * gradients * share(ranks));
    }
    if (layout_.zero < 3) {
      add("shard", "gather of new weights, once a step: Psi (N-1)/N", values * share(ranks));
    } else {
      add("shard", fmt::format("gathers of weights, forward and backward of {} micros: 2 Psi (N-1)/N", task_.micros),
          2 * micros * values * share(ranks));
    }
    if (across > 1) {
      add("across", "all-reduce of shards between groups: 2 (Psi/N) (M-1)/M",
          2 * elements / ranks * task_.gradient_bytes * share(across));
    }
  }

  void tensor() {
    const int tp = layout_.tp;
    if (tp == 1) return;
    const auto layers = static_cast<double>(task_.layers);
    const double one = hidden_ * share(tp);  // a gather or a reduce-scatter of all tokens
    if (!layout_.sequence_parallel) {
      add("tp", again_ > 0 ? "6 all-reduces a layer: 4 and 2 of recomputation" : "4 all-reduces a layer",
          layers * (4 + 2 * again_) * 2 * one);
      if (task_.embedding) add("tp", "all-reduce of the embedding", 2 * one);
      if (task_.head) add("tp", "all-reduce of the head's input gradient", 2 * one);
    } else {
      const int gathers = 4 + (layout_.sp_save_gathered ? 0 : 2);
      add("tp",
          fmt::format("{} gathers and {} reduce-scatters a layer{}", gathers + 2 * again_, 4 + 2 * again_,
                      layout_.sp_save_gathered ? "" : ", 2 of them since gathered inputs are not saved"),
          layers * (gathers + 4 + 4 * again_) * one);
      if (task_.embedding) add("tp", "reduce-scatter and gather of the embedding", 2 * one);
      if (task_.head) add("tp", "gather and reduce-scatter of the head", 2 * one);
    }
    if (task_.head) {
      add("tp", "three values a token for the loss",
          3 * tokens_ * static_cast<double>(task_.micros) * task_.sum_bytes * (tp - 1));
    }
    const auto copies = [&](const char* group, const char* what, std::int64_t elements, double ranks) {
      if (elements > 0) add(group, what, 2 * static_cast<double>(elements) * task_.sum_bytes * share(ranks));
    };
    copies("tp", "gradients of what is replicated over tp", task_.copied_over_tp, tp);
    copies("tp copies", "gradients of heads of keys that several tp ranks hold", task_.copied_keys,
           static_cast<double>(tp) / static_cast<double>(task_.shape.num_kv_heads));
  }

  void context() {
    const int cp = layout_.cp;
    if (cp == 1) return;
    const bool trade = layout_.cp_kind == ContextKind::kUlysses;
    const int inner = trade ? cp : layout_.cp_ulysses, outer = cp / inner;
    const auto layers = static_cast<double>(task_.layers) * static_cast<double>(task_.micros);
    const spec::ModelShape& shape = task_.shape;
    const double queries = tokens_ * static_cast<double>(shape.num_heads / layout_.tp * shape.head_dim);
    const double keys = tokens_ * static_cast<double>(std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp)) *
                        static_cast<double>(shape.head_dim);
    if (inner > 1) {
      const std::int64_t own = std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp);
      const double spread = own % inner == 0 ? keys : keys * inner / static_cast<double>(own);
      const double forward = (2 * queries + 2 * spread) * task_.compute_bytes * share(inner);
      add(outer > 1 ? "cp ulysses" : "cp",
          fmt::format("all-to-alls of q, k, v and the output, forward and backward{}", again_ > 0 ? ", again" : ""),
          layers * forward * (2 + again_));
    }
    if (outer == 1) return;
    const double block = 2 * keys * inner / inner_heads(inner) * task_.compute_bytes;
    const double sums = block / task_.compute_bytes * task_.sum_bytes;
    const char* group = inner > 1 ? "cp outer" : "cp";
    if (layout_.cp_kind == ContextKind::kRing) {
      add(group, fmt::format("ring: {} blocks of K and V forward{}", outer - 1, again_ > 0 ? ", again" : ""),
          layers * (outer - 1) * block * (1 + again_));
      add(group, fmt::format("ring: {} blocks of K and V and of their gradients backward", outer - 1),
          layers * (outer - 1) * (block + sums));
    } else {
      add(group, "gather of K and V, forward and backward", layers * (outer - 1) * block * (2 + again_));
      add(group, "reduce-scatter of their gradients", layers * (outer - 1) * sums);
    }
  }

  /// Trading gives a rank fewer heads and more tokens; where heads of keys are copied, not that many fewer.
  double inner_heads(int inner) const {
    const std::int64_t own = std::max<std::int64_t>(1, task_.shape.num_kv_heads / layout_.tp);
    return own % inner == 0 ? inner : static_cast<double>(own);
  }

  const TrafficTask& task_;
  const spec::LayoutConfig& layout_;
  double tokens_ = 0, hidden_ = 0;  // of a micro; bytes of all micros
  int again_ = 0;
  std::vector<TrafficLine> lines_;
};

}  // namespace

std::vector<TrafficLine> traffic_of(const TrafficTask& task) {
  if (task.shape.num_encoder_layers > 0) return {};
  return Count(task).run();
}

double activation_bytes(const TrafficTask& task) {
  const spec::ModelShape& shape = task.shape;
  const double tokens = static_cast<double>(task.rows * task.sequence / task.layout.cp);
  const double tp = task.layout.tp, between = task.layout.sequence_parallel ? 1 / tp : 1;
  const double entered = task.layout.sp_save_gathered ? 1 : between;
  const auto width = static_cast<double>(shape.hidden_size);
  const double heads = static_cast<double>(shape.num_heads) / tp;
  const double num_kv_heads = std::max(1.0, static_cast<double>(shape.num_kv_heads) / tp);
  const double statistics = (shape.norm == spec::NormKind::kLayer ? 2 : 1) * task.sum_bytes * between;
  // Two norms with their inputs and what they gave; q, k, v, their output and its log-sum-exps; the MLP's middle.
  // Gathered inputs of matrices are no norms' outputs any more.
  const bool remade = task.recompute_norms && shape.norm_first && entered == between;
  double numbers = 2 * width * between + (remade ? 0 : 2 * width * entered);
  numbers += (2 * heads + 2 * num_kv_heads) * static_cast<double>(shape.head_dim);
  const int inner = task.layout.cp_kind == ContextKind::kUlysses ? task.layout.cp : task.layout.cp_ulysses;
  if (task.layout.cp > 1 && inner > 1) {
    // The output of all tokens and some heads beside that of some tokens and all heads, and copied heads of keys.
    const double keys = std::fmod(num_kv_heads, inner) == 0 ? num_kv_heads : inner;
    numbers += (heads + 2 * (keys - num_kv_heads)) * static_cast<double>(shape.head_dim);
  }
  numbers += static_cast<double>(shape.ffn_size) * ((shape.gated ? 2 : 1) + (task.save_mlp_activations ? 1 : 0)) / tp;
  double layer = numbers * task.compute_bytes + heads * task.sum_bytes + 2 * statistics;
  if (task.recompute == spec::RecomputeKind::kFull) layer = width * between * task.compute_bytes;
  double total = static_cast<double>(task.layers) * layer;
  if (task.embedding) total += 8;  // token ids
  if (task.head) {
    // The last norm's input, and the head's input gradient, which is there as soon as the loss is.
    total += 2 * width * between * task.compute_bytes + statistics;
  }
  return tokens * total;
}

StateBytes state_bytes(double elements, int zero, int ranks, int compute_bytes, int sum_bytes, int moments) {
  const double shared = elements / ranks;
  StateBytes bytes;
  bytes.parameters = (zero >= 3 ? shared : elements) * compute_bytes;
  bytes.master_weights = compute_bytes == sum_bytes ? 0 : (zero >= 1 ? shared : elements) * sum_bytes;
  bytes.gradients = (zero >= 2 ? shared : elements) * sum_bytes;
  bytes.optimizer = (zero >= 1 ? shared : elements) * sum_bytes * moments;
  return bytes;
}

}  // namespace trireme::plan
