#include "trireme/experiment/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

constexpr SearchKind kSearches[] = {
    {"grid", "every combination of the parameters' values, each trained to the end", &make_grid},
    {"random", "independent draws, each trained to the end", &make_random},
    {"lhs", "Latin hypercube: draws that cover each parameter's range evenly", &make_latin_hypercube},
    {"sha", "successive halving: rung by rung the best part goes on", &make_successive_halving},
    {"hyperband", "successive halving in brackets, from many short trials to few long ones", &make_hyperband},
    {"asha", "asynchronous successive halving: whoever is free promotes the best of a rung", &make_asha_promotion},
    {"asha-stopping", "the same without going back: at each rung a trial goes on or is stopped", &make_asha_stopping},
    {"adaptive-asha", "asha-stopping in brackets with different numbers of rungs", &make_adaptive_asha},
    {"pbt", "population-based training: the worst copy weights and settings of the best", &make_pbt},
    {"median", "random draws, stopped when worse than the median of the others", &make_median_stopping},
    {"tpe", "tree-structured Parzen estimator: draws where good trials are dense", &make_tpe},
};

void check_options(const SearchOptions& options) {
  const auto at_least = [](std::string_view what, std::int64_t value, std::int64_t least) {
    if (value < least) throw ConfigError(fmt::format("{} must be at least {}, but is {}", what, least, value));
  };
  at_least("the number of trials", options.trials, 1);
  at_least("the steps of a trial", options.max_steps, 1);
  at_least("the steps before the first evaluation", options.min_steps, 1);
  at_least("the divisor", options.divisor, 2);
  at_least("the number of rungs", options.rungs, 1);
  at_least("the number of rounds", options.rounds, 1);
  at_least("the number of trials at once", options.concurrent, 1);
  if (options.min_steps > options.max_steps) {
    throw ConfigError(fmt::format("the first evaluation, after step {}, lies behind the last step, {}",
                                  options.min_steps, options.max_steps),
                      "train longer, or evaluate earlier");
  }
}

}  // namespace

bool Result::operator==(const Result& other) const {
  return trial == other.trial && step == other.step && end == other.end &&
         std::bit_cast<std::uint64_t>(value) == std::bit_cast<std::uint64_t>(other.value);
}

double loss_of(const Result& result) {
  const bool counts = result.end == Result::End::kReached && !std::isnan(result.value);
  return counts ? result.value : std::numeric_limits<double>::infinity();
}

std::span<const SearchKind> search_kinds() { return kSearches; }

std::unique_ptr<Search> make_search(std::string_view name, const SearchOptions& options) {
  const auto kind = std::ranges::find(kSearches, name, &SearchKind::name);
  if (kind == std::end(kSearches)) {
    std::vector<std::string> names;
    for (const SearchKind& known : kSearches) names.emplace_back(known.name);
    throw ConfigError(fmt::format("there is no search \"{}\"{}", name, did_you_mean(name, names)),
                      fmt::format("the searches are {}", listed(names)));
  }
  check_options(options);
  return kind->make(options);
}

std::vector<Job> replay(Search& search, const Journal& journal) {
  std::vector<Job> open;
  for (std::size_t i = 0; i < journal.size(); ++i) {
    if (const Job* asked = std::get_if<Job>(&journal[i])) {
      const std::optional<Job> job = search.next();
      if (!job || !(*job == *asked)) {
        throw ConfigError(
            fmt::format("line {} of the journal has trial {} until step {}, where the search has {}", i + 1,
                        asked->trial, asked->until,
                        job ? fmt::format("trial {} until step {}", job->trial, job->until) : "nothing to do"),
            "its parameters, seed or search were changed: start a new sweep for them");
      }
      open.push_back(*job);
      continue;
    }
    const Result& result = std::get<Result>(journal[i]);
    const auto done = std::ranges::find(open, result.trial, &Job::trial);
    if (done == open.end()) {
      throw ConfigError(fmt::format("line {} of the journal is a result of trial {}, which is not being trained", i + 1,
                                    result.trial),
                        "the journal is damaged: restore it, or start a new sweep");
    }
    open.erase(done);
    search.tell(result);
  }
  return open;
}

std::optional<Best> best_of(const Journal& journal) {
  std::map<int, Job> jobs;
  std::optional<Best> best;
  for (const auto& entry : journal) {
    if (const Job* job = std::get_if<Job>(&entry)) {
      jobs[job->trial] = *job;
      continue;
    }
    const Result& result = std::get<Result>(entry);
    if (result.end != Result::End::kReached || std::isnan(result.value)) continue;
    const bool longer = !best || result.step > best->step;
    if (longer || (result.step == best->step && result.value < best->value)) {
      const Job& job = jobs[result.trial];
      best = Best{
          .trial = result.trial, .draw = job.draw, .step = result.step, .value = result.value, .setting = job.setting};
    }
  }
  return best;
}

}  // namespace trireme::experiment
