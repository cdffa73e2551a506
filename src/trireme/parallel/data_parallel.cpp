#include "trireme/parallel/data_parallel.h"

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/layout/axis_sets.h"
#include "trireme/parallel/gradient_norm.h"
#include "trireme/parallel/shards.h"

namespace trireme::parallel {

using Clock = std::chrono::steady_clock;

DataParallel::DataParallel(std::vector<ShardUnit> units, nn::Params& params, MeshGroups& groups,
                           DataParallelOptions options, const std::vector<std::string>& apart)
    : units_(std::move(units)), params_(params), options_(std::move(options)) {
  const layout::Mesh& mesh = groups.mesh();
  plan_ = plan_buckets(units_, params_, options_, {mesh, groups.rank()}, apart);
  if (options_.offload && options_.device.is_cuda()) link_ = std::make_unique<HostLink>(options_.device);
  make_bucket_groups(groups);
  gradients_ = std::make_unique<GradientBuckets>(plan_, groups, options_, link_.get());
  if (options_.owns_apart()) make_shards(plan_, params_, shards_, mesh, options_, link_.get());
  weights_ = std::make_unique<ShardedWeights>(ShardedWeights::Parts{
      .options = options_, .units = units_, .plan = plan_, .params = params_, .link = link_.get()});
  slices_ = find_slices(params_, owned(), plan_, mesh);
  const layout::AxisNames normed = norm_axes(owned(), mesh);
  std::vector<layout::AxisNames> wanted{normed};
  for (const SliceReduction& slice : slices_) wanted.push_back(slice.axes());
  groups.agree_on(wanted);
  for (SliceReduction& slice : slices_) slice.prepare(groups);
  across_ = sum_across(owned(), groups, normed);
}

DataParallel::~DataParallel() = default;

void DataParallel::make_bucket_groups(MeshGroups& groups) {
  const auto summed = [&](const Bucket& bucket) { return options_.zero > 0 ? bucket.shard_axes : bucket.axes; };
  const auto rest = [&](const Bucket& bucket) {
    return options_.zero > 0 ? layout::subtract(groups.mesh(), bucket.axes, bucket.shard_axes) : layout::AxisNames{};
  };
  std::vector<layout::AxisNames> wanted;
  for (const Bucket& bucket : plan_.buckets) wanted.insert(wanted.end(), {summed(bucket), rest(bucket)});
  groups.agree_on(wanted);
  for (Bucket& bucket : plan_.buckets) {
    bucket.group = groups.along(summed(bucket));
    bucket.rest = groups.along(rest(bucket));
  }
}

double DataParallel::finish() {
  gradients_->require_complete();
  weights_->send_out();  // a rank without rows has run no layer
  gradients_->launch_all();
  const auto begin = Clock::now();
  gradients_->settle_all();
  for (SliceReduction& slice : slices_) slice.sum();
  if (options_.owns_apart()) nn::zero_grad(params_);
  for (nn::Param& param : owned()) param.gradient_empty = !param.trainable;
  gradients_->end_step();
  return seconds_since(begin);
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
    if (options_.zero >= 2) bytes.gradients += size(bucket.gradient_shard);
  }
  if (!options_.owns_apart()) {
    for (const nn::Param& param : params_) {
      bytes.parameters += size(param.value);
      if (!param.value.is_same(param.master)) bytes.masters += size(param.master);
    }
  }
  bytes.buckets = gradients_->lent_bytes() + weights_->bytes();
  bytes.reducer = gradients_->reducer().bytes();
  return bytes;
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
