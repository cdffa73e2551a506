#include "trireme/parallel/data_parallel.h"

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/owned_parts.h"
#include "trireme/parallel/shards.h"

namespace trireme::parallel {
namespace {

using Clock = std::chrono::steady_clock;

/// Sums of ZeRO 2 and 3 under way at once: the matrices of a layer complete in quick succession, then comes a pause.
constexpr std::size_t kInFlight = 4;

}  // namespace

DataParallel::DataParallel(std::vector<ShardUnit> units, nn::Params& params, MeshGroups& groups,
                           DataParallelOptions options, const std::vector<std::string>& apart)
    : units_(std::move(units)), params_(params), groups_(groups), options_(std::move(options)) {
  const layout::Mesh& mesh = groups_.mesh();
  data_ = groups_.along(options_.data);
  BucketShare share;
  if (options_.zero > 0) {
    shard_ = groups_.along(options_.shard);
    share = {.count = mesh.group_size(options_.shard), .rank = mesh.index_in_group(groups_.rank(), options_.shard)};
    layout::AxisNames rest = options_.data;
    for (const std::string& axis : options_.shard) rest = layout::without(mesh, rest, axis);
    rest_ = groups_.along(rest);
  }
  if (options_.offload && options_.device.is_cuda()) link_ = std::make_unique<HostLink>(options_.device);
  plan_ = plan_buckets(units_, params_, options_, share, apart);
  provide_gradients();
  if (options_.owns_apart()) make_shards(plan_, params_, shards_, mesh, options_, link_.get());
  weights_ = std::make_unique<ShardedWeights>(ShardedWeights::Parts{
      .options = options_, .units = units_, .plan = plan_, .params = params_, .shard = shard_, .link = link_.get()});
  extras_ = find_extras(owned(), groups_, options_.data);
  make_across();
}

DataParallel::~DataParallel() = default;

bool DataParallel::travels_rounded(const Bucket& bucket) const {
  return options_.reduce_bf16 && bucket.gradient_type != at::kBFloat16;
}

/// Where layers put them: memory for the whole run, or with ZeRO 2 and 3 what a bucket is lent until its sum is made.
void DataParallel::provide_gradients() {
  for (Bucket& bucket : plan_.buckets) {
    const at::TensorOptions type = options_.on_device(bucket.gradient_type);
    if (!bucket.trainable) continue;
    if (options_.zero < 2) {
      bucket.gradient = at::zeros({bucket.elements}, type);
      comm::Group* group = options_.zero > 0 ? shard_ : data_;
      if (group != nullptr && !travels_rounded(bucket))
        kept_.push_back(group->keep(device::to_buffer(bucket.gradient)));
    }
    for (const BucketMember& member : bucket.members) {
      if (options_.zero < 2) {
        member.param->gradient = view_in(bucket.gradient, member);
      } else {
        member.param->provide_gradient = [this, &bucket, type, member] {
          if (!bucket.gradient.defined()) {
            bucket.gradient = gradient_pool_.take(bucket.elements, type);
          }
          return view_in(bucket.gradient, member);
        };
      }
    }
  }
}

void DataParallel::make_across() {
  layout::AxisNames axes = options_.zero > 0 ? options_.shard : layout::AxisNames{};
  for (const layout::Axis& axis : groups_.mesh().axes()) {
    if (axis.name == "tp") axes.emplace_back("tp");
  }
  comm::Group* parts = groups_.along(axes);
  if (parts == nullptr) return;
  count_once(owned(), groups_.mesh(), groups_.rank(), axes);
  across_.sum_parts = [parts](std::span<double> squares) {
    parts->all_reduce(comm::Buffer{squares.data(), squares.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  };
}

void DataParallel::begin_micro(bool last) {
  ++micros_;
  last_ = last;
  for (Bucket& bucket : plan_.buckets) bucket.arrived = 0;
}

void DataParallel::added(nn::Param& param) {
  Bucket& bucket = bucket_of(param);
  member_of(bucket, param).contributed = true;
  if (++bucket.arrived < bucket.expected) return;
  if (options_.zero >= 2) {
    bucket.arrived = 0;
    launch(bucket);
  } else if (last_) {
    launch_ready();
  }
}

/// Buckets go in one order on all ranks, whichever is full first.
void DataParallel::launch_ready() {
  while (next_ < plan_.buckets.size() &&
         (!plan_.buckets[next_].trainable || plan_.buckets[next_].arrived >= plan_.buckets[next_].expected)) {
    launch(plan_.buckets[next_++]);
  }
  settle_arrived();
}

/// Offload without ZeRO 2: sums that are complete leave for the host while backward goes on.
void DataParallel::settle_arrived() {
  if (!options_.offload || options_.zero >= 2) return;
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.launched && bucket.sending.defined() && bucket.work.test()) settle(bucket);
  }
}

void DataParallel::start(int key) {
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.key == key && (options_.zero < 2 || bucket.gradient.defined())) launch(bucket);
  }
  settle_arrived();
}

