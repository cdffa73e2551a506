#include "trireme/parallel/sharded_weights.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {

void ShardedWeights::updated() {
  const DataParallelOptions& options = parts_.options;
  if (!options.has_separate_shards()) return;
  wait();  // two ways into the same memory would mix
  if (options.offload) {
    for (Bucket& bucket : parts_.plan.buckets) {
      if (version_of(bucket) == bucket.sent) continue;
      if (parts_.link != nullptr) {
        upload(bucket);
      } else {
        bucket.value_shard.copy_(bucket.host_value);
      }
    }
  }
  publish();
}

void ShardedWeights::updated(const nn::Param& owned) {
  const auto has = [&](const Bucket& bucket) {
    return std::ranges::any_of(bucket.members, [&](const BucketMember& member) { return member.shard == &owned; });
  };
  const auto bucket = std::ranges::find_if(parts_.plan.buckets, has);
  TRIREME_CHECK(bucket != parts_.plan.buckets.end(), "no bucket has {}", owned.name);
  if (++bucket->updated == static_cast<int>(bucket->members.size())) upload(*bucket);
}

/// Where they are not on their way already.
void ShardedWeights::upload(Bucket& bucket) {
  bucket.updated = 0;
  if (std::exchange(bucket.uploaded, version_of(bucket)) == version_of(bucket)) return;
  bucket.upload = parts_.link->upload(bucket.host_value, bucket.value_shard);
}

void ShardedWeights::order_after_upload(Bucket& bucket) {
  if (bucket.upload != 0) parts_.link->before_compute(std::exchange(bucket.upload, 0));
}

void ShardedWeights::changed_on_device() {
  TRIREME_CHECK(parts_.options.offload, "without offload ranks compute with what they own");
  wait();
  for (Bucket& bucket : parts_.plan.buckets) bucket.sent = -1;
  publish();
  for (Bucket& bucket : parts_.plan.buckets) bucket.sent = -1;  // what is owned has still to come
}

/// From the shards on the device to everybody: what has changed since the last time.
void ShardedWeights::publish() {
  unsent_ = true;
  if (parts_.options.offload) send_out();  // an update beside the next step may write where this reads
}

void ShardedWeights::send_out() {
  if (!std::exchange(unsent_, false)) return;
  const int zero = parts_.options.zero;
  // Buckets are in the order of backward; forward wants the last of them first.
  for (Bucket& bucket : std::views::reverse(parts_.plan.buckets)) {
    const std::int64_t version = version_of(bucket);
    if (std::exchange(bucket.sent, version) == version || zero == 0 || zero == 3) continue;
    if (bucket.group == nullptr) continue;
    order_after_upload(bucket);
    bucket.fetching =
        bucket.group->all_gather(device::to_const_buffer(bucket.value_shard), device::to_buffer(bucket.value));
    bucket.is_fetching = bucket.is_whole = true;
  }
  for (nn::Param& param : parts_.params) ++param.version;  // what layers derived from old ones is of no use any more
}

void ShardedWeights::wait() {
  send_out();
  for (Bucket& bucket : parts_.plan.buckets) order_after_upload(bucket);
  if (parts_.options.zero == 3) return;  // they travel only while layers run
  for (Bucket& bucket : parts_.plan.buckets) bucket.fetching.wait();
}

void ShardedWeights::make_part(const Bucket& bucket, const MakePart& make, at::Tensor& part) const {
  part.zero_();  // between members and behind the last
  for (const BucketMember& member : bucket.members) {
    if (member.shard->master.numel() > 0) owned_part(bucket, member, part).copy_(make(*member.shard));
  }
}

void ShardedWeights::gather_made(int key, const MakePart& make,
                                 const std::function<void(const nn::Param& param, const at::Tensor& whole)>& take) {
  TRIREME_CHECK(parts_.options.has_separate_shards() && parts_.options.zero < 3,
                "whole weights are made of shards with ZeRO 1 and 2, and with offload");
  for (Bucket& bucket : parts_.plan.buckets) {
    if (bucket.key != key) continue;
    at::Tensor part = pool_.take(bucket.end - bucket.begin, bucket.value_shard.options());
    make_part(bucket, make, part);
    at::Tensor whole = part;
    const bool gathers = parts_.options.zero > 0 && bucket.group != nullptr;
    if (gathers) {
      whole = pool_.take(bucket.elements, bucket.value_shard.options());
      bucket.group->all_gather(device::to_const_buffer(part), device::to_buffer(whole)).wait();
    }
    for (const BucketMember& member : bucket.members) take(*member.param, view_in(whole, member));
    if (gathers) pool_.give(std::move(whole));
    pool_.give(std::move(part));
  }
}

