#include "trireme/layout/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/layout/random_layouts.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"

namespace trireme::layout {
namespace {

/// SplitMix64 as its paper writes it, one number at a time, the element's bits mixed into the state.
std::uint64_t plain_mix(std::uint64_t global, std::uint64_t bits) {
  std::uint64_t z = 0;
  for (std::uint64_t i = 0; i <= global; ++i) z += 0x9e3779b97f4a7c15;
  z ^= bits;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Element by element, byte by byte, over what a rank holds.
std::uint64_t plain_hash(const std::vector<Index>& elements_of, std::span<const std::byte> bytes,
                         std::size_t element_bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < elements_of.size(); ++i) {
    if (elements_of[i] < 0) continue;
    std::uint64_t bits = 0;
    for (std::size_t b = element_bytes; b-- > 0;) {
      bits = bits << 8 | std::to_integer<std::uint64_t>(bytes[i * element_bytes + b]);
    }
    sum += plain_mix(static_cast<std::uint64_t>(elements_of[i]), bits);
  }
  return sum;
}

/// The memory of a rank: element g of the tensor has low bytes that follow from g alone; padding is noise.
std::vector<std::byte> memory_of(const Placement& placement, std::size_t element_bytes) {
  const std::vector<Index> elements_of = plain_elements(placement);
  std::vector<std::byte> bytes(elements_of.size() * element_bytes);
  for (std::size_t i = 0; i < elements_of.size(); ++i) {
    const std::uint64_t word =
        elements_of[i] < 0 ? 0xABAD1DEA * (i + 3) : 0xF1357AEA2E62A9C5 * static_cast<std::uint64_t>(elements_of[i]) + 1;
    std::memcpy(bytes.data() + i * element_bytes, &word, element_bytes);
  }
  return bytes;
}

TEST(TensorHash, IsTheSameUnderAllLayouts) {
  int layouts = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed + 5000);
    const Shape shape = random_shape(dice);
    if (elements(shape) > 600) continue;
    const std::size_t element_bytes = std::size_t{1} << dice.below(4);
    const Placement whole = Placing(Mesh(), 0, "w", shape).placement();
    const std::vector<std::byte> memory = memory_of(whole, element_bytes);
    const std::uint64_t expected = plain_hash(plain_elements(whole), memory, element_bytes);
    EXPECT_EQ(tensor_hash(whole, memory, element_bytes), expected);
    const Mesh mesh = random_mesh(dice);
    const auto placements = place_all(mesh, shape, random_build(dice, mesh, shape));
    std::uint64_t sum = 0;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const Placement& placement = placements[static_cast<std::size_t>(rank)];
      const std::vector<std::byte> own = memory_of(placement, element_bytes);
      EXPECT_EQ(tensor_hash(placement, own, element_bytes), plain_hash(plain_elements(placement), own, element_bytes));
      sum += tensor_hash(first_copy_runs(mesh, rank, placement), own, element_bytes);
    }
    EXPECT_EQ(sum, expected);
    ++layouts;
  }
  EXPECT_GE(layouts, 150);
}

TEST(TensorHash, EqualsThePlainSumForEverySizeLengthAndAlignment) {
  // Lengths around those of vectors, runs that begin anywhere, memory that is aligned to nothing.
  for (const std::size_t element_bytes : {1, 2, 4, 8}) {
    for (const Index count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000}) {
      for (const std::size_t shift : {0, 1, 3}) {
        const Placement whole = Placing(Mesh(), 0, "w", {count + 3}).placement();
        const std::vector<std::byte> memory = memory_of(whole, element_bytes);
        std::vector<std::byte> shifted(shift);
        shifted.insert(shifted.end(), memory.begin(), memory.end());
        const auto bytes = std::span<const std::byte>(shifted).subspan(shift);
        std::vector<Index> elements_of(static_cast<std::size_t>(count) + 3, -1);
        for (Index i = 0; i < count; ++i) elements_of[static_cast<std::size_t>(i) + 2] = 5000 + i;
        const layout::ContiguousRun run{.global = 5000, .local = 2, .count = count};
        const std::uint64_t expected = plain_hash(elements_of, bytes, element_bytes);
        for (const InstructionSet set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4}) {
          if (set > machine_instruction_set()) continue;
          const UseInstructionSet use(set);
          EXPECT_EQ(tensor_hash(std::span(&run, 1), bytes, element_bytes), expected)
              << element_bytes << " bytes, " << count << " elements, shifted by " << shift << ", " << to_string(set);
        }
      }
    }
  }
}

