#include "trireme/parallel/compress/staged_reductions.h"

#include <chrono>
#include <utility>

#include "trireme/base/stopwatch.h"

namespace trireme::parallel {

void StagedReductions::add(comm::Work before, Stages stages) {
  entries_.push_back({.stages = std::move(stages), .work = std::move(before)});
}

void StagedReductions::advance(Entry& entry, const Entry* before) {
  while (entry.begun < entry.stages.size()) {
    if (before != nullptr && before->begun < before->stages.size() && before->begun <= entry.begun) return;
    if (!entry.work.test()) return;
    const auto begin = std::chrono::steady_clock::now();
    entry.work = entry.stages[entry.begun]();
    ++entry.begun;
    seconds_ += seconds_since(begin);
  }
}

void StagedReductions::advance() {
  const Entry* before = nullptr;
  for (Entry& entry : entries_) {
    advance(entry, before);
    before = &entry;
  }
  while (!entries_.empty() && entries_.front().is_over()) entries_.pop_front();
}

void StagedReductions::finish() {
  for (advance(); !entries_.empty(); advance()) entries_.front().work.wait();
}

double StagedReductions::take_seconds() { return std::exchange(seconds_, 0.0); }

}  // namespace trireme::parallel
