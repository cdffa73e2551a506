#include "trireme/cost/infiniband.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::cost {
namespace {

constexpr Named<IbRate> kIbRates[] = {{"sdr", IbRate::kSdr},     {"ddr", IbRate::kDdr}, {"qdr", IbRate::kQdr},
                                      {"fdr10", IbRate::kFdr10}, {"fdr", IbRate::kFdr}, {"edr", IbRate::kEdr},
                                      {"hdr", IbRate::kHdr},     {"ndr", IbRate::kNdr}, {"xdr", IbRate::kXdr}};

struct Encoding {
  double signal_gbit;  // of a lane
  double share;        // of it that packets have
};

Encoding encoding_of(IbRate rate) {
  constexpr double k8b10b = 8.0 / 10, k64b66b = 64.0 / 66, kWithFec = 256.0 / 257 * 514 / 544;
  switch (rate) {
    case IbRate::kSdr:
      return {2.5, k8b10b};
    case IbRate::kDdr:
      return {5, k8b10b};
    case IbRate::kQdr:
      return {10, k8b10b};
    case IbRate::kFdr10:
      return {10.3125, k64b66b};
    case IbRate::kFdr:
      return {14.0625, k64b66b};
    case IbRate::kEdr:
      return {25.78125, k64b66b};
    case IbRate::kHdr:
      return {53.125, kWithFec};
    case IbRate::kNdr:
      return {106.25, kWithFec};
    case IbRate::kXdr:
      return {212.5, kWithFec};
  }
  return {};
}

using Time = std::int64_t;  // picoseconds

Time to_picoseconds(double us) { return std::llround(us * 1e6); }

constexpr std::uint32_t kPsnMask = (1u << 24) - 1, kPsnHalf = 1u << 23;
constexpr std::uint32_t kBlockMask = 4096 - 1;

struct Packet {
  int lane = 0;
  std::uint32_t psn = 0;
  std::int64_t number = 0;  // what it carries: to see that order is kept
};

struct Event {
  enum class Kind : std::uint8_t { kSend, kArrive, kDrained, kFlowOut, kFlowArrive, kCredit, kAck, kNak, kTimeout };
  Time at = 0;
  std::int64_t order = 0;  // events of one moment, as they were made
  Kind kind = Kind::kSend;
  Packet packet = {};
  std::uint32_t value = 0;  // a block count or a packet number
  std::int64_t generation = 0;
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

struct LaneState {
  // The sender.
  std::int64_t next = 0, acknowledged = 0;  // packets, not modulo
  std::uint32_t blocks_sent = 0, credit_limit = 0;
  std::int64_t timer = 0;
  // The receiver.
  std::uint32_t blocks_received = 0, expected_psn = 0;
  int blocks_used = 0;
  bool nak_is_out = false;
  Time drains_at = 0;
  IbLaneResult result;
};

class IbSimulation {
 public:
  IbSimulation(const IbLink& link, const std::vector<IbLane>& lanes)
      : link_(link),
        lanes_(lanes),
        states_(lanes.size()),
        wire_(packet_picoseconds(link)),
        propagation_(to_picoseconds(link.propagation_us)),
        blocks_(packet_blocks(link)),
        random_(link.seed, "infiniband") {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      states_[i].credit_limit = static_cast<std::uint32_t>(lanes[i].buffer_blocks);
      states_[i].expected_psn = lanes[i].first_psn & kPsnMask;
    }
  }

  std::vector<IbLaneResult> run() {
    at(0, Event::Kind::kSend);
    at(to_picoseconds(link_.flow_control_us), Event::Kind::kFlowOut);
    for (std::size_t i = 0; i < lanes_.size(); ++i) restart_timer(static_cast<int>(i));
    while (!finished()) {
      TRIREME_CHECK(!events_.empty(), "the simulated link has nothing to do, but packets are missing");
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      handle(event);
    }
    std::vector<IbLaneResult> results;
    for (const LaneState& state : states_) results.push_back(state.result);
    return results;
  }

