#include "trireme/comm/mail_protocol.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

constexpr std::uint32_t kMailMagic = 0x4c4d5254;  // "TRML"

template <typename Integer>
void put_mail(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Reads little-endian integers; `good` turns false at the first that is not there.
struct MailReader {
  std::string_view rest;
  bool good = true;

  template <typename Integer>
  Integer get() {
    Integer value{};
    if (rest.size() < sizeof value) {
      good = false;
      return value;
    }
    std::memcpy(&value, rest.data(), sizeof value);
    rest.remove_prefix(sizeof value);
    return value;
  }
};

}  // namespace

std::string encode(const MailFrame& frame) {
  std::string out;
  out.reserve(64 + frame.progress.size() * 20 + frame.bytes.size());
  put_mail(out, kMailMagic);
  put_mail(out, static_cast<std::uint8_t>(frame.kind));
  put_mail(out, frame.incarnation);
  put_mail(out, frame.to_incarnation);
  put_mail(out, frame.tag);
  put_mail(out, frame.index);
  put_mail(out, frame.priority);
  put_mail(out, static_cast<std::uint32_t>(frame.progress.size()));
  for (const TagProgress& progress : frame.progress) {
    put_mail(out, progress.tag);
    put_mail(out, progress.received);
    put_mail(out, progress.taken);
  }
  out.append(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
  return out;
}

std::optional<MailFrame> decode_mail_frame(std::string_view bytes) {
  MailReader in{bytes};
  MailFrame frame;
  if (in.get<std::uint32_t>() != kMailMagic) return std::nullopt;
  const auto kind = in.get<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(MailFrame::Kind::kAck)) return std::nullopt;
  frame.kind = static_cast<MailFrame::Kind>(kind);
  frame.incarnation = in.get<std::uint64_t>();
  frame.to_incarnation = in.get<std::uint64_t>();
  frame.tag = in.get<std::uint32_t>();
  frame.index = in.get<std::uint64_t>();
  frame.priority = in.get<std::int32_t>();
  const auto tags = in.get<std::uint32_t>();
  constexpr std::size_t kProgressBytes = sizeof(std::uint32_t) + 2 * sizeof(std::uint64_t);
  if (!in.good || tags > in.rest.size() / kProgressBytes) return std::nullopt;
  for (std::uint32_t i = 0; i < tags; ++i) {
    TagProgress progress;
    progress.tag = in.get<std::uint32_t>();
    progress.received = in.get<std::uint64_t>();
    progress.taken = in.get<std::uint64_t>();
    frame.progress.push_back(progress);
  }
  const auto* begin = reinterpret_cast<const std::byte*>(in.rest.data());
  frame.bytes.assign(begin, begin + in.rest.size());
  return frame;
}

MailProtocol::MailProtocol(std::uint64_t incarnation, MailLimits limits) : incarnation_(incarnation), limits_(limits) {
  TRIREME_CHECK(incarnation != 0, "incarnation 0 stands for a mailbox that was not heard yet");
}

bool MailProtocol::may_post(int to, std::size_t bytes) const {
  const std::size_t outstanding = outstanding_bytes(to);
  return outstanding == 0 || outstanding + std::max<std::size_t>(bytes, 1) <= limits_.credit_bytes;
}

void MailProtocol::post(int to, std::uint32_t tag, int priority, std::vector<std::byte> bytes) {
  TRIREME_CHECK(may_post(to, bytes.size()),
                "mail of {} bytes to {} is beyond the credit: {} of {} bytes are on their way", bytes.size(), to,
                outstanding_bytes(to), limits_.credit_bytes);
  Peer& peer = peers_[to];
  OutTag& out = peer.out[tag];
  // A message without bytes counts as one: or there could be any number of them.
  peer.outstanding += std::max<std::size_t>(bytes.size(), 1);
  out.posted.push_back({.index = out.next++, .order = orders_++, .priority = priority, .bytes = std::move(bytes)});
}

