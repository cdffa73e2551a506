// Updates of whole matrices whose parts lie on several ranks, and norms of first micro-batches, beside one rank that
// holds everything.
#include "trireme/parallel/matrix_owners.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::parallel {
namespace {

using spec::OptimizerKind;

/// Matrices that tensor parallelism splits by rows, in blocks, by columns, with padding and not at all.
std::vector<ShardUnit> add_split_params(nn::Params& params, const layout::Mesh& mesh, int rank) {
  using layout::Placing;
  const layout::Block blocks[] = {{.size = 8, .units = 4}, {.size = 4, .units = 2}, {.size = 4, .units = 2}};
  const nn::Init init{nn::Init::Kind::kNormal, 0.5};
  std::vector<ShardUnit> units(1);
  const auto add = [&](const Placing& placing, bool decay) {
    nn::Param& param = params.add(placing.placement(), init, decay);
    param.uses = 1;
    units[0].params.push_back(&param);
    return &param;
  };
  add(Placing(mesh, rank, "embedding", {9, 6}).split_padded("tp", mesh.size("tp") > 1 ? 10 : 9), true);
  add(Placing(mesh, rank, "layers.0.qkv.weight", {16, 6}).split_blocks(0, "tp", blocks), true);
  add(Placing(mesh, rank, "layers.0.out.weight", {6, 8}).split(1, "tp"), true);
  add(Placing(mesh, rank, "layers.0.norm", {6}), false)->equal_axes = {"tp"};
  add(Placing(mesh, rank, "layers.1.router.weight", {5, 6}), true)->equal_axes = {"tp"};
  return units;
}

double gradient_at(const std::string& name, int step, layout::Index index) {
  return Random(9, name + "/" + std::to_string(step)).normal(static_cast<std::uint64_t>(index));
}

/// What backward leaves on a rank: `share` of the whole gradient.
void give_gradient(nn::Param& param, int step, double share) {
  at::Tensor part = at::zeros(nn::local_shape(param.placement), at::kDouble);
  for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
    for (layout::Index i = 0; i < run.count; ++i)
      part.data_ptr<double>()[run.local + i] = share * gradient_at(param.name, step, run.global + i);
  }
  nn::add_gradient(param, part);
}

constexpr int kSteps = 3;

spec::OptimConfig optim_of(OptimizerKind kind) {
  spec::OptimConfig optim{.kind = kind, .weight_decay = 0.1, .grad_clip_norm = 1};
  if (kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap) optim.precondition_every = 2;
  return optim;
}

struct Ranks {
  nn::Params params;
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<DataParallel> data_parallel;

  Ranks(comm::Rank& rank, int zero) {
    groups = std::make_unique<MeshGroups>(rank.world(), layout::parse_mesh("dp=2 tp=2"));
    std::vector<ShardUnit> units = add_split_params(params, groups->mesh(), rank.rank());
    DataParallelOptions options{.zero = zero, .data = {"dp"}, .precision = nn::Precision::kFp64};
    if (zero > 0) options.shard = {"dp"};
    data_parallel = std::make_unique<DataParallel>(std::move(units), params, *groups, options);
    nn::initialise(data_parallel->owned(), nn::Precision::kFp64, 4);
    data_parallel->updated();
    data_parallel->wait_for_weights();
  }
  void micro(bool last, int step, double share) {
    data_parallel->begin_micro(last);
    for (nn::Param& param : params) {
      give_gradient(param, step, share);
      data_parallel->added(param);
    }
  }
};

class OwnedMatrices : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(All, OwnedMatrices,
                         testing::Values(OptimizerKind::kMuon, OptimizerKind::kAdafactor, OptimizerKind::kShampoo,
                                         OptimizerKind::kSoap, OptimizerKind::kLion, OptimizerKind::kScheduleFree));

