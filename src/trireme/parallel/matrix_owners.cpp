#include "trireme/parallel/matrix_owners.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/mesh.h"

namespace trireme::parallel {
namespace {

using layout::ContiguousRun;

/// What a rank has of a matrix: all of it, and that part whose first copy it has.
struct HeldRuns {
  std::vector<StridedRuns> all, first;
};

layout::Index elements_of(const std::vector<StridedRuns>& runs) {
  layout::Index sum = 0;
  for (const StridedRuns& run : runs) sum += run.elements();
  return sum;
}

at::Tensor strided_view(const at::Tensor& flat, layout::Index at, layout::Index step, const StridedRuns& run) {
  return flat.as_strided({run.repeats, run.count}, {step, 1}, flat.storage_offset() + at);
}

/// The matrices that the same ranks hold.
class Exchange {
 public:
  struct Matrix {
    std::size_t index = 0;  // among all
    layout::Shape shape;
    int owner = 0;
    bool owner_has_all = false;
    std::vector<HeldRuns> held;  // by rank of the group
  };

  Exchange(comm::Group& group, const layout::Mesh& mesh, int rank, std::vector<std::pair<std::size_t, nn::Param*>> mine)
      : group_(group), mine_(std::move(mine)) {
    std::vector<double> costs;
    for (const auto& [index, param] : mine_) {
      const layout::Shape& shape = param->placement.shape;
      const auto rows = static_cast<double>(shape[shape.size() - 2]), columns = static_cast<double>(shape.back());
      costs.push_back(static_cast<double>(param->elements()) * std::min(rows, columns));
      matrices_.push_back({.index = index, .shape = shape});
    }
    const std::vector<int> owners = share_out(costs, group.size());
    for (std::size_t i = 0; i < matrices_.size(); ++i) matrices_[i].owner = owners[i];
    learn_runs(mesh, rank);
  }

  /// Everybody's runs, as placements say them now.
  void learn_runs(const layout::Mesh& mesh, int rank) {
    for (Matrix& matrix : matrices_) matrix.held.clear();
    exchange_runs(mesh, rank);
  }

  const std::vector<Matrix>& matrices() const { return matrices_; }
  bool owns(const Matrix& matrix) const { return matrix.owner == group_.rank(); }

  void collect(std::span<const at::Tensor> parts, std::span<at::Tensor> wholes) {
    const int me = group_.rank();
    for (const Matrix& matrix : matrices_) {
      if (!owns(matrix)) continue;
      at::Tensor& whole = wholes[matrix.index];
      const at::Tensor& part = parts[matrix.index];
      whole = at::empty(matrix.shape, part.options());
      const at::Tensor flat = whole.view({-1}), from = part.view({-1});
      for (const StridedRuns& run : matrix.held[static_cast<std::size_t>(me)].all) {
        strided_view(flat, run.global, run.global_step, run).copy_(strided_view(from, run.local, run.local_step, run));
      }
    }
    // What this rank sends to owners, and gets as one.
    const auto sends = [&](const Matrix& matrix, int source, int target) {
      return matrix.owner == target && source != target && !matrix.owner_has_all;
    };
    exchange(
        parts.empty() ? at::TensorOptions() : parts[0].options(), sends,
        [](const Matrix& matrix, int source, int) -> const auto& {
          return matrix.held[static_cast<std::size_t>(source)].first;
        },
        [&](const Matrix& matrix, const StridedRuns& run) {
          return strided_view(parts[matrix.index].view({-1}), run.local, run.local_step, run);
        },
        [&](const Matrix& matrix, const StridedRuns& run) {
          return strided_view(wholes[matrix.index].view({-1}), run.global, run.global_step, run);
        });
  }

  void distribute(std::span<const at::Tensor> wholes, std::span<at::Tensor> parts) {
    const int me = group_.rank();
    for (const Matrix& matrix : matrices_) {
      if (!owns(matrix)) continue;
      const at::Tensor flat = wholes[matrix.index].reshape({-1});
      const at::Tensor to = parts[matrix.index].view({-1});
      for (const StridedRuns& run : matrix.held[static_cast<std::size_t>(me)].all) {
        strided_view(to, run.local, run.local_step, run).copy_(strided_view(flat, run.global, run.global_step, run));
      }
    }
    const auto sends = [](const Matrix& matrix, int source, int target) {
      return matrix.owner == source && source != target;
    };
    std::map<std::size_t, at::Tensor> flat;  // directions may come out of GEMMs in other strides
    for (const Matrix& matrix : matrices_) {
      if (owns(matrix)) flat[matrix.index] = wholes[matrix.index].reshape({-1});
    }
    exchange(
        parts.empty() ? at::TensorOptions() : parts[0].options(), sends,
        [](const Matrix& matrix, int, int target) -> const auto& {
          return matrix.held[static_cast<std::size_t>(target)].all;
        },
        [&](const Matrix& matrix, const StridedRuns& run) {
          return strided_view(flat.at(matrix.index), run.global, run.global_step, run);
        },
        [&](const Matrix& matrix, const StridedRuns& run) {
          return strided_view(parts[matrix.index].view({-1}), run.local, run.local_step, run);
        });
  }

