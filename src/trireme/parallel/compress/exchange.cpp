#include "trireme/parallel/compress/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <chrono>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {

namespace {

std::vector<Message> messages_of(const Mail& mail) {
  std::vector<Message> messages;
  auto at = mail.in.begin();
  for (const std::size_t length : mail.lengths) {
    messages.emplace_back(at, at + static_cast<std::ptrdiff_t>(length));
    at += static_cast<std::ptrdiff_t>(length);
  }
  return messages;
}

}  // namespace

void CopyExchange::sum(at::Tensor& tensor) { wait(start_sum(tensor)); }

void CopyExchange::wait(comm::Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work.wait();
  waited_seconds_ += seconds_since(begin);
}

comm::Work CopyExchange::start_sum(at::Tensor& tensor) {
  if (group_ == nullptr || tensor.numel() == 0) return {};
  sent_bytes_ += 2.0 * (copies() - 1) / copies() * static_cast<double>(tensor.nbytes());
  return group_->all_reduce(device::to_buffer(tensor), comm::Reduce::kSum);
}

comm::Work CopyExchange::start_lengths(std::int64_t mine, std::vector<std::int64_t>& lengths) {
  lengths.assign(static_cast<std::size_t>(copies()), mine);
  if (group_ == nullptr) return {};
  sent_bytes_ += static_cast<double>(8 * (copies() - 1));
  // In place: this copy's block of the output.
  return group_->all_gather(comm::ConstBuffer{&lengths[static_cast<std::size_t>(copy())], 1, comm::DType::kI64},
                            comm::Buffer{lengths.data(), lengths.size(), comm::DType::kI64});
}

comm::Work CopyExchange::start_all_gather(Mail& mail) {
  const std::size_t own = mail.lengths.at(static_cast<std::size_t>(copy()));
  TRIREME_CHECK(mail.out.size() == own, "{} bytes, but {} are expected", mail.out.size(), own);
  if (group_ == nullptr) {
    mail.in = mail.out;
    return {};
  }
  mail.in.resize(std::accumulate(mail.lengths.begin(), mail.lengths.end(), std::size_t{0}));
  sent_bytes_ += static_cast<double>(mail.out.size() * (mail.lengths.size() - 1));
  return group_->all_gather_v(comm::ConstBuffer{mail.out.data(), mail.out.size(), comm::DType::kU8},
                              comm::Buffer{mail.in.data(), mail.in.size(), comm::DType::kU8}, mail.lengths);
}

comm::Work CopyExchange::start_all_to_all(const std::vector<Message>& mine, Mail& mail) {
  const auto copies = static_cast<std::size_t>(this->copies()), me = static_cast<std::size_t>(copy());
  TRIREME_CHECK(mine.size() == copies, "{} messages for {} copies", mine.size(), copies);
  mail.lengths.assign(copies, mine[me].size());
  if (group_ == nullptr) {
    mail.in = mine.front();
    return {};
  }
  mail.out.clear();
  for (std::size_t i = 0; i < copies; ++i) {
    mail.out.insert(mail.out.end(), mine[i].begin(), mine[i].end());
    if (i != me) sent_bytes_ += static_cast<double>(mine[i].size());
  }
  mail.in.resize(mine[me].size() * copies);
  return group_->all_to_all_v(comm::ConstBuffer{mail.out.data(), mail.out.size(), comm::DType::kU8},
                              comm::Buffer{mail.in.data(), mail.in.size(), comm::DType::kU8}, lengths_of(mine),
                              mail.lengths);
}

std::vector<Message> CopyExchange::all_gather(const Message& mine, const std::vector<std::size_t>& lengths) {
  Mail mail{.out = mine, .lengths = lengths};
  wait(start_all_gather(mail));
  return messages_of(mail);
}

std::vector<Message> CopyExchange::all_to_all(const std::vector<Message>& mine) {
  Mail mail;
  wait(start_all_to_all(mine, mail));
  return messages_of(mail);
}

at::Tensor CopyExchange::all_to_all(const at::Tensor& mine) {
  if (group_ == nullptr) return mine;
  TRIREME_CHECK(mine.size(0) == copies(), "{} messages for {} copies", mine.size(0), copies());
  at::Tensor in = at::empty_like(mine);
  if (mine.numel() == 0) return in;
  wait(group_->all_to_all(device::to_const_buffer(mine), device::to_buffer(in)));
  sent_bytes_ += static_cast<double>(mine.numel() / copies() * (copies() - 1));
  return in;
}

at::Tensor CopyExchange::all_gather(const at::Tensor& mine) {
  if (group_ == nullptr) return mine.view({1, -1});
  at::Tensor all = at::empty({copies(), mine.numel()}, mine.options());
  if (mine.numel() == 0) return all;
  wait(group_->all_gather(device::to_const_buffer(mine), device::to_buffer(all)));
  sent_bytes_ += static_cast<double>(mine.numel() * (copies() - 1));
  return all;
}

std::vector<std::size_t> lengths_of(const std::vector<Message>& messages) {
  std::vector<std::size_t> lengths;
  for (const Message& message : messages) lengths.push_back(message.size());
  return lengths;
}

std::vector<MessageReader> readers_of(const Mail& mail) {
  std::vector<MessageReader> readers;
  std::span<const std::uint8_t> left = mail.in;
  for (const std::size_t length : mail.lengths) {
    readers.emplace_back(left.first(length));
    left = left.subspan(length);
  }
  return readers;
}

double CopyExchange::take_sent_bytes() { return std::exchange(sent_bytes_, 0.0); }

double CopyExchange::take_waited_seconds() { return std::exchange(waited_seconds_, 0.0); }

const std::uint8_t* MessageReader::take_bytes(std::size_t bytes) {
  TRIREME_CHECK(bytes <= left(), "a compressed message has {} bytes left, but {} are read", left(), bytes);
  return std::exchange(at_, at_ + bytes);
}

}  // namespace trireme::parallel
