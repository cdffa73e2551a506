// Every configuration that a search looks at.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/plan/search.h"
#include "trireme/schedule/builders.h"

namespace trireme::plan {
namespace {

/// Divisors of a number, ascending.
std::vector<int> divisors_up_to(std::int64_t number, std::int64_t most) {
  std::vector<int> found;
  for (std::int64_t divisor = 1; divisor <= std::min(number, most); ++divisor) {
    if (number % divisor == 0) found.push_back(static_cast<int>(divisor));
  }
  return found;
}

template <typename T>
std::vector<T> given_or(const std::optional<T>& given, std::vector<T> all) {
  return given ? std::vector<T>{*given} : std::move(all);
}

/// A sequence is split only while each part is still long enough to keep a device busy.
constexpr std::int64_t kShortestPart = 2048;
constexpr std::int64_t kLargestMicrobatch = 64;
constexpr int kMostStages = 256;
/// ZeRO groups of few replicas can have any size; of many, those that fill a node, four of them, sixteen, ...
constexpr int kFewReplicas = 16, kGroupStep = 4;

class Enumerator {
 public:
  using Visit = std::function<void(const ParallelConfig&, bool)>;
  Enumerator(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given, const Visit& visit)
      : hardware_(hardware), job_(job), gpus_(gpus), given_(given), visit_(visit), config_(given.base) {}

  bool run() {
    // Not beyond a node unless asked for: every layer would wait for the network, and no published run has done so.
    for (const int tp : given_or(given_.tp, divisors_up_to(job_.shape.num_heads, hardware_.cluster.gpus_per_node))) {
      for (const int cp : given_or(given_.cp, contexts())) {
        if (gpus_ % (tp * cp) != 0) continue;
        for (const int pp : given_or(given_.pp, stages(gpus_ / (tp * cp)))) {
          if (gpus_ / (tp * cp) % pp != 0) continue;
          const int dp = gpus_ / (tp * cp * pp);
          if (given_.dp && *given_.dp != dp) continue;
          spec::LayoutConfig& layout = config_.layout;
          layout.tp = tp, layout.cp = cp, layout.pp = pp, layout.dp = dp;
          layout.cp_kind = given_.cp_kind.value_or(given_.base.layout.cp_kind);
          for (const int ep : given_or(given_.ep, expert_splits(dp * cp))) {
            layout.ep = ep;
            with_batches();
          }
        }
      }
    }
    return found_;
  }

 private:
  std::vector<int> contexts() const {
    std::vector<int> found{1};
    if (job_.attention == AttentionKind::kUnfused) return found;
    for (int cp = 2; job_.seq_len % cp == 0 && job_.seq_len / cp >= kShortestPart; cp *= 2) found.push_back(cp);
    return found;
  }
  /// Ranks that can share out the experts.
  std::vector<int> expert_splits(int copies) const {
    const std::int64_t experts = job_.shape.experts.num_experts;
    return experts == 0 ? std::vector<int>{1} : divisors_up_to(std::gcd(experts, std::int64_t{copies}), experts);
  }
  std::vector<int> stages(int left) const { return divisors_up_to(left, std::min(layers_of(job_.shape), kMostStages)); }

  void with_batches() {
    if (job_.batch % config_.dp() != 0) return;
    const std::int64_t each = job_.batch / config_.dp();
    std::vector<std::int64_t> sizes;
    for (const int size : divisors_up_to(each, kLargestMicrobatch)) sizes.push_back(size);
    for (const std::int64_t size : given_or(given_.micro_batch_size, sizes)) {
      if (each % size != 0) continue;
      config_.micro_batch_size = size;
      with_schedules(each / size);
    }
  }

