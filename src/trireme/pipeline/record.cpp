#include "trireme/pipeline/record.h"

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::pipeline {

void WalkRecord::add(const RunReport& report) {
  std::vector<double> times;
  times.reserve(2 * report.spans.size());
  const auto began = report.began.time_since_epoch();
  for (const Ran& ran : report.spans) {
    times.push_back(std::chrono::duration<double>(began + ran.start).count());
    times.push_back(std::chrono::duration<double>(began + ran.end).count());
  }
  walks_.push_back(std::move(times));
  if (walks_.size() > most_) walks_.pop_front();
}

std::vector<schedule::Timeline> WalkRecord::gather(comm::Group& pipeline) const {
  std::vector<std::size_t> counts;
  for (const auto& list : table_.ranks) counts.push_back(2 * list.size());
  std::size_t all = 0;
  for (const std::size_t count : counts) all += count;
  std::vector<schedule::Timeline> timelines;
  for (const std::vector<double>& mine : walks_) {
    TRIREME_CHECK(mine.size() == counts[static_cast<std::size_t>(pipeline.rank())],
                  "a step with {} times is stored, but the list has {}", mine.size(),
                  counts[static_cast<std::size_t>(pipeline.rank())]);
    std::vector<double> whole(pipeline.rank() == 0 ? all : 0);
    pipeline
        .gather_v(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kF64},
                  comm::Buffer{whole.data(), whole.size(), comm::DType::kF64}, counts, 0)
        .wait();
    if (pipeline.rank() != 0) continue;
    const double first = *std::ranges::min_element(whole);
    schedule::Timeline& timeline = timelines.emplace_back();
    const double* at = whole.data();
    for (const auto& list : table_.ranks) {
      auto& spans = timeline.ranks.emplace_back();
      for (const schedule::Instruction& it : list) {
        spans.push_back({it, at[0] - first, at[1] - first});
        at += 2;
      }
    }
  }
  return timelines;
}

}  // namespace trireme::pipeline
