#include "trireme/comm/routine_matching.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace trireme::comm {

namespace {}  // namespace

std::string place(int rank, int index, const Step& step) {
  return fmt::format("rank {}, step {} ({})", rank, index, to_text(step));
}

Matching match_messages(std::span<const Routine> routines) {
  struct Posts {
    std::vector<int> sends, receives;  // steps of the sender and of the receiver
  };
  std::map<std::pair<int, int>, Posts> between;  // from, to
  Matching matching;
  for (int rank = 0; rank < static_cast<int>(routines.size()); ++rank) {
    const auto& steps = routines[at(rank)].steps;
    matching.partner.emplace_back(steps.size(), -1);
    for (int index = 0; index < static_cast<int>(steps.size()); ++index) {
      const Step& step = steps[at(index)];
      if (step.act == Act::kSend) between[{rank, step.peer}].sends.push_back(index);
      if (step.act == Act::kRecv || step.act == Act::kRecvReduce) between[{step.peer, rank}].receives.push_back(index);
    }
  }
  for (const auto& [pair, posts] : between) {
    const auto [from, to] = pair;
    const std::size_t common = std::min(posts.sends.size(), posts.receives.size());
    for (std::size_t message = 0; message < common; ++message) {
      const int sent = posts.sends[message], received = posts.receives[message];
      const Step &send = routines[at(from)].steps[at(sent)], &receive = routines[at(to)].steps[at(received)];
      matching.partner[at(from)][at(sent)] = received;
      matching.partner[at(to)][at(received)] = sent;
      if (send.from.count != receive.to.count)
        matching.faults.push_back(
            fmt::format("{} does not fit {}", place(from, sent, send), place(to, received, receive)));
    }
    for (std::size_t message = common; message < posts.sends.size(); ++message)
      matching.faults.push_back(
          fmt::format("{}: rank {} never receives this",
                      place(from, posts.sends[message], routines[at(from)].steps[at(posts.sends[message])]), to));
    for (std::size_t message = common; message < posts.receives.size(); ++message)
      matching.faults.push_back(
          fmt::format("{}: rank {} never sends this",
                      place(to, posts.receives[message], routines[at(to)].steps[at(posts.receives[message])]), from));
  }
  return matching;
}

}  // namespace trireme::comm
