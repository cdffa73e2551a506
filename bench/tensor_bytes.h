// bench/tensor_bytes.h -- the memory of tensors that this thread makes: now, and at most.
//
// Ranks are threads, and a rank's tensors are made and freed by its thread: a count for each rank, where the process's
// resident size is that of all.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace trireme::bench {

class TensorBytes {
 public:
  TensorBytes() : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  std::int64_t now() const { return count_->now; }
  std::int64_t peak() const { return count_->peak; }
  void forget_peak() { count_->peak = count_->now; }

 private:
  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
      now += size;  // what is freed is reported as negative
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Count> count_;  // shared with the guard, which hands it to the allocator
  c10::DebugInfoGuard guard_;
};

}  // namespace trireme::bench
