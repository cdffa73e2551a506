// trireme tour: what ranks can say to each other, and what happens when they do not, in a few seconds.
#include <fmt/format.h>

#include <memory>
#include <thread>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/comm/exclusion.h"
#include "trireme/comm/measure.h"
#include "trireme/comm/negotiator.h"
#include "trireme/comm/transports/emulated.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;
using comm::Algorithm;
using comm::Buffer;
using comm::DType;
using comm::Group;
using comm::Rank;
using comm::Reduce;

constexpr int kRanks = 4;

comm::RanksOptions quiet_options() {
  comm::RanksOptions options;
  options.comm.flight_directory = "";  // the failures below are staged: nobody needs their records
  return options;
}

Buffer buffer(std::vector<float>& values) { return {values.data(), values.size(), DType::kF32}; }

void heading(std::ostream& out, int number, std::string_view text) { fmt::print(out, "\n{}. {}\n\n", number, text); }

void show_reduce(std::ostream& out) {
  heading(out, 1, fmt::format("{} ranks (threads of this process) add up their vectors", kRanks));
  std::vector<std::string> lines(kRanks);
  comm::run_ranks(
      kRanks,
      [&](Rank& rank) {
        const auto r = static_cast<float>(rank.rank());
        std::vector<float> values{r, r * 10, 1};
        const std::string before = fmt::format("{}", fmt::join(values, " "));
        rank.world().all_reduce(buffer(values), Reduce::kSum).wait();
        lines[static_cast<std::size_t>(rank.rank())] =
            fmt::format("rank {} gave  {:<8}  got  {}", rank.rank(), before, fmt::join(values, " "));
      },
      quiet_options());
  for (const std::string& line : lines) fmt::print(out, "   {}\n", line);
}

void show_algorithms(std::ostream& out) {
  heading(out, 2, "The same sum by each algorithm: what one rank sends, and how long 1 MiB takes here");
  TextTable table({{"algorithm"}, {"sent by rank 0", TextTable::Align::kRight}, {"time", TextTable::Align::kRight}});
  comm::run_ranks(
      kRanks,
      [&](Rank& rank) {
        Group& group = rank.world();
        std::vector<float> values(1 << 18, 1.0f);
        for (const Algorithm algorithm : group.algorithms(cost::Collective::kAllReduce)) {
          const auto once = [&] { group.all_reduce(buffer(values), Reduce::kMax, {.algorithm = algorithm}).wait(); };
          once();
          group.reset_counters();
          group.barrier().wait();
          const auto start = comm::now_ns();
          constexpr int kTimes = 20;
          for (int i = 0; i < kTimes; ++i) once();
          const double seconds = static_cast<double>(comm::now_ns() - start) / 1e9 / kTimes;
          if (rank.rank() == 0) {
            const auto sent = static_cast<double>(group.counters(comm::Op::kAllReduce).sent_bytes) / kTimes;
            table.add({std::string(cost::name(algorithm)), short_bytes(sent), short_seconds(seconds)});
          }
        }
      },
      quiet_options());
  out << table.text("   ");
}

void show_overlap(std::ostream& out) {
  heading(out, 3,
          "A slow network (emulated: 1 ms, 1 GB/s): 16 MiB are reduced in the background while the ranks compute");
  auto options = quiet_options();
  const comm::EmulatedLink slow{.latency = 1ms, .bytes_per_second = 1e9};
  options.wrap = [&](std::unique_ptr<comm::Transport> inner) {
    return comm::make_emulated_transport(std::move(inner), {.across = slow, .inside = slow});
  };
  options.comm.costs.of("emulated").links = comm::links_of({.across = slow, .inside = slow}, 1e-10);
  comm::run_ranks(
      2,
      [&](Rank& rank) {
        std::vector<float> values(4 << 20, 1.0f);
        const auto compute = [] { std::this_thread::sleep_for(40ms); };  // stands for work on another device
        const auto once = [&](bool overlapped) {
          rank.world().barrier().wait();
          const auto start = comm::now_ns();
          comm::Work work = rank.world().all_reduce(buffer(values), Reduce::kMax, {.algorithm = Algorithm::kRing});
          if (!overlapped) work.wait();
          compute();
          work.wait();
          return static_cast<double>(comm::now_ns() - start) / 1e9;
        };
        once(true);
        const double one_after_the_other = once(false), together = once(true);
        if (rank.rank() == 0) {
          fmt::print(out, "   one after the other  {}\n   overlapped           {}\n",
                     short_seconds(one_after_the_other), short_seconds(together));
        }
      },
      options);
}

