// schedule/times.h -- how long the instructions of a schedule take, in any unit.
//
// Depends on: schedule.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// Of one pass of one micro through one chunk.
struct Times {
  double forward = 1, backward_input = 1, backward_weight = 1;
  std::optional<double> recompute = {};   // as long as a forward where not given
  std::optional<double> overlapped = {};  // a forward and a whole backward together; their sum where not given
  double exchange = 0;                    // of a mixture's rows to their experts, or back
  double experts = 0.5;                   // the share of a pass that its experts compute, where it is in parts
  int mixtures = 0;                       // of this chunk, those that send rows, for who has times by chunk
  double reduce = 0, optimizer = 0;       // of one chunk; of all chunks of a rank
  double stash = 0, predict = 0;          // of one chunk
  double link = 0;                        // a message on its way

  double backward() const { return backward_input + backward_weight; }
  double pair() const { return overlapped.value_or(forward + backward()); }
  double of(Op op) const;
  /// All of the computing times by this factor: a chunk that is half of a rank's share takes half as long.
  Times scaled(double factor) const;
};

/// Reads "f=1,b=1,w=1" with any of f, b, w, r (recompute), fb (overlapped pair), g (reduce), o (optimizer), s (stash),
/// p (predict), x (exchange), e (share of the experts) and link; what is left out keeps its default. Throws
/// ConfigError.
Times parse_times(std::string_view text);
std::string to_text(const Times& times);

}  // namespace trireme::schedule
