#include "trireme/spec/layout_check.h"

#include <utility>

#include "trireme/spec/rules.h"

namespace trireme::spec {

std::vector<config::Problem> find_layout_problems(const LayoutConfig& layout, const PipelineConfig& pipeline,
                                                  const LayoutTask& task) {
  RunSetup run{.shape = task.shape, .seq_len = task.sequence, .rows = task.batch_rows, .ranks = task.ranks};
  run.recipe.layout = layout;
  run.recipe.pipeline = pipeline;
  run.recipe.train.micro_batch_size = task.micro_batch_size;
  return problems_of(find_refusals(std::move(run), RuleNeeds::kLayout, RuleNeeds::kLayout));
}

}  // namespace trireme::spec
