#include "trireme/comm/ucx_plugin/ucx_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"
#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Somebody who waits asks more often than this: leave it to them, and look whether they still do.
constexpr int kNapMs = 1;
constexpr int kLongestPollMs = 1000;
constexpr int kMostProgress = 64;
// For the others to come to their end too; then for what is on its way.
constexpr auto kGoodbyeWait = 2s, kCloseWait = 1s;
constexpr std::uint64_t kLoggedStrangers = 10;

}  // namespace

UcxWorker::UcxWorker(const ChosenInterfaces& interfaces, EventCount& fallback)
    : ucx_(interfaces, UcxContext::Long::kRendezvous, &UcxWorker::on_message, this), event_count_(&fallback) {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void UcxWorker::start(int rank, std::vector<UcxPeer> peers, const std::string& session, UcxReceiver& receiver) {
  {
    const auto locked = lock();
    rank_ = rank;
    peers_ = std::move(peers);
    for (UcxPeer& peer : peers_) peer.worker = this;
    session_ = session;
    receiver_ = &receiver;
    ucx_.keep_from_children();
  }
  thread_ = std::thread([this] { run(); });
}

void UcxWorker::stop(const std::function<void()>& release) {
  if (!thread_.joinable()) return;
  say_goodbye();
  stop_ = true;
  wake();
  thread_.join();
  const auto locked = lock();
  release();
  receiver_ = nullptr;  // it is about to go: what still comes is nobody's
  close_endpoints();
}

UcxWorker::~UcxWorker() {
  if (wake_fd_ >= 0) close(wake_fd_);
}

ucp_ep_h UcxWorker::endpoint_to(int rank) {
  UcxPeer& to = peer(rank);
  if (to.endpoint != nullptr || to.failure != UCS_OK) return to.endpoint;
  if (const ucs_status_t made = ucx_.connect(to.address, &UcxWorker::on_failure, &to, to.endpoint); made != UCS_OK) {
    note_failure(to, made);
  }
  return to.endpoint;
}

void UcxWorker::note_failure(UcxPeer& peer, ucs_status_t why) {
  if (peer.failure != UCS_OK) return;
  peer.failure = why;
  peer.failed_ns = now_ns();
  failures_.store(true, std::memory_order_release);
}

ucs_status_ptr_t UcxWorker::send(int to, UcxHeader& header, const void* data, std::size_t bytes,
                                 const UcxOnSent& on_sent) {
  ucp_ep_h endpoint = endpoint_to(to);
  UcxPeer& receiver = peer(to);
  if (endpoint == nullptr || receiver.failure != UCS_OK) return UCS_STATUS_PTR(receiver.failure);
  std::memcpy(header.session, session_.data(), kSessionBytes);
  header.from = static_cast<std::uint32_t>(rank_);
  header.bytes = bytes;
  header.sequence = receiver.sent++;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  if (on_sent.cb != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_sent.cb;
    param.user_data = on_sent.argument;
  }
  ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, kUcxMessageId, &header, sizeof header, data, bytes, &param);
  if (header.sequence == 0) ucx_.keep_from_children();
  if (UCS_PTR_IS_ERR(request)) note_failure(receiver, UCS_PTR_STATUS(request));
  return request;
}

void UcxWorker::cut(int to, ucs_status_t why) {
  UcxPeer& from = peer(to);
  note_failure(from, why);
  if (from.endpoint == nullptr) return;
  void* closing = ucx_.close(std::exchange(from.endpoint, nullptr), /*by_force=*/true);
  const auto patience = Clock::now() + kCloseWait;
  if (closing != nullptr) {
    while (ucp_request_check_status(closing) == UCS_INPROGRESS && Clock::now() < patience)
      ucp_worker_progress(ucx_.worker());
    ucp_request_free(closing);
  }
}

std::string UcxWorker::describe_failure(int rank) const {
  const UcxPeer& lost = peers_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} on {}: {}", rank, lost.host, ucs_status_string(lost.failure));
}

void UcxWorker::on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  auto& lost = *static_cast<UcxPeer*>(peer);
  lost.worker->note_failure(lost, status);
}

