// trireme plan virtual-workers: unequal devices as HetPipe's virtual workers, and the recipe keys that make them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/plan/asynchronous/virtual_workers.h"
#include "trireme/spec/model_config.h"

namespace trireme::cli {
namespace {

struct VirtualWorkersOptions {
  RecipeOptions recipe;
  std::vector<std::string> devices;
  std::string policy = "hybrid";
  int stages = 2, wave = 4, distance = 0;
  double link_gb = 10;
};

/// "v100:4:1.5:16": four devices, one and a half times as fast as one of speed 1, with 16 GB each.
void add_devices(const std::string& text, std::vector<plan::UnequalDevice>& devices) {
  const std::vector<std::string> parts = split(text, ':');
  const auto number = [&](std::size_t at, double otherwise) {
    if (parts.size() <= at) return otherwise;
    double value = 0;
    const auto [end, failure] = std::from_chars(parts[at].data(), parts[at].data() + parts[at].size(), value);
    if (failure != std::errc{} || end != parts[at].data() + parts[at].size() || !(value > 0))
      throw ConfigError(fmt::format("--device {}: {} is not a number above 0", text, parts[at]),
                        "write KIND:COUNT:SPEED or KIND:COUNT:SPEED:GB, such as v100:4:1.5:16");
    return value;
  };
  if (parts.size() < 3 || parts.size() > 4 || parts[0].empty())
    throw ConfigError(fmt::format("--device {} does not say what the devices are", text),
                      "write KIND:COUNT:SPEED or KIND:COUNT:SPEED:GB, such as v100:4:1.5:16");
  const int count = static_cast<int>(number(1, 1));
  for (int i = 0; i < count; ++i)
    devices.push_back({.kind = parts[0], .speed = number(2, 1), .memory = number(3, 0) * 1e9});
}

/// Blocks and the head as the cutter sees them; a cost of 1 is a block's.
std::vector<plan::UnequalLayer> layers_of(const spec::ModelShape& shape, double rows, double seq_len) {
  const spec::FlopCount flops = spec::count_flops(shape, static_cast<std::int64_t>(seq_len));
  const spec::ParameterCount count = spec::count_parameters(shape);
  constexpr double kBytes = 8;  // of a parameter: its weight and gradient in fp32
  const double blocks = static_cast<double>(shape.num_layers), output = rows * seq_len * shape.hidden_size * 4;
  std::vector<plan::UnequalLayer> layers(
      static_cast<std::size_t>(shape.num_layers),
      {.cost = 1, .weight_bytes = kBytes * static_cast<double>(count.layers) / blocks, .output_bytes = output});
  layers.front().weight_bytes += kBytes * static_cast<double>(count.embedding);
  layers.push_back({.cost = flops.head * blocks / (flops.projections + flops.attention),
                    .weight_bytes = kBytes * static_cast<double>(count.head),
                    .output_bytes = 0});
  return layers;
}

int run_virtual_workers(const VirtualWorkersOptions& options, Context& context) {
  const spec::Recipe recipe = options.recipe.load(context).value;
  const std::optional<spec::ModelShape> found = spec::shape_of(recipe.model);
  if (!found) throw ConfigError("the recipe has no model whose layers could be cut", "give it a [model] section");
  const spec::ModelShape& shape = *found;
  std::vector<plan::UnequalDevice> devices;
  for (const std::string& text : options.devices) add_devices(text, devices);
  if (devices.empty()) throw ConfigError("no devices were given", "--device v100:4:2 --device p4:4:1");
  const double rows = static_cast<double>(recipe.train.micro_batch_size.value_or(1));
  const std::vector<plan::UnequalLayer> layers = layers_of(shape, rows, static_cast<double>(recipe.data.seq_len));
  const auto policies = plan::enum_names(std::type_identity<plan::AllocationPolicy>{});
  const auto policy = std::ranges::find(policies, options.policy, &Named<plan::AllocationPolicy>::name);
  const auto workers = plan::allocate(policy->value, devices, options.stages);
  std::vector<std::string> splits, ranks(devices.size());
  TextTable table({{"virtual worker"}, {"stages, first layers first"}, {"slowest stage", TextTable::Align::kRight}});
  double slowest = 0, fastest = 0;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    std::vector<plan::UnequalDevice> members;
    for (const int device : workers[w]) members.push_back(devices[static_cast<std::size_t>(device)]);
    // Times are those of blocks on a device of speed 1: links are given for the same unit.
    const auto cut = plan::cut_for(members, layers, options.link_gb * 1e9, options.wave);
    if (!cut)
      throw ConfigError(fmt::format("the model has no cut for virtual worker {} within the memories of its devices", w),
                        "take more stages, a smaller --wave, or devices with more memory");
    std::vector<std::string> stages;
    for (std::size_t stage = 0; stage < cut->order.size(); ++stage) {
      const auto begin = static_cast<std::size_t>(cut->begins[stage]);
      const std::size_t end =
          stage + 1 < cut->begins.size() ? static_cast<std::size_t>(cut->begins[stage + 1]) : layers.size();
      const std::size_t blocks = std::min(end, layers.size() - 1) - std::min(begin, layers.size() - 1);
      const std::string& kind = members[static_cast<std::size_t>(cut->order[stage])].kind;
      stages.push_back(fmt::format("{}: {} blocks{}", kind, blocks, end == layers.size() ? " and the head" : ""));
      // Ranks go stage by stage, in each the virtual workers in turn.
      ranks[stage * workers.size() + w] = kind;
    }
    table.add({fmt::format("{}", w), fmt::format("{}", fmt::join(stages, "; ")), fmt::format("{:.3g}", cut->slowest)});
    splits.push_back(plan::to_split(*cut, static_cast<int>(shape.num_layers)));
    slowest = std::max(slowest, cut->slowest);
    fastest = w == 0 ? cut->slowest : std::min(fastest, cut->slowest);
  }
  const bool alike = std::ranges::all_of(splits, [&](const std::string& each) { return each == splits.front(); });
  fmt::print(context.out, "{}: {} virtual workers of {} stages\n{}", options.policy, workers.size(), options.stages,
             table.text("  "));
  fmt::print(context.out, "the slowest virtual worker takes {:.2f} times as long as the fastest\n\n",
             slowest / fastest);
  fmt::print(
      context.out,
      "start ranks on: {}\nlayout.pp = {}\nlayout.dp = {}\npipeline.schedule = \"{}\"\npipeline.split = \"{}\"\n",
      fmt::join(ranks, " "), options.stages, workers.size(),
      options.distance == 0 ? std::string("hetpipe") : fmt::format("hetpipe:{}", options.distance),
      alike ? splits.front() : fmt::format("{}", fmt::join(splits, ";")));
  return kExitFine;
}

}  // namespace

