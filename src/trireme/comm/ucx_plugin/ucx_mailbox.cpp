#include "trireme/comm/ucx_plugin/ucx_mailbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstRetry = 10ms, kLongestRetry = 1'000ms;
// To a process that was not reached, while the directory knows no other one of its address.
constexpr auto kLongestSameRetry = 8'000ms;
// A peer that owes an answer for so long has not got what we sent; doubled each time, since it may only be slow.
constexpr auto kFirstPatience = 500ms, kLongestPatience = 8'000ms;
// And so much longer where many bytes are on their way; doubled as well, up to where any link carries them.
constexpr std::size_t kSlowLinkBytesPerMs = 4'000;
constexpr int kMostSilences = 12;
// Attempts to reach one process that UCX is still busy with. Each has a descriptor.
constexpr std::ptrdiff_t kMostAttempts = 3;
constexpr int kMostMailProgress = 64;
constexpr int kMailPollMs = 200;
constexpr std::uint64_t kLoggedMailStrangers = 10;

std::string directory_key(int address) { return fmt::format("trireme/mail/address/{}", address); }

}  // namespace

UcxMailbox::UcxMailbox(ControlPlane& control, const UcxMailOptions& options)
    : control_(control),
      options_(options),
      in_(options.interfaces, UcxContext::Long::kEager, &UcxMailbox::on_message, this),
      out_(options.interfaces, UcxContext::Long::kEager, &UcxMailbox::on_message, this),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  join_directory();
  thread_ = std::thread([this] { run(); });
}

void UcxMailbox::join_directory() {
  // Whoever comes first draws what only mailboxes of this control plane know.
  if (control_.add("trireme/mail/drawn", 1) == 1)
    control_.set("trireme/mail/session", to_hex(random_bytes(kSessionBytes)));
  session_ = bytes_of_hex(control_.wait_for("trireme/mail/session", options_.deadline));
  incarnation_ =
      static_cast<std::uint64_t>(control_.add(fmt::format("trireme/mail/incarnation/{}", options_.address), 1));
  protocol_.emplace(incarnation_, options_.limits);
  const nlohmann::json card{
      {"ucx", UcxContext::version()}, {"worker", to_hex(in_.address())}, {"incarnation", incarnation_}};
  control_.set(directory_key(options_.address), card.dump());
}

UcxMailbox::~UcxMailbox() {
  {
    // Mail that was posted is mail: it is handed over first, as long as somebody takes it.
    std::unique_lock lock(mutex_);
    const auto patience = Clock::now() + options_.linger;
    while (!is_settled() && Clock::now() < patience) {
      lock.unlock();
      wake();
      lock.lock();
      changed_.wait_for(lock, 20ms);
    }
  }
  stop_ = true;
  wake();
  thread_.join();
  try {
    control_.erase(directory_key(options_.address));
  } catch (const Error& error) {
    log_debug("mailbox {}: {}", options_.address, error.message());
  }
  const std::lock_guard lock(mutex_);
  // The last word of what was taken: without it senders would wait for it.
  for (const auto patience = Clock::now() + 500ms; !sending_.empty() && Clock::now() < patience; reap())
    progress_workers();
  for (auto& [address, peer] : peers_) close_endpoint(peer);
  const auto patience = Clock::now() + 1s;
  for (look_after_left(); (!sending_.empty() || !closing_.empty()) && Clock::now() < patience; look_after_left()) {
    progress_workers();
    reap();
  }
  out_.finish(patience);
  in_.finish(patience);
  ::close(wake_fd_);
}

// Whether all mail was taken, but for that of mailboxes that were here and have left.
bool UcxMailbox::is_settled() const {
  return std::ranges::all_of(peers_, [&](const auto& entry) {
    const auto& [address, peer] = entry;
    return protocol_->outstanding_bytes(address) == 0 || (peer.absent && peer.incarnation > 0);
  });
}

// ---- what callers do

bool UcxMailbox::wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
  return changed_.wait_until(lock, Clock::now() + options_.deadline, ready);
}

