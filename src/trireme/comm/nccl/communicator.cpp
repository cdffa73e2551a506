#include "trireme/comm/nccl/communicator.h"

#include <cstring>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBegun = 0, kDone = 8;  // a cache line apart: the GPU writes them, the host reads them
constexpr std::size_t kWords = 16;
constexpr auto kCloseLook = 1ms;
// A rank that is gone shows in NCCL first. The ranks learn a moment later who it was, which is the better answer.
constexpr auto kUntilNamed = 2s;

std::uint64_t read_word(std::uint64_t* word) { return std::atomic_ref(*word).load(std::memory_order_acquire); }

}  // namespace

void check_gpu(device::CudaError error, const char* what) {
  if (error == nullptr) return;
  throw CommError(fmt::format("{} failed on the GPU: {}", what, error),
                  "an earlier operator may be the cause: set CUDA_LAUNCH_BLOCKING=1 to find it");
}

Communicator::Communicator(const NcclLibrary& library, const device::CudaRuntime& cuda, int gpu, std::vector<int> ranks,
                           int me)
    : library_(library),
      cuda_(cuda),
      gpu_(gpu),
      ranks_(std::move(ranks)),
      me_(me),
      name_(fmt::format("{}", fmt::join(ranks_, ","))) {
  check_gpu(cuda_.set_device(gpu_), "choosing the GPU");
  void *on_host = nullptr, *on_gpu = nullptr;
  constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);
  check_gpu(cuda_.alloc_pinned(&on_host, &on_gpu, kBytes), "allocating pinned memory for counters");
  std::memset(on_host, 0, kBytes);
  words_ = static_cast<std::uint64_t*>(on_host);
  words_on_gpu_ = static_cast<std::uint64_t*>(on_gpu);
  // Its kernels run before those of computing: ranks that are ahead wait for this one.
  if (const device::CudaError error = cuda_.create_stream(&stream_, device::kPriorityHighest)) {
    cuda_.free_pinned(words_);
    check_gpu(error, "creating a stream");
  }
}

Communicator::~Communicator() {
  abort("it was not closed");
  cuda_.destroy_stream(stream_);
  cuda_.free_pinned(words_);
}

nccl::UniqueId Communicator::make_id() const {
  check_gpu(cuda_.set_device(gpu_), "choosing the GPU");
  nccl::UniqueId id{};
  library_.check(library_.call().ncclGetUniqueId(&id), "making an NCCL id");
  return id;
}

void Communicator::connect(const nccl::UniqueId& id) {
  check_gpu(cuda_.set_device(gpu_), "choosing the GPU");
  nccl::Config config;
  config.blocking = 0;
  state_ = State::kConnecting;
  const nccl::Result result =
      library_.call().ncclCommInitRankConfig(&comm_, static_cast<int>(ranks_.size()), id, me_, &config);
  library_.check(result, "making an NCCL communicator", comm_);
}

bool Communicator::is_idle(const char* what) {
  if (state_ == State::kGone) throw CommError(fmt::format("{}: {}", what, why_gone_));
  nccl::Result error = nccl::kSuccess;
  library_.check(library_.call().ncclCommGetAsyncError(comm_, &error), what, comm_);
  const bool others = error == nccl::kRemoteError || error == nccl::kSystemError;
  if (others && state_ == State::kReady) {
    const auto now = std::chrono::steady_clock::now();
    if (!broken_since_) broken_since_ = now;
    if (now - *broken_since_ < kUntilNamed) return false;
  }
  library_.check(error, what, comm_);
  return error != nccl::kInProgress;
}

bool Communicator::has_connected() {
  if (!is_idle("making an NCCL communicator")) return false;
  state_ = State::kReady;
  for (auto& [id, registration] : registered_) register_with_nccl(registration);
  log_debug("NCCL communicator of ranks {} is ready", name_);
  return true;
}

void Communicator::issue(const Launch& launch, const NcclStep& step) {
  const nccl::Functions& nccl = library_.call();
  const nccl::DataType type = nccl_type(launch.type);
  const nccl::RedOp op = nccl_op(launch.reduce);
  using StepAct = NcclStep::Act;
  switch (step.act) {
    case StepAct::kCopy:
      break;
    case StepAct::kAllReduce:
      return library_.check(nccl.ncclAllReduce(step.in, step.out, step.count, type, op, comm_, stream_),
                            "ncclAllReduce", comm_);
    case StepAct::kReduce:
      return library_.check(nccl.ncclReduce(step.in, step.out, step.count, type, op, step.peer, comm_, stream_),
                            "ncclReduce", comm_);
    case StepAct::kBroadcast:
      return library_.check(nccl.ncclBroadcast(step.in, step.out, step.count, type, step.peer, comm_, stream_),
                            "ncclBroadcast", comm_);
    case StepAct::kReduceScatter:
      return library_.check(nccl.ncclReduceScatter(step.in, step.out, step.count, type, op, comm_, stream_),
                            "ncclReduceScatter", comm_);
    case StepAct::kAllGather:
      return library_.check(nccl.ncclAllGather(step.in, step.out, step.count, type, comm_, stream_), "ncclAllGather",
                            comm_);
    case StepAct::kSend:
      return library_.check(nccl.ncclSend(step.in, step.count, type, step.peer, comm_, stream_), "ncclSend", comm_);
    case StepAct::kRecv:
      return library_.check(nccl.ncclRecv(step.out, step.count, type, step.peer, comm_, stream_), "ncclRecv", comm_);
  }
}

