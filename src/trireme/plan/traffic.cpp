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
    const auto micros = static_cast<double>(task.micros);
    tokens_ = static_cast<double>(task.config.micro_batch_size * task.job.seq_len / layout_.cp);
    hidden_ = tokens_ * static_cast<double>(shape_.hidden_size) * compute_bytes_ * micros;
    again_ = task.config.recompute == spec::RecomputeKind::kFull ? 1 : 0;
    // Gradients of 16 bits travel as they are; the few vectors' beside them are not told apart.
    gradient_bytes_ = spec::has_narrow_gradients(task.job.precision) ? compute_bytes_ : sum_bytes_;
    reduce_bytes_ = layout_.reduce == spec::ReduceKind::kBf16 ? 2 : gradient_bytes_;
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
            static_cast<double>(task_.pipeline_receives) * hidden_ / static_cast<double>(task_.micros) *
                share(layout_.tp));
      }
      add("pp", fmt::format("{} messages between stages", task_.pipeline_messages),
          static_cast<double>(task_.pipeline_messages) * hidden_ / static_cast<double>(task_.micros) * between);
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

  void data() {
    const int copies = layout_.dp.value_or(1) * layout_.cp;
    if (copies == 1) return;
    const auto elements = static_cast<double>(task_.parameters);
    const double gradients = elements * reduce_bytes_, values = elements * compute_bytes_;
    if (layout_.zero == 0) {
      add("data", "gradient all-reduce, once a step: 2 Psi (N-1)/N", 2 * gradients * share(copies));
      return;
    }
    const int ranks = task_.config.zero_ranks();
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
          2 * elements / ranks * gradient_bytes_ * share(across));
    }
  }

  void tensor() {
    const int tp = layout_.tp;
    if (tp == 1) return;
    // A module of multi-token prediction is a layer with an embedding before it and a head behind it.
    const auto layers = static_cast<double>(task_.layers) + modules();
    const double one = hidden_ * share(tp);  // a gather or a reduce-scatter of all tokens
    if (shape_.mla.used()) {
      latent_tensor(layers, one);
    } else if (!layout_.sequence_parallel) {
      add("tp", again_ > 0 ? "6 all-reduces a layer: 4 and 2 of recomputation" : "4 all-reduces a layer",
          layers * (4 + 2 * again_) * 2 * one);
    } else {
      const int gathers = 4 + (layout_.sp_save_gathered ? 0 : 2);
      add("tp",
          fmt::format("{} gathers and {} reduce-scatters a layer{}", gathers + 2 * again_, 4 + 2 * again_,
                      layout_.sp_save_gathered ? "" : ", 2 of them since gathered inputs are not saved"),
          layers * (gathers + 4 + 4 * again_) * one);
    }
    const bool split = layout_.sequence_parallel;
    if (const double embeddings = (task_.embedding ? 1 : 0) + modules(); embeddings > 0)
      add("tp", split ? "reduce-scatter and gather of the embedding" : "all-reduce of the embedding",
          2 * embeddings * one);
    const double heads = task_.head ? 1 + modules() : 0;
    if (heads > 0)
      add("tp", split ? "gather and reduce-scatter of the head" : "all-reduce of the head's input gradient",
          2 * heads * one);
    if (task_.head) {
      add("tp", "three values a token for the loss",
          3 * heads * tokens_ * static_cast<double>(task_.micros) * sum_bytes_ * (tp - 1));
    }
    const auto copies = [&](const char* group, const char* what, std::int64_t elements, double ranks) {
      if (elements > 0) add(group, what, 2 * static_cast<double>(elements) * sum_bytes_ * share(ranks));
    };
    copies("tp", "gradients of what is replicated over tp", task_.copied_over_tp, tp);
    copies("tp copies", "gradients of heads of keys that several tp ranks hold", task_.copied_keys,
           static_cast<double>(tp) / static_cast<double>(shape_.num_kv_heads));
  }

  /// Latent attention: what enters its sharded matrices are latents and the shared key, in place of the hidden state.
  void latent_tensor(double layers, double one) {
    const spec::Mla& mla = shape_.mla;
    const auto width = static_cast<double>(shape_.hidden_size);
    const double gathered =
        ((mla.q_lora_rank > 0 ? static_cast<double>(mla.q_lora_rank) : width) + static_cast<double>(mla.kv_lora_rank)) /
        width;
    const double latents = gathered + static_cast<double>(mla.qk_rope_head_dim) / width;
    if (!layout_.sequence_parallel) {
      add("tp", "3 all-reduces a layer, and one of the latents' gradients",
          layers * (3 + latents + 2 * again_) * 2 * one);
      return;
    }
    // Gathers: of latents and the MLP's input, of two output gradients; again where they were not saved.
    const double gathers = latents + 3 + (layout_.sp_save_gathered ? 0 : gathered + 1);
    const double scatters = 2 + latents + 1, recomputed = again_ * (latents + 1 + 2);
    add("tp", "gathers and reduce-scatters of latents, of the MLP's input and of both outputs",
        layers * (gathers + scatters + recomputed) * one);
  }

  void context() {
    const int cp = layout_.cp;
    if (cp == 1) return;
    // Selective recomputation runs attention's core again, and what ranks tell each other for it.
    const bool core = task_.config.recompute == spec::RecomputeKind::kSelective;
    const int again = core ? 1 : again_;
    const bool trade = layout_.cp_kind == ContextKind::kUlysses;
    const int inner = trade ? cp : layout_.cp_ulysses, outer = cp / inner;
    const double layers = (static_cast<double>(task_.layers) + modules()) * static_cast<double>(task_.micros);
    const spec::ModelShape& shape = shape_;
    const spec::AttentionWidths widths = spec::attention_widths(shape);
    // Of queries and outputs, of keys and values.
    const double queries = tokens_ * static_cast<double>(widths.queries + widths.attended) / 2 / layout_.tp;
    const double keys = tokens_ * static_cast<double>(std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp)) *
                        static_cast<double>(widths.keys + widths.values) / 2 / static_cast<double>(shape.num_kv_heads);
    if (inner > 1) {
      const std::int64_t own = std::max<std::int64_t>(1, shape.num_kv_heads / layout_.tp);
      const double spread = own % inner == 0 ? keys : keys * inner / static_cast<double>(own);
      const double forward = (2 * queries + 2 * spread) * compute_bytes_ * share(inner);
      add(outer > 1 ? "cp ulysses" : "cp",
          fmt::format("all-to-alls of q, k, v and the output, forward and backward{}", again > 0 ? ", again" : ""),
          layers * forward * (2 + again));
    }
    if (outer == 1) return;
    const double block = 2 * keys * inner / inner_heads(inner) * compute_bytes_;
    const double sums = block / compute_bytes_ * sum_bytes_;
    const char* group = inner > 1 ? "cp outer" : "cp";
    if (layout_.cp_kind == ContextKind::kRing) {
      add(group, fmt::format("ring: {} blocks of K and V forward{}", outer - 1, again > 0 ? ", again" : ""),
          layers * (outer - 1) * block * (1 + again));
      add(group, fmt::format("ring: {} blocks of K and V and of their gradients backward", outer - 1),
          layers * (outer - 1) * (block + sums));
    } else {
      add(group, "gather of K and V, forward and backward", layers * (outer - 1) * block * (2 + again));
      add(group, "reduce-scatter of their gradients", layers * (outer - 1) * sums);
    }
  }

  double modules() const { return task_.head ? static_cast<double>(shape_.mtp_depth) : 0; }

  /// Trading gives a rank fewer heads and more tokens; where heads of keys are copied, not that many fewer.
  double inner_heads(int inner) const {
    const std::int64_t own = std::max<std::int64_t>(1, shape_.num_kv_heads / layout_.tp);
    return own % inner == 0 ? inner : static_cast<double>(own);
  }

  const TrafficTask& task_;
  const spec::ModelShape& shape_;
  const spec::LayoutConfig& layout_;
  double compute_bytes_, sum_bytes_;      // of a weight and an activation; of what is added up in full
  double gradient_bytes_, reduce_bytes_;  // of a gradient as it is kept, and on its way
  double tokens_ = 0, hidden_ = 0;        // of a micro; bytes of all micros
  int again_ = 0;
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
