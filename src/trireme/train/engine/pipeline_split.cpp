#include "trireme/train/engine/pipeline_split.h"

#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/nn/multi_token.h"
#include "trireme/pipeline/profile.h"
#include "trireme/pipeline/stage.h"
#include "trireme/spec/rules.h"
#include "trireme/train/engine/layer_dropping.h"

namespace trireme::train {
namespace {

pipeline::Micro made_up_micro(const spec::ModelShape& shape, std::int64_t rows, std::int64_t length) {
  pipeline::Micro micro;
  const auto tokens = [&] { return at::randint(shape.vocab_size, {rows, length}, at::kLong); };
  if (shape.num_encoder_layers > 0) {
    micro.inputs.push_back(tokens());
    micro.context.source = nn::plain_sequence(rows, length);
  }
  micro.inputs.push_back(tokens());
  micro.context.sequence = nn::plain_sequence(rows, length);
  micro.context.targets = tokens();
  nn::shift_tokens(micro.inputs.back(), micro.context, shape.mtp_depth);
  micro.context.samples = at::randint(1, {rows}, at::kLong);
  micro.context.training = true;
  return micro;
}

/// Rank 0's measurements, on every rank.
std::vector<pipeline::EntryProfile> profile(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                            const models::BuildOptions& build, std::size_t entries, std::int64_t rows,
                                            std::int64_t length, comm::Group& world) {
  std::vector<pipeline::EntryProfile> measured(entries);
  if (world.rank() == 0) {
    measured = pipeline::profile_chain(shape, build, recipe.precision.compute,
                                       [&] { return made_up_micro(shape, rows, length); });
  }
  std::vector<double> numbers;
  for (const auto& entry : measured) {
    numbers.insert(numbers.end(), {entry.seconds, entry.activation_bytes, entry.weight_bytes});
  }
  world.broadcast(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, 0).wait();
  for (std::size_t i = 0; i < entries; ++i) measured[i] = {numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]};
  return measured;
}

/// Bytes a second of a message from the pipeline's rank 0 to another: the median of a few there and back. Every rank of
/// the pipeline knows it.
double measure_link(comm::Group& pipeline, int to) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  std::vector<std::uint8_t> data(kBytes);
  const auto send = [&](int peer) {
    pipeline.send(comm::ConstBuffer{data.data(), kBytes, comm::DType::kU8}, peer).wait();
  };
  const auto receive = [&](int peer) {
    pipeline.recv(comm::Buffer{data.data(), kBytes, comm::DType::kU8}, peer).wait();
  };
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (pipeline.rank() == 0) send(to), receive(to);
    if (pipeline.rank() == to) receive(0), send(0);
    seconds.push_back(seconds_since(begin) / 2);
  }
  std::ranges::sort(seconds);
  double median = seconds[2];
  pipeline.broadcast(comm::Buffer{&median, 1, comm::DType::kF64}, 0).wait();
  return static_cast<double>(kBytes) / median;
}

/// Ranks of a node, then nodes, where each has as many neighbouring ranks of the pipeline; else one level.
std::vector<pipeline::LinkLevel> measure_levels(comm::Group& pipeline) {
  const int ranks = pipeline.size();
  // A node is known by its first rank in the world; where a node's ranks are not neighbours there is one level.
  const std::int64_t mine = pipeline.world_rank(pipeline.rank()) - pipeline.local_rank();
  std::vector<std::int64_t> nodes(static_cast<std::size_t>(ranks));
  pipeline
      .all_gather(comm::ConstBuffer{&mine, 1, comm::DType::kI64},
                  comm::Buffer{nodes.data(), nodes.size(), comm::DType::kI64})
      .wait();
  const auto node_of = [&](int rank) { return nodes[static_cast<std::size_t>(rank)]; };
  int inside = 1;
  while (inside < ranks && node_of(inside) == node_of(0)) ++inside;
  bool even = ranks % inside == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    even = even && node_of(rank) == node_of(rank - rank % inside) &&
           (rank == 0 || rank % inside != 0 || node_of(rank) != node_of(rank - 1));
  }
  if (!even || inside == 1 || inside == ranks) return {{ranks, measure_link(pipeline, ranks - 1)}};
  return {{inside, measure_link(pipeline, 1)}, {ranks / inside, measure_link(pipeline, inside)}};
}

