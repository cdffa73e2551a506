#include "trireme/comm/ucx_plugin/ucx_transfer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

// After an endpoint failed, the control plane's word, which knows the reason, is worth waiting for.
constexpr std::chrono::nanoseconds kFailureGrace = 1s;
// For data that is just coming in when its receive is given up, and for a message that is just being fetched. A
// receiver that has not begun by then will not: UCX cannot take a message back, only close the endpoint under it.
constexpr std::chrono::milliseconds kRecvPatience = 2s, kSendPatience = 500ms;
// What is fetched to be combined lies in memory of our own until then. This much of it at once keeps the sender busy;
// more would only leave the caches before it is read again.
constexpr std::size_t kScratchInUse = 2 << 20, kKeptScratch = 16;
constexpr int kScratchUsers = 2;  // at least, however long messages are

void put_in_place(const Sink& sink, const void* data) {
  if (sink.count == 0) return;
  if (sink.from != nullptr) {
    arithmetic(sink.type, sink.reduce).combine(sink.to, sink.from, data, sink.count);
  } else {
    std::memcpy(sink.to, data, sink.bytes());
  }
}

/// Throws once the peer's failure is no news any more; until then its reason may be on the way. Takes the lock, but not
/// while all is well: a call asks all its transfers again and again.
void judge_failure(UcxWorker& worker, int rank) {
  if (!worker.has_failures()) return;
  const auto locked = worker.lock();
  const UcxPeer& peer = worker.peer(rank);
  if (peer.failure == UCS_OK || now_ns() - peer.failed_ns < kFailureGrace.count()) return;
  throw CommError(fmt::format("the connection is lost to {}", worker.describe_failure(rank)),
                  fmt::format("look at the log of rank {} and at the network between the hosts", rank));
}

}  // namespace

void UcxMatcher::release(void* description) {
  if (description != nullptr) ucp_am_data_release(worker_.handle(), description);
}

void UcxMatcher::release_all() {
  for (Lane& lane : lanes_) {
    for (UcxArrival& arrival : lane.messages) release(arrival.description);
    for (auto& [number, arrival] : lane.early) release(arrival.description);
    lane.messages.clear();
    lane.early.clear();
  }
}

void UcxMatcher::drop(std::uint32_t channel) {
  for (Lane& lane : lanes_) {
    std::erase_if(lane.messages, [&](UcxArrival& arrival) {
      if (arrival.header.channel != channel) return false;
      release(arrival.description);
      return true;
    });
  }
}

void UcxMatcher::post(UcxReception& reception) {
  Lane& from = lane(reception.from);
  const auto found = std::ranges::find_if(from.messages, [&](const UcxArrival& arrival) {
    return arrival.header.channel == reception.channel && arrival.header.tag == reception.tag;
  });
  if (found == from.messages.end()) {
    from.receptions.push_back(&reception);
    return;
  }
  UcxArrival arrival = std::move(*found);
  from.messages.erase(found);
  meet(reception, arrival, arrival.copy.data());
}

void UcxMatcher::remove(UcxReception& reception) {
  if (reception.state == UcxReception::State::kWaiting) std::erase(lane(reception.from).receptions, &reception);
  if (reception.state == UcxReception::State::kMatched) {
    std::erase(to_fetch_, &reception);
    release(std::exchange(reception.description, nullptr));
  }
  if (reception.scratch.memory == nullptr) return;
  scratch_in_use_ -= reception.scratch.capacity;
  --scratch_users_;
  if (scratch_.size() < kKeptScratch) scratch_.push_back(std::move(reception.scratch));
  reception.scratch = {};
  start_fetches();  // of those that waited for it
}

void UcxMatcher::meet(UcxReception& reception, UcxArrival& arrival, const void* data) {
  reception.header = arrival.header;
  reception.mismatched = arrival.header.key != reception.key || arrival.header.bytes != reception.sink.bytes();
  if (reception.mismatched) {
    release(arrival.description);
    reception.state = UcxReception::State::kDone;
  } else if (arrival.description != nullptr) {
    reception.description = arrival.description;
    reception.state = UcxReception::State::kMatched;
    to_fetch_.push_back(&reception);
  } else {
    put_in_place(reception.sink, data);
    reception.state = UcxReception::State::kDone;
  }
}

