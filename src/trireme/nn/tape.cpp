#include "trireme/nn/tape.h"

#include <unordered_set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/nn/stash.h"

namespace trireme::nn {

Tape::~Tape() { give_up(); }

Tape& Tape::operator=(Tape&& other) noexcept {
  give_up();
  frames_ = std::exchange(other.frames_, {});
  deferred_ = std::exchange(other.deferred_, {});
  deferring_ = other.deferring_;
  away_ = std::exchange(other.away_, {});
  return *this;
}

/// After an error, or where a schedule goes back: otherwise backward has taken every frame.
void Tape::give_up() noexcept {
  for (const Away& away : away_) {
    try {
      away.stashed->stash->drop(away.stashed);
    } catch (...) {  // a copy that failed; who takes a frame is told
    }
  }
  away_.clear();
}

void Tape::push(Tensors saved, Stash& stash) {
  away_.push_back({frames_.size(), stash.put(std::move(saved))});
  frames_.emplace_back();
}

Tensors Tape::pop(std::size_t count) {
  TRIREME_CHECK(!frames_.empty(), "a layer's backward found nothing on the tape");
  Tensors frame = std::move(frames_.back());
  frames_.pop_back();
  if (!away_.empty() && away_.back().frame == frames_.size()) {
    const Away away = std::move(away_.back());
    away_.pop_back();
    frame = away.stashed->stash->take(away.stashed);
    if (!away_.empty()) away_.back().stashed->stash->call_back(away_.back().stashed);
  }
  TRIREME_CHECK(frame.size() == count, "a layer's backward wants {} tensors and found a frame of {}: another layer's",
                count, frame.size());
  return frame;
}

void Tape::weight_gradient(std::function<void()> work) {
  if (deferring_) {
    deferred_.push_back(std::move(work));
  } else {
    work();
  }
}

void Tape::run_weight_gradients() {
  for (auto& work : deferred_) {
    work();
    work = nullptr;  // what it read can go at once
  }
  deferred_.clear();
}

std::int64_t Tape::bytes() const {
  std::unordered_set<const void*> seen;
  std::int64_t total = 0;
  for (const Tensors& frame : frames_) {
    for (const at::Tensor& tensor : frame) {
      if (!tensor.defined() || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) continue;
      total += static_cast<std::int64_t>(tensor.storage().nbytes());
    }
  }
  return total;
}

}  // namespace trireme::nn
