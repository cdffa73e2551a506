#include "trireme/spmd/transfers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::spmd {
namespace {

double bytes_in(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

/// [parts, ...]: the parts along a dimension, one after the other.
at::Tensor cut(const at::Tensor& data, int dim, int parts) { return at::stack(data.chunk(parts, dim)).contiguous(); }
at::Tensor joined(const at::Tensor& parts, int dim) { return at::cat(parts.unbind(0), dim); }

}  // namespace

Transfers::Transfers(const layout::Mesh& mesh, comm::Group& world, const std::vector<pg::MeshAxes>& axes)
    : mesh_(mesh), rank_(world.rank()) {
  if (world.size() != mesh.ranks())
    throw ConfigError(fmt::format("the strategy is for {} ranks (mesh {}), and there are {}", mesh.ranks(),
                                  to_text(mesh), world.size()),
                      fmt::format("start {} ranks", mesh.ranks()));
  coordinates_ = mesh.coordinates(rank_);
  for (const pg::MeshAxes& set : axes) {
    if (set.empty() || groups_.contains(set)) continue;
    layout::AxisNames names;
    std::string name = "graph";
    for (const int axis : set) {
      names.push_back(mesh.axes()[static_cast<std::size_t>(axis)].name);
      name += "." + names.back();
    }
    groups_[set] = world.split(mesh.group(rank_, names).front(), rank_, name);
  }
}

comm::Group& Transfers::group(const pg::MeshAxes& axes) {
  const auto found = groups_.find(axes);
  TRIREME_CHECK(found != groups_.end(), "no group was made for these mesh axes");
  return *found->second;
}

at::Tensor Transfers::take(const pg::Step& step, const at::Tensor& data) {
  last_bytes_ = 0;
  if (step.kind == pg::StepKind::kSlice) {
    const int axis = step.axes[0], parts = mesh_.axes()[static_cast<std::size_t>(axis)].size;
    const Index size = data.size(step.to_dim) / parts;
    return data.narrow(step.to_dim, size * coordinates_[static_cast<std::size_t>(axis)], size).contiguous();
  }
  comm::Group& along = group(step.axes);
  const int ranks = along.size();
  switch (step.kind) {
    case pg::StepKind::kAllReduce: {
      at::Tensor sum = data.clone(at::MemoryFormat::Contiguous);
      all_reduce(step, sum, comm::Reduce::kSum);
      return sum;
    }
    case pg::StepKind::kReduceScatter: {
      const at::Tensor in = cut(data, step.to_dim, ranks);
      at::Tensor out = at::empty_like(in[0], at::MemoryFormat::Contiguous);
      along.reduce_scatter(device::to_const_buffer(in), device::to_buffer(out), comm::Reduce::kSum).wait();
      last_bytes_ = bytes_in(in);
      return out;
    }
    case pg::StepKind::kAllGather: {
      const at::Tensor in = data.contiguous();
      std::vector<std::int64_t> sizes = in.sizes().vec();
      sizes.insert(sizes.begin(), ranks);
      at::Tensor out = at::empty(sizes, in.options());
      along.all_gather(device::to_const_buffer(in), device::to_buffer(out)).wait();
      last_bytes_ = bytes_in(out);
      return joined(out, step.from_dim);
    }
    case pg::StepKind::kAllToAll: {
      const at::Tensor in = cut(data, step.to_dim, ranks);
      at::Tensor out = at::empty_like(in);
      along.all_to_all(device::to_const_buffer(in), device::to_buffer(out)).wait();
      last_bytes_ = bytes_in(in);
      return joined(out, step.from_dim);
    }
    default:
      throw InternalError("a step that is no conversion");
  }
}

void Transfers::all_reduce(const pg::Step& step, at::Tensor& data, comm::Reduce reduce) {
  group(step.axes).all_reduce(device::to_buffer(data), reduce).wait();
  last_bytes_ = bytes_in(data);
}

Block Transfers::extend(const pg::Step& step, const Block& block,
                        const std::function<std::pair<Index, Index>(Index, Index)>& halo_of) {
  comm::Group& along = group(step.axes);
  const int parts = along.size(), part = along.rank(), dim = step.from_dim;
  const Index own = block.size(static_cast<std::size_t>(dim));
  const auto [before, after] = halo_of(part, parts);
  const auto rows = [&](Index count) {
    std::vector<std::int64_t> sizes = block.data.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = count;
    return at::empty(sizes, block.data.options());
  };
  at::Tensor low = rows(before), high = rows(after), to_next, to_last;
  std::vector<comm::Work> works;
  // What the neighbours lack: the one after lacks rows at this block's end, the one before at its beginning.
  if (before > 0) works.push_back(along.recv(device::to_buffer(low), part - 1, 0));
  if (after > 0) works.push_back(along.recv(device::to_buffer(high), part + 1, 1));
  if (part + 1 < parts) {
    if (const Index count = halo_of(part + 1, parts).first; count > 0) {
      to_next = block.data.narrow(dim, own - count, count).contiguous();
      works.push_back(along.send(device::to_const_buffer(to_next), part + 1, 0));
    }
  }
  if (part > 0) {
    if (const Index count = halo_of(part - 1, parts).second; count > 0) {
      to_last = block.data.narrow(dim, 0, count).contiguous();
      works.push_back(along.send(device::to_const_buffer(to_last), part - 1, 1));
    }
  }
  for (comm::Work& work : works) work.wait();
  last_bytes_ = bytes_in(low) + bytes_in(high);
  Block extended{at::cat({low, block.data, high}, dim), block.origin};
  extended.origin[static_cast<std::size_t>(dim)] -= before;
  return extended;
}

}  // namespace trireme::spmd
