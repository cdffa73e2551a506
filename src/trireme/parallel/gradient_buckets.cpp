#include "trireme/parallel/gradient_buckets.h"

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/nn/state.h"

namespace trireme::parallel {
namespace {

/// Sums of ZeRO 2 and 3 under way at once: the matrices of a layer complete in quick succession, then comes a pause.
constexpr std::size_t kInFlight = 4;

}  // namespace

GradientBuckets::GradientBuckets(BucketPlan& plan, MeshGroups& groups, const DataParallelOptions& options,
                                 HostLink* link)
    : plan_(plan), options_(options), link_(link) {
  provide_gradients();
  reducer_ = options.reducer({.options = options, .plan = plan, .groups = groups});
}

void GradientBuckets::provide_gradients() {
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    const at::TensorOptions type = options_.on_device(bucket.gradient_type);
    if (options_.zero < 2) bucket.gradient = at::zeros({bucket.elements}, type);
    for (const BucketMember& member : bucket.members) {
      if (options_.zero < 2) {
        member.param->gradient = view_in(bucket.gradient, member);
      } else {
        member.param->provide_gradient = [this, &bucket, type, member] {
          if (!bucket.gradient.defined()) bucket.gradient = pool_.take(bucket.elements, type);
          return view_in(bucket.gradient, member);
        };
      }
    }
  }
}

void GradientBuckets::begin_micro(bool last) {
  if (first_micro_ && micros_ == 1 && options_.zero < 2) {
    for (const Bucket& bucket : plan_.buckets) {
      if (bucket.trainable) first_micro_(bucket, bucket.gradient);
    }
  }
  ++micros_;
  last_ = last;
  for (Bucket& bucket : plan_.buckets) bucket.arrived = 0;
}

void GradientBuckets::added(nn::Param& param) {
  Bucket& bucket = plan_.buckets[plan_.bucket_of.at(&param)];
  member_of(bucket, param).contributed = true;
  if (step_begun_) reducer_->progress();
  if (++bucket.arrived < bucket.expected) return;
  if (goes_in_order()) {
    launch_in_order(bucket.key, /*all=*/false);
  } else if (options_.zero >= 2) {
    bucket.arrived = 0;
    launch(bucket);
  } else if (last_) {
    launch_ready();
  }
}

/// Up to the first that may still get something in this pass; or all that are left.
void GradientBuckets::launch_in_order(int key, bool all) {
  std::size_t& next = next_of_pass_[key];
  for (; next < plan_.buckets.size(); ++next) {
    Bucket& bucket = plan_.buckets[next];
    if (bucket.key != key || !bucket.trainable) continue;
    if (!all && bucket.arrived < bucket.expected) return;
    bucket.arrived = 0;
    launch(bucket);
  }
}

void GradientBuckets::end_pass(int key) {
  if (!goes_in_order()) return;
  launch_in_order(key, /*all=*/true);
  next_of_pass_[key] = 0;
}

/// Buckets go in one order on all ranks, whichever is full first.
void GradientBuckets::launch_ready() {
  while (next_ < plan_.buckets.size() &&
         (!plan_.buckets[next_].trainable || plan_.buckets[next_].arrived >= plan_.buckets[next_].expected)) {
    launch(plan_.buckets[next_++]);
  }
  settle_arrived();
}

/// Offload without ZeRO 2: sums that are complete leave for the host while backward goes on.
void GradientBuckets::settle_arrived() {
  if (!options_.offload || options_.zero >= 2) return;
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.launched && bucket.sending.defined() && reducer_->arrived(bucket)) settle(bucket);
  }
}

void GradientBuckets::start(int key) {
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.key == key && (options_.zero < 2 || bucket.gradient.defined())) launch(bucket);
  }
  settle_arrived();
}

void GradientBuckets::launch(Bucket& bucket) {
  if (!bucket.trainable || (options_.zero < 2 && bucket.launched)) return;
  if (!std::exchange(step_begun_, true)) reducer_->begin_step(steps_);
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
  if (first_micro_ && micros_ == 1) first_micro_(bucket, bucket.sending);
  reducer_->launch(bucket);
}

/// Ends a sum that is under way, and leaves it where it belongs.
void GradientBuckets::settle(Bucket& bucket) {
  if (!bucket.launched || !bucket.sending.defined()) return;
  reducer_->settle(bucket);
  if (options_.zero >= 2) {
    store_and_free(bucket);
  } else {
    store(bucket);
  }
  bucket.sending = bucket.arriving = at::Tensor();
}

void GradientBuckets::store(Bucket& bucket) {
  if (link_ != nullptr) return link_->send(bucket.arriving, bucket.gradient_shard, /*add=*/false);
  const at::Tensor& place = options_.has_separate_shards() ? bucket.gradient_shard : bucket.gradient;
  if (place.data_ptr() != bucket.arriving.data_ptr()) place.copy_(bucket.arriving);
}