void DataParallel::launch(Bucket& bucket) {
  if (!bucket.trainable || (options_.zero < 2 && bucket.launched)) return;
  if (options_.zero < 2) {
    for (const BucketMember& member : bucket.members) {
      if (member.param->gradient_empty) member.param->gradient.zero_();  // a rank without rows adds nothing
    }
    bucket.sending = bucket.gradient;
  } else {
    // The next micro fills other memory while this travels; a few at a time, or all of it would be in memory after all.
    settle(bucket);
    while (in_flight_.size() >= kInFlight) settle(*in_flight_.front());
    for (const BucketMember& member : bucket.members) {
      nn::gradient_to_add_to(*member.param);
      member.param->gradient = at::Tensor();
      member.param->gradient_empty = true;
    }
    bucket.sending = bucket.in_flight = std::exchange(bucket.gradient, at::Tensor());
    in_flight_.push_back(&bucket);
  }
  bucket.launched = true;
  if (travels_rounded(bucket)) bucket.sending = bucket.sending.to(at::kBFloat16);
  comm::Group* group = options_.zero > 0 ? shard_ : data_;
  bucket.arriving =
      options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
  if (group == nullptr) return;
  if (options_.zero == 0) {
    bucket.work = group->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
  } else {
    bucket.work = group->reduce_scatter(device::to_const_buffer(bucket.sending), device::to_buffer(bucket.arriving),
                                        comm::Reduce::kSum);
  }
}

/// Ends a sum that is under way, and leaves it where it belongs.
void DataParallel::settle(Bucket& bucket) {
  if (!bucket.launched || !bucket.sending.defined()) return;
  bucket.work.wait();
  bucket.work = {};
  if (options_.zero >= 2) {
    if (link_) {
      link_->send(bucket.arriving, bucket.gradient_shard, bucket.accumulated,
                  [this, left = bucket.in_flight] { gradient_pool_.give(left); });
      bucket.in_flight = at::Tensor();
    } else if (bucket.accumulated) {
      bucket.gradient_shard.add_(bucket.arriving);
    } else {
      bucket.gradient_shard.copy_(bucket.arriving);
    }
    bucket.accumulated = true;
    bucket.launched = false;
    std::erase(in_flight_, &bucket);
    bucket.sending = bucket.arriving = at::Tensor();
    if (bucket.in_flight.defined()) gradient_pool_.give(std::exchange(bucket.in_flight, at::Tensor()));
    return;
  }
  if (link_) {
    link_->send(bucket.arriving, bucket.gradient_shard, /*add=*/false);
  } else if (options_.offload) {
    bucket.gradient_shard.copy_(bucket.arriving);
  } else if (travels_rounded(bucket)) {
    (options_.zero == 0 ? bucket.gradient : bucket.gradient_shard).copy_(bucket.arriving);
  }
  bucket.sending = bucket.arriving = at::Tensor();
}

