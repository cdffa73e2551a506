#include "trireme/spmd/lifetimes.h"

#include <algorithm>
#include <map>

namespace trireme::spmd {
namespace {

/// Where a thing is touched, and whether it is made there; positions ascend.
using Touches = std::vector<std::pair<std::size_t, bool>>;

template <typename Key>
class TouchTable {
 public:
  void add(const Key& key, std::size_t position, bool makes) {
    Touches& touches = touches_[key];
    if (!touches.empty() && touches.back().first == position) {
      touches.back().second = touches.back().second || makes;
    } else {
      touches.emplace_back(position, makes);
    }
  }
  void close(std::vector<Over>& over, std::vector<Key> Over::*list) const {
    for (const auto& [key, touches] : touches_) {
      for (std::size_t i = 0; i < touches.size(); ++i) {
        if (touches[i].first >= over.size()) continue;  // to the end
        if (i + 1 == touches.size() || touches[i + 1].second) (over[touches[i].first].*list).push_back(key);
      }
    }
  }

 private:
  std::map<Key, Touches> touches_;
};

}  // namespace

std::vector<Over> lifetimes_of(const pg::Graph& both, const std::vector<pg::IterationSpace>& spaces,
                               const std::vector<pg::Link>& links, const std::vector<pg::ProgramStep>& program) {
  std::vector<std::vector<const pg::Link*>> into(both.ops.size());
  for (const pg::Link& link : links) {
    if (!link.is_update) into[static_cast<std::size_t>(link.consumer)].push_back(&link);
  }
  TouchTable<int> values, kept;
  TouchTable<Wanted> converted;
  TouchTable<std::pair<int, int>> extended;
  for (std::size_t position = 0; position < program.size(); ++position) {
    const int index = program[position].op, family = family_of(both, index);
    const auto at = static_cast<std::size_t>(index);
    const pg::Op& op = both.ops[at];
    const bool is_forward = op.forward < 0;
    kept.add(family, position, is_forward);
    for (const pg::Link* link : into[at]) {
      if (both.tensor(link->tensor).role != pg::Role::kParameter) values.add(link->tensor, position, false);
      converted.add({link->tensor, family, wanted_dims(spaces[at], static_cast<std::size_t>(link->input))}, position,
                    true);
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (is_parameter_sum(both, op)) {
        values.add(op.inputs[k], position, false);
        continue;
      }
      converted.add({op.inputs[k], family, wanted_dims(spaces[at], k)}, position, false);
      extended.add({op.inputs[k], family}, position, is_forward);
    }
    for (const int output : op.outputs) values.add(output, position, true);
  }
  for (const pg::Link& link : links) {
    if (link.is_update) values.add(link.tensor, program.size(), false);
  }
  std::vector<Over> over(program.size());
  values.close(over, &Over::values);
  kept.close(over, &Over::kept);
  converted.close(over, &Over::converted);
  extended.close(over, &Over::extended);
  return over;
}

}  // namespace trireme::spmd
