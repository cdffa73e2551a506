// comm/nccl/communicator.h -- one NCCL communicator: made, used, watched, and ended without ever blocking for good.
//
// Communicators are "non-blocking" in NCCL's sense: making one and giving it calls only begins something, and one asks
// how far it is; whatever is under way can be aborted. Each has a stream of its own, and two words of host memory that
// the GPU counts up before and after every call: how far it has come is read there, without a call of CUDA.
// Used under the engine's lock, but for progress().
// Depends on: library.h, steps.h, device/cuda_runtime.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/gpu_transport.h"
#include "trireme/comm/nccl/library.h"
#include "trireme/comm/nccl/steps.h"
#include "trireme/device/cuda_runtime.h"

namespace trireme::comm {

/// Throws CommError with what CUDA said.
void check_gpu(device::CudaError error, const char* what);

class Communicator {
 public:
  /// Of these ranks of the world, this one being ranks[me]. Nothing of NCCL happens yet.
  Communicator(const NcclLibrary& library, const device::CudaRuntime& cuda, int gpu, std::vector<int> ranks, int me);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// "0,1,3".
  const std::string& name() const { return name_; }
  const device::CudaRuntime& cuda() const { return cuda_; }
  bool is_new() const { return state_ == State::kNew; }
  bool is_ready() const { return state_ == State::kReady; }

  /// On one rank; the others are told.
  nccl::UniqueId make_id() const;
  /// All ranks do this with the same id; then ask has_connected() until it says so.
  void connect(const nccl::UniqueId& id);
  bool has_connected();

  /// What the GPU is given: after `after`, these steps. Then ask has_launched() until it says so, which leaves `event`
  /// behind the call on the stream; only then the next call may be launched.
  struct Launch {
    const std::vector<NcclStep>& steps;
    DType type = DType::kU8;
    Reduce reduce = Reduce::kSum;
    device::CudaEventHandle after = nullptr;
  };
  void launch(const Launch& launch);
  bool has_launched(device::CudaEventHandle event);
  /// The number of one more call that the GPU was given.
  std::uint64_t count_given() { return given_.fetch_add(1, std::memory_order_relaxed) + 1; }
  device::CudaStream stream() const { return stream_; }

  GpuProgress progress() const;
  /// Throws where something went wrong behind the calls, or it was aborted.
  void check_health();
  bool is_done(std::uint64_t number) const { return progress().done >= number; }

  void register_buffer(std::uint64_t id, void* data, std::size_t bytes);
  void deregister_buffer(std::uint64_t id) noexcept;

  /// Everything of it that waits on the GPU ends at once, and nothing can be called any more.
  void abort(const std::string& why) noexcept;
  /// An orderly end in two parts, so that several communicators end side by side; aborts what does not end in time.
  void begin_close() noexcept;
  void finish_close(std::chrono::steady_clock::time_point until) noexcept;

 private:
  enum class State : std::uint8_t { kNew, kConnecting, kReady, kClosing, kGone };
  struct Registration {
    void* data;
    std::size_t bytes;
    void* handle;  // null: not told to NCCL yet
  };

  /// Whether NCCL is through with what it was last asked for.
  bool is_idle(const char* what);
  void register_with_nccl(Registration& registration);
  void issue(const Launch& launch, const NcclStep& step);

  const NcclLibrary& library_;
  const device::CudaRuntime& cuda_;
  int gpu_;
  std::vector<int> ranks_;
  int me_;
  std::string name_;
  State state_ = State::kNew;
  std::string why_gone_;
  std::optional<std::chrono::steady_clock::time_point> broken_since_;
  nccl::Comm* comm_ = nullptr;
  device::CudaStream stream_ = nullptr;
  std::uint64_t *words_ = nullptr, *words_on_gpu_ = nullptr;  // calls begun, calls done
  std::atomic<std::uint64_t> given_{0};
  std::map<std::uint64_t, Registration> registered_;
};

}  // namespace trireme::comm
