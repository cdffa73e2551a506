#include "trireme/plan/traffic.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/plan/activations.h"

namespace trireme::plan {
namespace {

using spec::ContextKind;

/// A chain of layers over one stream of tokens: all of a model, or its encoder or decoder.
struct Stack {
  std::string name;   // before what is counted of it; empty: the one that the head reads
  double tokens = 0;  // of a micro-batch on a rank
  double hidden = 0;  // bytes of its hidden states
  PassCount layers, embeddings;
  PassCount experts;  // of layers, those with experts
};

class Count {
 public:
  explicit Count(const TrafficTask& task)
      : task_(task),
        shape_(task.job.shape),
        layout_(task.config.layout),
        compute_bytes_(task.job.compute_bytes()),
        sum_bytes_(task.job.sum_bytes()),
        full_(task.config.recompute == spec::RecomputeKind::kFull),
        // A module of multi-token prediction is a layer with an embedding before it and a head behind it.
        modules_(task.head_passes * static_cast<double>(shape_.mtp_depth)),
        decoder_(stack_of({.layers = task.layer_passes + modules_,
                           .embeddings = task.embedding_passes + modules_,
                           .experts = task.expert_passes + task.head_passes * mtp_experts()},
                          task.job.seq_len)),
        encoder_(stack_of({.name = "encoder: ",
                           .layers = task.encoder_passes,
                           .embeddings = task.encoder_embedding_passes,
                           .experts = task.encoder_expert_passes},
                          task.source_seq_len)),
        heads_(task.head_passes + modules_) {}

  std::vector<TrafficLine> run() {
    data();
    experts();
    tensor();
    context();
    stages();
    return std::move(lines_);
  }

 private:
  void add(std::string group, std::string what, double bytes) {
    if (bytes > 0) lines_.push_back({std::move(group), std::move(what), bytes});
  }
  static double share(double ranks) { return (ranks - 1) / ranks; }
  /// Whether replicas are virtual workers, each with updates of its own minibatches (HetPipe).
  bool waves() const { return layout_.pp > 1 && task_.config.pipeline.schedule.starts_with("hetpipe"); }
  bool has_encoder() const { return shape_.num_encoder_layers > 0; }

  Stack stack_of(Stack stack, std::int64_t length) const {
    stack.tokens = static_cast<double>(task_.config.micro_batch_size * length / layout_.cp);
    stack.hidden = stack.tokens * static_cast<double>(shape_.hidden_size) * compute_bytes_;
    if (full_) stack.layers.again += stack.layers.backward, stack.experts.again += stack.experts.backward;
    return stack;
  }
  /// Modules of multi-token prediction with experts.
  double mtp_experts() const {
    double modules = 0;
    for (std::int64_t i = 0; i < shape_.mtp_depth; ++i)
      modules += spec::has_experts(shape_, shape_.num_layers + i) ? 1 : 0;
    return modules;
  }

  void data() {
    if (waves()) return wave_pushes();
    for (const SummedGradients& one : task_.gradients) {
      if (one.all == 1) continue;
      add(one.everyone, "who used which parameter: an all-reduce of bytes",
          2 * static_cast<double>(one.asked) * share(one.all));
      if (layout_.zero == 0) {
        add(one.group, "gradient all-reduce, once a step: 2 Psi (N-1)/N", 2 * one.reduced_bytes * share(one.ranks));
        continue;
      }
      if (one.ranks > 1) shards(one);
      add(one.across, "all-reduce of shards between groups: 2 (Psi/N) (M-1)/M",
          2 * one.kept_bytes / one.ranks * share(one.others));
    }
  }

