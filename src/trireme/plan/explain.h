// plan/explain.h -- why a layout is the best: what becomes of it when one decision is made otherwise.
//
// For every decision (tp, pp, ...) and every value it could have, the best layout that has it, all others free; and
// where none of them fits, how near the nearest comes. The first limit that is hit is named.
// Depends on: search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/search.h"

namespace trireme::plan {

/// One value of one decision.
struct Alternative {
  std::string value;
  std::size_t layouts = 0, fitting = 0;
  Estimate best;  ///< the fastest that fits; where none does, the one with the least memory
  bool fits = false;
};

struct Decision {
  std::string name;  ///< "tp"
  std::string best;  ///< the value that the best layout has
  std::vector<Alternative> alternatives;
};

struct Explanation {
  std::optional<Estimate> best;  ///< none where nothing fits
  std::size_t layouts = 0, fitting = 0;
  std::vector<Decision> decisions;  ///< those with more than one value
};

/// By closed forms.
Explanation explain(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given);

/// "4.1 % slower, most of it in replicas": where one spends more than the other.
std::string why_slower(const Estimate& best, const Estimate& other);
/// "needs 93.1 GiB of 80.0, most of it activations".
std::string why_not(const Memory& memory);

}  // namespace trireme::plan
