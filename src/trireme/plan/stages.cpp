#include "trireme/plan/stages.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replicated.h"
#include "trireme/schedule/versions.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {
namespace {

constexpr std::string_view kScheduleFile = "file:";

/// Then the schedule says when: R before each backward.
bool recomputes_stages(const ParallelConfig& config) { return config.recompute == spec::RecomputeKind::kStage; }

schedule::Shape schedule_shape(const ParallelConfig& config, std::int64_t micros, int steps) {
  return {.ranks = config.layout.pp,
          .micros = static_cast<int>(micros),
          .chunks_per_rank = chunks_per_rank(config),
          .steps = steps,
          .recompute = recomputes_stages(config),
          .micro_rows = static_cast<int>(config.micro_batch_size),
          .update_every = static_cast<int>(micros)};
}

/// What PipeDream's planner will find is not known before the run measures: one rank a stage.
std::vector<int> ranks_of_stages(const ParallelConfig& config) {
  const std::vector<int>& given = config.pipeline.stage_ranks;
  return given.empty() ? std::vector<int>(static_cast<std::size_t>(config.layout.pp), 1) : given;
}

/// As the run makes it (train/engine/pipeline_table.h), without transfers.
schedule::Schedule replicated_table(const ParallelConfig& config, int micros, int steps) {
  const schedule::StageRanks stages = schedule::stage_ranks(ranks_of_stages(config));
  const bool again = recomputes_stages(config);
  if (is_asynchronous(config)) return schedule::replicated_pipedream(stages, micros, steps, again);
  const schedule::Schedule passes = schedule::replicated_1f1b(stages, micros);
  return schedule::repeat(schedule::add_updates(again ? schedule::add_recompute(passes) : passes), steps);
}

/// A quantity that grows and shrinks while a rank executes its list, and its largest value.
struct Level {
  double now = 0, most = 0;
  void add(double by) {
    now += by;
    most = std::max(most, now);
  }
};

/// One rank's execution of its list.
class LoadReplay {
 public:
  LoadReplay(const schedule::Schedule& table, const std::vector<spec::ChunkShare>& chunks, int rank)
      : shares_(chunks),
        list_(table.ranks[static_cast<std::size_t>(rank)]),
        part_(1.0 / std::max(1, table.micro_parts)),
        waves_(table.weights == schedule::WeightChoice::kWaves) {
    load_.stage = rank;
    const std::vector<int> held = schedule::chunks_of(table, rank);
    for (const int chunk : held) {
      load_.layers += share(chunk).layers;
      load_.embeddings += share(chunk).embedding ? 1 : 0;
      load_.heads += share(chunk).head ? 1 : 0;
    }
    for (const schedule::Instruction& it : list_) {
      if (it.op == schedule::Op::kRecompute) run_again_.emplace(it.chunk, it.micro);
    }
    for (std::size_t position = 0; position < list_.size(); ++position) step(position);
    const int steps = std::max(1, table.steps());
    for (double* count : {&load_.layer_passes, &load_.embedding_passes, &load_.head_passes, &load_.chunk_passes,
                          &load_.recompute_passes})
      *count /= steps;
    load_.saved_layers = layers_.most;
    load_.saved_embeddings = embeddings_.most;
    load_.saved_heads = heads_.most;
    load_.saved_inputs = most_inputs_;
    load_.version_layers = version_layers_.most;
    load_.version_embeddings = version_embeddings_.most;
    load_.version_heads = version_heads_.most;
    // A rank's part of one pass through the model: chunks over ranks, where each chunk has one.
    load_.in_flight = chunks_.most * static_cast<double>(table.ranks.size()) / static_cast<double>(table.chunks());
  }

  const StageLoad& load() const { return load_; }

 private:
  const spec::ChunkShare& share(int chunk) const { return shares_[static_cast<std::size_t>(chunk)]; }

