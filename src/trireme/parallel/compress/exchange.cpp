#include "trireme/parallel/compress/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {

void CopyExchange::sum(at::Tensor& tensor) { start_sum(tensor).wait(); }

comm::Work CopyExchange::start_sum(at::Tensor& tensor) {
  if (group_ == nullptr || tensor.numel() == 0) return {};
  sent_bytes_ += 2.0 * (copies() - 1) / copies() * static_cast<double>(tensor.nbytes());
  return group_->all_reduce(device::to_buffer(tensor), comm::Reduce::kSum);
}

std::vector<Message> CopyExchange::all_gather(const Message& mine) {
  if (group_ == nullptr) return {mine};
  const auto copies = static_cast<std::size_t>(group_->size());
  std::vector<std::int64_t> lengths(copies);
  const auto length = static_cast<std::int64_t>(mine.size());
  group_
      ->all_gather(comm::ConstBuffer{&length, 1, comm::DType::kI64},
                   comm::Buffer{lengths.data(), copies, comm::DType::kI64})
      .wait();
  sent_bytes_ += static_cast<double>(8 * (copies - 1));
  return all_gather(mine, {lengths.begin(), lengths.end()});
}

std::vector<Message> CopyExchange::all_gather_equal(const Message& mine) {
  return all_gather(mine, std::vector<std::size_t>(static_cast<std::size_t>(copies()), mine.size()));
}

std::vector<Message> CopyExchange::all_gather(const Message& mine, const std::vector<std::size_t>& lengths) {
  if (group_ == nullptr) return {mine};
  TRIREME_CHECK(mine.size() == lengths.at(static_cast<std::size_t>(copy())), "{} bytes, but {} are expected",
                mine.size(), lengths.at(static_cast<std::size_t>(copy())));
  Message all(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
  group_
      ->all_gather_v(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kU8},
                     comm::Buffer{all.data(), all.size(), comm::DType::kU8}, lengths)
      .wait();
  sent_bytes_ += static_cast<double>(mine.size() * (lengths.size() - 1));
  std::vector<Message> messages;
  auto at = all.begin();
  for (const std::size_t length : lengths) {
    messages.emplace_back(at, at + static_cast<std::ptrdiff_t>(length));
    at += static_cast<std::ptrdiff_t>(length);
  }
  return messages;
}

std::vector<Message> CopyExchange::all_to_all(const std::vector<Message>& mine) {
  if (group_ == nullptr) return mine;
  const auto copies = static_cast<std::size_t>(group_->size());
  TRIREME_CHECK(mine.size() == copies, "{} messages for {} copies", mine.size(), copies);
  const std::size_t incoming = mine[static_cast<std::size_t>(copy())].size();
  std::vector<std::size_t> send, receive(copies, incoming);
  Message out, in(incoming * copies);
  for (std::size_t i = 0; i < copies; ++i) {
    send.push_back(mine[i].size());
    out.insert(out.end(), mine[i].begin(), mine[i].end());
    if (static_cast<int>(i) != copy()) sent_bytes_ += static_cast<double>(mine[i].size());
  }
  group_
      ->all_to_all_v(comm::ConstBuffer{out.data(), out.size(), comm::DType::kU8},
                     comm::Buffer{in.data(), in.size(), comm::DType::kU8}, send, receive)
      .wait();
  std::vector<Message> messages;
  for (std::size_t i = 0; i < copies; ++i) {
    const auto at = in.begin() + static_cast<std::ptrdiff_t>(i * incoming);
    messages.emplace_back(at, at + static_cast<std::ptrdiff_t>(incoming));
  }
  return messages;
}

at::Tensor CopyExchange::all_to_all(const at::Tensor& mine) {
  if (group_ == nullptr) return mine;
  TRIREME_CHECK(mine.size(0) == copies(), "{} messages for {} copies", mine.size(0), copies());
  at::Tensor in = at::empty_like(mine);
  if (mine.numel() == 0) return in;
  group_->all_to_all(device::to_const_buffer(mine), device::to_buffer(in)).wait();
  sent_bytes_ += static_cast<double>(mine.numel() / copies() * (copies() - 1));
  return in;
}

at::Tensor CopyExchange::all_gather(const at::Tensor& mine) {
  if (group_ == nullptr) return mine.view({1, -1});
  at::Tensor all = at::empty({copies(), mine.numel()}, mine.options());
  if (mine.numel() == 0) return all;
  group_->all_gather(device::to_const_buffer(mine), device::to_buffer(all)).wait();
  sent_bytes_ += static_cast<double>(mine.numel() * (copies() - 1));
  return all;
}

std::vector<std::size_t> lengths_of(const std::vector<Message>& messages) {
  std::vector<std::size_t> lengths;
  for (const Message& message : messages) lengths.push_back(message.size());
  return lengths;
}

double CopyExchange::take_sent_bytes() { return std::exchange(sent_bytes_, 0.0); }

const std::uint8_t* MessageReader::take_bytes(std::size_t bytes) {
  TRIREME_CHECK(bytes <= left(), "a compressed message has {} bytes left, but {} are read", left(), bytes);
  return std::exchange(at_, at_ + bytes);
}

}  // namespace trireme::parallel
