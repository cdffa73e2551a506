// comm/gpu_driver.h -- the few things that a GPU transport asks of CUDA: streams, events, marks.
//
// This room knows no CUDA: whoever has it (parallel/gpu_exchange.h) gives the table. Streams and events are CUDA's own
// handles. Every function waits for nothing on the GPU and returns null, or what went wrong in words.
// Depends on: nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::comm {

struct GpuDriver {
  using Error = const char*;
  using Stream = void*;
  using Event = void*;

  /// Makes this GPU the calling thread's.
  Error (*use)(int gpu);
  /// Where the calling thread's work is going.
  Stream (*current_stream)();
  /// Whether what the stream is given is being captured in a CUDA graph.
  Error (*is_recording)(Stream stream, bool* answer);
  /// A stream that does not wait for the default stream, served before others.
  Error (*make_stream)(Stream* stream);
  void (*free_stream)(Stream stream);
  Error (*make_event)(Event* event);
  void (*free_event)(Event event);
  Error (*record)(Event event, Stream stream);
  /// What the stream is given from now on comes after what the event's stream had been given when it was recorded.
  Error (*wait)(Stream stream, Event event);
  Error (*copy)(void* to, const void* from, std::size_t bytes, Stream stream);
  /// Words of host memory that the GPU can write, all zero.
  Error (*make_words)(std::size_t words, std::uint64_t** on_host, std::uint64_t** on_gpu);
  void (*free_words)(std::uint64_t* on_host);
  /// Adds one to a word when the stream gets there; also when recorded, at every replay.
  Error (*mark)(std::uint64_t* on_gpu, Stream stream);
};

}  // namespace trireme::comm
