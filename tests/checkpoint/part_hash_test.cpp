// A part's hash by pieces of its file is the hash of its tensors, wherever the pieces are cut.
#include "trireme/checkpoint/part_hash.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "trireme/base/random.h"
#include "trireme/layout/hash.h"
#include "trireme/layout/placing.h"

namespace trireme::checkpoint {
namespace {

/// What rank 1 of two holds, split along the second dimension so that shares have many runs; and its bytes.
struct Part {
  SavePlan plan;
  PartPlan part;
  std::vector<std::vector<std::byte>> tensors, images;  // by their order in the file

  const std::vector<SaveShare>& shares() const { return plan.ranks[1]; }
  std::size_t element_bytes(std::size_t i) const {
    return static_cast<std::size_t>(formats::bits_of(part.header.tensors[part.header.by_offset[i]].dtype)) / 8;
  }
};

Part some_part() {
  using formats::Dtype;
  const std::vector<std::tuple<std::string, layout::Shape, Dtype>> tensors{{"a", {300, 1000}, Dtype::kF32},
                                                                           {"b", {7, 6}, Dtype::kU8},
                                                                           {"c", {3, 2}, Dtype::kF64},
                                                                           {"d", {129, 514}, Dtype::kBF16}};
  const layout::Mesh mesh = layout::parse_mesh("tp=2");
  std::vector<std::vector<HeldTensor>> holdings(2);
  Part part;
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto& [name, shape, dtype] : tensors) {
      const auto placement = layout::Placing(mesh, rank, name, shape).split(1, "tp").placement();
      holdings[static_cast<std::size_t>(rank)].push_back({dtype, placement});
    }
  }
  part.plan = plan_save(holdings);
  part.part = part_of(part.plan, 1);
  const Random random(1, "bytes");
  std::uint64_t drawn = 0;
  for (std::size_t i = 0; i < part.part.order.size(); ++i) {
    const SaveShare& share = part.shares()[part.part.order[i]];
    layout::Index elements = 0;
    for (const auto& run : share.runs) elements = std::max(elements, run.local + run.count);
    auto& tensor = part.tensors.emplace_back(static_cast<std::size_t>(elements) * part.element_bytes(i));
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(random.below(256, drawn++));
    auto& image = part.images.emplace_back();
    for (const auto& run : share.runs) {
      const auto from = tensor.begin() + run.local * static_cast<std::ptrdiff_t>(part.element_bytes(i));
      image.insert(image.end(), from, from + run.count * static_cast<std::ptrdiff_t>(part.element_bytes(i)));
    }
  }
  return part;
}

std::vector<std::uint64_t> plain(const Part& part) {
  std::vector<std::uint64_t> hashes(part.shares().size());
  for (std::size_t i = 0; i < part.part.order.size(); ++i) {
    const std::size_t at = part.part.order[i];
    hashes[at] = layout::tensor_hash(part.shares()[at].runs, part.tensors[i], part.element_bytes(i));
  }
  return hashes;
}

TEST(PartHash, ByPiecesIsThatOfTheTensorsWhereverTheyAreCut) {
  const Part part = some_part();
  const std::vector<std::uint64_t> whole = plain(part);
  const std::uint64_t bytes = part.part.header.file_bytes();
  const Random random(2, "cuts");
  std::uint64_t drawn = 0;
  for (const auto lie : {PartHash::Lie::kInTensor, PartHash::Lie::kInFile}) {
    const auto& memory = lie == PartHash::Lie::kInTensor ? part.tensors : part.images;
    for (const std::uint64_t longest : {bytes, std::uint64_t{100'000}, std::uint64_t{4096}, std::uint64_t{37}}) {
      PartHash hash(part.shares(), part.part, {memory.begin(), memory.end()}, lie);
      // Odd lengths: a piece may begin and end within an element, and hold several tensors or none.
      for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t end = std::min(bytes, longest == bytes ? bytes : at + 1 + random.below(longest, drawn++));
        hash.add(at, end);
        at = end;
      }
      EXPECT_EQ(hash.hashes(), whole) << longest;
    }
  }
}

TEST(PartHash, OfPiecesThatSeveralThreadsAddIsTheSame) {
  const Part part = some_part();
  const std::uint64_t bytes = part.part.header.file_bytes(), piece = 1000;
  PartHash hash(part.shares(), part.part, {part.tensors.begin(), part.tensors.end()}, PartHash::Lie::kInTensor);
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t at = thread * piece; at < bytes; at += 4 * piece) hash.add(at, std::min(bytes, at + piece));
      });
    }
  }
  EXPECT_EQ(hash.hashes(), plain(part));
}

}  // namespace
}  // namespace trireme::checkpoint