void Communicator::launch(const Launch& launch) {
  if (state_ == State::kGone) throw CommError(fmt::format("NCCL communicator of ranks {}: {}", name_, why_gone_));
  TRIREME_CHECK(state_ == State::kReady, "the communicator of ranks {} is not ready", name_);
  check_gpu(cuda_.set_device(gpu_), "choosing the GPU");
  check_gpu(cuda_.stream_wait_event(stream_, launch.after), "waiting for the data of a call");
  check_gpu(cuda_.increment(words_on_gpu_ + kBegun, stream_), "counting a call");
  bool any = false;
  for (const NcclStep& step : launch.steps) {
    if (step.act == NcclStep::Act::kCopy) {
      check_gpu(cuda_.memcpy_async(step.out, step.in, step.count * size_of(launch.type), stream_),
                "copying the own block");
    } else {
      any = true;
    }
  }
  if (!any) return;
  library_.check(library_.call().ncclGroupStart(), "ncclGroupStart");
  std::exception_ptr failed;
  for (const NcclStep& step : launch.steps) {
    try {
      if (!failed) issue(launch, step);
    } catch (...) {
      failed = std::current_exception();  // the group must be ended all the same
    }
  }
  const nccl::Result ended = library_.call().ncclGroupEnd();
  if (failed) std::rethrow_exception(failed);
  library_.check(ended, "giving a call to NCCL", comm_);
}

bool Communicator::has_launched(device::CudaEventHandle event) {
  if (!is_idle("giving a call to NCCL")) return false;
  check_gpu(cuda_.set_device(gpu_), "choosing the GPU");
  check_gpu(cuda_.increment(words_on_gpu_ + kDone, stream_), "counting a call");
  check_gpu(cuda_.record_event(event, stream_), "recording the end of a call");
  return true;
}

GpuProgress Communicator::progress() const {
  return {.given = given_.load(std::memory_order_relaxed),
          .begun = read_word(words_ + kBegun),
          .done = read_word(words_ + kDone)};
}

void Communicator::check_health() {
  if (state_ == State::kGone) throw CommError(fmt::format("NCCL communicator of ranks {}: {}", name_, why_gone_));
  is_idle("a call that the GPU was given");
}

void Communicator::register_buffer(std::uint64_t id, void* data, std::size_t bytes) {
  Registration& registration = registered_[id] = {.data = data, .bytes = bytes, .handle = nullptr};
  if (state_ == State::kReady) register_with_nccl(registration);
}

void Communicator::register_with_nccl(Registration& registration) {
  if (library_.call().ncclCommRegister == nullptr) return;  // before 2.19: a matter of speed only
  library_.check(library_.call().ncclCommRegister(comm_, registration.data, registration.bytes, &registration.handle),
                 "ncclCommRegister", comm_);
}

void Communicator::deregister_buffer(std::uint64_t id) noexcept {
  const auto registration = registered_.find(id);
  if (registration == registered_.end()) return;
  if (state_ == State::kReady && registration->second.handle != nullptr) {
    library_.call().ncclCommDeregister(comm_, registration->second.handle);
  }
  registered_.erase(registration);
}

void Communicator::abort(const std::string& why) noexcept {
  if (state_ == State::kGone) return;
  state_ = State::kGone;
  why_gone_ = "it was given up: " + why;
  if (comm_ == nullptr) return;
  cuda_.set_device(gpu_);
  library_.call().ncclCommAbort(std::exchange(comm_, nullptr));
}

void Communicator::begin_close() noexcept {
  if (state_ != State::kReady) return;
  cuda_.set_device(gpu_);
  while (!registered_.empty()) deregister_buffer(registered_.begin()->first);
  const nccl::Result result = library_.call().ncclCommFinalize(comm_);
  if (result == nccl::kSuccess || result == nccl::kInProgress) state_ = State::kClosing;
}

void Communicator::finish_close(std::chrono::steady_clock::time_point until) noexcept {
  while (state_ == State::kClosing) {
    nccl::Result error = nccl::kSuccess;
    const nccl::Result asked = library_.call().ncclCommGetAsyncError(comm_, &error);
    if (asked == nccl::kSuccess && error == nccl::kSuccess) {
      state_ = State::kGone;
      why_gone_ = "it was closed";
      library_.call().ncclCommDestroy(std::exchange(comm_, nullptr));
      return;
    }
    if (asked != nccl::kSuccess || error != nccl::kInProgress || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(kCloseLook);
  }
  abort("it did not close in time");
}

}  // namespace trireme::comm
