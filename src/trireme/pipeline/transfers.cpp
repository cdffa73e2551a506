#include "trireme/pipeline/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::pipeline {

using schedule::Instruction;
using schedule::Op;

namespace {

constexpr int kActivationTag = 0, kGradientTag = 1;

bool is_activation(Op op) { return op == Op::kSendActivation || op == Op::kRecvActivation; }
int tag_of(Op op) { return is_activation(op) ? kActivationTag : kGradientTag; }

/// Elements of each rank's part of so many: as equal as can be.
std::vector<std::size_t> parts_of(std::int64_t elements, int ranks) {
  std::vector<std::size_t> counts;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    counts.push_back(static_cast<std::size_t>((rank + 1) * elements / ranks - rank * elements / ranks));
  }
  return counts;
}

}  // namespace

Transfers::Transfers(const schedule::Schedule& table, comm::Group& pipeline, const BoundaryTensors& boundaries,
                     Passes& passes, comm::Group* scatter, QueueMeter* receives)
    : table_(table),
      pipeline_(pipeline),
      boundaries_(boundaries),
      passes_(passes),
      scatter_(scatter != nullptr && scatter->size() > 1 ? scatter : nullptr),
      receives_(receives) {}

void Transfers::depart(const PendingTransfer& transfer) {
  if (receives_ != nullptr && schedule::is_recv(transfer.posted.op)) receives_->depart(transfer.arrived);
}

/// What this rank sends or receives of a boundary tensor, in its memory.
at::Tensor Transfers::part_of(const at::Tensor& tensor) const {
  if (scatter_ == nullptr) return tensor;
  const std::int64_t rank = scatter_->rank(), ranks = scatter_->size(), elements = tensor.numel();
  const std::int64_t begin = rank * elements / ranks;
  return tensor.view({-1}).narrow(0, begin, (rank + 1) * elements / ranks - begin);
}

/// The parts of the other ranks beside this rank's. All of them wait for the same messages in the same order.
void Transfers::gather(nn::Tensors& tensors) {
  if (scatter_ == nullptr) return;
  std::vector<comm::Work> works;
  std::vector<std::vector<std::size_t>> counts;  // borrowed by the works
  counts.reserve(tensors.size());
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.numel() % scatter_->size() == 0) {
      works.push_back(scatter_->all_gather(device::to_const_buffer(part_of(tensor)), device::to_buffer(tensor)));
      continue;
    }
    counts.push_back(parts_of(tensor.numel(), scatter_->size()));
    works.push_back(
        scatter_->all_gather_v(device::to_const_buffer(part_of(tensor)), device::to_buffer(tensor), counts.back()));
  }
  comm::Work(std::move(works)).wait();
}

void Transfers::execute(const Instruction& instruction) {
  if (instruction.op == Op::kSendActivation) {
    send(instruction, passes_.take_output(instruction.chunk, instruction.micro));
  } else if (instruction.op == Op::kSendGradient) {
    send(instruction, passes_.take_input_gradient(instruction.chunk, instruction.micro));
  } else if (schedule::is_recv(instruction.op)) {
    receive(instruction);
  } else {
    wait(instruction);
  }
}

void Transfers::send(const Instruction& instruction, nn::Tensors tensors) {
  const int peer = schedule::peer_of(table_, instruction);
  std::vector<comm::Work> works;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    tensor = tensor.contiguous();
    const at::Tensor part = part_of(tensor);
    sent_bytes_ += static_cast<std::int64_t>(part.nbytes());
    works.push_back(pipeline_.send(device::to_const_buffer(part), peer, tag_of(instruction.op)));
  }
  pending_.push_back({instruction, std::move(tensors), comm::Work(std::move(works))});
}

void Transfers::receive(const Instruction& instruction) {
  const int peer = schedule::peer_of(table_, instruction);
  const bool activation = is_activation(instruction.op);
  // The gradient of a chunk's output is that of the next one's input.
  const int into = activation ? instruction.chunk : instruction.chunk + 1;
  nn::Tensors tensors;
  std::vector<comm::Work> works;
  const Micro& micro = activation ? passes_.forward_micro(instruction.micro) : passes_.micro(instruction.micro);
  for (const BoundaryTensor& boundary : boundaries_(into, micro)) {
    at::Tensor& tensor = tensors.emplace_back();
    if (!activation && !boundary.has_gradient()) continue;
    tensor = at::empty(boundary.sizes, boundary.options());
    at::Tensor part = part_of(tensor);
    works.push_back(pipeline_.recv(device::to_buffer(part), peer, tag_of(instruction.op)));
  }
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  if (receives_ != nullptr) receives_->arrive(now);
  pending_.push_back({instruction, std::move(tensors), comm::Work(std::move(works)), now});
}

void Transfers::wait(const Instruction& instruction) {
  Instruction posted = instruction;
  posted.op = schedule::waited_for(instruction.op);
  const auto found = std::ranges::find(pending_, posted, &PendingTransfer::posted);
  TRIREME_CHECK(found != pending_.end(), "{} was not posted", schedule::to_text(posted, true));
  if (!schedule::is_recv(posted.op)) {
    // The table frees a slot of the channel here. Memory is what a slot is, and there is more of it: a message that the
    // other rank is not ready for stays, where waiting for it could keep both from ever being ready.
    std::erase_if(leaving_, [](PendingTransfer& transfer) { return transfer.work.test(); });
    leaving_.push_back(std::move(*found));
    pending_.erase(found);
    return;
  }
  const QueueMeter::Nanoseconds start = QueueMeter::now();
  found->work.wait();
  if (receives_ != nullptr) receives_->block(QueueMeter::now() - start);
  depart(*found);
  nn::Tensors tensors = std::move(found->tensors);
  pending_.erase(found);
  gather(tensors);
  if (posted.op == Op::kRecvActivation) passes_.put_input(posted.chunk, posted.micro, std::move(tensors));
  if (posted.op == Op::kRecvGradient) passes_.put_gradient(posted.chunk, posted.micro, std::move(tensors));
}

void Transfers::rewind(const Unmatched& unmatched, int step) {
  for (const Instruction& instruction : unmatched.sends) {
    const bool activation = is_activation(instruction.op);
    const int into = activation ? instruction.chunk + 1 : instruction.chunk;
    nn::Tensors tensors;
    const Micro& micro = activation ? passes_.forward_micro(instruction.micro) : passes_.micro(instruction.micro);
    for (const BoundaryTensor& boundary : boundaries_(into, micro)) {
      if (activation || boundary.has_gradient()) tensors.push_back(at::zeros(boundary.sizes, boundary.options()));
    }
    send(instruction, std::move(tensors));
  }
  for (const Instruction& instruction : unmatched.receives) receive(instruction);
  std::vector<PendingTransfer> older;
  for (PendingTransfer& transfer : pending_) {
    if (table_.step_of(transfer.posted.micro) <= step) {
      older.push_back(std::move(transfer));
    } else {
      transfer.work.wait();
      depart(transfer);
    }
  }
  pending_ = std::move(older);
  for (PendingTransfer& transfer : leaving_) {
    if (table_.step_of(transfer.posted.micro) > step) transfer.work.wait();
  }
}

void Transfers::end() {
  for (PendingTransfer& transfer : leaving_) transfer.work.wait();
  leaving_.clear();
  TRIREME_CHECK(pending_.empty(), "{} is still in flight at the end of the list",
                schedule::to_text(pending_.front().posted, true));
}

}  // namespace trireme::pipeline