  void shards(const SummedGradients& one) {
    const double part = share(one.ranks);
    if (layout_.zero == 1) {
      add(one.group, "reduce-scatter of gradients, once a step: Psi (N-1)/N", one.reduced_bytes * part);
    } else {
      add(one.group, fmt::format("reduce-scatter of gradients, in backward of {} micros: Psi (N-1)/N", task_.micros),
          one.scattered_bytes * part);
    }
    if (layout_.zero < 3) {
      add(one.group, "gather of new weights, once a step: Psi (N-1)/N",
          static_cast<double>(one.parameters) * compute_bytes_ * part);
      // Whose layers gather versions as they do the present weights.
      add(one.group, "gathers of predicted weights", static_cast<double>(one.predicted) * compute_bytes_ * part);
    } else {
      add(one.group,
          fmt::format("gathers of weights, forward and backward of {} micros: 2 Psi (N-1)/N, a tied table for each use",
                      task_.micros),
          static_cast<double>(one.fetched) * compute_bytes_ * part);
    }
  }

  void wave_pushes() {
    const int workers = layout_.dp.value_or(1);
    double reduced = 0, kept = 0;
    for (const SummedGradients& one : task_.gradients) reduced += one.reduced_bytes, kept += one.kept_bytes;
    add(layout_.cp == 1 ? "data" : "dp", "push of a wave, an all-reduce: 2 Psi (N-1)/N", 2 * reduced * share(workers));
    add("cp", fmt::format("gradients of {} minibatches: 2 Psi (N-1)/N each", task_.micros),
        2 * static_cast<double>(task_.micros) * kept * share(layout_.cp));
  }

  /// Counts, rows and gates on their way to experts and back, where each rank has as many rows for each other.
  void experts() {
    const spec::Experts& experts = shape_.experts;
    if (!experts.used()) return;
    const auto number = static_cast<double>(experts.num_experts);
    for (const Stack* stack : {&decoder_, &encoder_}) {
      if (layout_.ep == 1) break;
      const bool parts =
          experts.slice_over_tp || layout_.sequence_parallel;  // each tensor-parallel rank has some tokens
      const double rows =
          stack->tokens / (parts ? layout_.tp : 1) * static_cast<double>(experts.top_k) * share(layout_.ep);
      const double row = static_cast<double>(shape_.hidden_size) * compute_bytes_;
      constexpr double kNumber = sizeof(std::int64_t);
      const double forward = rows * (2 * row + kNumber + sum_bytes_), backward = forward + rows * sum_bytes_;
      const double forwards = stack->experts.forward + stack->experts.again;
      const bool plain = experts.node_ranks == 0 && experts.redundant_experts == 0 &&
                         experts.dispatch_precision == spec::DispatchPrecision::kSame;
      add(task_.expert_group,
          fmt::format("{}rows to experts and back, with their gates, forward and backward, of balanced routing{}",
                      stack->name, plain ? "" : ", where each goes straight to its rank in the type of activations"),
          forwards * forward + stack->experts.backward * backward);
      add(task_.expert_group, stack->name + "how many rows each rank has for each expert",
          forwards * number * kNumber * (layout_.ep - 1));
    }
    // What experts took, and for how many rows, stands behind their counts.
    add(task_.load_group, "loads of experts, once a step",
        2 * (static_cast<double>(spec::expert_layers(shape_)) + mtp_experts()) * (number + 2) * sizeof(std::int64_t) *
            share(task_.load_ranks));
  }
  /// What a rank has of the logits of routers, which ranks that share a sample gather.
  double logits_of(const Stack& stack) const {
    return (stack.experts.forward + stack.experts.again) * stack.tokens *
           static_cast<double>(shape_.experts.num_experts) * sum_bytes_;
  }

  void tensor() {
    if (layout_.tp == 1) return;
    for (const Stack* stack : {&decoder_, &encoder_}) {
      const double one = stack->hidden * share(layout_.tp);  // a gather or a reduce-scatter of a micro-batch's tokens
      if (shape_.mla.used()) {
        latent_tensor(*stack, one);
      } else {
        layers_tensor(*stack, one);
      }
      if (task_.config.partition_activations)
        add("tp", stack->name + "gathers of the saved inputs that ranks share", stack->layers.again * one);
      if (layout_.sequence_parallel)
        add("tp", stack->name + "logits of routers, of all tokens of a sample", logits_of(*stack) * share(layout_.tp));
      else if (shape_.experts.slice_over_tp)
        slices_tensor(*stack, one);
      embedding_tensor(*stack, one);
    }
    if (has_encoder()) cross_tensor();
    head_tensor();
    const auto copies = [&](const char* group, const char* what, std::int64_t elements, double ranks) {
      const double times = waves() ? static_cast<double>(task_.micros) : 1;
      add(group, what, times * 2 * static_cast<double>(elements) * sum_bytes_ * share(ranks));
    };
    copies("tp", "gradients of what is replicated over tp", task_.copied_over_tp, layout_.tp);
    copies("tp copies", "gradients of heads of keys that several tp ranks hold", task_.copied_keys,
           static_cast<double>(layout_.tp) / static_cast<double>(shape_.num_kv_heads));
  }

