// spec/distill.h -- knowledge distillation: a model that learns the probabilities of a trained one beside the data's
// targets: [distill].
//
//   [distill]                         [model]
//   teacher = "runs/switch"           init_from = "runs/switch"
//   weight = 0.25                     init_dense = true
//
// Hinton, Vinyals, Dean (1503.02531); from a mixture of experts to a dense model as in Switch Transformer (2101.03961,
// section 4.1): a quarter of the loss from the teacher, and the weights that are not the experts' to start with.
// Depends on: base (config).
#pragma once

#include <string>

#include "trireme/base/config.h"

namespace trireme::spec {

/// [distill]
struct DistillConfig {
  std::string teacher;     ///< a run, a checkpoint or a Hugging Face folder; empty: nobody teaches
  double weight = 0.25;    ///< of the teacher's loss; the data's has the rest
  double temperature = 1;  ///< that both models' logits are divided by for the teacher's loss

  bool used() const { return !teacher.empty(); }
  bool operator==(const DistillConfig&) const = default;
};

void describe(config::Section<DistillConfig>& section);

}  // namespace trireme::spec
