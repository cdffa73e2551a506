#include "trireme/nn/tape.h"

#include <algorithm>
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
  offloaded_ = std::exchange(other.offloaded_, {});
  discarded_ = std::exchange(other.discarded_, {});
  divided_ = std::exchange(other.divided_, {});
  return *this;
}

/// After an error, or where a schedule goes back: otherwise backward has taken every frame.
void Tape::give_up() noexcept {
  const auto drop = [](const std::shared_ptr<Stashed>& stashed) noexcept {
    try {
      if (stashed) stashed->stash->drop(stashed);
    } catch (...) {  // a copy that failed; who takes a frame is told
    }
  };
  for (const OffloadedFrame& offloaded : offloaded_) drop(offloaded.stashed);
  for (const DividedFrame& divided : divided_) drop(divided.stashed);
  offloaded_.clear();
  divided_.clear();
}

void Tape::push(Tensors saved, Stash& stash) {
  offloaded_.push_back({frames_.size(), stash.put(std::move(saved))});
  frames_.emplace_back();
}

void Tape::push(Tensors first, Tensors rest, Stash* stash) {
  const std::size_t frame = frames_.size();
  if (stash == nullptr) {
    push(std::move(first));
    divided_.push_back({frame, std::move(rest), nullptr});
  } else {
    push(std::move(first), *stash);
    divided_.push_back({frame, {}, stash->put(std::move(rest))});
  }
}

Tensors Tape::pop(std::size_t count) {
  TRIREME_CHECK(!frames_.empty(), "a layer's backward found nothing on the tape");
  Tensors frame = std::move(frames_.back());
  frames_.pop_back();
  if (!offloaded_.empty() && offloaded_.back().frame == frames_.size()) {
    const OffloadedFrame offloaded = std::move(offloaded_.back());
    offloaded_.pop_back();
    frame = offloaded.stashed->stash->take(offloaded.stashed);
    if (!offloaded_.empty()) offloaded_.back().stashed->stash->prefetch(offloaded_.back().stashed);
  }
  TRIREME_CHECK(frame.size() == count, "a layer's backward wants {} tensors and found a frame of {}: another layer's",
                count, frame.size());
  return frame;
}

Tape Tape::split_rows(std::int64_t kept, std::int64_t rows) {
  const auto elsewhere = [](const DividedFrame& divided) { return divided.stashed != nullptr; };
  TRIREME_CHECK(static_cast<std::size_t>(std::ranges::count_if(divided_, elsewhere)) == offloaded_.size(),
                "frames that are elsewhere as one cannot be split");
  TRIREME_CHECK(deferred_.empty(), "a tape with deferred work cannot be split");
  TRIREME_CHECK(kept > 0 && kept < rows, "{} of {} rows are no part of them", kept, rows);
  const auto of_row = [&](std::int64_t size) {
    TRIREME_CHECK(size % rows == 0, "a saved tensor of {} has no equal part for each of {} rows", size, rows);
    return size / rows;
  };
  Tape rest;
  auto divided = divided_.begin();
  for (Tensors& frame : frames_) {
    Tensors& other = rest.frames_.emplace_back();
    if (divided != divided_.end() && divided->frame + 1 == rest.frames_.size()) {
      other = std::move(divided->rest);
      if (divided->stashed) rest.offloaded_.push_back({divided->frame, std::move(divided->stashed)});
      ++divided;
      continue;
    }
    for (at::Tensor& tensor : frame) {
      at::Tensor& theirs = other.emplace_back();
      if (!tensor.defined()) continue;
      TRIREME_CHECK(tensor.dim() > 0, "a saved number belongs to no row");
      const std::int64_t each = of_row(tensor.size(0));
      theirs = tensor.narrow(0, kept * each, (rows - kept) * each);
      tensor = tensor.narrow(0, 0, kept * each);
    }
  }
  divided_.clear();
  rest.discarded_ = discarded_;
  for (auto [part, taken] : {std::pair{this, kept}, std::pair{&rest, rows - kept}}) {
    for (Discarded& discarded : part->discarded_) {
      for (Discarded::Place& place : discarded.places) place.sizes[0] = of_row(place.sizes[0]) * taken;
    }
  }
  return rest;
}

void Tape::discard(const at::Tensor& x, std::size_t mark) {
  TRIREME_CHECK(mark > 0 && mark <= frames_.size(), "a mark at {} of {} frames", mark, frames_.size());
  Discarded& discarded = discarded_.emplace_back(Discarded{.mark = mark, .places = {}});
  for (std::size_t frame = mark; frame < frames_.size(); ++frame) {
    for (std::size_t slot = 0; slot < frames_[frame].size(); ++slot) {
      at::Tensor& kept = frames_[frame][slot];
      if (!kept.defined() || !kept.is_alias_of(x) || kept.numel() != x.numel() || !kept.is_contiguous()) continue;
      discarded.places.push_back({frame, slot, kept.sizes().vec()});
      kept = at::Tensor();
    }
  }
}

void Tape::recompute(const std::function<at::Tensor(const Tensors& below)>& make) {
  TRIREME_CHECK(!discarded_.empty(), "nothing was discarded that could be recomputed");
  const Discarded discarded = std::move(discarded_.back());
  discarded_.pop_back();
  if (discarded.places.empty()) return;
  TRIREME_CHECK(discarded.mark <= frames_.size(), "what a discarded tensor is made from has been popped");
  const at::Tensor x = make(frames_[discarded.mark - 1]);
  for (const Discarded::Place& place : discarded.places) {
    TRIREME_CHECK(place.frame < frames_.size(), "a frame was popped before what it had discarded was there again");
    frames_[place.frame][place.slot] = x.view(place.sizes);
  }
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
  const auto count = [&](const Tensors& frame) {
    for (const at::Tensor& tensor : frame) {
      if (!tensor.defined() || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) continue;
      total += static_cast<std::int64_t>(tensor.storage().nbytes());
    }
  };
  for (const Tensors& frame : frames_) count(frame);
  for (const DividedFrame& divided : divided_) count(divided.rest);
  return total;
}

}  // namespace trireme::nn
