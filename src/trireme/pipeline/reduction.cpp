#include "trireme/pipeline/reduction.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::pipeline {

GradientReduction::GradientReduction(std::span<const ParamHolders> param_holders, nn::Params& params,
                                     comm::Group& pipeline, parallel::DataParallel* data_parallel)
    : pipeline_(pipeline), params_(params), data_parallel_(data_parallel) {
  if (data_parallel != nullptr) {
    const parallel::BucketReducer& reducer = data_parallel->reducer();
    compresses_ = reducer.report() != nullptr && reducer.drift_axes().empty();
  }
  nn::Params& owned = data_parallel != nullptr ? data_parallel->owned() : params;
  const int rank = pipeline.rank();
  std::map<const nn::Param*, bool> counts;
  for (const ParamHolders& held : param_holders) {
    const bool mine = std::ranges::binary_search(held.ranks, rank);
    comm::Group* copies = nullptr;
    if (held.ranks.size() > 1) {
      // Splitting is a call of all ranks; a set of ranks is split off where the first parameter with it stands.
      const auto [group, is_new] = groups_.try_emplace(held.ranks);
      if (is_new) {
        group->second = pipeline.split(mine ? 0 : -1, rank, fmt::format("copies {}", fmt::join(held.ranks, " ")));
      }
      copies = group->second.get();
    }
    if (!mine) continue;
    const bool known = std::ranges::find(twins_, copies) != twins_.end();
    if (held.chunks.size() == 1 && copies != nullptr && !known) twins_.push_back(copies);
    nn::Param& param = owned.at(held.param);
    reduced_.push_back({.param = &param,
                        .copies = copies,
                        .chunk = held.chunks.size() == 1 ? held.chunks.front() : -1,
                        .counted = held.ranks.front() == rank});
    counts[&param] = held.ranks.front() == rank;
  }
  for (const nn::Param& param : owned) {
    TRIREME_CHECK(counts.contains(&param), "nobody knows who holds {}", param.name);
    if (param.trainable) counted_.push_back(counts[&param]);
  }
}

void GradientReduction::post(int chunk) {
  if (data_parallel_ != nullptr) {
    const bool waits = std::ranges::any_of(reduced_, [&](const Reduced& reduced) { return sums_first(reduced); });
    return waits ? void() : data_parallel_->start(chunk);
  }
  for (const Reduced& reduced : reduced_) {
    if (reduced.chunk != chunk || reduced.copies == nullptr || !reduced.param->trainable) continue;
    under_way_.add(
        reduced.copies->all_reduce(device::to_buffer(nn::gradient_to_add_to(*reduced.param)), comm::Reduce::kSum));
  }
}

void GradientReduction::delay_shared(int updates, ScaleOf scale_of) {
  delay_ = updates;
  scale_of_ = std::move(scale_of);
}

void GradientReduction::finish(int step, bool last) {
  for (const Reduced& reduced : reduced_) {
    if (!sums_first(reduced)) continue;
    nn::Param& param = params_.at(reduced.param->name);
    under_way_.add(reduced.copies->all_reduce(device::to_buffer(nn::gradient_to_add_to(param)), comm::Reduce::kSum));
  }
  if (compresses_) {
    under_way_.commit().wait();
    under_way_ = {};
  }
  if (data_parallel_ != nullptr) data_parallel_->finish();
  // With replicas, what ranks of the pipeline both hold is summed after their copies' sums; shards lie alike on both.
  // What is compressed is summed before: each of them then compresses the whole, and has the same residual.
  for (const Reduced& reduced : reduced_) {
    const bool posted = data_parallel_ == nullptr && reduced.chunk != -1;
    if (posted || reduced.copies == nullptr || !reduced.param->trainable || sums_late(reduced) || compresses_) continue;
    if (reduced.param->placement.partition && reduced.param->gradient.numel() == 0) continue;
    under_way_.add(
        reduced.copies->all_reduce(device::to_buffer(nn::gradient_to_add_to(*reduced.param)), comm::Reduce::kSum));
  }
  under_way_.commit().wait();
  under_way_ = {};
  if (delay_ > 0) sum_late(step, last);
}

