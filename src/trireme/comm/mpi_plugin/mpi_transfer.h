// comm/mpi_plugin/mpi_transfer.h -- sends and receives over MPI, each led by a header with the call's key.
//
// A short message travels behind its header in one MPI message. A long one follows it under a tag of its own, which the
// header names; its receive is posted when the header has been found to match, and goes straight into place. So nothing
// a peer may wrongly send can be taken for something else, or be longer than the memory it goes into.
// Depends on: transport.h, MPI.
#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/mpi_plugin/mpi_common.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

inline constexpr std::size_t kShortMessage = 4096;

struct MessageHeader {
  CallKey key;
  std::uint64_t bytes = 0;
  std::int32_t data_tag = 0;  // of what follows a header without data
};

/// Memory used again and again, and the count of what is under way.
struct MpiResources {
  std::vector<std::unique_ptr<std::byte[]>> header_buffers;  // each of sizeof(MessageHeader) + kShortMessage
  std::vector<std::vector<std::byte>> scratch;               // for what is combined after it has arrived
  std::vector<std::unique_ptr<std::byte[]>> still_sending;   // given up while MPI may still read them
  int under_way = 0;
  std::uint32_t long_messages = 0;  // sent so far

  std::unique_ptr<std::byte[]> take_header();
  std::vector<std::byte> take_scratch(std::size_t bytes);
};

class MpiTransfer : public Transfer {
 public:
  explicit MpiTransfer(MpiResources& resources);
  ~MpiTransfer() override;
  MpiTransfer(const MpiTransfer&) = delete;
  MpiTransfer& operator=(const MpiTransfer&) = delete;

 protected:
  /// Whether all requests have finished.
  bool test_requests(std::size_t first, std::size_t last);

  MpiResources& resources_;
  std::unique_ptr<std::byte[]> header_;
  std::vector<MPI_Request> requests_;  // the header's first
  bool done_ = false;
};

class MpiSend final : public MpiTransfer {
 public:
  MpiSend(MpiResources& resources, MPI_Comm comm, int peer, int tag, const CallKey& key, const void* data,
          std::size_t bytes);
  ~MpiSend() override { abandon(); }
  Progress advance(Effort effort) override;
  void abandon() noexcept override;
};

class MpiRecv final : public MpiTransfer {
 public:
  MpiRecv(MpiResources& resources, MPI_Comm comm, int peer, int tag, const CallKey& key, const Sink& sink);
  ~MpiRecv() override;
  Progress advance(Effort effort) override;
  void abandon() noexcept override;

 private:
  Progress finish(const void* arrived);
  void post_data(int tag);

  MPI_Comm comm_;
  int peer_;
  CallKey key_;
  Sink sink_;
  bool header_seen_ = false;
  std::vector<std::byte> scratch_;
};

}  // namespace trireme::comm
