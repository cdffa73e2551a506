#include "trireme/parallel/replicas.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ranges>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/owned_parts.h"

namespace trireme::parallel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kAlign = 16;  // elements: rows of vectors begin where they begin in memory

/// Sums of ZeRO 2 and 3 under way at once: the matrices of a layer complete in quick succession, then comes a pause.
constexpr std::size_t kInFlight = 4;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t memory_of(const nn::Param& param) { return layout::local_elements(param.placement); }

/// What a member has in flat memory, in its own shape.
at::Tensor view_in(const at::Tensor& flat, const BucketMember& member) {
  return flat.narrow(0, member.offset, memory_of(*member.param)).view(nn::local_shape(member.param->placement));
}

/// Raised by whatever changes a number of the bucket; the same on all ranks.
std::int64_t version_of(const Bucket& bucket) {
  std::int64_t sum = 0;
  for (const BucketMember& member : bucket.members) sum += member.shard->version;
  return sum;
}

/// What this rank owns of a member, in flat memory that holds the rank's part of the bucket.
at::Tensor owned_part(const Bucket& bucket, const BucketMember& member, const at::Tensor& part) {
  const std::int64_t size = memory_of(*member.param);
  const std::int64_t from = std::clamp(bucket.begin - member.offset, std::int64_t{0}, size);
  const std::int64_t to = std::clamp(bucket.end - member.offset, std::int64_t{0}, size);
  if (to <= from) return at::empty({0}, part.options());
  return part.narrow(0, member.offset + from - bucket.begin, to - from).view(nn::local_shape(member.shard->placement));
}

}  // namespace

Replicas::Replicas(std::vector<Unit> units, nn::Params& params, MeshGroups& groups, ReplicaOptions options,
                   const std::vector<std::string>& apart)
    : units_(std::move(units)), params_(params), groups_(groups), options_(std::move(options)) {
  const layout::Mesh& mesh = groups_.mesh();
  data_ = groups_.along(options_.data);
  if (options_.zero > 0) {
    shard_ = groups_.along(options_.shard);
    shard_count_ = mesh.group_size(options_.shard);
    shard_rank_ = mesh.index_in_group(groups_.rank(), options_.shard);
    layout::AxisNames rest = options_.data;
    for (const std::string& axis : options_.shard) rest = layout::without(mesh, rest, axis);
    rest_ = groups_.along(rest);
  }
  make_buckets(apart);
  if (owns_apart()) make_shards();
  extras_ = find_extras(owned(), groups_, options_.data);
  make_across();
}

Replicas::~Replicas() = default;

void Replicas::make_buckets(const std::vector<std::string>& apart) {
  const std::int64_t width = nn::master_type(options_.precision) == at::kDouble ? 8 : 4;
  std::map<const nn::Param*, std::size_t> unit_of;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const nn::Param* param : units_[unit].params) unit_of.try_emplace(param, unit);
  }
  std::vector<nn::Param*> order;
  for (nn::Param& param : params_) order.push_back(&param);
  std::ranges::reverse(order);  // about the order in which backward completes them
  std::map<std::string, std::size_t> open;
  for (nn::Param* param : order) {
    const auto found = unit_of.find(param);
    TRIREME_CHECK(found != unit_of.end(), "no unit has {}", param->name);
    const int key = units_[found->second].key;
    const bool by_itself = std::ranges::find(apart, param->name) != apart.end();
    // With ZeRO 3 a bucket is (a part of) what one unit needs; otherwise as many neighbours as fill it.
    std::string kind = fmt::format("{} {}", key, param->trainable);
    if (options_.zero == 3) kind += fmt::format(" unit {}", found->second);
    if (by_itself) kind += " " + param->name;
    auto at = open.find(kind);
    const std::int64_t size = round_up(memory_of(*param), kAlign);
    if (at != open.end() && options_.bucket_bytes > 0 &&
        (buckets_[at->second].elements + size) * width > options_.bucket_bytes) {
      open.erase(at);
      at = open.end();
    }
    if (at == open.end()) {
      at = open.emplace(kind, buckets_.size()).first;
      buckets_.emplace_back();
      buckets_.back().key = key;
      buckets_.back().trainable = param->trainable;
    }
    Bucket& bucket = buckets_[at->second];
    bucket.members.push_back({.param = param, .offset = bucket.elements});
    bucket.elements += size;
    bucket.expected += param->uses;
    bucket_of_[param] = at->second;
  }
  for (Bucket& bucket : buckets_) {
    bucket.elements = round_up(bucket.elements, kAlign * shard_count_);
    bucket.begin = bucket.elements / shard_count_ * shard_rank_;
    bucket.end = bucket.begin + bucket.elements / shard_count_;
    const at::TensorOptions type = on_device(nn::master_type(options_.precision));
    if (!bucket.trainable) continue;
    if (options_.zero < 2) bucket.gradient = at::zeros({bucket.elements}, type);
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
  unit_buckets_.resize(units_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const nn::Param* param : units_[unit].params) {
      const std::size_t bucket = bucket_of_.at(param);
      auto& list = unit_buckets_[unit];
      if (std::ranges::find(list, bucket) == list.end()) list.push_back(bucket);
    }
  }
}

