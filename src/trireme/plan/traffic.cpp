#include "trireme/plan/traffic.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/plan/activations.h"

namespace trireme::plan {
namespace {

using spec::ContextKind;

class Count {
 public:
  explicit Count(const TrafficTask& task)
      : task_(task),
        shape_(task.job.shape),
        layout_(task.config.layout),
        compute_bytes_(task.job.compute_bytes()),
        sum_bytes_(task.job.sum_bytes()) {
    tokens_ = static_cast<double>(task.config.micro_batch_size * task.job.seq_len / layout_.cp);
    hidden_ = tokens_ * static_cast<double>(shape_.hidden_size) * compute_bytes_;
    // A module of multi-token prediction is a layer with an embedding before it and a head behind it.
    const PassCount modules = task.head_passes * static_cast<double>(shape_.mtp_depth);
    layers_ = task.layer_passes + modules;
    if (task.config.recompute == spec::RecomputeKind::kFull) layers_.again += layers_.backward;
    embeddings_ = task.embedding_passes + modules;
    heads_ = task.head_passes + modules;
  }

  std::vector<TrafficLine> run() {
    data();
    tensor();
    context();
    if (layout_.pp > 1) {
      const bool scattered = task_.config.pipeline.scatter_gather;
      const double between = layout_.sequence_parallel || scattered ? 1.0 / layout_.tp : 1.0;
      if (scattered) {
        add("tp", fmt::format("all-gather of {} messages from other stages", task_.pipeline_receives),
            static_cast<double>(task_.pipeline_receives) * hidden_ * share(layout_.tp));
      }
      add("pp", fmt::format("{} messages between stages", task_.pipeline_messages),
          static_cast<double>(task_.pipeline_messages) * hidden_ * between);
      // Two counts of work, whether a rank has a new term of the loss, and the sum and count of each term.
      const int terms = shape_.z_loss > 0 ? 2 : 1;
      add("pp", "losses and work of a step, added up", 2.0 * (3 + 2 * terms) * sizeof(double) * share(layout_.pp));
    }
    return std::move(lines_);
  }

 private:
  void add(std::string group, std::string what, double bytes) {
    lines_.push_back({std::move(group), std::move(what), bytes});
  }
  static double share(double ranks) { return (ranks - 1) / ranks; }
  /// Whether replicas are virtual workers, each with updates of its own minibatches (HetPipe).
  bool waves() const { return layout_.pp > 1 && task_.config.pipeline.schedule.starts_with("hetpipe"); }

  void data() {
    const int copies = layout_.dp.value_or(1) * layout_.cp;
    if (copies == 1) return;
    const auto elements = static_cast<double>(task_.parameters);
    const double gradients = task_.reduced_bytes, values = elements * compute_bytes_;
    if (waves()) {
      const int workers = layout_.dp.value_or(1);
      if (workers > 1)
        add(layout_.cp == 1 ? "data" : "dp", "push of a wave, an all-reduce: 2 Psi (N-1)/N",
            2 * gradients * share(workers));
      if (layout_.cp > 1)
        add("cp", fmt::format("gradients of {} minibatches: 2 Psi (N-1)/N each", task_.micros),
            2 * static_cast<double>(task_.micros) * task_.gradient_bytes * share(layout_.cp));
      return;
    }
    if (layout_.find_unused)
      add(layout_.zero > 0 && !layout_.zero_group ? "shard" : "data",
          "who used which parameter: an all-reduce of bytes", 2 * static_cast<double>(task_.asked) * share(copies));
    if (layout_.zero == 0) {
      add("data", "gradient all-reduce, once a step: 2 Psi (N-1)/N", 2 * gradients * share(copies));
      return;
    }
    const int ranks = task_.config.zero_ranks();
    const int across = copies / ranks;
    if (layout_.zero == 1) {
      add("shard", "reduce-scatter of gradients, once a step: Psi (N-1)/N", gradients * share(ranks));
    } else {
      add("shard", fmt::format("reduce-scatter of gradients, in backward of {} micros: Psi (N-1)/N", task_.micros),
          task_.scattered_bytes * share(ranks));
    }
    if (layout_.zero < 3) {
      add("shard", "gather of new weights, once a step: Psi (N-1)/N", values * share(ranks));
    } else {
      add("shard",
          fmt::format("gathers of weights, forward and backward of {} micros: 2 Psi (N-1)/N, a tied table for each use",
                      task_.micros),
          static_cast<double>(task_.fetched) * compute_bytes_ * share(ranks));
    }
    if (task_.predicted > 0 && layout_.zero < 3)  // whose layers gather versions as they do the present weights
      add("shard", "gathers of predicted weights",
          static_cast<double>(task_.predicted) * compute_bytes_ * share(ranks));
    if (across > 1) {
      add("across", "all-reduce of shards between groups: 2 (Psi/N) (M-1)/M",
          2 * task_.gradient_bytes / ranks * share(across));
    }
  }

