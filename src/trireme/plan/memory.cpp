#include "trireme/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme::plan {
namespace {

using spec::MasterWeights;
using Use = MemoryUse;

/// Buckets of ZeRO 2 and 3 under way: those that are reduced, the one that fills, and with offload those that leave for
/// the host (parallel/gradient_buckets.cpp).
constexpr double kBucketsInFlight = 5, kBucketsLeaving = 4;
constexpr double kMegatronBucketBytes = 2.0e8;
/// ZeRO-3 of published runs is DeepSpeed's: numbers of a bucket, unless told otherwise (reduce_bucket_size).
constexpr double kDeepSpeedBucket = 5.0e8;

/// Parameters of a rank before ZeRO. Matrices of layers, of tables and head, and routed experts may have narrow states;
/// vectors never have.
struct HeldParameters {
  double layers = 0, tables = 0, vectors = 0, experts = 0;
  double all() const { return layers + tables + vectors + experts; }
};

/// Matrices of keys and values of a layer that tensor-parallel ranks have beyond their share: copies, where they are
/// more than the heads of keys.
double copied_keys(const Job& job, const ParallelConfig& config) {
  const spec::ModelShape& shape = job.shape;
  const double tp = config.layout.tp, heads = static_cast<double>(shape.num_kv_heads);
  if (shape.mla.kv_lora_rank > 0 || tp <= heads) return 0;
  return 2 * static_cast<double>(shape.hidden_size * shape.head_dim) * (1 - heads / tp);
}

/// Biases of a layer's matrices that are sharded by their outputs, and so are sharded with them; other biases and norms
/// every tensor-parallel rank has.
double sharded_vectors(const spec::ModelShape& shape) {
  if (shape.mla.kv_lora_rank > 0) return 0;
  const double attention = static_cast<double>((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
  const double mlp = static_cast<double>(shape.ffn_size * (shape.gated ? 2 : 1));
  return (shape.attention_bias ? attention : 0) + (shape.mlp_bias ? mlp : 0);
}

/// Learned positions, beside the token embedding: each rank has them whole.
double learned_positions(const spec::ModelShape& shape) {
  return shape.position_kind == spec::PositionKind::kLearned
             ? static_cast<double>(shape.max_seq_len * shape.hidden_size)
             : 0;
}

HeldParameters held_parameters(const Job& job, const ParallelConfig& config, const WeightCounts& weights, double layers,
                               double embeddings, double heads) {
  const double tp = config.layout.tp;
  HeldParameters held;
  const double whole = layers * weights.layer_replicated + heads * weights.mtp_replicated;
  held.layers =
      (layers * (weights.layer - weights.layer_vectors) + heads * (weights.mtp - weights.mtp_vectors) - whole) / tp +
      whole + layers * copied_keys(job, config);
  const double sharded = std::min(weights.layer_vectors, sharded_vectors(job.shape));
  held.vectors =
      layers * (weights.layer_vectors - sharded * (1 - 1 / tp)) + heads * (weights.mtp_vectors + weights.head_vectors);
  held.experts = (layers * weights.experts + heads * weights.mtp_experts) / weights.expert_ranks(config);
  // A head on another rank than the embedding has a copy of it where it is tied or predicts further tokens.
  const double positions = embeddings * learned_positions(job.shape);
  held.tables =
      positions * (1 - 1 / tp) + (embeddings * weights.embedding + heads * (weights.head - weights.head_vectors) +
                                  std::max(0.0, heads - embeddings) * weights.tied_head) /
                                     tp;
  return held;
}

/// What one parameter of a class has.
struct StateBytes {
  double weight, master, gradient, moments;
};

class StateTypes {
 public:
  explicit StateTypes(const Job& job)
      : job_(job), moments_(spec::moments_of(job.optim)), matrix_moments_(spec::matrix_moments_of(job.optim)) {
    if (job.optim.state_dtype == spec::StateDtype::kBf16)
      moment_bytes_ = 2;
    else
      moment_bytes_ = job.sum_bytes();
    const MasterWeights masters = job.precision.master_weights;
    narrow_layers_ = masters != MasterWeights::kFp32;
    narrow_tables_ = masters == MasterWeights::kVectors;
    narrow_gradients_ = spec::has_narrow_gradients(job.precision);
  }

  StateBytes of_layers() const {
    StateBytes bytes = make(!narrow_layers_, narrow_gradients_ || narrow_layers_);
    bytes.moments = matrix_moments_ * moment_bytes_;
    return bytes;
  }
  StateBytes of_tables() const {
    StateBytes bytes = make(!narrow_tables_, narrow_gradients_ || narrow_tables_);
    if (job_.optim.kind == spec::OptimizerKind::kAdafactor) bytes.moments = matrix_moments_ * moment_bytes_;
    return bytes;
  }
  StateBytes of_vectors() const { return make(true, false); }
  /// The type of the gradients of tables, which no bucket cuts.
  double table_gradient_bytes() const { return of_tables().gradient; }
  double moment_bytes() const { return moment_bytes_; }

 private:
  StateBytes make(bool has_master, bool narrow_gradient) const {
    const double compute = job_.compute_bytes(), sum = job_.sum_bytes();
    return {.weight = compute,
            .master = has_master && compute != sum ? sum : 0,
            .gradient = narrow_gradient ? compute : sum,
            .moments = moments_ * moment_bytes_};
  }

  const Job& job_;
  double moments_, matrix_moments_, moment_bytes_ = 4;
  bool narrow_layers_ = false, narrow_tables_ = false, narrow_gradients_ = false;
};

/// Of all parameters of a rank: before ZeRO, and after the cut of each stage.
struct States {
  double weights = 0, masters = 0, gradients = 0, moments = 0;  ///< as ZeRO's stage leaves them
  double whole_gradients = 0;                                   ///< before the cut
  double owned_gradients = 0;                                   ///< of those that the rank updates
  double owned = 0;                                             ///< parameters that it updates
  double averages = 0;                                          ///< of weights (optim.ema_decay)
  double updated = 0;                                           ///< bytes of them: master weights, or weights
  double matrices = 0;                                          ///< of them, elements of layers' matrices
  double owned_narrow = 0;                                      ///< of them, those with gradients below the full type
};

States states_of(const Job& job, const ParallelConfig& config, const HeldParameters& held) {
  const StateTypes types(job);
  const int zero = config.layout.zero;
  const double sharers = config.zero_ranks();
  const double expert_sharers = std::max(1.0, sharers / config.layout.ep);
  States out;
  const auto add = [&](double count, const StateBytes& each, double ranks) {
    const auto cut = [&](int stage) { return zero >= stage ? 1 / ranks : 1.0; };
    out.weights += count * each.weight * cut(3);
    out.masters += count * each.master * cut(1);
    out.moments += count * each.moments * cut(1);
    out.gradients += count * each.gradient * cut(2);
    out.whole_gradients += count * each.gradient;
    out.owned_gradients += count * each.gradient * cut(1);
    out.owned += count * cut(1);
    if (job.optim.ema_decay) out.averages += count * cut(1) * job.sum_bytes();
    out.updated += count * (each.master > 0 ? each.master : each.weight) * cut(1);
    if (each.gradient < job.sum_bytes()) out.owned_narrow += count * cut(1);
  };
  out.matrices = (held.layers + held.experts) * (zero >= 1 ? 1 / sharers : 1.0);
  add(held.layers, types.of_layers(), sharers);
  add(held.tables, types.of_tables(), sharers);
  add(held.vectors, types.of_vectors(), sharers);
  add(held.experts, types.of_layers(), expert_sharers);
  return out;
}

/// Fills the lines of one rank.
class Account {
 public:
  Account(const Job& job, const ParallelConfig& config, const ActivationBytes& activations, const WeightCounts& weights,
          const StageLoad& load)
      : job_(job), config_(config), activations_(activations), weights_(weights), load_(load) {}

  RankMemory run() {
    memory_.stage = load_.stage;
    memory_.layers = load_.layers;
    memory_.in_flight = load_.in_flight;
    held_ = held_parameters(job_, config_, weights_, load_.layers, load_.embeddings, load_.heads);
    states_ = states_of(job_, config_, held_);
    add_states();
    add_versions();
    add_activations();
    megatron() ? add_megatron_buffers() : add_buffers();
    if (config_.layout.pp > 1) memory_[Use::kMessages] = 4 * activations_.hidden * activations_.between;
    return memory_;
  }

 private:
  bool megatron() const { return job_.software == Software::kMegatron; }
  /// Whether steps are validated after the fact.
  bool validates() const {
    return config_.layout.pp > 1 && config_.pipeline.drain_every.value_or(1) > 1 && !is_asynchronous(config_);
  }
  bool offloads() const { return config_.layout.offload == spec::OffloadKind::kOptimizer; }

  void add_states() {
    memory_[Use::kWeights] = states_.weights;
    // LAMB's lie where gradients were, unless those are too narrow or a step may be taken again from them.
    double directions = 0;
    if (job_.optim.kind == spec::OptimizerKind::kLamb)
      directions = (validates() ? states_.owned : states_.owned_narrow) * job_.sum_bytes();
    // Of matrices that are updated as a whole: this rank's parts, and those that it owns.
    if (spec::has_matrix_updates(job_.optim.kind)) directions = 2 * states_.matrices * job_.sum_bytes();
    if (offloads()) {
      // New weights are made beside the master weights where types differ, and go from there.
      const spec::LayoutConfig& layout = config_.layout;
      const bool rounded = layout.reduce == spec::ReduceKind::kBf16 && layout.zero == 0 && config_.ranks() == 1;
      const double sums = rounded ? states_.owned * job_.compute_bytes() : states_.owned_gradients;
      memory_.host = states_.masters + states_.moments + states_.averages + sums * (layout.delayed_update ? 2 : 1) +
                     states_.owned * job_.compute_bytes() + directions;
      if (layout.zero < 2) memory_[Use::kGradients] = states_.whole_gradients;
      return;
    }
    memory_[Use::kMasterWeights] = states_.masters;
    memory_[Use::kGradients] = states_.gradients;
    memory_[Use::kOptimizerState] = states_.moments + states_.averages;
    memory_[Use::kDirections] = directions;
  }

  void add_versions() {
    const HeldParameters versions =
        held_parameters(job_, config_, weights_, load_.version_layers, load_.version_embeddings, load_.version_heads);
    memory_[Use::kWeightVersions] =
        versions.all() * job_.compute_bytes() / (config_.layout.zero == 3 ? config_.zero_ranks() : 1);
    if (is_asynchronous(config_)) add_shared_sums();
    // A step that is validated after the fact is restored from copies of what it changes; of gradients that do not lie
    // where layers add to them, the next step has others meanwhile.
    if (validates()) {
      const double restored = states_.updated + states_.moments;
      (offloads() ? memory_.host : memory_[Use::kWeightVersions]) += restored;
      if (offloads()) {
        memory_.host += states_.owned_gradients;
      } else if (config_.layout.zero >= 2) {
        memory_[Use::kGradients] += states_.gradients;
      }
    }
    // A weight and its transpose, a byte each.
    if (job_.precision.gemm != spec::GemmPrecision::kSame && !megatron())
      memory_[Use::kFp8Weights] = 2 * (held_.layers + held_.experts);
  }

  /// Of a table that several stages have, sums of gradients that later updates take (pipeline/reduction.h).
  void add_shared_sums() {
    const spec::ModelShape& shape = job_.shape;
    const bool shared = shape.tied || shape.num_encoder_layers > 0 || shape.mtp_depth > 0;
    if (!shared || load_.embeddings + load_.heads == 0) return;
    const double table = static_cast<double>(shape.vocab_size * shape.hidden_size) / config_.layout.tp *
                         StateTypes(job_).table_gradient_bytes();
    const double sums =
        (load_.steps_ahead + 1) * table / (config_.layout.zero >= 1 ? static_cast<double>(config_.zero_ranks()) : 1.0);
    (offloads() ? memory_.host : memory_[Use::kWeightVersions]) += sums;
  }

  void add_activations() {
    StageLoad::Saved saved{load_.saved_layers, load_.saved_embeddings, load_.saved_heads, load_.saved_inputs};
    const double input = activations_.hidden * activations_.between;
    const auto bytes_of = [&](const StageLoad::Saved& one) {
      return one.layers * activations_.layer + one.inputs * input + one.embeddings * activations_.embedding +
             one.heads * activations_.head;
    };
    if (!load_.saved_at_once.empty()) saved = *std::ranges::max_element(load_.saved_at_once, {}, bytes_of);
    double layers = saved.layers * activations_.layer;
    if (config_.offload_activations && activations_.recomputed_layers > 0) {
      const double here = std::min(layers, 2 * activations_.hidden);
      memory_.host += std::max(0.0, layers - activations_.hidden);
      layers = here;
    }
    memory_[Use::kActivations] = layers + saved.inputs * input;
    memory_[Use::kHead] = saved.embeddings * activations_.embedding + saved.heads * activations_.head;
  }

  /// Attention with relative position biases holds its scores, their gradients and one more of all pairs.
  double scores() const {
    if (job_.shape.position_kind != spec::PositionKind::kRelative) return 0;
    // A ring has one block of keys at a time, and one of each rank's two blocks of queries.
    const spec::LayoutConfig& layout = config_.layout;
    const bool ring = layout.cp_kind == spec::ContextKind::kRing && layout.cp > layout.cp_ulysses;
    const int outer = ring ? layout.cp / layout.cp_ulysses : 1, stretches = job_.seq_len % (2 * outer) == 0 ? 2 : 1;
    const double blocks = ring ? static_cast<double>(outer * stretches * stretches) : 1;
    return 3 * activations_.tokens * static_cast<double>(job_.seq_len * job_.shape.num_heads) / blocks / layout.tp *
           job_.sum_bytes();
  }

  /// Where hot experts have copies: the weights of a layer's own experts and copies side by side, and their gradients
  /// before those of copies go to the owners.
  double copied_experts() const {
    const spec::Experts& experts = job_.shape.experts;
    if (experts.redundant_experts == 0 || config_.layout.ep == 1) return 0;
    const double slots = static_cast<double>(experts.num_experts + experts.redundant_experts) / config_.layout.ep;
    const auto each =
        static_cast<double>(job_.shape.hidden_size * spec::expert_ffn_size(job_.shape) * (job_.shape.gated ? 3 : 2));
    return slots * each * (job_.compute_bytes() + job_.sum_bytes());
  }

  /// Experts that move between steps: of one tensor at a time what leaves and what comes, at most all that a rank has.
  double moving_experts() const {
    const spec::Experts& experts = job_.shape.experts;
    if (!experts.move_experts || config_.layout.ep == 1) return 0;
    const auto largest =
        static_cast<double>(job_.shape.hidden_size * spec::expert_ffn_size(job_.shape) * (job_.shape.gated ? 2 : 1));
    return 2 * static_cast<double>(experts.num_experts) / config_.layout.ep * largest * job_.sum_bytes();
  }

  /// The most of a step: the head with its logits, or a layer that goes back.
  void add_buffers() {
    const double tp = config_.layout.tp, row = static_cast<double>(job_.shape.vocab_size) / tp * job_.compute_bytes();
    // A chunk of logits, whose gradient takes their place, and the norm's output. A layer that goes back: gradients of
    // its MLP's middle, the middle once more, and what comes in and goes out.
    const double logits =
        std::min(std::max(job_.logits_chunk_bytes, row), activations_.tokens * row) + activations_.hidden;
    const double back = activations_.mlp_middle * (job_.shape.gated ? 4 : 3) + 2 * activations_.hidden +
                        activations_.recomputed_layers * activations_.whole_layer + scores();
    memory_[Use::kWorking] =
        std::max(std::max(back, load_.heads > 0 ? logits : 0) + copied_experts(), moving_experts());
    memory_[Use::kLibraries] = kGemmWorkspace;
    if (config_.layout.zero < 2) return;
    const double largest = load_.embeddings + load_.heads > 0
                               ? static_cast<double>(job_.shape.vocab_size * job_.shape.hidden_size) / tp
                               : 0;
    const double bucket = config_.layout.bucket_mb > 0 ? std::max(config_.layout.bucket_mb * 1e6,
                                                                  largest * StateTypes(job_).table_gradient_bytes())
                                                       : states_.whole_gradients;
    memory_[Use::kBuckets] =
        std::min(states_.whole_gradients, bucket * (kBucketsInFlight + (offloads() ? kBucketsLeaving : 0)));
    if (config_.layout.zero == 3) {
      const double layer = held_.all() / std::max(1, load_.layers);
      memory_[Use::kGathered] = 2 * std::max(layer, largest) * job_.compute_bytes();
    }
  }

  void add_megatron_buffers() {
    const double compute = job_.compute_bytes(), layer = weights_.layer_share(config_);
    const int zero = config_.layout.zero;
    // Gradients are summed over the micro-batches that pass a chunk in a row before they are reduced and sharded.
    if (zero == 2)
      memory_[Use::kBuckets] =
          config_.layout.pp > 1 ? states_.whole_gradients / chunks_per_rank(config_) : compute * layer;
    // The layer at hand, gathered. While its gradients come up its activations go, so half of them count.
    if (zero == 3) memory_[Use::kGathered] = compute * layer * 1.5;
    if (config_.replicas() > 1 && zero != 2)
      memory_[Use::kBuckets] +=
          std::min(zero == 3 ? kDeepSpeedBucket * compute : kMegatronBucketBytes, states_.whole_gradients);
    if (offloads()) memory_[Use::kBuckets] += compute * layer;  // a layer's gradients being sent
    double working = activations_.recomputed_layers * activations_.whole_layer;
    // Logits in fp32 and in sixteen bits; never at the same time as a layer is recomputed.
    if (load_.heads > 0)
      working =
          std::max(working, 6 * activations_.tokens * static_cast<double>(job_.shape.vocab_size) / config_.layout.tp);
    memory_[Use::kWorking] = working;
  }

  const Job& job_;
  const ParallelConfig& config_;
  const ActivationBytes& activations_;
  const WeightCounts& weights_;
  const StageLoad& load_;
  HeldParameters held_;
  States states_;
  RankMemory memory_;
};

}  // namespace

double context_bytes() { return cost::Device{}.software_gb * 1e9; }

double RankMemory::peak() const {
  double sum = 0;
  for (const double one : bytes) sum += one;
  return sum;
}

MemoryParts RankMemory::parts() const {
  const RankMemory& self = *this;
  return {.weights = self[Use::kWeights] + self[Use::kWeightVersions] + self[Use::kFp8Weights],
          .gradients = self[Use::kGradients],
          .optimizer = self[Use::kMasterWeights] + self[Use::kOptimizerState] + self[Use::kDirections],
          .activations = self[Use::kActivations] + self[Use::kHead],
          .working = self[Use::kWorking] + self[Use::kGathered] + self[Use::kBuckets],
          .buffers = self[Use::kMessages] + self[Use::kLibraries] + self[Use::kContext]};
}

ModelStates model_states(const Job& job, const ParallelConfig& config, double parameters) {
  const States states = states_of(job, config, {.layers = parameters});
  return {.weights = states.weights,
          .master_weights = states.masters,
          .gradients = states.gradients,
          .optimizer = states.moments};
}

RankMemory rank_memory(const Job& job, const ParallelConfig& config, const ActivationBytes& activations,
                       const WeightCounts& weights, const StageLoad& load) {
  return Account(job, config, activations, weights, load).run();
}

std::vector<RankMemory> rank_memories(const Job& job, const ParallelConfig& config) {
  const ActivationBytes activations = activation_bytes(job, config);
  const WeightCounts weights = count_weights(job);
  std::vector<RankMemory> ranks;
  for (const StageLoad& load : stage_loads(job, config))
    ranks.push_back(rank_memory(job, config, activations, weights, load));
  return ranks;
}

std::vector<RankMemory> stage_memories(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config) {
  std::vector<RankMemory> ranks = rank_memories(job, config);
  for (RankMemory& one : ranks) one[Use::kContext] = hardware.device.software_gb * 1e9;
  return ranks;
}

Memory sum_up(const cost::Hardware& hardware, const std::vector<RankMemory>& ranks) {
  Memory memory;
  memory.fullest = *std::ranges::max_element(ranks, {}, &RankMemory::peak);
  memory.fullest[Use::kContext] = hardware.device.software_gb * 1e9;
  memory.parts = memory.fullest.parts();
  for (const RankMemory& one : ranks) memory.host = std::max(memory.host, one.host);
  memory.device = hardware.memory_bytes();
  memory.host_device = hardware.cluster.host.memory_gib * 1073741824.0;
  memory.fits = memory.peak() <= kUsable * memory.device && memory.host <= kUsable * memory.host_device;
  return memory;
}

Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config) {
  ScheduleCache schedules(job);
  return estimate_memory(hardware, job, config, schedules);
}

Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                       ScheduleCache& schedules) {
  const ActivationBytes activations = activation_bytes(job, config);
  const WeightCounts weights = count_weights(job);
  std::vector<RankMemory> ranks;
  for (const StageLoad& load : schedules.loads(config).fullest)
    ranks.push_back(rank_memory(job, config, activations, weights, load));
  return sum_up(hardware, ranks);
}