/// ZeRO 2 and 3: to what earlier micros have left in the shard; the memory of the whole is lent again.
void GradientBuckets::store_and_free(Bucket& bucket) {
  if (link_ != nullptr) {
    link_->send(bucket.arriving, bucket.gradient_shard, bucket.accumulated,
                [this, left = bucket.in_flight] { pool_.give(left); });
    bucket.in_flight = at::Tensor();
  } else if (bucket.accumulated) {
    bucket.gradient_shard.add_(bucket.arriving);
  } else {
    bucket.gradient_shard.copy_(bucket.arriving);
  }
  bucket.accumulated = true;
  bucket.launched = false;
  std::erase(in_flight_, &bucket);
  if (bucket.in_flight.defined()) pool_.give(std::exchange(bucket.in_flight, at::Tensor()));
}

void GradientBuckets::require_complete() const {
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
      "freeze what the loss does not depend on (train.freeze), or set layout.find_unused = true");
}

void GradientBuckets::complete() {
  TRIREME_CHECK(!options_.find_unused, "whether parameters are unused is not recorded");
  TRIREME_CHECK(options_.zero < 2 && !options_.offload, "sums that leave gradients elsewhere are not recorded");
  TRIREME_CHECK(reducer_->can_be_captured(), "this reduction is not the same in every step: {}",
                reducer_->description());
  require_complete();
  for (Bucket& bucket : plan_.buckets) {
    launch(bucket);
    settle(bucket);
  }
}

void GradientBuckets::replayed() {
  for (Bucket& bucket : plan_.buckets) {
    bucket.launched = bucket.trainable;
    for (BucketMember& member : bucket.members) member.contributed = true;
  }
}

void GradientBuckets::launch_all() {
  for (Bucket& bucket : plan_.buckets) {
    // Of ZeRO 2 and 3, what layers of this rank did not complete by themselves: tied tables of pipelines.
    if (options_.zero < 2 || bucket.gradient.defined()) launch(bucket);
  }
}

void GradientBuckets::settle_all() {
  for (Bucket& bucket : plan_.buckets) settle(bucket);
  if (link_ != nullptr) link_->wait_for_sent();
  reducer_->finish(plan_.buckets);
}

/// A bitmap over all parameters of a group, in one call; only after all buckets, whose order on a group is the same on
/// all ranks, while the end of a backward is not.
void GradientBuckets::find_unused() {
  std::vector<std::pair<comm::Group*, std::vector<BucketMember*>>> members;  // groups in the order of buckets
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    auto found = std::ranges::find(members, bucket.everyone, [](const auto& entry) { return entry.first; });
    if (found == members.end()) found = members.insert(members.end(), {bucket.everyone, {}});
    for (BucketMember& member : bucket.members) found->second.push_back(&member);
  }
  for (const auto& [group, list] : members) {
    std::vector<std::uint8_t> used;
    for (const BucketMember* member : list) used.push_back(member->contributed ? 1 : 0);
    if (group != nullptr)
      group->all_reduce(comm::Buffer{used.data(), used.size(), comm::DType::kU8}, comm::Reduce::kMax).wait();
    for (std::size_t i = 0; i < list.size(); ++i) {
      nn::Param& owned = list[i]->shard != nullptr ? *list[i]->shard : *list[i]->param;
      owned.unused = used[i] == 0;
    }
  }
}

void GradientBuckets::end_step() {
  for (Bucket& bucket : plan_.buckets) {
    bucket.arrived = 0;
    bucket.launched = bucket.accumulated = false;
    for (BucketMember& member : bucket.members) member.contributed = false;
  }
  next_ = 0;
  micros_ = 0;
  last_ = step_begun_ = false;
}

void GradientBuckets::step_taken(const TakenStep& step) {
  ++steps_;
  reducer_->step_taken(step);
}

void GradientBuckets::add_state(nn::State& state) {
  if (!reducer_->has_state()) return;
  state.add_value(
      "reduce/steps", [this] { return nlohmann::ordered_json(steps_); },
      [this](const nlohmann::ordered_json& value) { steps_ = value.get<std::int64_t>(); });
  reducer_->add_state(state);
}

void GradientBuckets::swap_buffers() {
  TRIREME_CHECK(options_.has_separate_gradients(), "gradients that layers add to cannot be handed over");
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

void GradientBuckets::restore_buffers() {
  for (Bucket& bucket : plan_.buckets) settle(bucket);  // into memory that goes back
  if (link_ != nullptr) link_->wait_for_sent();
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    for (const BucketMember& member : bucket.members) {
      if (options_.zero >= 2) member.param->gradient = at::Tensor();
      member.param->gradient_empty = true;
    }
    if (options_.zero >= 2 && bucket.gradient.defined()) pool_.give(std::exchange(bucket.gradient, at::Tensor()));
  }
  end_step();
  swap_buffers();
}

}  // namespace trireme::parallel