void show_negotiation(std::ostream& out) {
  heading(
      out, 4,
      fmt::format("Twelve tensors become ready in another order on each of {} ranks: a coordinator decides (Horovod)",
                  kRanks));
  comm::run_ranks(
      kRanks,
      [&](Rank& rank) {
        constexpr int kTensors = 12;
        comm::Negotiator sums(rank.world(), {.cycle = 5ms});
        comm::Negotiator::Counters before;
        for (int round = 1; round <= 2; ++round) {
          std::vector<std::vector<float>> values(kTensors, std::vector<float>(1000, 1.0f));
          std::vector<std::string> order;
          for (int i = 0; i < kTensors; ++i) {
            const int tensor = (i * 5 + rank.rank() * 3) % kTensors;
            order.push_back(fmt::format("{}", tensor));
            sums.all_reduce(order.back(), buffer(values[static_cast<std::size_t>(tensor)]));
          }
          sums.wait_all();
          const comm::Negotiator::Counters& now = sums.counters();
          if (rank.rank() == 0) {
            fmt::print(out, "   step {}: rank 0 had them ready as {}\n", round, fmt::join(order, " "));
            fmt::print(out, "           {} sums of fused tensors; agreed on {} by name, on {} by one bit each\n",
                       now.collectives - before.collectives,
                       now.tensors - now.cached - (before.tensors - before.cached), now.cached - before.cached);
          }
          before = now;
        }
        sums.finish();
      },
      quiet_options());
}

void show_exclusion(std::ostream& out) {
  heading(out, 5,
          "One rank at a time, without a lock file: requests are granted in the order of logical clocks (Lamport)");
  std::vector<int> order;  // guarded by nothing but the exclusion
  comm::run_ranks(
      kRanks,
      [&](Rank& rank) {
        comm::MutualExclusion exclusion(rank.control(), "tour");
        rank.world().barrier().wait();
        for (int entry = 0; entry < 2; ++entry) {
          exclusion.lock(30s);
          order.push_back(rank.rank());
          exclusion.unlock();
        }
        rank.world().barrier().wait();  // all answer until the last one has been inside
      },
      quiet_options());
  fmt::print(out, "   entered: {}; each entry takes 3 (n - 1) = {} messages\n", fmt::join(order, " "),
             3 * (kRanks - 1));
}

void show_error(std::ostream& out, const std::function<void()>& staged) {
  try {
    staged();
    throw InternalError("the staged failure did not happen");
  } catch (const CommError& error) {
    for (const std::string& line : split(error.block(), '\n')) {
      for (const std::string& piece : wrapped(line, 110)) {
        if (!piece.empty()) fmt::print(out, "   | {}\n", piece);
      }
    }
  }
}

void show_mismatch(std::ostream& out) {
  heading(out, 6, "A mistake: rank 2 reduces 100 elements, the others 128. Nobody hangs; every rank gets this:");
  show_error(out, [] {
    comm::run_ranks(
        kRanks,
        [](Rank& rank) {
          std::vector<float> values(rank.rank() == 2 ? 100 : 128);
          rank.world().all_reduce(buffer(values), Reduce::kSum).wait();
        },
        quiet_options());
  });
}

void show_absence(std::ostream& out) {
  heading(out, 7,
          "A rank that never comes: after the deadline (here 0.3 s; 10 minutes by default) every rank knows who:");
  show_error(out, [] {
    auto options = quiet_options();
    options.comm.deadline = 300ms;
    comm::run_ranks(
        kRanks,
        [](Rank& rank) {
          std::vector<float> values(1024);
          rank.world().all_reduce(buffer(values), Reduce::kSum).wait();
          if (rank.rank() == 3) {
            std::this_thread::sleep_for(800ms);
            return;
          }
          rank.world().barrier().wait();
        },
        options);
  });
}

}  // namespace

void add_tour_command(Command& app, Context& context) {
  Command& tour = app.add_subcommand("tour", "See in a few seconds how ranks communicate, overlap and fail");
  tour.callback([&context] {
    context.run = [&context] {
      std::ostream& out = context.out;
      fmt::print(out, "Trireme: ranks that talk\n");
      const auto step = [&](void (*show)(std::ostream&)) {
        show(out);
        out.flush();
      };
      step(&show_reduce);
      step(&show_algorithms);
      step(&show_overlap);
      step(&show_negotiation);
      step(&show_exclusion);
      step(&show_mismatch);
      step(&show_absence);
      fmt::print(out, "\nNext: 'trireme bench comm' measures every operation here; 'trireme --help' lists the rest.\n");
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
