#include "trireme/dataflow/message.h"

#include <cstring>

#include "trireme/base/error.h"

namespace trireme::dataflow {
namespace {

/// What stands before the payload.
struct MessageHead {
  std::int32_t backward, node, port, instance, position;
};

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  const MessageHead head{message.backward ? 1 : 0, message.node, message.port, message.state.instance,
                         message.state.position};
  std::vector<std::byte> bytes(sizeof head + message.payload.size() * sizeof(double));
  std::memcpy(bytes.data(), &head, sizeof head);
  if (!message.payload.empty())
    std::memcpy(bytes.data() + sizeof head, message.payload.data(), message.payload.size() * sizeof(double));
  return bytes;
}

Message decode_message(std::span<const std::byte> bytes) {
  MessageHead head{};
  TRIREME_CHECK(bytes.size() >= sizeof head && (bytes.size() - sizeof head) % sizeof(double) == 0,
                "{} bytes are no message of a graph", bytes.size());
  std::memcpy(&head, bytes.data(), sizeof head);
  Message message{.backward = head.backward != 0,
                  .node = head.node,
                  .port = head.port,
                  .state = {head.instance, head.position},
                  .payload = Payload((bytes.size() - sizeof head) / sizeof(double))};
  if (!message.payload.empty())
    std::memcpy(message.payload.data(), bytes.data() + sizeof head, message.payload.size() * sizeof(double));
  return message;
}

}  // namespace trireme::dataflow
