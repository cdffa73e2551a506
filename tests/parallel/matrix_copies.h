// tests/parallel/matrix_copies.h -- copies of two matrices and a vector whose gradients are reduced, step by step.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/layout/placing.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::parallel {

/// Two matrices and a vector, in double.
struct MatrixCopies {
  nn::Params params;
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<DataParallel> data_parallel;

  MatrixCopies(comm::Rank& rank, const spec::CompressConfig& config, int zero = 0) {
    groups = std::make_unique<MeshGroups>(rank.world(), layout::Mesh({{"dp", rank.ranks()}}));
    std::vector<ShardUnit> units;
    for (const auto& [name, shape] :
         std::vector<std::pair<const char*, layout::Shape>>{{"left", {24, 20}}, {"right", {16, 33}}, {"bias", {20}}}) {
      const layout::Placing placing(groups->mesh(), rank.rank(), name, shape);
      nn::Param& param = params.add(placing.placement(), {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
      param.uses = 1;
      units.push_back({.params = {&param}});
    }
    DataParallelOptions options{.zero = zero, .bucket_bytes = 3000, .precision = nn::Precision::kFp64};
    options.compress = config;
    options.compress.min_elements = 100;
    options.reducer = reducer_named(spec::compress_name(config.kind));
    options.seed = 11;
    if (config.local_clip) options.grad_clip_norm = 1;
    if (rank.ranks() > 1) options.data = options.copies = {"dp"};
    if (zero > 0) options.shard = options.data;
    data_parallel = std::make_unique<DataParallel>(std::move(units), params, *groups, options);
    nn::initialise(data_parallel->owned(), options.precision, 1);
    data_parallel->updated();
    data_parallel->wait_for_weights();
  }
};

inline at::Tensor matrix_gradient(const nn::Param& param, std::int64_t step, int rank) {
  at::Tensor gradient = at::zeros(param.placement.shape, at::kDouble);
  Random(7, fmt::format("{} {} {}", param.name, step, rank))
      .fill_normal(0,
                   std::span<double>(gradient.mutable_data_ptr<double>(), static_cast<std::size_t>(gradient.numel())));
  return gradient;
}

using Named = std::map<std::string, at::Tensor>;
using MakeGradient = std::function<at::Tensor(const nn::Param&, std::int64_t step, int rank)>;

/// The sums of a step; taken or not.
inline Named reduce_step(MatrixCopies& copies, std::int64_t step, int rank, bool taken = true,
                         const MakeGradient& gradient = matrix_gradient) {
  copies.data_parallel->begin_micro(true);
  for (const char* name : {"bias", "right", "left"}) {
    nn::Param& param = copies.params.at(name);
    nn::add_gradient(param, gradient(param, step, rank));
    copies.data_parallel->added(param);
  }
  copies.data_parallel->finish();
  Named sums;
  for (const nn::Param& param : copies.data_parallel->owned()) sums[param.name] = param.gradient.clone();
  if (taken) copies.data_parallel->step_taken(0.1);
  nn::zero_grad(copies.data_parallel->owned());
  return sums;
}

inline void expect_equal_bits(const Named& a, const Named& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << where << " " << name;
}

inline std::vector<spec::CompressConfig> gradient_kinds() {
  using spec::CompressKind;
  return {{.kind = CompressKind::kOnebitSgd},
          {.kind = CompressKind::kQsgd},
          {.kind = CompressKind::kQsgd, .coding = spec::QsgdCoding::kElias},
          {.kind = CompressKind::kPowerSgd, .rank = 2},
          {.kind = CompressKind::kPowerSgd, .rank = 2, .warm_start = false},
          {.kind = CompressKind::kPowerSgd, .rank = 2, .alternate = true},
          {.kind = CompressKind::kDgc, .momentum = 0.5, .sparsity = 0.9},
          {.kind = CompressKind::kDgc, .start = 2, .momentum = 0.5, .sparsity = 0.9, .masking = false},
          {.kind = CompressKind::kCsc, .momentum = 0.5, .density = 0.3, .chunk = 64}};
}

}  // namespace trireme::parallel