std::pair<const char*, double> MemoryParts::largest() const {
  const std::array<std::pair<const char*, double>, 6> named{{{"weights", weights},
                                                             {"gradients", gradients},
                                                             {"optimizer state", optimizer},
                                                             {"activations", activations},
                                                             {"working memory", working},
                                                             {"buffers", buffers}}};
  return *std::ranges::max_element(named, {}, &std::pair<const char*, double>::second);
}

std::string Memory::why() const {
  const auto [name, bytes] = parts.largest();
  const bool plural = std::string_view(name).ends_with('s');
  return fmt::format("stage {}: {:.1f} micro-batches in flight, {} {} {:.0f} %", fullest.stage, fullest.in_flight, name,
                     plural ? "take" : "takes", 100 * bytes / peak());
}

std::string memory_table(const Job& job, const ParallelConfig& config, const RankMemory& memory) {
  using enum TextTable::Align;
  const StateTypes types(job);
  const bool tables = types.of_tables().gradient < job.sum_bytes();
  const std::string gradients =
      config.layout.offload == spec::OffloadKind::kOptimizer ? "until they are on the host"
      : types.of_layers().gradient < job.sum_bytes()
          ? fmt::format("{:.0f} bytes of {}, {:.0f} of the rest", job.compute_bytes(),
                        tables ? "matrices and tables" : "matrices of layers", job.sum_bytes())
          : fmt::format("{:.0f} bytes each", job.sum_bytes());
  const std::string activations =
      config.recompute == spec::RecomputeKind::kStage ? std::string("inputs of chunks, and one chunk that runs again")
      : config.offload_activations && config.recompute != spec::RecomputeKind::kNone
          ? std::string("of two layers' inputs; the rest is on the host")
          : fmt::format("{} in each of {}, {:.1f} micro-batches in flight",
                        short_bytes(activation_bytes(job, config).layer),
                        counted(static_cast<std::size_t>(memory.layers), "layer"), memory.in_flight);
  const std::pair<const char*, std::string> lines[kMemoryUses] = {
      {"weights", fmt::format("{:.0f} bytes each{}", job.compute_bytes(), config.layout.zero >= 3 ? ", sharded" : "")},
      {"weight versions", "that micro-batches in flight still need"},
      {"fp8 weights", "quantised copies of the matrices of layers"},
      {"master weights", fmt::format("{:.0f} bytes each", job.sum_bytes())},
      {"gradients", gradients},
      {"optimizer",
       spec::has_matrix_updates(job.optim.kind)
           ? fmt::format("of matrices {:.1f} x {:.0f} bytes each, of others {} x", spec::matrix_moments_of(job.optim),
                         types.moment_bytes(), spec::moments_of(job.optim))
           : fmt::format("{} x {:.0f} bytes each", spec::moments_of(job.optim), types.moment_bytes())},
      {"directions", "updates of whole matrices, or of LAMB beside narrower gradients"},
      {"buckets", "gradients in flight"},
      {"gathered", "weights of two layers"},
      {"activations", activations},
      {"head and tokens", "the last norm's input, the head's input gradient"},
      {"working", "logits and their gradient, or a layer that goes back"},
      {"messages", "activations and gradients between stages"},
      {"libraries", "workspace of GEMMs"},
      {"context", "of the device, its kernels and libraries"}};
  TextTable table({{"GPU memory, planned"}, {"bytes", kRight}, {"which are"}});
  for (std::size_t use = 0; use < kMemoryUses; ++use) {
    if (memory.bytes[use] > 0) table.add({lines[use].first, short_bytes(memory.bytes[use]), lines[use].second});
  }
  table.add(
      {"at most", short_bytes(memory.peak()), memory.host > 0 ? short_bytes(memory.host) + " more on the host" : ""});
  return table.text();
}

}  // namespace trireme::plan
