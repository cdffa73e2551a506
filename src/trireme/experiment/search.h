// experiment/search.h -- a hyperparameter search: which trial is trained next, and until which step.
//
// A search is asked for a job whenever somebody is free, and told every result. It has no clock and draws by (seed,
// trial number), so it is a function of the asks and results in their order: the journal. Replaying a journal brings it
// to where it was, which is how a sweep survives its process, and how it is tested and simulated without training. To
// add a search: one file in searches/, its make function in searches/makers.h, a row in the table of search.cpp. Values
// are losses: less is better.
// Depends on: space, rungs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/experiment/rungs.h"
#include "trireme/experiment/space.h"

namespace trireme::experiment {

/// Train `trial` until step `until` and evaluate it there.
struct Job {
  int trial = 0;
  int draw = 0;           ///< 0, and one more each time the trial's setting was invalid and drawn again
  std::int64_t from = 0;  ///< the step that it, or what it copies, was trained until
  std::int64_t until = 0;
  Setting setting;
  std::optional<int> copy_of;  ///< PBT: begins with the checkpoint of this trial at `from`
  bool operator==(const Job&) const = default;
};

/// How a job ended.
struct Result {
  enum class End : std::uint8_t {
    kReached,  ///< evaluated at `step`
    kFailed,   ///< crashed more often than allowed: counts as the worst
    kInvalid,  ///< its setting cannot be trained: drawn again, where the search draws
  };
  int trial = 0;
  std::int64_t step = 0;
  double value = 0;  ///< kReached; NaN counts as the worst
  End end = End::kReached;
  bool operator==(const Result& other) const;
};

/// What orders results: infinity for what failed or is NaN.
double loss_of(const Result& result);

struct SearchOptions {
  Space space;
  std::uint64_t seed = 0;
  int trials = 16;  ///< PBT: the population
  std::int64_t max_steps = 0;
  std::int64_t min_steps = 1;  ///< before the first evaluation
  int divisor = 4;             ///< eta: of a rung so large a part goes on
  int rungs = 5;
  Mode mode = Mode::kStandard;  ///< adaptive ASHA
  int concurrent = 16;          ///< adaptive ASHA: trials at once, over all brackets
  int rounds = 8;               ///< PBT and median stopping: evaluations of a whole trial
  bool operator==(const SearchOptions&) const = default;
};

class Search {
 public:
  virtual ~Search() = default;
  /// A job for whoever is free. Nothing: wait for a result; when none is to come, the search is over.
  virtual std::optional<Job> next() = 0;
  /// The result of a job that next() gave.
  virtual void tell(const Result& result) = 0;
  /// The steps at which trials are evaluated, ascending: for tables and pictures.
  virtual std::vector<std::int64_t> evaluation_steps() const = 0;
};

struct SearchKind {
  std::string_view name;   ///< "asha"
  std::string_view about;  ///< a line for --help
  std::unique_ptr<Search> (*make)(const SearchOptions& options);
};
/// Every search, in the order of --help.
std::span<const SearchKind> search_kinds();
/// ConfigError with the nearest name, or with what of the options does not suit.
std::unique_ptr<Search> make_search(std::string_view name, const SearchOptions& options);

/// Asks and results, in the order in which they happened: the metrics table of a search.
using Journal = std::vector<std::variant<Job, Result>>;
/// Brings a new search to the end of the journal; ConfigError when it would have asked for something else. Gives the
/// jobs that have no result yet.
std::vector<Job> replay(Search& search, const Journal& journal);

/// The trial with the least loss among those that were trained longest; nothing before the first result.
struct Best {
  int trial = 0, draw = 0;
  std::int64_t step = 0;
  double value = 0;
  Setting setting;
};
std::optional<Best> best_of(const Journal& journal);

}  // namespace trireme::experiment
