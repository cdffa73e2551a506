// pipeline/interleaved.h -- passes in parts: each on a stack of its own, going on where the schedule's instructions
// say.
//
// Layers know nothing of it but that a mixture of experts stops before its exchanges (nn::PassStops): there this rank
// goes on with the other pass of the pair.
// Depends on: base (fiber), schedule, nn.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "trireme/base/fiber.h"
#include "trireme/nn/context.h"
#include "trireme/schedule/schedule.h"

namespace trireme::pipeline {

class InterleavedPasses {
 public:
  /// Borrowed.
  explicit InterleavedPasses(const schedule::Schedule& table) : table_(table) {}

  /// Runs `pass`, whose layers get `context`, up to its first stop. A forward's context outlives it, a backward's may
  /// not.
  void begin(const schedule::Instruction& it, nn::Context& context, std::function<void()> pass);
  /// A dispatch, expert or combine of a pass that has begun: up to its next stop, or to its end. An InternalError where
  /// its layers stand before another.
  void go_on(const schedule::Instruction& it);
  /// What is under way is given up.
  void clear() { running_.clear(); }
  bool empty() const { return running_.empty(); }

 private:
  struct Running final : nn::PassStops {
    explicit Running(std::function<void()> pass) : fiber(std::move(pass)) {}
    void stop(Before next) override {
      at = next;
      fiber.pause();
    }
    std::optional<Before> at;
    int mixtures_left = 0;
    Fiber fiber;
  };
  using Key = std::pair<int, int>;  // chunk, micro
  void resume(const Key& key, Running& running);

  const schedule::Schedule& table_;
  std::map<Key, std::unique_ptr<Running>> running_;
};

}  // namespace trireme::pipeline
