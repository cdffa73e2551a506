#include "trireme/cli/launch/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme::cli {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// Nothing where the recipe leaves its number of ranks open.
std::optional<int> ranks_of_recipe(const spec::Recipe& recipe) {
  if (recipe.comm.ranks) return recipe.comm.ranks;
  if (recipe.layout.dp) return static_cast<int>(recipe.layout.ranks_per_copy() * *recipe.layout.dp);
  return std::nullopt;
}

/// Devices of what a launcher calls a node: one host, of which an NVLink domain may have several.
int devices_of_host(const cost::Cluster& cluster) {
  return cluster.topology.gpus_per_host > 0 ? cluster.topology.gpus_per_host : cluster.gpus_per_node;
}

plan::Checkup check_on(const spec::Recipe& recipe, int ranks, const cost::Hardware& hardware, bool judge_memory) {
  return plan::check_recipe(recipe, {.ranks = ranks,
                                     .hardware = hardware,
                                     .estimates = true,
                                     .judge_memory = judge_memory,
                                     .rank_kind = ranks > 1 ? spec::RankKind::kProcesses : spec::RankKind::kThreads});
}

/// The smallest number of ranks, in whole nodes where it takes more than one, whose memory suffices: replicas are added
/// while something stands against it, since ZeRO shards over them.
Fit search_nodes(const spec::Recipe& recipe, const cost::Hardware& hardware) {
  const int copy = static_cast<int>(recipe.layout.ranks_per_copy());
  const int each = devices_of_host(hardware.cluster);
  Fit fit;
  fit.ranks = copy;
  for (int replicas = 1; replicas * copy <= hardware.cluster.gpus; replicas *= 2) {
    const int ranks = replicas * copy;
    if (ranks > each && ranks % each != 0) continue;  // nodes are given out whole
    fit.ranks = ranks;
    fit.checkup = check_on(recipe, ranks, hardware, /*judge_memory=*/true);
    if (fit.checkup.problems.empty()) break;
  }
  fit.why = fmt::format("the fewest in whose memory the run fits on {}", hardware.cluster.name);
  return fit;
}

}  // namespace

Fit fit_recipe(const spec::LoadedRecipe& loaded, const FitRequest& request, const std::string& title) {
  const spec::Recipe& recipe = loaded.value;
  const bool judged = !request.cluster.empty();
  const cost::Hardware hardware = cost::load_hardware(judged ? request.cluster : "local");
  const int each = devices_of_host(hardware.cluster);
  const bool known = !recipe.model.init_from;  // else its shape is in a file that is on the nodes, perhaps
  Fit fit;
  std::optional<int> ranks;
  if (request.ranks) {
    ranks = request.ranks, fit.why = "--ranks";
  } else if (request.nodes && request.ranks_per_node) {
    ranks = *request.nodes * *request.ranks_per_node, fit.why = "--nodes x --ranks-per-node";
  } else if (request.nodes && judged) {
    ranks = *request.nodes * each;
    fit.why = fmt::format("--nodes x {} devices of a node of {}", each, hardware.cluster.name);
  } else if (request.slots > 0) {
    ranks = request.slots, fit.why = "as many as the hosts take";
  } else if ((ranks = ranks_of_recipe(recipe))) {
    fit.why = "the recipe";
  } else if (judged && known) {
    fit = search_nodes(recipe, hardware);
    ranks = fit.ranks;
  } else {
    ranks = static_cast<int>(recipe.layout.ranks_per_copy());
    fit.why = "one replica of the recipe's layout";
  }
  fit.ranks = *ranks;
  if (request.ranks_per_node) {
    fit.ranks_per_node = std::min(*request.ranks_per_node, fit.ranks);
  } else if (request.nodes || request.named_nodes > 0) {
    fit.ranks_per_node = ceil_div(fit.ranks, request.nodes.value_or(std::max(1, request.named_nodes)));
  } else {
    fit.ranks_per_node = judged ? std::min(each, fit.ranks) : fit.ranks;
  }
  fit.nodes =
      request.nodes.value_or(request.named_nodes > 0 ? request.named_nodes : ceil_div(fit.ranks, fit.ranks_per_node));

  std::vector<config::Problem> problems;
  if (known) {
    fit.checkup = check_on(recipe, fit.ranks, hardware, judged);
  } else {
    fit.checkup.notes.push_back(fmt::format(
        "model.init_from: {} says the shape and was not opened, so memory was not judged", *recipe.model.init_from));
  }
  if (fit.nodes * fit.ranks_per_node < fit.ranks || (fit.nodes - 1) * fit.ranks_per_node >= fit.ranks) {
    problems.push_back(
        {.key = "--nodes",
         .reason = fmt::format("{} with {} each are not {}", counted(static_cast<std::size_t>(fit.nodes), "node"),
                               counted(static_cast<std::size_t>(fit.ranks_per_node), "rank"), fit.ranks),
         .hint = fmt::format("--nodes {}", ceil_div(fit.ranks, fit.ranks_per_node))});
  }
  if (judged && fit.ranks_per_node > each) {
    problems.push_back({.key = "--ranks-per-node",
                        .reason = fmt::format("{} ranks need a device each, but a node of {} has {}",
                                              fit.ranks_per_node, hardware.cluster.name, each),
                        .hint = fmt::format("--ranks-per-node {}", each)});
  }
  if (judged && fit.nodes * each > std::max(hardware.cluster.gpus, each)) {
    problems.push_back({.key = "--nodes",
                        .reason = fmt::format("{} has {} devices, {} nodes of {}", hardware.cluster.name,
                                              hardware.cluster.gpus, hardware.cluster.gpus / each, each),
                        .hint = "take fewer, or say in the cluster's file how many there are (gpus)"});
  }
  problems.insert(problems.end(), fit.checkup.problems.begin(), fit.checkup.problems.end());
  if (!problems.empty()) throw config::ProblemsError(title, std::move(problems));
  return fit;
}

}  // namespace trireme::cli
