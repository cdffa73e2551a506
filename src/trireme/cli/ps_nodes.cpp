#include "trireme/cli/ps_nodes.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/mailbox_threads.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;

/// This rank's nodes, each on a thread.
void run_on_rank(comm::Rank& rank, int count, const std::function<void(comm::Mailbox&)>& body) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int address = rank.rank(); address < count; address += rank.ranks()) {
    threads.emplace_back([&, address] {
      try {
        const auto mailbox =
            comm::make_process_mailbox(rank.control(), {.address = address, .deadline = 120s, .linger = 2s});
        body(*mailbox);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  rank.world().barrier().wait();  // nobody leaves while others still read its mail
}

}  // namespace

void add_ps_node_options(Command& command, PsNodeOptions& options) {
  command.add_option("--ranks", options.ranks, "Processes that share the nodes; without it threads of this one")
      .within(1, 4096)
      .type_name("N");
  command.add_option("--transport", options.transport, "Between processes: mpi or ucx; auto as they were started")
      .one_of({"auto", "mpi", "ucx"})
      .type_name("NAME");
  command.add_option("--seed", options.seed,
                     "Deliver messages in an order drawn from this, one thread at a time: repeatable");
}

void run_ps_nodes(int count, const PsNodeOptions& options, const std::function<void(comm::Mailbox&)>& body) {
  const bool launched = comm::detect_launch().kind != comm::Launch::Kind::kSingle;
  if (!launched && options.ranks == 0 && options.transport == "auto") {
    if (options.seed >= 0) {
      comm::run_mailboxes(count, {.seed = static_cast<std::uint64_t>(options.seed)}, body);
    } else {
      comm::run_thread_mailboxes(count, {}, body);
    }
    return;
  }
  if (options.seed >= 0)
    throw ConfigError("--seed draws the order of messages between threads, but processes were asked for",
                      "leave --seed, or --ranks and --transport out");
  spec::Recipe recipe;
  recipe.comm.transport = options.transport == "mpi"   ? spec::Transport::kMpi
                          : options.transport == "ucx" ? spec::Transport::kUcx
                          : launched                   ? spec::Transport::kAuto
                                                       : spec::Transport::kMpi;
  if (options.ranks > 0) recipe.comm.ranks = options.ranks;
  start_ranks(recipe, [&](comm::Rank& rank) { run_on_rank(rank, count, body); });
}

void save_weights(std::span<const double> weights, const std::filesystem::path& file, std::ostream& out) {
  std::string text;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] != 0) text += fmt::format("{} {:.17g}\n", i + 1, weights[i]);
  }
  write_text_file(file, text);
  fmt::print(out, "saved to {}\n", file.string());
}

}  // namespace trireme::cli