  void step(std::size_t position) {
    const schedule::Instruction& it = list_[position];
    if (schedule::does_forward(it)) {
      const spec::ChunkShare& passed = share(it.chunk);
      const double micros = part_ * schedule::forward_count(it);
      load_.layer_passes += micros * passed.layers;
      load_.embedding_passes += passed.embedding ? micros : 0;
      load_.head_passes += passed.head ? micros : 0;
      load_.chunk_passes += micros;
      chunks_.add(micros);
      run_again_.contains({it.chunk, it.micro}) ? save_input(passed, micros) : save(passed, micros);
    }
    if (it.op == schedule::Op::kRecompute) {
      load_.recompute_passes += part_ * share(it.chunk).layers;
      save_input(share(it.chunk), -part_);
      save(share(it.chunk), part_);
    }
    // A backward of inputs alone leaves what the weights' gradients are made from.
    if (schedule::does_weight_gradient(it)) {
      chunks_.add(-part_);
      save(share(schedule::backward_chunk(it)), -part_);
    }
    if (layers_.now > 0) most_inputs_ = std::max(most_inputs_, inputs_);
    if (!run_again_.empty()) saved_at_once({layers_.now, embeddings_.now, heads_.now, inputs_});
    // In waves each micro in flight has weights of its own.
    if (waves_ && schedule::does_forward(it)) version(share(it.chunk), 1);
    if (waves_ && schedule::does_input_gradient(it)) version(share(schedule::backward_chunk(it)), -1);
    if (it.op == schedule::Op::kStashWeights) version(share(it.chunk), 1);
    if (it.op == schedule::Op::kDropWeights) version(share(it.chunk), -1);
    // Into the place of the prediction before, of which there is one for each direction through a chunk.
    if (it.op == schedule::Op::kPredictWeights &&
        predicted_.emplace(it.chunk, schedule::next_pass_is_forward(list_, position)).second)
      version(share(it.chunk), 1);
  }
  void save(const spec::ChunkShare& passed, double by) {
    layers_.add(by * passed.layers);
    embeddings_.add(passed.embedding ? by : 0);
    heads_.add(passed.head ? by : 0);
  }
  void saved_at_once(const StageLoad::Saved& now) {
    const auto covers = [](const StageLoad::Saved& one, const StageLoad::Saved& other) {
      return one.layers >= other.layers && one.embeddings >= other.embeddings && one.heads >= other.heads &&
             one.inputs >= other.inputs;
    };
    std::vector<StageLoad::Saved>& all = load_.saved_at_once;
    if (std::ranges::any_of(all, [&](const StageLoad::Saved& one) { return covers(one, now); })) return;
    std::erase_if(all, [&](const StageLoad::Saved& one) { return covers(now, one); });
    all.push_back(now);
  }
  /// What a chunk is run again from: of the first one tokens, as its embedding saves them.
  void save_input(const spec::ChunkShare& passed, double by) {
    passed.embedding ? embeddings_.add(by) : void(inputs_ += by);
  }
  void version(const spec::ChunkShare& of, int by) {
    version_layers_.add(by * of.layers);
    version_embeddings_.add(of.embedding ? by : 0);
    version_heads_.add(of.head ? by : 0);
  }

  const std::vector<spec::ChunkShare>& shares_;
  const std::vector<schedule::Instruction>& list_;
  double part_;  // of a micro-batch, that a micro of the table is
  bool waves_;   // virtual workers (HetPipe)
  StageLoad load_;
  Level layers_, embeddings_, heads_, chunks_;
  Level version_layers_, version_embeddings_, version_heads_;
  double inputs_ = 0, most_inputs_ = 0;
  std::set<std::pair<int, int>> run_again_;  // chunk and micro
  std::set<std::pair<int, bool>> predicted_;
};

}  // namespace

