#include "trireme/schedule/schedule.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

// In the order of the enumerators: info() indexes it.
constexpr std::array kOps{
    OpInfo{Op::kForward, "F", "forward", Operands::kMicroAndChunk},
    OpInfo{Op::kBackward, "B", "backward", Operands::kMicroAndChunk},
    OpInfo{Op::kBackwardInput, "I", "backward of inputs", Operands::kMicroAndChunk},
    OpInfo{Op::kBackwardWeight, "W", "backward of weights", Operands::kMicroAndChunk},
    OpInfo{Op::kRecompute, "R", "recompute", Operands::kMicroAndChunk},
    OpInfo{Op::kForwardDoubled, "FF", "forward of two micros", Operands::kMicroAndChunk},
    OpInfo{Op::kForwardBackward, "F+B", "overlapped forward and backward", Operands::kPair},
    OpInfo{Op::kBeginForward, "FA", "forward up to its first dispatch", Operands::kMicroAndChunk},
    OpInfo{Op::kBeginBackward, "BA", "backward up to its first dispatch", Operands::kMicroAndChunk},
    OpInfo{Op::kDispatch, "D", "dispatch", Operands::kMicroAndChunk},
    OpInfo{Op::kExpert, "E", "experts", Operands::kMicroAndChunk},
    OpInfo{Op::kCombine, "C", "combine", Operands::kMicroAndChunk},
    OpInfo{Op::kSendActivation, "SA", "send of the activation", Operands::kMicroAndChunk},
    OpInfo{Op::kRecvActivation, "RA", "receive of the activation", Operands::kMicroAndChunk},
    OpInfo{Op::kSendGradient, "SG", "send of the gradient", Operands::kMicroAndChunk},
    OpInfo{Op::kRecvGradient, "RG", "receive of the gradient", Operands::kMicroAndChunk},
    OpInfo{Op::kWaitSendActivation, "WSA", "wait for the send of the activation", Operands::kMicroAndChunk},
    OpInfo{Op::kWaitRecvActivation, "WRA", "wait for the activation", Operands::kMicroAndChunk},
    OpInfo{Op::kWaitSendGradient, "WSG", "wait for the send of the gradient", Operands::kMicroAndChunk},
    OpInfo{Op::kWaitRecvGradient, "WRG", "wait for the gradient", Operands::kMicroAndChunk},
    OpInfo{Op::kReduceGradients, "G", "reduction of gradients", Operands::kChunk},
    OpInfo{Op::kOptimizerStep, "O", "optimizer step", Operands::kNone},
    OpInfo{Op::kStashWeights, "VS", "stash of a weight version", Operands::kVersionAndChunk},
    OpInfo{Op::kLoadWeights, "VL", "load of a weight version", Operands::kVersionAndChunk},
    OpInfo{Op::kPredictWeights, "VP", "prediction of weights", Operands::kVersionAndChunk},
    OpInfo{Op::kDropWeights, "VD", "drop of a weight version", Operands::kVersionAndChunk},
};

constexpr std::array kWeights{
    Named<WeightChoice>{"flush", WeightChoice::kFlush},
    Named<WeightChoice>{"stash", WeightChoice::kStash},
    Named<WeightChoice>{"vertical-sync", WeightChoice::kVerticalSync},
    Named<WeightChoice>{"double-buffer", WeightChoice::kDoubleBuffer},
    Named<WeightChoice>{"predict-momentum", WeightChoice::kPredictMomentum},
    Named<WeightChoice>{"predict-adam", WeightChoice::kPredictAdam},
    Named<WeightChoice>{"stale", WeightChoice::kStale},
    Named<WeightChoice>{"waves", WeightChoice::kWaves},
};

}  // namespace

std::span<const Named<WeightChoice>> enum_names(std::type_identity<WeightChoice>) { return kWeights; }

Instruction make(Op op, int chunk, int micro) {
  return {.op = op, .chunk = static_cast<std::int16_t>(chunk), .back_chunk = -1, .micro = micro, .back_micro = -1};
}

Instruction make_pair(int chunk, int micro, int back_chunk, int back_micro) {
  return {.op = Op::kForwardBackward,
          .chunk = static_cast<std::int16_t>(chunk),
          .back_chunk = static_cast<std::int16_t>(back_chunk),
          .micro = micro,
          .back_micro = back_micro};
}

