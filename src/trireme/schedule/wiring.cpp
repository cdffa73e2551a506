#include "trireme/schedule/wiring.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

/// Numbers of channels. A rank talks to few others, so that looking through them is quick.
class ChannelNumbers {
 public:
  explicit ChannelNumbers(std::size_t ranks) : of_(ranks) {}

  int number(std::vector<Channel>& channels, int from, int to) {
    auto& known = of_[static_cast<std::size_t>(from)];
    for (const auto& [peer, channel] : known) {
      if (peer == to) return channel;
    }
    const int channel = static_cast<int>(channels.size());
    channels.push_back({.from = from, .to = to, .sends = {}, .receives = {}});
    known.emplace_back(to, channel);
    return channel;
  }

 private:
  std::vector<std::vector<std::pair<int, int>>> of_;
};

}  // namespace

Wiring wire(const Schedule& schedule) {
  constexpr std::size_t kPosts = 4;
  Wiring wiring;
  ChannelNumbers numbers(schedule.ranks.size());
  const auto micros = static_cast<std::size_t>(schedule.micros);
  // A micro meets each chunk on one rank only, so that the table needs no rank.
  std::vector<int> sequences(kPosts * micros * static_cast<std::size_t>(schedule.chunks()), -1);
  for (std::size_t index = 0; index < schedule.ranks.size(); ++index) {
    const int rank = static_cast<int>(index);
    auto& messages = wiring.messages.emplace_back();
    messages.reserve(schedule.ranks[index].size());
    for (const Instruction& instruction : schedule.ranks[index]) {
      TransferId& message = messages.emplace_back();
      if (!is_transfer(instruction.op)) continue;
      const Op posted = is_wait(instruction.op) ? waited_for(instruction.op) : instruction.op;
      const int peer = peer_of(schedule, instruction);
      message.channel =
          is_send(posted) ? numbers.number(wiring.channels, rank, peer) : numbers.number(wiring.channels, peer, rank);
      const std::size_t cell =
          static_cast<std::size_t>(instruction.chunk) * micros + static_cast<std::size_t>(instruction.micro);
      int& sequence =
          sequences[kPosts * cell + static_cast<std::size_t>(posted) - static_cast<std::size_t>(Op::kSendActivation)];
      if (!is_wait(instruction.op)) {
        auto& channel = wiring.channels[static_cast<std::size_t>(message.channel)];
        auto& posts = is_send(posted) ? channel.sends : channel.receives;
        sequence = static_cast<int>(posts.size());
        posts.push_back(instruction);
      }
      TRIREME_CHECK(sequence >= 0, "rank {} waits for {} without having posted it", rank, to_text(instruction, true));
      message.sequence = sequence;
    }
  }
  return wiring;
}

}  // namespace trireme::schedule
