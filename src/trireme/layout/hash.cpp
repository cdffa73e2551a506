#include "trireme/layout/hash.h"

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"

namespace trireme::layout {
namespace {

/// 2^64 over the golden ratio, odd. Its multiples stay apart (three-distance theorem): among 2^30 neighbouring indices
/// no two keys are within 2^32 of each other, so elements of up to 32 bits never turn one index into another.
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) with the bits mixed into its counter: its finaliser is variant 13 of
/// Stafford's. Two multiplications an element, and nothing that vectors cannot do.
[[gnu::always_inline]] inline std::uint64_t mixed(std::uint64_t global, std::uint64_t bits) {
  std::uint64_t x = (global + 1) * kStep ^ bits;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

template <typename Word>
[[gnu::always_inline]] inline std::uint64_t hash_of_run(std::uint64_t global, const std::byte* data, Index count) {
  std::uint64_t sum = 0;
  for (Index i = 0; i < count; ++i) {
    Word word;  // the buffer need not be aligned
    std::memcpy(&word, data + static_cast<std::size_t>(i) * sizeof(Word), sizeof(Word));
    sum += mixed(global + static_cast<std::uint64_t>(i), word);
  }
  return sum;
}

template <typename Word>
[[gnu::always_inline]] inline std::uint64_t hash_of_runs(std::span<const ContiguousRun> runs, const std::byte* data) {
  std::uint64_t sum = 0;
  for (const ContiguousRun& run : runs) {
    sum += hash_of_run<Word>(static_cast<std::uint64_t>(run.global),
                             data + static_cast<std::size_t>(run.local) * sizeof(Word), run.count);
  }
  return sum;
}

#if defined(__x86_64__)
// The room is compiled at -O2, where GCC leaves such loops scalar: four times slower.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TRIREME_VECTORIZED gnu::optimize("O3")
#else
#define TRIREME_VECTORIZED
#endif
// The same source for wider vectors. Whole numbers: the sums agree in every bit.
template <typename Word>
[[gnu::target("avx2"), TRIREME_VECTORIZED]] std::uint64_t hash_v3(std::span<const ContiguousRun> runs,
                                                                  const std::byte* data) {
  return hash_of_runs<Word>(runs, data);
}
// AVX-512 DQ brings the 64-bit multiplication that AVX2 has to put together from halves.
template <typename Word>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), TRIREME_VECTORIZED]] std::uint64_t hash_v4(
    std::span<const ContiguousRun> runs, const std::byte* data) {
  return hash_of_runs<Word>(runs, data);
}
#endif

template <typename Word>
std::uint64_t hash(std::span<const ContiguousRun> runs, const std::byte* data) {
#if defined(__x86_64__)
  if (instruction_set() >= InstructionSet::kV4) return hash_v4<Word>(runs, data);
  if (instruction_set() >= InstructionSet::kV3) return hash_v3<Word>(runs, data);
#endif
  return hash_of_runs<Word>(runs, data);
}

}  // namespace

std::uint64_t mix(Index global, std::uint64_t bits) { return mixed(static_cast<std::uint64_t>(global), bits); }

std::uint64_t tensor_hash(std::span<const ContiguousRun> runs, std::span<const std::byte> bytes,
                          std::size_t element_bytes) {
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8) {
    throw ConfigError(fmt::format("elements of {} bytes cannot be hashed", element_bytes),
                      "view them as elements of 1, 2, 4 or 8 bytes");
  }
  const auto room = static_cast<Index>(bytes.size() / element_bytes);
  for (const ContiguousRun& run : runs) {
    TRIREME_CHECK(run.local >= 0 && run.count >= 0 && run.count <= room - run.local,
                  "elements {} to {} of a buffer of {}", run.local, run.local + run.count, room);
  }
  switch (element_bytes) {
    case 1:
      return hash<std::uint8_t>(runs, bytes.data());
    case 2:
      return hash<std::uint16_t>(runs, bytes.data());
    case 4:
      return hash<std::uint32_t>(runs, bytes.data());
    default:
      return hash<std::uint64_t>(runs, bytes.data());
  }
}

std::uint64_t tensor_hash(const Placement& placement, std::span<const std::byte> bytes, std::size_t element_bytes) {
  TRIREME_CHECK(bytes.size() == static_cast<std::size_t>(local_elements(placement)) * element_bytes,
                "{} bytes for {} elements of {} bytes: {}", bytes.size(), local_elements(placement), element_bytes,
                to_text(placement));
  return tensor_hash(runs(placement), bytes, element_bytes);
}

}  // namespace trireme::layout
