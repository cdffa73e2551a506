#include "trireme/spec/layout_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::spec {
namespace {

constexpr Named<ContextKind> kContexts[] = {
    {"ring", ContextKind::kRing}, {"ulysses", ContextKind::kUlysses}, {"gather", ContextKind::kGather}};

}  // namespace

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
}

void describe(config::Section<PipelineConfig>& section) {
  section.meaning("in which order a pipeline's stages work");
  section.field("schedule", &PipelineConfig::schedule, "its kind: see trireme schedule list");
  section.field("virtual_stages", &PipelineConfig::virtual_stages, "chunks of each stage").at_least(1);
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
  if (layout.zero_group && layout.dp && *layout.dp % *layout.zero_group != 0)
    problems.push_back({.key = "layout.zero_group",
                        .reason = fmt::format("{} does not divide layout.dp = {}", *layout.zero_group, *layout.dp),
                        .hint = fmt::format("set layout.zero_group = {}", *layout.dp)});
  if (layout.sequence_parallel && layout.tp == 1)
    problems.push_back({.key = "layout.sequence_parallel",
                        .reason = "splits over layout.tp, which is 1",
                        .hint = "set layout.sequence_parallel = false"});
  return problems;
}

}  // namespace trireme::spec
