// The tree-structured Parzen estimator: Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter
// Optimization" (NeurIPS 2011). The best 15 % of the trials make the density l, the others g; of a few draws from l the
// one with the largest l / g is trained next. Parameters are independent, in the unit interval; each density is a
// mixture of truncated normals around what was seen, and of the uniform prior. Trials are trained to the end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "trireme/base/random.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

constexpr int kStartup = 10;     // random trials first
constexpr int kCandidates = 24;  // draws from l for each parameter
constexpr double kGood = 0.15;   // gamma: of the trials, at most kMostGood
constexpr std::size_t kMostGood = 25;

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

/// Of one parameter on [0, 1].
class Parzen {
 public:
  Parzen(const Parameter& parameter, std::vector<double> seen) : parameter_(parameter), centers_(std::move(seen)) {
    if (!parameter.is_number()) return;
    std::ranges::sort(centers_);
    // A bandwidth reaches to the farther neighbour, the ends of the range included, and never below what that many
    // points would have if they lay evenly: points that fall together must not become spikes.
    const double least = 1.0 / std::min(100.0, 1.0 + static_cast<double>(centers_.size()));
    for (std::size_t i = 0; i < centers_.size(); ++i) {
      const double left = centers_[i] - (i == 0 ? 0.0 : centers_[i - 1]);
      const double right = (i + 1 == centers_.size() ? 1.0 : centers_[i + 1]) - centers_[i];
      widths_.push_back(std::clamp(std::max(left, right), least, 1.0));
    }
  }

  /// The prior counts as one more point.
  double density(double unit) const {
    const double share = 1.0 / (static_cast<double>(centers_.size()) + 1);
    if (!parameter_.is_number()) {
      const auto choices = static_cast<double>(parameter_.choices.size());
      double same = 0;
      for (const double center : centers_)
        same += static_cast<int>(center * choices) == static_cast<int>(unit * choices);
      return share * (same * choices + 1);
    }
    double sum = 1;
    for (std::size_t i = 0; i < centers_.size(); ++i) {
      const double z = (unit - centers_[i]) / widths_[i];
      const double inside = normal_cdf((1 - centers_[i]) / widths_[i]) - normal_cdf(-centers_[i] / widths_[i]);
      sum += std::exp(-0.5 * z * z) / (widths_[i] * std::sqrt(2 * std::numbers::pi) * inside);
    }
    return share * sum;
  }

  double draw(const Random& random, std::uint64_t index) const {
    const std::uint64_t point = random.below(centers_.size() + 1, index);
    if (point == centers_.size()) return random.uniform(index);
    if (!parameter_.is_number()) return centers_[point];
    for (std::uint64_t attempt = 0; attempt < 64; ++attempt) {  // each inside with a chance of a third or more
      const double unit = centers_[point] + widths_[point] * random.normal(index * 64 + attempt);
      if (unit >= 0 && unit < 1) return unit;
    }
    return centers_[point];
  }

 private:
  const Parameter& parameter_;
  std::vector<double> centers_, widths_;
};

class Tpe : public Search {
 public:
  explicit Tpe(const SearchOptions& options) : options_(options) {}

  std::optional<Job> next() override {
    if (!again_.empty()) {
      Job job = again_.front();
      again_.erase(again_.begin());
      return settings_[job.trial] = job;
    }
    if (started_ == options_.trials) return std::nullopt;
    const int trial = started_++;
    return settings_[trial] = Job{.trial = trial, .until = options_.max_steps, .setting = suggest(trial)};
  }

  void tell(const Result& result) override {
    Job job = settings_[result.trial];
    if (result.end == Result::End::kInvalid) {
      if (++job.draw >= kMostDraws) return;
      job.setting = random_setting(options_.space, options_.seed, job.trial, job.draw);
      again_.push_back(job);
      return;
    }
    seen_.push_back({.loss = loss_of(result), .trial = result.trial});
    std::ranges::stable_sort(seen_, {}, &Seen::loss);
  }

  std::vector<std::int64_t> evaluation_steps() const override { return {options_.max_steps}; }

 private:
  struct Seen {
    double loss = 0;
    int trial = 0;
  };

  /// Where the trials of seen_[from, to) have the parameter, in the unit interval.
  std::vector<double> units(const Parameter& parameter, std::size_t from, std::size_t to) const {
    std::vector<double> out;
    for (std::size_t i = from; i < to; ++i) {
      const Setting& setting = settings_.at(seen_[i].trial).setting;
      const auto value = std::ranges::find(setting, parameter.key, &Assignment::key);
      if (value != setting.end()) out.push_back(unit_of(parameter, value->value));
    }
    return out;
  }

  Setting suggest(int trial) const {
    if (static_cast<int>(seen_.size()) < std::min(kStartup, options_.trials)) {
      return random_setting(options_.space, options_.seed, trial);
    }
    const auto good = std::clamp<std::size_t>(
        static_cast<std::size_t>(std::ceil(kGood * static_cast<double>(seen_.size()))), 1, kMostGood);
    std::vector<double> point;
    for (const Parameter& parameter : options_.space.parameters) {
      const Random random(options_.seed, fmt::format("sweep/tpe/{}/trial {}", parameter.key, trial));
      const Parzen below(parameter, units(parameter, 0, good)), above(parameter, units(parameter, good, seen_.size()));
      double best = 0, best_ratio = -1;
      for (int i = 0; i < kCandidates; ++i) {
        const double unit = below.draw(random, static_cast<std::uint64_t>(i));
        const double ratio = below.density(unit) / above.density(unit);
        if (ratio > best_ratio) {
          best = unit;
          best_ratio = ratio;
        }
      }
      point.push_back(best);
    }
    return setting_at(options_.space, point);
  }

  SearchOptions options_;
  std::map<int, Job> settings_;
  std::vector<Seen> seen_;  // best first
  std::vector<Job> again_;
  int started_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_tpe(const SearchOptions& options) { return std::make_unique<Tpe>(options); }

}  // namespace trireme::experiment