void Replicas::make_shards() {
  const at::ScalarType compute = nn::compute_type(options_.precision), master = nn::master_type(options_.precision);
  const at::TensorOptions owned_master = options_.offload ? at::TensorOptions(master) : on_device(master);
  for (Bucket& bucket : buckets_) {
    const std::int64_t part = bucket.end - bucket.begin;
    if (options_.zero < 3) {
      bucket.value = at::zeros({bucket.elements}, on_device(compute));
      bucket.value_shard = bucket.value.narrow(0, bucket.begin, part);
      for (const BucketMember& member : bucket.members) member.param->value = view_in(bucket.value, member);
    } else {
      bucket.value_shard = at::zeros({part}, on_device(compute));
    }
    if (options_.offload) {
      bucket.master_shard = at::zeros({part}, master);
      bucket.host_value = compute == master ? bucket.master_shard : at::zeros({part}, compute);
    } else {
      bucket.master_shard = compute == master ? bucket.value_shard : at::zeros({part}, owned_master);
    }
    if (!bucket.trainable) continue;
    const bool in_place = options_.zero == 1 && !options_.offload;
    bucket.gradient_shard = in_place ? bucket.gradient.narrow(0, bucket.begin, part) : at::zeros({part}, owned_master);
  }
  for (nn::Param& param : params_) {  // in the model's order: ranks list the same names
    Bucket& bucket = buckets_[bucket_of_.at(&param)];
    const auto member = std::ranges::find(bucket.members, &param, &BucketMember::param);
    const std::int64_t size = memory_of(param);
    const std::int64_t from = std::clamp(bucket.begin - member->offset, std::int64_t{0}, size);
    const std::int64_t to = std::clamp(bucket.end - member->offset, std::int64_t{0}, size);
    layout::Placement placement = param.placement;
    if (options_.zero > 0) {
      placement.partition = layout::Partition{.begin = from, .end = to, .axes = options_.shard};
    }
    for (layout::Piece& piece : placement.pieces) {
      for (const std::string& axis : options_.shard) {
        piece.replica_axes = layout::without(groups_.mesh(), piece.replica_axes, axis);
      }
    }
    nn::Param& shard = shards_.add(std::move(placement), param.init, param.decay);
    shard.trainable = param.trainable;
    shard.uses = param.uses;
    shard.equal_axes = param.equal_axes;
    member->shard = &shard;
    shard.master = owned_part(bucket, *member, bucket.master_shard);
    shard.value = compute == master
                      ? shard.master
                      : owned_part(bucket, *member, options_.offload ? bucket.host_value : bucket.value_shard);
    if (param.trainable) shard.gradient = owned_part(bucket, *member, bucket.gradient_shard);
  }
}

void Replicas::make_across() {
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

void Replicas::begin_micro(bool last) {
  ++micros_;
  last_ = last;
  for (Bucket& bucket : buckets_) bucket.arrived = 0;
}

void Replicas::added(nn::Param& param) {
  Bucket& bucket = buckets_[bucket_of_.at(&param)];
  std::ranges::find(bucket.members, &param, &BucketMember::param)->contributed = true;
  if (++bucket.arrived < bucket.expected) return;
  if (options_.zero >= 2) {
    bucket.arrived = 0;
    launch(bucket);
  } else if (last_) {
    launch_ready();
  }
}

/// Buckets go in one order on all ranks, whichever is full first.
void Replicas::launch_ready() {
  while (next_ < buckets_.size() &&
         (!buckets_[next_].trainable || buckets_[next_].arrived >= buckets_[next_].expected)) {
    launch(buckets_[next_++]);
  }
  settle_arrived();
}

/// Offload without ZeRO 2: sums that are complete leave for the host while backward goes on.
void Replicas::settle_arrived() {
  if (!options_.offload || options_.zero >= 2) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.launched && bucket.sending.defined() && bucket.work.test()) settle(bucket);
  }
}

void Replicas::start(int key) {
  for (Bucket& bucket : buckets_) {
    if (bucket.key == key && (options_.zero < 2 || bucket.gradient.defined())) launch(bucket);
  }
  settle_arrived();
}

