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
  /// Every copy's message, by copy. Lengths are told first, which takes a round of its own.
  std::vector<Message> all_gather(const Message& mine);
  /// The same where every copy knows how long each one's is.
  std::vector<Message> all_gather(const Message& mine, const std::vector<std::size_t>& lengths);
  /// Where all have one length.
  std::vector<Message> all_gather_equal(const Message& mine);
  /// Message i of `mine` to copy i; what each copy sent to this one, all of the length that this one's to itself has.
  std::vector<Message> all_to_all(const std::vector<Message>& mine);
  /// The same of bytes in any memory, all messages of one length: row i of [copies, length] to copy i, and what each
  /// copy sent to this one.
  at::Tensor all_to_all(const at::Tensor& mine);
  /// [length] of each copy as [copies, length].
  at::Tensor all_gather(const at::Tensor& mine);

  /// By this copy, since take_sent_bytes() was called last.
  double take_sent_bytes();

 private:
  comm::Group* group_;
  double sent_bytes_ = 0;
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
  explicit MessageReader(const Message& message) : at_(message.data()), end_(at_ + message.size()) {}
  template <typename T>
  void take(T* values, std::size_t count) {
    if (count > 0) std::memcpy(values, take_bytes(count * sizeof(T)), count * sizeof(T));
  }
  const std::uint8_t* take_bytes(std::size_t bytes);
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

 private:
  const std::uint8_t *at_, *end_;
};

/// The part of `count` things that copy `copy` of `copies` looks after.
struct Share1D {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
inline Share1D share_of_copy(std::int64_t count, int copy, int copies) {
  return {count * copy / copies, count * (copy + 1) / copies};
}

}  // namespace trireme::parallel
