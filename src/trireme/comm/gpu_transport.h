// comm/gpu_transport.h -- how calls on GPU memory run for ranks that are processes: a library of their own beside the
// host transport.
//
// The host transport goes on carrying host memory and the ranks' agreement on each call; a GPU transport only gives the
// agreed call to the GPU. Its operations are done when the GPU has been given the call, in order with what the caller's
// stream had been given before; after_wait() lets that stream wait for the result. What the GPU makes of it is followed
// by an operation that the group adopts, so deadlines and the flight recorder hold although no thread waits.
// Depends on: operation.h, transport.h, board.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/comm/board.h"
#include "trireme/comm/call.h"
#include "trireme/comm/operation.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// Where a call is made: what the group knows and the operation borrows.
struct GpuCallSite {
  Transport& host;
  const Members& members;
  Board* board = nullptr;  // null: the ranks have no memory in common
  std::uint64_t board_sequence = 0;
  std::uint32_t tag = 0;  // of messages that belong to this call
};

/// How far a GPU has come with the calls for the same ranks.
struct GpuProgress {
  std::uint64_t given = 0, begun = 0, done = 0;
};

class GpuTransport {
 public:
  virtual ~GpuTransport() = default;
  virtual std::string_view name() const = 0;
  /// The one GPU whose memory it takes.
  virtual int gpu() const = 0;

  // These are called by the thread that makes the call, with the engine's lock.
  virtual std::unique_ptr<Operation> make_collective(const GpuCallSite& site, const Call& call) = 0;
  virtual std::unique_ptr<Operation> make_message(const GpuCallSite& site, const Call& call, bool is_send,
                                                  int peer) = 0;
  /// The largest tag that a message may have.
  virtual std::uint32_t largest_tag() const = 0;

  /// This memory will be used in calls of the group again and again, at this place: the library may prepare it. Freed
  /// only after deregister_buffer().
  virtual std::uint64_t register_buffer(const Members& members, void* data, std::size_t bytes) = 0;
  virtual void deregister_buffer(std::uint64_t registration) noexcept = 0;

  // Calls made between these two are captured into a CUDA graph rather than run. `launch` replays the graph.
  virtual void begin_capture() = 0;
  virtual std::uint64_t end_capture() = 0;
  virtual void replay(std::uint64_t capture, void (*launch)(void* context), void* context) = 0;
  virtual void drop_capture(std::uint64_t capture) noexcept = 0;

  /// Of the calls for these ranks ("0,1,3"); read by the control plane, without the lock.
  virtual GpuProgress progress_of(const std::string& ranks) const = 0;
  /// This rank failed: nothing on the GPU may go on waiting for others.
  virtual void give_up() noexcept = 0;
};

}  // namespace trireme::comm