void UcxMailbox::post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, [&] { return protocol_->may_post(to, bytes.size()); })) {
    throw CommError(
        fmt::format("mailbox {} waited {:.0f} s to post {} bytes to mailbox {}, which has {} bytes of ours not taken",
                    address(), std::chrono::duration<double>(options_.deadline).count(), bytes.size(), to,
                    protocol_->outstanding_bytes(to)),
        fmt::format("look whether mailbox {} is there and receives", to));
  }
  protocol_->post(to, tag, priority, {bytes.begin(), bytes.end()});
  peer_at(to);
  pump();
  lock.unlock();
  wake();
}

bool UcxMailbox::try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                                std::span<const std::byte> rest) {
  {
    const std::lock_guard lock(mutex_);
    if (!protocol_->may_post(to, head.size() + rest.size())) return false;
    protocol_->post(to, tag, priority, joined_bytes(head, rest));
    peer_at(to);
    pump();
  }
  wake();
  return true;
}

Mail UcxMailbox::receive(std::optional<std::uint32_t> tag) {
  std::optional<Mail> mail = receive_for(options_.deadline, tag);
  if (!mail) {
    throw CommError(fmt::format("mailbox {} got no mail{} in {:.0f} s", address(),
                                tag ? fmt::format(" of tag {}", *tag) : std::string(),
                                std::chrono::duration<double>(options_.deadline).count()),
                    "look at the logs of those that were to send it");
  }
  return *std::move(mail);
}

std::optional<Mail> UcxMailbox::receive_for(Milliseconds time, std::optional<std::uint32_t> tag) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, Clock::now() + time, [&] { return protocol_->has_mail(tag); })) return std::nullopt;
  std::optional<Mail> mail = protocol_->take(tag);
  pump();  // what was taken is credit for its sender
  lock.unlock();
  wake();
  return mail;
}

std::optional<Mail> UcxMailbox::try_receive(std::optional<std::uint32_t> tag) {
  std::optional<Mail> mail;
  {
    const std::lock_guard lock(mutex_);
    mail = protocol_->take(tag);
    if (!mail) return mail;
    pump();
  }
  wake();
  return mail;
}

std::vector<Mail> UcxMailbox::take_returned() {
  const std::lock_guard lock(mutex_);
  return protocol_->take_returned();
}

QueueReading UcxMailbox::queue() const {
  const std::lock_guard lock(mutex_);
  return protocol_->queue();
}

// ---- what UCX tells, from within progress

ucs_status_t UcxMailbox::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                    std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& mailbox = *static_cast<UcxMailbox*>(self);
  UcxMailHeader read;
  std::memcpy(&read, header, std::min(header_bytes, sizeof read));
  const bool ours = header_bytes == sizeof read &&
                    same_secret({reinterpret_cast<const char*>(read.session), kSessionBytes}, mailbox.session_);
  if (!ours) {
    if (mailbox.refused_++ < kLoggedMailStrangers)
      log_warn("mailbox {}: refused a message without this job's session", mailbox.address());
    return UCS_OK;
  }
  TRIREME_CHECK((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0, "mail of {} bytes came by rendezvous", bytes);
  mailbox.arrived_.push_back({.header = read, .bytes = std::string(static_cast<const char*>(data), bytes)});
  return UCS_OK;
}

void UcxMailbox::on_failure(void* peer, ucp_ep_h endpoint, ucs_status_t status) {
  auto& lost = *static_cast<Peer*>(peer);
  log_debug("mailbox: a connection to {} broke: UCX says \"{}\"", lost.address, ucs_status_string(status));
  if (lost.endpoint == endpoint) lost.failed = lost.is_broken = true;
  for (Left& left : lost.left) {
    if (left.endpoint == endpoint) left.is_broken = true;
  }
}

// ---- what follows from it

UcxMailbox::Peer& UcxMailbox::peer_at(int address) {
  Peer& peer = peers_[address];
  peer.address = address;
  return peer;
}