// In its turn: to the receive that waits for it, or aside.
void UcxMatcher::take(Lane& lane, UcxArrival arrival) {
  ++lane.next;
  const auto found = std::ranges::find_if(lane.receptions, [&](const UcxReception* reception) {
    return reception->channel == arrival.header.channel && reception->tag == arrival.header.tag;
  });
  if (found == lane.receptions.end()) {
    lane.messages.push_back(std::move(arrival));
    return;
  }
  UcxReception& reception = **found;
  lane.receptions.erase(found);
  meet(reception, arrival, arrival.copy.data());
}

bool UcxMatcher::arrived(const UcxHeader& header, void* data, std::size_t bytes, bool deferred) {
  Lane& from = lane(static_cast<int>(header.from));
  if (header.sequence == from.next && !deferred) {
    // The usual short message: into place without a copy on the way.
    const auto found = std::ranges::find_if(from.receptions, [&](const UcxReception* reception) {
      return reception->channel == header.channel && reception->tag == header.tag;
    });
    if (found != from.receptions.end()) {
      UcxReception& reception = **found;
      from.receptions.erase(found);
      ++from.next;
      UcxArrival arrival{.header = header};
      meet(reception, arrival, data);
      while (!from.early.empty() && from.early.begin()->first == from.next)
        take(from, std::move(from.early.extract(from.early.begin()).mapped()));
      return false;
    }
  }
  UcxArrival arrival{.header = header};
  if (deferred) {
    arrival.description = data;
  } else if (bytes != 0) {
    arrival.copy.assign(static_cast<std::byte*>(data), static_cast<std::byte*>(data) + bytes);
  }
  from.early.emplace(header.sequence, std::move(arrival));
  while (!from.early.empty() && from.early.begin()->first == from.next)
    take(from, std::move(from.early.extract(from.early.begin()).mapped()));
  return deferred;
}

void UcxMatcher::deliver_own(const UcxHeader& header, const void* data) {
  UcxHeader numbered = header;
  numbered.from = static_cast<std::uint32_t>(worker_.rank());
  numbered.sequence = own_sent_++;
  arrived(numbered, const_cast<void*>(data), header.bytes, /*deferred=*/false);
}

bool UcxMatcher::take_scratch(UcxReception& reception) {
  const std::size_t bytes = reception.sink.bytes();
  if (scratch_users_ >= kScratchUsers && scratch_in_use_ + bytes > kScratchInUse) return false;
  const auto fits = std::ranges::find_if(scratch_, [&](const UcxScratch& free) { return free.capacity >= bytes; });
  if (fits != scratch_.end()) {
    reception.scratch = std::move(*fits);
    scratch_.erase(fits);
  } else {
    if (!scratch_.empty()) scratch_.pop_back();  // too small: calls have grown
    reception.scratch = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  scratch_in_use_ += reception.scratch.capacity;
  ++scratch_users_;
  return true;
}

// In the order in which they came: that is the order in which calls wait for them.
bool UcxMatcher::start_fetches() {
  bool moved = false;
  for (auto it = to_fetch_.begin(); it != to_fetch_.end();) {
    UcxReception& reception = **it;
    if (reception.sink.from != nullptr && !take_scratch(reception)) {
      ++it;
      continue;
    }
    it = to_fetch_.erase(it);
    moved = true;
    fetch(reception);
  }
  return moved;
}

void UcxMatcher::fetch(UcxReception& reception) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = &UcxMatcher::on_fetched;
  param.user_data = &reception;
  reception.matcher = this;
  reception.state = UcxReception::State::kFetching;
  void* to = reception.sink.from != nullptr ? reception.scratch.memory.get() : reception.sink.to;
  reception.request = ucp_am_recv_data_nbx(worker_.handle(), std::exchange(reception.description, nullptr), to,
                                           reception.sink.bytes(), &param);
  if (!UCS_PTR_IS_PTR(reception.request))  // at once: UCX does not call back
    fetched(reception, UCS_PTR_STATUS(std::exchange(reception.request, nullptr)));
}

void UcxMatcher::on_fetched(void* request, ucs_status_t status, std::size_t, void* user_data) {
  auto& reception = *static_cast<UcxReception*>(user_data);
  reception.request = nullptr;
  ucp_request_free(request);
  reception.matcher->fetched(reception, status);
}

void UcxMatcher::fetched(UcxReception& reception, ucs_status_t status) {
  if (status == UCS_OK) {
    reception.state = UcxReception::State::kFetched;
    return;
  }
  reception.state = UcxReception::State::kFailed;
  worker_.note_failure(worker_.peer(reception.from), status);
}

