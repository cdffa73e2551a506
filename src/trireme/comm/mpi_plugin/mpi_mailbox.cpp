#include "trireme/comm/mpi_plugin/mpi_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {

/// What leads a frame.
struct MpiMailHead {
  std::int32_t from = 0, to = 0;
  std::uint64_t incarnation = 0;  // of the sender
  std::uint64_t connection = 0;   // how often the sender has connected to this receiver; from 1
};

namespace {

using namespace std::chrono_literals;

constexpr int kFirstTag = 1, kRestTag = 2;
constexpr int kMostArrivals = 64;  // between two looks at what is to be sent
constexpr auto kLongestPatience = 8'000ms;
// MPI is asked so often at first, and after so many times in vain a little less often: it takes a core from somebody.
constexpr auto kAskSoon = 50us, kAskLater = 500us;
constexpr std::uint64_t kSoon = 200;

std::string mpi_directory_key(int address) { return fmt::format("trireme/mpi-mail/address/{}", address); }

}  // namespace

// ---- bytes between ranks

void MpiCarrier::send(int rank, std::vector<std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const bool is_short = size <= kShort;
  Sending& sending = sending_.emplace_back();
  sending.first.resize(sizeof size + (is_short ? bytes.size() : 0));
  std::memcpy(sending.first.data(), &size, sizeof size);
  if (is_short && size > 0) std::memcpy(sending.first.data() + sizeof size, bytes.data(), bytes.size());
  sending.requests.push_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Isend(sending.first.data(), static_cast<int>(sending.first.size()), MPI_BYTE, rank, kFirstTag, comm_,
                      &sending.requests.back()),
            "sending mail");
  if (is_short) return;
  sending.rest = std::move(bytes);
  for (std::size_t at = 0; at < sending.rest.size(); at += kLargestMessage) {
    sending.requests.push_back(MPI_REQUEST_NULL);
    const auto count = static_cast<int>(std::min(kLargestMessage, sending.rest.size() - at));
    check_mpi(MPI_Isend(sending.rest.data() + at, count, MPI_BYTE, rank, kRestTag, comm_, &sending.requests.back()),
              "sending mail");
  }
}

void MpiCarrier::expect() {
  check_mpi(
      MPI_Irecv(first_.data(), static_cast<int>(first_.size()), MPI_BYTE, MPI_ANY_SOURCE, kFirstTag, comm_, &next_),
      "receiving mail");
}

std::vector<MpiCarrier::Arrival> MpiCarrier::take() {
  const auto all_done = [](std::vector<MPI_Request>& requests) {
    int flag = 1;
    if (!requests.empty())
      check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE),
                "waiting for mail");
    return flag != 0;
  };
  if (next_ == MPI_REQUEST_NULL) expect();
  for (int i = 0; i < kMostArrivals; ++i) {
    int flag = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&next_, &flag, &status), "waiting for mail");
    if (flag == 0) break;
    std::uint64_t size = 0;
    std::memcpy(&size, first_.data(), sizeof size);
    Receiving& receiving = receiving_[status.MPI_SOURCE].emplace_back();
    receiving.bytes.resize(size);
    if (size <= kShort) {
      if (size > 0) std::memcpy(receiving.bytes.data(), first_.data() + sizeof size, size);
    } else {
      // The rest of this rank's messages is posted in the order of their beginnings, so each finds its own.
      for (std::size_t at = 0; at < size; at += kLargestMessage) {
        receiving.requests.push_back(MPI_REQUEST_NULL);
        const auto count = static_cast<int>(std::min<std::size_t>(kLargestMessage, size - at));
        check_mpi(MPI_Irecv(receiving.bytes.data() + at, count, MPI_BYTE, status.MPI_SOURCE, kRestTag, comm_,
                            &receiving.requests.back()),
                  "receiving mail");
      }
    }
    expect();
  }
  std::erase_if(sending_, [&](Sending& sending) { return all_done(sending.requests); });
  std::vector<Arrival> arrivals;
  for (auto& [rank, queue] : receiving_) {
    while (!queue.empty() && all_done(queue.front().requests)) {
      arrivals.push_back({rank, std::move(queue.front().bytes)});
      queue.pop_front();
    }
  }
  return arrivals;
}

