// bench/schedule_replay.cpp -- how long it takes to build, check and time a schedule, beside the time that planners and
// people would wait for it. A planner replays thousands: the shape of the largest published runs must take below 100
// ms.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "bench/arguments.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace {

using namespace trireme;
using namespace trireme::schedule;

/// The shortest of three: what the work takes when nothing disturbs it.
double seconds(const std::function<void()>& work) {
  double least = 1e30;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

struct Row {
  const char* kind;
  Shape shape;
  double limit_s;  // for the replay, transfers added
};

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app(
      "Building, checking and replaying pipeline schedules beside how long one would wait for it");
  if (const auto status = app.parse(count, words)) return *status;
  const Row rows[] = {
      {"1f1b", {.ranks = 64, .micros = 512}, 0.1},  // one trillion parameters: 2104.04473, section 5.1
      {"interleaved", {.ranks = 64, .micros = 512, .chunks_per_rank = 2}, 0.2},
      {"zb-v", {.ranks = 64, .micros = 512, .chunks_per_rank = 2}, 0.2},
      {"dualpipe", {.ranks = 64, .micros = 512, .chunks_per_rank = 2}, 0.2},
      {"pipedream-2bw", {.ranks = 64, .micros = 512, .steps = 4}, 0.4},
      {"interleaved", {.ranks = 64, .micros = 1024, .chunks_per_rank = 8}, 3},
  };
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"kind"},
                   {"ranks x micros x chunks"},
                   {"instructions", kRight},
                   {"build", kRight},
                   {"check", kRight},
                   {"replay", kRight},
                   {"limit", kRight},
                   {"replay/limit", kRight},
                   {"ns/instruction", kRight}});
  for (const Row& row : rows) {
    Schedule plain;
    const double building = seconds([&] { plain = build(row.kind, row.shape); });
    std::size_t instructions = 0;
    for (const auto& list : add_transfers(plain).ranks) instructions += list.size();
    const double checking = seconds([&] { check(plain); });
    const double replaying = seconds([&] { replay(plain, {.times = Times{}.scaled(chunk_share(plain))}); });
    table.add(
        {row.kind,
         fmt::format("{} x {} x {}", row.shape.ranks, row.shape.micros * row.shape.steps, row.shape.chunks_per_rank),
         fmt::format("{}", instructions), short_seconds(building), short_seconds(checking), short_seconds(replaying),
         short_seconds(row.limit_s), fmt::format("{:.3f}", replaying / row.limit_s),
         fmt::format("{:.0f}", 1e9 * replaying / static_cast<double>(instructions))});
  }
  std::fputs(table.text().c_str(), stdout);
  return 0;
}