  void with_schedules(std::int64_t micros) {
    if (config_.layout.pp == 1) {
      config_.pipeline.schedule = given_.schedule.value_or("1f1b");
      config_.pipeline.virtual_stages = given_.virtual_stages.value_or(1);
      config_.pipeline.split = "count";
      return with_sequence_parallel();
    }
    std::vector<std::string> kinds = given_.schedules;
    if (kinds.empty()) kinds.assign(std::begin(kSearchedSchedules), std::end(kSearchedSchedules));
    for (const std::string& kind : given_or(given_.schedule, kinds)) {
      config_.pipeline.schedule = kind;
      for (const int turns : given_or(given_.virtual_stages, turns_of(kind, micros))) {
        // One chunk a rank is 1F1B's, several are interleaved's, unless the schedule was asked for.
        if (!given_.schedule && (kind == "1f1b" ? turns > 1 : kind == "interleaved" && turns == 1)) continue;
        if (!given_.schedule && turns < schedule::find_kind(kind).default_chunks) continue;
        config_.pipeline.virtual_stages = turns;
        with_splits();
      }
    }
  }

  /// Chunks of whole layers: as few as one each, all stages as equal as they can be.
  std::vector<int> turns_of(const std::string& kind, std::int64_t micros) const {
    if (kind != "interleaved" && kind != "breadth-first")
      return {kind.starts_with("file:") ? 1 : schedule::find_kind(kind).default_chunks};
    const int pp = config_.layout.pp, layers = layers_of(job_.shape);
    if (micros % pp != 0) return {1};  // interleaving needs whole groups of micro-batches
    return divisors_up_to((layers + pp - 1) / pp, layers);
  }

  /// Equal numbers of layers; and fewer where the head is, if that is another cut.
  void with_splits() {
    if (given_.split) {
      config_.pipeline.split = *given_.split;
      return with_sequence_parallel();
    }
    config_.pipeline.split = "count";
    with_sequence_parallel();
    if (job_.shape.num_encoder_layers > 0 || job_.shape.experts.used()) return;
    const int chunks = table_chunks();
    auto known = uneven_.find(chunks);
    if (known == uneven_.end()) known = uneven_.emplace(chunks, uneven_split(chunks)).first;
    if (known->second.empty()) return;
    config_.pipeline.split = known->second;
    with_sequence_parallel();
    config_.pipeline.split = "count";
  }
  /// Chunks of the model: schedules of two directions hold each twice.
  int table_chunks() const {
    const std::string& kind = config_.pipeline.schedule;
    const bool two_way = kind == "dualpipe" || kind.starts_with("chimera");
    return config_.layout.pp * (two_way ? 1 : chunks_per_rank(config_));
  }
  std::string uneven_split(int chunks) const {
    const int layers = static_cast<int>(job_.shape.num_layers);
    if (chunks > layers) return {};
    const spec::FlopCount flops = spec::count_flops(job_.shape, job_.seq_len);
    const std::vector<spec::ChunkShare> uneven =
        spec::balanced_shares(layers, chunks, 0, flops.head * layers / (flops.projections + flops.attention));
    if (uneven == spec::chunk_shares(job_.shape, {.split = "count"}, chunks)) return {};
    return spec::to_split(uneven);
  }

  void with_sequence_parallel() {
    const bool can = config_.layout.tp > 1 && job_.seq_len % (std::int64_t{config_.layout.tp} * config_.layout.cp) == 0;
    for (const bool sharded :
         given_or(given_.sequence_parallel, can ? std::vector<bool>{true, false} : std::vector<bool>{false})) {
      config_.layout.sequence_parallel = sharded && config_.layout.tp > 1;
      take_pipeline_of_base();
      config_.layout.zero = 0;
      config_.layout.zero_group.reset();
      if (!find_problems(job_, config_, gpus_).empty()) continue;
      std::vector<spec::RecomputeKind> modes{spec::RecomputeKind::kNone};
      if (job_.attention == AttentionKind::kUnfused) modes.push_back(spec::RecomputeKind::kSelective);
      modes.push_back(spec::RecomputeKind::kFull);
      for (const spec::RecomputeKind mode : given_or(given_.recompute, modes)) {
        config_.recompute = mode;
        with_zero();
      }
    }
  }

  /// What a recipe says of its pipeline, as far as it goes with these stages.
  void take_pipeline_of_base() {
    const spec::PipelineConfig& base = given_.base.pipeline;
    spec::PipelineConfig& pipeline = config_.pipeline;
    const spec::LayoutConfig& layout = config_.layout;
    const bool same_stages = layout.pp == given_.base.layout.pp && pipeline.schedule == base.schedule;
    pipeline.stage_ranks = same_stages ? base.stage_ranks : std::vector<int>();
    pipeline.scatter_gather = base.scatter_gather && layout.pp > 1 && layout.tp > 1 && !layout.sequence_parallel;
  }