void DataParallel::require_complete() const {
  if (micros_ == 0) return;
  std::vector<std::string> missing;
  for (const Bucket& bucket : plan_.buckets) {
    for (const BucketMember& member : bucket.members) {
      if (bucket.trainable && !member.contributed) missing.push_back(member.param->name);
    }
  }
  if (missing.empty()) return;
  const std::size_t count = missing.size();
  if (count > 8) {
    missing.resize(7);
    missing.push_back(fmt::format("{} more", count - 7));
  }
  throw ConfigError(
      fmt::format("no layer has given a gradient to {}, so its sum over ranks cannot be made", listed(missing)),
      "freeze what the loss does not depend on (train.freeze)");
}

void DataParallel::complete() {
  TRIREME_CHECK(options_.zero < 2 && !options_.offload, "sums that leave gradients elsewhere are not recorded");
  require_complete();
  for (Bucket& bucket : plan_.buckets) {
    launch(bucket);
    settle(bucket);
  }
}

void DataParallel::replayed() {
  for (Bucket& bucket : plan_.buckets) {
    bucket.launched = bucket.trainable;
    for (BucketMember& member : bucket.members) member.contributed = true;
  }
}

double DataParallel::finish() {
  require_complete();
  weights_->send_out();  // a rank without rows has run no layer
  for (Bucket& bucket : plan_.buckets) {
    // Of ZeRO 2 and 3, what layers of this rank did not complete by themselves: tied tables of pipelines.
    if (options_.zero < 2 || bucket.gradient.defined()) launch(bucket);
  }
  const auto begin = Clock::now();
  for (Bucket& bucket : plan_.buckets) settle(bucket);
  if (link_) link_->wait_for_sent();
  sum_rest();
  sum_extras();
  if (options_.owns_apart()) nn::zero_grad(params_);
  for (nn::Param& param : owned()) param.gradient_empty = !param.trainable;
  for (Bucket& bucket : plan_.buckets) {
    bucket.arrived = 0;
    bucket.launched = bucket.accumulated = false;
    for (BucketMember& member : bucket.members) member.contributed = false;
  }
  next_ = 0;
  micros_ = 0;
  last_ = false;
  return seconds_since(begin);
}

/// Between the groups that each share out everything.
void DataParallel::sum_rest() {
  if (rest_ == nullptr) return;
  comm::Batch batch;
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.trainable) {
      batch.add(rest_->all_reduce(device::to_buffer(bucket.gradient_shard), comm::Reduce::kSum));
    }
  }
  batch.commit().wait();
}

void DataParallel::sum_extras() {
  for (ExtraSum& extra : extras_) sum_together(extra);
}

void DataParallel::hand_over_gradients() {
  TRIREME_CHECK(options_.offload, "gradients that are not on the host cannot be handed over");
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    if (!bucket.gradient_other.defined()) {
      bucket.gradient_other = link_ ? link_->zeros(bucket.gradient_shard.numel(), bucket.gradient_shard.scalar_type())
                                    : at::zeros_like(bucket.gradient_shard);
    }
    std::swap(bucket.gradient_shard, bucket.gradient_other);
    for (const BucketMember& member : bucket.members) {
      member.shard->gradient = owned_part(bucket, member, bucket.gradient_shard);
    }
  }
}

std::vector<at::Tensor> DataParallel::computed() {
  TRIREME_CHECK(options_.offload, "without offload ranks compute with what they own");
  std::vector<at::Tensor> parts;
  for (nn::Param& param : params_) {
    Bucket& bucket = bucket_of(param);
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
  bytes.buckets = gradient_pool_.bytes() + weights_->bytes();
  return bytes;
}

std::int64_t DataParallel::extra_elements(int ranks) const {
  std::int64_t elements = 0;
  for (const ExtraSum& extra : extras_) {
    if (extra.group->size() != ranks) continue;
    for (const ExtraSum::BucketSlice& stretch : extra.stretches) elements += stretch.count;
  }
  return elements;
}

std::unique_ptr<nn::Layer> DataParallel::wrap(std::unique_ptr<nn::Layer> layer, std::size_t unit) {
  if (options_.zero == 0 && !link_) return layer;
  return weights_->fetching(std::move(layer), unit);
}

}  // namespace trireme::parallel
