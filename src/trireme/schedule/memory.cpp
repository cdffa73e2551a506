#include "trireme/schedule/memory.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace trireme::schedule {

namespace {

class MemoryReplay {
 public:
  MemoryReplay(const Schedule& schedule, const Sizes& sizes, int rank)
      : sizes_(sizes),
        micros_(static_cast<std::size_t>(schedule.micros)),
        waves_(schedule.weights == WeightChoice::kWaves) {
    const auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
    for (const Instruction& it : list) {
      if (it.op == Op::kRecompute) recomputed_.resize(micros_ * static_cast<std::size_t>(schedule.chunks()));
    }
    if (!recomputed_.empty()) {
      for (const Instruction& it : list) {
        if (it.op == Op::kRecompute) recomputed_[cell(it.chunk, it.micro)] = true;
      }
    }
    grow(sizes.weights * static_cast<double>(chunks_of(schedule, rank).size()));
    for (std::size_t position = 0; position < list.size(); ++position) {
      const Instruction& it = list[position];
      // Into the place of the prediction before, of which there is one for each direction through a chunk.
      if (it.op == Op::kPredictWeights && predicted_.emplace(it.chunk, next_pass_is_forward(list, position)).second)
        grow(sizes.weights);
      step(it);
    }
  }

  double peak() const { return peak_; }

 private:
  std::size_t cell(int chunk, int micro) const {
    return static_cast<std::size_t>(chunk) * micros_ + static_cast<std::size_t>(micro);
  }
  void grow(double by) {
    held_ += by;
    peak_ = std::max(peak_, held_);
  }
  /// While a pass runs it holds all of its activation, whatever it leaves behind.
  void step(const Instruction& it) {
    if (waves_ && does_forward(it)) grow(sizes_.weights);  // a copy of its own until it has come back
    if (waves_ && does_input_gradient(it)) held_ -= sizes_.weights;
    if (does_forward(it)) {
      const int micros = forward_count(it);
      grow(micros * sizes_.activation);
      const bool again = !recomputed_.empty() && recomputed_[cell(it.chunk, it.micro)];
      if (again) held_ -= micros * (sizes_.activation - sizes_.input);
    }
    switch (it.op) {
      case Op::kRecompute:
        grow(sizes_.activation - sizes_.input);
        break;
      case Op::kBackward:
      case Op::kForwardBackward:
      case Op::kBeginBackward:
        held_ -= sizes_.activation;
        break;
      case Op::kBackwardInput:
        held_ -= sizes_.activation - sizes_.for_weights;
        break;
      case Op::kBackwardWeight:
        held_ -= sizes_.for_weights;
        break;
      case Op::kStashWeights:
        grow(sizes_.weights);
        break;
      case Op::kDropWeights:
        held_ -= sizes_.weights;
        break;
      default:
        break;
    }
  }

  const Sizes& sizes_;
  std::size_t micros_;
  bool waves_;                    // each micro in flight has weights of its own
  std::vector<bool> recomputed_;  // by cell; empty where the rank recomputes nothing
  std::set<std::pair<int, bool>> predicted_;
  double held_ = 0, peak_ = 0;
};

}  // namespace

std::vector<double> peak_memory(const Schedule& schedule, const Sizes& sizes) {
  std::vector<double> peaks;
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank)
    peaks.push_back(MemoryReplay(schedule, sizes, rank).peak());
  return peaks;
}

std::vector<int> peak_in_flight(const Schedule& schedule) {
  // Sums and differences of ones are exact.
  std::vector<int> peaks;
  const Sizes ones{.activation = 1, .for_weights = 1, .input = 1, .weights = 0};
  for (const double peak : peak_memory(schedule, ones)) peaks.push_back(static_cast<int>(std::lround(peak)));
  return peaks;
}

}  // namespace trireme::schedule
