#include "trireme/comm/routine.h"

#include <fmt/format.h>

#include <iterator>

namespace trireme::comm {

std::string to_text(const Slice& slice) {
  const char* space = slice.space == Space::kInput ? "in" : slice.space == Space::kOutput ? "out" : "scratch";
  return fmt::format("{}[{},{})", space, slice.begin, slice.begin + slice.count);
}

std::string to_text(const Step& step) {
  switch (step.act) {
    case Act::kSend:
      return fmt::format("send {} to {}", to_text(step.from), step.peer);
    case Act::kRecv:
      return fmt::format("recv {} from {}", to_text(step.to), step.peer);
    case Act::kRecvReduce:
      return fmt::format("recv_reduce {} = {} + from {}", to_text(step.to), to_text(step.from), step.peer);
    case Act::kWait:
      return fmt::format("wait {}", step.on);
    case Act::kCopy:
      return fmt::format("copy {} = {}", to_text(step.to), to_text(step.from));
    case Act::kReduce:
      return fmt::format("reduce {} += {}", to_text(step.to), to_text(step.from));
    case Act::kFinish:
      return fmt::format("finish {}", to_text(step.to));
  }
  return "?";
}

std::string to_text(const Routine& routine) {
  std::string text;
  int index = 0;
  for (const Step& step : routine.steps) fmt::format_to(std::back_inserter(text), "{}: {}\n", index++, to_text(step));
  return text;
}

Volume volume(const Routine& routine) {
  Volume volume;
  for (const Step& step : routine.steps) {
    if (step.act == Act::kSend) {
      ++volume.messages;
      volume.elements += step.from.count;
    }
    if (step.act == Act::kRecvReduce || step.act == Act::kReduce) volume.reduced += step.to.count;
  }
  return volume;
}

}  // namespace trireme::comm
