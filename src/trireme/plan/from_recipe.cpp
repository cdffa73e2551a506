#include "trireme/plan/from_recipe.h"

#include <algorithm>

#include "trireme/plan/run_setup.h"
#include "trireme/plan/stages.h"

namespace trireme::plan {

std::int64_t batch_rows(const spec::Recipe& recipe) {
  const std::int64_t tokens = spec::batch_at(recipe.lr_schedule, recipe.batch, 0);
  return tokens % recipe.data.seq_len == 0 ? tokens / recipe.data.seq_len : 0;
}

Job job_of(const spec::Recipe& recipe, const spec::ModelShape& shape) {
  Job job;
  job.shape = shape;
  job.seq_len = recipe.data.seq_len;
  job.batch = std::max<std::int64_t>(1, batch_rows(recipe));
  job.precision = recipe.precision;
  job.optim = recipe.optim;
  job.logits_chunk_bytes = static_cast<double>(spec::logits_chunk_bytes(recipe.run.device));
  return job;
}

ParallelConfig config_of(const spec::Recipe& recipe, const Job& job, int ranks) {
  ParallelConfig config = spec::parallel_config(recipe, ranks, job.batch);
  if (config.layout.pp == 1 || config.pipeline.schedule.starts_with("file:")) return config;
  config.pipeline.virtual_stages = chunks_per_rank(config);
  // A schedule that updates after every micro-batch makes a step of one, unless told its size.
  if (spec::pipeline_micro_rows(recipe, schedule_traits(recipe)) == 0) config.micro_batch_size = config.rows(job.batch);
  return config;
}

}  // namespace trireme::plan
