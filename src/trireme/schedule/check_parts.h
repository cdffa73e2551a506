// schedule/check_parts.h -- the parts of check(), one a file. Only they use it.
//
// Depends on: check.
#pragma once

#include <string>
#include <vector>

#include "trireme/schedule/check.h"

namespace trireme::schedule {

/// "rank 1, position 4, B0.1 (backward)".
std::string where(int rank, std::size_t position, const Instruction& instruction);

/// Adds to the faults of a report; a table that is wrong everywhere needs no endless list.
class Faults {
 public:
  explicit Faults(Report& report) : faults_(report.faults) {}
  void add(std::string fault) {
    constexpr std::size_t kMost = 100;
    if (faults_.size() < kMost) faults_.push_back(std::move(fault));
  }
  void at(int rank, std::size_t position, const Instruction& instruction, const std::string& why) {
    add(where(rank, position, instruction) + ": " + why);
  }

 private:
  std::vector<std::string>& faults_;
};

/// Goes through a table, rank by rank, with what a check notes of each micro at each chunk: `Check` has Cell, visit()
/// and complete().
template <typename Check, typename Cell>
class TableWalk {
 public:
  TableWalk(const Schedule& schedule, Report& report)
      : schedule_(schedule),
        faults_(report),
        cells_(static_cast<std::size_t>(schedule.chunks()) * static_cast<std::size_t>(schedule.micros)) {}

  void run() {
    auto& check = static_cast<Check&>(*this);
    for (rank_ = 0; rank_ < static_cast<int>(schedule_.ranks.size()); ++rank_) {
      const auto& list = schedule_.ranks[static_cast<std::size_t>(rank_)];
      for (position_ = 0; position_ < list.size(); ++position_) {
        now_ = &list[position_];
        check.visit();
      }
    }
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
      for (int micro = 0; micro < schedule_.micros; ++micro) check.complete(chunk, micro);
    }
  }

 protected:
  Cell& cell(int chunk, int micro) {
    return cells_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(schedule_.micros) +
                  static_cast<std::size_t>(micro)];
  }
  void fault(const std::string& why) { faults_.at(rank_, position_, *now_, why); }

  const Schedule& schedule_;
  Faults faults_;
  const Instruction* now_ = nullptr;
  int rank_ = 0;

 private:
  std::vector<Cell> cells_;
  std::size_t position_ = 0;
};

/// check_computation.cpp: every pass once, where it belongs, after what it needs of its own rank.
void check_computation(const Schedule& schedule, Report& report);
/// interleave.cpp: parts of passes, where the table has any.
void check_parts(const Schedule& schedule, Report& report);
/// check_updates.cpp: reductions and optimizer steps, where the table has any.
void check_updates(const Schedule& schedule, Report& report);
/// check_versions.cpp: the weights that passes compute with, against the table's law. Fills uses and peaks.
void check_versions(const Schedule& schedule, Report& report);
/// check_transfers.cpp: posts and waits, matching, deadlock. Fills slots.
void check_transfers(const Schedule& schedule, Report& report);

}  // namespace trireme::schedule
