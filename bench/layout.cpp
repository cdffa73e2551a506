// bench/layout.cpp -- what the layout room costs while a run is going: hashing a tensor beside reading it, and planning
// a reshard beside moving its bytes.
//
//   build/release/bench/layout
//
// Hash: one thread over 64 MiB, beside a plain sum of the same memory. Plan: the time to
// plan a move beside the time one core takes to copy the bytes that the busiest rank sends. Medians of 9 rounds, in
// which ours and what it is held against take turns.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/instruction_set.h"
#include "trireme/layout/hash.h"
#include "trireme/layout/placing.h"
#include "trireme/layout/reshard.h"

namespace {

using namespace trireme;
using bench::median;
using bench::seconds_of;
using namespace trireme::layout;

constexpr int kRounds = 9;

void bench_hash() {
  const Index bytes = 64 << 20;
  std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 2654435761U >> 16);
  std::uint64_t sink = 0;  // printed: what nobody reads is not computed
  fmt::print("{:<16}{:>12}{:>12}{:>8}\n", "hash of 64 MiB", "hash GB/s", "sum GB/s", "ratio");
  for (const std::size_t element_bytes : {1, 2, 4, 8}) {
    for (const InstructionSet set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4}) {
      if (set > machine_instruction_set()) continue;
      const UseInstructionSet use(set);
      std::vector<double> ours, beside;
      for (int round = 0; round < kRounds; ++round) {
        // Another place each round, or the compiler could see that it need not look again.
        const ContiguousRun run{.global = round, .local = 0, .count = bytes / static_cast<Index>(element_bytes)};
        ours.push_back(seconds_of([&] { sink += tensor_hash(std::span(&run, 1), memory, element_bytes); }));
        memory[static_cast<std::size_t>(round)] ^= std::byte{1};
        beside.push_back(seconds_of([&] {
          const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
          sink += std::accumulate(words, words + memory.size() / 8, std::uint64_t{0});
        }));
      }
      const double gigabytes = static_cast<double>(bytes) * 1e-9;
      fmt::print("{:<16}{:>12.2f}{:>12.2f}{:>8.2f}\n", fmt::format("{} bytes, {}", element_bytes, to_string(set)),
                 gigabytes / median(ours), gigabytes / median(beside), median(beside) / median(ours));
    }
  }
  fmt::print("(checksum {:016x})\n\n", sink);
}

struct Case {
  const char* name;
  const char *here, *there;
  void (*from)(Placing&);
  void (*to)(Placing&);
};

void bench_plan(const Case& c) {
  const Shape shape{8192, 8192};
  const auto from = place_all(parse_mesh(c.here), "w", shape, c.from);
  const auto to = place_all(parse_mesh(c.there), "w", shape, c.to);
  std::vector<double> ours, beside;
  ReshardVolume total;
  for (int round = 0; round < kRounds; ++round) {
    ours.push_back(seconds_of([&] { total = volume(plan_reshard(from, to, 4)); }));
    std::vector<std::byte> in(total.most_sent_bytes, std::byte{1}), out(total.most_sent_bytes, std::byte{2});
    beside.push_back(seconds_of([&] { std::memcpy(out.data(), in.data(), in.size()); }));
  }
  fmt::print("{:<48}{:>9.2f}{:>9.2f}{:>10}{:>10}{:>10.1f}{:>10.1f}\n", c.name, median(ours) * 1e3, median(beside) * 1e3,
             total.copies, total.messages, static_cast<double>(total.moved_bytes) * 1e-6,
             static_cast<double>(total.most_sent_bytes) * 1e-6);
}

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app("Hashing a tensor beside summing it, planning a reshard beside copying what moves");
  if (const auto status = app.parse(count, words)) return *status;
  bench_hash();
  fmt::print("{:<48}{:>9}{:>9}{:>10}{:>10}{:>10}{:>10}\n", "reshard 8192 x 8192 f32", "plan ms", "copy ms", "copies",
             "messages", "moved MB", "most MB");
  bench_plan({"ZeRO over 64 -> ZeRO over 48", "dp=64", "dp=48", [](Placing& p) { p.partition({"dp"}); },
              [](Placing& p) { p.partition({"dp"}); }});
  bench_plan({"columns over 8, ZeRO over 8 -> over 4, over 12", "dp=8 tp=8", "dp=12 tp=4",
              [](Placing& p) { p.split(1, "tp").partition({"dp"}); },
              [](Placing& p) { p.split(1, "tp").partition({"dp"}); }});
  bench_plan({"columns over 8, 8 copies -> rows over 8", "dp=8 tp=8", "dp=8 tp=8", [](Placing& p) { p.split(1, "tp"); },
              [](Placing& p) { p.split(0, "tp"); }});
  bench_plan({"8 copies -> 9 copies", "dp=8", "dp=9", [](Placing&) {}, [](Placing&) {}});
}
