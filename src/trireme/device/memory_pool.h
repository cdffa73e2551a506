// device/memory_pool.h -- who uses how much of a memory: the account that a rank keeps of its device and its host.
//
// Counted, not allocated: whoever makes or frees something large says so. On a machine without an accelerator this is
// all that "device memory" means, and the limit is what makes a run that would not fit somewhere else stop here too.
// One thread, the rank's, keeps the account; threads beside it never do.
// Depends on: base.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::device {

enum class MemoryUse : std::uint8_t {
  kParameters,   ///< what layers compute with
  kGradients,    ///< sums over micros and ranks
  kOptimizer,    ///< masters where they are not the parameters, and moments
  kActivations,  ///< what forward keeps for backward
  kBuckets,      ///< room for what is on its way or gathered for a while
  kVersions,     ///< of weights, that micro-batches in flight need or a step that may be taken back
  kOther,
};
inline constexpr std::size_t kMemoryUses = 7;
const char* name_of(MemoryUse use);

class MemoryPool {
 public:
  /// `limit` in bytes; unset: any amount.
  explicit MemoryPool(std::string name, std::optional<std::int64_t> limit = std::nullopt);

  /// So many bytes more; negative: fewer. A ConfigError with table() when all uses together pass the limit.
  void add(MemoryUse use, std::int64_t bytes);
  /// So many bytes from now on.
  void set(MemoryUse use, std::int64_t bytes) { add(use, bytes - bytes_of(use)); }

  std::int64_t bytes_of(MemoryUse use) const { return current_[static_cast<std::size_t>(use)]; }
  std::int64_t peak_of(MemoryUse use) const { return peak_[static_cast<std::size_t>(use)]; }
  std::int64_t bytes() const;
  std::int64_t peak() const { return peak_total_; }  ///< of the sum, which may be less than the sum of peaks
  std::optional<std::int64_t> limit() const { return limit_; }
  const std::string& name() const { return name_; }

  /// "device memory  now  most", a line for each use that was ever there, and the sum.
  std::string table() const;

 private:
  std::string name_;
  std::optional<std::int64_t> limit_;
  std::array<std::int64_t, kMemoryUses> current_{}, peak_{};
  std::int64_t peak_total_ = 0;
};

/// What one rank uses.
struct RankMemory {
  MemoryPool device{"device"}, host{"host"};
};

}  // namespace trireme::device
