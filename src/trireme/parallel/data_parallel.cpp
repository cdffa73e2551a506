#include "trireme/parallel/data_parallel.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/placing.h"
#include "trireme/layout/reduction.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/host_link.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {
namespace {

using Clock = std::chrono::steady_clock;

/// A stretch of the memory of all pieces, as it lies in what a partition leaves of it; empty where it leaves nothing.
layout::Range in_partition(const layout::Placement& placement, layout::Range range) {
  if (!placement.partition) return range;
  const layout::Index from = std::max(range.begin, placement.partition->begin);
  const layout::Index to = std::min(range.end, placement.partition->end);
  if (from >= to) return {};
  return {from - placement.partition->begin, to - placement.partition->begin};
}

void count_once(nn::Param& param, const layout::Mesh& mesh, int rank, const layout::AxisNames& axes) {
  std::vector<layout::Range> ranges;
  bool all = true;
  layout::Index at = 0;
  for (const layout::Piece& piece : param.placement.pieces) {
    const layout::Index size = piece.box.elements() + piece.padding;
    if (layout::is_first_copy(mesh, rank, layout::intersect(mesh, piece.replica_axes, axes))) {
      const layout::Range local = in_partition(param.placement, {at, at + size});
      if (local.end > local.begin) ranges.push_back(local);
    } else {
      all = false;
    }
    at += size;
  }
  if (all) {
    param.counted.reset();
  } else {
    param.counted = std::move(ranges);
  }
}

/// The axes along which ranks hold other parts of some trainable parameter of these.
layout::AxisNames norm_axes(const nn::Params& owned, const layout::Mesh& mesh) {
  layout::AxisNames axes;
  for (const nn::Param& param : owned) {
    if (param.trainable) axes = layout::unite(mesh, axes, layout::split_axes(mesh, param.placement));
  }
  return axes;
}

/// Sums over these axes, which norm_axes() gave, in which each number counts once: sets Param::counted. Without
/// functions where there is nothing to sum.
optim::AcrossRanks sum_across(nn::Params& owned, MeshGroups& groups, const layout::AxisNames& axes, int lane = 0) {
  comm::Group* parts = groups.along(axes, lane);
  if (parts == nullptr) return {};
  for (nn::Param& param : owned) count_once(param, groups.mesh(), groups.rank(), axes);
  return {.sum_parts = [parts](std::span<double> squares) {
    parts->all_reduce(comm::Buffer{squares.data(), squares.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  }};
}

/// `rounded`: on the host gradients stay as they travelled.
void allocate(Bucket& bucket, const DataParallelOptions& options, HostLink* link, bool rounded) {
  const at::ScalarType compute = nn::compute_type(options.precision), master = bucket.master_type;
  // Offload: on the host, where copies to and from a GPU reach it.
  const auto owned_zeros = [&](std::int64_t elements, at::ScalarType type) {
    if (link != nullptr) return link->zeros(elements, type);
    return at::zeros({elements}, options.offload ? at::TensorOptions(type) : options.on_device(type));
  };
  const std::int64_t part = bucket.end - bucket.begin;
  if (options.zero < 3) {
    bucket.value = at::zeros({bucket.elements}, options.on_device(compute));
    bucket.value_shard = bucket.value.narrow(0, bucket.begin, part);
    for (const BucketMember& member : bucket.members) member.param->value = view_in(bucket.value, member);
  } else {
    bucket.value_shard = at::zeros({part}, options.on_device(compute));
  }
  if (options.offload) {
    bucket.master_shard = compute == master ? owned_zeros(part, master) : at::zeros({part}, master);
    bucket.host_value = compute == master ? bucket.master_shard : owned_zeros(part, compute);
  } else {
    bucket.master_shard = compute == master ? bucket.value_shard : owned_zeros(part, master);
  }
  if (!bucket.trainable) return;
  const bool in_place = options.zero == 1 && !options.offload;
  bucket.gradient_shard = in_place ? bucket.gradient.narrow(0, bucket.begin, part)
                                   : owned_zeros(part, rounded ? at::kBFloat16 : bucket.gradient_type);
}

layout::Placement placement_of(const nn::Param& param, const Bucket& bucket, layout::Range owned,
                               const layout::Mesh& mesh, const DataParallelOptions& options) {
  layout::Placement placement = param.placement;
  if (options.zero > 0) {
    placement.partition = layout::Partition{.begin = owned.begin, .end = owned.end, .axes = bucket.shard_axes};
  }
  for (layout::Piece& piece : placement.pieces) {
    for (const std::string& axis : bucket.shard_axes) {
      piece.replica_axes = layout::without(mesh, piece.replica_axes, axis);
    }
  }
  return placement;
}

/// ZeRO and offload: what a rank keeps of each parameter is not what layers compute with. Adds to `shards` one for each
/// of `params`, in their order, and gives buckets the memory of both. `link`: the way to the host of offload from a
/// GPU; null: there is none.
void make_shards(BucketPlan& plan, nn::Params& params, nn::Params& shards, const layout::Mesh& mesh,
                 const DataParallelOptions& options, HostLink* link) {
  const at::ScalarType compute = nn::compute_type(options.precision);
  // A rank alone adds nothing up on the host: what travels rounded stays so there, at half the memory.
  // MasterWeights in double take no gradient of 16 bits.
  const bool rounded = link != nullptr && options.reduce_bf16 && options.zero == 0 && mesh.ranks() == 1 &&
                       options.precision != nn::Precision::kFp64;
  for (Bucket& bucket : plan.buckets) allocate(bucket, options, link, rounded);
  for (nn::Param& param : params) {  // in the model's order: ranks list the same names
    Bucket& bucket = plan.buckets[plan.bucket_of.at(&param)];
    BucketMember& member = member_of(bucket, param);
    nn::Param& shard =
        shards.add(placement_of(param, bucket, owned_range(bucket, member), mesh, options), param.init, param.decay);
    shard.trainable = param.trainable;
    shard.has_master = param.has_master;
    shard.narrow_gradient = param.narrow_gradient;
    shard.uses = param.uses;
    shard.rate = param.rate;
    shard.equal_axes = param.equal_axes;
    member.shard = &shard;
    shard.master = owned_part(bucket, member, bucket.master_shard);
    shard.value = compute == bucket.master_type
                      ? shard.master
                      : owned_part(bucket, member, options.offload ? bucket.host_value : bucket.value_shard);
    if (param.trainable) shard.gradient = owned_part(bucket, member, bucket.gradient_shard);
  }
}

}  // namespace

DataParallel::DataParallel(std::vector<ShardUnit> units, nn::Params& params, MeshGroups& groups,
                           DataParallelOptions options, const std::vector<std::string>& apart)
    : units_(std::move(units)),
      params_(params),
      options_(std::move(options)),
      mesh_(groups.mesh()),
      rank_(groups.rank()) {
  const layout::Mesh& mesh = groups.mesh();
  plan_ = plan_buckets(units_, params_, options_, {mesh, groups.rank()}, apart);
  if (options_.offload && options_.device.is_cuda()) link_ = std::make_unique<HostLink>(options_.device);
  make_bucket_groups(groups);
  gradients_ = std::make_unique<GradientBuckets>(plan_, groups, options_, link_.get());
  if (options_.has_separate_shards()) make_shards(plan_, params_, shards_, mesh, options_, link_.get());
  weights_ = std::make_unique<ShardedWeights>(ShardedWeights::Parts{
      .options = options_, .units = units_, .plan = plan_, .params = params_, .link = link_.get()});
  slices_ = find_slices(params_, owned(), plan_, mesh);
  const layout::AxisNames normed = norm_axes(owned(), mesh);
  std::vector<layout::AxisNames> wanted{normed};
  for (const SliceReduction& slice : slices_) wanted.push_back(slice.axes());
  groups.agree_on(wanted);
  for (SliceReduction& slice : slices_) slice.prepare(groups);
  across_ = sum_across(owned(), groups, normed);
  if (!options_.late_updates) return;
  groups.agree_on({normed}, /*lanes=*/1, MeshGroups::kUpdateLane);
  late_across_ = sum_across(owned(), groups, normed, MeshGroups::kUpdateLane);
}

DataParallel::~DataParallel() = default;

void DataParallel::make_bucket_groups(MeshGroups& groups) {
  const auto summed = [&](const Bucket& bucket) { return options_.zero > 0 ? bucket.shard_axes : bucket.axes; };
  const auto rest = [&](const Bucket& bucket) {
    return options_.zero > 0 ? layout::subtract(groups.mesh(), bucket.axes, bucket.shard_axes) : layout::AxisNames{};
  };
  std::vector<layout::AxisNames> wanted;
  for (const Bucket& bucket : plan_.buckets) {
    wanted.insert(wanted.end(), {summed(bucket), rest(bucket)});
    if (options_.find_unused) wanted.push_back(bucket.axes);
  }
  groups.agree_on(wanted, options_.reduce_groups);
  int turn = 0;
  for (Bucket& bucket : plan_.buckets) {
    bucket.group = groups.along(summed(bucket), turn++ % options_.reduce_groups);
    bucket.rest = groups.along(rest(bucket));
    if (options_.find_unused) bucket.everyone = groups.along(bucket.axes);
  }
}

double DataParallel::finish() {
  if (!options_.find_unused) gradients_->require_complete();
  weights_->send_out();  // a rank without rows has run no layer
  gradients_->launch_all();
  const auto begin = Clock::now();
  gradients_->settle_all();
  if (options_.find_unused) gradients_->find_unused();
  for (SliceReduction& slice : slices_) slice.sum();
  if (options_.has_separate_shards()) nn::zero_grad(params_);
  for (nn::Param& param : owned()) param.gradient_empty = !param.trainable;
  gradients_->end_step();
  if (first_micro_) first_micro_->end_step();
  return seconds_since(begin);
}

void DataParallel::finish_alone() {
  TRIREME_CHECK(!options_.has_separate_shards(), "shards of gradients are sums over ranks");
  gradients_->require_complete();
  for (nn::Param& param : params_) {
    if (param.trainable && param.gradient_empty) param.gradient.zero_();
    param.gradient_empty = !param.trainable;
  }
  gradients_->end_step();
}

std::vector<at::Tensor> DataParallel::computed() {
  TRIREME_CHECK(options_.offload, "without offload ranks compute with what they own");
  std::vector<at::Tensor> parts;
  for (nn::Param& param : params_) {
    Bucket& bucket = plan_.buckets[plan_.bucket_of.at(&param)];
    parts.push_back(owned_part(bucket, member_of(bucket, param), bucket.value_shard));
  }
  return parts;
}

void DataParallel::measure_first_micro(MeshGroups& groups, FirstMicroOptions options) {
  options.buffers = options_.on_device(options_.precision == nn::Precision::kFp64 ? at::kDouble : at::kFloat);
  first_micro_ = std::make_unique<FirstMicroNorms>(params_, plan_, groups, std::move(options));
  if (first_micro_->overlaps()) return;
  gradients_->on_first_micro(
      [this](const Bucket& bucket, const at::Tensor& gradient) { first_micro_->add(bucket, gradient); });
}

std::vector<double> DataParallel::first_micro_squares(FirstMicroFactors factors) { return first_micro_->take(factors); }

std::vector<DataParallel::BucketUse> DataParallel::bucket_uses() const {
  std::vector<BucketUse> uses;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const std::size_t bucket : plan_.unit_buckets[unit]) uses.push_back({bucket, units_[unit].key});
  }
  return uses;
}