void add_plan_virtual_workers(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "virtual-workers", "Unequal devices as virtual workers (HetPipe): who goes together, and where each is cut");
  const auto options = std::make_shared<VirtualWorkersOptions>();  // shared with the callback
  options->recipe.add_to(command, RecipeOptions::File::kRequired);
  command.add_option("--device", options->devices, "KIND:COUNT:SPEED[:GB]; may be given several times")
      .take_all()
      .type_name("DEVICES");
  command.add_option("--policy", options->policy, "Who goes together; hybrid makes virtual workers about equally fast")
      .one_of({"node-partition", "equal-distribution", "hybrid"})
      .type_name("POLICY");
  command.add_option("--stages", options->stages, "Devices of a virtual worker").within(1, 64).type_name("N");
  command.add_option("--wave", options->wave, "Minibatches in flight (Nm)").within(1, 64).type_name("N");
  command.add_option("--distance", options->distance, "Clock distance (D)").within(0, 64).type_name("N");
  command.add_option("--link", options->link_gb, "Between devices, GB in the time of a block on a device of speed 1")
      .positive()
      .type_name("GB");
  command.footer(R"(Example:
  trireme plan virtual-workers recipes/tiny.toml --device v100:2:3 --device rtx:1:2 --device p4:1:1 --stages 2)");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_virtual_workers(*options, context); }; });
}

}  // namespace trireme::cli