void MpiCarrier::close() {
  if (next_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&next_);
  MPI_Wait(&next_, MPI_STATUS_IGNORE);
}

// ---- the hub

MpiMailHub::MpiMailHub(MPI_Comm world)
    : carrier_([&] {
        check_mpi(MPI_Comm_dup(world, &comm_), "starting MPI's mail");
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        MPI_Comm_rank(comm_, &rank_);
        return comm_;
      }()) {}

void MpiMailHub::close(bool gave_up) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (gave_up) return;
  const std::lock_guard calls(mpi_calls());
  // A pass or two more, so that what was said last is on its way; its receivers may be gone already.
  try {
    for (const auto patience = std::chrono::steady_clock::now() + 500ms;
         !carrier_.is_idle() && std::chrono::steady_clock::now() < patience;)
      carrier_.take();
    carrier_.close();
  } catch (const CommError& error) {
    log_debug("mail over MPI: {}", error.message());
  }
}

void MpiMailHub::open(MpiMailbox& mailbox) {
  {
    const std::lock_guard lock(mutex_);
    TRIREME_CHECK(!stop_ && !boxes_.contains(mailbox.address()), "mailbox {} is open already, or MPI has ended",
                  mailbox.address());
    boxes_[mailbox.address()] = &mailbox;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wake();
}

void MpiMailHub::shut(MpiMailbox& mailbox) {
  const std::lock_guard lock(mutex_);
  boxes_.erase(mailbox.address());
}

void MpiMailHub::wake() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
  }
  wake_.notify_one();
}

void MpiMailHub::run() {
  while (true) {
    bool moved = false;
    try {
      moved = pass();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      for (auto& [address, box] : boxes_) box->changed_.notify_all();
      return;
    }
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (moved || std::exchange(awake_, false)) continue;
    const auto called = [this] { return stop_ || awake_; };
    if (boxes_.empty() && carrier_idle_) {
      wake_.wait(lock, called);
    } else {
      wake_.wait_for(lock, in_vain_ < kSoon ? kAskSoon : kAskLater, called);
    }
    awake_ = false;
  }
}

/// Frames of all boxes: those for this process are handed over at once, the others returned to be sent.
std::vector<MpiCarrier::Arrival> MpiMailHub::collect(bool& moved) {
  std::vector<MpiCarrier::Arrival> away;
  for (bool again = true; again;) {
    again = false;
    for (auto& [address, box] : boxes_) {
      for (auto& [to, frame] : box->protocol_->take_outgoing()) {
        moved = again = true;
        const MpiMailbox::Peer& peer = box->peers_.at(to);
        const MpiMailHead head{
            .from = address, .to = to, .incarnation = box->incarnation_, .connection = peer.connections};
        if (peer.rank == rank_) {
          if (const auto here = boxes_.find(to); here != boxes_.end()) here->second->give(rank_, head, frame);
          continue;
        }
        const std::string text = encode(frame);
        std::vector<std::byte> bytes(sizeof head + text.size());
        std::memcpy(bytes.data(), &head, sizeof head);
        std::memcpy(bytes.data() + sizeof head, text.data(), text.size());
        away.push_back({peer.rank, std::move(bytes)});
      }
    }
  }
  return away;
}

