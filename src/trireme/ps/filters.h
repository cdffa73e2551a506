// ps/filters.h -- what need not travel: the filters of Li et al. 2014, section 5.1.
//
// Key caching is part of the messages themselves (message.h: has_keys, key_hash). Compression encodes values: zstd
// gives the same bits back, 16-bit fixed point rounds. The significantly-modified filter and random skip send part of a
// push and keep the rest as a residual that the next push adds, so nothing is lost, only late. The KKT filter leaves
// out keys that the L1 optimality condition holds at zero.
// Depends on: message.h, update_rule.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/ps/message.h"
#include "trireme/ps/update_rule.h"

namespace trireme::ps {

/// Which filters a worker's messages go through.
struct Filters {
  bool key_caching = true;
  Encoding encoding = Encoding::kRaw;
  double significant = 0;  ///< a value travels when it and its residual are above this; 0: all do
  double skip = 0;         ///< probability that a block of keys waits for the next push
  std::uint64_t seed = 0;  ///< of random skip
  bool keeps_all() const { return significant == 0 && skip == 0; }
};

/// Puts values into a message. Where zstd does not make them fewer they stay as they are. CommError of decode_values:
/// they are not what the message says.
void encode_values(Message& message, SharedBytes values, ValueType type, Encoding encoding);
SharedBytes decode_values(const Message& message, ValueType type);

/// Significantly modified and random skip, with what they hold back; for values of one worker.
class ResidualFilter {
 public:
  ResidualFilter(const Filters& filters, int worker, ValueType type, std::uint64_t keys);
  struct Sent {
    std::vector<Segment> segments;
    std::vector<std::byte> values;
  };
  /// What of a push travels now. `task` decides which blocks random skip leaves out.
  Sent apply(std::uint64_t task, std::span<const Segment> segments, std::span<const std::byte> values);
  /// Everything that was held back, and a push that is held back in no part.
  Sent flush(std::span<const Segment> segments = {}, std::span<const std::byte> values = {});

 private:
  template <typename T>
  Sent select(std::uint64_t task, std::span<const Segment> segments, std::span<const std::byte> values, bool all);

  Filters filters_;
  int worker_;
  ValueType type_;
  std::vector<double> residual_;  // by key
};

/// The keys that a proximal step can move: those that are not 0, or whose gradient is within `margin` of lambda.
std::vector<Segment> kkt_active(std::uint64_t first_key, std::span<const double> weights,
                                std::span<const double> gradients, double lambda, double margin);

}  // namespace trireme::ps
