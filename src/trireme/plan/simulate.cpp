#include "trireme/plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/trace_text.h"
#include "trireme/plan/makespan.h"
#include "trireme/schedule/passes.h"

namespace trireme::plan {

/// What one replica of the model drew: by stage, how much longer its passes take and its messages to the next stage,
/// and for how long it does nothing before its first pass.
struct StepSimulator::Draws {
  std::vector<double> passes, links, stalls;
  std::uint64_t jitter_from = 0;  ///< index of its first draw of jitter
  std::size_t slow_devices = 0, slow_links = 0;
};

StepSimulator::StepSimulator(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                             const Disturbances& disturbances)
    : config_(config), disturbances_(disturbances) {
  const StagePlan plan = stage_plan(job, config, config.micros(job.batch));
  TRIREME_CHECK(disturbances.network_share > 0 && disturbances.network_share <= 1,
                "a network that carries {} of its rate", disturbances.network_share);
  cost::Hardware disturbed = hardware;
  disturbed.cluster.network.gb_per_s *= disturbances.network_share;
  const LayerPasses passes = layer_passes(disturbed, job, config);
  chunks_ = pass_times(passes, plan.table, plan.chunks);
  table_ = config.pipeline.overlap_experts ? pairs_in_parts(plan.table, chunks_) : plan.table;
  if (!schedule::has_transfers(table_)) table_ = schedule::add_transfers(table_);
  estimate_ = estimate_step(disturbed, job, config, Pipeline::kReplay);
  undisturbed_ = disturbances.network_share < 1 ? estimate_step(hardware, job, config, Pipeline::kReplay).total()
                                                : estimate_.total();
  link_ = passes.hidden_message;
  message_ = passes.message;
}

StepSimulator::Draws StepSimulator::draws_of(int copy) const {
  const auto stages = static_cast<std::size_t>(config_.layout.pp);
  const std::uint64_t together =
      static_cast<std::uint64_t>(config_.layout.tp) * static_cast<std::uint64_t>(config_.layout.cp);
  Draws draws{.passes = std::vector<double>(stages, 1),
              .links = std::vector<double>(stages, 1),
              .stalls = std::vector<double>(stages, 0)};
  const Random devices(disturbances_.seed, "simulate/stragglers"), links(disturbances_.seed, "simulate/links");
  std::vector<double> drawn(together);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::uint64_t group = stage * static_cast<std::uint64_t>(config_.dp()) + static_cast<std::uint64_t>(copy);
    if (disturbances_.stragglers > 0) {
      devices.fill_uniform(group * together, drawn);
      const auto slow = static_cast<std::size_t>(
          std::ranges::count_if(drawn, [this](double value) { return value < disturbances_.stragglers; }));
      draws.slow_devices += slow;
      if (slow > 0) draws.passes[stage] = disturbances_.straggler_factor;
    }
    if (disturbances_.slow_links > 0 && links.uniform(group) < disturbances_.slow_links) {
      draws.links[stage] = disturbances_.slow_link_factor;
      ++draws.slow_links;
    }
    for (const spec::Fault& fault : faults_) {
      if (static_cast<std::uint64_t>(fault.rank) / together != group) continue;
      if (fault.kind == spec::Fault::Kind::kSlow) {
        draws.passes[stage] = std::max(draws.passes[stage], fault.factor);
        ++draws.slow_devices;
      } else {
        draws.stalls[stage] += std::chrono::duration<double>(fault.duration).count();
      }
    }
  }
  std::size_t passes = 0;
  for (const auto& list : table_.ranks) passes += list.size();
  draws.jitter_from = static_cast<std::uint64_t>(copy) * passes;
  return draws;
}

void StepSimulator::inject(const spec::Fault& fault) {
  using Kind = spec::Fault::Kind;
  if (fault.kind != Kind::kSlow && fault.kind != Kind::kStall) {
    throw ConfigError(fmt::format("--inject \"{}\": does not change how long a step takes", fault.text),
                      "slow and stall do; kill and hang count in a run of many steps");
  }
  const std::int64_t ranks = std::int64_t{config_.ranks()};
  if (fault.rank >= ranks) {
    throw ConfigError(fmt::format("--inject \"{}\": there are only ranks 0 to {}", fault.text, ranks - 1));
  }
  faults_.push_back(fault);
}

schedule::Timing StepSimulator::replay(const Draws& draws, bool keep_spans) const {
  // Drawn in the order in which passes are replayed, which is the same in every run.
  std::vector<double> noise;
  std::size_t next = 0;
  if (disturbances_.jitter > 0) {
    std::size_t passes = 0;
    for (const auto& list : table_.ranks) passes += list.size();
    noise.resize(passes);
    Random(disturbances_.seed, "simulate/jitter").fill_normal(draws.jitter_from, noise);
  }
  schedule::ReplayOptions options;
  options.keep_spans = keep_spans;
  std::vector<double> stalls = draws.stalls;
  options.time_of = [&](int rank, const schedule::Instruction& instruction) {
    double time = pass_seconds(chunks_, instruction) * draws.passes[static_cast<std::size_t>(rank)];
    if (time > 0) time += std::exchange(stalls[static_cast<std::size_t>(rank)], 0);
    if (noise.empty() || time <= 0) return time;
    // Nothing is done in less than half of its time.
    return time * std::max(0.5, 1 + disturbances_.jitter * noise[next++ % noise.size()]);
  };
  options.part_of = [&](int rank, const schedule::Instruction& part, bool backward) {
    return part_seconds(chunks_, part, backward) * draws.passes[static_cast<std::size_t>(rank)];
  };
  options.exchange_of = [&](int, int chunk) { return chunks_[static_cast<std::size_t>(chunk)].exchange; };
  options.link_of = [&](int from, int to, const schedule::Instruction&) {
    const double factor = draws.links[static_cast<std::size_t>(std::min(from, to))];
    return factor * link_ + (factor - 1) * message_;
  };
  return schedule::replay(table_, options);
}

