#include "trireme/comm/nccl/endpoint.h"

#include <set>

#include "trireme/base/error.h"
#include "trireme/comm/nccl/collective.h"
#include "trireme/comm/nccl/flight.h"
#include "trireme/comm/nccl/message.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kCloseTimeout = 5s;

}  // namespace

GpuEvent::GpuEvent(const GpuDriver& driver, Store& store) : store_(store) {
  if (store_.empty()) {
    check_gpu(driver.make_event(&event_), "making an event");
  } else {
    event_ = store_.back();
    store_.pop_back();
  }
}

GpuEvent::~GpuEvent() { store_.push_back(event_); }

NcclEndpoint::~NcclEndpoint() {
  // All begin to close before one is waited for: ranks that close several never wait for each other in a circle.
  for (Communicator* communicator : in_order_) communicator->begin_close();
  const auto until = std::chrono::steady_clock::now() + kCloseTimeout;
  for (Communicator* communicator : in_order_) communicator->finish_close(until);
  communicators_.clear();
  for (const GpuDriver::Event event : events_) driver_.free_event(event);
}

std::unique_ptr<Operation> NcclEndpoint::make_collective(const GpuCallSite& site, const Call& call) {
  return std::make_unique<NcclCollective>(*this, site, call);
}

std::unique_ptr<Operation> NcclEndpoint::make_message(const GpuCallSite& site, const Call& call, bool is_send,
                                                      int peer) {
  if (peer == site.members.me) return std::make_unique<NcclToItself>(*this, site, call, is_send);
  return std::make_unique<NcclMessage>(*this, site, call, is_send, peer);
}

std::uint32_t NcclEndpoint::largest_tag() const { return kLargestGpuTag; }

Communicator& NcclEndpoint::communicator(const std::vector<int>& ranks, int me) {
  if (!given_up_.empty()) throw CommError(given_up_);
  if (const auto found = communicators_.find(ranks); found != communicators_.end()) return *found->second;
  if (!library_) library_.emplace(options_.library);
  auto made = std::make_unique<Communicator>(*library_, driver_, options_.gpu, ranks, me);
  Communicator& communicator = *made;
  in_order_.push_back(&communicator);
  const std::lock_guard lock(communicators_mutex_);
  communicators_.emplace(ranks, std::move(made));
  return communicator;
}

std::uint64_t NcclEndpoint::keep(const Members& members, void* data, std::size_t bytes) {
  const std::uint64_t id = next_id_++;
  if (members.ranks.size() == 1) return id;
  Communicator& of_group = communicator(members.ranks, members.me);
  of_group.keep(id, data, bytes);
  kept_[id] = &of_group;
  return id;
}

void NcclEndpoint::forget(std::uint64_t kept) noexcept {
  const auto found = kept_.find(kept);
  if (found == kept_.end()) return;
  found->second->forget(kept);
  kept_.erase(found);
}

bool NcclEndpoint::is_recording(GpuDriver::Stream stream) const {
  bool recording = false;
  check_gpu(driver_.is_recording(stream, &recording), "asking whether a stream is being captured");
  if (recording && !recording_) {
    throw CommError("a collective on GPU memory would be captured in a CUDA graph whose replays nothing tracks",
                    "capture inside comm::CapturedCollectives");
  }
  return recording;
}

void NcclEndpoint::launched(const Operation& call, Communicator& communicator, bool recorded) {
  Group& group = group_of(call);
  if (recorded) {
    TRIREME_CHECK(recording_.has_value(), "{} was issued during a capture and launched after it", describe(call));
    recording_->push_back({.group = &group, .facts = facts_of(call), .communicator = &communicator});
    return;
  }
  group.follow(call, std::make_unique<NcclFlight>(communicator, communicator.count_given()));
}

void NcclEndpoint::order_recorded(const Communicator& communicator) {
  if (last_recorded_ == nullptr || last_recorded_ == &communicator) return;
  check_gpu(driver_.use(options_.gpu), "choosing the GPU");  // any thread may come here
  check_gpu(driver_.wait(communicator.stream(), last_end_->get()), "ordering captured collectives");
}

void NcclEndpoint::recorded_last(const Communicator& communicator) {
  // An event of its own: the call's goes back to the store, and marks something else, while this is still asked for.
  if (!last_end_) last_end_.emplace(driver_, events_);
  check_gpu(driver_.record(last_end_->get(), communicator.stream()), "ordering captured collectives");
  last_recorded_ = &communicator;
}

void NcclEndpoint::begin_recording() {
  TRIREME_CHECK(!recording_, "a capture is under way already");
  recording_.emplace();
}

std::uint64_t NcclEndpoint::end_recording() {
  const std::uint64_t id = next_id_++;
  recordings_[id] = std::move(*recording_);
  recording_.reset();
  last_end_.reset();
  last_recorded_ = nullptr;
  return id;
}

void NcclEndpoint::replay(std::uint64_t recording, void (*start)(void*), void* context) {
  const Recording& calls = recordings_.at(recording);
  std::set<Communicator*> used;
  for (const CapturedCollective& call : calls) used.insert(call.communicator);
  for (Communicator* communicator : used) communicator->check_health();
  // In order with what these communicators' own streams were given before and will be given: marks are counted, not
  // named.
  const GpuDriver::Stream stream = driver_.current_stream();
  const GpuEvent event(driver_, events_);
  for (const Communicator* communicator : used) {
    check_gpu(driver_.record(event.get(), communicator->stream()), "ordering a replay");
    check_gpu(driver_.wait(stream, event.get()), "ordering a replay");
  }
  start(context);
  check_gpu(driver_.record(event.get(), stream), "ordering a replay");
  for (const Communicator* communicator : used) {
    check_gpu(driver_.wait(communicator->stream(), event.get()), "ordering a replay");
  }
  for (const CapturedCollective& call : calls) {
    call.group->follow_again(call.facts,
                             std::make_unique<NcclFlight>(*call.communicator, call.communicator->count_given()));
  }
}

void NcclEndpoint::drop_recording(std::uint64_t recording) noexcept { recordings_.erase(recording); }

GpuProgress NcclEndpoint::progress_of(const std::string& ranks) const {
  const std::lock_guard lock(communicators_mutex_);
  for (const auto& [list, communicator] : communicators_) {
    if (communicator->name() == ranks) return communicator->progress();
  }
  return {};
}

void NcclEndpoint::give_up() noexcept {
  if (given_up_.empty()) given_up_ = "this rank has given up its calls on GPU memory";
  for (Communicator* communicator : in_order_) communicator->abort("a rank failed");
}

std::unique_ptr<GpuTransport> make_nccl_transport(const GpuDriver& driver, NcclOptions options) {
  return std::make_unique<NcclEndpoint>(driver, std::move(options));
}

}  // namespace trireme::comm