 private:
  void at(Time time, Event::Kind kind, Packet packet = {}, std::uint32_t value = 0, std::int64_t generation = 0) {
    events_.push({time, order_++, kind, packet, value, generation});
  }
  bool chance(double probability) { return probability > 0 && random_.uniform(draws_++) < probability; }
  bool finished() const {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (states_[i].acknowledged < lanes_[i].packets) return false;
    }
    return true;
  }

  void handle(const Event& event) {
    LaneState& lane = states_[static_cast<std::size_t>(event.packet.lane)];
    switch (event.kind) {
      case Event::Kind::kSend:
        return send();
      case Event::Kind::kArrive:
        return arrive(event.packet, lane);
      case Event::Kind::kDrained:
        return drained(event.packet, lane);
      case Event::Kind::kFlowOut:
        return send_flow_control();
      case Event::Kind::kFlowArrive:  // what came and what did not: the sender's count is right
        lane.blocks_received = event.value;
        return announce(event.packet.lane, lane);
      case Event::Kind::kCredit:
        lane.credit_limit = event.value;
        return wake();
      case Event::Kind::kAck:
        return acknowledge(event, lane);
      case Event::Kind::kNak:
        return go_back(event, lane);
      case Event::Kind::kTimeout:
        if (event.generation != lane.timer) return;
        if (lane.next > lane.acknowledged) ++lane.result.timeouts;  // else it only waits for credits
        lane.next = lane.acknowledged;
        restart_timer(event.packet.lane);
        return wake();
    }
  }

  /// Space for a packet was announced, counted modulo 4096.
  bool has_credit(const LaneState& lane) const {
    return ((lane.credit_limit - lane.blocks_sent - static_cast<std::uint32_t>(blocks_)) & kBlockMask) < kIbMostBlocks;
  }
  bool may_send(std::size_t i) const {
    const LaneState& lane = states_[i];
    return lane.next < lanes_[i].packets && lane.next - lane.acknowledged < lanes_[i].window && has_credit(lane);
  }

  void wake() {
    if (now_ >= link_free_) send();
  }

  void send() {
    if (now_ < link_free_) return;  // it is asked again when the packet on the wire has left
    for (std::size_t tried = 0; tried < states_.size(); ++tried) {
      const std::size_t i = (turn_ + tried) % states_.size();
      if (!may_send(i)) continue;
      turn_ = i + 1;
      LaneState& lane = states_[i];
      const Packet packet{static_cast<int>(i), static_cast<std::uint32_t>(lanes_[i].first_psn + lane.next) & kPsnMask,
                          lane.next};
      ++lane.next;
      ++lane.result.sent;
      lane.blocks_sent = (lane.blocks_sent + static_cast<std::uint32_t>(blocks_)) & kBlockMask;
      link_free_ = now_ + wire_;
      if (chance(link_.loss)) {
        ++lane.result.lost;
      } else {
        at(link_free_ + propagation_, Event::Kind::kArrive, packet);
      }
      at(link_free_, Event::Kind::kSend);
      return;
    }
  }

  void arrive(const Packet& packet, LaneState& lane) {
    const IbLane& settings = lanes_[static_cast<std::size_t>(packet.lane)];
    lane.blocks_received = (lane.blocks_received + static_cast<std::uint32_t>(blocks_)) & kBlockMask;
    lane.blocks_used += blocks_;
    lane.result.most_blocks = std::max(lane.result.most_blocks, lane.blocks_used);
    TRIREME_CHECK(lane.blocks_used <= settings.buffer_blocks, "a receiver of {} blocks was overrun: {}",
                  settings.buffer_blocks, lane.blocks_used);
    Time begin = std::max(now_, lane.drains_at);
    const Time from = to_picoseconds(settings.stall_from_us), until = from + to_picoseconds(settings.stall_us);
    if (begin >= from && begin < until) begin = until;
    const double bits = 8.0 * (link_.mtu + kIbHeaderBytes);
    lane.drains_at =
        begin + (settings.drain_gbit_per_s > 0 ? std::llround(bits * 1e3 / settings.drain_gbit_per_s) : Time{0});
    at(lane.drains_at, Event::Kind::kDrained, packet);
  }