void Replicas::launch(Bucket& bucket) {
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
  if (options_.reduce_bf16) bucket.sending = bucket.sending.to(at::kBFloat16);
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
void Replicas::settle(Bucket& bucket) {
  if (!bucket.launched || !bucket.sending.defined()) return;
  bucket.work.wait();
  bucket.work = {};
  if (options_.zero >= 2) {
    if (bucket.accumulated) {
      bucket.gradient_shard.add_(bucket.arriving);
    } else {
      bucket.gradient_shard.copy_(bucket.arriving);
    }
    bucket.accumulated = true;
    bucket.launched = false;
    std::erase(in_flight_, &bucket);
    bucket.sending = bucket.arriving = at::Tensor();
    gradient_pool_.give(std::exchange(bucket.in_flight, at::Tensor()));
    return;
  }
  if (options_.offload) {
    bucket.gradient_shard.copy_(bucket.arriving);
  } else if (options_.reduce_bf16) {
    (options_.zero == 0 ? bucket.gradient : bucket.gradient_shard).copy_(bucket.arriving);
  }
  bucket.sending = bucket.arriving = at::Tensor();
}

void Replicas::require_complete() const {
  if (micros_ == 0) return;
  std::vector<std::string> missing;
  for (const Bucket& bucket : buckets_) {
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

double Replicas::finish() {
  require_complete();
  send_out();  // a rank without rows has run no layer
  for (Bucket& bucket : buckets_) {
    // Of ZeRO 2 and 3, what layers of this rank did not complete by themselves: tied tables of pipelines.
    if (options_.zero < 2 || bucket.gradient.defined()) launch(bucket);
  }
  const auto begin = Clock::now();
  for (Bucket& bucket : buckets_) settle(bucket);
  sum_rest();
  sum_extras();
  if (owns_apart()) nn::forget_gradients(params_);
  for (nn::Param& param : owned()) param.gradient_empty = !param.trainable;
  for (Bucket& bucket : buckets_) {
    bucket.arrived = 0;
    bucket.launched = bucket.accumulated = false;
    for (BucketMember& member : bucket.members) member.contributed = false;
  }
  next_ = 0;
  micros_ = 0;
  last_ = false;
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Between the groups that each share out everything.
void Replicas::sum_rest() {
  if (rest_ == nullptr) return;
  comm::Batch batch;
  for (Bucket& bucket : buckets_) {
    if (bucket.trainable) {
      batch.add(rest_->all_reduce(device::to_buffer(bucket.gradient_shard), comm::Reduce::kSum));
    }
  }
  batch.commit().wait();
}

void Replicas::sum_extras() {
  for (ExtraSum& extra : extras_) sum_together(extra);
}

void Replicas::updated() {
  if (!owns_apart()) return;
  wait_for_weights();  // two ways into the same memory would mix
  if (options_.offload) {
    for (Bucket& bucket : buckets_) {
      if (version_of(bucket) != bucket.sent) bucket.value_shard.copy_(bucket.host_value);
    }
  }
  publish();
}

/// From the shards on the device to everybody: what has changed since the last time.
void Replicas::publish() {
  unsent_ = true;
  if (options_.offload) send_out();  // an update beside the next step may write where this reads
}

/// New weights set out when the next pass begins, not when they are made: what ranks have to tell each other before it
/// is a few bytes, which would wait behind all of them.
void Replicas::send_out() {
  if (!std::exchange(unsent_, false)) return;
  // Buckets are in the order of backward; forward wants the last of them first.
  for (Bucket& bucket : std::views::reverse(buckets_)) {
    const std::int64_t version = version_of(bucket);
    if (std::exchange(bucket.sent, version) == version || options_.zero == 0 || options_.zero == 3) continue;
    if (shard_ == nullptr) continue;
    bucket.fetching = shard_->all_gather(device::to_const_buffer(bucket.value_shard), device::to_buffer(bucket.value));
    bucket.is_fetching = bucket.is_whole = true;
  }
  if (options_.zero < 3) {
    for (nn::Param& param : params_) ++param.version;
  }
}

void Replicas::wait_for_weights() {
  send_out();
  if (options_.zero == 3) return;  // they travel only while layers run
  for (Bucket& bucket : buckets_) bucket.fetching.wait();
}

void Replicas::hand_over_gradients() {
  TRIREME_CHECK(options_.offload, "gradients that are not on the host cannot be handed over");
  for (Bucket& bucket : buckets_) {
    if (!bucket.trainable) continue;
    if (!bucket.gradient_other.defined()) bucket.gradient_other = at::zeros_like(bucket.gradient_shard);
    std::swap(bucket.gradient_shard, bucket.gradient_other);
    for (const BucketMember& member : bucket.members) {
      member.shard->gradient = owned_part(bucket, member, bucket.gradient_shard);
    }
  }
}

void Replicas::computed_changed() {
  TRIREME_CHECK(options_.offload, "without offload ranks compute with what they own");
  wait_for_weights();
  for (Bucket& bucket : buckets_) bucket.sent = -1;
  publish();
  for (Bucket& bucket : buckets_) bucket.sent = -1;  // what is owned has still to come
}

std::vector<at::Tensor> Replicas::computed() {
  TRIREME_CHECK(options_.offload, "without offload ranks compute with what they own");
  std::vector<at::Tensor> parts;
  for (nn::Param& param : params_) {
    const Bucket& bucket = buckets_[bucket_of_.at(&param)];
    parts.push_back(
        owned_part(bucket, *std::ranges::find(bucket.members, &param, &BucketMember::param), bucket.value_shard));
  }
  return parts;
}

void Replicas::gather(Bucket& bucket) {
  if (bucket.is_fetching || bucket.is_whole) return;
  bucket.value = value_pool_.take(bucket.elements, bucket.value_shard.options());
  bucket.is_fetching = true;
  if (shard_ == nullptr) {
    bucket.value.copy_(bucket.value_shard);
  } else {
    bucket.fetching = shard_->all_gather(device::to_const_buffer(bucket.value_shard), device::to_buffer(bucket.value));
  }
}

void Replicas::release(Bucket& bucket) {
  for (const BucketMember& member : bucket.members) member.param->value = at::Tensor();
  value_pool_.give(std::exchange(bucket.value, at::Tensor()));
  bucket.is_whole = false;
}

void Replicas::enter(std::size_t unit, bool backward) {
  send_out();
  for (const std::size_t number : unit_buckets_[unit]) {
    Bucket& bucket = buckets_[number];
    if (options_.zero == 3) gather(bucket);
    if (bucket.is_fetching) {
      bucket.fetching.wait();
      bucket.fetching = {};
      bucket.is_fetching = false;
      bucket.is_whole = true;
      if (options_.zero == 3) {
        for (const BucketMember& member : bucket.members) member.param->value = view_in(bucket.value, member);
      }
    }
    ++bucket.users;
  }
  if (options_.zero < 3) return;
  // The one that will run next, so that its weights travel while this one computes.
  if (backward ? unit == 0 : unit + 1 == units_.size()) return;
  const std::size_t next = backward ? unit - 1 : unit + 1;
  if (units_[next].key != units_[unit].key) return;
  for (const std::size_t number : unit_buckets_[next]) gather(buckets_[number]);
}

void Replicas::leave(std::size_t unit) {
  for (const std::size_t number : unit_buckets_[unit]) {
    Bucket& bucket = buckets_[number];
    if (--bucket.users == 0 && options_.zero == 3) release(bucket);
  }
}

Replicas::Bytes Replicas::bytes() const {
  Bytes bytes;
  const auto size = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  };
  for (const Bucket& bucket : buckets_) {
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
  if (!owns_apart()) {
    for (const nn::Param& param : params_) {
      bytes.parameters += size(param.value);
      if (!param.value.is_same(param.master)) bytes.masters += size(param.master);
    }
  }
  bytes.buckets = gradient_pool_.bytes() + value_pool_.bytes();
  return bytes;
}

std::int64_t Replicas::extra_elements(int ranks) const {
  std::int64_t elements = 0;
  for (const ExtraSum& extra : extras_) {
    if (extra.group->size() != ranks) continue;
    for (const ExtraSum::Stretch& stretch : extra.stretches) elements += stretch.count;
  }
  return elements;
}

namespace {

/// Fetches a unit's weights before it runs and lets go of them after.
class Fetching final : public nn::Layer {
 public:
  Fetching(std::unique_ptr<nn::Layer> layer, Replicas& replicas, std::size_t unit)
      : layer_(std::move(layer)), replicas_(replicas), unit_(unit) {}

  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    replicas_.enter(unit_, /*backward=*/false);
    nn::Tensors outputs = layer_->forward(std::move(inputs), context, tape);
    replicas_.leave(unit_);
    return outputs;
  }

  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    replicas_.enter(unit_, /*backward=*/true);
    nn::Tensors out = layer_->backward(std::move(gradients), context, tape);
    replicas_.leave(unit_);
    return out;
  }

 private:
  std::unique_ptr<nn::Layer> layer_;
  Replicas& replicas_;
  std::size_t unit_;
};

}  // namespace

std::unique_ptr<nn::Layer> Replicas::wrap(std::unique_ptr<nn::Layer> layer, std::size_t unit) {
  if (options_.zero == 0) return layer;
  return std::make_unique<Fetching>(std::move(layer), *this, unit);
}

}  // namespace trireme::parallel
