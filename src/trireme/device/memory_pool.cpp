#include "trireme/device/memory_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::device {
namespace {

struct Use {
  const char* name;
  const char* hint;  // when it is the largest of those that do not fit
};
constexpr Use kUses[kMemoryUses] = {
    {"parameters", "share weights out with layout.zero = 3, split them with layout.tp, or raise train.memory_gb"},
    {"gradients", "set layout.zero = 2, with which gradients leave as buckets fill, or raise train.memory_gb"},
    {"optimizer", "set layout.offload = \"optimizer\" or layout.zero = 1, or raise train.memory_gb"},
    {"activations",
     "set train.recompute = \"full\" (and train.offload_activations = true), lower train.micro_batch_size, or raise "
     "train.memory_gb"},
    {"buckets", "lower layout.bucket_mb, or raise train.memory_gb"},
    {"weight versions", "take a schedule with fewer, such as 1f1b or pipedream-2bw, or raise train.memory_gb"},
    {"other", "raise train.memory_gb"},
};

std::string amount(std::int64_t bytes) { return fmt::format("{:.6f} GB", static_cast<double>(bytes) / 1e9); }

}  // namespace

const char* name_of(MemoryUse use) { return kUses[static_cast<std::size_t>(use)].name; }

MemoryPool::MemoryPool(std::string name, std::optional<std::int64_t> limit) : name_(std::move(name)), limit_(limit) {}

std::int64_t MemoryPool::bytes() const { return std::accumulate(current_.begin(), current_.end(), std::int64_t{0}); }

void MemoryPool::add(MemoryUse use, std::int64_t bytes) {
  const auto i = static_cast<std::size_t>(use);
  current_[i] += bytes;
  TRIREME_CHECK(current_[i] >= 0, "more {} given back to the {} than it had", name_of(use), name_);
  peak_[i] = std::max(peak_[i], current_[i]);
  const std::int64_t total = this->bytes();
  peak_total_ = std::max(peak_total_, total);
  if (bytes <= 0 || !limit_ || total <= *limit_) return;
  const auto largest = std::ranges::max_element(current_) - current_.begin();
  throw ConfigError(fmt::format("{} of {} memory for {} do not fit: {} in all, of {}\n{}", amount(bytes), name_,
                                name_of(use), amount(total), amount(*limit_), table()),
                    kUses[largest].hint);
}

std::string MemoryPool::table() const {
  std::string text = fmt::format("{:<16}{:>16}{:>16}\n", name_ + " memory", "now", "most");
  for (std::size_t i = 0; i < kMemoryUses; ++i) {
    if (peak_[i] > 0)
      text += fmt::format("  {:<14}{:>16}{:>16}\n", kUses[i].name, amount(current_[i]), amount(peak_[i]));
  }
  text += fmt::format("  {:<14}{:>16}{:>16}\n", "all", amount(bytes()), amount(peak_total_));
  return text;
}

}  // namespace trireme::device