  void tensor() {
    const int tp = layout_.tp;
    if (tp == 1) return;
    const bool split = layout_.sequence_parallel;
    const double one = hidden_ * share(tp);  // a gather or a reduce-scatter of a micro-batch's tokens
    const bool again = layers_.again > 0;
    if (shape_.mla.used()) {
      latent_tensor(one);
    } else if (!split) {
      add("tp", again ? "6 all-reduces a layer: 4 and 2 of recomputation" : "4 all-reduces a layer",
          (layers_.forward + layers_.again + layers_.backward) * 2 * 2 * one);
    } else {
      const int gathers = layout_.sp_save_gathered ? 4 : 6;
      add("tp",
          fmt::format("{} gathers and {} reduce-scatters a layer{}", gathers + (again ? 2 : 0), again ? 6 : 4,
                      layout_.sp_save_gathered ? "" : ", 2 of them since gathered inputs are not saved"),
          ((layers_.forward + layers_.again) * 4 + layers_.backward * gathers) * one);
    }
    if (task_.config.partition_activations && again)
      add("tp", "gathers of the saved inputs that ranks share", layers_.again * one);
    if (embeddings_.forward > 0)
      add("tp", split ? "reduce-scatter and gather of the embedding" : "all-reduce of the embedding",
          split ? (embeddings_.forward + embeddings_.again + embeddings_.backward) * one
                : (embeddings_.forward + embeddings_.again) * 2 * one);
    if (heads_.forward > 0) {
      add("tp", split ? "gather and reduce-scatter of the head" : "all-reduce of the head's input gradient",
          split ? (heads_.forward + heads_.again + heads_.backward) * one : heads_.backward * 2 * one);
      add("tp", "three values a token for the loss",
          3 * (heads_.forward + heads_.again) * tokens_ * sum_bytes_ * (tp - 1));
    }
    const auto copies = [&](const char* group, const char* what, std::int64_t elements, double ranks) {
      const double times = waves() ? static_cast<double>(task_.micros) : 1;
      if (elements > 0) add(group, what, times * 2 * static_cast<double>(elements) * sum_bytes_ * share(ranks));
    };
    copies("tp", "gradients of what is replicated over tp", task_.copied_over_tp, tp);
    copies("tp copies", "gradients of heads of keys that several tp ranks hold", task_.copied_keys,
           static_cast<double>(tp) / static_cast<double>(shape_.num_kv_heads));
  }

  /// Latent attention: what enters its sharded matrices are latents and the shared key, in place of the hidden state.
  void latent_tensor(double one) {
    const spec::Mla& mla = shape_.mla;
    const auto width = static_cast<double>(shape_.hidden_size);
    const double gathered =
        ((mla.q_lora_rank > 0 ? static_cast<double>(mla.q_lora_rank) : width) + static_cast<double>(mla.kv_lora_rank)) /
        width;
    const double latents = gathered + static_cast<double>(mla.qk_rope_head_dim) / width;
    const double forwards = layers_.forward + layers_.again;
    if (!layout_.sequence_parallel) {
      add("tp", "3 all-reduces a layer, and one of the latents' gradients",
          (forwards * 2 + layers_.backward * (1 + latents)) * 2 * one);
      return;
    }
    // Forward: gathers of latents and of the MLP's input, reduce-scatters of both outputs. Backward: gathers of two
    // output gradients, of inputs again where they were not saved, reduce-scatters of the inputs' gradients.
    const double forward = latents + 1 + 2;
    const double backward = 2 + (layout_.sp_save_gathered ? 0 : gathered + 1) + latents + 1;
    add("tp", "gathers and reduce-scatters of latents, of the MLP's input and of both outputs",
        (forwards * forward + layers_.backward * backward) * one);
  }

