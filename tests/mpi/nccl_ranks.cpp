// What ranks that are MPI processes with pretended GPUs do in the tests: nccl_ranks WHAT FAKE_LIBRARY under mpirun.
//
// Prints "fine" from rank 0 and exits 0 when all went as it should; failures show the way they show in the program.
#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

#include "tests/comm/collective_checks.h"
#include "tests/comm/fake_nccl/fake_ranks.h"
#include "trireme/comm/process.h"

namespace {

using namespace std::chrono_literals;
using namespace trireme;
using namespace trireme::comm;

void demand(const std::string& wrong) {
  if (!wrong.empty()) throw Error(wrong);
}

bool is_last(Rank& rank) { return rank.rank() == rank.ranks() - 1; }

void sum(Rank& rank, std::vector<float>& values) {
  const Buffer buffer{values.data(), values.size(), DType::kF32, {DeviceKind::kCuda, rank.rank()}};
  rank.world().all_reduce(buffer, Reduce::kSum).wait();
}

/// Host calls go on until one throws what was found in the background.
void wait_for_the_error(Rank& rank) {
  for (int i = 0; i < 4000; ++i) {
    rank.world().barrier().wait();
    std::this_thread::sleep_for(5ms);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: mpirun -n N nccl_ranks WHAT FAKE_LIBRARY [RANKS_PER_NODE]\n");
    return 2;
  }
  const std::string what = arguments[1];
  const fake::Library fakes(arguments[2]);
  static std::vector<float> values(1000, 1.0f);  // outlives everything that may touch it
  const std::map<std::string, std::function<void(Rank&)>> bodies{
      {"collectives",
       [&](Rank& rank) {
         const Place place = fakes.place(rank);
         demand(check_collectives(rank.world(),
                                  {.counts = {0, 1, 7, 1300}, .large_one_in = 12, .small_one_in = 4, .place = place}));
         demand(check_messages(rank.world(), 3, place));
         for (std::uint64_t seed = 0; seed < 10; ++seed) demand(check_program(rank, seed, place));
         demand(check_early_receive(rank, 1, place));
       }},
      {"mismatch",
       [&](Rank& rank) {
         values.resize(is_last(rank) ? 500 : 600);
         sum(rank, values);
       }},
      {"hang",
       [&](Rank& rank) {
         if (is_last(rank)) fakes.misbehave({.hangs_from = 2});
         sum(rank, values);
         sum(rank, values);
         wait_for_the_error(rank);
       }},
      {"killed",
       [&](Rank& rank) {
         if (is_last(rank)) fakes.misbehave({.hangs_from = 2});
         sum(rank, values);
         sum(rank, values);
         if (is_last(rank)) std::raise(SIGKILL);
         fakes.gpu().synchronise();  // stuck until the GPU is freed
         wait_for_the_error(rank);
       }},
  };
  RanksOptions options;
  options.comm.flight_directory = "";
  options.comm.deadline = what == "hang" ? 1s : 60s;
  if (count > 3) options.ranks_per_node = std::atoi(arguments[3]);
  run_process_rank(
      detect_launch(),
      [&](Rank& rank) {
        fakes.give_gpu(rank);
        bodies.at(what)(rank);
        fakes.gpu().synchronise();
        rank.world().barrier().wait();
        if (rank.rank() == 0) std::printf("fine\n");
      },
      options);
  return 0;
}