void UcxMailbox::close(int address, ucp_ep_h endpoint, bool by_force) {
  if (void* request = out_.close(endpoint, by_force)) closing_.push_back({.address = address, .request = request});
}

bool UcxMailbox::is_sending(ucp_ep_h endpoint) const {
  return std::ranges::find(sending_, endpoint, &Sending::endpoint) != sending_.end();
}

void UcxMailbox::close_endpoint(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  const ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
  reap();
  if (!peer.is_broken && peer.is_heard && is_sending(endpoint)) {
    peer.left.push_back({.endpoint = endpoint, .is_broken = false});
  } else {
    // Without force UCX first makes the connection, or finds that it cannot; nobody waits for it.
    close(peer.address, endpoint, /*by_force=*/peer.is_broken || peer.is_heard);
  }
  protocol_->disconnected(peer.address);
}

void UcxMailbox::look_after_left() {
  for (auto& [address, peer] : peers_) {
    std::erase_if(peer.left, [&](const Left& left) {
      if (!left.is_broken && is_sending(left.endpoint)) return false;
      close(address, left.endpoint, /*by_force=*/true);
      return true;
    });
  }
}

std::chrono::milliseconds UcxMailbox::patience_with(const Peer& peer) const {
  // No more than the window is on its way, or one message that is longer.
  const std::size_t bytes = std::min(peer.sent, std::max(options_.limits.window_bytes, peer.longest));
  const auto times = std::int64_t{1} << peer.silences;
  return std::min<std::chrono::milliseconds>(kFirstPatience * times, kLongestPatience) +
         std::chrono::milliseconds(bytes / kSlowLinkBytesPerMs) * times;
}

// Not while UCX is busy with attempts that nobody has answered.
bool UcxMailbox::may_be_replaced(const Peer& peer) const {
  return peer.is_heard || std::ranges::count(closing_, peer.address, &Closing::address) < kMostAttempts;
}

void UcxMailbox::look_after_silence(Clock::time_point now) {
  for (auto& [address, peer] : peers_) {
    if (peer.endpoint == nullptr || peer.failed) continue;
    if (!protocol_->awaits(address)) {
      peer.owes.reset();
      peer.sent = peer.longest = 0;
      // Between a hello and what goes again it owes nothing, and is as slow as before.
      if (protocol_->outstanding_bytes(address) == 0) peer.silences = 0;
      continue;
    }
    if (!peer.owes) peer.owes = now;
    const auto patience = patience_with(peer);
    if (now - std::max(peer.heard, *peer.owes) < patience || !may_be_replaced(peer)) continue;
    log_debug("mailbox {}: no word of mailbox {} for {} ms: connects anew", options_.address, address,
              patience.count());
    peer.failed = true;
    peer.silences = std::min(peer.silences + 1, kMostSilences);
  }
}

void UcxMailbox::look_after_failures() {
  for (auto& [address, peer] : peers_) {
    if (!peer.failed) continue;
    peer.failed = false;
    if (!peer.is_heard) {
      peer.same_wait = std::clamp<std::chrono::milliseconds>(peer.same_wait * 2, kFirstRetry, kLongestSameRetry);
      peer.same_again = Clock::now() + peer.same_wait;
    }
    close_endpoint(peer);
    peer.wait = std::clamp<std::chrono::milliseconds>(peer.wait * 2, kFirstRetry, kLongestRetry);
    peer.retry = Clock::now() + peer.wait;
  }
}

void UcxMailbox::reap() {
  for (auto at = sending_.begin(); at != sending_.end();) {
    if (UCS_PTR_IS_PTR(at->request) && ucp_request_check_status(at->request) == UCS_INPROGRESS) {
      ++at;
      continue;
    }
    if (UCS_PTR_IS_PTR(at->request)) ucp_request_free(at->request);
    at = sending_.erase(at);
  }
  std::erase_if(closing_, [](const Closing& closing) {
    if (ucp_request_check_status(closing.request) == UCS_INPROGRESS) return false;
    ucp_request_free(closing.request);
    return true;
  });
}