std::optional<Mail> MailProtocol::take(std::optional<std::uint32_t> tag) {
  Peer* best_peer = nullptr;
  int best_from = 0;
  std::uint32_t best_tag = 0;
  const Held* best = nullptr;
  for (auto& [from, peer] : peers_) {
    for (auto& [in_tag, in] : peer.in) {
      if (in.taken == in.received || (tag && *tag != in_tag)) continue;
      const Held& held = in.held.at(in.taken);
      if (best != nullptr &&
          (held.priority < best->priority || (held.priority == best->priority && held.arrival > best->arrival))) {
        continue;
      }
      best_peer = &peer;
      best_from = from;
      best_tag = in_tag;
      best = &held;
    }
  }
  if (best == nullptr) return std::nullopt;
  InTag& in = best_peer->in.at(best_tag);
  Held held = std::move(in.held.extract(in.taken++).mapped());
  best_peer->held -= std::max<std::size_t>(held.bytes.size(), 1);
  meter_.depart(held.since);
  return Mail{.from = best_from, .tag = best_tag, .priority = held.priority, .bytes = std::move(held.bytes)};
}

bool MailProtocol::has_mail(std::optional<std::uint32_t> tag) const {
  return std::ranges::any_of(peers_, [&](const auto& entry) {
    return std::ranges::any_of(entry.second.in, [&](const auto& row) {
      return row.second.taken != row.second.received && (!tag || *tag == row.first);
    });
  });
}

void MailProtocol::connected(int peer) {
  Peer& to = peers_[peer];
  to.is_connected = true;
  to.greeted = false;
  to.hello_due = true;
}

void MailProtocol::disconnected(int peer) {
  Peer& to = peers_[peer];
  to.is_connected = to.greeted = to.hello_due = false;
}

// Nothing is known to be on the wire any more: whatever was not received goes again.
void MailProtocol::send_again(Peer& peer) {
  peer.on_wire = 0;
  for (auto& [tag, out] : peer.out) {
    for (Posted& posted : out.posted) posted.sent = posted.index < out.received;
  }
}

// Whether frames of this incarnation count; the first of a new one turns the page.
bool MailProtocol::meet(Peer& peer, int from, std::uint64_t incarnation) {
  if (incarnation < peer.incarnation) return false;
  if (peer.incarnation != 0 && incarnation > peer.incarnation) {
    // Another process now: what the former one had not handed out goes back, and what it sent is complete as it is.
    for (auto& [tag, out] : peer.out) {
      for (Posted& posted : out.posted)
        returned_.push_back({.from = from, .tag = tag, .priority = posted.priority, .bytes = std::move(posted.bytes)});
    }
    peer.out.clear();
    peer.outstanding = 0;
    for (auto& [tag, in] : peer.in) {
      for (const auto& [index, held] : in.held) {
        peer.held -= std::max<std::size_t>(held.bytes.size(), 1);
        meter_.depart(held.since);
      }
    }
    peer.in.clear();
  }
  peer.incarnation = incarnation;
  return true;
}

void MailProtocol::hear_progress(Peer& peer, const TagProgress& progress) {
  const auto found = peer.out.find(progress.tag);
  if (found == peer.out.end()) return;
  OutTag& out = found->second;
  if (progress.received > out.next || progress.taken > progress.received) return;  // not of this mail
  for (Posted& posted : out.posted) {
    if (posted.index >= progress.received || posted.index < out.received) continue;
    if (posted.sent) peer.on_wire -= std::max<std::size_t>(posted.bytes.size(), 1);
    posted.sent = true;
  }
  out.received = std::max(out.received, progress.received);
  while (!out.posted.empty() && out.posted.front().index < progress.taken) {
    peer.outstanding -= std::max<std::size_t>(out.posted.front().bytes.size(), 1);
    out.posted.pop_front();
  }
}

void MailProtocol::take_data(Peer& peer, const MailFrame& frame) {
  InTag& in = peer.in[frame.tag];
  if (frame.index < in.received || in.held.contains(frame.index)) {
    in.told.received = 0;  // it sends what is here: tell it again
    return;
  }
  peer.held += std::max<std::size_t>(frame.bytes.size(), 1);
  const auto now = QueueMeter::now();
  meter_.arrive(now);
  in.held[frame.index] = {.arrival = arrivals_++, .priority = frame.priority, .bytes = frame.bytes, .since = now};
  while (in.held.contains(in.received)) ++in.received;
}

