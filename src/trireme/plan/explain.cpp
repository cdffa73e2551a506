#include "trireme/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

namespace trireme::plan {
namespace {

template <typename Enum>
std::string name_of(Enum value) {
  return std::string(name_in(enum_names(std::type_identity<Enum>{}), value));
}

/// A decision, and the value that a layout has; the number sorts them.
struct Axis {
  const char* name;
  std::function<std::pair<std::int64_t, std::string>(const Layout&)> value;
};

std::vector<Axis> axes() {
  const auto number = [](auto member) {
    return [member](const Layout& layout) {
      return std::pair{static_cast<std::int64_t>(layout.*member), fmt::format("{}", layout.*member)};
    };
  };
  return {{"tp", number(&Layout::tp)},
          {"pp", number(&Layout::pp)},
          {"cp", number(&Layout::cp)},
          {"ep", number(&Layout::ep)},
          {"dp", number(&Layout::dp)},
          {"virtual stages", number(&Layout::virtual_stages)},
          {"microbatch", number(&Layout::micro_batch_size)},
          {"zero", number(&Layout::zero)},
          {"recompute",
           [](const Layout& layout) {
             return std::pair{static_cast<std::int64_t>(layout.recompute), name_of(layout.recompute)};
           }},
          {"schedule", [](const Layout& layout) {
             return std::pair{std::int64_t{0}, layout.schedule};
           }}};
}

/// Takes a layout in, and keeps it if it is the best of its value so far.
void take(Alternative& into, const Estimate& candidate) {
  ++into.layouts;
  const bool fits = candidate.memory.fits;
  into.fitting += fits ? 1 : 0;
  const bool better = into.layouts == 1 || (fits && !into.fits) ||
                      (fits == into.fits && (fits ? candidate.step_seconds() < into.best.step_seconds()
                                                  : candidate.memory.peak() < into.best.memory.peak()));
  if (better) into.best = candidate, into.fits = fits;
}

}  // namespace

Explanation explain(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given) {
  require_arithmetic(hardware, job);
  Explanation out;
  const std::vector<Axis> all = axes();
  std::vector<std::map<std::pair<std::int64_t, std::string>, Alternative>> found(all.size());
  for (const Layout& layout : all_layouts(hardware, job, gpus, given)) {
    ++out.layouts;
    Estimate candidate{.layout = layout, .memory = estimate_memory(hardware, job, layout)};
    if (candidate.memory.fits) {
      ++out.fitting;
      candidate = estimate(hardware, job, layout, Pipeline::kClosedForm);
      if (!out.best || candidate.step_seconds() < out.best->step_seconds()) out.best = candidate;
    }
    for (std::size_t axis = 0; axis < all.size(); ++axis) take(found[axis][all[axis].value(layout)], candidate);
  }
  for (std::size_t axis = 0; axis < all.size(); ++axis) {
    if (found[axis].size() < 2) continue;
    Decision decision{.name = all[axis].name, .best = out.best ? all[axis].value(out.best->layout).second : ""};
    for (auto& [value, alternative] : found[axis]) {
      alternative.value = value.second;
      decision.alternatives.push_back(std::move(alternative));
    }
    out.decisions.push_back(std::move(decision));
  }
  return out;
}

std::string why_slower(const Estimate& best, const Estimate& other) {
  const auto parts = [](const Estimate& one) {
    const StepTime& time = one.time;
    return std::array<std::pair<const char*, double>, 9>{
        {{"GEMMs", time.work.matmul},
         {"attention", time.work.attention},
         {"memory-bound operators", time.work.streaming},
         {one.layout.ep > 1 ? "tensor, context and expert parallelism" : "tensor and context parallelism",
          time.work.communication},
         {"messages between stages", time.pipeline},
         {"the pipeline's bubble", time.bubble},
         {"replicas", time.replicas},
         {"the host", time.offload},
         {"the optimizer", time.optimizer}}};
  };
  const auto mine = parts(best), theirs = parts(other);
  std::size_t most = 0;
  for (std::size_t index = 0; index < mine.size(); ++index) {
    if (theirs[index].second - mine[index].second > theirs[most].second - mine[most].second) most = index;
  }
  return fmt::format("{:.1f} % slower, most of it in {}", 100 * (other.step_seconds() / best.step_seconds() - 1),
                     theirs[most].first);
}

std::string why_not(const Memory& memory) {
  constexpr double kGib = 1073741824.0;
  if (memory.peak() <= kUsable * memory.device)
    return fmt::format("needs {:.1f} GiB of the host, which has {:.1f}", memory.host / kGib, memory.host_device / kGib);
  return fmt::format("needs {:.1f} GiB of {:.1f}, most of it {}", memory.peak() / kGib, memory.device / kGib,
                     memory.parts.largest().first);
}

}  // namespace trireme::plan