std::span<const OpInfo> op_table() { return kOps; }

const OpInfo& info(Op op) {
  const auto& entry = kOps[static_cast<std::size_t>(op)];
  TRIREME_CHECK(entry.op == op, "the table of instructions is in the order of the enumerators");
  return entry;
}

bool is_send(Op op) { return op == Op::kSendActivation || op == Op::kSendGradient; }
bool is_recv(Op op) { return op == Op::kRecvActivation || op == Op::kRecvGradient; }
bool is_wait(Op op) { return op >= Op::kWaitSendActivation && op <= Op::kWaitRecvGradient; }
bool is_transfer(Op op) { return op >= Op::kSendActivation && op <= Op::kWaitRecvGradient; }
bool is_version(Op op) { return op >= Op::kStashWeights; }
bool is_pass(Op op) { return op <= Op::kCombine; }
bool is_begin(Op op) { return op == Op::kBeginForward || op == Op::kBeginBackward; }
bool is_part(Op op) { return op >= Op::kDispatch && op <= Op::kCombine; }

Op waited_for(Op wait) {
  switch (wait) {
    case Op::kWaitSendActivation:
      return Op::kSendActivation;
    case Op::kWaitRecvActivation:
      return Op::kRecvActivation;
    case Op::kWaitSendGradient:
      return Op::kSendGradient;
    default:
      return Op::kRecvGradient;
  }
}

bool does_forward(const Instruction& instruction) {
  return instruction.op == Op::kForward || instruction.op == Op::kForwardDoubled ||
         instruction.op == Op::kForwardBackward || instruction.op == Op::kBeginForward;
}

int forward_count(const Instruction& instruction) {
  if (instruction.op == Op::kForwardDoubled) return 2;
  return does_forward(instruction) ? 1 : 0;
}

bool does_input_gradient(const Instruction& instruction) {
  return instruction.op == Op::kBackward || instruction.op == Op::kBackwardInput ||
         instruction.op == Op::kForwardBackward || instruction.op == Op::kBeginBackward;
}

bool does_weight_gradient(const Instruction& instruction) {
  return instruction.op == Op::kBackward || instruction.op == Op::kBackwardWeight ||
         instruction.op == Op::kForwardBackward || instruction.op == Op::kBeginBackward;
}

int backward_chunk(const Instruction& instruction) {
  return instruction.op == Op::kForwardBackward ? instruction.back_chunk : instruction.chunk;
}

int backward_micro(const Instruction& instruction) {
  return instruction.op == Op::kForwardBackward ? instruction.back_micro : instruction.micro;
}

int peer_of(const Schedule& schedule, const Instruction& instruction) {
  const Op op = is_wait(instruction.op) ? waited_for(instruction.op) : instruction.op;
  const bool next = op == Op::kSendActivation || op == Op::kRecvGradient;
  const int other = instruction.chunk + (next ? 1 : -1);
  return other < 0 || other > schedule.last_chunk() ? -1 : schedule.rank_of(other, instruction.micro);
}

bool has_transfers(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& list) {
    return std::ranges::any_of(list, [](const Instruction& instruction) { return is_transfer(instruction.op); });
  });
}

bool next_pass_is_forward(std::span<const Instruction> list, std::size_t position) {
  for (std::size_t next = position + 1; next < list.size(); ++next) {
    const Instruction& it = list[next];
    if (does_forward(it) && it.chunk == list[position].chunk) return true;
    if (does_input_gradient(it) && backward_chunk(it) == list[position].chunk) return false;
  }
  return false;
}

int micros_of_forward(const Schedule& schedule) {
  for (const auto& list : schedule.ranks) {
    for (const Instruction& it : list) {
      if (does_forward(it)) return forward_count(it);
    }
  }
  return 1;
}

std::vector<int> holders_of(const Schedule& schedule, int chunk) {
  std::vector<int> ranks;
  for (const auto& route : schedule.routes) ranks.push_back(route[static_cast<std::size_t>(chunk)]);
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

std::vector<int> chunks_of(const Schedule& schedule, int rank) {
  std::vector<int> held;
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    const auto here = [&](const auto& route) { return route[static_cast<std::size_t>(chunk)] == rank; };
    if (std::ranges::any_of(schedule.routes, here)) held.push_back(chunk);
  }
  return held;
}

}  // namespace trireme::schedule
