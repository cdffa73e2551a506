#include "trireme/nn/tape.h"

#include <unordered_set>

#include "trireme/base/error.h"

namespace trireme::nn {

Tensors Tape::pop(std::size_t count) {
  TRIREME_CHECK(!frames_.empty(), "a layer's backward found nothing on the tape");
  TRIREME_CHECK(frames_.back().size() == count,
                "a layer's backward wants {} tensors and found a frame of {}: another layer's", count,
                frames_.back().size());
  Tensors frame = std::move(frames_.back());
  frames_.pop_back();
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
