// An expert parameter beside dense ones: split along a part of dp, copied along the rest, reduced over fewer ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "trireme/comm/rank.h"
#include "trireme/layout/coverage.h"
#include "trireme/layout/placing.h"
#include "trireme/optim/update.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::parallel {
namespace {

/// What the tokens of one rank of dp add to the gradient of element i: small integers, so that any order of sums is
/// exact.
double part(const std::string& name, int rank, std::int64_t element) {
  return static_cast<double>((element * 7 + rank * 31 + static_cast<std::int64_t>(name[0]) * 13) % 11 - 5);
}

struct Shape {
  std::string name;
  layout::Shape sizes;
  bool expert = false;
};
const std::vector<Shape> kShapes = {{"a", {30}}, {"e", {8, 9}, true}, {"b", {5, 7}}, {"f", {8}, true}};

struct Layout {
  int dp = 1, ep = 1, zero = 0;
  layout::AxisNames shard = {};  ///< empty: all of dp
  std::string text() const {
    return fmt::format("dp={} ep={} zero={} shard={}", dp, ep, zero, shard.empty() ? "dp" : shard.front());
  }
};

/// One rank's part of a model with experts on dp%ep.
class Replica {
 public:
  Replica(comm::Rank& rank, const Layout& layout)
      : layout_(layout), groups_(rank.world(), layout::Mesh({{"dp", layout.dp}})), rank_(rank.rank()) {
    std::vector<ShardUnit> units;
    for (const Shape& shape : kShapes) {
      layout::Placing placing(groups_.mesh(), rank_, shape.name, shape.sizes);
      if (shape.expert) placing.split(0, fmt::format("dp%{}", layout.ep));
      nn::Param& param = params_.add(placing.placement(), {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
      param.uses = 1;
      units.push_back({.params = {&param}});
    }
    DataParallelOptions options{.zero = layout.zero, .data = {"dp"}, .bucket_bytes = 0};
    if (layout.zero > 0) options.shard = layout.shard.empty() ? options.data : layout.shard;
    data_parallel_ = std::make_unique<DataParallel>(std::move(units), params_, groups_, options);
    nn::initialise(owned(), options.precision, 1);
    data_parallel_->updated();
  }

  /// Tokens of the ranks along dp%ep meet at the expert; half of each gradient comes in each of two micros.
  void backward() {
    const int ep = layout_.ep, first = rank_ / ep * ep;
    for (const bool last : {false, true}) {
      data_parallel_->begin_micro(last);
      for (std::size_t i = kShapes.size(); i-- > 0;) {
        data_parallel_->enter(i, /*backward=*/true);
        nn::Param& param = params_.at(kShapes[i].name);
        at::Tensor delta = at::zeros({layout::local_elements(param.placement)});
        const int begin = kShapes[i].expert ? first : rank_, end = kShapes[i].expert ? first + ep : rank_ + 1;
        for (std::int64_t at = 0; at < delta.numel(); ++at) {
          const std::int64_t element = *layout::global_index(param.placement, at);
          double sum = 0;
          for (int from = begin; from < end; ++from) sum += part(param.name, from, element) / 2;
          delta.data_ptr<float>()[at] = static_cast<float>(sum);
        }
        nn::add_gradient(param, delta.view(nn::local_shape(param.placement)));
        data_parallel_->added(param);
        data_parallel_->leave(i);
      }
    }
    data_parallel_->finish();
  }

  nn::Params& owned() { return data_parallel_->owned(); }
  DataParallel& data_parallel() { return *data_parallel_; }
  nn::Params& params() { return params_; }
  MeshGroups& groups() { return groups_; }

 private:
  Layout layout_;
  nn::Params params_;
  MeshGroups groups_;
  int rank_;
  std::unique_ptr<DataParallel> data_parallel_;
};

const std::vector<Layout> kLayouts = [] {
  std::vector<Layout> layouts;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const auto& [dp, ep] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}}) {
      layouts.push_back({.dp = dp, .ep = ep, .zero = zero});
    }
    if (zero == 0) continue;
    layouts.push_back({.dp = 4, .ep = 2, .zero = zero, .shard = {"dp%2"}});  // experts are shared out by nobody
    layouts.push_back({.dp = 8, .ep = 2, .zero = zero, .shard = {"dp%4"}});  // and here by dp/2%2
  }
  return layouts;
}();

double total(const Layout& layout, const std::string& name, std::int64_t element) {
  double sum = 0;
  for (int rank = 0; rank < layout.dp; ++rank) sum += part(name, rank, element);
  return sum;
}

TEST(ExpertReduction, SumsEachGradientOverItsOwnRanks) {
  for (const Layout& layout : kLayouts) {
    std::mutex mutex;
    std::map<std::string, std::vector<layout::Placement>> placements;
    comm::run_ranks(layout.dp, [&](comm::Rank& rank) {
      Replica replica(rank, layout);
      for (int step = 0; step < 2; ++step) {
        replica.backward();
        for (const nn::Param& param : replica.owned()) {
          const at::Tensor flat = param.gradient.view({-1});
          for (std::int64_t at = 0; at < flat.numel(); ++at) {
            const auto element = layout::global_index(param.placement, at);
            if (!element) continue;
            ASSERT_EQ(flat[at].item<double>(), total(layout, param.name, *element))
                << layout.text() << " " << layout::to_text(param.placement);
          }
        }
        nn::zero_grad(replica.owned());
      }
      const std::lock_guard lock(mutex);
      for (const nn::Param& param : replica.owned()) {
        auto& all = placements[param.name];
        all.resize(static_cast<std::size_t>(layout.dp));
        all[static_cast<std::size_t>(rank.rank())] = param.placement;
      }
    });
    for (const auto& [name, all] : placements) {
      EXPECT_EQ(layout::find_problem(layout::Mesh({{"dp", layout.dp}}), all), "") << layout.text();
    }
  }
}

