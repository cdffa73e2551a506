#include "trireme/train/engine/pipeline_split.h"

#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/pipeline/profile.h"
#include "trireme/pipeline/stage.h"

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

/// Bytes a second of a message from one rank to the next: the median of a few.
double measure_link(comm::Group& world) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  std::vector<std::uint8_t> data(kBytes);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (world.rank() == 0) world.send(comm::ConstBuffer{data.data(), kBytes, comm::DType::kU8}, 1).wait();
    if (world.rank() == 1) world.recv(comm::Buffer{data.data(), kBytes, comm::DType::kU8}, 0).wait();
    seconds.push_back(seconds_since(begin));
  }
  std::ranges::sort(seconds);
  double median = seconds[2];
  world.broadcast(comm::Buffer{&median, 1, comm::DType::kF64}, 1 % world.size()).wait();
  return static_cast<double>(kBytes) / median;
}

PipelineCut cut_as_pipedream(const spec::Recipe& recipe, std::span<const pipeline::EntryProfile> entries,
                             comm::Group& world) {
  if (recipe.pipeline.schedule != "1f1b" || recipe.pipeline.virtual_stages != 1) {
    throw ConfigError(fmt::format("pipeline.split = \"pipedream\" may put a stage on several ranks, which schedule {} "
                                  "with {} chunks a rank has no place for",
                                  recipe.pipeline.schedule, recipe.pipeline.virtual_stages),
                      "set pipeline.schedule = \"1f1b\" and pipeline.virtual_stages = 1, or pipeline.split = \"time\"");
  }
  const pipeline::ReplicationPlan plan = pipeline::plan_replication(entries, recipe.layout.pp, measure_link(world));
  PipelineCut cut;
  for (const pipeline::ReplicatedStage& stage : plan.stages) {
    cut.split.push_back(stage.stretch);
    cut.ranks_of_stage.push_back(stage.workers);
  }
  return cut;
}

std::vector<std::string> listed_entries(const std::string& text) {
  std::vector<std::string> entries;
  std::istringstream in(text);
  for (std::string entry; std::getline(in, entry, ',');) {
    std::erase(entry, ' ');
    if (!entry.empty()) entries.push_back(entry);
  }
  return entries;
}

}  // namespace

PipelineCut cut_pipeline(const spec::Recipe& recipe, const spec::ModelShape& shape, const models::BuildOptions& build,
                         int chunks, std::int64_t rows, std::int64_t length, comm::Group& world) {
  const std::string& how = recipe.pipeline.split;
  const std::vector<std::string> names = pipeline::chain_names(shape, build);
  PipelineCut cut;
  if (how == "count") {
    cut.split = pipeline::split_by_count(names, chunks);
    return cut;
  }
  if (how == "size") {
    cut.split = pipeline::split_by_cost(pipeline::parameter_costs(shape, build), chunks);
  } else if (how == "time" || how == "pipedream") {
    const auto entries = profile(recipe, shape, build, names.size(), rows, length, world);
    if (how == "time") {
      cut.split = pipeline::split_by_cost(pipeline::seconds_of(entries), chunks);
    } else {
      cut = cut_as_pipedream(recipe, entries, world);
    }
  } else {
    cut.split = pipeline::split_at(names, listed_entries(how));
    if (static_cast<int>(cut.split.size()) != chunks) {
      throw ConfigError(fmt::format("pipeline.split = \"{}\" makes {} chunks, but {} stages with {} each need {}", how,
                                    cut.split.size(), recipe.layout.pp, chunks / recipe.layout.pp, chunks),
                        fmt::format("name {} entries: the first chunk begins by itself; or set pipeline.split = "
                                    "\"count\", \"size\" or \"time\"",
                                    chunks - 1));
    }
  }
  if (world.rank() == 0) {
    log_info(
        "pipeline.split = \"{}\": {}{}", how, pipeline::to_text(cut.split, names),
        cut.ranks_of_stage.empty() ? "" : fmt::format("; ranks of stages: {}", fmt::join(cut.ranks_of_stage, ", ")));
  }
  return cut;
}

}  // namespace trireme::train
