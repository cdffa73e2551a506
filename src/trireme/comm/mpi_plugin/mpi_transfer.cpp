#include "trireme/comm/mpi_plugin/mpi_transfer.h"

#include <chrono>
#include <cstring>

#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::comm {
namespace {

constexpr std::size_t kHeaderRoom = sizeof(MessageHeader) + kShortMessage;
constexpr std::size_t kKept = 64;
// Tags of long messages: the bit that Envelope leaves to transports, and a number that counts up.
constexpr std::uint32_t kDataTag = 0x2000'0000u, kDataTagMask = 0x1fff'ffffu;

template <typename Post>
void post_long(std::byte* data, std::size_t bytes, std::vector<MPI_Request>& requests, Post&& post) {
  for (std::size_t at = 0; at < bytes; at += kLargestMessage) {
    requests.push_back(MPI_REQUEST_NULL);
    post(data + at, static_cast<int>(std::min(kLargestMessage, bytes - at)), &requests.back());
  }
}

}  // namespace

std::unique_ptr<std::byte[]> MpiResources::take_header() {
  if (header_buffers.empty()) return std::unique_ptr<std::byte[]>(new std::byte[kHeaderRoom]);
  auto buffer = std::move(header_buffers.back());
  header_buffers.pop_back();
  return buffer;
}

std::vector<std::byte> MpiResources::take_scratch(std::size_t bytes) {
  std::vector<std::byte> memory;
  if (!scratch.empty()) {
    memory = std::move(scratch.back());
    scratch.pop_back();
  }
  if (memory.size() < bytes) memory.resize(bytes);
  return memory;
}

MpiTransfer::MpiTransfer(MpiResources& resources) : resources_(resources), header_(resources.take_header()) {
  ++resources_.under_way;
}

MpiTransfer::~MpiTransfer() {
  --resources_.under_way;
  if (header_ && resources_.header_buffers.size() < kKept) resources_.header_buffers.push_back(std::move(header_));
}

bool MpiTransfer::test_requests(std::size_t first, std::size_t last) {
  const std::lock_guard calls(mpi_calls());
  for (std::size_t i = first; i < last; ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    int flag = 0;
    check_mpi(MPI_Test(&requests_[i], &flag, MPI_STATUS_IGNORE), "waiting for a message");
    if (flag == 0) return false;
  }
  return true;
}

MpiSend::MpiSend(MpiResources& resources, MPI_Comm comm, int peer, int tag, const CallKey& key, const void* data,
                 std::size_t bytes)
    : MpiTransfer(resources) {
  const std::lock_guard calls(mpi_calls());
  const bool is_short = bytes <= kShortMessage;
  MessageHeader header{.key = key, .bytes = bytes};
  if (!is_short) header.data_tag = static_cast<int>(kDataTag | (resources.long_messages++ & kDataTagMask));
  std::memcpy(header_.get(), &header, sizeof header);
  if (is_short && bytes != 0) std::memcpy(header_.get() + sizeof header, data, bytes);
  requests_.push_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Isend(header_.get(), static_cast<int>(sizeof header + (is_short ? bytes : 0)), MPI_BYTE, peer, tag,
                      comm, &requests_[0]),
            "sending a message");
  if (is_short) return;
  post_long(static_cast<std::byte*>(const_cast<void*>(data)), bytes, requests_,
            [&](std::byte* at, int n, MPI_Request* request) {
              check_mpi(MPI_Isend(at, n, MPI_BYTE, peer, header.data_tag, comm, request), "sending a message");
            });
}

Progress MpiSend::advance(Effort) {
  if (done_) return Progress::kDone;
  if (!test_requests(0, requests_.size())) return Progress::kStuck;
  done_ = true;
  return Progress::kDone;
}

void MpiSend::abandon() noexcept {
  if (done_) return;
  done_ = true;
  const std::lock_guard calls(mpi_calls());
  // A send cannot be taken back. The peer only reads; what it reads from now on it will not use, for its call has
  // failed too.
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  resources_.still_sending.push_back(std::move(header_));
}

MpiRecv::MpiRecv(MpiResources& resources, MPI_Comm comm, int peer, int tag, const CallKey& key, const Sink& sink)
    : MpiTransfer(resources), comm_(comm), peer_(peer), key_(key), sink_(sink) {
  const std::lock_guard calls(mpi_calls());
  requests_.push_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Irecv(header_.get(), static_cast<int>(kHeaderRoom), MPI_BYTE, peer, tag, comm, &requests_[0]),
            "receiving a message");
}

void MpiRecv::post_data(int tag) {
  const std::lock_guard calls(mpi_calls());
  if (sink_.from != nullptr) scratch_ = resources_.take_scratch(sink_.bytes());
  auto* to = sink_.from != nullptr ? scratch_.data() : static_cast<std::byte*>(sink_.to);
  post_long(to, sink_.bytes(), requests_, [&](std::byte* at, int n, MPI_Request* request) {
    check_mpi(MPI_Irecv(at, n, MPI_BYTE, peer_, tag, comm_, request), "receiving a message");
  });
}

MpiRecv::~MpiRecv() {
  abandon();
  if (!scratch_.empty()) resources_.scratch.push_back(std::move(scratch_));
}

Progress MpiRecv::finish(const void* arrived) {
  done_ = true;
  if (sink_.from != nullptr) {
    arithmetic(sink_.type, sink_.reduce).combine(sink_.to, sink_.from, arrived, sink_.count);
  } else if (arrived != sink_.to && sink_.count != 0) {
    std::memcpy(sink_.to, arrived, sink_.bytes());
  }
  return Progress::kDone;
}

Progress MpiRecv::advance(Effort effort) {
  if (done_) return Progress::kDone;
  bool moved = false;
  if (!header_seen_) {
    if (!test_requests(0, 1)) return Progress::kStuck;
    header_seen_ = moved = true;
    MessageHeader header;
    std::memcpy(&header, header_.get(), sizeof header);
    theirs = header.key;
    their_bytes = header.bytes;
    mismatched = theirs != key_ || their_bytes != sink_.bytes();
    if (mismatched) {
      abandon();
      return Progress::kDone;
    }
    if (sink_.bytes() <= kShortMessage) return finish(header_.get() + sizeof header);
    post_data(header.data_tag);
  }
  if (!test_requests(1, requests_.size())) return moved ? Progress::kMoved : Progress::kStuck;
  if (effort == Effort::kPost && sink_.from != nullptr) return Progress::kMoved;
  return finish(sink_.from != nullptr ? scratch_.data() : sink_.to);
}

void MpiRecv::abandon() noexcept {
  if (done_) return;
  done_ = true;
  const std::lock_guard calls(mpi_calls());
  using Clock = std::chrono::steady_clock;
  const auto patience = Clock::now() + std::chrono::seconds(2);
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    // Cancelled at once, unless the data is just coming in: then it ends soon, or its sender is dead.
    int flag = 0;
    while (flag == 0 && Clock::now() < patience) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    if (flag == 0) {
      MPI_Request_free(&request);
      resources_.still_sending.push_back(std::move(header_));
    }
  }
}

}  // namespace trireme::comm