UcxSend::UcxSend(UcxWorker& worker, UcxMatcher& matcher, const Envelope& envelope, const void* data, std::size_t bytes)
    : worker_(worker), matcher_(matcher), to_(envelope.peer), header_(std::make_unique<UcxHeader>()) {
  *header_ = {.channel = envelope.channel, .tag = envelope.tag, .bytes = bytes, .key = envelope.key};
  if (to_ == worker_.rank()) {
    matcher_.deliver_own(*header_, data);
  } else {
    request_ = worker_.send(to_, *header_, data, bytes, {.cb = &UcxSend::on_sent, .argument = this});
  }
  done_ = request_ == nullptr;
}

void UcxSend::on_sent(void*, ucs_status_t, void* self) {
  static_cast<UcxSend*>(self)->ended_.store(true, std::memory_order_release);
}

Progress UcxSend::advance(Effort) {
  if (done_) return Progress::kDone;
  if (!UCS_PTR_IS_PTR(request_)) {  // it could not even begin
    judge_failure(worker_, to_);
    return Progress::kStuck;
  }
  if (!ended_.load(std::memory_order_acquire)) return Progress::kStuck;
  const auto locked = worker_.lock();
  const ucs_status_t status = ucp_request_check_status(request_);
  ucp_request_free(request_);
  if (status == UCS_OK) {
    done_ = true;
    return Progress::kDone;
  }
  request_ = UCS_STATUS_PTR(status);
  worker_.note_failure(worker_.peer(to_), status);
  return Progress::kStuck;
}

void UcxSend::abandon() noexcept {
  if (std::exchange(done_, true) || !UCS_PTR_IS_PTR(request_)) return;
  const auto locked = worker_.lock();
  const auto patience = std::chrono::steady_clock::now() + kSendPatience;
  while (ucp_request_check_status(request_) == UCS_INPROGRESS && std::chrono::steady_clock::now() < patience) {
    if (worker_.peer(to_).failure != UCS_OK) break;
    ucp_worker_progress(worker_.handle());
  }
  if (ucp_request_check_status(request_) == UCS_INPROGRESS) {
    worker_.cut(to_, UCS_ERR_CANCELED);
    matcher_.still_sending.push_back(std::move(header_));
  }
  ucp_request_free(request_);
}

UcxRecv::UcxRecv(UcxWorker& worker, UcxMatcher& matcher, const Envelope& envelope, const Sink& sink)
    : worker_(worker),
      matcher_(matcher),
      reception_{
          .from = envelope.peer, .channel = envelope.channel, .tag = envelope.tag, .key = envelope.key, .sink = sink} {
  matcher_.post(reception_);
  if (reception_.state == UcxReception::State::kMatched) matcher_.start_fetches();
}

Progress UcxRecv::advance(Effort effort) {
  if (done_) return Progress::kDone;
  using State = UcxReception::State;
  switch (reception_.state.load(std::memory_order_acquire)) {
    case State::kWaiting:
    case State::kFailed:
      judge_failure(worker_, reception_.from);
      return Progress::kStuck;
    case State::kMatched:  // its fetch begins with the worker's next progress, or when there is scratch for it
    case State::kFetching:
      return Progress::kStuck;
    case State::kFetched:
      if (reception_.sink.from == nullptr) break;
      if (effort == Effort::kPost) return Progress::kMoved;
      put_in_place(reception_.sink, reception_.scratch.memory.get());
      break;
    case State::kDone:
      break;
  }
  mismatched = reception_.mismatched;
  theirs = reception_.header.key;
  their_bytes = reception_.header.bytes;
  reception_.state = State::kDone;
  done_ = true;
  const auto locked = worker_.lock();
  matcher_.remove(reception_);
  return Progress::kDone;
}

void UcxRecv::abandon() noexcept {
  if (std::exchange(done_, true)) return;
  const auto locked = worker_.lock();
  const auto patience = std::chrono::steady_clock::now() + kRecvPatience;
  // Fetching cannot be called off; it ends soon, or its sender is dead.
  while (reception_.state == UcxReception::State::kFetching) {
    const bool dead = worker_.peer(reception_.from).failure != UCS_OK;
    if (dead || std::chrono::steady_clock::now() >= patience) break;
    ucp_worker_progress(worker_.handle());
  }
  if (reception_.state == UcxReception::State::kFetching) {
    worker_.cut(reception_.from, UCS_ERR_CANCELED);
    if (reception_.request != nullptr) ucp_request_free(reception_.request);  // and does not call back any more
  }
  matcher_.remove(reception_);
}

}  // namespace trireme::comm
