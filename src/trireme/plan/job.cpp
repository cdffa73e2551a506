#include "trireme/plan/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <numeric>

#include "trireme/plan/stages.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/layout_check.h"

namespace trireme::plan {
namespace {

constexpr Named<AttentionKind> kAttentions[] = {{"flash", AttentionKind::kFlash}, {"unfused", AttentionKind::kUnfused}};
constexpr Named<Software> kSoftware[] = {{"trireme", Software::kTrireme}, {"megatron", Software::kMegatron}};

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  std::int64_t divisor = std::max<std::int64_t>(1, std::min(of, most));
  while (of % divisor != 0) --divisor;
  return divisor;
}

double bytes_of_precision(spec::Precision precision) {
  switch (precision) {
    case spec::Precision::kFp32:
      return 4;
    case spec::Precision::kFp64:
      return 8;
    default:
      return 2;
  }
}

/// Matrices of one layer, in the mean of encoder and decoder.
double layer_matrices(const spec::ModelShape& shape) {
  const auto width = static_cast<double>(shape.hidden_size), inner = static_cast<double>(shape.ffn_size);
  const auto attention = static_cast<double>(spec::attention_weights(shape));
  const double crossed = shape.num_encoder_layers > 0 ? static_cast<double>(shape.num_layers) / layers_of(shape) : 0;
  return attention * (1 + crossed) + width * inner * (shape.gated ? 3 : 2);
}

/// Of a layer's matrices, those that tensor parallelism does not shard.
double replicated_matrices(const spec::ModelShape& shape) {
  if (!shape.mla.used()) return 0;
  return static_cast<double>(shape.hidden_size *
                             (shape.mla.q_lora_rank + shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim));
}

/// A key of a recipe as the flag that says the same.
std::string flag_of(std::string key) {
  const std::size_t dot = key.rfind('.');
  if (dot != std::string::npos) key = key.substr(dot + 1);
  std::ranges::replace(key, '_', '-');
  return key;
}

/// "set layout.tp = 4 and pipeline.virtual_stages = 1" as "use --tp 4 --virtual-stages 1".
std::string hint_in_flags(const std::string& hint) {
  if (!hint.starts_with("set ")) return hint;
  std::string out = "use";
  for (const std::string& word : split(hint.substr(4), ' ')) {
    if (word == "and" || word == "=") continue;
    const bool is_key = std::isalpha(static_cast<unsigned char>(word.empty() ? ' ' : word[0])) != 0;
    if (is_key && std::ranges::count(word, '.') > 0)  // not the point of a number
      out += " --" + flag_of(word);
    else
      out += " " + (word == "false" ? std::string("off") : word);
  }
  return out;
}

}  // namespace

std::span<const Named<AttentionKind>> enum_names(std::type_identity<AttentionKind>) { return kAttentions; }
std::span<const Named<Software>> enum_names(std::type_identity<Software>) { return kSoftware; }

cost::Arithmetic arithmetic_of(const spec::PrecisionConfig& precision) {
  if (precision.gemm != spec::GemmPrecision::kSame) return cost::Arithmetic::kFp8;
  switch (precision.compute) {
    case spec::Precision::kBf16:
      return cost::Arithmetic::kBf16;
    case spec::Precision::kFp16:
      return cost::Arithmetic::kFp16;
    default:
      return cost::Arithmetic::kFp32;
  }
}

spec::PrecisionConfig precision_of(cost::Arithmetic arithmetic) {
  switch (arithmetic) {
    case cost::Arithmetic::kFp32:
      return {.compute = spec::Precision::kFp32};
    case cost::Arithmetic::kFp16:
      return {.compute = spec::Precision::kFp16};
    case cost::Arithmetic::kFp8:
      return {.compute = spec::Precision::kBf16, .gemm = spec::GemmPrecision::kFp8};
    default:
      return {.compute = spec::Precision::kBf16};
  }
}

cost::Arithmetic Job::arithmetic() const { return arithmetic_of(precision); }
double Job::compute_bytes() const { return bytes_of_precision(precision.compute); }
double Job::sum_bytes() const { return precision.compute == spec::Precision::kFp64 ? 8 : 4; }

double model_flops(const Job& job) {
  const MixtureFlops count = count_flops(job.shape, job.mixture, job.seq_len);
  return 3 * static_cast<double>(job.batch) * count.total();
}

int layers_of(const spec::ModelShape& shape) { return static_cast<int>(shape.num_layers + shape.num_encoder_layers); }

