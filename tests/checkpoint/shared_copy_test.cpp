#include "trireme/checkpoint/shared_copy.h"

#include <gtest/gtest.h>

#include <thread>

namespace trireme::checkpoint {
namespace {

/// Pieces of no, few and many bytes, none of them a multiple of a chunk.
TEST(SharedCopy, IsThePiecesOneBehindTheOtherHoweverManyCopy) {
  const std::size_t sizes[] = {0, 1, 63, (2 << 20) + 5, 4096, (5 << 20) - 3};
  std::vector<std::vector<std::byte>> from;
  std::vector<std::byte> expected;
  for (const std::size_t size : sizes) {
    std::vector<std::byte>& piece = from.emplace_back(size);
    for (std::size_t i = 0; i < size; ++i) piece[i] = static_cast<std::byte>(i * 31 + size + (i >> 11));
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  std::vector<formats::PieceOfMemory> pieces;
  for (const auto& piece : from) pieces.push_back({piece.data(), piece.size()});
  for (const int helpers : {0, 1, 3}) {
    std::vector<std::byte> to(expected.size() + 1, std::byte{0});
    SharedCopy copy(to.data(), pieces);
    std::vector<std::thread> threads;
    for (int i = 0; i < helpers; ++i) threads.emplace_back([&] { copy.help(); });
    copy.finish();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), to.begin())) << helpers << " helpers";
    EXPECT_EQ(to.back(), std::byte{0});
    for (std::thread& thread : threads) thread.join();
    copy.finish();  // again: nothing is left
  }
}

TEST(SharedCopy, OfNothingIsThere) {
  SharedCopy copy(nullptr, {});
  copy.help();
  copy.finish();
}

}  // namespace
}  // namespace trireme::checkpoint
