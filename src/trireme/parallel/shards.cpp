#include "trireme/parallel/shards.h"

#include <ATen/ops/zeros.h>

#include "trireme/layout/axis_sets.h"

namespace trireme::parallel {
namespace {

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

}  // namespace

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
    shard.equal_axes = param.equal_axes;
    member.shard = &shard;
    shard.master = owned_part(bucket, member, bucket.master_shard);
    shard.value = compute == bucket.master_type
                      ? shard.master
                      : owned_part(bucket, member, options.offload ? bucket.host_value : bucket.value_shard);
    if (param.trainable) shard.gradient = owned_part(bucket, member, bucket.gradient_shard);
  }
}

}  // namespace trireme::parallel
