#include "trireme/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

namespace trireme::plan {
namespace {

/// A configuration that was looked at: few bytes, as there are many.
struct Candidate {
  std::int32_t base = 0;  ///< which of the configurations that ZeRO and offload were added to
  std::int16_t zero = 0;
  spec::OffloadKind offload = spec::OffloadKind::kNone;
  bool fits = false;
  int zero_group = 0;
  double seconds = 0;  ///< by the closed form; of what fits or nearly does
  double bytes = 0;    ///< of the fullest rank
};

/// A decision, and the value that a configuration has: a number that sorts, and a word for people.
struct Axis {
  const char* name;
  std::int64_t (*value)(const ParallelConfig& config);
  std::string (*word)(const ParallelConfig& config);
};

std::int64_t schedule_index(const ParallelConfig& config) {
  if (config.layout.pp == 1) return -1;
  const auto found = std::ranges::find(kSearchedSchedules, config.pipeline.schedule);
  return found - std::begin(kSearchedSchedules);
}

template <typename Enum>
std::string word_of(Enum value) {
  return std::string(name_in(enum_names(std::type_identity<Enum>{}), value));
}

/// A decision whose values are numbers.
template <auto kValue>
constexpr Axis number(const char* name) {
  return {name, kValue, [](const ParallelConfig& config) { return fmt::format("{}", kValue(config)); }};
}

std::int64_t tp_of(const ParallelConfig& config) { return config.layout.tp; }
std::int64_t pp_of(const ParallelConfig& config) { return config.layout.pp; }
std::int64_t cp_of(const ParallelConfig& config) { return config.layout.cp; }
std::int64_t ep_of(const ParallelConfig& config) { return config.layout.ep; }
std::int64_t dp_of(const ParallelConfig& config) { return config.dp(); }
std::int64_t turns_of(const ParallelConfig& config) { return config.pipeline.virtual_stages; }
std::int64_t micro_of(const ParallelConfig& config) { return config.micro_batch_size; }
std::int64_t zero_of(const ParallelConfig& config) { return config.layout.zero; }

constexpr std::array kAxes{
    number<tp_of>("tp"),
    Axis{"sequence parallel",
         [](const ParallelConfig& config) { return std::int64_t{config.layout.sequence_parallel}; },
         [](const ParallelConfig& config) { return std::string(config.layout.sequence_parallel ? "on" : "off"); }},
    number<pp_of>("pp"),
    number<cp_of>("cp"),
    number<ep_of>("ep"),
    number<dp_of>("dp"),
    Axis{"schedule", schedule_index,
         [](const ParallelConfig& config) {
           return config.layout.pp == 1 ? std::string("none") : config.pipeline.schedule;
         }},
    number<turns_of>("virtual stages"),
    Axis{"stages", [](const ParallelConfig& config) { return std::int64_t{config.pipeline.split != "count"}; },
         [](const ParallelConfig& config) {
           return std::string(config.pipeline.split == "count" ? "equal" : "uneven");
         }},
    number<micro_of>("micro-batch"),
    Axis{"recompute", [](const ParallelConfig& config) { return static_cast<std::int64_t>(config.recompute); },
         [](const ParallelConfig& config) { return word_of(config.recompute); }},
    number<zero_of>("zero"),
    Axis{"zero group", [](const ParallelConfig& config) { return std::int64_t{config.layout.zero_group.value_or(0)}; },
         [](const ParallelConfig& config) {
           return config.layout.zero_group ? fmt::format("{}", *config.layout.zero_group) : std::string("all");
         }},
    Axis{"offload", [](const ParallelConfig& config) { return static_cast<std::int64_t>(config.layout.offload); },
         [](const ParallelConfig& config) { return word_of(config.layout.offload); }}};

/// What is known of one value of one decision.
struct Tally {
  std::size_t layouts = 0, fitting = 0;
  Candidate best;
};

class Search {
 public:
  Search(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options)
      : hardware_(hardware),
        job_(job),
        gpus_(gpus),
        options_(options),
        own_(job),
        schedules_(options.schedules ? *options.schedules : own_),
        weights_(count_weights(job)) {}

