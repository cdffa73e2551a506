#include "trireme/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/schedule/builders.h"

namespace trireme::plan {
namespace {

/// Divisors of a number, ascending.
std::vector<int> divisors(std::int64_t number, std::int64_t most) {
  std::vector<int> found;
  for (std::int64_t divisor = 1; divisor <= std::min(number, most); ++divisor) {
    if (number % divisor == 0) found.push_back(static_cast<int>(divisor));
  }
  return found;
}

template <typename T>
std::vector<T> given_or(const std::optional<T>& given, std::vector<T> all) {
  return given ? std::vector<T>{*given} : std::move(all);
}

/// A sequence is split only while each part is still long enough to keep a device busy.
constexpr std::int64_t kShortestPart = 2048;
constexpr std::int64_t kLargestMicrobatch = 64;
constexpr int kMostStages = 256;

class Enumerator {
 public:
  Enumerator(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given)
      : hardware_(hardware), job_(job), gpus_(gpus), given_(given) {}

  std::vector<Layout> all() {
    // Not beyond a node unless asked for: every layer would wait for the network, and no published run has done so.
    for (const int tp : given_or(given_.tp, divisors(job_.shape.num_heads, hardware_.cluster.gpus_per_node))) {
      for (const int cp : given_or(given_.cp, contexts())) {
        if (gpus_ % (tp * cp) != 0) continue;
        for (const int pp : given_or(given_.pp, stages(gpus_ / (tp * cp)))) {
          if (gpus_ / (tp * cp) % pp != 0) continue;
          const int dp = gpus_ / (tp * cp * pp);
          if (given_.dp && *given_.dp != dp) continue;
          for (const int ep : given_or(given_.ep, expert_splits(dp * cp)))
            add_batches({.tp = tp, .pp = pp, .dp = dp, .cp = cp, .ep = ep});
        }
      }
    }
    return std::move(found_);
  }

 private:
  std::vector<int> contexts() const {
    std::vector<int> found{1};
    if (job_.attention == AttentionKind::kUnfused) return found;
    for (int cp = 2; job_.length % cp == 0 && job_.length / cp >= kShortestPart; cp *= 2) found.push_back(cp);
    return found;
  }
  /// Ranks that can share out the experts.
  std::vector<int> expert_splits(int copies) const {
    const std::int64_t experts = job_.mixture.experts.num_experts;
    return experts == 0 ? std::vector<int>{1} : divisors(std::gcd(experts, std::int64_t{copies}), experts);
  }
  std::vector<int> stages(int left) const { return divisors(left, std::min(layers_of(job_.shape), kMostStages)); }

  void add_batches(Layout layout) {
    if (job_.batch % layout.dp != 0) return;
    const std::int64_t each = job_.batch / layout.dp;
    std::vector<std::int64_t> sizes;
    for (const int size : divisors(each, kLargestMicrobatch)) sizes.push_back(size);
    for (const std::int64_t size : given_or(given_.micro_batch_size, sizes)) {
      if (each % size != 0) continue;
      layout.micro_batch_size = size;
      add_stages(layout, each / size);
    }
  }

  /// Chunks of whole layers: as few as one each, all stages as equal as they can be.
  std::vector<int> turns(const Layout& layout, std::int64_t micros) const {
    const bool plain = given_.schedule && *given_.schedule != "interleaved" && *given_.schedule != "breadth-first";
    if (layout.pp == 1) return {1};
    if (plain) return {schedule::find_kind(*given_.schedule).default_chunks};
    if (micros % layout.pp != 0) return {1};  // interleaving needs whole groups of micro-batches
    const int layers = layers_of(job_.shape);
    return divisors((layers + layout.pp - 1) / layout.pp, layers);
  }

  void add_stages(Layout layout, std::int64_t micros) {
    for (const int turn : given_or(given_.virtual_stages, turns(layout, micros))) {
      layout.virtual_stages = turn;
      layout.schedule = given_.schedule.value_or(turn > 1 ? "interleaved" : "1f1b");
      add_rest(layout);
    }
  }

