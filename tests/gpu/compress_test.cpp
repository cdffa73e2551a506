// Gradient compression on the GPU: reducers on thread ranks beside the same on the CPU, and whole runs beside their
// serial twins.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "tests/comm/thread_ranks.h"
#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/power_iteration.h"
#include "trireme/parallel/compress/top_k.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/gpu_exchange.h"

namespace trireme::gpu {
namespace {

using spec::CompressConfig, spec::CompressKind;

/// Sums and residuals of each step, on the CPU, by rank.
using ReducedSteps = std::vector<std::map<std::string, at::Tensor>>;

/// Two matrices (one with a number of columns that no vector divides, one longer than a block holds) and a vector.
ReducedSteps reduce_on(at::Device device, comm::Rank& rank, const CompressConfig& config, nn::Precision precision) {
  nn::Params params;
  parallel::MeshGroups groups(rank.world(), layout::Mesh({{"dp", rank.ranks()}}));
  std::vector<parallel::ShardUnit> units;
  for (const auto& [name, shape] : std::vector<std::pair<const char*, layout::Shape>>{
           {"left", {37, 61}}, {"right", {5, 9216}}, {"wide", {64, 1024}}, {"bias", {20}}}) {
    const layout::Placing placing(groups.mesh(), rank.rank(), name, shape);
    nn::Param& param = params.add(placing.placement(), {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
    param.uses = 1;
    units.push_back({.params = {&param}});
  }
  parallel::DataParallelOptions options{.bucket_bytes = 100'000, .precision = precision};
  options.compress = config;
  options.compress.min_elements = 100;
  options.reducer = parallel::reducer_named(spec::compress_name(config.kind));
  options.seed = 11;
  options.device = device;
  options.data = options.copies = {"dp"};
  parallel::DataParallel data_parallel(std::move(units), params, groups, options);
  nn::initialise(data_parallel.owned(), precision, 1, device);
  data_parallel.updated();
  data_parallel.wait_for_weights();
  ReducedSteps steps;
  for (int step = 0; step < 3; ++step) {
    data_parallel.begin_micro(true);
    for (const char* name : {"bias", "wide", "right", "left"}) {
      nn::Param& param = params.at(name);
      const at::Tensor gradient = normal_tensor(param.placement.shape, param.master.scalar_type(),
                                                fmt::format("{} {} {}", name, step, rank.rank()));
      nn::add_gradient(param, gradient.to(device));
      data_parallel.added(param);
    }
    data_parallel.finish();
    auto& sums = steps.emplace_back();
    for (const nn::Param& param : data_parallel.owned()) sums[param.name] = param.gradient.cpu().clone();
    data_parallel.step_taken(0.1);
    nn::zero_grad(data_parallel.owned());
    nn::State state;
    data_parallel.add_state(state);
    for (const nn::StateTensor& entry : state.tensors()) sums[entry.name] = entry.tensor.cpu().clone();
  }
  return steps;
}

void on_gpu_ranks(int ranks, const std::function<void(comm::Rank&)>& body) {
  comm::run_ranks(
      ranks,
      [&](comm::Rank& rank) {
        gpu();
        parallel::use_gpu_exchange();
        body(rank);
      },
      comm::test_options());
}

struct NamedConfig {
  const char* name;
  CompressConfig config;
};

std::vector<NamedConfig> reducers_of_gradients() {
  return {{"1-bit SGD", {.kind = CompressKind::kOnebitSgd}},
          {"QSGD", {.kind = CompressKind::kQsgd}},
          {"QSGD, L2, 17 levels of 100",
           {.kind = CompressKind::kQsgd, .levels = 17, .norm = spec::QsgdNorm::kL2, .bucket_size = 100}},
          {"PowerSGD", {.kind = CompressKind::kPowerSgd, .rank = 2}},
          {"PowerSGD, alternating", {.kind = CompressKind::kPowerSgd, .rank = 4, .alternate = true}},
          {"PowerSGD, cold", {.kind = CompressKind::kPowerSgd, .rank = 2, .warm_start = false}},
          {"DGC", {.kind = CompressKind::kDgc, .momentum = 0.5, .sparsity = 0.99}},
          {"DGC, a quarter, no masking",
           {.kind = CompressKind::kDgc, .start = 1, .momentum = 0.5, .sparsity = 0.75, .masking = false}},
          {"CSC", {.kind = CompressKind::kCsc, .momentum = 0.5, .density = 0.3, .chunk = 1000}}};
}

/// The same sums and the same residuals as on the CPU, and the same bits on all ranks.
TEST(GpuCompressors, EqualThoseOfTheCpu) {
  for (const nn::Precision precision : {nn::Precision::kFp64, nn::Precision::kFp32}) {
    const double tolerance = precision == nn::Precision::kFp64 ? 1e-11 : 2e-4;
    for (const NamedConfig& one : reducers_of_gradients()) {
      for (const int ranks : {1, 3}) {
        std::vector<ReducedSteps> cpu(static_cast<std::size_t>(ranks)), there(static_cast<std::size_t>(ranks));
        on_gpu_ranks(ranks, [&](comm::Rank& rank) {
          const auto me = static_cast<std::size_t>(rank.rank());
          cpu[me] = reduce_on(at::kCPU, rank, one.config, precision);
          there[me] = reduce_on(gpu(), rank, one.config, precision);
        });
        for (std::size_t rank = 0; rank < cpu.size(); ++rank) {
          for (std::size_t step = 0; step < cpu[rank].size(); ++step) {
            for (const auto& [name, expected] : cpu[rank][step]) {
              const at::Tensor& found = there[rank][step].at(name);
              const double far = expected.numel() == 0 ? 0 : found.sub(expected).abs().max().item<double>();
              EXPECT_LT(far, tolerance) << one.name << ", " << ranks << " ranks, step " << step << ", " << name;
              if (!name.starts_with("reduce/")) {
                EXPECT_TRUE(at::equal(found, there[0][step].at(name)))
                    << one.name << " " << name << " on rank " << rank;
              }
            }
          }
        }
      }
    }
  }
}

std::vector<NamedConfig> kinds_on_gpu() {
  return {
      {"1-bit SGD", {.kind = CompressKind::kOnebitSgd, .start = 1}},
      {"QSGD", {.kind = CompressKind::kQsgd}},
      {"PowerSGD", {.kind = CompressKind::kPowerSgd, .rank = 2}},
      {"PowerSGD, alternating", {.kind = CompressKind::kPowerSgd, .rank = 2, .alternate = true}},
      {"DGC", {.kind = CompressKind::kDgc, .start = 2, .momentum = 0.9, .sparsity = 0.95, .sparsity_warmup = 4}},
      {"CSC", {.kind = CompressKind::kCsc, .start = 1, .momentum = 0.9, .density = 0.3, .chunk = 100}},
      {"1-bit Adam", {.kind = CompressKind::kOnebitAdam, .freeze_after = 2}},
      {"0/1 Adam", {.kind = CompressKind::kZeroOneAdam, .variance_scale = 1, .local_scale = 2, .max_local_steps = 2}},
      {"local SGD", {.kind = CompressKind::kLocalSgd, .start = 1, .interval = 3}},
      {"elastic averaging", {.kind = CompressKind::kElasticAveraging, .interval = 2}},
      {"DiLoCo", {.kind = CompressKind::kDiloco, .interval = 3}},
      {"DiLoCo, int8", {.kind = CompressKind::kDiloco, .interval = 3, .delta_dtype = spec::DeltaDtype::kInt8}},
      {"DiLoCo, fp16", {.kind = CompressKind::kDiloco, .interval = 3, .delta_dtype = spec::DeltaDtype::kFp16}},
      {"streaming DiLoCo", {.kind = CompressKind::kDiloco, .interval = 4, .fragments = 2, .delay = 1, .mixing = 0.5}}};
}

/// Whole runs in fp64 beside the twin on the CPU; one more layout for each, in turn.
TEST(GpuCompressors, TrainAsTheirTwins) {
  int turn = 0;
  for (const NamedConfig& one : kinds_on_gpu()) {
    for (const bool other : {false, true}) {
      spec::Recipe recipe = train::small_recipe(spec::Family::kLlama, spec::Precision::kFp64);
      recipe.model.num_kv_heads = 2;
      recipe.batch.global_batch_tokens = 8 * 12;
      recipe.train.micro_batch_size = 1;
      recipe.run.device = spec::DeviceKind::kCuda;
      recipe.compress = one.config;
      if (!spec::has_local_updates(one.config.kind)) recipe.compress.min_elements = 300;
      recipe.layout.dp = other ? 2 : 3;
      if (other) (turn++ % 2 == 0 ? recipe.layout.tp : recipe.layout.pp) = 2;
      const train::VerifyResult result = train::verify_beside_one_rank(recipe, other ? 4 : 3, /*steps=*/9);
      EXPECT_TRUE(result.equal) << one.name << (other ? " with tp or pp" : "") << ": step "
                                << result.first_step.value_or(0) << ", gradient of " << result.gradients.name << " ("
                                << result.gradients.relative << "), weight " << result.weights.name << " ("
                                << result.weights.relative << ")";
      ASSERT_TRUE(result.compressed.has_value()) << one.name;
      EXPECT_GE(result.compressed->rounds, 2) << one.name;
    }
  }
}

/// The set is exact: by size, of equal ones the first, infinities and NaN before all.
TEST(GpuTopK, TakesWhatTheCpuTakes) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const std::int64_t count : {1, 100, 4096, 200'003}) {
      for (const bool ties : {false, true}) {
        for (const std::int64_t k : {std::int64_t{1}, count / 50 + 1, count / 4 + 1, count}) {
          SCOPED_TRACE(fmt::format("{} of {} {}{}", k, count, c10::toString(type), ties ? ", many equal" : ""));
          at::Tensor values = normal_tensor({count}, type, "top-k");
          if (ties) values = values.mul(3).round();
          if (count > 50) {
            values[17] = std::numeric_limits<double>::quiet_NaN();
            values[31] = -std::numeric_limits<double>::infinity();
          }
          const std::vector<std::uint32_t> expected =
              type == at::kFloat ? parallel::top_k(values.const_data_ptr<float>(), count, k, 0.01)
                                 : parallel::top_k(values.const_data_ptr<double>(), count, k, 0.01);
          at::Tensor there = values.to(gpu()), also = at::ones_like(there);
          parallel::SlotLayout layout;
          const parallel::GpuTopKCode code(count, k, static_cast<std::int64_t>(values.element_size()), layout);
          at::Tensor message = parallel::bytes_like(there, {layout.bytes()});
          code.take(there, also, 0.01, message);
          const at::Tensor here = message.cpu();
          const auto* places = reinterpret_cast<const std::uint32_t*>(
              static_cast<const std::uint8_t*>(here.const_data_ptr()) + code.places_at);
          std::vector<std::uint32_t> found(places, places + k);
          std::ranges::sort(found);
          EXPECT_EQ(found, expected);
          EXPECT_EQ(also.eq(0).sum().item<std::int64_t>(), k);
          at::Tensor back = there.clone();
          code.add(message, back);
          EXPECT_TRUE(at::allclose(back.cpu(), values, 0, 0, /*equal_nan=*/true));
        }
      }
    }
  }
}

TEST(GpuOrthogonalise, MakesTheColumnsOfTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> here, there;
    for (const auto& [rows, rank] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {7, 3}, {5000, 4}, {900, 8}}) {
      here.push_back(normal_tensor({rows, rank}, type, fmt::format("{} {}", rows, rank)));
      if (rank == 3) here.back().select(1, 2).copy_(here.back().select(1, 0));  // depends on the first
      if (rank == 8) here.back().select(1, 1).zero_();
      there.push_back(here.back().to(gpu()));
    }
    parallel::orthogonalise(std::span<at::Tensor>(here));
    parallel::orthogonalise(std::span<at::Tensor>(there));
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_LT(there[i].cpu().sub(here[i]).abs().max().item<double>(), type == at::kFloat ? 1e-5 : 1e-13) << i;
  }
}

}  // namespace
}  // namespace trireme::gpu