void MailProtocol::receive(int from, const MailFrame& frame) {
  Peer& peer = peers_[from];
  if (!peer.is_connected) return;  // of a connection that is no more
  if (frame.kind == MailFrame::Kind::kHello) {
    if (!meet(peer, from, frame.incarnation)) return;
    peer.greeted = true;
    // To somebody else of this address, or to nobody yet: it has nothing of ours, and its numbers say nothing.
    if (frame.to_incarnation == incarnation_) {
      for (const TagProgress& progress : frame.progress) hear_progress(peer, progress);
    }
    send_again(peer);
    return;
  }
  // Data may overtake its hello: it is as good.
  if (frame.to_incarnation != incarnation_ || !meet(peer, from, frame.incarnation)) return;
  for (const TagProgress& progress : frame.progress) hear_progress(peer, progress);
  if (frame.kind == MailFrame::Kind::kData) take_data(peer, frame);
}

void MailProtocol::send_hello(Peer& peer, int to) {
  peer.hello_due = false;
  MailFrame hello{.kind = MailFrame::Kind::kHello, .incarnation = incarnation_, .to_incarnation = peer.incarnation};
  for (auto& [tag, in] : peer.in) {
    in.told = {.tag = tag, .received = in.received, .taken = in.taken};
    hello.progress.push_back(in.told);
  }
  outgoing_.push_back({to, std::move(hello)});
}

void MailProtocol::send_acks(Peer& peer, int to) {
  MailFrame ack{.kind = MailFrame::Kind::kAck, .incarnation = incarnation_, .to_incarnation = peer.incarnation};
  for (auto& [tag, in] : peer.in) {
    const TagProgress now{.tag = tag, .received = in.received, .taken = in.taken};
    if (now == in.told) continue;
    in.told = now;
    ack.progress.push_back(now);
  }
  if (!ack.progress.empty()) outgoing_.push_back({to, std::move(ack)});
}

void MailProtocol::send_data(Peer& peer, int to) {
  while (true) {
    // Within a tag only the first that has not been sent may go: a later one could not be handed out before it.
    Posted* best = nullptr;
    std::uint32_t best_tag = 0;
    for (auto& [tag, out] : peer.out) {
      const auto unsent = std::ranges::find(out.posted, false, &Posted::sent);
      if (unsent == out.posted.end()) continue;
      if (best != nullptr &&
          (unsent->priority < best->priority || (unsent->priority == best->priority && unsent->order > best->order))) {
        continue;
      }
      best = &*unsent;
      best_tag = tag;
    }
    if (best == nullptr) return;
    const std::size_t bytes = std::max<std::size_t>(best->bytes.size(), 1);
    if (peer.on_wire != 0 && peer.on_wire + bytes > limits_.window_bytes) return;
    peer.on_wire += bytes;
    best->sent = true;
    outgoing_.push_back({to, MailFrame{.kind = MailFrame::Kind::kData,
                                       .incarnation = incarnation_,
                                       .to_incarnation = peer.incarnation,
                                       .tag = best_tag,
                                       .index = best->index,
                                       .priority = best->priority,
                                       .bytes = best->bytes}});
  }
}

std::vector<MailProtocol::Outgoing> MailProtocol::take_outgoing() {
  for (auto& [to, peer] : peers_) {
    if (!peer.is_connected) continue;
    if (peer.hello_due) send_hello(peer, to);
    if (!peer.greeted) continue;
    send_acks(peer, to);
    send_data(peer, to);
  }
  return std::exchange(outgoing_, {});
}

std::size_t MailProtocol::outstanding_bytes(int to) const {
  const auto found = peers_.find(to);
  return found == peers_.end() ? 0 : found->second.outstanding;
}

std::size_t MailProtocol::held_bytes(int from) const {
  const auto found = peers_.find(from);
  return found == peers_.end() ? 0 : found->second.held;
}

bool MailProtocol::awaits(int peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.is_connected) return false;
  return !found->second.greeted || found->second.on_wire > 0;
}

bool MailProtocol::settled() const {
  return std::ranges::all_of(peers_, [](const auto& entry) { return entry.second.outstanding == 0; });
}

}  // namespace trireme::comm
