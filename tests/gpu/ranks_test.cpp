// Ranks that are threads and share one GPU: what they exchange, and layouts against one rank on the CPU.
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <atomic>

#include "tests/comm/thread_ranks.h"
#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/train/diagnose/verify.h"

namespace trireme::gpu {
namespace {

using comm::Reduce;
using spec::Family;
using spec::Precision;

void on_ranks(int ranks, const std::function<void(comm::Rank&)>& body) {
  comm::run_ranks(
      ranks,
      [&](comm::Rank& rank) {
        gpu();
        parallel::use_gpu_exchange();
        body(rank);
      },
      comm::test_options());
}

/// Small whole numbers, exact in every type and order of sums; each rank has its own.
at::Tensor numbers(int rank, std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7).add(3 * rank).remainder(5).add(1).to(type);
}

TEST(GpuRanks, CollectivesEqualTheHosts) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](comm::Rank& rank) {
      comm::Group& group = rank.world();
      for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
        for (const std::int64_t count : {1, 7, 1300, 200'003}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} x {}", ranks, count, c10::toString(type)));
          const auto both = [&](std::int64_t in_count, std::int64_t out_count, const auto& call) {
            const at::Tensor here = numbers(rank.rank(), in_count, type), there = here.to(gpu());
            at::Tensor out = at::zeros({out_count}, type), out_there = out.to(gpu());
            call(device::to_const_buffer(here), device::to_buffer(out));
            call(device::to_const_buffer(there), device::to_buffer(out_there));
            EXPECT_TRUE(same_bits(out_there.cpu(), out));
          };
          for (const Reduce reduce : comm::kAllReduces) {
            // GemmPrecision of many ranks leave what 8 bits and halves hold exactly; averages of integers round.
            both(count, count, [&](auto in, auto out) { group.all_reduce(in, out, reduce).wait(); });
            both(count * ranks, count, [&](auto in, auto out) { group.reduce_scatter(in, out, reduce).wait(); });
            both(count, count, [&](auto in, auto out) { group.reduce(in, out, reduce, ranks - 1).wait(); });
          }
          both(count, count * ranks, [&](auto in, auto out) { group.all_gather(in, out).wait(); });
          both(count * ranks, count * ranks, [&](auto in, auto out) { group.all_to_all(in, out).wait(); });
          both(count, count, [&](auto in, auto out) {
            const int next = (rank.rank() + 1) % ranks, before = (rank.rank() + ranks - 1) % ranks;
            comm::Work received = group.recv(out, before), sent = group.send(in, next);
            received.wait();
            sent.wait();
          });
          at::Tensor here = numbers(rank.rank(), count, type), there = here.to(gpu());
          group.broadcast(device::to_buffer(here), 0).wait();
          group.broadcast(device::to_buffer(there), 0).wait();
          EXPECT_TRUE(same_bits(there.cpu(), here));
        }
      }
    });
  }
}

/// Nobody waits for the GPU between a kernel, a sum over ranks and what is made of it: a mistake in the order would
/// show.
TEST(GpuRanks, WhatIsStartedLaterFindsTheResult) {
  on_ranks(4, [](comm::Rank& rank) {
    at::Tensor x = at::full({1 << 20}, rank.rank() + 1, at::TensorOptions(at::kFloat).device(gpu()));
    double expected = 0;
    for (int r = 1; r <= 4; ++r) expected += r;
    for (int turn = 0; turn < 50; ++turn) {
      at::Tensor y = x.mul(1);
      rank.world().all_reduce(device::to_buffer(y), Reduce::kSum).wait();
      x = y.mul((rank.rank() + 1) / expected);
    }
    EXPECT_EQ(x.sub(rank.rank() + 1).abs().max().item<double>(), 0);
  });
}