TEST(TensorHash, IsTheSumOverOneCopy) {
  const Mesh mesh = parse_mesh("dp=2 tp=3");
  const auto placements = place_all(mesh, "w", {7, 2}, [](Placing& p) { p.split(0, "tp"); });
  const Placement whole = Placing(Mesh(), 0, "w", {7, 2}).placement();
  std::uint64_t sum = 0;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Placement& placement = placements[static_cast<std::size_t>(rank)];
    EXPECT_EQ(is_first_copy(mesh, rank, {"dp"}), rank < 3);
    if (is_first_copy(mesh, rank, {"dp"})) sum += tensor_hash(placement, memory_of(placement, 4), 4);
  }
  EXPECT_EQ(sum, tensor_hash(whole, memory_of(whole, 4), 4));
}

TEST(TensorHash, SeesEveryBitAndEveryExchange) {
  for (const std::size_t element_bytes : {1, 2, 4, 8}) {
    SCOPED_TRACE(element_bytes);
    const Placement whole = Placing(Mesh(), 0, "w", {64}).placement();
    std::vector<std::byte> bytes(64 * element_bytes);
    for (std::size_t i = 0; i < 64; ++i) bytes[i * element_bytes] = static_cast<std::byte>(i);
    std::set<std::uint64_t> seen{tensor_hash(whole, bytes, element_bytes)};
    std::size_t changes = 1;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit, ++changes) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      seen.insert(tensor_hash(whole, bytes, element_bytes));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    // Sign bits flipped in pairs, and pairs of elements exchanged.
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = i + 1; j < 64; ++j, changes += 2) {
        std::byte &one = bytes[(i + 1) * element_bytes - 1], &two = bytes[(j + 1) * element_bytes - 1];
        one ^= std::byte{0x80}, two ^= std::byte{0x80};
        seen.insert(tensor_hash(whole, bytes, element_bytes));
        one ^= std::byte{0x80}, two ^= std::byte{0x80};
        std::swap(bytes[i * element_bytes], bytes[j * element_bytes]);
        seen.insert(tensor_hash(whole, bytes, element_bytes));
        std::swap(bytes[i * element_bytes], bytes[j * element_bytes]);
      }
    }
    EXPECT_EQ(seen.size(), changes);
  }
}

TEST(TensorHash, SpreadsAChangeOverAllBits) {
  // A changed input bit flips each output bit half of the time: 4096 trials, so 2048 +- 32 (one standard deviation).
  for (const int bit : {0, 7, 15, 31, 63}) {
    std::vector<int> flips(64);
    for (Index i = 0; i < 4096; ++i) {
      const std::uint64_t change = mix(i, 0) ^ mix(i, std::uint64_t{1} << bit);
      for (std::size_t b = 0; b < 64; ++b) flips[b] += static_cast<int>(change >> b & 1);
    }
    EXPECT_GT(*std::ranges::min_element(flips), 2048 - 5 * 32) << bit;
    EXPECT_LT(*std::ranges::max_element(flips), 2048 + 5 * 32) << bit;
  }
}

TEST(TensorHash, KeysOfIndicesStayApart) {
  // What hash.cpp relies on: no index within reach of another by the bits of an element. Distances of keys depend only
  // on the distance of indices.
  std::uint64_t least = ~std::uint64_t{0};
  for (std::uint64_t distance = 1, key = 0; distance < 1 << 22; ++distance) {
    key += 0x9e3779b97f4a7c15;
    least = std::min({least, key, 0 - key});
  }
  EXPECT_GT(least, std::uint64_t{1} << 40);  // shrinks as 1 / distance, hence 2^32 at 2^30
}

TEST(TensorHash, StaysWhatItIs) {             // hashes are kept in logs of runs and compared with later ones
  EXPECT_EQ(mix(0, 0), 0xE220A8397B1DCDAFU);  // the first two numbers of SplitMix64 with seed 0
  EXPECT_EQ(mix(1, 0), 0x6E789E6AA1B965F4U);
  const Placement whole = Placing(Mesh(), 0, "w", {3, 4}).placement();
  EXPECT_EQ(tensor_hash(whole, memory_of(whole, 1), 1), 0xC233314CE2994549U);
  EXPECT_EQ(tensor_hash(whole, memory_of(whole, 2), 2), 0x301CA8ED24584775U);
  EXPECT_EQ(tensor_hash(whole, memory_of(whole, 4), 4), 0x795A1D3C1C016E4EU);
  EXPECT_EQ(tensor_hash(whole, memory_of(whole, 8), 8), 0x1FD36791F68646CBU);
}

TEST(TensorHash, RefusesWhatDoesNotFit) {
  const Placement whole = Placing(Mesh(), 0, "w", {3}).placement();
  EXPECT_THROW(tensor_hash(whole, std::vector<std::byte>(11), 4), InternalError);
  EXPECT_THROW(tensor_hash(whole, std::vector<std::byte>(9), 3), ConfigError);
  EXPECT_THROW(tensor_hash(whole, {}, 0), ConfigError);
  EXPECT_THROW(tensor_hash(runs(whole), std::vector<std::byte>(8), 4), InternalError);
}

}  // namespace
}  // namespace trireme::layout
