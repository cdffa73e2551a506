// cost/infiniband.h -- InfiniBand: rates by generation, and one link simulated packet by packet.
//
//   IbLink link{.gbit_per_s = data_gbit_per_s(IbRate::kNdr), .propagation_us = 0.5};
//   IbLaneResult result = simulate(link, {{.buffer_blocks = 65 * 8, .packets = 10'000}}).front();
//   result.bytes_per_s(link)                    beside credit_limited_bytes_per_s(link, lane)
//
// Two mechanisms on top of each other (InfiniBand Architecture Specification, volume 1, sections 7.9 and 9.7):
//   - the link layer is lossless for want of room: a packet leaves only when the receiver has announced space for it,
//   in
//     blocks of 64 bytes, by virtual lane. Sender and receiver count blocks modulo 4096; flow-control packets that
//     carry the sender's count give back what packets lost to bit errors had taken;
//   - the transport (reliable connection) is in order and exactly once: packets are numbered modulo 2^24, the receiver
//     answers the first gap by one NAK, and the sender goes back to it (go-back-N); a timeout covers what NAKs do not.
// A pure event simulation in whole picoseconds: the same settings give the same result everywhere. Acknowledgements and
// flow-control packets take no time of the link: a few bytes in 65,536.
// Depends on: base.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::cost {

enum class IbRate : std::uint8_t { kSdr, kDdr, kQdr, kFdr10, kFdr, kEdr, kHdr, kNdr, kXdr };
std::span<const Named<IbRate>> enum_names(std::type_identity<IbRate>);

/// Bits on the wire of one lane, and of `lanes` what is left for packets after encoding (8b/10b, 64b/66b, or 256b/257b
/// with Reed-Solomon 544/514).
double signal_gbit_per_s(IbRate rate);
double data_gbit_per_s(IbRate rate, int lanes = 4);

inline constexpr int kIbBlockBytes = 64;    ///< unit of credits
inline constexpr int kIbMostBlocks = 2048;  ///< that a receiver may announce: half of what counters can tell apart
inline constexpr int kIbHeaderBytes = 26;   ///< of a packet: local route 8, base transport 12, CRCs 4 and 2

struct IbLink {
  double gbit_per_s = 0;       ///< after encoding
  double propagation_us = 0;   ///< one way, switches included
  int mtu = 4096;              ///< payload of a packet
  double loss = 0;             ///< of packets, by bit errors
  double control_loss = 0;     ///< of ACKs and NAKs
  double flow_control_us = 5;  ///< between two flow-control packets of the sender
  double timeout_us = 500;     ///< without an ACK, until the sender goes back
  std::uint64_t seed = 1;
};

struct IbLane {
  int buffer_blocks = kIbMostBlocks;       ///< of the receiver
  double drain_gbit_per_s = 0;             ///< how fast packets leave the receiver's buffer; 0: at once
  double stall_from_us = 0, stall_us = 0;  ///< when, and for how long, nothing leaves it
  std::int64_t packets = 0;                ///< to deliver, each of a whole MTU
  std::int64_t window = 1 << 20;           ///< packets without an acknowledgement, at most
  std::uint32_t first_psn = 0;             ///< 24 bits
};

struct IbLaneResult {
  std::int64_t delivered = 0, sent = 0, lost = 0, naks = 0, timeouts = 0;
  int most_blocks = 0;           ///< of the receiver's buffer that were ever taken
  std::int64_t picoseconds = 0;  ///< until the last packet was delivered
  double seconds() const { return static_cast<double>(picoseconds) * 1e-12; }
  double bytes_per_s(const IbLink& link) const { return static_cast<double>(delivered) * link.mtu / seconds(); }
};

/// One result for each lane. Lanes take the link in turn. Throws ConfigError for settings that mean nothing.
std::vector<IbLaneResult> simulate(const IbLink& link, const std::vector<IbLane>& lanes);

/// Time of a packet on the wire, and its size in credits.
std::int64_t packet_picoseconds(const IbLink& link);
int packet_blocks(const IbLink& link);

/// Of the link's payload rate, what arrives, simulated: 1 where nothing is lost and credits last for a round trip.
double simulated_share(const IbLink& link, const IbLane& lane);

// What the simulation must come to.

/// Payload at line rate: mtu / (mtu + headers) of it.
double payload_bytes_per_s(const IbLink& link);
/// credits x MTU / round trip, where that is less than line rate: a packet's credits come back after its own time on
/// the wire and two propagations.
double credit_limited_bytes_per_s(const IbLink& link, const IbLane& lane);
/// (1 - p) / (1 - p + p K): each loss costs K packets, those begun until the NAK that the next packet causes is back.
double go_back_n_efficiency(const IbLink& link);

}  // namespace trireme::cost