  void drained(const Packet& packet, LaneState& lane) {
    lane.blocks_used -= blocks_;
    announce(packet.lane, lane);
    const std::uint32_t ahead = (packet.psn - lane.expected_psn) & kPsnMask;
    if (ahead == 0) {
      TRIREME_CHECK(packet.number == lane.result.delivered, "packet {} was delivered in place of {}", packet.number,
                    lane.result.delivered);
      ++lane.result.delivered;
      lane.result.picoseconds = now_;
      lane.expected_psn = (lane.expected_psn + 1) & kPsnMask;
      lane.nak_is_out = false;
      answer(Event::Kind::kAck, packet.lane, packet.psn);
    } else if (ahead >= kPsnHalf) {  // it was here before: its acknowledgement may be lost
      answer(Event::Kind::kAck, packet.lane, (lane.expected_psn - 1) & kPsnMask);
    } else if (!lane.nak_is_out) {
      lane.nak_is_out = true;
      ++lane.result.naks;
      answer(Event::Kind::kNak, packet.lane, lane.expected_psn);
    }
  }

  void answer(Event::Kind kind, int lane, std::uint32_t psn) {
    if (!chance(link_.control_loss)) at(now_ + propagation_, kind, {.lane = lane}, psn);
  }

  /// How far the sender may count: what has come, and the room that is left.
  void announce(int index, const LaneState& lane) {
    const int room = lanes_[static_cast<std::size_t>(index)].buffer_blocks - lane.blocks_used;
    at(now_ + propagation_, Event::Kind::kCredit, {.lane = index},
       (lane.blocks_received + static_cast<std::uint32_t>(room)) & kBlockMask);
  }

  void send_flow_control() {
    // Behind the packet that is on the wire, so that all it counts has come when it comes.
    const Time out = std::max(now_, link_free_);
    for (std::size_t i = 0; i < states_.size(); ++i)
      at(out + propagation_, Event::Kind::kFlowArrive, {.lane = static_cast<int>(i)}, states_[i].blocks_sent);
    at(now_ + to_picoseconds(link_.flow_control_us), Event::Kind::kFlowOut);
  }

  void acknowledge(const Event& event, LaneState& lane) {
    const std::uint32_t first =
        static_cast<std::uint32_t>(lanes_[static_cast<std::size_t>(event.packet.lane)].first_psn + lane.acknowledged);
    const std::uint32_t more = (event.value + 1 - first) & kPsnMask;
    if (more == 0 || more >= kPsnHalf) return;  // an old one
    lane.acknowledged += more;
    lane.next = std::max(lane.next, lane.acknowledged);
    restart_timer(event.packet.lane);
    wake();
  }

  void go_back(const Event& event, LaneState& lane) {
    const std::uint32_t first =
        static_cast<std::uint32_t>(lanes_[static_cast<std::size_t>(event.packet.lane)].first_psn + lane.acknowledged);
    const std::uint32_t more = (event.value - first) & kPsnMask;
    if (more >= kPsnHalf) return;
    lane.acknowledged += more;  // a NAK acknowledges all before it
    lane.next = lane.acknowledged;
    restart_timer(event.packet.lane);
    wake();
  }

  void restart_timer(int index) {
    const std::int64_t generation = ++states_[static_cast<std::size_t>(index)].timer;
    at(now_ + to_picoseconds(link_.timeout_us), Event::Kind::kTimeout, {.lane = index}, 0, generation);
  }

  const IbLink& link_;
  const std::vector<IbLane>& lanes_;
  std::vector<LaneState> states_;
  const Time wire_, propagation_;
  const int blocks_;
  Random random_;
  std::uint64_t draws_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t order_ = 0;
  Time now_ = 0, link_free_ = 0;
  std::size_t turn_ = 0;
};

