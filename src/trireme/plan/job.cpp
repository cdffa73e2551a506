#include "trireme/plan/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "trireme/schedule/builders.h"

namespace trireme::plan {
namespace {

constexpr Named<AttentionKind> kAttentions[] = {{"flash", AttentionKind::kFlash}, {"unfused", AttentionKind::kUnfused}};
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

double model_flops(const Job& job) {
  const spec::ModelShape& shape = job.shape;
  const auto length = static_cast<double>(job.length);
  const spec::FlopCount count = spec::count_flops(shape, job.length, shape.encoder_layers > 0 ? job.length : 0);
  const double queries = static_cast<double>(shape.heads * shape.head_size);
  const double full = 4 * queries * length * length * layers_of(shape);
  return 3 * static_cast<double>(job.batch) * (count.projections + full + count.head);
}

int layers_of(const spec::ModelShape& shape) { return static_cast<int>(shape.layers + shape.encoder_layers); }

Weights count_weights(const spec::ModelShape& shape) {
  const spec::ParameterCount count = spec::count_parameters(shape);
  Weights weights;
  weights.layer = static_cast<double>(count.layers) / layers_of(shape);
  weights.embedding = static_cast<double>(count.embedding);
  weights.head = static_cast<double>(count.head);
  return weights;
}

std::int64_t micros_of(const Job& job, const Layout& layout) { return job.batch / (layout.microbatch * layout.dp); }

std::string to_text(const Layout& layout) {
  std::string out = fmt::format("tp {}, pp {}, dp {}", layout.tp, layout.pp, layout.dp);
  if (layout.cp > 1) out += fmt::format(", cp {}", layout.cp);
  if (layout.virtual_stages > 1) out += fmt::format(", {} virtual stages", layout.virtual_stages);
  out += fmt::format(", microbatch {}", layout.microbatch);
  if (layout.pp > 1) out += fmt::format(", {}", layout.schedule);
  if (layout.zero > 0) out += fmt::format(", ZeRO-{}", layout.zero);
  if (layout.sequence_parallel) out += ", sequence parallel";
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
                                   {"virtual-stages", layout.virtual_stages}}) {
    if (value < 1) add(key, fmt::format("must be at least 1, but is {}", value), {});
  }
  if (layout.microbatch < 1) add("microbatch", fmt::format("must be at least 1, but is {}", layout.microbatch), {});
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
  if (job.shape.heads % layout.tp != 0)
    add("tp", fmt::format("{} does not divide the {} heads", layout.tp, job.shape.heads),
        fmt::format("use --tp {}", largest_divisor(job.shape.heads, layout.tp)));
  if (job.length % layout.cp != 0)
    add("cp", fmt::format("{} does not divide the {} tokens of a sequence", layout.cp, job.length),
        fmt::format("use --cp {}", largest_divisor(job.length, layout.cp)));
  if (layout.cp > 1 && job.attention == AttentionKind::kUnfused)
    add("cp", "a sequence that is split over ranks needs fused attention", "use --attention flash, or --cp 1");
  if (job.batch % (layout.microbatch * layout.dp) != 0)
    add("global-batch",
        fmt::format("{} sequences are no whole number of microbatches of {} on {} copies of the model", job.batch,
                    layout.microbatch, layout.dp),
        fmt::format("use --global-batch {}", std::max<std::int64_t>(1, job.batch / (layout.microbatch * layout.dp)) *
                                                 layout.microbatch * layout.dp));
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