void UcxMailbox::give_to_protocol(Peer& peer, const Arrival& arrival) {
  const UcxMailHeader& header = arrival.header;
  if (header.incarnation < peer.incarnation) return;
  if (header.incarnation > peer.incarnation) {
    peer.incarnation = header.incarnation;
    peer.their_connections = 0;
  }
  if (header.heard_incarnation == incarnation_ && header.heard_connection == peer.connections) peer.is_heard = true;
  if (header.connection < peer.their_connections) return;
  if (header.connection > peer.their_connections && std::exchange(peer.their_connections, header.connection) != 0) {
    // It has connected anew, and awaits our hello, which told of the former connection.
    protocol_->disconnected(peer.address);
    protocol_->connected(peer.address);
  }
  peer.wait = peer.same_wait = 0ms;  // it lives
  peer.heard = Clock::now();
  if (const auto frame = decode_mail_frame(arrival.bytes)) protocol_->receive(peer.address, *frame);
}

void UcxMailbox::take_arrival(Peer& peer, const Arrival& arrival) {
  // Made to another process than the one that writes now, which cannot hear us.
  if (peer.endpoint != nullptr && peer.endpoint_incarnation < arrival.header.incarnation) close_endpoint(peer);
  if (peer.endpoint == nullptr) {
    peer.early.push_back(arrival);
    peer.retry = peer.same_again = Clock::now();
    return;
  }
  give_to_protocol(peer, arrival);
}

bool UcxMailbox::progress_workers() {
  const bool came = ucp_worker_progress(in_.worker()) != 0;
  return ucp_worker_progress(out_.worker()) != 0 || came;
}

bool UcxMailbox::progress() {
  bool moved = false;
  for (int i = 0; i < kMostMailProgress && progress_workers(); ++i) moved = true;
  moved = moved || !arrived_.empty();
  for (const Arrival& arrival : std::exchange(arrived_, {})) take_arrival(peer_at(arrival.header.from), arrival);
  look_after_silence(Clock::now());
  look_after_failures();
  pump();
  reap();
  look_after_left();
  if (moved) changed_.notify_all();
  return moved;
}

void UcxMailbox::pump() {
  while (true) {
    auto outgoing = protocol_->take_outgoing();
    if (outgoing.empty()) return;
    bool own = false;
    for (const auto& [to, frame] : outgoing) {
      if (to == options_.address) {
        protocol_->receive(to, frame);
        own = true;
      } else {
        send(peer_at(to), frame);
      }
    }
    if (own) changed_.notify_all();
  }
}

