#include "trireme/plan/schedule_cache.h"

#include <algorithm>
#include <cmath>

#include "trireme/plan/makespan.h"
#include "trireme/schedule/compare.h"

namespace trireme::plan {
namespace {

constexpr double kParts = 64;
/// Instructions of all tables that are kept: some 32 MB.
constexpr std::size_t kMostKept = 2'000'000;

/// Whether whatever memory a rank with `other` needs, one with `load` needs as much.
bool as_full(const StageLoad& load, const StageLoad& other) {
  return load.layers == other.layers && load.embeddings == other.embeddings && load.heads == other.heads &&
         load.saved_layers >= other.saved_layers && load.saved_embeddings >= other.saved_embeddings &&
         load.saved_heads >= other.saved_heads && load.saved_inputs >= other.saved_inputs &&
         load.saved_at_once == other.saved_at_once && load.version_layers >= other.version_layers &&
         load.version_embeddings >= other.version_embeddings && load.version_heads >= other.version_heads;
}

/// Micro-batches after which a schedule only repeats its middle: a multiple of every number that schedules ask for. Not
/// where all forwards come first, nor where only a file knows.
std::int64_t built_micros(const ParallelConfig& config, std::int64_t micros) {
  const std::string& schedule = config.pipeline.schedule;
  if (schedule == "gpipe" || schedule == "breadth-first" || schedule.starts_with("file:")) return micros;
  return std::min(micros, 4 * std::int64_t{config.layout.pp});
}

}  // namespace

ScheduleCache::TableKey ScheduleCache::key_of(const ParallelConfig& config, std::int64_t micros) {
  const bool staged = config.layout.pp > 1;
  return {staged ? config.pipeline.schedule : std::string(),
          config.layout.pp,
          chunks_per_rank(config),
          micros,
          config.pipeline.stage_ranks,
          config.recompute == spec::RecomputeKind::kStage};
}

const schedule::Schedule& ScheduleCache::table(const ParallelConfig& config, std::int64_t micros) {
  const TableKey key = key_of(config, micros);
  if (const auto known = tables_.find(key); known != tables_.end()) return known->second;
  schedule::Schedule made = stage_table(config, micros);
  std::size_t instructions = 0;
  for (const auto& list : made.ranks) instructions += list.size();
  if (kept_ + instructions > kMostKept) tables_.clear(), kept_ = 0;
  kept_ += instructions;
  return tables_.emplace(key, std::move(made)).first->second;
}

const ScheduleCache::Loads& ScheduleCache::loads(const ParallelConfig& config) {
  const std::int64_t micros = config.micros(job_.batch);
  LoadKey key{key_of(config, micros), config.pipeline.split};
  if (const auto known = loads_.find(key); known != loads_.end()) return known->second;
  Loads found;
  if (is_asynchronous(config) || config.layout.pp == 1) {
    found.all = stage_loads(job_, config);
  } else {
    const std::int64_t built = built_micros(config, micros);
    LoadKey built_key = key;
    std::get<3>(built_key.first) = built;
    auto known = built_.find(built_key);
    if (known == built_.end()) {
      const schedule::Schedule& made = table(config, built);
      known = built_
                  .emplace(std::move(built_key),
                           stage_loads(made, spec::chunk_shares(job_.shape, config.pipeline, made.chunks())))
                  .first;
    }
    found.all = known->second;
    const double factor = static_cast<double>(micros) / static_cast<double>(built);
    for (StageLoad& load : found.all) {
      for (double* count :
           {&load.layer_passes, &load.embedding_passes, &load.head_passes, &load.chunk_passes, &load.recompute_passes})
        *count *= factor;
    }
  }
  for (const StageLoad& load : found.all) {
    const auto covers = [&](const StageLoad& other) { return as_full(other, load); };
    if (std::ranges::none_of(found.fullest, covers)) found.fullest.push_back(load);
  }
  return loads_.emplace(std::move(key), std::move(found)).first->second;
}

double ScheduleCache::replayed_idle(const ParallelConfig& config, std::int64_t micros, const schedule::Times& times) {
  const schedule::Schedule& made = table(config, micros);
  schedule::Times each = times.scaled(schedule::pass_share(made));
  each.recompute = 0;  // part of backward here
  const std::vector<schedule::Times> chunks(static_cast<std::size_t>(made.chunks()), each);
  return makespan(made, chunks, /*link=*/0) - static_cast<double>(micros) * (times.forward + times.backward());
}

double ScheduleCache::idle(const ParallelConfig& config, const schedule::Times& times) {
  if (is_asynchronous(config)) return 0;  // once it is full
  const std::int64_t micros = config.micros(job_.batch);
  const double all = times.forward + times.backward();
  const int forward = static_cast<int>(std::lround(kParts * times.forward / all));
  const int weight = static_cast<int>(std::lround(kParts * times.backward_weight / all));
  const schedule::Times rounded{.forward = forward / kParts,
                                .backward_input = 1 - (forward + weight) / kParts,
                                .backward_weight = weight / kParts};
  const auto replayed = [&](std::int64_t count) {
    IdleKey key{key_of(config, count), forward, weight};
    if (const auto known = idle_.find(key); known != idle_.end()) return known->second;
    return idle_.emplace(std::move(key), replayed_idle(config, count, rounded)).first->second;
  };
  const std::int64_t most = built_micros(config, micros);
  double idle = replayed(most);
  if (micros > most)  // what each more micro-batch adds
    idle += (idle - replayed(most / 2)) / static_cast<double>(most / 2) * static_cast<double>(micros - most);
  return std::max(0.0, idle);
}

}  // namespace trireme::plan