bool MpiMailHub::pass() {
  bool moved = false;
  std::unique_lock lock(mutex_);
  const auto now = MpiMailbox::Clock::now();
  for (auto& [address, box] : boxes_) {
    for (const int peer : box->silent_peers(now)) {
      MpiMailbox::Peer& at = box->peers_.at(peer);
      at.patience = std::min<std::chrono::milliseconds>(at.patience * 2, kLongestPatience);
      at.heard = now;
      box->protocol_->disconnected(peer);
      box->connect(peer, at.rank);
    }
  }
  std::vector<MpiCarrier::Arrival> away = collect(moved);
  lock.unlock();
  std::vector<MpiCarrier::Arrival> arrivals;
  {
    const std::lock_guard calls(mpi_calls());
    for (MpiCarrier::Arrival& each : away) carrier_.send(each.rank, std::move(each.bytes));
    arrivals = carrier_.take();
  }
  lock.lock();
  for (const MpiCarrier::Arrival& arrival : arrivals) {
    moved = true;
    MpiMailHead head;
    if (arrival.bytes.size() < sizeof head) continue;
    std::memcpy(&head, arrival.bytes.data(), sizeof head);
    const auto box = boxes_.find(head.to);
    if (box == boxes_.end()) continue;  // of a mailbox that is no more
    const std::string_view text(reinterpret_cast<const char*>(arrival.bytes.data()) + sizeof head,
                                arrival.bytes.size() - sizeof head);
    if (const auto frame = decode_mail_frame(text)) box->second->give(arrival.rank, head, *frame);
  }
  ++passes_;
  in_vain_ = moved ? 0 : in_vain_ + 1;
  carrier_idle_ = carrier_.is_idle();
  if (moved) {
    for (auto& [address, box] : boxes_) box->changed_.notify_all();
  }
  return moved;
}

// ---- a mailbox

MpiMailbox::MpiMailbox(std::shared_ptr<MpiMailHub> hub, ControlPlane& control, const MpiMailOptions& options)
    : hub_(std::move(hub)), control_(control), options_(options) {
  incarnation_ = static_cast<std::uint64_t>(control.add(fmt::format("trireme/mpi-mail/incarnation/{}", address()), 1));
  protocol_.emplace(incarnation_, options.limits);
  hub_->open(*this);
  control.set(mpi_directory_key(address()), std::to_string(hub_->rank_));
}

MpiMailbox::~MpiMailbox() {
  {
    // Mail that was posted is mail: it is handed over first, as long as somebody takes it; then the last word of what
    // was taken goes out.
    std::unique_lock lock(hub_->mutex_);
    hub_->awake_ = true;
    hub_->wake_.notify_one();
    const auto over = [&](Clock::time_point patience) {
      return hub_->failure_ || hub_->stop_ || Clock::now() >= patience;
    };
    for (const auto lingers = Clock::now() + options_.linger; !protocol_->settled() && !over(lingers);)
      changed_.wait_for(lock, 1ms);
    const std::uint64_t seen = hub_->passes_;
    for (const auto lingers = Clock::now() + 100ms; hub_->passes_ < seen + 2 && !over(lingers);)
      changed_.wait_for(lock, 1ms);
  }
  hub_->shut(*this);
  try {
    control_.erase(mpi_directory_key(address()));
  } catch (const Error& error) {
    log_debug("mailbox {}: {}", address(), error.message());
  }
}

void MpiMailbox::connect(int address, int rank) {
  Peer& peer = peers_[address];
  peer.rank = rank;
  ++peer.connections;
  peer.heard = Clock::now();
  protocol_->connected(address);
}

/// Where the address is, asked of the directory the first time. False: it is not there yet.
bool MpiMailbox::find_peer(int address, std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(hub_->mutex_);
    hub_->check();
    if (const auto found = peers_.find(address); found != peers_.end() && found->second.rank >= 0) return true;
  }
  const std::string key = mpi_directory_key(address);
  const auto rank = patience.count() > 0 ? std::optional(control_.wait_for(key, patience)) : control_.get(key);
  if (!rank) return false;
  const std::lock_guard lock(hub_->mutex_);
  if (peers_[address].rank < 0) connect(address, std::stoi(*rank));
  return true;
}