PipelineCut cut_as_pipedream(const CutTask& task, std::span<const pipeline::EntryProfile> entries) {
  TRIREME_CHECK(task.pipeline != nullptr, "PipeDream's programme measures the links of a pipeline");
  std::vector<pipeline::LinkLevel> levels = measure_levels(*task.pipeline);
  // Pipelines side by side must all have the first one's plan.
  std::vector<double> numbers{static_cast<double>(levels.size())};
  for (const auto& level : levels)
    numbers.insert(numbers.end(), {static_cast<double>(level.count), level.bytes_per_second});
  numbers.resize(5);
  task.world.broadcast(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, 0).wait();
  levels.resize(static_cast<std::size_t>(numbers[0]));
  for (std::size_t i = 0; i < levels.size(); ++i) {
    levels[i] = {static_cast<int>(numbers[1 + 2 * i]), numbers[2 + 2 * i]};
    if (task.world.rank() == 0)
      log_info("pipeline.split = \"pipedream\": level {} links {} {} with {:.3g} GB/s", i + 1, levels[i].count,
               i == 0 ? "ranks" : "nodes", levels[i].bytes_per_second / 1e9);
  }
  PipelineCut cut;
  for (pipeline::ReplicatedStage& stage : pipeline::plan_replication(entries, levels).stages) {
    cut.split.push_back(stage.stretch);
    cut.stage_ranks.push_back(std::move(stage.workers));
  }
  return cut;
}

}  // namespace

PipelineCut cut_pipeline(const CutTask& task) {
  const auto& [recipe, shape, build, chunks_given, rows, length, world, links, worker, tell] = task;
  const std::string split = spec::split_of_worker(recipe.pipeline.split, worker);
  const auto [how, speeds] = spec::split_speeds(split);
  const std::vector<std::string> names = pipeline::chain_names(shape, build);
  PipelineCut cut{.stage_ranks = schedule::stage_ranks(recipe.pipeline.stage_ranks)};
  const int chunks = cut.stage_ranks.empty() ? chunks_given : static_cast<int>(cut.stage_ranks.size());
  const auto by_cost = [&, &speeds = speeds](std::span<const double> costs) {
    return speeds.empty() ? pipeline::split_by_cost(costs, chunks) : pipeline::split_by_cost(costs, speeds);
  };
  if (how == "count") {
    cut.split = pipeline::split_by_count(names, chunks);
    return cut;
  }
  if (how == "size") {
    cut.split = by_cost(pipeline::parameter_costs(shape, build));
  } else if (how == "time" || how == "pipedream") {
    auto entries = profile(recipe, shape, build, names.size(), rows, length, world);
    if (recipe.train.layer_keep) {
      // Later layers are dropped more often, so later stages have more of them.
      const std::vector<double> shares = LayerDropping(recipe, shape).kept_shares(names);
      for (std::size_t i = 0; i < entries.size(); ++i) entries[i].seconds *= shares[i];
    }
    if (how == "time") {
      cut.split = by_cost(pipeline::seconds_of(entries));
    } else {
      cut = cut_as_pipedream(task, entries);
    }
  } else {
    cut.split = pipeline::split_at(names, spec::split_entries(how));
    TRIREME_CHECK(static_cast<int>(cut.split.size()) == chunks, "pipeline.split = \"{}\" makes {} chunks, not {}", how,
                  cut.split.size(), chunks);
  }
  const bool first = worker > 0 && links != nullptr ? links->rank() == 0 : world.rank() == 0;
  if (tell && first) {
    log_info("pipeline.split = \"{}\": {}{}", split, pipeline::to_text(cut.split, names),
             cut.stage_ranks.empty() ? "" : fmt::format("; ranks of stages: {}", cut.stage_ranks));
  }
  return cut;
}

}  // namespace trireme::train