  /// Layers' branches that ranks share: attention, and MLPs or shared experts. Other experts are whole on every rank.
  PassCount branches(const Stack& stack) const {
    PassCount count = stack.layers * 2;
    if (shape_.experts.num_shared_experts == 0) count += stack.experts * -1.0;
    return count;
  }

  void layers_tensor(const Stack& stack, double one) {
    const PassCount count = branches(stack);
    const bool again = count.again > 0;
    if (!layout_.sequence_parallel) {
      add("tp", stack.name + (again ? "6 all-reduces a layer: 4 and 2 of recomputation" : "4 all-reduces a layer"),
          (count.forward + count.again + count.backward) * 2 * one);
      return;
    }
    const int gathers = layout_.sp_save_gathered ? 4 : 6;
    add("tp",
        fmt::format("{}{} gathers and {} reduce-scatters a layer{}", stack.name, gathers + (again ? 2 : 0),
                    again ? 6 : 4, layout_.sp_save_gathered ? "" : ", 2 of them since gathered inputs are not saved"),
        ((count.forward + count.again) * 4 + count.backward * gathers) / 2 * one);
  }

  /// Tokens that all have, of which each rank dispatches some: outputs and gradients become whole again.
  void slices_tensor(const Stack& stack, double one) {
    const PassCount& layers = stack.experts;
    const double choices = stack.tokens * static_cast<double>(shape_.experts.top_k) * sizeof(double);
    add("tp", stack.name + "slices of experts' outputs, of their gradients, and of those of choices",
        (layers.forward + layers.again + layers.backward) * one + layers.backward * 2 * choices * share(layout_.tp));
  }

  void embedding_tensor(const Stack& stack, double one) {
    const bool split = layout_.sequence_parallel;
    const PassCount& count = stack.embeddings;
    add("tp", stack.name + (split ? "reduce-scatter and gather of the embedding" : "all-reduce of the embedding"),
        split ? (count.forward + count.again + count.backward) * one : (count.forward + count.again) * 2 * one);
  }

  /// Between a decoder's self-attention and its MLP: queries from its own stream, keys and values from the encoder's.
  void cross_tensor() {
    const double own = decoder_.hidden * share(layout_.tp), source = encoder_.hidden * share(layout_.tp);
    const PassCount& layers = decoder_.layers;
    const double forwards = layers.forward + layers.again;
    if (!layout_.sequence_parallel) {
      add("tp", "cross-attention: 3 all-reduces a layer, one of them of the encoder's output",
          forwards * 2 * own + layers.backward * 2 * (own + source));
      return;
    }
    const double again = layout_.sp_save_gathered ? 0 : 1;  // gathered inputs, where they are not saved
    add("tp", "cross-attention: gathers and reduce-scatters of both streams",
        forwards * (2 * own + source) + layers.backward * ((2 + again) * own + (1 + again) * source));
  }

  void head_tensor() {
    if (heads_.forward == 0) return;
    const bool split = layout_.sequence_parallel;
    const double one = decoder_.hidden * share(layout_.tp);
    add("tp", split ? "gather and reduce-scatter of the head" : "all-reduce of the head's input gradient",
        split ? (heads_.forward + heads_.again + heads_.backward) * one : heads_.backward * 2 * one);
    add("tp", "three values a token for the loss",
        3 * (heads_.forward + heads_.again) * decoder_.tokens * sum_bytes_ * (layout_.tp - 1));
  }

