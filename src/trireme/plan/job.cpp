#include "trireme/plan/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "trireme/plan/stages.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/layout_check.h"

namespace trireme::plan {
namespace {

constexpr Named<AttentionKind> kAttentions[] = {{"flash", AttentionKind::kFlash}, {"unfused", AttentionKind::kUnfused}};
constexpr Named<Software> kSoftware[] = {{"trireme", Software::kTrireme}, {"megatron", Software::kMegatron}};

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

/// Of a layer with experts: the router, and the shared experts' gate.
double router_matrices(const spec::ModelShape& shape) {
  const spec::Experts& experts = shape.experts;
  const bool gate = experts.shared_expert_gate && experts.num_shared_experts > 0;
  return static_cast<double>(shape.hidden_size * (spec::router_outputs(experts) + (gate ? 1 : 0)));
}

/// Matrices of one layer but for routed experts, of which so much of all layers have some.
double layer_matrices(const spec::ModelShape& shape, double mixed) {
  const auto width = static_cast<double>(shape.hidden_size);
  const double mlp =
      (1 - mixed) * static_cast<double>(shape.ffn_size) + mixed * static_cast<double>(spec::shared_ffn_size(shape));
  const auto attention = static_cast<double>(spec::attention_weights(shape));
  const double crossed = shape.num_encoder_layers > 0 ? static_cast<double>(shape.num_layers) / layers_of(shape) : 0;
  return attention * (1 + crossed) + width * mlp * (shape.gated ? 3 : 2) + mixed * router_matrices(shape);
}

/// Of a layer's matrices, those that tensor parallelism does not shard.
double replicated_matrices(const spec::ModelShape& shape, double mixed) {
  const double router = mixed * router_matrices(shape);
  if (!shape.mla.used()) return router;
  return router + static_cast<double>(shape.hidden_size *
                                      (shape.mla.q_lora_rank + shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim));
}

/// Depths of multi-token prediction whose blocks have experts.
double mtp_mixtures(const spec::ModelShape& shape) {
  double count = 0;
  for (std::int64_t i = 0; i < shape.mtp_depth; ++i) count += spec::has_experts(shape, shape.num_layers + i) ? 1 : 0;
  return count;
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

SequenceFlops sequence_flops(const spec::ModelShape& shape, std::int64_t length) {
  const spec::FlopCount plain = spec::count_flops(shape, length, shape.num_encoder_layers > 0 ? length : 0);
  SequenceFlops flops{.projections = plain.projections, .head = plain.head, .mtp = plain.mtp};
  const spec::AttentionWidths widths = spec::attention_widths(shape);
  const auto tokens = static_cast<double>(length);
  // Queries with keys, and probabilities with values.
  flops.attention = 2 * static_cast<double>(widths.queries + widths.attended) * tokens * tokens * layers_of(shape);
  return flops;
}

double model_flops(const Job& job) {
  return 3 * static_cast<double>(job.batch) * sequence_flops(job.shape, job.seq_len).total();
}

int layers_of(const spec::ModelShape& shape) { return static_cast<int>(shape.num_layers + shape.num_encoder_layers); }

WeightCounts count_weights(const Job& job) {
  const spec::ModelShape& shape = job.shape;
  const spec::ParameterCount plain = spec::count_parameters(shape);
  const int layers = layers_of(shape);
  const double mixed = static_cast<double>(spec::expert_layers(shape)) / layers;
  WeightCounts weights{.layer = static_cast<double>(plain.layers - plain.experts) / layers,
                       .experts = static_cast<double>(plain.experts) / layers,
                       .tp_shards_experts = job.software == Software::kMegatron,
                       .embedding = static_cast<double>(plain.embedding),
                       .head = static_cast<double>(plain.head)};
  weights.layer_vectors = std::max(0.0, weights.layer - layer_matrices(shape, mixed));
  weights.layer_replicated = replicated_matrices(shape, mixed);
  const auto table = static_cast<double>(shape.vocab_size * shape.hidden_size);
  weights.head_vectors = shape.tied ? weights.head : std::max(0.0, weights.head - table);
  weights.tied_head = shape.tied || shape.mtp_depth > 0 ? table : 0;
  if (const auto depths = static_cast<double>(shape.mtp_depth); depths > 0) {
    const double joined = 2 * static_cast<double>(shape.hidden_size * shape.hidden_size);
    const double share = mtp_mixtures(shape) / depths;
    weights.mtp_experts = static_cast<double>(plain.mtp_experts);
    weights.mtp = static_cast<double>(plain.mtp) - weights.mtp_experts;
    weights.mtp_vectors = weights.mtp - depths * (layer_matrices(shape, share) + joined);
    weights.mtp_replicated = depths * (replicated_matrices(shape, share) + joined);
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