  void add_rest(Layout layout) {
    // With a single copy of the weights there is nothing to shard.
    const std::vector<int> sharding = layout.dp * layout.cp == 1 ? std::vector<int>{0} : std::vector<int>{0, 1, 2, 3};
    std::vector<Recompute> modes{Recompute::kNone};
    if (job_.attention == AttentionKind::kUnfused) modes.push_back(Recompute::kSelective);
    modes.push_back(Recompute::kFull);
    const bool divides = job_.length % (std::int64_t{layout.tp} * layout.cp) == 0;
    layout.sequence_parallel = given_.sequence_parallel.value_or(layout.tp > 1 && divides);
    for (const int zero : given_or(given_.zero, sharding)) {
      for (const Recompute mode : given_or(given_.recompute, modes)) {
        layout.zero = zero;
        layout.recompute = mode;
        layout.offload = given_.offload.value_or(Offload::kNone);
        if (find_problems(job_, layout, gpus_).empty()) found_.push_back(layout);
      }
    }
  }

  const cost::Hardware& hardware_;
  const Job& job_;
  int gpus_;
  const Choices& given_;
  std::vector<Layout> found_;
};

/// Nothing agrees with what is given: say what is wrong with it, completed in the plainest way.
[[noreturn]] void throw_nothing(const Job& job, int gpus, const Choices& given) {
  Layout layout;
  layout.tp = given.tp.value_or(1);
  layout.pp = given.pp.value_or(1);
  layout.cp = given.cp.value_or(1);
  layout.dp = given.dp.value_or(std::max(1, gpus / std::max(1, layout.tp * layout.pp * layout.cp)));
  layout.ep = given.ep.value_or(1);
  layout.virtual_stages = given.virtual_stages.value_or(1);
  layout.micro_batch_size = given.micro_batch_size.value_or(1);
  layout.zero = given.zero.value_or(0);
  layout.schedule = given.schedule.value_or(layout.virtual_stages > 1 ? "interleaved" : "1f1b");
  std::vector<config::Problem> problems = find_problems(job, layout, gpus);
  if (problems.empty())
    problems.push_back(
        {.key = "global-batch",
         .reason = fmt::format("no layout was found that divides {} sequences over {} devices", job.batch, gpus),
         .hint = fmt::format("use --global-batch-size {}, a multiple of the devices", gpus),
         .where = {}});
  throw config::ProblemsError("this layout", std::move(problems));
}

bool faster(const Estimate& left, const Estimate& right) { return left.step_seconds() < right.step_seconds(); }

void keep_pareto(std::vector<Estimate>& sorted, std::vector<Estimate>& front) {
  for (const Estimate& candidate : sorted) {
    if (front.empty() || candidate.memory.peak() < front.back().memory.peak() * 0.98) front.push_back(candidate);
  }
}

}  // namespace

std::vector<Layout> all_layouts(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given) {
  std::vector<Layout> layouts = Enumerator(hardware, job, gpus, given).all();
  if (layouts.empty()) throw_nothing(job, gpus, given);
  return layouts;
}

SearchResult search(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options) {
  require_arithmetic(hardware, job);
  SearchResult result;
  std::vector<Estimate> fitting;
  Loss memory_loss;
  std::optional<std::pair<Layout, double>> smallest;
  for (const Layout& layout : all_layouts(hardware, job, gpus, options.given)) {
    ++result.tried;
    const Memory memory = estimate_memory(hardware, job, layout);
    if (!smallest || memory.peak() < smallest->second) smallest = {layout, memory.peak()};
    if (!memory.fits) {
      ++memory_loss.count;
      // Only what is nearly there is worth a time: the reader wants to know what a little more memory would give.
      if (memory.peak() < 1.5 * memory.device) {
        const Estimate missed = estimate(hardware, job, layout, Pipeline::kClosedForm);
        if (!memory_loss.best || faster(missed, *memory_loss.best)) memory_loss.best = missed;
      }
      continue;
    }
    fitting.push_back(estimate(hardware, job, layout, Pipeline::kClosedForm));
  }
  result.fitting = fitting.size();
  // Replayed only where it is the answer.
  result.smallest = estimate(hardware, job, smallest->first,
                             options.replay && fitting.empty() ? Pipeline::kReplay : Pipeline::kClosedForm);
  if (memory_loss.count > 0) result.losses["does not fit in memory"] = memory_loss;
  std::ranges::stable_sort(fitting, faster);
  keep_pareto(fitting, result.pareto);
  result.best.assign(fitting.begin(),
                     fitting.begin() + static_cast<std::ptrdiff_t>(std::min(options.top, fitting.size())));
  if (options.replay) {
    for (Estimate& finalist : result.best) finalist = estimate(hardware, job, finalist.layout);
    std::ranges::stable_sort(result.best, faster);
  }
  if (fitting.size() > 1) result.losses["is slower"] = {.count = fitting.size() - 1, .best = fitting[1]};
  return result;
}

}  // namespace trireme::plan