  /// Latent attention: what enters its sharded matrices are latents and the shared key, in place of the hidden state.
  void latent_tensor(const Stack& stack, double one) {
    const spec::Mla& mla = shape_.mla;
    const auto width = static_cast<double>(shape_.hidden_size);
    const double gathered =
        ((mla.q_lora_rank > 0 ? static_cast<double>(mla.q_lora_rank) : width) + static_cast<double>(mla.kv_lora_rank)) /
        width;
    const double latents = gathered + static_cast<double>(mla.qk_rope_head_dim) / width;
    const PassCount &layers = stack.layers, mlps = branches(stack) + layers * -1.0;
    const double forwards = layers.forward + layers.again, middles = mlps.forward + mlps.again;
    if (!layout_.sequence_parallel) {
      add("tp", "3 all-reduces a layer, and one of the latents' gradients",
          (forwards + middles + mlps.backward + layers.backward * latents) * 2 * one);
      return;
    }
    // Forward: gathers of latents and of the MLP's input, reduce-scatters of both outputs. Backward: gathers of two
    // output gradients, of inputs again where they were not saved, reduce-scatters of the inputs' gradients.
    const double again = layout_.sp_save_gathered ? 0 : 1;
    add("tp", "gathers and reduce-scatters of latents, of the MLP's input and of both outputs",
        (forwards * (latents + 1) + middles * 2 + layers.backward * (1 + again * gathered + latents) +
         mlps.backward * (2 + again)) *
            one);
  }

  /// Of keys of the ranks that share rows, without those of tensor parallelism: elements, half of keys and values.
  double keys_of(double tokens) const {
    const spec::AttentionWidths widths = spec::attention_widths(shape_);
    return tokens * static_cast<double>(own_keys()) * static_cast<double>(widths.keys + widths.values) / 2 /
           static_cast<double>(shape_.num_kv_heads);
  }
  std::int64_t own_keys() const { return std::max<std::int64_t>(1, shape_.num_kv_heads / layout_.tp); }

  /// Ranks of context parallelism that trade heads for tokens, and of those groups the ranks that share a row.
  int inner() const { return layout_.cp_kind == ContextKind::kUlysses ? layout_.cp : layout_.cp_ulysses; }
  int outer() const { return layout_.cp / inner(); }
  const char* inner_group() const { return outer() > 1 ? "cp ulysses" : "cp"; }
  const char* outer_group() const { return inner() > 1 ? "cp outer" : "cp"; }

  void context() {
    if (layout_.cp == 1) return;
    for (const Stack* stack : {&decoder_, &encoder_}) {
      self_context(*stack);
      const std::string logits = stack->name + "logits of routers, of all tokens of a sample";
      add(inner_group(), logits, logits_of(*stack) * (inner() - 1));
      add(outer_group(), logits, logits_of(*stack) * inner() * (outer() - 1));
    }
    if (has_encoder()) cross_context();
  }

  void self_context(const Stack& stack) {
    PassCount layers = stack.layers;
    // Selective recomputation runs attention's core again, and what ranks tell each other for it.
    if (task_.config.recompute == spec::RecomputeKind::kSelective) layers.again += layers.backward;
    const char* again = layers.again > 0 ? ", again" : "";
    const double forwards = layers.forward + layers.again;
    const spec::AttentionWidths widths = spec::attention_widths(shape_);
    // Of queries and outputs, of keys and values.
    const double queries = stack.tokens * static_cast<double>(widths.queries + widths.attended) / 2 / layout_.tp;
    const double keys = keys_of(stack.tokens);
    if (inner() > 1) {
      const double spread = own_keys() % inner() == 0 ? keys : keys * inner() / static_cast<double>(own_keys());
      const double pass = (2 * queries + 2 * spread) * compute_bytes_ * share(inner());
      add(inner_group(),
          fmt::format("{}all-to-alls of q, k, v and the output, forward and backward{}", stack.name, again),
          (forwards + layers.backward) * pass);
    }
    if (outer() == 1) return;
    const double block = 2 * keys * inner() / inner_heads() * compute_bytes_;
    const double sums = block / compute_bytes_ * sum_bytes_;
    if (layout_.cp_kind == ContextKind::kRing) {
      add(outer_group(), fmt::format("{}ring: {} blocks of K and V forward{}", stack.name, outer() - 1, again),
          forwards * (outer() - 1) * block);
      add(outer_group(),
          fmt::format("{}ring: {} blocks of K and V and of their gradients backward", stack.name, outer() - 1),
          layers.backward * (outer() - 1) * (block + sums));
    } else {
      add(outer_group(), stack.name + "gather of K and V, forward and backward",
          (forwards + layers.backward) * (outer() - 1) * block);
      add(outer_group(), stack.name + "reduce-scatter of their gradients", layers.backward * (outer() - 1) * sums);
    }
  }

