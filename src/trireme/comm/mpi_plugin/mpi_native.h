// comm/mpi_plugin/mpi_native.h -- MPI's own collectives, in their non-blocking forms.
//
// The blocking forms would be quicker, but two ranks that enter two of them in different orders would wait for ever.
// Depends on: operation.h, MPI.
#pragma once

#include <vector>

#include "trireme/comm/mpi_plugin/mpi_common.h"
#include "trireme/comm/operation.h"

namespace trireme::comm {

class MpiNative final : public Operation {
 public:
  /// `under_way` counts what MPI has in hand. Without `agreed` the ranks compare their calls first.
  MpiNative(MPI_Comm comm, const Call& call, bool agreed, int& under_way);
  ~MpiNative() override;

  Progress advance(Effort effort) override;
  bool has_started() const override { return phase_ == Phase::kRun || phase_ == Phase::kDone; }
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return 0; }  // told by GuardedOperation, which wraps this

 private:
  enum class Phase : std::uint8_t { kAgree, kStart, kRun, kDone };
  void start();
  const int* ints(const Blocks& blocks, std::vector<int>& counts, std::vector<int>& displacements);
  bool test();

  MPI_Comm comm_;
  Call call_;
  int& under_way_;
  int rank_ = 0, ranks_ = 1;
  Phase phase_;
  std::vector<CallKey> keys_;
  std::vector<int> counts_, displacements_, recv_counts_, recv_displacements_;
  std::vector<std::byte> aside_;  // the result, where MPI's in-place form differs from ours
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace trireme::comm