void check_link(const IbLink& link, const std::vector<IbLane>& lanes) {
  const auto refuse = [](bool bad, const std::string& what, const std::string& hint) {
    if (bad) throw ConfigError(what, hint);
  };
  refuse(!(link.gbit_per_s > 0), "a link needs a rate", "give one, e.g. of NDR: 400 Gbit/s");
  refuse(link.mtu < 256 || link.mtu > 4096, fmt::format("{} bytes are no MTU of InfiniBand", link.mtu),
         "one of 256, 512, 1024, 2048 and 4096");
  refuse(!(link.loss >= 0 && link.loss < 1) || !(link.control_loss >= 0 && link.control_loss < 1),
         "a loss is a share of packets", "from 0 to below 1");
  refuse(!(link.propagation_us >= 0) || !(link.flow_control_us > 0) || !(link.timeout_us > 0),
         "times of a link are positive", "a propagation of 0 is allowed");
  for (const IbLane& lane : lanes) {
    refuse(lane.buffer_blocks < packet_blocks(link) || lane.buffer_blocks > kIbMostBlocks,
           fmt::format("a receiver of {} blocks of 64 bytes cannot be: a packet takes {}, counters allow {}",
                       lane.buffer_blocks, packet_blocks(link), kIbMostBlocks),
           fmt::format("give it {} to {} blocks", packet_blocks(link), kIbMostBlocks));
    refuse(lane.window < 1 || lane.window >= kPsnHalf, "a window is 1 to 2^23 - 1 packets", "leave it out");
    // Otherwise the timer, restarted by every go-back, would fire before any answer can come.
    refuse(link.timeout_us * 1e6 < 4.0 * static_cast<double>(packet_picoseconds(link)) + 2e6 * link.propagation_us,
           "the timeout is shorter than a round trip", "raise timeout_us");
  }
}

}  // namespace

std::span<const Named<IbRate>> enum_names(std::type_identity<IbRate>) { return kIbRates; }

double signal_gbit_per_s(IbRate rate) { return encoding_of(rate).signal_gbit; }
double data_gbit_per_s(IbRate rate, int lanes) {
  return encoding_of(rate).signal_gbit * encoding_of(rate).share * lanes;
}

std::int64_t packet_picoseconds(const IbLink& link) {
  return std::llround(8e3 * (link.mtu + kIbHeaderBytes) / link.gbit_per_s);
}
int packet_blocks(const IbLink& link) { return (link.mtu + kIbHeaderBytes + kIbBlockBytes - 1) / kIbBlockBytes; }

double payload_bytes_per_s(const IbLink& link) {
  return link.gbit_per_s * 1e9 / 8 * link.mtu / (link.mtu + kIbHeaderBytes);
}

double credit_limited_bytes_per_s(const IbLink& link, const IbLane& lane) {
  const int packets = lane.buffer_blocks / packet_blocks(link);
  const double round_trip_s = static_cast<double>(packet_picoseconds(link)) * 1e-12 + 2e-6 * link.propagation_us;
  return std::min(payload_bytes_per_s(link), packets * static_cast<double>(link.mtu) / round_trip_s);
}

double go_back_n_efficiency(const IbLink& link) {
  const auto wire = static_cast<double>(packet_picoseconds(link));
  const double resent = 2 + std::ceil(2e6 * link.propagation_us / wire);
  return (1 - link.loss) / (1 - link.loss + link.loss * resent);
}

std::vector<IbLaneResult> simulate(const IbLink& link, const std::vector<IbLane>& lanes) {
  check_link(link, lanes);
  return IbSimulation(link, lanes).run();
}

double simulated_share(const IbLink& link, const IbLane& lane) {
  const IbLaneResult result = simulate(link, {lane}).front();
  // Without the way of the last packet, which many others hide where a link is busy for long.
  const double busy_s = result.seconds() - link.propagation_us * 1e-6;
  return static_cast<double>(result.delivered) * link.mtu / busy_s / payload_bytes_per_s(link);
}

}  // namespace trireme::cost
