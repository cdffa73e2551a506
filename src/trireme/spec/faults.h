// spec/faults.h -- faults that are made on purpose, for tests and drills, as sentences.
//
//   kill rank 2 at step 50                        flip a bit of param/wte on rank 1 at step 7
//   kill rank 0 at step 40 while writing          flip a bit in the checkpoint of step 40
//   hang rank 1 at step 30                        disk full at step 40
//   stall rank 1 at step 30 for 2s                slow rank 3 by 2.5 from step 10 to step 20
//   clock of rank 0 jumps by 1h at step 20        clock of rank 0 jumps back by 1h at step 20
//
// `trireme train` makes them happen; `trireme simulate` reckons with those that take time.
// Depends on: base.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::spec {

struct Fault {
  enum class Kind : std::uint8_t {
    kKill,       ///< SIGKILL, as the kernel or a colleague sends it; of ranks that are threads, all die
    kHang,       ///< the rank does nothing any more
    kStall,      ///< it does nothing for a while, as when a message is held up
    kSlow,       ///< its computing takes longer by a factor
    kFlipState,  ///< a bit of a tensor in memory, before the step
    kFlipFile,   ///< a bit of a checkpoint's largest file, after it was published
    kDiskFull,   ///< writing the checkpoint of that step fails
    kClock,      ///< its process sees another time of day from then on
  };
  /// When in the life of a checkpoint a rank is killed.
  enum class Moment : std::uint8_t { kStep, kCopying, kWriting, kWritten, kPublishing, kPublished };

  Kind kind = Kind::kKill;
  int rank = 0;
  std::int64_t step = 0, last_step = 0;  ///< of checkpoints: the first of this step or a later one
  Moment moment = Moment::kStep;
  double factor = 1;
  std::chrono::nanoseconds duration{0};  ///< of a clock: how far it jumps, back when negative
  std::string tensor;
  std::string text;  ///< as it was written
  bool operator==(const Fault&) const = default;
};

/// ConfigError listing the sentences that are understood.
Fault parse_fault(std::string_view text);
std::vector<Fault> parse_faults(std::span<const std::string> texts);

}  // namespace trireme::spec
