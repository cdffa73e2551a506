// checkpoint/shared_copy.h -- one copy of many pieces of memory, by whoever has time for it.
//
// The update after a save waits until the state is copied. So its thread does not stand by: it copies too, and so do
// the threads that will write. Each takes the next chunk until there is none. The copy goes past the caches: the disk
// reads it once, and the step beside it keeps what it computes with.
// Depends on: comm, formats.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/formats/part_writer.h"

namespace trireme::checkpoint {

class SharedCopy {
 public:
  /// To `to`, one piece behind the other. All memory is borrowed.
  SharedCopy(std::byte* to, const std::vector<formats::PieceOfMemory>& pieces);
  SharedCopy(const SharedCopy&) = delete;
  SharedCopy& operator=(const SharedCopy&) = delete;

  /// Copies until no chunk is left that nobody has begun. On any thread, on several at once.
  void help();
  /// Until all of it is there, helping first.
  void finish();

 private:
  struct Chunk {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;
  };
  std::vector<Chunk> chunks_;
  std::atomic<std::size_t> begun_{0}, done_{0};
};

}  // namespace trireme::checkpoint
