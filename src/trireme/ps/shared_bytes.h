// ps/shared_bytes.h -- values of a message without copies: bytes that nobody changes any more, and a stretch of them.
//
// A push of a large model is cut into messages, waits for credit, is sent again when a view changes, and on the other
// side lies behind the keys of the mail it came in: all of these are stretches of one memory.
// Depends on: std.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace trireme::ps {

class SharedBytes {
 public:
  SharedBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a message takes bytes as they are made
  SharedBytes(std::vector<std::byte> bytes)
      : owner_(std::make_shared<const std::vector<std::byte>>(std::move(bytes))), view_(*owner_) {}
  /// The stretch, of bytes that were shared before.
  SharedBytes(std::shared_ptr<const std::vector<std::byte>> owner, std::size_t begin, std::size_t size)
      : owner_(std::move(owner)), view_(std::span(*owner_).subspan(begin, size)) {}

  const std::byte* data() const { return view_.data(); }
  std::size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  const std::byte* begin() const { return view_.data(); }
  const std::byte* end() const { return view_.data() + view_.size(); }
  bool operator==(const SharedBytes& other) const { return std::ranges::equal(view_, other.view_); }

 private:
  std::shared_ptr<const std::vector<std::byte>> owner_;  // by all messages that are stretches of it
  std::span<const std::byte> view_;
};

}  // namespace trireme::ps
