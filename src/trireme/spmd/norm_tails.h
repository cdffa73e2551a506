// spmd/norm_tails.h -- batch norms whose result only ReLU reads, or a sum and then ReLU, as in residual blocks: on a
// GPU these operators run as one (kernels/image_ops.h), and tensors between them are never made.
//
// A tail is a norm, perhaps a sum with another tensor or norm, and ReLU. Forward, the norm takes its statistics and
// ReLU makes the output. Backward, the sum of a residual's gradients and ReLU's gradient are made where the norm's sums
// are. What must be converted on its way, or is recomputed, stays as it is.
// Depends on: plan/graph.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::spmd {

namespace pg = plan::graph;

enum class TailPart : std::uint8_t {
  kNone,
  kNorm,          ///< takes statistics
  kOther,         ///< the second norm of a sum, likewise
  kAdd,           ///< says what is added
  kRelu,          ///< makes the output
  kGradientSum,   ///< says of what two tensors the output's gradient is the sum
  kReluGradient,  ///< after a sum: makes the gradient and the norm's sums of it; else says what ReLU's gradient is
  kNormGradient,
  kOtherGradient,
};

struct NormTails {
  struct Member {
    int tail = -1;
    TailPart part = TailPart::kNone;
    bool adds = false;  ///< there is a sum between norm and ReLU
  };
  std::vector<Member> members;  ///< [operator]
  std::vector<bool> unmade;     ///< [tensor]
};

NormTails no_norm_tails(const pg::Graph& both);
NormTails norm_tails_of(const pg::Graph& both, const pg::Uses& uses, const std::vector<pg::IterationSpace>& spaces,
                        const std::vector<pg::Link>& links, const std::vector<pg::ProgramStep>& program,
                        const pg::Strategy& strategy);

}  // namespace trireme::spmd
