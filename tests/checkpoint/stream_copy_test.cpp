#include "trireme/checkpoint/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::checkpoint {
namespace {

/// Every offset within a line on both sides, sizes below, at and beyond a line; nothing beside the stretch is touched.
TEST(StreamCopy, IsAPlainCopyAtAnyAlignment) {
  constexpr std::size_t kRoom = 1024;
  std::vector<std::byte> from(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t to_offset = 0; to_offset < 64; ++to_offset) {
    for (const std::size_t from_offset : {0, 1, 16, 63}) {
      for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 128, 700}) {
        std::vector<std::byte> to(kRoom, std::byte{0}), expected = to;
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_offset), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(to_offset));
        stream_copy(to.data() + to_offset, from.data() + from_offset, bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes from " << from_offset << " to " << to_offset;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
