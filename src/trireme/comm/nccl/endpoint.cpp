#include "trireme/comm/nccl/endpoint.h"

#include <set>

#include "trireme/base/error.h"
#include "trireme/comm/nccl/collective.h"
#include "trireme/comm/nccl/communicator.h"
#include "trireme/comm/nccl/message.h"
#include "trireme/comm/operation.h"
#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kCloseTimeout = 5s;

/// Follows a call that the GPU has been given until the GPU's counters say that it is done.
///
/// Nobody waits for it: the engine has adopted it, watches its deadline and gives it up when a rank it needs is gone.
class NcclFlight final : public Operation {
 public:
  NcclFlight(Communicator& communicator, std::uint64_t number) : communicator_(communicator), number_(number) {}

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return 0; }  // counted with the call
  std::optional<GpuPosition> gpu_position() const override { return GpuPosition{communicator_.name(), number_}; }

 private:
  Communicator& communicator_;
  std::uint64_t number_;
  std::int64_t health_checked_ns_ = 0;
};

// Asking NCCL takes its locks; counters tell the ordinary course of things.
constexpr std::int64_t kHealthEveryNs = 50'000'000;

}  // namespace

Progress NcclFlight::advance(Effort) {
  // An aborted communicator lets the stream run on, past the counter: that is no end to be taken for one.
  if (communicator_.is_ready() && communicator_.is_done(number_)) return Progress::kDone;
  const std::int64_t now = now_ns();
  if (!communicator_.is_ready() || now - health_checked_ns_ >= kHealthEveryNs) {
    health_checked_ns_ = now;
    communicator_.check_health();
  }
  return Progress::kStuck;
}

void NcclFlight::abandon() noexcept { communicator_.abort("a call that the GPU was given did not end"); }

GpuEvent::GpuEvent(const device::CudaRuntime& cuda, Store& store) : store_(store) {
  if (store_.empty()) {
    check_gpu(cuda.create_event(&event_, device::kEventOrdering), "creating an event");
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
  for (const device::CudaEventHandle event : events_) cuda_.destroy_event(event);
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
  auto made = std::make_unique<Communicator>(*library_, cuda_, options_.gpu, ranks, me);
  Communicator& communicator = *made;
  in_order_.push_back(&communicator);
  const std::lock_guard lock(communicators_mutex_);
  communicators_.emplace(ranks, std::move(made));
  return communicator;
}

std::uint64_t NcclEndpoint::register_buffer(const Members& members, void* data, std::size_t bytes) {
  const std::uint64_t id = next_id_++;
  if (members.ranks.size() == 1) return id;
  Communicator& of_group = communicator(members.ranks, members.me);
  of_group.register_buffer(id, data, bytes);
  registered_[id] = &of_group;
  return id;
}

void NcclEndpoint::deregister_buffer(std::uint64_t registration) noexcept {
  const auto found = registered_.find(registration);
  if (found == registered_.end()) return;
  found->second->deregister_buffer(registration);
  registered_.erase(found);
}

bool NcclEndpoint::is_capturing(device::CudaStream stream) const {
  bool capturing = false;
  check_gpu(cuda_.is_capturing(stream, &capturing), "asking whether a stream is captured");
  if (capturing && !capture_) {
    throw CommError("a call on GPU memory would be captured into a CUDA graph whose replays nobody follows",
                    "capture it inside comm::CapturedCollectives");
  }
  return capturing;
}

void NcclEndpoint::launched(const Operation& call, Communicator& communicator, bool captured) {
  Group& group = group_of(call);
  if (captured) {
    TRIREME_CHECK(capture_.has_value(), "{} was made while a CUDA graph was captured and launched after that",
                  describe(call));
    capture_->push_back({.group = &group, .facts = facts_of(call), .communicator = &communicator});
    return;
  }
  group.follow(call, std::make_unique<NcclFlight>(communicator, communicator.count_given()));
}

void NcclEndpoint::order_in_capture(const Communicator& communicator) {
  if (last_captured_ == nullptr || last_captured_ == &communicator) return;
  check_gpu(cuda_.set_device(options_.gpu), "choosing the GPU");  // any thread may come here
  check_gpu(cuda_.stream_wait_event(communicator.stream(), last_end_->get()), "ordering captured calls");
}

void NcclEndpoint::note_captured(const Communicator& communicator) {
  // An event of its own: the call's goes back to the store, and is recorded elsewhere, while this is still asked for.
  if (!last_end_) last_end_.emplace(cuda_, events_);
  check_gpu(cuda_.record_event(last_end_->get(), communicator.stream()), "ordering captured calls");
  last_captured_ = &communicator;
}

void NcclEndpoint::begin_capture() {
  TRIREME_CHECK(!capture_, "calls are being captured already");
  capture_.emplace();
}

std::uint64_t NcclEndpoint::end_capture() {
  const std::uint64_t id = next_id_++;
  captures_[id] = std::move(*capture_);
  capture_.reset();
  last_end_.reset();
  last_captured_ = nullptr;
  return id;
}

void NcclEndpoint::replay(std::uint64_t capture, void (*launch)(void*), void* context) {
  const Capture& calls = captures_.at(capture);
  std::set<Communicator*> used;
  for (const CapturedCollective& call : calls) used.insert(call.communicator);
  for (Communicator* communicator : used) communicator->check_health();
  // In order with what these communicators' own streams were given before and will be given: the
  // counters count calls, they do not name them.
  const device::CudaStream stream = cuda_.current_stream();
  const GpuEvent event(cuda_, events_);
  for (const Communicator* communicator : used) {
    check_gpu(cuda_.record_event(event.get(), communicator->stream()), "ordering a replay");
    check_gpu(cuda_.stream_wait_event(stream, event.get()), "ordering a replay");
  }
  launch(context);
  check_gpu(cuda_.record_event(event.get(), stream), "ordering a replay");
  for (const Communicator* communicator : used) {
    check_gpu(cuda_.stream_wait_event(communicator->stream(), event.get()), "ordering a replay");
  }
  for (const CapturedCollective& call : calls) {
    call.group->follow_replayed(call.facts,
                                std::make_unique<NcclFlight>(*call.communicator, call.communicator->count_given()));
  }
}

void NcclEndpoint::drop_capture(std::uint64_t capture) noexcept { captures_.erase(capture); }

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

std::unique_ptr<GpuTransport> make_nccl_transport(const device::CudaRuntime& cuda, NcclOptions options) {
  return std::make_unique<NcclEndpoint>(cuda, std::move(options));
}

int choose_gpu(int local_rank, int gpus, std::optional<int> asked) {
  TRIREME_CHECK(gpus > 0 && local_rank >= 0, "local rank {} of a node with {} GPUs", local_rank, gpus);
  if (!asked) return local_rank % gpus;
  if (*asked < gpus) return *asked;
  throw ConfigError(
      fmt::format("TRIREME_GPU is {}, but this process sees {} GPU{}", *asked, gpus, gpus == 1 ? "" : "s"),
      fmt::format("set it to a number from 0 to {}, or unset it", gpus - 1));
}

std::optional<std::string> pretended_host(std::span<const GpuIdentity> gpus, int rank) {
  const GpuIdentity& mine = gpus[static_cast<std::size_t>(rank)];
  if (std::ranges::count(gpus, mine) == 1) return std::nullopt;
  return fmt::format("trireme-rank-{}", rank);
}

}  // namespace trireme::comm
