// The pass that adds sends, receives and waits.
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

namespace {

/// One or two transfers of a computation: a pair of passes has two.
struct Transfers {
  Instruction items[2];
  int count = 0;
  const Instruction* begin() const { return items; }
  const Instruction* end() const { return items + count; }
};

Transfers transfers(const Schedule& schedule, const Instruction& instruction, int rank, Op activation, Op gradient) {
  Transfers found;
  const auto add = [&](Op op, int chunk, int micro) {
    const Instruction transfer = make(op, chunk, micro);
    const int peer = peer_of(schedule, transfer);
    if (peer >= 0 && peer != rank) found.items[found.count++] = transfer;
  };
  if (does_forward(instruction)) add(activation, instruction.chunk, instruction.micro);
  if (does_input_gradient(instruction)) add(gradient, backward_chunk(instruction), backward_micro(instruction));
  return found;
}

/// The receives that a computation needs, as instructions of its own rank.
Transfers needs(const Schedule& schedule, const Instruction& instruction, int rank) {
  return transfers(schedule, instruction, rank, Op::kRecvActivation, Op::kRecvGradient);
}

Transfers gives(const Schedule& schedule, const Instruction& instruction, int rank) {
  return transfers(schedule, instruction, rank, Op::kSendActivation, Op::kSendGradient);
}

/// What the peer posts for a send.
Instruction receive_of(const Instruction& send) {
  return send.op == Op::kSendActivation ? make(Op::kRecvActivation, send.chunk + 1, send.micro)
                                        : make(Op::kRecvGradient, send.chunk - 1, send.micro);
}

Instruction wait_of(const Instruction& posted) {
  Instruction wait = posted;
  wait.op = static_cast<Op>(static_cast<int>(posted.op) + static_cast<int>(Op::kWaitSendActivation) -
                            static_cast<int>(Op::kSendActivation));
  return wait;
}

/// Everything that one rank sends to another, in the order of sending.
struct Mail {
  int from = 0;
  std::vector<Instruction> receives = {};
  std::size_t posted = 0;
};

class TransferPass {
 public:
  explicit TransferPass(const Schedule& schedule)
      : from_(schedule),
        micros_(static_cast<std::size_t>(schedule.micros)),
        place_in_mail_(2 * micros_ * static_cast<std::size_t>(schedule.chunks()), -1),
        mailboxes_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < from_.ranks.size(); ++rank) {
      for (const Instruction& instruction : from_.ranks[rank]) {
        for (const Instruction& send : gives(from_, instruction, static_cast<int>(rank))) {
          Mail& mail = mail_of(peer_of(from_, send), static_cast<int>(rank));
          const Instruction receive = receive_of(send);
          place(receive) = static_cast<int>(mail.receives.size());
          mail.receives.push_back(receive);
        }
      }
    }
  }

  std::vector<Instruction> run(int rank) {
    const auto& list = from_.ranks[static_cast<std::size_t>(rank)];
    std::vector<Instruction> to;
    to.reserve(4 * list.size());
    std::vector<Instruction> under_way;  // one to each peer at most
    std::size_t ahead = next_computation(list, 0);
    post_needs(rank, list, ahead, to);
    for (std::size_t position = 0; position < list.size(); ++position) {
      const Instruction& instruction = list[position];
      if (position == ahead) post_needs(rank, list, ahead = next_computation(list, position + 1), to);
      for (const Instruction& receive : needs(from_, instruction, rank)) {
        if (place(receive) >= 0) to.push_back(wait_of(receive));
      }
      to.push_back(instruction);
      for (const Instruction& send : gives(from_, instruction, rank)) {
        const int peer = peer_of(from_, send);
        const auto before =
            std::ranges::find_if(under_way, [&](const Instruction& other) { return peer_of(from_, other) == peer; });
        if (before != under_way.end()) {
          to.push_back(wait_of(*before));
          *before = send;
        } else {
          under_way.push_back(send);
        }
        to.push_back(send);
      }
    }
    post_rest(rank, to);
    for (const Instruction& send : under_way) to.push_back(wait_of(send));
    return to;
  }

 private:
  static std::size_t next_computation(const std::vector<Instruction>& list, std::size_t position) {
    while (position < list.size() && !does_forward(list[position]) && !does_input_gradient(list[position])) ++position;
    return position;
  }

  Mail& mail_of(int rank, int from) {
    auto& box = mailboxes_[static_cast<std::size_t>(rank)];
    // A rank hears from few others, so that looking through them is quick.
    const auto known = std::ranges::find(box, from, &Mail::from);
    return known != box.end() ? *known : box.emplace_back(Mail{.from = from});
  }

  /// Of a receive in the mail from its sender. A micro meets each chunk on one rank only: no need to look by rank.
  int& place(const Instruction& receive) {
    const std::size_t cell =
        static_cast<std::size_t>(receive.chunk) * micros_ + static_cast<std::size_t>(receive.micro);
    return place_in_mail_[2 * cell + (receive.op == Op::kRecvGradient ? 1 : 0)];
  }

  /// Posts what the instruction needs, and what was sent before that by the same rank: messages keep their order.
  void post_needs(int rank, const std::vector<Instruction>& list, std::size_t position, std::vector<Instruction>& to) {
    if (position == list.size()) return;
    for (const Instruction& receive : needs(from_, list[position], rank)) {
      Mail& mail = mail_of(rank, peer_of(from_, receive));
      for (const int needed = place(receive); static_cast<int>(mail.posted) <= needed; ++mail.posted)
        to.push_back(mail.receives[mail.posted]);
    }
  }

  /// Only a table with faults has anything left to receive here; the check then names the consumer that is missing.
  void post_rest(int rank, std::vector<Instruction>& to) {
    for (Mail& mail : mailboxes_[static_cast<std::size_t>(rank)]) {
      for (; mail.posted < mail.receives.size(); ++mail.posted) to.push_back(mail.receives[mail.posted]);
    }
  }

  const Schedule& from_;
  std::size_t micros_;
  std::vector<int> place_in_mail_;
  std::vector<std::vector<Mail>> mailboxes_;
};

}  // namespace

Schedule add_transfers(const Schedule& schedule) {
  TRIREME_CHECK(!has_transfers(schedule), "schedule {} has its transfers already", schedule.name);
  TransferPass pass(schedule);
  Schedule result = schedule;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    result.ranks[rank] = pass.run(static_cast<int>(rank));
  return result;
}

}  // namespace trireme::schedule