schedule::Timing StepSimulator::replay(int copy) const { return replay(draws_of(copy), /*keep_spans=*/true); }

SimulatedStep StepSimulator::run() const {
  SimulatedStep step;
  step.tail = estimate_.replicas + estimate_.offload + estimate_.optimizer;
  step.undisturbed = undisturbed_;
  std::size_t instructions = 0;
  for (const auto& list : table_.ranks) instructions += list.size();
  std::map<std::array<std::vector<double>, 3>, double> known;  // copies that drew the same are alike
  for (int copy = 0; copy < config_.dp(); ++copy) {
    const Draws draws = draws_of(copy);
    step.slow_devices += draws.slow_devices;
    step.slow_links += draws.slow_links;
    const std::array key{draws.passes, draws.links, draws.stalls};
    double makespan = 0;
    if (const auto same = known.find(key); disturbances_.jitter <= 0 && same != known.end()) {
      makespan = same->second;
    } else {
      makespan = known[key] = replay(draws, /*keep_spans=*/false).makespan;
      step.events += instructions;
    }
    step.pipelines.push_back(makespan);
  }
  step.slowest = static_cast<int>(std::ranges::max_element(step.pipelines) - step.pipelines.begin());
  step.seconds = step.pipelines[static_cast<std::size_t>(step.slowest)] + step.tail;
  return step;
}

std::string StepSimulator::trace(const SimulatedStep& step, const std::vector<int>& copies) const {
  TraceText text(TraceText::Form::kWhole);
  const double end = step.seconds - step.tail;
  for (const int copy : copies) {
    text.event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":"copy {}{}"}})", copy, copy,
               copy == step.slowest ? " (the slowest)" : "");
    const schedule::Timing timing = replay(copy);
    for (std::size_t stage = 0; stage < timing.ranks.size(); ++stage) {
      text.event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"stage {}"}})", copy, stage, stage);
      for (const schedule::Span& span : timing.ranks[stage].spans) {
        const std::string name = schedule::to_text(span.instruction, chunks_per_rank(config_) > 1);
        text.event(R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"cat":"{}")", copy, stage,
                   span.start * 1e6, (span.end - span.start) * 1e6, TraceText::quoted(name),
                   schedule::info(span.instruction.op).words);
      }
      const double last = timing.ranks[stage].last_end;
      if (end > last)
        text.event(R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":"waits","cat":"wait")", copy, stage,
                   last * 1e6, (end - last) * 1e6);
      double at = end;
      for (const auto& [name, seconds] : {std::pair{"replicas", estimate_.replicas},
                                          {"host", estimate_.offload},
                                          {"optimizer", estimate_.optimizer}}) {
        if (seconds <= 0) continue;
        text.event(R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":"{}","cat":"tail")", copy, stage,
                   at * 1e6, seconds * 1e6, name);
        at += seconds;
      }
    }
  }
  return text.finish();
}

SimulatedRun simulate_run(const RunTask& task) {
  using Kind = spec::Fault::Kind;
  SimulatedRun run;
  const double end = task.days * 86400, mtbf = task.reliability.mtbf_seconds;
  const Random random(task.seed, "simulate/failures");
  std::uint64_t drawn = 0;
  const auto until_failure = [&] { return -mtbf * std::log1p(-random.uniform(drawn++)); };
  // Whole steps between checkpoints.
  const auto each = std::max<std::int64_t>(1, std::llround(task.reliability.interval_seconds / task.step_seconds));
  const double work = static_cast<double>(each) * task.step_seconds, write = task.reliability.checkpoint_seconds;
  std::vector<spec::Fault> faults = task.faults;
  double failure = until_failure();
  while (run.seconds < end) {
    // What is injected into the steps up to the next checkpoint.
    double stalled = 0;
    auto ends_it = faults.end();
    for (auto fault = faults.begin(); fault != faults.end(); ++fault) {
      if (fault->step <= run.steps || fault->step > run.steps + each) continue;
      if (fault->kind == Kind::kStall) stalled += std::chrono::duration<double>(fault->duration).count();
      if (fault->kind != Kind::kKill && fault->kind != Kind::kHang) continue;
      if (ends_it == faults.end() || fault->step < ends_it->step) ends_it = fault;
    }
    double next = failure, unnoticed = 0;
    if (ends_it != faults.end()) {
      const double then = run.seconds + static_cast<double>(ends_it->step - run.steps - 1) * task.step_seconds;
      if (then < failure) {
        next = then;
        unnoticed = ends_it->kind == Kind::kHang ? task.hang_seconds : 0;
      } else {
        ends_it = faults.end();
      }
    }
    if (next > run.seconds + work + stalled + write) {
      run.seconds += work + stalled + write;
      run.training += work;
      run.lost += stalled;
      run.checkpoints += write;
      run.steps += each;
      continue;
    }
    run.lost += next - run.seconds + unnoticed;  // since the last checkpoint, and what was written of this one
    run.seconds = next + unnoticed;
    ++run.failures;
    if (ends_it != faults.end()) faults.erase(ends_it);
    failure = run.seconds + until_failure();
    while (failure < run.seconds + task.restart_seconds && run.seconds < end) {
      run.restarts += failure - run.seconds;
      run.seconds = failure;
      ++run.failures;
      failure = run.seconds + until_failure();
    }
    run.restarts += task.restart_seconds;
    run.seconds += task.restart_seconds;
  }
  return run;
}

}  // namespace trireme::plan
