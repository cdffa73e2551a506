// dataflow/message.h -- what travels along the edges of a graph: a payload, and the state that says where it belongs.
//
// Depends on: base.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::dataflow {

using Payload = std::vector<double>;

/// The instance that a payload belongs to, and its place in it: a position of a sequence, a node of a tree. A key of an
/// instance is this value; control flow is a function of it.
struct State {
  std::int32_t instance = 0;
  std::int32_t position = 0;
  auto operator<=>(const State&) const = default;
};

struct Message {
  bool backward = false;
  std::int32_t node = 0;  ///< that it is for
  std::int32_t port = 0;  ///< forward: an input of that node; backward: an output
  State state = {};
  Payload payload = {};
  bool operator==(const Message&) const = default;
};

std::vector<std::byte> encode(const Message& message);
/// An internal error where the bytes are no message.
Message decode_message(std::span<const std::byte> bytes);

}  // namespace trireme::dataflow
