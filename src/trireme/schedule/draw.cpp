#include "trireme/schedule/draw.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/draw_parts.h"
#include "trireme/schedule/interleave.h"

namespace trireme::schedule {

namespace {

Paint paint_of(Op op) {
  switch (op) {
    case Op::kForward:
    case Op::kForwardDoubled:
      return Paint::kForward;
    case Op::kBackward:
      return Paint::kBackward;
    case Op::kBackwardInput:
      return Paint::kInput;
    case Op::kBackwardWeight:
      return Paint::kWeight;
    case Op::kRecompute:
      return Paint::kRecompute;
    case Op::kOptimizerStep:
      return Paint::kUpdate;
    default:
      return Paint::kOther;
  }
}

}  // namespace

std::string_view name_of(Paint paint) {
  switch (paint) {
    case Paint::kForward:
      return "forward";
    case Paint::kBackward:
      return "backward";
    case Paint::kInput:
      return "backward of inputs";
    case Paint::kWeight:
      return "backward of weights";
    case Paint::kRecompute:
      return "recompute";
    case Paint::kUpdate:
      return "update";
    default:
      return "weights copied or predicted";
  }
}

std::string micros_of(const DrawnBox& box) {
  return box.micros == 1 ? fmt::format("{}", box.micro) : fmt::format("{},{}", box.micro, box.micro + 1);
}

std::vector<std::vector<DrawnBox>> boxes_of(const Drawing& drawing) {
  const Schedule& schedule = drawing.schedule;
  const bool versions = schedule.weights != WeightChoice::kFlush;
  const Report report = versions ? check(schedule) : Report{};
  std::vector<std::vector<DrawnBox>> lanes;
  for (std::size_t rank = 0; rank < drawing.timing.ranks.size(); ++rank) {
    const std::vector<int> held = chunks_of(schedule, static_cast<int>(rank));
    auto& lane = lanes.emplace_back();
    OpenPasses open(schedule);
    for (const Span& span : drawing.timing.ranks[rank].spans) {
      const Instruction& it = span.instruction;
      const auto add = [&](Paint paint, int chunk, int micro) -> DrawnBox& {
        DrawnBox box{.paint = paint, .chunk = chunk, .micro = micro, .start = span.start, .end = span.end};
        box.turn = static_cast<int>(std::ranges::find(held, chunk) - held.begin());
        if (versions && paint == Paint::kForward) box.version = report.uses.forward(chunk, micro);
        if (versions && (paint == Paint::kBackward || paint == Paint::kInput))
          box.version = report.uses.backward(chunk, micro);
        return lane.emplace_back(box);
      };
      if (is_begin(it.op) || is_part(it.op)) {
        const OpenPasses::Open* pass = open.find(it);
        const bool back = pass != nullptr ? pass->backward : it.op == Op::kBeginBackward;
        add(back ? Paint::kBackward : Paint::kForward, it.chunk, it.micro);
        open.step(it);
      } else if (it.op == Op::kForwardBackward) {
        add(Paint::kForward, it.chunk, it.micro).is_upper_half = true;
        add(Paint::kBackward, it.back_chunk, it.back_micro).is_lower_half = true;
      } else {
        add(paint_of(it.op), it.chunk, is_version(it.op) ? -1 : it.micro).micros = std::max(1, forward_count(it));
      }
    }
  }
  return lanes;
}

std::string title_of(const Drawing& drawing) {
  const Schedule& schedule = drawing.schedule;
  std::string title = fmt::format("{}, {}, {}", schedule.name, counted(schedule.ranks.size(), "rank"),
                                  counted(static_cast<std::size_t>(schedule.micros), "micro"));
  if (schedule.steps() > 1) title += fmt::format(" in {} steps", schedule.steps());
  return title;
}

std::string summary_of(const Drawing& drawing) {
  return fmt::format("takes {:.6g}, idle {:.1f} %", drawing.timing.makespan, 100 * drawing.timing.bubble());
}

}  // namespace trireme::schedule