std::vector<at::Tensor> ShardedWeights::version_parts(int key) const {
  std::vector<at::Tensor> parts;
  for (const Bucket& bucket : parts_.plan.buckets) {
    if (bucket.key == key) parts.push_back(bucket.value_shard);
  }
  return parts;
}

void ShardedWeights::make_version(int key, const MakePart& make, std::vector<at::Tensor>& parts) const {
  std::size_t at = 0;
  for (const Bucket& bucket : parts_.plan.buckets) {
    if (bucket.key == key) make_part(bucket, make, parts.at(at++));
  }
}

void ShardedWeights::use_version(int key, const std::vector<at::Tensor>* parts) {
  std::size_t at = 0;
  for (Bucket& bucket : parts_.plan.buckets) {
    if (bucket.key != key) continue;
    TRIREME_CHECK(!bucket.is_fetching && !bucket.is_whole, "weights of chunk {} change their version during a pass",
                  key);
    bucket.version_shard = parts != nullptr ? parts->at(at++) : at::Tensor();
  }
}

void ShardedWeights::gather(Bucket& bucket) {
  if (bucket.is_fetching || bucket.is_whole) return;
  bucket.value = pool_.take(bucket.elements, bucket.value_shard.options());
  bucket.is_fetching = true;
  order_after_upload(bucket);
  const at::Tensor& part = bucket.version_shard.defined() ? bucket.version_shard : bucket.value_shard;
  if (bucket.group == nullptr) {
    bucket.value.copy_(part);
  } else {
    bucket.fetching = bucket.group->all_gather(device::to_const_buffer(part), device::to_buffer(bucket.value));
  }
}

void ShardedWeights::release(Bucket& bucket) {
  for (const BucketMember& member : bucket.members) member.param->value = at::Tensor();
  pool_.give(std::exchange(bucket.value, at::Tensor()));
  bucket.is_whole = false;
}

void ShardedWeights::enter(std::size_t unit, bool backward) {
  const bool gathers = parts_.options.zero == 3;
  const auto& unit_buckets = parts_.plan.unit_buckets;
  send_out();
  for (const std::size_t number : unit_buckets[unit]) {
    Bucket& bucket = parts_.plan.buckets[number];
    order_after_upload(bucket);
    if (gathers) gather(bucket);
    if (bucket.is_fetching) {
      bucket.fetching.wait();
      bucket.fetching = {};
      bucket.is_fetching = false;
      bucket.is_whole = true;
      if (gathers) {
        for (const BucketMember& member : bucket.members) member.param->value = view_in(bucket.value, member);
      }
    }
    ++bucket.users;
  }
  if (!gathers) return;
  // The one that will run next, so that its weights travel while this one computes.
  std::size_t next = unit;
  do {
    if (backward ? next == 0 : next + 1 == parts_.units.size()) return;
    next += backward ? std::size_t(-1) : 1;
  } while (next < skipped_.size() && skipped_[next]);
  if (parts_.units[next].key != parts_.units[unit].key) return;
  for (const std::size_t number : unit_buckets[next]) gather(parts_.plan.buckets[number]);
}

void ShardedWeights::leave(std::size_t unit) {
  for (const std::size_t number : parts_.plan.unit_buckets[unit]) {
    Bucket& bucket = parts_.plan.buckets[number];
    if (--bucket.users == 0 && parts_.options.zero == 3) release(bucket);
  }
}

namespace {

/// Fetches a unit's weights before it runs and lets go of them after; new ones from the host are waited for.
class Fetching final : public nn::Layer {
 public:
  Fetching(std::unique_ptr<nn::Layer> layer, ShardedWeights& weights, std::size_t unit)
      : layer_(std::move(layer)), weights_(weights), unit_(unit) {}

  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    weights_.enter(unit_, /*backward=*/false);
    nn::Tensors outputs = layer_->forward(std::move(inputs), context, tape);
    weights_.leave(unit_);
    return outputs;
  }

  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    weights_.enter(unit_, /*backward=*/true);
    nn::Tensors out = layer_->backward(std::move(gradients), context, tape);
    weights_.leave(unit_);
    return out;
  }

 private:
  std::unique_ptr<nn::Layer> layer_;
  ShardedWeights& weights_;
  std::size_t unit_;
};

}  // namespace

std::unique_ptr<nn::Layer> ShardedWeights::fetching(std::unique_ptr<nn::Layer> layer, std::size_t unit) {
  return std::make_unique<Fetching>(std::move(layer), *this, unit);
}

}  // namespace trireme::parallel
