// This node's ranks of a job, as torchrun starts them: `--node-rank N`. Every node runs the same command.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/launch/launcher.h"

namespace trireme::launch {
namespace {

class Node final : public Launcher {
 public:
  std::string name() const override { return "node-rank"; }
  std::string value() const override { return "N"; }
  std::string meaning() const override {
    return "start the ranks of this node, number N of --nodes, with torchrun's variables, and stay until they end; "
           "every node runs the same command with its own number";
  }
  std::vector<Setting> settings() const override {
    return {{"master-addr", "ADDRESS", "address of rank 0's host, where ranks meet", "localhost"}};
  }

  bool passes_environment_on() const override { return true; }

  std::vector<config::Problem> find_problems(const Job& job, const Settings& settings) const override {
    std::vector<config::Problem> problems;
    const int node = settings.number("node-rank", 0);
    if (node >= job.nodes) {
      problems.push_back(
          {.key = "--node-rank",
           .reason = fmt::format("{} is not below --nodes {}; nodes are counted from 0", node, job.nodes),
           .hint = fmt::format("--node-rank {}", job.nodes - 1)});
    }
    if (job.nodes > 1 && settings.text("master-addr") == "localhost") {
      problems.push_back({.key = "--master-addr",
                          .reason = "ranks on several nodes do not find each other at localhost",
                          .hint = "give the address of the node with --node-rank 0"});
    }
    if (!job.sweep.empty()) {
      problems.push_back({.key = "--sweep", .reason = "a node has no queue for several runs", .hint = "use --slurm"});
    }
    return problems;
  }

  Submission prepare(const Job& job, const Settings& settings) const override {
    const int node = settings.number("node-rank", 0);
    const int first = node * job.ranks_per_node;
    const int here = std::min(job.ranks_per_node, job.ranks - first);
    Submission submission;
    for (int local = 0; local < here; ++local) {
      const int rank = first + local;
      const std::string script =
          rank_script(job, torchrun_environment(job, settings.text("master-addr"), rank, local, here, node));
      submission.processes.push_back({.name = fmt::format("rank {} on node {}", rank, node),
                                      .prefix = fmt::format("[rank {}] ", rank),
                                      .words = {"sh", "-c", script}});
    }
    return submission;
  }
};

}  // namespace

std::unique_ptr<const Launcher> make_node() { return std::make_unique<Node>(); }

}  // namespace trireme::launch
