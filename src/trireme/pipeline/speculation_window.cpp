#include "trireme/pipeline/speculation_window.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::pipeline {

using schedule::Instruction;
using schedule::make;
using schedule::Op;

namespace {

Instruction send_of(const Instruction& receive) {
  return receive.op == Op::kRecvActivation ? make(Op::kSendActivation, receive.chunk - 1, receive.micro)
                                           : make(Op::kSendGradient, receive.chunk + 1, receive.micro);
}

Instruction receive_of(const Instruction& send) {
  return send.op == Op::kSendActivation ? make(Op::kRecvActivation, send.chunk + 1, send.micro)
                                        : make(Op::kRecvGradient, send.chunk - 1, send.micro);
}

bool contains(const schedule::Schedule& table, const SpeculationWindow& opening, int rank, const Instruction& wanted) {
  const auto r = static_cast<std::size_t>(rank);
  const auto& list = table.ranks[r];
  // A send comes after its forward, in the opening; a receive may have been posted before.
  const std::size_t from = schedule::is_recv(wanted.op) ? 0 : opening.begin[r];
  const auto first = list.begin() + static_cast<std::ptrdiff_t>(from);
  const auto last = list.begin() + static_cast<std::ptrdiff_t>(opening.end[r]);
  return std::find(first, last, wanted) != last;
}

/// Whether the rank's opening had to end earlier: it waits for what is sent after the sender's.
bool shorten(const schedule::Schedule& table, SpeculationWindow& opening, std::size_t rank, int step) {
  for (std::size_t position = opening.begin[rank]; position < opening.end[rank]; ++position) {
    const Instruction& it = table.ranks[rank][position];
    if ((it.op != Op::kWaitRecvActivation && it.op != Op::kWaitRecvGradient) || table.step_of(it.micro) <= step)
      continue;
    Instruction receive = it;
    receive.op = schedule::waited_for(it.op);
    if (contains(table, opening, schedule::peer_of(table, receive), send_of(receive))) continue;
    opening.end[rank] = position;
    return true;
  }
  return false;
}

}  // namespace

std::vector<SpeculationWindow> find_openings(const schedule::Schedule& table) {
  std::vector<SpeculationWindow> openings(static_cast<std::size_t>(table.steps()));
  for (const auto& list : table.ranks) {
    std::size_t step = 0;
    for (std::size_t position = 0; position < list.size(); ++position) {
      if (list[position].op != Op::kOptimizerStep) continue;
      TRIREME_CHECK(step < openings.size(), "schedule {} has more updates than steps", table.name);
      std::size_t end = position + 1;
      while (end < list.size() && !does_input_gradient(list[end]) && list[end].op != Op::kRecompute &&
             list[end].op != Op::kOptimizerStep) {
        ++end;
      }
      openings[step].begin.push_back(position + 1);
      openings[step++].end.push_back(end);
    }
  }
  for (std::size_t step = 0; step < openings.size(); ++step) {
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (std::size_t rank = 0; rank < table.ranks.size(); ++rank) {
        shorter |= shorten(table, openings[step], rank, static_cast<int>(step));
      }
    }
  }
  return openings;
}

Unmatched find_unmatched(const schedule::Schedule& table, const SpeculationWindow& opening, int step, int rank) {
  Unmatched unmatched;
  for (std::size_t other = 0; other < table.ranks.size(); ++other) {
    if (static_cast<int>(other) == rank) continue;
    for (std::size_t position = 0; position < opening.end[other]; ++position) {
      const Instruction& it = table.ranks[other][position];
      const bool send = schedule::is_send(it.op), receive = schedule::is_recv(it.op);
      if ((!send && !receive) || table.step_of(it.micro) <= step || schedule::peer_of(table, it) != rank) continue;
      const Instruction mine = send ? receive_of(it) : send_of(it);
      if (contains(table, opening, rank, mine)) continue;
      (send ? unmatched.receives : unmatched.sends).push_back(mine);
    }
  }
  const auto& list = table.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t position = 0; position < opening.begin[static_cast<std::size_t>(rank)]; ++position) {
    const Instruction& it = list[position];
    if (schedule::is_recv(it.op) && table.step_of(it.micro) > step) unmatched.early_receives.push_back(it);
  }
  return unmatched;
}

}  // namespace trireme::pipeline
