// spmd/held_memory.h -- bytes of the memory behind all tensors that are held, each counted once.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::spmd {

class HeldMemory {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    auto& [bytes, holders] = held_[tensor.storage().data()];
    bytes = static_cast<double>(tensor.storage().nbytes());
    if (holders++ == 0) now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void remove(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto found = held_.find(tensor.storage().data());
    if (found == held_.end() || --found->second.second > 0) return;
    now_ -= found->second.first;
    held_.erase(found);
  }
  double peak() const { return peak_; }

 private:
  std::map<const void*, std::pair<double, int>> held_;
  double now_ = 0, peak_ = 0;
};

}  // namespace trireme::spmd
