// schedule/reading.h -- what reading a schedule needs in either of its forms, and how large one can be.
//
// Depends on: schedule.
#pragma once

#include <optional>
#include <string_view>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

// Large enough for any machine there is; small enough that a slip of the pen does not fill the memory.
inline constexpr int kMostMicros = 1 << 20;
inline constexpr int kMostChunks = 1 << 14;
inline constexpr int kMostMixtures = 1 << 14;
inline constexpr long kMostCells = 1L << 24;

/// A whole number from 0 to `most`.
std::optional<int> read_number(std::string_view text, int most);

/// Throws ConfigError with the names there are.
WeightChoice read_weights(std::string_view name);

/// What must hold before the instructions can be read.
void check_header(const Schedule& schedule);
/// What must hold once all ranks are known.
void check_placement(const Schedule& schedule);

/// Reads the instructions of one rank.
class InstructionReader {
 public:
  InstructionReader(const Schedule& schedule, int rank);
  Instruction read(std::string_view token, std::size_t position);

 private:
  [[noreturn]] void fail(const std::string& why, const std::string& hint) const;
  Instruction single(std::string_view text) const;
  int implied_chunk() const;
  int chunk_in(std::string_view text) const;
  int micro_in(std::string_view text, const OpInfo& op) const;

  const Schedule& schedule_;
  int rank_;
  int only_chunk_ = -1;  // where the rank holds one
  std::string_view token_ = {};
  std::size_t position_ = 0;
};

}  // namespace trireme::schedule
