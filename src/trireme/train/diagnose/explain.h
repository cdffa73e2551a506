// train/diagnose/explain.h -- what a step keeps in memory and sends to other ranks, measured in a rehearsal, beside the
// formulas.
//
// Depends on: plan, train.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/traffic.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {

struct Explanation {
  struct Line {
    std::string name, formula_text;
    double measured = 0, formula = 0;  ///< bytes; a formula of 0: there is none
  };
  std::string mesh;
  std::string gradients;                 ///< how they are summed over ranks, in order
  std::string planned;                   ///< of a GPU's memory: a table; empty on a CPU
  std::vector<Line> memory;              ///< by category
  std::vector<Line> traffic;             ///< by group
  std::vector<plan::TrafficLine> lines;  ///< what the formulas of the groups are made of
  /// Tables for people.
  std::string text() const;
};

/// On all ranks together; each gets its own. Runs forward and backward of the next step once, and changes nothing.
Explanation explain(Trainer& trainer);

}  // namespace trireme::train