 private:
  void exchange_runs(const layout::Mesh& mesh, int rank) {
    std::vector<std::int64_t> told;
    const auto tell = [&](const std::vector<StridedRuns>& runs) {
      told.push_back(static_cast<std::int64_t>(runs.size()));
      for (const StridedRuns& run : runs)
        told.insert(told.end(), {run.global, run.local, run.count, run.repeats, run.global_step, run.local_step});
    };
    for (const auto& [index, param] : mine_) {
      tell(strided(layout::runs(param->placement)));
      tell(strided(layout::first_copy_runs(mesh, rank, param->placement)));
    }
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group_.size()));
    const auto length = static_cast<std::int64_t>(told.size());
    group_
        .all_gather(comm::ConstBuffer{&length, 1, comm::DType::kI64},
                    comm::Buffer{sizes.data(), sizes.size(), comm::DType::kI64})
        .wait();
    const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
    std::vector<std::int64_t> heard(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    group_
        .all_gather_v(comm::ConstBuffer{told.data(), told.size(), comm::DType::kI64},
                      comm::Buffer{heard.data(), heard.size(), comm::DType::kI64}, counts)
        .wait();
    const std::int64_t* at = heard.data();
    const auto hear = [&at] {
      std::vector<StridedRuns> runs(static_cast<std::size_t>(*at++));
      for (StridedRuns& run : runs) {
        run = {at[0], at[1], at[2], at[3], at[4], at[5]};
        at += 6;
      }
      return runs;
    };
    for (int from = 0; from < group_.size(); ++from) {
      for (Matrix& matrix : matrices_) {
        HeldRuns held;
        held.all = hear();
        held.first = hear();
        matrix.held.push_back(std::move(held));
      }
    }
    for (Matrix& matrix : matrices_) {
      const layout::Index all = layout::elements(matrix.shape);
      layout::Index sent = 0;
      for (const HeldRuns& held : matrix.held) sent += elements_of(held.first);
      TRIREME_CHECK(sent == all, "{} of {} elements of a matrix have an owner", sent, all);
      matrix.owner_has_all = elements_of(matrix.held[static_cast<std::size_t>(matrix.owner)].all) == all;
    }
  }

  /// One all-to-all: what `sends` says of (matrix, source, target), of it the `runs` of (matrix, source, target).
  template <typename Sends, typename Runs, typename From, typename To>
  void exchange(const at::TensorOptions& options, const Sends& sends, const Runs& runs, const From& from,
                const To& to) {
    const int ranks = group_.size(), me = group_.rank();
    std::vector<std::size_t> send_counts(static_cast<std::size_t>(ranks)), receive_counts(send_counts);
    for (int other = 0; other < ranks; ++other) {
      for (const Matrix& matrix : matrices_) {
        if (sends(matrix, me, other))
          send_counts[static_cast<std::size_t>(other)] +=
              static_cast<std::size_t>(elements_of(runs(matrix, me, other)));
        if (sends(matrix, other, me))
          receive_counts[static_cast<std::size_t>(other)] +=
              static_cast<std::size_t>(elements_of(runs(matrix, other, me)));
      }
    }
    const auto total = [](const std::vector<std::size_t>& counts) {
      return static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    };
    at::Tensor out = at::empty({total(send_counts)}, options), in = at::empty({total(receive_counts)}, options);
    std::int64_t at = 0;
    for (int other = 0; other < ranks; ++other) {
      for (const Matrix& matrix : matrices_) {
        if (!sends(matrix, me, other)) continue;
        for (const StridedRuns& run : runs(matrix, me, other)) {
          out.narrow(0, at, run.elements()).view({run.repeats, run.count}).copy_(from(matrix, run));
          at += run.elements();
        }
      }
    }
    group_.all_to_all_v(device::to_const_buffer(out), device::to_buffer(in), send_counts, receive_counts).wait();
    at = 0;
    for (int other = 0; other < ranks; ++other) {
      for (const Matrix& matrix : matrices_) {
        if (!sends(matrix, other, me)) continue;
        for (const StridedRuns& run : runs(matrix, other, me)) {
          to(matrix, run).copy_(in.narrow(0, at, run.elements()).view({run.repeats, run.count}));
          at += run.elements();
        }
      }
    }
  }

