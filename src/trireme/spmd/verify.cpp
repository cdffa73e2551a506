#include "trireme/spmd/verify.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::spmd {
namespace {

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : at::max(at::abs(tensor)).item<double>(); }

}  // namespace

Deviation compare(const pg::Graph& both, const Executor& executor, const StepResult& result,
                  const Reference& reference) {
  Deviation deviation;
  double most = 0;
  for (const at::Tensor& gradient : reference.gradients) {
    if (gradient.defined()) most = std::max(most, largest(gradient));
  }
  for (std::size_t i = 0; i < both.tensors.size(); ++i) {
    const at::Tensor &mine = result.gradients[i], &whole = reference.gradients[i];
    if (!executor.holds(static_cast<int>(i)) || (!mine.defined() && !whole.defined())) continue;
    ++deviation.compared;
    if (!mine.defined() || !whole.defined()) return {INFINITY, both.tensors[i].name, deviation.compared};
    const at::Tensor expected = box_of(whole, executor.parameter_place(static_cast<int>(i)));
    if (expected.sizes() != mine.sizes()) return {INFINITY, both.tensors[i].name, deviation.compared};
    // A gradient that is nothing but rounding is held against the others.
    const double scale = std::max({largest(whole), 1e-3 * most, 1e-30});
    const double off = largest(mine.to(at::kCPU, at::kDouble) - expected.to(at::kDouble)) / scale;
    if (off > deviation.worst || std::isnan(off))
      deviation.worst = std::isnan(off) ? INFINITY : off, deviation.parameter = both.tensors[i].name;
  }
  return deviation;
}

std::vector<std::string> compare_collectives(const pg::Graph& both, const pg::Strategy& strategy,
                                             const pg::Lowering& lowering,
                                             const std::vector<std::vector<pg::Inserted>>& executed) {
  std::vector<std::string> found;
  const auto named = [&](const pg::Inserted& one) {
    return fmt::format("{} of {}", to_text(strategy.mesh, one.step),
                       one.tensor < 0 ? "statistics" : both.tensor(one.tensor).name);
  };
  for (std::size_t rank = 0; rank < executed.size(); ++rank) {
    if (executed[rank].size() != lowering.inserted.size())
      found.push_back(fmt::format("rank {} carried out {} steps, {} are listed", rank, executed[rank].size(),
                                  lowering.inserted.size()));
  }
  if (!found.empty()) return found;
  for (std::size_t i = 0; i < lowering.inserted.size(); ++i) {
    const pg::Inserted& listed = lowering.inserted[i];
    double most = 0;
    for (std::size_t rank = 0; rank < executed.size(); ++rank) {
      pg::Inserted ran = executed[rank][i];
      most = std::max(most, ran.step.bytes);
      const double bytes = std::exchange(ran.step.bytes, listed.step.bytes);
      const bool same_bytes = listed.step.kind == pg::StepKind::kHalo || bytes == std::round(listed.step.bytes);
      if (ran.phase == listed.phase && ran.op == listed.op && ran.tensor == listed.tensor && ran.step == listed.step &&
          same_bytes)
        continue;
      found.push_back(fmt::format("step {}: listed {} ({} bytes), rank {} carried out {} ({} bytes)", i, named(listed),
                                  listed.step.bytes, rank, named(executed[rank][i]), bytes));
    }
    if (listed.step.kind == pg::StepKind::kHalo && most != std::round(listed.step.bytes))
      found.push_back(fmt::format("step {}: {} is listed with {} bytes, the busiest rank received {}", i, named(listed),
                                  listed.step.bytes, most));
  }
  return found;
}

}  // namespace trireme::spmd
