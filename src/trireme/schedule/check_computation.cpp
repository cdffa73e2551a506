#include <fmt/format.h>

#include "trireme/schedule/check_parts.h"

namespace trireme::schedule {

namespace {

struct ComputedCell {
  bool forward = false, doubled = false, recomputed = false, input = false, weight = false;
};

class Computation : public TableWalk<Computation, ComputedCell> {
 public:
  using TableWalk::TableWalk;

 private:
  friend TableWalk;
  using Cell = ComputedCell;

  void visit() {
    if (is_placed()) step();
  }

  /// Its numbers are in range, and the rank is the one where that micro meets that chunk.
  bool is_placed() {
    switch (info(now_->op).operands) {
      case Operands::kNone:
        return true;
      case Operands::kChunk:
        return is_held(now_->chunk);
      case Operands::kVersionAndChunk:
        if (now_->micro < 0) fault("versions count from 0");
        return is_held(now_->chunk);
      case Operands::kMicroAndChunk:
        return meets(now_->chunk, now_->micro) && (now_->op != Op::kForwardDoubled || pairs_up());
      default:
        return meets(now_->chunk, now_->micro) && meets(now_->back_chunk, now_->back_micro);
    }
  }

  bool is_held(int chunk) {
    const bool inside = chunk >= 0 && chunk <= schedule_.last_chunk();
    for (const auto& route : schedule_.routes) {
      if (inside && route[static_cast<std::size_t>(chunk)] == rank_) return true;
    }
    fault(fmt::format("the rank does not hold chunk {}", chunk));
    return false;
  }

  bool meets(int chunk, int micro) {
    if (chunk < 0 || chunk > schedule_.last_chunk() || micro < 0 || micro >= schedule_.micros) {
      fault(fmt::format("there are {} chunks and {} micros", schedule_.chunks(), schedule_.micros));
      return false;
    }
    const int holder = schedule_.rank_of(chunk, micro);
    if (holder != rank_) fault(fmt::format("micro {} meets chunk {} on rank {}", micro, chunk, holder));
    return holder == rank_;
  }

  /// The second micro of a doubled forward goes where the first one goes, and into the same step.
  bool pairs_up() {
    const int first = now_->micro;
    if (!meets(now_->chunk, first + 1)) return false;
    if (first % 2 != 0) fault(fmt::format("a forward of two micros begins at an even one, not at {}", first));
    if (schedule_.step_of(first) != schedule_.step_of(first + 1))
      fault(fmt::format("micros {} and {} belong to different optimizer steps", first, first + 1));
    return true;
  }

  void step() {
    if (now_->op == Op::kRecompute) return recompute();
    for (int i = 0; i < forward_count(*now_); ++i) forward(now_->chunk, now_->micro + i);
    if (does_input_gradient(*now_)) input(backward_chunk(*now_), backward_micro(*now_));
    if (does_weight_gradient(*now_)) weight(backward_chunk(*now_), backward_micro(*now_));
  }

  void forward(int chunk, int micro) {
    Cell& mine = cell(chunk, micro);
    if (mine.forward) fault(fmt::format("micro {} was forward through chunk {} already", micro, chunk));
    const bool local = chunk > 0 && schedule_.rank_of(chunk - 1, micro) == rank_;
    if (local && !cell(chunk - 1, micro).forward)
      fault(fmt::format("micro {} has not been forward through chunk {} before", micro, chunk - 1));
    mine.forward = true;
    mine.doubled = now_->op == Op::kForwardDoubled;
  }

  void recompute() {
    Cell& mine = cell(now_->chunk, now_->micro);
    if (!mine.forward || mine.input)
      fault(fmt::format("micro {} is not between its forward and its backward", now_->micro));
    if (mine.recomputed) fault(fmt::format("micro {} was recomputed already", now_->micro));
    mine.recomputed = true;
  }

  void input(int chunk, int micro) {
    Cell& mine = cell(chunk, micro);
    if (mine.input) fault(fmt::format("micro {} was backward through chunk {} already", micro, chunk));
    if (!mine.forward) fault(fmt::format("micro {} has not been forward through chunk {} before", micro, chunk));
    const bool local = chunk < schedule_.last_chunk() && schedule_.rank_of(chunk + 1, micro) == rank_;
    if (local && !cell(chunk + 1, micro).input)
      fault(fmt::format("micro {} has not been backward through chunk {} before", micro, chunk + 1));
    mine.input = true;
  }

  void weight(int chunk, int micro) {
    Cell& mine = cell(chunk, micro);
    if (mine.weight) fault(fmt::format("micro {} gave its weight gradient of chunk {} already", micro, chunk));
    if (!mine.input) fault(fmt::format("micro {} has no gradient of inputs of chunk {} before", micro, chunk));
    mine.weight = true;
  }

  void complete(int chunk, int micro) {
    const Cell& mine = cell(chunk, micro);
    const auto missing = [&](std::string_view what) {
      faults_.add(fmt::format("rank {}: micro {} {} chunk {}", schedule_.rank_of(chunk, micro), micro, what, chunk));
    };
    if (!mine.forward) missing("never goes forward through");
    if (mine.forward && mine.doubled != cell(0, 0).doubled)
      missing(mine.doubled ? "goes forward with another, but micro 0 alone, through"
                           : "goes forward alone, but micro 0 with another, through");
    if (!mine.input) missing("never goes backward through");
    if (!mine.weight) missing("never gives its weight gradient of");
  }
};

}  // namespace

void check_computation(const Schedule& schedule, Report& report) { Computation(schedule, report).run(); }

}  // namespace trireme::schedule