bool GradientReduction::sums_first(const Reduced& reduced) const {
  return compresses_ && reduced.copies != nullptr && reduced.param->trainable && !sums_late(reduced);
}

/// Of one rank's chunks alone a sum is there at once.
bool GradientReduction::sums_late(const Reduced& reduced) const {
  return delay_ > 0 && reduced.chunk == -1 && reduced.copies != nullptr && reduced.param->trainable;
}

void GradientReduction::sum_late(int step, bool last) {
  Delayed mine{.step = step, .sums = {}, .work = {}};
  comm::Batch batch;
  std::int64_t bytes = 0;
  for (const Reduced& reduced : reduced_) {
    if (!sums_late(reduced)) continue;
    at::Tensor& sum = mine.sums.emplace_back(nn::gradient_to_add_to(*reduced.param).clone());
    bytes += static_cast<std::int64_t>(sum.nbytes());
    if (sum.numel() > 0) batch.add(reduced.copies->all_reduce(device::to_buffer(sum), comm::Reduce::kSum));
  }
  if (mine.sums.empty()) return;
  mine.work = batch.commit();
  delayed_.push_back(std::move(mine));
  delayed_bytes_ = std::max(delayed_bytes_, bytes * static_cast<std::int64_t>(delayed_.size()));
  for (const Reduced& reduced : reduced_) {
    if (sums_late(reduced)) reduced.param->gradient.zero_();
  }
  const double scale = scale_of_ ? scale_of_(step) : 1;
  while (!delayed_.empty() && (last || delayed_.front().step <= step - delay_)) {
    Delayed& one = delayed_.front();
    one.work.wait();
    const double factor = scale_of_ ? scale / scale_of_(one.step) : 1;
    std::size_t i = 0;
    for (const Reduced& reduced : reduced_) {
      if (sums_late(reduced)) reduced.param->gradient.add_(one.sums[i++], factor);
    }
    delayed_.pop_front();
  }
}

std::vector<GradientReduction::Shared> GradientReduction::shared() const {
  std::vector<Shared> shared;
  for (const Reduced& reduced : reduced_) {
    if (reduced.chunk == -1 && reduced.copies != nullptr && reduced.param->trainable)
      shared.push_back({reduced.param, reduced.counted});
  }
  return shared;
}

std::vector<GradientReduction::Sum> GradientReduction::sums() const {
  std::vector<Sum> sums;
  for (const Reduced& reduced : reduced_) {
    if (reduced.copies == nullptr || !reduced.param->trainable || !reduced.param->gradient.defined()) continue;
    auto sum = std::ranges::find(sums, reduced.copies, &Sum::copies);
    if (sum == sums.end()) sum = sums.insert(sum, {.copies = reduced.copies, .bytes = 0});
    sum->bytes += static_cast<double>(reduced.param->gradient.nbytes());
  }
  return sums;
}

double GradientReduction::count_once(std::span<const double> squares) const {
  double sum = 0;
  for (std::size_t i = 0; i < counted_.size(); ++i) sum += counted_[i] ? squares[i] : 0.0;
  return sum;
}

const optim::AcrossRanks& GradientReduction::across(const optim::AcrossRanks* within) {
  // update() asks for the parts of each parameter, then for the sum over stages, which is over the same numbers: each
  // parameter's squares are kept from the one call for the other, so that a copy is not counted again.
  across_.sum_parts = [this, parts = within != nullptr ? within->sum_parts : nullptr](std::span<double> squares) {
    if (parts) parts(squares);
    own_squares_ = count_once(squares);
  };
  across_.sum_stages = [this](double) {
    double sum = own_squares_;
    pipeline_.all_reduce(comm::Buffer{&sum, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
    return sum;
  };
  return across_;
}

}  // namespace trireme::pipeline
