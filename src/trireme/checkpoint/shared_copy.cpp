#include "trireme/checkpoint/shared_copy.h"

#include <algorithm>

#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::checkpoint {
namespace {

/// Large beside what it takes to get one, small beside what is left to wait for when the others are done.
constexpr std::uint64_t kChunk = 2 << 20;

}  // namespace

SharedCopy::SharedCopy(std::byte* to, const std::vector<formats::PieceOfMemory>& pieces) {
  for (const formats::PieceOfMemory& piece : pieces) {
    for (std::uint64_t at = 0; at < piece.bytes; at += kChunk) {
      const std::uint64_t bytes = std::min(kChunk, piece.bytes - at);
      chunks_.push_back({to, piece.from + at, bytes});
      to += bytes;
    }
  }
}

void SharedCopy::help() {
  std::size_t copied = 0;
  for (std::size_t i; (i = begun_.fetch_add(1, std::memory_order_relaxed)) < chunks_.size(); ++copied) {
    comm::stream_copy(chunks_[i].to, chunks_[i].from, chunks_[i].bytes);
  }
  if (copied == 0) return;
  done_.fetch_add(copied, std::memory_order_release);
  done_.notify_all();
}

void SharedCopy::finish() {
  help();
  for (std::size_t done; (done = done_.load(std::memory_order_acquire)) < chunks_.size();) done_.wait(done);
}

}  // namespace trireme::checkpoint
