// pipeline/portals.h -- skip connections between stages: from the rank that gives straight to the rank that takes.
//
// After torchgpipe's portals (Kim et al. 2020): stages between neither hold nor pass on such a tensor. A send is posted
// behind the forward that gives and ended with the run, a receive is posted with that of the taking chunk's input;
// gradients go the other way. Nobody can wait for ever: what a pass takes was given before the activation that it
// follows.
// Depends on: base, schedule, comm, device, nn.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/nn/layer.h"
#include "trireme/pipeline/passes.h"

namespace trireme::pipeline {

class Portals {
 public:
  /// All borrowed. `skips` are the whole model's, in one order on every rank.
  Portals(const schedule::Schedule& table, comm::Group& pipeline, std::span<const Skip> skips, Passes& passes);

  bool empty() const { return skips_.empty(); }
  /// The input (or, `forward` false, the gradient of the output) of this pass is being received: so are its skips.
  void post(int chunk, int micro, bool forward);
  void before(int chunk, int micro, bool forward);
  void after(int chunk, int micro, bool forward);
  /// Ends the sends that are under way.
  void end();

 private:
  struct SkipTransfer {
    at::Tensor tensor;  // borrowed by the work, so it goes first
    comm::Work work;
  };
  int tag_of(std::size_t skip, int micro, bool forward) const;
  /// Calls with each skip that comes in (goes out) in this pass from (to) another rank, and that rank.
  template <typename Body>
  void for_each(int chunk, int micro, bool comes_in, bool forward, Body&& body);

  const schedule::Schedule& table_;
  comm::Group& pipeline_;
  std::span<const Skip> skips_;
  Passes& passes_;
  std::map<std::tuple<std::size_t, int, bool>, SkipTransfer> receives_;  // by skip, micro and direction
  std::vector<SkipTransfer> sends_;
};

}  // namespace trireme::pipeline