void UcxMailbox::send(Peer& peer, const MailFrame& frame) {
  if (peer.endpoint == nullptr || peer.failed) return;  // it goes again on the next connection
  Sending& sending = sending_.emplace_back();
  std::memcpy(sending.header.session, session_.data(), kSessionBytes);
  sending.header.from = options_.address;
  sending.header.incarnation = incarnation_;
  sending.header.connection = peer.connections;
  sending.header.heard_incarnation = peer.incarnation;
  sending.header.heard_connection = peer.their_connections;
  sending.bytes = encode(frame);
  sending.endpoint = peer.endpoint;
  peer.sent += sending.bytes.size();
  peer.longest = std::max(peer.longest, sending.bytes.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.flags = UCP_AM_SEND_FLAG_REPLY;  // for which UCX needs the peer's answer to the connection
  sending.request = ucp_am_send_nbx(peer.endpoint, kUcxMessageId, &sending.header, sizeof sending.header,
                                    sending.bytes.data(), sending.bytes.size(), &param);
  if (peer.frames++ == 0) {
    in_.keep_from_children();
    out_.keep_from_children();
  }
  if (UCS_PTR_IS_ERR(sending.request)) peer.failed = true;
  if (options_.break_every > 0 && peer.frames % static_cast<std::uint64_t>(options_.break_every) == 0)
    peer.failed = true;
}

// ---- the thread

std::vector<int> UcxMailbox::to_look_up(Clock::time_point now) const {
  std::vector<int> addresses;
  for (const auto& [address, peer] : peers_) {
    // Also of one that cannot be reached: another process may have taken its place.
    const bool is_wanted = peer.endpoint == nullptr || !may_be_replaced(peer);
    if (is_wanted && address != options_.address && peer.retry <= now) addresses.push_back(address);
  }
  return addresses;
}

UcxMailbox::Clock::time_point UcxMailbox::next_retry() const {
  auto next = Clock::now() + std::chrono::milliseconds(kMailPollMs);
  for (const auto& [address, peer] : peers_) {
    if (address == options_.address) continue;
    if (peer.endpoint == nullptr || !may_be_replaced(peer)) next = std::min(next, peer.retry);
    if (peer.failed) next = Clock::now();
  }
  return next;
}

void UcxMailbox::connect(int address, const std::string& worker, std::uint64_t incarnation) {
  Peer& peer = peers_.at(address);
  if (incarnation > peer.endpoint_incarnation) {
    close_endpoint(peer);
  } else if (Clock::now() < peer.same_again) {
    return;
  }
  if (peer.endpoint != nullptr) return;
  if (out_.connect(worker, &UcxMailbox::on_failure, &peer, peer.endpoint) != UCS_OK) return;
  peer.failed = peer.is_heard = peer.is_broken = false;
  peer.endpoint_incarnation = incarnation;
  peer.owes.reset();  // counted from this connection on
  peer.sent = peer.longest = 0;
  peer.frames = 0;
  ++peer.connections;
  protocol_->connected(address);
  for (const Arrival& arrival : std::exchange(peer.early, {})) take_arrival(peer, arrival);
}

void UcxMailbox::look_up(const std::vector<int>& addresses) {
  for (const int address : addresses) {
    std::optional<std::string> card;
    try {
      card = control_.get(directory_key(address));
    } catch (const Error& error) {
      log_debug("mailbox {}: the directory is not reached: {}", options_.address, error.message());
    }
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(address);
    peer.wait = std::clamp<std::chrono::milliseconds>(peer.wait * 2, kFirstRetry, kLongestRetry);
    peer.retry = Clock::now() + peer.wait;
    if (peer.absent = !card; peer.absent) continue;
    const nlohmann::json read = nlohmann::json::parse(*card);
    if (read.at("ucx") != UcxContext::version()) {
      log_warn("mailbox {} has UCX {}, and mailbox {} has {}: they may not understand each other", address,
               read.at("ucx").get<std::string>(), options_.address, UcxContext::version());
    }
    connect(address, bytes_of_hex(read.at("worker")), read.at("incarnation"));
  }
}

void UcxMailbox::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);  // fails only when it is pending already
}

void UcxMailbox::run() {
  {
    const std::lock_guard lock(mutex_);
    peer_at(options_.address);
    protocol_->connected(options_.address);
  }
  while (!stop_) {
    std::vector<int> addresses;
    bool moved = false, armed = false;
    Clock::time_point until;
    {
      const std::lock_guard lock(mutex_);
      moved = progress();
      addresses = to_look_up(Clock::now());
      armed = !moved && addresses.empty() && ucp_worker_arm(in_.worker()) == UCS_OK &&
              ucp_worker_arm(out_.worker()) == UCS_OK;
      until = next_retry();
    }
    if (!addresses.empty()) look_up(addresses);
    if (!armed) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd polled[] = {{wake_fd_, POLLIN, 0}, {in_.event_fd(), POLLIN, 0}, {out_.event_fd(), POLLIN, 0}};
    poll(polled, std::size(polled), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    std::uint64_t count = 0;
    if (polled[0].revents != 0) [[maybe_unused]]
      const auto taken = read(wake_fd_, &count, sizeof count);
  }
}

}  // namespace trireme::comm

extern "C" trireme::comm::Mailbox* trireme_ucx_mailbox(trireme::comm::ControlPlane& control,
                                                       const trireme::comm::UcxMailOptions& options) {
  return new trireme::comm::UcxMailbox(control, options);
}
