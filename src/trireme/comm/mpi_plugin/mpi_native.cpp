#include "trireme/comm/mpi_plugin/mpi_native.h"

#include <climits>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/group.h"

namespace trireme::comm {

MpiNative::MpiNative(MPI_Comm comm, const Call& call, bool agreed, int& under_way)
    : comm_(comm), call_(call), under_way_(under_way), phase_(agreed ? Phase::kStart : Phase::kAgree) {
  const std::lock_guard calls(mpi_calls());
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &ranks_);
  ++under_way_;
}

MpiNative::~MpiNative() { --under_way_; }

bool MpiNative::test() {
  const std::lock_guard calls(mpi_calls());
  int flag = 0;
  check_mpi(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE), "waiting for MPI's collective");
  return flag != 0;
}

Progress MpiNative::advance(Effort effort) {
  bool moved = false;
  if (phase_ == Phase::kAgree) {
    if (keys_.empty()) {
      keys_.resize(static_cast<std::size_t>(ranks_));
      const std::lock_guard calls(mpi_calls());
      check_mpi(MPI_Iallgather(&call_.key, sizeof(CallKey), MPI_BYTE, keys_.data(), sizeof(CallKey), MPI_BYTE, comm_,
                               &request_),
                "comparing calls");
    }
    if (!test()) return Progress::kStuck;
    for (int r = 0; r < ranks_; ++r) {
      const CallKey& theirs = keys_[static_cast<std::size_t>(r)];
      if (theirs != call_.key) group_of(*this).raise_mismatch(*this, r, theirs);
    }
    phase_ = Phase::kStart;
    moved = true;
  }
  if (phase_ == Phase::kStart) {
    start();
    phase_ = Phase::kRun;
    moved = true;
  }
  if (phase_ == Phase::kRun) {
    if (!test()) return moved ? Progress::kMoved : Progress::kStuck;
    if (effort == Effort::kPost && call_.key.reduce == Reduce::kAvg) return Progress::kMoved;
    if (!aside_.empty()) std::memcpy(call_.out, aside_.data(), aside_.size());
    const bool has_result = call_.key.op == Op::kReduce ? rank_ == call_.key.root : reduces(call_.key.op);
    if (call_.key.reduce == Reduce::kAvg && has_result) {
      const std::size_t count = call_.key.op == Op::kReduceScatter ? call_.blocks.count(rank_) : call_.key.count;
      arithmetic(call_.key.type, Reduce::kAvg).divide(call_.out, count, ranks_);
    }
    phase_ = Phase::kDone;
  }
  return Progress::kDone;
}

const int* MpiNative::ints(const Blocks& blocks, std::vector<int>& counts, std::vector<int>& displacements) {
  for (int r = 0; r < ranks_; ++r) {
    counts.push_back(static_cast<int>(blocks.count(r)));
    displacements.push_back(static_cast<int>(blocks.begin(r)));
  }
  return counts.data();
}

void MpiNative::start() {
  const std::lock_guard calls(mpi_calls());
  if (call_.key.count > INT_MAX) {
    throw CommError(fmt::format("{}: MPI counts at most {} elements", describe(call_.key), INT_MAX),
                    "use another algorithm than 'native', or cut the buffer");
  }
  const MPI_Datatype type = mpi_type(call_.key.type);
  const int count = static_cast<int>(call_.key.count), root = call_.key.root;
  const bool uneven = call_.blocks.offsets != nullptr;
  const int block = static_cast<int>(call_.blocks.equal);
  const std::size_t element = call_.element();
  const auto* in = static_cast<const std::byte*>(call_.in);
  auto* out = static_cast<std::byte*>(call_.out);
  // In place: the own block of the larger buffer is the smaller buffer.
  const std::size_t own = call_.blocks.begin(rank_) * element;
  const void* whole_in = in == out ? MPI_IN_PLACE : in;
  const void* block_in = out != nullptr && in == out + own ? MPI_IN_PLACE : in;
  void* block_out = in != nullptr && out == in + own ? MPI_IN_PLACE : out;
  if (uneven) ints(call_.blocks, counts_, displacements_);
  const int mine = uneven ? counts_[static_cast<std::size_t>(rank_)] : block;
  int code = MPI_SUCCESS;
  switch (call_.key.op) {
    case Op::kAllReduce:
      code = MPI_Iallreduce(whole_in, out, count, type, mpi_op(call_.key.type, call_.key.reduce), comm_, &request_);
      break;
    case Op::kReduce: {
      const void* source = rank_ == root ? whole_in : in;
      code = MPI_Ireduce(source, out, count, type, mpi_op(call_.key.type, call_.key.reduce), root, comm_, &request_);
      break;
    }
    case Op::kReduceScatter: {
      if (counts_.empty()) ints(call_.blocks, counts_, displacements_);
      // MPI's in-place form puts the result at the start, ours at the block: that goes by way of a copy.
      if (block_out == MPI_IN_PLACE) aside_.resize(call_.blocks.count(rank_) * element);
      code = MPI_Ireduce_scatter(in, aside_.empty() ? out : aside_.data(), counts_.data(), type,
                                 mpi_op(call_.key.type, call_.key.reduce), comm_, &request_);
      break;
    }
    case Op::kAllGather:
      code = uneven ? MPI_Iallgatherv(block_in, mine, type, out, counts_.data(), displacements_.data(), type, comm_,
                                      &request_)
                    : MPI_Iallgather(block_in, mine, type, out, block, type, comm_, &request_);
      break;
    case Op::kGather: {
      const void* source = rank_ == root ? block_in : in;
      code = uneven ? MPI_Igatherv(source, mine, type, out, counts_.data(), displacements_.data(), type, root, comm_,
                                   &request_)
                    : MPI_Igather(source, mine, type, out, block, type, root, comm_, &request_);
      break;
    }
    case Op::kScatter: {
      void* target = rank_ == root ? block_out : out;
      code = uneven ? MPI_Iscatterv(in, counts_.data(), displacements_.data(), type, target, mine, type, root, comm_,
                                    &request_)
                    : MPI_Iscatter(in, block, type, target, mine, type, root, comm_, &request_);
      break;
    }
    case Op::kBroadcast:
      code = MPI_Ibcast(out, count, type, root, comm_, &request_);
      break;
    case Op::kAllToAll:
      if (uneven) {
        ints(call_.recv_blocks, recv_counts_, recv_displacements_);
        code = MPI_Ialltoallv(in, counts_.data(), displacements_.data(), type, out, recv_counts_.data(),
                              recv_displacements_.data(), type, comm_, &request_);
      } else {
        code = MPI_Ialltoall(whole_in, block, type, out, block, type, comm_, &request_);
      }
      break;
    default:
      code = MPI_Ibarrier(comm_, &request_);
      break;
  }
  check_mpi(code, "starting MPI's collective");
}

void MpiNative::abandon() noexcept {
  // MPI cannot take a collective back; the ranks of this group end after this failure.
}

}  // namespace trireme::comm
