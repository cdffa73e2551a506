#include "trireme/parallel/compress/staged_reductions.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "trireme/base/stopwatch.h"

namespace trireme::parallel {

void StagedReductions::add(comm::Work before, Stages stages) {
  entries_.push_back({.stages = std::move(stages), .work = std::move(before)});
}

void StagedReductions::advance(Entry& entry, std::size_t before) {
  while (entry.begun < entry.stages.size()) {
    if (before <= entry.begun || !entry.work.test()) return;
    const auto begin = std::chrono::steady_clock::now();
    entry.work = entry.stages[entry.begun]();
    ++entry.begun;
    seconds_ += seconds_since(begin);
  }
}

void StagedReductions::advance() {
  // Of all that are under way before an entry, not of the one before it alone: that may have fewer stages.
  std::size_t before = std::numeric_limits<std::size_t>::max();
  for (Entry& entry : entries_) {
    advance(entry, before);
    if (entry.begun < entry.stages.size()) before = std::min(before, entry.begun);
  }
  while (!entries_.empty() && entries_.front().is_over()) entries_.pop_front();
}

void StagedReductions::finish() {
  for (advance(); !entries_.empty(); advance()) entries_.front().work.wait();
}

double StagedReductions::take_seconds() { return std::exchange(seconds_, 0.0); }

}  // namespace trireme::parallel