void MpiMailbox::post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) {
  find_peer(to, options_.deadline);
  {
    std::unique_lock lock(hub_->mutex_);
    const bool may = changed_.wait_until(lock, Clock::now() + options_.deadline,
                                         [&] { return hub_->failure_ || protocol_->may_post(to, bytes.size()); });
    hub_->check();
    if (!may) {
      throw CommError(
          fmt::format("mailbox {} waited {:.0f} s to post {} bytes to mailbox {}, which has {} bytes of ours not taken",
                      address(), std::chrono::duration<double>(options_.deadline).count(), bytes.size(), to,
                      protocol_->outstanding_bytes(to)),
          fmt::format("look whether mailbox {} is there and receives", to));
    }
    protocol_->post(to, tag, priority, {bytes.begin(), bytes.end()});
  }
  hub_->wake();
}

bool MpiMailbox::try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                                std::span<const std::byte> rest) {
  if (!find_peer(to, 0ms)) return false;
  {
    const std::lock_guard lock(hub_->mutex_);
    if (!protocol_->may_post(to, head.size() + rest.size())) return false;
    protocol_->post(to, tag, priority, joined_bytes(head, rest));
  }
  hub_->wake();
  return true;
}

Mail MpiMailbox::receive(std::optional<std::uint32_t> tag) {
  std::optional<Mail> mail = receive_for(options_.deadline, tag);
  if (!mail) {
    throw CommError(fmt::format("mailbox {} got no mail{} in {:.0f} s", address(),
                                tag ? fmt::format(" of tag {}", *tag) : std::string(),
                                std::chrono::duration<double>(options_.deadline).count()),
                    "look at the logs of those that were to send it");
  }
  return *std::move(mail);
}

std::optional<Mail> MpiMailbox::receive_for(Milliseconds time, std::optional<std::uint32_t> tag) {
  std::optional<Mail> mail;
  {
    std::unique_lock lock(hub_->mutex_);
    changed_.wait_until(lock, Clock::now() + time, [&] { return hub_->failure_ || protocol_->has_mail(tag); });
    hub_->check();
    mail = protocol_->take(tag);
  }
  if (mail) hub_->wake();  // what was taken is credit for its sender
  return mail;
}

std::optional<Mail> MpiMailbox::try_receive(std::optional<std::uint32_t> tag) { return receive_for(0ms, tag); }

std::vector<Mail> MpiMailbox::take_returned() {
  const std::lock_guard lock(hub_->mutex_);
  return protocol_->take_returned();
}

QueueReading MpiMailbox::queue() const {
  const std::lock_guard lock(hub_->mutex_);
  return protocol_->queue();
}

void MpiMailbox::give(int rank, const MpiMailHead& head, const MailFrame& frame) {
  Peer& peer = peers_[head.from];
  if (head.incarnation < peer.incarnation) return;
  if (head.incarnation > peer.incarnation) {
    peer.incarnation = head.incarnation;
    peer.their_connections = 0;
  }
  if (head.connection < peer.their_connections) return;
  if (peer.rank != rank) {
    // The first word from this address, or from who has it now.
    if (peer.rank >= 0) protocol_->disconnected(head.from);
    connect(head.from, rank);
  } else if (head.connection > peer.their_connections && peer.their_connections != 0) {
    protocol_->disconnected(head.from);  // it has connected anew, and awaits our hello
    protocol_->connected(head.from);
  }
  peer.their_connections = head.connection;
  peer.heard = Clock::now();
  peer.patience = 500ms;
  protocol_->receive(head.from, frame);
}

std::vector<int> MpiMailbox::silent_peers(Clock::time_point now) const {
  std::vector<int> silent;
  for (const auto& [address, peer] : peers_) {
    if (peer.rank >= 0 && protocol_->awaits(address) && now - peer.heard >= peer.patience) silent.push_back(address);
  }
  return silent;
}

}  // namespace trireme::comm

extern "C" trireme::comm::Mailbox* trireme_mpi_mailbox(trireme::comm::ControlPlane& control,
                                                       const trireme::comm::MpiMailOptions& options) {
  auto hub = trireme::comm::mpi_mail_hub();
  if (!hub) throw trireme::ConfigError("mail over MPI was asked for, but no rank of MPI was started", "use mpirun");
  return new trireme::comm::MpiMailbox(std::move(hub), control, options);
}