  comm::Group& group_;
  std::vector<std::pair<std::size_t, nn::Param*>> mine_;
  std::vector<Matrix> matrices_;
};

class GroupOwners final : public optim::MatrixOwners {
 public:
  GroupOwners(std::vector<nn::Param*> matrices, MeshGroups& groups, int lane)
      : matrices_(std::move(matrices)), groups_(groups) {
    std::map<layout::AxisNames, std::vector<std::pair<std::size_t, nn::Param*>>> by_axes;
    for (std::size_t i = 0; i < matrices_.size(); ++i)
      by_axes[axes_of(groups.mesh(), *matrices_[i])].emplace_back(i, matrices_[i]);
    std::vector<layout::AxisNames> wanted;
    for (const auto& [axes, members] : by_axes) wanted.push_back(axes);
    groups.agree_on(wanted, /*lanes=*/1, lane);
    owned_.assign(matrices_.size(), true);
    for (auto& [axes, members] : by_axes) {
      comm::Group* group = groups.along(axes, lane);
      if (group == nullptr) {
        for (const auto& [index, param] : members) alone_.push_back(index);
        continue;
      }
      exchanges_.push_back(std::make_unique<Exchange>(*group, groups.mesh(), groups.rank(), std::move(members)));
      for (const Exchange::Matrix& matrix : exchanges_.back()->matrices())
        owned_[matrix.index] = exchanges_.back()->owns(matrix);
    }
  }

  bool owns(std::size_t matrix) const override { return owned_[matrix]; }

  std::vector<at::Tensor> collect(std::span<const at::Tensor> parts) override {
    std::vector<at::Tensor> wholes(parts.size());
    for (const std::size_t i : alone_) wholes[i] = parts[i].view(matrices_[i]->placement.shape);
    for (const auto& exchange : exchanges_) exchange->collect(parts, wholes);
    return wholes;
  }

  void distribute(std::span<const at::Tensor> wholes, std::span<at::Tensor> parts) override {
    for (const std::size_t i : alone_) parts[i] = wholes[i].reshape(parts[i].sizes());
    for (const auto& exchange : exchanges_) exchange->distribute(wholes, parts);
  }

  void placements_changed() override {
    for (const auto& exchange : exchanges_) exchange->learn_runs(groups_.mesh(), groups_.rank());
  }

  layout::Placement place(std::size_t matrix, std::string name, layout::Shape shape) const override {
    layout::Placement placement{.name = std::move(name), .shape = shape, .pieces = {}};
    placement.absent_axes = matrices_[matrix]->placement.absent_axes;
    if (owned_[matrix])
      placement.pieces.push_back({.box = {std::vector<layout::Index>(shape.size(), 0), std::move(shape)}});
    return placement;
  }

 private:
  /// Along which ranks hold something of it.
  static layout::AxisNames axes_of(const layout::Mesh& mesh, const nn::Param& param) {
    return layout::subtract(mesh, mesh.wide_axes(), param.placement.absent_axes);
  }

  std::vector<nn::Param*> matrices_;
  MeshGroups& groups_;
  std::vector<bool> owned_;
  std::vector<std::size_t> alone_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
};

}  // namespace

std::vector<StridedRuns> strided(std::span<const ContiguousRun> runs) {
  std::vector<StridedRuns> out;
  for (const ContiguousRun& run : runs) {
    if (!out.empty() && out.back().count == run.count) {
      StridedRuns& last = out.back();
      const layout::Index global_step = run.global - (last.global + (last.repeats - 1) * last.global_step);
      const layout::Index local_step = run.local - (last.local + (last.repeats - 1) * last.local_step);
      const bool fits = last.repeats == 1 || (global_step == last.global_step && local_step == last.local_step);
      if (fits && global_step > 0 && local_step > 0) {
        last.global_step = global_step;
        last.local_step = local_step;
        ++last.repeats;
        continue;
      }
    }
    out.push_back({.global = run.global, .local = run.local, .count = run.count});
  }
  return out;
}

std::vector<int> share_out(std::span<const double> costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(static_cast<std::size_t>(ranks));
  std::vector<int> owners(costs.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    owners[i] = static_cast<int>(least - load.begin());
    *least += costs[i];
  }
  return owners;
}

std::unique_ptr<optim::MatrixOwners> make_matrix_owners(const spec::OptimConfig& optim, nn::Params& owned,
                                                        MeshGroups& groups, int lane) {
  if (!spec::has_matrix_updates(optim.kind) || groups.mesh().ranks() == 1) return nullptr;
  return std::make_unique<GroupOwners>(optim::matrices_of(optim, owned), groups, lane);
}

}  // namespace trireme::parallel
