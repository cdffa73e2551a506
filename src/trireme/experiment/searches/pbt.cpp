// Population-based training: Jaderberg et al. (2017), in rounds. After each round the worst quarter of the population
// is replaced by copies of the best quarter: weights and optimizer state of a checkpoint, and a setting that is
// perturbed by 0.8 or 1.2 or, one time in four, drawn again. Rounds make it independent of who was faster.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "trireme/base/random.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

constexpr double kTruncated = 0.25, kResampled = 0.25, kDown = 0.8, kUp = 1.2;

double number_of(const std::string& text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

class Pbt : public Search {
 public:
  explicit Pbt(const SearchOptions& options) : options_(options), count_(options.trials) {
    for (int round = 1; round <= options.rounds; ++round) {
      const std::int64_t step = options.max_steps * round / options.rounds;
      if (step >= options.min_steps && (steps_.empty() || step > steps_.back())) steps_.push_back(step);
    }
    for (int trial = 0; trial < options.trials; ++trial) {
      waiting_.push_back(
          {.trial = trial, .until = steps_[0], .setting = random_setting(options_.space, options_.seed, trial)});
    }
    for (const Job& job : waiting_) jobs_[job.trial] = job;
  }

  std::optional<Job> next() override {
    if (waiting_.empty()) return std::nullopt;
    const Job job = waiting_.front();
    waiting_.erase(waiting_.begin());
    return job;
  }

  void tell(const Result& result) override {
    Job& job = jobs_[result.trial];
    if (result.end == Result::End::kInvalid && (job.from == 0 || job.copy_of) && job.draw + 1 < kMostDraws) {
      ++job.draw;
      job.setting = job.copy_of ? explored(job) : random_setting(options_.space, options_.seed, job.trial, job.draw);
      waiting_.push_back(job);
      return;
    }
    results_.push_back(result);
    if (static_cast<int>(results_.size()) == options_.trials) end_round();
  }

  std::vector<std::int64_t> evaluation_steps() const override { return steps_; }

 private:
  void end_round() {
    if (++round_ == steps_.size()) return;
    std::ranges::sort(results_, [](const Result& a, const Result& b) {
      return std::pair(loss_of(a), a.trial) < std::pair(loss_of(b), b.trial);
    });
    const auto alive = std::ranges::count_if(results_, [](const Result& r) { return std::isfinite(loss_of(r)); });
    if (alive == 0) return;  // nobody to copy
    const int quarter = static_cast<int>(kTruncated * options_.trials);
    // Who failed has no checkpoint to go on from, however many they are.
    const int replaced = std::max<int>(quarter, options_.trials - static_cast<int>(alive));
    const int best = std::clamp<int>(quarter, 1, static_cast<int>(alive));
    for (int place = 0; place < options_.trials; ++place) {
      const Job& before = jobs_[results_[static_cast<std::size_t>(place)].trial];
      Job job{.trial = before.trial,
              .draw = before.draw,
              .from = steps_[round_ - 1],
              .until = steps_[round_],
              .setting = before.setting};
      if (place >= options_.trials - replaced) {
        job.trial = count_++;
        job.draw = 0;
        const Random random(options_.seed, fmt::format("sweep/pbt/source of trial {}", job.trial));
        const auto source = static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(best), 0));
        job.copy_of = results_[source].trial;
        job.setting = explored(job);
      }
      waiting_.push_back(job);
    }
    // Copies first: a checkpoint is copied before its owner goes on and, in time, removes it.
    std::ranges::sort(waiting_, [](const Job& a, const Job& b) {
      return std::pair(!a.copy_of, a.trial) < std::pair(!b.copy_of, b.trial);
    });
    for (const Job& job : waiting_) jobs_[job.trial] = job;
    results_.clear();
  }

  /// The copied trial's setting, each value perturbed or drawn again.
  Setting explored(const Job& job) {
    const Setting& source = jobs_[*job.copy_of].setting;
    const Setting fresh = random_setting(options_.space, options_.seed, job.trial, job.draw);
    const Random random(options_.seed, fmt::format("sweep/pbt/trial {}/draw {}", job.trial, job.draw));
    Setting setting;
    std::uint64_t index = 0;
    for (const Parameter& parameter : options_.space.parameters) {
      const double resample = random.uniform(index++), up = random.uniform(index++);
      const auto old = std::ranges::find(source, parameter.key, &Assignment::key);
      const auto drawn = std::ranges::find(fresh, parameter.key, &Assignment::key);
      // One that did not apply to the source, or a choice, which has no neighbours, is drawn or kept.
      if (old == source.end() || resample < kResampled) {
        if (drawn != fresh.end()) setting.push_back(*drawn);
      } else if (!parameter.is_number()) {
        setting.push_back(*old);
      } else {
        const double value = number_of(old->value) * (up < 0.5 ? kDown : kUp);
        const bool whole = parameter.kind == Parameter::Kind::kInt || parameter.kind == Parameter::Kind::kLogInt;
        setting.push_back({.key = parameter.key, .value = value_near(parameter, whole ? std::round(value) : value)});
      }
    }
    return applicable(options_.space, setting);
  }

  SearchOptions options_;
  std::vector<std::int64_t> steps_;
  std::vector<Job> waiting_;
  std::map<int, Job> jobs_;  // each trial's last
  std::vector<Result> results_;
  std::size_t round_ = 0;
  int count_;  // of trials so far
};

}  // namespace

std::unique_ptr<Search> make_pbt(const SearchOptions& options) { return std::make_unique<Pbt>(options); }

}  // namespace trireme::experiment