TEST_P(OwnedMatrices, MoveAsOnOneRank) {
  const spec::OptimConfig config = optim_of(GetParam());
  nn::Params whole;
  add_split_params(whole, layout::parse_mesh("tp=1"), 0);
  nn::initialise(whole, nn::Precision::kFp64, 4);
  const auto reference = optim::make_optimizer(config, whole);
  for (int step = 1; step <= kSteps; ++step) {
    for (nn::Param& param : whole) give_gradient(param, step, 1);
    optim::update(*reference, {.learning_rate = 0.01});
  }
  for (const int zero : {0, 1, 2, 3}) {
    std::mutex lock;
    std::map<std::string, layout::Index> kept, sizes;  // elements of the state, by first copies
    comm::run_ranks(4, [&](comm::Rank& rank) {
      Ranks ranks(rank, zero);
      const auto optimizer =
          optim::make_optimizer(config, ranks.data_parallel->owned(),
                                make_matrix_owners(config, ranks.data_parallel->owned(), *ranks.groups));
      for (int step = 1; step <= kSteps; ++step) {
        ranks.micro(true, step, 0.5);  // either copy has half of the rows
        ranks.data_parallel->finish();
        optim::update(*optimizer, {.learning_rate = 0.01, .across = ranks.data_parallel->across()});
        ranks.data_parallel->updated();
        ranks.data_parallel->wait_for_weights();
      }
      nn::State state;
      optimizer->add_state(state);
      const std::lock_guard guard(lock);
      for (const nn::Param& param : ranks.data_parallel->owned()) {
        const double* expected = whole.at(param.name).master.const_data_ptr<double>();
        for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
          for (layout::Index i = 0; i < run.count; ++i) {
            ASSERT_NEAR(param.master.const_data_ptr<double>()[run.local + i], expected[run.global + i], 1e-11)
                << param.name << " with ZeRO " << zero << " on rank " << rank.rank();
          }
        }
      }
      for (const nn::StateTensor& entry : state.tensors()) {
        sizes[entry.name] = layout::elements(entry.placement.shape);
        for (const layout::ContiguousRun& run :
             layout::first_copy_runs(ranks.groups->mesh(), rank.rank(), entry.placement))
          kept[entry.name] += run.count;
      }
    });
    EXPECT_EQ(kept, sizes) << "a checkpoint has each element once, ZeRO " << zero;
  }
}

/// Each rank's own gradient of the first micro-batch, squared and summed over data-parallel ranks, each part once.
TEST(FirstMicroNorms, CountEveryElementOnce) {
  std::vector<double> expected;
  nn::Params whole;
  add_split_params(whole, layout::parse_mesh("tp=1"), 0);
  for (const nn::Param& param : whole) {
    double square = 0;
    for (layout::Index i = 0; i < param.elements(); ++i) square += std::pow(gradient_at(param.name, 1, i), 2);
    expected.push_back(square * (3 * 1 + 3 * 4));  // shares 1 and 2 of the data-parallel ranks, factor 3
  }
  for (const int zero : {0, 1, 2, 3}) {
    for (const int micros : {1, 3}) {
      comm::run_ranks(4, [&](comm::Rank& rank) {
        Ranks ranks(rank, zero);
        ranks.data_parallel->measure_first_micro(*ranks.groups);
        for (int step = 0; step < 2; ++step) {
          const double share = ranks.groups->mesh().coordinate(rank.rank(), "dp") + 1;
          for (int micro = 0; micro < micros; ++micro) ranks.micro(micro + 1 == micros, 1 + micro, share);
          ranks.data_parallel->finish();
          nn::zero_grad(ranks.data_parallel->owned());
          const std::vector<double> found = ranks.data_parallel->first_micro_squares({.dense = 3});
          ASSERT_EQ(found.size(), expected.size());
          for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i], expected[i], 1e-10 * expected[i]) << i << " ZeRO " << zero << " micros " << micros;
        }
      });
    }
  }
}

TEST(MatrixOwners, ShareWorkEvenly) {
  const std::vector<double> costs = {5, 1, 1, 1, 4, 4};
  const std::vector<int> owners = share_out(costs, 2);
  double first = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) first += owners[i] == 0 ? costs[i] : 0;
  EXPECT_EQ(first, 8);
}

TEST(MatrixOwners, CopyRunsInStrides) {
  const std::vector<layout::ContiguousRun> columns = {{2, 0, 3}, {10, 3, 3}, {18, 6, 3}, {30, 9, 3}, {40, 12, 2}};
  const std::vector<StridedRuns> expected = {
      {2, 0, 3, 3, 8, 3}, {.global = 30, .local = 9, .count = 3}, {.global = 40, .local = 12, .count = 2}};
  EXPECT_EQ(strided(columns), expected);
}

}  // namespace
}  // namespace trireme::parallel