int chunks_per_rank(const ParallelConfig& config) {
  const spec::PipelineConfig& pipeline = config.pipeline;
  if (config.layout.pp == 1 || pipeline.schedule.starts_with(kScheduleFile)) return pipeline.virtual_stages;
  return std::max(pipeline.virtual_stages, schedule::find_kind(pipeline.schedule).default_chunks);
}

bool is_asynchronous(const ParallelConfig& config) {
  const std::string& name = config.pipeline.schedule;
  return config.layout.pp > 1 && !name.starts_with(kScheduleFile) && schedule::find_kind(name).asynchronous;
}

std::string schedule_problem(const Job& job, const ParallelConfig& config) {
  if (config.layout.pp == 1 || config.pipeline.schedule.starts_with(kScheduleFile)) return "";
  const std::int64_t micros = config.micros(job.batch);
  if (config.pipeline.replicates_stages())
    return micros >= std::ranges::max(ranks_of_stages(config)) ? "" : "a rank of a stage would have no micro-batch";
  return schedule::find_kind(config.pipeline.schedule).refuses(schedule_shape(config, micros, 1));
}

int steps_to_settle(const ParallelConfig& config, std::int64_t micros) {
  const std::int64_t fill = 4 * std::int64_t{config.layout.pp};
  return static_cast<int>(std::max<std::int64_t>(4, (fill + micros - 1) / micros));
}

schedule::Schedule stage_table(const ParallelConfig& config, std::int64_t micros, int steps) {
  if (config.layout.pp > 1 && config.pipeline.replicates_stages())
    return replicated_table(config, static_cast<int>(micros), steps);
  return schedule::build(config.layout.pp > 1 ? config.pipeline.schedule : "1f1b",
                         schedule_shape(config, micros, steps));
}

StagePlan stage_plan(const Job& job, const ParallelConfig& config, std::int64_t micros, int steps) {
  StagePlan plan{.table = stage_table(config, micros, steps), .chunks = {}};
  plan.chunks = spec::chunk_shares(job.shape, config.pipeline, plan.table.chunks());
  return plan;
}

StagePlan stage_plan(const Job& job, const ParallelConfig& config) {
  const std::int64_t micros = config.micros(job.batch);
  return stage_plan(job, config, micros, is_asynchronous(config) ? steps_to_settle(config, micros) : 1);
}

std::vector<StageLoad> stage_loads(const schedule::Schedule& table, const std::vector<spec::ChunkShare>& chunks) {
  std::vector<StageLoad> loads;
  for (int rank = 0; rank < static_cast<int>(table.ranks.size()); ++rank)
    loads.push_back(LoadReplay(table, chunks, rank).load());
  const int ahead = schedule::steps_ahead(table);
  for (StageLoad& load : loads) load.steps_ahead = ahead;
  return loads;
}

std::vector<StageLoad> stage_loads(const StagePlan& plan) { return stage_loads(plan.table, plan.chunks); }

std::vector<StageLoad> stage_loads(const Job& job, const ParallelConfig& config) {
  if (config.layout.pp > 1) {
    const StagePlan plan = stage_plan(job, config);
    std::vector<StageLoad> loads = stage_loads(plan);
    // Virtual workers that cut the model elsewhere.
    const std::size_t splits = spec::worker_splits(config.pipeline.split).size();
    for (std::size_t worker = 1; worker < splits; ++worker) {
      const auto chunks = spec::chunk_shares(job.shape, config.pipeline, plan.table.chunks(), static_cast<int>(worker));
      for (const StageLoad& load : stage_loads(plan.table, chunks)) loads.push_back(load);
    }
    return loads;
  }
  // Forward and backward of one micro-batch follow each other, however many there are.
  StageLoad one = stage_loads(stage_plan(job, config, /*micros=*/1)).front();
  const auto micros = static_cast<double>(config.micros(job.batch));
  for (double* count : {&one.layer_passes, &one.embedding_passes, &one.head_passes, &one.chunk_passes})
    *count *= micros;
  return {one};
}

}  // namespace trireme::plan