TEST(GpuRanks, BuffersInDifferentPlacesAreAnError) {
  std::atomic<int> refused = 0;
  EXPECT_THROW(on_ranks(2,
                        [&](comm::Rank& rank) {
                          at::Tensor x = at::ones({5}, at::TensorOptions(rank.rank() == 0 ? gpu() : at::kCPU));
                          try {
                            rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
                          } catch (const CommError& error) {
                            EXPECT_THAT(error.message(), testing::HasSubstr("memory of"));
                            ++refused;
                            throw;
                          }
                        }),
               CommError);
  EXPECT_GE(refused, 1);
}

spec::Recipe recipe_of(Family family, Precision precision) {
  spec::Recipe recipe = train::small_recipe(family, precision);
  recipe.model.vocab_size = 29;  // padded by every tp
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = 4;
  recipe.model.num_heads = 4;
  recipe.model.num_kv_heads = family == Family::kLlama ? 2 : 4;
  recipe.model.head_dim = 8;
  recipe.model.ffn_size = 48;
  recipe.data.seq_len = 16;
  recipe.data.synthetic.vocab_size = 24;
  recipe.batch.global_batch_tokens = 8 * 16;
  recipe.train.micro_batch_size = 1;
  return recipe;
}

/// Layouts on the GPU whose numbers differ from those of one rank on the CPU.
std::vector<std::string> parting(const spec::Recipe& recipe, const std::vector<std::string>& layouts, int ranks) {
  train::VerifyRequest request{.recipes = {}, .reference = recipe, .steps = 3};
  for (const std::string& text : layouts) {
    const plan::LayoutCase layout = plan::parse_layout(text);
    spec::Recipe& there = request.recipes.emplace_back(recipe);
    there.layout = layout.layout;
    there.pipeline = layout.pipeline;
    there.run.device = spec::DeviceKind::kCuda;
  }
  std::vector<std::string> wrong;
  comm::run_ranks(
      ranks,
      [&](comm::Rank& rank) {
        train::verify(request, rank, [&](std::size_t i, const train::VerifyResult& result) {
          if (rank.rank() != 0 || result.equal) return;
          wrong.push_back(fmt::format("{}: {} {}, {} {}", layouts[i], result.gradients.name, result.gradients.relative,
                                      result.weights.name, result.weights.relative));
        });
      },
      comm::test_options());
  return wrong;
}

TEST(GpuRanks, LayoutsOfTwoRanksEqualOneOnTheCpu) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Precision precision : {Precision::kFp64, Precision::kFp32}) {
      EXPECT_THAT(parting(recipe_of(family, precision),
                          {"dp=2", "tp=2", "pp=2", "tp=2 sp", "zero=1", "zero=2", "zero=3", "cp=2 cp_kind=ring",
                           "cp=2 cp_kind=gather", "cp=2 cp_kind=ulysses", "pp=2 schedule=zb-h1"},
                          2),
                  testing::IsEmpty())
          << static_cast<int>(family);
    }
  }
}

TEST(GpuRanks, LayoutsOfFourRanksEqualOneOnTheCpu) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    spec::Recipe recipe = recipe_of(family, Precision::kFp64);
    recipe.model.dropout = 0.1;
    EXPECT_THAT(parting(recipe,
                        {"dp=4", "tp=4", "pp=4", "tp=2 sp tp_overlap zero=1", "tp=2 zero=3", "pp=2 tp=2 zero=1",
                         "cp=2 cp_kind=ring tp=2 sp", "cp=4 cp_kind=ring cp_ulysses=2", "cp=2 cp_kind=ring pp=2",
                         "zero=2 zero_group=2", "pp=2 tp=2 sp schedule=zb-h1"},
                        4),
                testing::IsEmpty())
        << static_cast<int>(family);
  }
}

TEST(GpuRanks, LayoutsInBfloat16AreWithinItsRoundings) {
  spec::Recipe recipe = recipe_of(Family::kLlama, Precision::kBf16);
  EXPECT_THAT(parting(recipe, {"dp=2", "tp=2", "pp=2", "zero=3"}, 2), testing::IsEmpty());
}

}  // namespace
}  // namespace trireme::gpu
