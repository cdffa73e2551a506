#include "trireme/pipeline/interleaved.h"

#include "trireme/base/error.h"
#include "trireme/schedule/interleave.h"

namespace trireme::pipeline {

using schedule::Instruction;
using schedule::Op;

namespace {

nn::PassStops::Before stop_of(Op part) {
  if (part == Op::kDispatch) return nn::PassStops::Before::kDispatch;
  return part == Op::kExpert ? nn::PassStops::Before::kExpert : nn::PassStops::Before::kCombine;
}

}  // namespace

void InterleavedPasses::begin(const Instruction& it, nn::Context& context, std::function<void()> pass) {
  const Key key{it.chunk, it.micro};
  TRIREME_CHECK(!running_.contains(key), "micro {} is in the midst of a pass through chunk {}", it.micro, it.chunk);
  std::function<void()> body = std::move(pass);
  if (it.op == Op::kBeginForward) {
    body = [&context, whole = std::move(body)] {
      whole();
      context.stops = nullptr;
    };
  }
  auto& running = running_[key] = std::make_unique<Running>(std::move(body));
  running->mixtures_left = schedule::mixtures_of(table_, it.chunk);
  context.stops = running.get();
  resume(key, *running);
}

void InterleavedPasses::go_on(const Instruction& it) {
  const Key key{it.chunk, it.micro};
  const auto found = running_.find(key);
  TRIREME_CHECK(found != running_.end(), "micro {} is in no pass in parts through chunk {}", it.micro, it.chunk);
  Running& running = *found->second;
  TRIREME_CHECK(running.at == stop_of(it.op), "the pass of micro {} through chunk {} does not stand before its {}",
                it.micro, it.chunk, schedule::info(it.op).words);
  if (it.op == Op::kCombine) --running.mixtures_left;
  resume(key, running);
}

void InterleavedPasses::resume(const Key& key, Running& running) {
  running.at.reset();
  try {
    running.fiber.resume();
  } catch (...) {
    running_.erase(key);
    throw;
  }
  TRIREME_CHECK(running.fiber.ended() == (running.mixtures_left == 0),
                "the pass of micro {} through chunk {} has another number of mixtures than the {} of schedule {}",
                key.second, key.first, table_.mixtures[static_cast<std::size_t>(key.first)], table_.name);
  if (running.fiber.ended()) running_.erase(key);
}

}  // namespace trireme::pipeline