  /// Each rank's queries see the encoder's output of all, whatever the way of self-attention is.
  void cross_context() {
    const PassCount& layers = decoder_.layers;
    const double keys = 2 * keys_of(encoder_.tokens);
    const double gathers = (layers.forward + layers.again + layers.backward) * keys * compute_bytes_;
    const double sums = layers.backward * keys * sum_bytes_;
    add(inner_group(), "cross-attention: gathers of K and V, and reduce-scatter of their gradients",
        (gathers + sums) * (inner() - 1));
    add(outer_group(), "cross-attention: gathers of K and V, and reduce-scatter of their gradients",
        (gathers + sums) * inner() * (outer() - 1));
  }

  /// Trading gives a rank fewer heads and more tokens; where heads of keys are copied, not that many fewer.
  double inner_heads() const { return own_keys() % inner() == 0 ? inner() : static_cast<double>(own_keys()); }

  void stages() {
    if (layout_.pp == 1) return;
    const bool scattered = task_.config.pipeline.scatter_gather;
    const double of_ids = static_cast<double>(task_.config.micro_batch_size * task_.job.seq_len * 8);
    const auto hidden = [&](const StageMessages& all) {
      return static_cast<double>(all.hidden) * decoder_.hidden + static_cast<double>(all.source) * encoder_.hidden;
    };
    const auto messages = [](const StageMessages& all) { return all.hidden + all.source + all.ids; };
    if (scattered) {
      add("tp", fmt::format("all-gather of {} messages from other stages", messages(task_.received)),
          (hidden(task_.received) + static_cast<double>(task_.received.ids) * of_ids) * share(layout_.tp));
    }
    const double between = layout_.sequence_parallel || scattered ? 1.0 / layout_.tp : 1.0;
    add("pp", fmt::format("{} messages between stages", messages(task_.sent)),
        hidden(task_.sent) * between +
            static_cast<double>(task_.sent.ids) * of_ids / (scattered ? static_cast<double>(layout_.tp) : 1.0));
    add("pp copies", "gradients of parameters that several ranks of the pipeline have: 2 Psi (N-1)/N",
        2 * task_.copied_bytes);
    // Two counts of work, whether a rank has a new term of the loss, and the sum and count of each term.
    add("pp", "losses and work of a step, added up",
        2.0 * (3 + 2 * task_.loss_terms) * sizeof(double) * share(layout_.pp));
  }

  const TrafficTask& task_;
  const spec::ModelShape& shape_;
  const spec::LayoutConfig& layout_;
  const double compute_bytes_, sum_bytes_;  // of a weight and an activation; of what is added up in full
  const bool full_;
  const PassCount modules_;
  const Stack decoder_, encoder_;
  const PassCount heads_;
  std::vector<TrafficLine> lines_;
};

}  // namespace

std::vector<TrafficLine> traffic_of(const TrafficTask& task) { return Count(task).run(); }

double saved_bytes(const TrafficTask& task) {
  const ActivationBytes bytes = activation_bytes(task.job, task.config);
  return static_cast<double>(task.layers) * bytes.layer + (task.embedding ? bytes.embedding : 0) +
         (task.head ? bytes.head : 0);
}

}  // namespace trireme::plan
