// train/engine/teacher.h -- the teacher of [distill]: a stored model that runs beside the one that is trained.
//
// It is laid out as the student is: its matrices and experts are sharded over the ranks of tp and ep, its tokens over
// those of cp. Of a pipeline's stages the one with the head runs all of it. It is not trained: no gradients, no
// optimizer state, no dropout, and none of it in checkpoints.
// Depends on: checkpoint, models, nn, spec.
#pragma once

#include <memory>

#include "trireme/models/model.h"
#include "trireme/nn/distillation.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

class Teacher {
 public:
  /// On all ranks that share a copy of it. A ConfigError where teacher and student do not go together, or the layout
  /// does not fit the teacher. `parallel` is borrowed.
  Teacher(const spec::Recipe& recipe, const spec::ModelShape& student, const nn::ParallelContext& parallel,
          at::Device device);

  /// Tells the context of a micro-batch, which takes these inputs, of the teacher; it runs when the head asks for it.
  void teach(const nn::Tensors& inputs, nn::Context& context);

 private:
  at::Tensor head_input(nn::Tensors inputs, nn::Context context);

  spec::DistillConfig config_;
  std::unique_ptr<models::Model> model_;
  const nn::Head* head_;
};

/// Null without [distill].
std::unique_ptr<Teacher> make_teacher(const spec::Recipe& recipe, const spec::ModelShape& student,
                                      const nn::ParallelContext& parallel, at::Device device);

/// A ConfigError where the recipe's teacher cannot teach such a model, or is none. Reads no weights.
void require_teacher(const spec::Recipe& recipe, const spec::ModelShape& student);
/// Of each rank that runs the teacher; 0 without one.
double teacher_bytes(const spec::Recipe& recipe);

}  // namespace trireme::train
