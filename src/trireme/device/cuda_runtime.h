// device/cuda_runtime.h -- the CUDA runtime as one plain C table: devices, streams, events, graphs, copies, pinned
// memory.
//
// libtrireme_cuda fills it. Rooms with tensors reach it through device/cuda.h; comm, which knows no CUDA, is given a
// reference to it (comm/nccl/nccl_transport.h), and tests fill one with a stand-in (tests/comm/fake_nccl). Streams and
// events are CUDA's own handles. No function waits for the GPU unless it says so; those that can fail return null, or
// what CUDA says of the error.
// Depends on: nothing. Any room may include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::device {

using CudaStream = void*;       // a cudaStream_t; null: the default stream, which all threads share
using CudaEventHandle = void*;  // a cudaEvent_t
using CudaError = const char*;  // null: none

/// What every table of libtrireme_cuda begins with; compare it before using the rest (device/cuda.h).
struct CudaTableHeader {
  std::uint32_t version = 0;  ///< raised by one whenever a member changes its meaning or place
  std::uint32_t bytes = 0;    ///< of the whole table
};

enum CudaStreamPriority : std::int32_t { kPriorityNormal, kPriorityHighest };
enum CudaEventKind : std::int32_t {
  kEventOrdering,      ///< for streams that wait for each other; a host thread that synchronises spins
  kEventBlockingSync,  ///< a host thread that synchronises sleeps: its core is free for others
  kEventTiming,        ///< can be asked for elapsed time
};

inline constexpr std::uint32_t kCudaRuntimeVersion = 1;

struct CudaRuntime {
  CudaTableHeader header;

  // --- devices
  /// Null when this library's kernels run on the current GPU; otherwise why not. Waits for the GPU.
  CudaError (*probe)() = nullptr;
  /// Makes this GPU the calling thread's.
  CudaError (*set_device)(int gpu) = nullptr;
  /// What tells this GPU from all others, whatever number it has in this process.
  CudaError (*device_uuid)(int gpu, char uuid[16]) = nullptr;

  // --- streams
  /// The tensor library's current stream of the calling thread on its GPU.
  CudaStream (*current_stream)() = nullptr;
  /// Whether what the stream is given is being captured into a graph.
  CudaError (*is_capturing)(CudaStream stream, bool* answer) = nullptr;
  /// A stream that does not wait for the default stream.
  CudaError (*create_stream)(CudaStream* stream, CudaStreamPriority priority) = nullptr;
  void (*destroy_stream)(CudaStream stream) = nullptr;
  /// What the stream is given from now on runs after what the event's stream had been given when it was recorded.
  CudaError (*stream_wait_event)(CudaStream stream, CudaEventHandle event) = nullptr;

  // --- events
  CudaError (*create_event)(CudaEventHandle* event, CudaEventKind kind) = nullptr;
  void (*destroy_event)(CudaEventHandle event) = nullptr;
  CudaError (*record_event)(CudaEventHandle event, CudaStream stream) = nullptr;
  /// Whether the GPU has come to where the event was recorded last; yes for one that never was.
  CudaError (*query_event)(CudaEventHandle event, bool* reached) = nullptr;
  /// The calling thread waits until it has.
  CudaError (*synchronize_event)(CudaEventHandle event) = nullptr;
  CudaError (*event_elapsed_seconds)(CudaEventHandle begin, CudaEventHandle end, double* seconds) = nullptr;

  // --- graphs
  /// Captures what the calling thread launches, on a stream that becomes its current one; tensors allocated meanwhile
  /// lie in a memory pool of the graph. To be destroyed also where this fails.
  CudaError (*begin_capture)(void** graph) = nullptr;
  /// The thread has its stream back. `instantiate` false: what was captured is dropped.
  CudaError (*end_capture)(void* graph, bool instantiate) = nullptr;
  CudaError (*launch_graph)(void* graph, CudaStream stream) = nullptr;
  /// With its memory pool.
  void (*destroy_graph)(void* graph) = nullptr;

  // --- copies and memory
  /// Between any two of device memory and pinned host memory, in order with the stream.
  CudaError (*memcpy_async)(void* to, const void* from, std::size_t bytes, CudaStream stream) = nullptr;
  /// Page-locked memory of the host, at `on_gpu` for kernels (null: nobody asks).
  CudaError (*alloc_pinned)(void** on_host, void** on_gpu, std::size_t bytes) = nullptr;
  void (*free_pinned)(void* on_host) = nullptr;
  /// Adds one to a word of pinned memory when the stream gets there; captured: at every replay.
  CudaError (*increment)(std::uint64_t* on_gpu, CudaStream stream) = nullptr;
  /// The most bytes that tensors have had on a GPU since the last reset.
  std::int64_t (*max_memory_allocated)(int gpu) = nullptr;
  void (*reset_peak_memory_stats)(int gpu) = nullptr;
  /// How often the tensor library's caching allocator has asked the driver for memory.
  std::int64_t (*num_device_allocs)(int gpu) = nullptr;
  /// Bytes of the GPU that are free now, and all; 0 where the driver does not say.
  void (*mem_get_info)(int gpu, std::int64_t* free, std::int64_t* total) = nullptr;
};

inline constexpr CudaTableHeader kCudaRuntimeHeader{kCudaRuntimeVersion, sizeof(CudaRuntime)};

extern "C" {
/// The symbol that libtrireme_cuda is asked for.
__attribute__((visibility("default"))) const CudaRuntime* trireme_cuda_runtime();
}
using CudaRuntimeEntry = decltype(trireme_cuda_runtime);
inline constexpr const char* kCudaRuntimeEntry = "trireme_cuda_runtime";

}  // namespace trireme::device