  SearchResult run() {
    for_each_config(hardware_, job_, gpus_, options_.given, [this](const ParallelConfig& config, bool fresh) {
      if (fresh) begin(config);
      look_at(config);
    });
    SearchResult result{.tried = tried_, .fitting = fitting_.size()};
    if (lost_ > 0) {
      LeftOut& left = result.left_out["does not fit in memory"];
      left.count = lost_;
      if (nearly_) left.best = told(*nearly_);
    }
    // Replayed only where it is the answer.
    result.smallest =
        plan::estimate(hardware_, job_, config_of(smallest_),
                       options_.replay && fitting_.empty() ? Pipeline::kReplay : Pipeline::kClosedForm, schedules_);
    if (!fitting_.empty()) finish(result);
    if (options_.decisions) add_decisions(result);
    return result;
  }

 private:
  /// Computing, activations and loads are the same whatever ZeRO and offload do.
  void begin(const ParallelConfig& config) {
    bases_.push_back(config);
    const auto key = std::tuple{config.layout.tp,
                                config.layout.cp,
                                config.layout.ep,
                                config.micro_batch_size,
                                config.layout.sequence_parallel,
                                config.recompute,
                                config.layout.pp > 1,
                                config.layout.dp};
    auto known = passes_.find(key);
    if (known == passes_.end()) known = passes_.emplace(key, layer_passes(hardware_, job_, config)).first;
    loads_ = &schedules_.loads(config);
    activations_ = activation_bytes(job_, config);
    const std::int64_t micros = config.micros(job_.batch);
    const double pipeline = pipeline_closed_form(config, micros, known->second, loads_->all, schedules_);
    computing_ = computing_of(job_, config, known->second, loads_->all, weights_, pipeline);
  }

  void look_at(const ParallelConfig& config) {
    ++tried_;
    ranks_.clear();
    for (const StageLoad& load : loads_->fullest)
      ranks_.push_back(rank_memory(job_, config, activations_, weights_, load));
    const Memory memory = sum_up(hardware_, ranks_);
    Candidate candidate{.base = static_cast<std::int32_t>(bases_.size()) - 1,
                        .zero = static_cast<std::int16_t>(config.layout.zero),
                        .offload = config.layout.offload,
                        .fits = memory.fits,
                        .zero_group = config.layout.zero_group.value_or(0),
                        .bytes = memory.peak()};
    // Only what is nearly there is worth a time: the reader wants to know what a little more memory would give.
    if (memory.fits || memory.peak() < 1.5 * memory.device)
      candidate.seconds = finish_step(hardware_, job_, config, computing_).total();
    if (tried_ == 1 || candidate.bytes < smallest_.bytes) smallest_ = candidate;
    if (candidate.fits) {
      fitting_.push_back(candidate);
    } else {
      ++lost_;
      if (candidate.seconds > 0 && (!nearly_ || candidate.seconds < nearly_->seconds)) nearly_ = candidate;
    }
    if (!options_.decisions) return;
    for (std::size_t axis = 0; axis < kAxes.size(); ++axis) tally(tallies_[axis][kAxes[axis].value(config)], candidate);
  }

  static void tally(Tally& into, const Candidate& candidate) {
    ++into.layouts;
    into.fitting += candidate.fits ? 1 : 0;
    const bool better = into.layouts == 1 || (candidate.fits && !into.best.fits) ||
                        (candidate.fits == into.best.fits &&
                         (candidate.fits ? candidate.seconds < into.best.seconds : candidate.bytes < into.best.bytes));
    if (better) into.best = candidate;
  }

  ParallelConfig config_of(const Candidate& candidate) const {
    ParallelConfig config = bases_[static_cast<std::size_t>(candidate.base)];
    config.layout.zero = candidate.zero;
    config.layout.zero_group =
        candidate.zero_group > 0 ? std::optional<int>(candidate.zero_group) : std::optional<int>{};
    config.layout.offload = candidate.offload;
    return config;
  }

  /// The estimate that is told of a candidate: the same one wherever it appears.
  const Estimate& told(const Candidate& candidate) {
    const auto key = std::tuple{candidate.base, candidate.zero, candidate.zero_group, candidate.offload};
    const auto known = told_.find(key);
    if (known != told_.end()) return known->second;
    return told_
        .emplace(key, plan::estimate(hardware_, job_, config_of(candidate),
                                     options_.replay ? Pipeline::kReplay : Pipeline::kClosedForm, schedules_))
        .first->second;
  }