WeightCounts count_weights(const Job& job) {
  const MixtureCount count = count_parameters(job.shape, job.mixture);
  const spec::ParameterCount plain = spec::count_parameters(job.shape);
  const int layers = layers_of(job.shape);
  WeightCounts weights{.layer = count.dense / layers,
                       .experts = count.experts / layers,
                       .embedding = count.embedding,
                       .head = count.head};
  weights.layer_vectors = std::max(0.0, static_cast<double>(plain.layers) / layers - layer_matrices(job.shape));
  weights.layer_replicated = replicated_matrices(job.shape);
  const auto table = static_cast<double>(job.shape.vocab_size * job.shape.hidden_size);
  weights.head_vectors = job.shape.tied ? count.head : std::max(0.0, count.head - table);
  weights.tied_head = job.shape.tied || job.shape.mtp_depth > 0 ? table : 0;
  if (const auto depths = static_cast<double>(job.shape.mtp_depth); depths > 0) {
    const double joined = 2 * static_cast<double>(job.shape.hidden_size * job.shape.hidden_size);
    weights.mtp = count.mtp;
    weights.mtp_vectors = count.mtp - depths * (layer_matrices(job.shape) + joined);
    weights.mtp_replicated = depths * (weights.layer_replicated + joined);
  }
  return weights;
}

std::vector<config::Problem> find_problems(const Job& job, const ParallelConfig& config, int gpus) {
  std::vector<config::Problem> problems;
  const auto add = [&problems](std::string key, std::string reason, std::string hint) {
    problems.push_back({.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  const spec::LayoutConfig& layout = config.layout;
  for (const auto& [key, value] : {std::pair{"tp", layout.tp},
                                   {"pp", layout.pp},
                                   {"dp", config.dp()},
                                   {"cp", layout.cp},
                                   {"ep", layout.ep},
                                   {"virtual-stages", config.pipeline.virtual_stages}}) {
    if (value < 1) add(key, fmt::format("must be at least 1, but is {}", value), {});
  }
  if (config.micro_batch_size < 1)
    add("micro-batch-size", fmt::format("must be at least 1, but is {}", config.micro_batch_size), {});
  if (layout.zero < 0 || layout.zero > 3) add("zero", fmt::format("must be from 0 to 3, but is {}", layout.zero), {});
  if (job.batch < 1) add("global-batch-size", fmt::format("must be at least 1, but is {}", job.batch), {});
  if (job.seq_len < 1) add("seq-len", fmt::format("must be at least 1, but is {}", job.seq_len), {});
  if (!problems.empty()) return problems;

  const std::int64_t product = layout.ranks_per_copy() * config.dp();
  if (product != gpus)
    add("gpus",
        fmt::format("tp {} x pp {} x dp {} x cp {} = {}, but there are {}", layout.tp, layout.pp, config.dp(),
                    layout.cp, product, gpus),
        fmt::format("use --gpus {}", product));
  // What must divide what is said once, for recipes; the number of ranks was told above.
  for (const config::Problem& problem : spec::find_layout_problems(layout, config.pipeline,
                                                                   {.shape = job.shape,
                                                                   .sequence = job.seq_len,
                                                                   .batch_rows = job.batch,
                                                                   .micro_batch_size = {},
                                                                   .ranks = {}})) {
    if (!problem.key.starts_with("batch.")) add(flag_of(problem.key), problem.reason, hint_in_flags(problem.hint));
  }
  if (layout.pp == 1 && config.pipeline.virtual_stages > 1)
    add("virtual-stages", fmt::format("{} chunks on a single stage mean nothing", config.pipeline.virtual_stages),
        "use --virtual-stages 1, or --pp 2 or more");
  const std::int64_t experts = job.mixture.experts.num_experts;
  if (experts == 0 && layout.ep > 1) {
    add("ep", fmt::format("is {}, but the model has no experts", layout.ep), "use --ep 1");
  } else if (experts % layout.ep != 0 || config.replicas() % layout.ep != 0) {
    add("ep",
        fmt::format("{} must divide the {} experts and the {} ranks of dp x cp that they are sharded over", layout.ep,
                    experts, config.replicas()),
        fmt::format("use --ep {}", largest_divisor(std::gcd(experts, std::int64_t{config.replicas()}), layout.ep)));
  }
  if (layout.cp > 1 && job.attention == AttentionKind::kUnfused)
    add("cp", "a sequence that is split over ranks needs fused attention", "use --attention flash, or --cp 1");
  const std::int64_t rows = config.micro_batch_size * config.dp();
  if (job.batch % rows != 0)
    add("global-batch-size",
        fmt::format("{} sequences are no whole number of micro-batches of {} on {} data-parallel ranks", job.batch,
                    config.micro_batch_size, config.dp()),
        fmt::format("use --global-batch-size {}", std::max<std::int64_t>(1, job.batch / rows) * rows));
  if (problems.empty() && layout.pp > 1) {
    if (std::string why = schedule_problem(job, config); !why.empty())
      add("schedule", fmt::format("{}: {}", config.pipeline.schedule, why), "see trireme schedule list");
  }
  return problems;
}

}  // namespace trireme::plan
