#include "trireme/spec/layout_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/text.h"

namespace trireme::spec {
namespace {

constexpr Named<ContextKind> kContexts[] = {
    {"ring", ContextKind::kRing}, {"ulysses", ContextKind::kUlysses}, {"gather", ContextKind::kGather}};

constexpr Named<ReduceKind> kReduces[] = {{"fp32", ReduceKind::kFp32}, {"bf16", ReduceKind::kBf16}};

constexpr Named<OffloadKind> kOffloads[] = {{"none", OffloadKind::kNone}, {"optimizer", OffloadKind::kOptimizer}};

}  // namespace

std::span<const Named<ReduceKind>> enum_names(std::type_identity<ReduceKind>) { return kReduces; }
std::span<const Named<OffloadKind>> enum_names(std::type_identity<OffloadKind>) { return kOffloads; }
std::span<const Named<ContextKind>> enum_names(std::type_identity<ContextKind>) { return kContexts; }

void describe(config::Section<LayoutConfig>& section) {
  section.meaning("how the model and its data are spread over ranks");
  section.field("dp", &LayoutConfig::dp, "copies of the model; unset: what the other axes leave of the ranks")
      .at_least(1);
  section.field("tp", &LayoutConfig::tp, "ranks that split each matrix").at_least(1);
  section.field("pp", &LayoutConfig::pp, "stages of the pipeline").at_least(1);
  section.field("cp", &LayoutConfig::cp, "ranks that split each sequence").at_least(1);
  section.field("zero", &LayoutConfig::zero, "what copies share out: 1 optimizer, 2 gradients too, 3 weights too")
      .range(0, 3);
  section.field("zero_group", &LayoutConfig::zero_group, "copies that share it out; unset: all").at_least(1);
  section.field("sequence_parallel", &LayoutConfig::sequence_parallel, "split norms and residuals over tp too");
  section.field("cp_kind", &LayoutConfig::cp_kind, "how ranks of one sequence see all keys and values");
  section.field("cp_ulysses", &LayoutConfig::cp_ulysses, "of cp, ranks that trade heads inside a ring or gather")
      .at_least(1);
  section.field("order", &LayoutConfig::order, "of the axes among ranks, outermost first: the last are neighbours");
  section.field("bucket_mb", &LayoutConfig::bucket_mb, "gradients summed together, in MB; 0: all").at_least(0.0);
  section.field("reduce", &LayoutConfig::reduce, "what gradients are rounded to on their way between ranks");
  section.field("tp_overlap", &LayoutConfig::tp_overlap,
                "with sequence_parallel: gathers and sums in parts, beside GEMMs");
  section.field("sp_save_gathered", &LayoutConfig::sp_save_gathered,
                "with sequence_parallel: gathered inputs stay in memory for backward");
  section.field("dp_batch_weights", &LayoutConfig::dp_batch_weights,
                "of a step's rows that each copy takes: for ranks of different speed");
  section.field("offload", &LayoutConfig::offload,
                "what lives on the host: with optimizer, masters, moments and sums of gradients, and the update");
  section.field("delayed_update", &LayoutConfig::delayed_update,
                "with offload: an update runs beside the next step's passes, which compute without it");
  section
      .field("offload_warmup", &LayoutConfig::offload_warmup,
             "with offload_delay: steps at the beginning whose updates are not late")
      .at_least(0);
}

void describe(config::Section<PipelineConfig>& section) {
  section.meaning("in which order a pipeline's stages work");
  section.field("schedule", &PipelineConfig::schedule, "its kind: see trireme schedule list");
  section.field("virtual_stages", &PipelineConfig::virtual_stages, "chunks of each stage").at_least(1);
  section
      .field("drain_every", &PipelineConfig::drain_every,
             "steps that run together before the pipeline is emptied, where alone it is saved and evaluated; unset: 1, "
             "of asynchronous schedules as many as lie between evaluations and checkpoints")
      .at_least(1);
  section.field("split", &PipelineConfig::split,
                "where the model is cut: count, size, time, pipedream (stages on several ranks), or entries: "
                "layers.3,layers.5");
}

std::vector<config::Problem> find_problems(const LayoutConfig& layout, const PipelineConfig& pipeline,
                                           std::optional<int> ranks) {
  std::vector<config::Problem> problems;
  const std::int64_t copy = layout.ranks_per_copy();
  if (ranks && layout.dp && copy * *layout.dp != *ranks) {
    problems.push_back({.key = "layout",
                        .reason = fmt::format("tp {} x pp {} x cp {} x dp {} = {}, but comm.ranks = {}", layout.tp,
                                              layout.pp, layout.cp, *layout.dp, copy * *layout.dp, *ranks),
                        .hint = fmt::format("set comm.ranks = {}", copy * *layout.dp)});
  } else if (ranks && *ranks % copy != 0) {
    problems.push_back({.key = "layout",
                        .reason = fmt::format("one copy of the model takes tp {} x pp {} x cp {} = {} ranks, which "
                                              "does not divide comm.ranks = {}",
                                              layout.tp, layout.pp, layout.cp, copy, *ranks),
                        .hint = fmt::format("set comm.ranks = {}", copy * std::max<std::int64_t>(1, *ranks / copy))});
  }
  if (layout.pp == 1 && pipeline.virtual_stages > 1)
    problems.push_back({.key = "pipeline.virtual_stages",
                        .reason = fmt::format("is {}, but there is a single stage", pipeline.virtual_stages),
                        .hint = "set pipeline.virtual_stages = 1"});
  if (layout.pp == 1 && pipeline.drain_every.value_or(1) > 1)
    problems.push_back({.key = "pipeline.drain_every",
                        .reason = fmt::format("is {}, but there is a single stage", *pipeline.drain_every),
                        .hint = "leave pipeline.drain_every out"});
  if (layout.zero_group && layout.dp && *layout.dp % *layout.zero_group != 0)
    problems.push_back({.key = "layout.zero_group",
                        .reason = fmt::format("{} does not divide layout.dp = {}", *layout.zero_group, *layout.dp),
                        .hint = fmt::format("set layout.zero_group = {}", *layout.dp)});
  std::vector<std::string> axes = split(layout.order, ' ');
  std::ranges::sort(axes);
  if (axes != std::vector<std::string>{"cp", "dp", "pp", "tp"})
    problems.push_back({.key = "layout.order",
                        .reason = fmt::format("\"{}\" does not name each axis once", layout.order),
                        .hint = "set layout.order = \"pp dp cp tp\", in any order"});
  if (layout.cp % layout.cp_ulysses != 0)
    problems.push_back({.key = "layout.cp_ulysses",
                        .reason = fmt::format("{} does not divide layout.cp = {}", layout.cp_ulysses, layout.cp),
                        .hint = "set layout.cp_ulysses = 1"});
  if (std::ranges::any_of(layout.dp_batch_weights, [](double share) { return !(share > 0); }))
    problems.push_back({.key = "layout.dp_batch_weights",
                        .reason = "holds a number that is not above 0",
                        .hint = "give each copy its speed, for instance [2.0, 1.0]"});
  if (!layout.dp_batch_weights.empty() && layout.zero >= 2)
    problems.push_back({.key = "layout.dp_batch_weights",
                        .reason = fmt::format("copies with different numbers of microbatches cannot sum after each of "
                                              "them, as layout.zero = {} does",
                                              layout.zero),
                        .hint = "set layout.zero = 1"});
  if (layout.delayed_update && layout.offload == OffloadKind::kNone)
    problems.push_back({.key = "layout.delayed_update",
                        .reason = "defers updates on the host, but layout.offload is \"none\"",
                        .hint = "set layout.offload = \"optimizer\""});
  if (!layout.delayed_update && layout.offload_warmup != LayoutConfig{}.offload_warmup)
    problems.push_back({.key = "layout.offload_warmup",
                        .reason = "is given, but layout.delayed_update is false",
                        .hint = "set layout.delayed_update = true"});
  if (layout.sequence_parallel && layout.tp == 1)
    problems.push_back({.key = "layout.sequence_parallel",
                        .reason = "splits over layout.tp, which is 1",
                        .hint = "set layout.sequence_parallel = false"});
  return problems;
}

}  // namespace trireme::spec