bool UcxWorker::is_ours(const UcxHeader& header, std::size_t header_bytes) {
  const bool known = header_bytes == sizeof header && header.from < peers_.size() &&
                     same_secret({reinterpret_cast<const char*>(header.session), kSessionBytes}, session_);
  if (!known && refused_++ < kLoggedStrangers) {
    log_warn(
        "UCX: refused a message without this job's session: a stranger, or a rank of an earlier start, sends here");
  }
  return known;
}

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& worker = *static_cast<UcxWorker*>(self);
  UcxHeader message;
  std::memcpy(&message, header, std::min(header_bytes, sizeof message));
  if (worker.receiver_ == nullptr || !worker.is_ours(message, header_bytes)) return UCS_OK;
  message.bytes = bytes;
  UcxPeer& from = worker.peers_[message.from];
  if (!from.heard) worker.ucx_.keep_from_children();
  from.heard = true;
  if (message.kind == kUcxBye) {
    from.said_bye = true;
    return UCS_OK;
  }
  const bool deferred = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return worker.receiver_->arrived(message, data, bytes, deferred) ? UCS_INPROGRESS : UCS_OK;
}

bool UcxWorker::progress_locked() {
  bool moved = false;
  // Not without end: whoever waits must get to look at what has come.
  for (int i = 0; i < kMostProgress && ucp_worker_progress(ucx_.worker()) != 0; ++i) moved = true;
  if (receiver_ != nullptr) moved |= receiver_->start_fetches();
  return moved;
}

bool UcxWorker::progress() {
  polls_.fetch_add(1, std::memory_order_relaxed);
  waiter_asleep_.store(false, std::memory_order_relaxed);
  const auto locked = lock();
  return progress_locked();
}

bool UcxWorker::may_sleep() {
  {
    const auto locked = lock();
    if (progress_locked() || ucp_worker_arm(ucx_.worker()) != UCS_OK) return false;
  }
  waiter_asleep_.store(true, std::memory_order_release);
  wake();
  return true;
}

void UcxWorker::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);  // fails only when it is pending already
}

void UcxWorker::run() {
  std::uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    pollfd polled[2] = {{wake_fd_, POLLIN, 0}, {ucx_.event_fd(), POLLIN, 0}};
    const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
    if (polls != seen && !waiter_asleep_.load(std::memory_order_acquire)) {
      seen = polls;
      poll(polled, 1, kNapMs);
    } else {
      bool moved = false, armed = false;
      {
        const auto locked = lock();
        moved = progress_locked();
        armed = !moved && ucp_worker_arm(ucx_.worker()) == UCS_OK;
      }
      if (moved) event_count_.load(std::memory_order_acquire)->notify();
      if (!armed) continue;
      poll(polled, 2, kLongestPollMs);
    }
    std::uint64_t count = 0;
    if (polled[0].revents != 0) [[maybe_unused]]
      const auto taken = read(wake_fd_, &count, sizeof count);
  }
}

// A socket that is closed with something unread in it makes the kernel throw away what the other side has not read
// either: so everybody stays until all whom it talked to have come to their end.
void UcxWorker::say_goodbye() {
  const auto locked = lock();
  if (gave_up_) return;
  std::vector<ucs_status_ptr_t> requests;
  std::vector<int> awaited;
  goodbyes_.resize(peers_.size(), {.kind = kUcxBye});
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_ || (peer(r).endpoint == nullptr && !peer(r).heard)) continue;
    awaited.push_back(r);
    requests.push_back(send(r, goodbyes_[static_cast<std::size_t>(r)], nullptr, 0));
  }
  const auto waits = [&](int r) { return !peer(r).said_bye && peer(r).failure == UCS_OK; };
  const auto patience = Clock::now() + kGoodbyeWait;
  while (std::any_of(awaited.begin(), awaited.end(), waits) && Clock::now() < patience) {
    if (!progress_locked()) {
      pollfd polled{ucx_.event_fd(), POLLIN, 0};
      if (ucp_worker_arm(ucx_.worker()) == UCS_OK) poll(&polled, 1, 10);
    }
  }
  for (ucs_status_ptr_t request : requests) {
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < patience) progress_locked();
    ucp_request_free(request);
  }
}

void UcxWorker::close_endpoints() {
  const auto patience = Clock::now() + kCloseWait;
  // Of a world that failed they end with the worker: a peer that is just connecting would be answered by another one
  // than it knows, at which its UCX ends its process (ucx_mailbox.h).
  if (gave_up_) return ucx_.finish(patience);
  std::vector<void*> closing;
  for (UcxPeer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    if (void* request = ucx_.close(std::exchange(peer.endpoint, nullptr), /*by_force=*/peer.failure != UCS_OK))
      closing.push_back(request);
  }
  for (void* request : closing) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < patience)
      ucp_worker_progress(ucx_.worker());
    ucp_request_free(request);
  }
  ucx_.finish(patience);
}

}  // namespace trireme::comm