  void with_zero() {
    fresh_ = true;
    // With a single copy of the weights there is nothing to shard; but with offload, ZeRO 2 has gradients leave the
    // device as they are made.
    const std::vector<int> stages = config_.replicas() == 1 ? std::vector<int>{0, 2} : std::vector<int>{0, 1, 2, 3};
    for (const int zero : given_or(given_.zero, stages)) {
      config_.layout.zero = zero;
      for (const int group : given_or(given_.zero_group, zero == 0 ? std::vector<int>{0} : groups())) {
        config_.layout.zero_group = group == 0 || group == config_.dp() ? std::optional<int>{} : group;
        with_offload();
      }
    }
  }
  /// Of replicas that shard among themselves; 0: all.
  std::vector<int> groups() const {
    std::vector<int> found{0};
    const int dp = config_.dp(), node = hardware_.cluster.gpus_per_node;
    if (dp <= kFewReplicas) {
      for (const int group : divisors_up_to(dp, dp - 1)) {
        if (group > 1) found.push_back(group);
      }
      return found;
    }
    const int together = config_.layout.tp * config_.layout.cp;
    for (std::int64_t extent = node; extent < std::int64_t{dp} * together; extent *= kGroupStep) {
      const std::int64_t group = extent / together;
      if (group > 1 && group < dp && dp % group == 0) found.push_back(static_cast<int>(group));
    }
    return found;
  }

  void with_offload() {
    std::vector<spec::OffloadKind> kinds{spec::OffloadKind::kNone};
    if (hardware_.cluster.host.memory_gib > 0) kinds.push_back(spec::OffloadKind::kOptimizer);
    for (const spec::OffloadKind kind : given_or(given_.offload, kinds)) {
      if (config_.replicas() == 1 && config_.layout.zero > 0 && kind == spec::OffloadKind::kNone && !given_.zero)
        continue;
      config_.layout.offload = kind;
      visit_(config_, std::exchange(fresh_, false));
      found_ = true;
    }
  }

  const cost::Hardware& hardware_;
  const Job& job_;
  int gpus_;
  const Choices& given_;
  const Visit& visit_;
  ParallelConfig config_;
  std::map<int, std::string> uneven_;  // by number of chunks; empty: equal ones are best
  bool fresh_ = false, found_ = false;
};

/// Nothing agrees with what is given: say what is wrong with it, completed in the plainest way.
[[noreturn]] void throw_nothing(const Job& job, int gpus, const Choices& given) {
  ParallelConfig config = given.base;
  spec::LayoutConfig& layout = config.layout;
  layout.tp = given.tp.value_or(1);
  layout.pp = given.pp.value_or(1);
  layout.cp = given.cp.value_or(1);
  layout.dp = given.dp.value_or(std::max(1, gpus / std::max(1, layout.tp * layout.pp * layout.cp)));
  layout.ep = given.ep.value_or(1);
  layout.zero = given.zero.value_or(0);
  layout.sequence_parallel = given.sequence_parallel.value_or(false);
  config.pipeline.virtual_stages = given.virtual_stages.value_or(1);
  config.pipeline.schedule = given.schedule.value_or(config.pipeline.virtual_stages > 1 ? "interleaved" : "1f1b");
  config.micro_batch_size = given.micro_batch_size.value_or(1);
  std::vector<config::Problem> problems = find_problems(job, config, gpus);
  if (problems.empty())
    problems.push_back(
        {.key = "global-batch-size",
         .reason = fmt::format("no layout was found that divides {} sequences over {} devices", job.batch, gpus),
         .hint = fmt::format("use --global-batch-size {}, a multiple of the devices", gpus),
         .where = {}});
  throw config::ProblemsError("this layout", std::move(problems));
}

}  // namespace

void for_each_config(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given,
                     const std::function<void(const ParallelConfig& config, bool fresh)>& visit) {
  if (!Enumerator(hardware, job, gpus, given, visit).run()) throw_nothing(job, gpus, given);
}

}  // namespace trireme::plan
