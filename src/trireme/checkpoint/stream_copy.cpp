#include "trireme/checkpoint/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace trireme::checkpoint {

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64, kLane = sizeof(__m128i), kAhead = 512;
  const std::size_t aligned = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = std::min(aligned, bytes);
  if (head > 0) std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + at + kAhead, _MM_HINT_NTA);  // beyond the end it does nothing
    for (std::size_t lane = at; lane < at + kLine; lane += kLane) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + lane),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + lane)));
    }
  }
  if (at < bytes) std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // such stores are not ordered with the release of a lock
#else
  if (bytes > 0) std::memcpy(to, from, bytes);
#endif
}

}  // namespace trireme::checkpoint
