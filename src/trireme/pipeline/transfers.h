// pipeline/transfers.h -- the transfer instructions of one rank: posted sends and receives, and the waits for them.
//
// Messages between two ranks keep the order in which the table posts them, so activations and gradients of all micros
// go under two tags. Sizes are known from the micro: nothing but numbers travels.
//
// Tensor-parallel ranks of a stage hold the same boundary tensors. Where they are given, each sends its 1/t of one to
// its counterpart in the next stage, whose ranks all-gather the parts (scatter/gather, Narayanan et al. 2021,
// section 4.1): the slow links between stages carry every number once instead of t times.
// Depends on: base, schedule, comm, device.
#pragma once

#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/comm/group.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/post_validation.h"

namespace trireme::pipeline {

class Transfers {
 public:
  /// All borrowed. `scatter`: ranks that hold the same boundary tensors; null: each sends its own whole. `receives`:
  /// receives from when they are posted until their pass takes them; blocked: a pass waited for one.
  Transfers(const schedule::Schedule& table, comm::Group& pipeline, const BoundaryTensors& boundaries, Passes& passes,
            comm::Group* scatter = nullptr, QueueMeter* receives = nullptr);

  /// Obeys a send, a receive or a wait.
  void execute(const schedule::Instruction& instruction);
  /// Posts these too, and ends every transfer of micros after `step` without looking at what came: all ranks begin the
  /// next step again.
  void rewind(const Unmatched& unmatched, int step);
  /// Until all that was sent has left. Throws where a table did not wait for a transfer: one that was not checked.
  void end();
  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct PendingTransfer {
    schedule::Instruction posted;
    nn::Tensors tensors;  // borrowed by the work, so it goes first
    comm::Work work;
    QueueMeter::Nanoseconds arrived = 0;  // of receives
  };
  void depart(const PendingTransfer& transfer);
  void send(const schedule::Instruction& instruction, nn::Tensors tensors);
  void receive(const schedule::Instruction& instruction);
  void wait(const schedule::Instruction& instruction);
  at::Tensor part_of(const at::Tensor& tensor) const;
  void gather(nn::Tensors& tensors);

  const schedule::Schedule& table_;
  comm::Group& pipeline_;
  const BoundaryTensors& boundaries_;
  Passes& passes_;
  comm::Group* scatter_;
  QueueMeter* receives_;
  std::vector<PendingTransfer> pending_;  // few: about one a neighbour and direction
  std::vector<PendingTransfer> leaving_;  // sends that the table no longer asks about
  std::int64_t sent_bytes_ = 0;
};

}  // namespace trireme::pipeline
