#include "trireme/spec/distill.h"

namespace trireme::spec {

void describe(config::Section<DistillConfig>& section) {
  section.meaning("knowledge distillation: the probabilities of a trained model as targets, beside those of the data");
  section.field("teacher", &DistillConfig::teacher,
                "run, checkpoint or Hugging Face folder of the teacher, of the same kind (decoder, encoder-decoder, "
                "BERT) and vocabulary; each rank that computes the loss runs it; empty: no teacher");
  section
      .field("weight", &DistillConfig::weight,
             "weight of the cross-entropy against the teacher's probabilities; the cross-entropy against the data's "
             "targets has 1 - weight")
      .above(0.0)
      .at_most(1.0);
  section
      .field("temperature", &DistillConfig::temperature,
             "logits of teacher and student are divided by it for the teacher's loss, which is multiplied by its "
             "square so that gradients stay as large")
      .above(0.0);
}

}  // namespace trireme::spec
