// parallel/compress/exchange.h -- what copies of a model say to each other when they compress: sums, and messages of
// bytes.
//
// Built from all-reduce, all-gather and all-to-all, which every transport has. One copy alone talks to nobody and gets
// its own message back. Counts what it sends.
// Depends on: comm, device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::parallel {

using Message = std::vector<std::uint8_t>;

/// Bytes that go to other copies and come from them, by copy one after the other. Stays where it is while they travel.
struct Mail {
  Message out, in;
  std::vector<std::size_t> lengths = {};  ///< of what each copy sends to this one
};

class CopyExchange {
 public:
  /// Borrowed; null: one copy.
  explicit CopyExchange(comm::Group* group) : group_(group) {}

  int copies() const { return group_ != nullptr ? group_->size() : 1; }
  int copy() const { return group_ != nullptr ? group_->rank() : 0; }
  comm::Group* group() const { return group_; }

  /// The sum over copies, in place.
  void sum(at::Tensor& tensor);
  /// Started only; `tensor` stays where it is until the work is over.
  comm::Work start_sum(at::Tensor& tensor);
  /// How long each copy's message is, by copy, where copies cannot know.
  comm::Work start_lengths(std::int64_t mine, std::vector<std::int64_t>& lengths);
  /// mail.out to all copies; mail.lengths says what comes.
  comm::Work start_all_gather(Mail& mail);
  /// Message i of `mine` to copy i; all of the length that this one's to itself has come in.
  comm::Work start_all_to_all(const std::vector<Message>& mine, Mail& mail);

  // The same, waiting.
  /// Every copy's message, by copy.
  std::vector<Message> all_gather(const Message& mine, const std::vector<std::size_t>& lengths);
  /// Message i of `mine` to copy i; what each copy sent to this one, all of the length that this one's to itself has.
  std::vector<Message> all_to_all(const std::vector<Message>& mine);
  /// The same of bytes in any memory, all messages of one length: row i of [copies, length] to copy i, and what each
  /// copy sent to this one.
  at::Tensor all_to_all(const at::Tensor& mine);
  /// [length] of each copy as [copies, length].
  at::Tensor all_gather(const at::Tensor& mine);

  /// Until it is over, which counts as waiting.
  void wait(comm::Work work);

  /// By this copy, since take_sent_bytes() was called last.
  double take_sent_bytes();
  /// In sum(), wait() and the calls that wait, since this was called last.
  double take_waited_seconds();

 private:
  comm::Group* group_;
  double sent_bytes_ = 0, waited_seconds_ = 0;
};

/// Two groups of the same copies, for methods of two exchanges: buckets are under way in both at once.
struct ExchangeLanes {
  CopyExchange first, second;
};

/// How long each message is.
std::vector<std::size_t> lengths_of(const std::vector<Message>& messages);

/// Numbers into and out of a message.
template <typename T>
void put(Message& message, const T* values, std::size_t count) {
  const std::size_t at = message.size();
  message.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(message.data() + at, values, count * sizeof(T));
}
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::uint8_t> message) : at_(message.data()), end_(at_ + message.size()) {}
  template <typename T>
  void take(T* values, std::size_t count) {
    if (count > 0) std::memcpy(values, take_bytes(count * sizeof(T)), count * sizeof(T));
  }
  const std::uint8_t* take_bytes(std::size_t bytes);
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

 private:
  const std::uint8_t *at_, *end_;
};

/// One for each copy's message.
std::vector<MessageReader> readers_of(const Mail& mail);

/// The part of `count` things that copy `copy` of `copies` looks after.
struct Share1D {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
inline Share1D share_of_copy(std::int64_t count, int copy, int copies) {
  return {count * copy / copies, count * (copy + 1) / copies};
}

}  // namespace trireme::parallel