/// The whole model on one rank, updated by the sum of all gradients.
struct Serial {
  nn::Params params;
  double norm = 0;
};

std::unique_ptr<Serial> serial_step(const Layout& layout, const spec::OptimConfig& config) {
  auto serial = std::make_unique<Serial>();
  for (const Shape& shape : kShapes) {
    serial->params.add(shape.name, shape.sizes, {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
  }
  nn::initialise(serial->params, nn::Precision::kFp32, 1);
  for (nn::Param& param : serial->params) {
    at::Tensor gradient = at::zeros({param.elements()});
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      gradient.data_ptr<float>()[i] = static_cast<float>(total(layout, param.name, i));
    }
    nn::add_gradient(param, gradient.view(nn::local_shape(param.placement)));
  }
  serial->norm = optim::update(*optim::make_optimizer(config, serial->params), {.learning_rate = config.learning_rate})
                     .gradient_norm;
  return serial;
}

/// Norms count each number once, so clipped steps give what one rank has, to the bit; layers everywhere see it.
TEST(ExpertReduction, ClipsAndUpdatesAsOneRankDoes) {
  const spec::OptimConfig config{.kind = spec::OptimizerKind::kAdamw, .learning_rate = 0.125, .grad_clip_norm = 0.5};
  for (const Layout& layout : kLayouts) {
    const std::unique_ptr<Serial> serial = serial_step(layout, config);
    comm::run_ranks(layout.dp, [&](comm::Rank& rank) {
      Replica replica(rank, layout);
      replica.backward();
      DataParallel& data_parallel = replica.data_parallel();
      const auto optimizer = optim::make_optimizer(config, replica.owned());
      const optim::UpdateResult result =
          optim::update(*optimizer, {.learning_rate = config.learning_rate, .across = data_parallel.across()});
      EXPECT_EQ(result.gradient_norm, serial->norm) << layout.text();
      data_parallel.step_taken();
      data_parallel.updated();
      for (std::size_t i = 0; i < kShapes.size(); ++i) {
        data_parallel.enter(i, /*backward=*/false);
        const nn::Param& param = replica.params().at(kShapes[i].name);
        const at::Tensor mine = param.value.view({-1}), whole = serial->params.at(param.name).value.view({-1});
        for (std::int64_t at = 0; at < mine.numel(); ++at) {
          ASSERT_EQ(mine[at].item<float>(), whole[*layout::global_index(param.placement, at)].item<float>())
              << layout.text() << " " << param.name;
        }
        data_parallel.leave(i);
      }
    });
  }
}

/// Four ranks add up dense gradients, two those of an expert: no byte more.
TEST(ExpertReduction, SendsAnExpertsGradientToItsCopiesAlone) {
  comm::run_ranks(4, [](comm::Rank& rank) {
    Replica replica(rank, {.dp = 4, .ep = 2});
    for (const Bucket& bucket : replica.data_parallel().buckets()) {
      const bool expert = bucket.members.front().param->name == "e" || bucket.members.front().param->name == "f";
      ASSERT_NE(bucket.group, nullptr);
      EXPECT_EQ(bucket.group->size(), expert ? 2 : 4);
      EXPECT_EQ(bucket.group->world_rank(0), expert ? rank.rank() % 2 : 0);
    }
    EXPECT_EQ(replica.data_parallel().buckets().size(), 2U);
  });
}

/// Groups are made by all ranks of a world together: also those that only one stage of a pipeline has a use for.
TEST(ExpertReduction, StagesMayHaveOtherReductions) {
  comm::run_ranks(8, [](comm::Rank& rank) {
    MeshGroups groups(rank.world(), layout::Mesh({{"pp", 2}, {"dp", 4}}));
    const bool first = rank.rank() < 4;
    nn::Params params;
    layout::Placing placing(groups.mesh(), rank.rank(), first ? "experts" : "dense", {16});
    placing.only_at("pp", first ? 0 : 1);
    if (first) placing.split(0, "dp%2");
    nn::Param& param = params.add(placing.placement(), {}, true);
    param.uses = 1;
    std::vector<ShardUnit> units(1);
    units[0].params = {&param};
    DataParallel data_parallel(std::move(units), params, groups, {.data = {"dp"}});
    nn::initialise(params, nn::Precision::kFp32, 1);
    data_parallel.begin_micro(true);
    nn::add_gradient(param, at::zeros(param.value.sizes()) + 1);
    data_parallel.added(param);
    data_parallel.finish();
    EXPECT_EQ(param.gradient.sum().item<double>(), first ? 8 * 2 : 16 * 4);
    // The norm of the experts is summed along dp%2; of the dense parameter every rank of its stage has all.
    std::vector<double> squares{param.gradient.square().sum().item<double>()};
    if (data_parallel.across() != nullptr) data_parallel.across()->sum_parts(squares);
    EXPECT_EQ(data_parallel.across() != nullptr, first);
    EXPECT_EQ(squares[0], first ? 16 * 4 : 16 * 16);
  });
}

}  // namespace
}  // namespace trireme::parallel
