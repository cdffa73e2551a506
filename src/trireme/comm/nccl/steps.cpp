#include "trireme/comm/nccl/steps.h"

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using StepAct = NcclStep::Act;

class Steps {
 public:
  Steps(const Call& call, int rank, int ranks) : call_(call), rank_(rank), ranks_(ranks) {}

  std::vector<NcclStep> take() {
    const int root = call_.key.root;
    const bool uneven = call_.blocks.offsets != nullptr;
    switch (call_.key.op) {
      case Op::kAllReduce:
        whole(StepAct::kAllReduce, call_.in, call_.out, -1);
        break;
      case Op::kReduce:
        whole(StepAct::kReduce, call_.in, rank_ == root ? call_.out : nullptr, root);
        break;
      case Op::kBroadcast:
        whole(StepAct::kBroadcast, call_.out, call_.out, root);
        break;
      case Op::kReduceScatter:
        if (uneven) {
          for (int r = 0; r < ranks_; ++r) {
            add({StepAct::kReduce, in(call_.blocks.begin(r)), r == rank_ ? call_.out : nullptr, call_.blocks.count(r),
                 r});
          }
        } else {
          add({StepAct::kReduceScatter, call_.in, call_.out, call_.blocks.equal, -1});
        }
        break;
      case Op::kAllGather:
        if (uneven) {
          for (int r = 0; r < ranks_; ++r) {
            void* block = out(call_.blocks.begin(r));
            add({StepAct::kBroadcast, r == rank_ ? call_.in : block, block, call_.blocks.count(r), r});
          }
        } else {
          add({StepAct::kAllGather, call_.in, call_.out, call_.blocks.equal, -1});
        }
        break;
      case Op::kGather:
        if (rank_ != root) {
          send(call_.in, call_.blocks.count(rank_), root);
          break;
        }
        for (int r = 0; r < ranks_; ++r) receive(out(call_.blocks.begin(r)), call_.blocks.count(r), r, call_.in);
        break;
      case Op::kScatter:
        if (rank_ != root) {
          receive(call_.out, call_.blocks.count(rank_), root, nullptr);
          break;
        }
        for (int r = 0; r < ranks_; ++r) {
          if (r == rank_) {
            copy(in(call_.blocks.begin(r)), call_.out, call_.blocks.count(r));
          } else {
            send(in(call_.blocks.begin(r)), call_.blocks.count(r), r);
          }
        }
        break;
      case Op::kAllToAll:
        for (int r = 0; r < ranks_; ++r) {
          const void* from = in(call_.blocks.begin(r));
          if (r != rank_) send(from, call_.blocks.count(r), r);
          receive(out(call_.recv_blocks.begin(r)), call_.recv_blocks.count(r), r, from);
        }
        break;
      default:
        TRIREME_CHECK(false, "{} is no collective on GPU memory", describe(call_.key));
    }
    return std::move(steps_);
  }

 private:
  const void* in(std::size_t element) const {
    return static_cast<const std::byte*>(call_.in) + element * call_.element();
  }
  void* out(std::size_t element) const { return static_cast<std::byte*>(call_.out) + element * call_.element(); }

  void add(const NcclStep& step) {
    if (step.count != 0) steps_.push_back(step);
  }
  void whole(StepAct act, const void* from, void* to, int root) { add({act, from, to, call_.key.count, root}); }
  void send(const void* from, std::size_t count, int to) { add({StepAct::kSend, from, nullptr, count, to}); }
  /// From itself: a copy of `own`.
  void receive(void* to, std::size_t count, int from, const void* own) {
    if (from == rank_) {
      copy(own, to, count);
    } else {
      add({StepAct::kRecv, nullptr, to, count, from});
    }
  }
  void copy(const void* from, void* to, std::size_t count) {
    if (from != to) add({StepAct::kCopy, from, to, count, -1});
  }

  const Call& call_;
  int rank_, ranks_;
  std::vector<NcclStep> steps_;
};

/// One rank talks to nobody: its input is the result.
std::vector<NcclStep> alone(const Call& call) {
  if (call.key.op == Op::kBroadcast || call.in == call.out || call.key.count == 0) return {};
  return {{.act = StepAct::kCopy, .in = call.in, .out = call.out, .count = call.key.count}};
}

}  // namespace

std::vector<NcclStep> nccl_steps(const Call& call, int rank, int ranks) {
  if (ranks > 1) return Steps(call, rank, ranks).take();
  Call own = call;
  if (call.key.op == Op::kAllToAll && call.blocks.offsets != nullptr) own.key.count = call.blocks.count(0);
  return alone(own);
}

}  // namespace trireme::comm