  void finish(SearchResult& result) {
    std::ranges::stable_sort(fitting_, {}, &Candidate::seconds);
    std::vector<Candidate> finalists(
        fitting_.begin(), fitting_.begin() + static_cast<std::ptrdiff_t>(std::min(options_.top, fitting_.size())));
    // The closed forms of schedules differ in how near they come, so the best of each has its turn.
    std::set<std::int64_t> seen;
    if (options_.replay) {
      for (const Candidate& one : fitting_) {
        if (seen.insert(schedule_index(bases_[static_cast<std::size_t>(one.base)])).second) finalists.push_back(one);
      }
    }
    std::vector<Candidate> front;
    for (const Candidate& one : fitting_) {
      if (!options_.front) break;
      if (front.empty() || one.bytes < front.back().bytes * 0.98) front.push_back(one);
    }
    if (options_.decisions) {
      for (const auto& values : tallies_) {
        for (const auto& [value, one] : values) {
          if (one.best.fits) finalists.push_back(one.best);
        }
      }
    }
    std::vector<const Estimate*> all;
    for (const auto* list : {&finalists, &front}) {
      for (const Candidate& one : *list) {
        const Estimate* estimate = &told(one);
        if (std::ranges::find(all, estimate) == all.end()) all.push_back(estimate);
      }
    }
    std::ranges::stable_sort(all, {}, [](const Estimate* one) { return one->step_seconds(); });
    for (const Estimate* one : all) {
      if (result.best.size() < options_.top) result.best.push_back(*one);
      if (result.pareto.empty() || one->memory.peak() < result.pareto.back().memory.peak() * 0.98)
        result.pareto.push_back(*one);
    }
    if (fitting_.size() > 1) {
      result.left_out["is slower"] = {.count = fitting_.size() - 1,
                                      .best = result.best.size() > 1 ? std::optional(result.best[1]) : std::nullopt};
    }
  }

  void add_decisions(SearchResult& result) {
    for (std::size_t axis = 0; axis < kAxes.size(); ++axis) {
      if (tallies_[axis].size() < 2) continue;
      DegreeChoice decision{.name = kAxes[axis].name};
      std::int64_t chosen = -2;
      if (!result.best.empty()) {
        chosen = kAxes[axis].value(result.best.front().config);
        decision.best = kAxes[axis].word(result.best.front().config);
      }
      for (const auto& [value, one] : tallies_[axis]) {
        Alternative alternative{.value = kAxes[axis].word(config_of(one.best)),
                                .layouts = one.layouts,
                                .fitting = one.fitting,
                                .fits = one.best.fits};
        if (value == chosen)
          alternative.best = result.best.front();
        else if (one.best.fits)
          alternative.best = told(one.best);
        else
          alternative.best = {.config = config_of(one.best),
                              .memory = estimate_memory(hardware_, job_, config_of(one.best), schedules_)};
        decision.alternatives.push_back(std::move(alternative));
      }
      result.decisions.push_back(std::move(decision));
    }
  }

  using PassKey = std::tuple<int, int, int, std::int64_t, bool, spec::RecomputeKind, bool, std::optional<int>>;
  using ToldKey = std::tuple<std::int32_t, std::int16_t, int, spec::OffloadKind>;

  const cost::Hardware& hardware_;
  const Job& job_;
  int gpus_;
  const SearchOptions& options_;
  ScheduleCache own_;
  ScheduleCache& schedules_;
  WeightCounts weights_;
  std::map<PassKey, LayerPasses> passes_;
  // Of the base at hand.
  const ScheduleCache::Loads* loads_ = nullptr;
  ActivationBytes activations_;
  Computing computing_;
  std::vector<RankMemory> ranks_;

  std::vector<ParallelConfig> bases_;
  std::vector<Candidate> fitting_;
  std::size_t tried_ = 0, lost_ = 0;
  Candidate smallest_;
  std::optional<Candidate> nearly_;
  std::array<std::map<std::int64_t, Tally>, kAxes.size()> tallies_;
  std::map<ToldKey, Estimate> told_;
};

}  // namespace

SearchResult search(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options) {
  require_arithmetic(hardware, job);
  return Search(hardware, job, gpus, options).run();
}

}  // namespace trireme::plan
