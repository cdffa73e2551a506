#include "trireme/plan/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "trireme/schedule/builders.h"

namespace trireme::plan {
namespace {

constexpr Named<AttentionKind> kAttentions[] = {{"flash", AttentionKind::kFlash}, {"unfused", AttentionKind::kUnfused}};
constexpr Named<Offload> kOffloads[] = {
    {"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}, {"weights", Offload::kWeights}};
constexpr Named<Recompute> kRecomputes[] = {
    {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}};

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  std::int64_t divisor = std::max<std::int64_t>(1, std::min(of, most));
  while (of % divisor != 0) --divisor;
  return divisor;
}

std::string schedule_problem(const Job& job, const Layout& layout) {
  if (layout.schedule.starts_with("file:")) return "a plan cannot be made for a schedule in a file";
  const schedule::Kind& kind = schedule::find_kind(layout.schedule);
  return kind.refuses({.ranks = layout.pp,
                       .micros = static_cast<int>(micros_of(job, layout)),
                       .chunks_per_rank = layout.virtual_stages});
}

}  // namespace

std::span<const Named<AttentionKind>> enum_names(std::type_identity<AttentionKind>) { return kAttentions; }
std::span<const Named<Recompute>> enum_names(std::type_identity<Recompute>) { return kRecomputes; }

std::span<const Named<Offload>> enum_names(std::type_identity<Offload>) { return kOffloads; }

double model_flops(const Job& job) {
  const MixtureFlops count = count_flops(job.shape, job.mixture, job.length);
  return 3 * static_cast<double>(job.batch) * (count.projections + count.attention + count.head);
}

int layers_of(const spec::ModelShape& shape) { return static_cast<int>(shape.num_layers + shape.num_encoder_layers); }

WeightCounts count_weights(const Job& job) {
  const MixtureCount count = count_parameters(job.shape, job.mixture);
  const int layers = layers_of(job.shape);
  return {.layer = count.dense / layers,
          .experts = count.experts / layers,
          .embedding = count.embedding,
          .head = count.head};
}

double WeightCounts::layer_share(const Layout& layout) const { return (layer + experts / layout.ep) / layout.tp; }

std::int64_t micros_of(const Job& job, const Layout& layout) {
  const std::int64_t rows = layout.micro_batch_size * layout.dp;
  return (job.batch + rows - 1) / rows;  // the last one may be shorter
}

std::string to_text(const Layout& layout) {
  std::string out = fmt::format("tp {}, pp {}, dp {}", layout.tp, layout.pp, layout.dp);
  if (layout.cp > 1) out += fmt::format(", cp {}", layout.cp);
  if (layout.ep > 1) out += fmt::format(", ep {}", layout.ep);
  if (layout.virtual_stages > 1) out += fmt::format(", {} virtual stages", layout.virtual_stages);
  out += fmt::format(", microbatch {}", layout.micro_batch_size);
  if (layout.pp > 1) out += fmt::format(", {}", layout.schedule);
  if (layout.zero > 0) out += fmt::format(", ZeRO-{}", layout.zero);
  if (layout.zero > 0 && layout.zero_group > 0) out += fmt::format(" in groups of {}", layout.zero_group);
  if (layout.sequence_parallel) out += ", sequence parallel";
  if (layout.offload != Offload::kNone)
    out +=
        fmt::format(", {} on the host", layout.offload == Offload::kOptimizer ? "optimizer" : "weights and optimizer");
  out += fmt::format(", recompute {}", name_in(std::span<const Named<Recompute>>(kRecomputes), layout.recompute));
  return out;
}

std::vector<config::Problem> find_problems(const Job& job, const Layout& layout, int gpus) {
  std::vector<config::Problem> problems;
  const auto add = [&problems](std::string key, std::string reason, std::string hint) {
    problems.push_back({.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  for (const auto& [key, value] : {std::pair{"tp", layout.tp},
                                   {"pp", layout.pp},
                                   {"dp", layout.dp},
                                   {"cp", layout.cp},
                                   {"ep", layout.ep},
                                   {"virtual-stages", layout.virtual_stages}}) {
    if (value < 1) add(key, fmt::format("must be at least 1, but is {}", value), {});
  }
  if (layout.micro_batch_size < 1)
    add("microbatch", fmt::format("must be at least 1, but is {}", layout.micro_batch_size), {});
  if (layout.zero < 0 || layout.zero > 3) add("zero", fmt::format("must be from 0 to 3, but is {}", layout.zero), {});
  if (job.batch < 1) add("global-batch", fmt::format("must be at least 1, but is {}", job.batch), {});
  if (job.length < 1) add("seq", fmt::format("must be at least 1, but is {}", job.length), {});
  if (!problems.empty()) return problems;

  const std::int64_t product = std::int64_t{layout.tp} * layout.pp * layout.dp * layout.cp;
  if (product != gpus)
    add("gpus",
        fmt::format("tp {} x pp {} x dp {} x cp {} = {}, but there are {}", layout.tp, layout.pp, layout.dp, layout.cp,
                    product, gpus),
        fmt::format("use --gpus {}", product));
  if (job.shape.num_heads % layout.tp != 0)
    add("tp", fmt::format("{} does not divide the {} heads", layout.tp, job.shape.num_heads),
        fmt::format("use --tp {}", largest_divisor(job.shape.num_heads, layout.tp)));
  if (job.shape.ffn_size % layout.tp != 0)
    add("tp", fmt::format("{} does not divide the MLP's width of {}", layout.tp, job.shape.ffn_size),
        fmt::format("use --tp {}", largest_divisor(job.shape.ffn_size, layout.tp)));
  if (job.shape.num_kv_heads % layout.tp != 0 && layout.tp % job.shape.num_kv_heads != 0)
    add("tp",
        fmt::format("{} ranks can neither shard nor replicate {} key and value heads", layout.tp,
                    job.shape.num_kv_heads),
        fmt::format("use --tp {}", largest_divisor(job.shape.num_kv_heads, layout.tp)));
  if (job.length % layout.cp != 0)
    add("cp", fmt::format("{} does not divide the {} tokens of a sequence", layout.cp, job.length),
        fmt::format("use --cp {}", largest_divisor(job.length, layout.cp)));
  else if (layout.sequence_parallel && job.length % (std::int64_t{layout.tp} * layout.cp) != 0)
    add("sequence-parallel",
        fmt::format("tp {} x cp {} do not divide the {} tokens of a sequence", layout.tp, layout.cp, job.length),
        "use --sequence-parallel off");
  const std::int64_t experts = job.mixture.experts.num_experts;
  if (experts == 0 && layout.ep > 1) {
    add("ep", fmt::format("is {}, but the model has no experts", layout.ep), "use --ep 1");
  } else if (experts % layout.ep != 0 || layout.dp * layout.cp % layout.ep != 0) {
    add("ep",
        fmt::format("{} must divide the {} experts and the {} ranks of dp x cp that they are sharded over", layout.ep,
                    experts, layout.dp * layout.cp),
        fmt::format("use --ep {}", largest_divisor(std::gcd(experts, std::int64_t{layout.dp} * layout.cp), layout.ep)));
  }
  if (layout.cp > 1 && job.attention == AttentionKind::kUnfused)
    add("cp", "a sequence that is split over ranks needs fused attention", "use --attention flash, or --cp 1");
  if (job.batch % (layout.micro_batch_size * layout.dp) != 0)
    add("global-batch",
        fmt::format("{} sequences are no whole number of micro-batches of {} on {} data-parallel ranks", job.batch,
                    layout.micro_batch_size, layout.dp),
        fmt::format("use --global-batch-size {}",
                    std::max<std::int64_t>(1, job.batch / (layout.micro_batch_size * layout.dp)) *
                        layout.micro_batch_size * layout.dp));
  const std::int64_t chunks = std::int64_t{layout.pp} * layout.virtual_stages;
  // The first and the last chunk may hold the embedding or the head alone, as in Llama 3.
  const std::int64_t spare = layout.pp > 1 ? 2 : 0;
  if (chunks > layers_of(job.shape) + spare)
    add("pp",
        fmt::format("{} stages of {} chunks need {} layers, but the model has {}", layout.pp, layout.virtual_stages,
                    chunks - spare, layers_of(job.shape)),
        fmt::format("use --pp {} --virtual-stages 1", largest_divisor(layers_of(job.shape), layout.pp)));
  if (layout.pp == 1 && layout.virtual_stages > 1)
    add("virtual-stages", fmt::format("{} chunks on a single stage mean nothing", layout.virtual_stages),
        "use --virtual-stages 1, or --pp 2 or more");
  if (problems.empty() && layout.pp > 1) {
    if (std::string why = schedule_problem(job, layout); !why.empty())
      add("schedule", fmt::format("{}: {}", layout.schedule, why), "see trireme schedule list");
  }
  return problems;
}

std::vector<int> stage_layers(int layers, int stages, int virtual_stages) {
  const int chunks = stages * virtual_stages;
  const int each = layers / chunks, more = layers % chunks;
  std::vector<int> counts(static_cast<std::size_t>(chunks), each);
  // From the middle outwards, so that the ends of the model come last.
  for (int extra = 0; extra < more; ++extra) {
    const int from_middle = (extra + 1) / 2 * (extra % 2 == 0 ? 1 : -1);
    ++counts[static_cast<std::size_t>((chunks / 2 + from_middle + chunks) % chunks)];
  }
  std::vector<int> sums(static_cast<std::size_t>(stages), 0);
  for (int chunk = 0; chunk < chunks; ++chunk)
    sums[static_cast<std::size_t>(chunk % stages)] += counts[static_cast<std::size_t>(chunk)];
  return sums;
}

}  // namespace trireme::plan