  void context() {
    const int cp = layout_.cp;
    if (cp == 1) return;
    PassCount layers = layers_;
    // Selective recomputation runs attention's core again, and what ranks tell each other for it.
    if (task_.config.recompute == spec::RecomputeKind::kSelective) layers.again += layers.backward;
    const char* again = layers.again > 0 ? ", again" : "";
    const double forwards = layers.forward + layers.again;
    const bool trade = layout_.cp_kind == ContextKind::kUlysses;
    const int inner = trade ? cp : layout_.cp_ulysses, outer = cp / inner;
    const spec::ModelShape& shape = shape_;
    const spec::AttentionWidths widths = spec::attention_widths(shape);
    // Of queries and outputs, of keys and values.
    const double queries = tokens_ * static_cast<double>(widths.queries + widths.attended) / 2 / layout_.tp;
    const double keys = tokens_ * static_cast<double>(std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp)) *
                        static_cast<double>(widths.keys + widths.values) / 2 / static_cast<double>(shape.num_kv_heads);
    if (inner > 1) {
      const std::int64_t own = std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp);
      const double spread = own % inner == 0 ? keys : keys * inner / static_cast<double>(own);
      const double pass = (2 * queries + 2 * spread) * compute_bytes_ * share(inner);
      add(outer > 1 ? "cp ulysses" : "cp",
          fmt::format("all-to-alls of q, k, v and the output, forward and backward{}", again),
          (forwards + layers.backward) * pass);
    }
    if (outer == 1) return;
    const double block = 2 * keys * inner / inner_heads(inner) * compute_bytes_;
    const double sums = block / compute_bytes_ * sum_bytes_;
    const char* group = inner > 1 ? "cp outer" : "cp";
    if (layout_.cp_kind == ContextKind::kRing) {
      add(group, fmt::format("ring: {} blocks of K and V forward{}", outer - 1, again), forwards * (outer - 1) * block);
      add(group, fmt::format("ring: {} blocks of K and V and of their gradients backward", outer - 1),
          layers.backward * (outer - 1) * (block + sums));
    } else {
      add(group, "gather of K and V, forward and backward", (forwards + layers.backward) * (outer - 1) * block);
      add(group, "reduce-scatter of their gradients", layers.backward * (outer - 1) * sums);
    }
  }

  /// Trading gives a rank fewer heads and more tokens; where heads of keys are copied, not that many fewer.
  double inner_heads(int inner) const {
    const std::int64_t own = std::max<std::int64_t>(1, shape_.num_kv_heads / layout_.tp);
    return own % inner == 0 ? inner : static_cast<double>(own);
  }

  const TrafficTask& task_;
  const spec::ModelShape& shape_;
  const spec::LayoutConfig& layout_;
  double compute_bytes_, sum_bytes_;  // of a weight and an activation; of what is added up in full
  double tokens_ = 0, hidden_ = 0;    // of a micro-batch; its hidden states in bytes
  PassCount layers_, embeddings_, heads_;
  std::vector<TrafficLine> lines_;
};

}  // namespace

std::vector<TrafficLine> traffic_of(const TrafficTask& task) {
  if (task.job.shape.num_encoder_layers > 0) return {};
  return Count(task).run();
}

double saved_bytes(const TrafficTask& task) {
  const ActivationBytes bytes = activation_bytes(task.job, task.config);
  return static_cast<double>(task.layers) * bytes.layer + (task.embedding ? bytes.embedding : 0) +
         (task.head ? bytes.head : 0);
}

}  // namespace trireme::plan