DataParallel::Bytes DataParallel::bytes() const {
  Bytes bytes;
  const auto size = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  };
  for (const Bucket& bucket : plan_.buckets) {
    bytes.parameters += options_.zero == 3 ? size(bucket.value_shard) : size(bucket.value);
    if (options_.zero < 2) bytes.gradients += size(bucket.gradient);
    if (options_.offload) {
      bytes.host_masters += size(bucket.master_shard);
      bytes.host_gradients += size(bucket.gradient_shard) + size(bucket.gradient_other);
      if (!bucket.host_value.is_same(bucket.master_shard)) bytes.host_values += size(bucket.host_value);
      continue;
    }
    if (!bucket.master_shard.is_same(bucket.value_shard)) bytes.masters += size(bucket.master_shard);
    if (options_.zero >= 2) bytes.gradients += size(bucket.gradient_shard) + size(bucket.gradient_other);
  }
  if (!options_.has_separate_shards()) {
    for (const nn::Param& param : params_) {
      bytes.parameters += size(param.value);
      if (!param.value.is_same(param.master)) bytes.masters += size(param.master);
    }
  }
  bytes.buckets = gradients_->pool_bytes() + weights_->bytes();
  bytes.reducer = gradients_->reducer().bytes();
  return bytes;
}

layout::Placement DataParallel::placement_of_moments(const nn::Param& owned) const {
  const layout::AxisNames axes = reducer().drift_axes();
  return axes.empty() ? owned.placement : layout::stack_copies(mesh_, rank_, owned.placement, axes);
}

std::int64_t DataParallel::slice_elements(int ranks) const {
  std::int64_t elements = 0;
  for (const SliceReduction& slice : slices_) elements += slice.elements(ranks);
  return elements;
}

std::unique_ptr<nn::Layer> DataParallel::wrap(std::unique_ptr<nn::Layer> layer, std::size_t unit) {
  if (options_.zero == 0 && !link_) return layer;
  return weights_->fetching(std::move(layer), unit);
}

}  // namespace trireme::parallel
