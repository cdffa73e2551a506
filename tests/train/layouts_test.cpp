// Layouts of eight ranks against one rank: families, precisions, dropout, odd sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/train/support.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/plan/run_setup.h"
#include "trireme/train/diagnose/explain.h"
#include "trireme/train/diagnose/verify.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

/// Divides by every layout of eight ranks.
spec::Recipe even_recipe(Family family, Precision precision) {
  spec::Recipe recipe = small_recipe(family, precision);
  recipe.model.vocab_size = 29;  // padded by every tp
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = 4;
  recipe.model.num_heads = 8;
  recipe.model.num_kv_heads = family == Family::kLlama ? 2 : 8;  // copied where tp is above 2
  recipe.model.head_dim = 4;
  recipe.model.ffn_size = 48;
  recipe.data.seq_len = 16;
  recipe.data.synthetic.vocab_size = 24;
  if (family == Family::kMistral) recipe.model.window = 5;
  recipe.batch.global_batch_tokens = 8 * 16;
  recipe.train.micro_batch_size = 1;
  return recipe;
}

std::vector<std::string> parting(const spec::Recipe& recipe, const std::vector<std::string>& layouts, int ranks = 8) {
  VerifyRequest request{.recipes = {}, .reference = recipe, .steps = 3};
  spec::undistribute(request.reference);
  for (const std::string& text : layouts) {
    const plan::LayoutCase layout = plan::parse_layout(text);
    request.recipes.push_back(recipe);
    request.recipes.back().layout = layout.layout;
    request.recipes.back().pipeline = layout.pipeline;
  }
  std::vector<std::string> wrong;
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t i, const VerifyResult& result) {
      if (rank.rank() != 0 || result.equal) return;
      wrong.push_back(layouts[i] + ": " + result.gradients.name + " " + std::to_string(result.gradients.relative) +
                      ", " + result.weights.name + " " + std::to_string(result.weights.relative));
    });
  });
  return wrong;
}

const std::vector<std::string> kDense = {
    "tp=2",
    "tp=8",
    "tp=4 sp",
    "tp=2 sp tp_overlap zero=1",
    "tp=2 sp sp_save_gathered zero=2",
    "tp=2 zero=3",
    "tp=4 zero=3",
    "tp=2 zero=2 zero_group=2",
    "zero=1",
    "zero=2",
    "zero=3",
    "zero=3 zero_group=4",
    "pp=2 tp=2 sp zero=1",
    "pp=2 tp=2 zero=3 schedule=zb-h1",
    "pp=2 tp=2 zero=2 schedule=dualpipe virtual_stages=2",
};
const std::vector<std::string> kContext = {
    "cp=2 cp_kind=ring",
    "cp=8 cp_kind=ring",
    "cp=4 cp_kind=gather",
    "cp=4 cp_kind=ulysses",
    "cp=4 cp_kind=ring cp_ulysses=2",
    "cp=8 cp_kind=gather cp_ulysses=2",
    "cp=2 cp_kind=ring tp=2 sp zero=3",
    "cp=2 cp_kind=ulysses tp=4 zero=1",
    "cp=2 cp_kind=gather tp=2 sp zero=2",
    "cp=2 cp_kind=ring pp=2 zero=3",
    "cp=2 cp_kind=ulysses pp=2 tp=2 schedule=zb-v virtual_stages=2",
    "cp=4 cp_kind=ring cp_ulysses=2 tp=2 sp",
};

/// Each by itself: they take half a minute, and run side by side.
void expect_all_equal_one_rank(Family family, Precision precision) {
  std::vector<std::string> layouts = kDense;
  layouts.insert(layouts.end(), kContext.begin(), kContext.end());
  EXPECT_THAT(parting(even_recipe(family, precision), layouts), testing::IsEmpty());
}
TEST(Layouts, OfGpt2InFp64EqualOneRank) { expect_all_equal_one_rank(Family::kGpt2, Precision::kFp64); }
TEST(Layouts, OfGpt2InFp32EqualOneRank) { expect_all_equal_one_rank(Family::kGpt2, Precision::kFp32); }
TEST(Layouts, OfLlamaInFp64EqualOneRank) { expect_all_equal_one_rank(Family::kLlama, Precision::kFp64); }
TEST(Layouts, OfLlamaInFp32EqualOneRank) { expect_all_equal_one_rank(Family::kLlama, Precision::kFp32); }
TEST(Layouts, OfMistralInFp64EqualOneRank) { expect_all_equal_one_rank(Family::kMistral, Precision::kFp64); }
TEST(Layouts, OfMistralInFp32EqualOneRank) { expect_all_equal_one_rank(Family::kMistral, Precision::kFp32); }

TEST(Layouts, EqualOneRankForEncoders) {
  EXPECT_THAT(
      parting(even_recipe(Family::kBert, Precision::kFp64),
              {"tp=4 sp zero=1", "tp=2 zero=3", "cp=4 cp_kind=ring", "cp=2 cp_kind=gather tp=2", "pp=2 tp=2 sp"}),
      testing::IsEmpty());
  spec::Recipe both = even_recipe(Family::kTransformer, Precision::kFp64);
  both.data.seq_len = 16;
  EXPECT_THAT(parting(both, {"tp=4", "tp=2 sp zero=2", "tp=4 sp zero=3", "pp=2 tp=2 sp"}), testing::IsEmpty());
  // Ranks share the tokens of both sequences, which need not be as long.
  for (const std::int64_t source : {16, 24}) {
    both.data.source_seq_len = source;
    both.model.dropout = both.model.attention_dropout = 0.1;
    EXPECT_THAT(parting(both, {"cp=2 cp_kind=ring", "cp=4 cp_kind=gather", "cp=4 cp_kind=ring cp_ulysses=2",
                               "cp=2 cp_kind=ulysses tp=2 sp", "cp=2 cp_kind=ring pp=2 zero=1"}),
                testing::IsEmpty());
  }
}

/// Ranks that share rows compute rectangles of a block layout: of whole blocks, and of ones that their parts cut.
spec::Recipe sparse_recipe(std::int64_t seq_len, Precision precision) {
  spec::Recipe recipe = even_recipe(Family::kLlama, precision);
  auto& sparse = recipe.model.sparse_attention;
  sparse.mode = spec::SparseMode::kBigBird;
  sparse.block = 32;
  sparse.num_sliding_window_blocks = sparse.num_random_blocks = 1;
  sparse.different_layout_per_head = true;
  recipe.model.max_seq_len = recipe.data.seq_len = seq_len;
  recipe.batch.global_batch_tokens = 4 * seq_len;
  return recipe;
}

TEST(Layouts, OfBlockSparseAttentionEqualOneRank) {
  for (const std::int64_t seq_len : {128, 256}) {
    EXPECT_THAT(parting(sparse_recipe(seq_len, Precision::kFp64),
                        {"cp=2 cp_kind=ring", "cp=4 cp_kind=ring zero=2", "cp=4 cp_kind=gather", "cp=4 cp_kind=ulysses",
                         "cp=4 cp_kind=ring cp_ulysses=2", "cp=2 cp_kind=ring tp=2 sp", "cp=2 cp_kind=gather pp=2"},
                        4),
                testing::IsEmpty());
  }
}

/// The same draws fall wherever a token, a head or a column is computed.
TEST(Layouts, DropTheSame) {
  for (const Family family : {Family::kGpt2, Family::kBert}) {
    spec::Recipe recipe = even_recipe(family, Precision::kFp64);
    recipe.model.dropout = 0.2;
    recipe.model.attention_dropout = 0.2;
    EXPECT_THAT(parting(recipe, {"tp=4 sp zero=1", "tp=8", "cp=4 cp_kind=ring", "cp=4 cp_kind=ulysses",
                                 "cp=2 cp_kind=gather tp=2 sp zero=3", "cp=4 cp_kind=ring cp_ulysses=2 pp=2"}),
                testing::IsEmpty());
  }
}

TEST(Layouts, RecomputeTheSame) {
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSelective, spec::RecomputeKind::kSqrt}) {
    spec::Recipe recipe = even_recipe(Family::kLlama, Precision::kFp64);
    recipe.train.recompute = kind;
    EXPECT_THAT(parting(recipe, {"tp=2 sp zero=3", "cp=4 cp_kind=ring zero=2", "cp=2 cp_kind=ulysses tp=2 sp"}),
                testing::IsEmpty());
  }
}

/// Llama with latent attention, its queries from a latent or not, and two further tokens predicted.
spec::Recipe latent_recipe(std::int64_t q_lora_rank, Precision precision) {
  spec::Recipe recipe = even_recipe(Family::kLlama, precision);
  recipe.model.num_kv_heads = 8;
  recipe.model.mla = {.q_lora_rank = q_lora_rank, .kv_lora_rank = 12, .qk_rope_head_dim = 2, .v_head_dim = 3};
  recipe.model.mtp_depth = 2;
  return recipe;
}

TEST(Layouts, OfLatentAttentionAndMultiTokenPredictionAreTheSame) {
  for (const std::int64_t q_lora_rank : {20, 0}) {
    EXPECT_THAT(parting(latent_recipe(q_lora_rank, Precision::kFp64),
                        {"tp=2", "tp=4 sp zero=1", "tp=2 sp sp_save_gathered zero=3", "cp=4 cp_kind=ring zero=2",
                         "cp=2 cp_kind=gather tp=2 sp", "cp=4 cp_kind=ulysses", "pp=2 tp=2 sp", "pp=4 zero=1"}),
                testing::IsEmpty());
  }
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSelective}) {
    spec::Recipe recipe = latent_recipe(20, Precision::kFp64);
    recipe.train.recompute = kind;
    EXPECT_THAT(parting(recipe, {"tp=2 sp zero=3", "tp=2 sp sp_save_gathered", "cp=4 cp_kind=ring"}),
                testing::IsEmpty());
  }
}

/// Saved inputs of blocks shared out over tp (ZeRO-R) are the same inputs.
TEST(Layouts, PartitionedActivationsAreTheSame) {
  spec::Recipe recipe = even_recipe(Family::kGpt2, Precision::kFp64);
  recipe.train.partition_activations = true;
  recipe.model.dropout = 0.1;
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSqrt}) {
    recipe.train.recompute = kind;
    EXPECT_THAT(parting(recipe, {"tp=2", "tp=8", "tp=4 zero=3", "pp=2 tp=2"}), testing::IsEmpty());
  }
}

/// Norms of a whole parameter, of which ranks hold parts and copies of parts.
TEST(Layouts, OptimizersOfWholeNorms) {
  for (const auto kind : {spec::OptimizerKind::kLamb, spec::OptimizerKind::kLars}) {
    spec::Recipe recipe = even_recipe(Family::kLlama, Precision::kFp64);
    recipe.optim.kind = kind;
    EXPECT_THAT(parting(recipe, {"tp=4 zero=1", "tp=8 sp", "zero=3", "pp=2 tp=2 zero=2"}), testing::IsEmpty());
  }
}

/// Copies of different speed, more ranks than rows, buckets of a few numbers, one bucket, other orders of axes.
TEST(Layouts, UnevenSharesAreWeightedRight) {
  spec::Recipe recipe = even_recipe(Family::kGpt2, Precision::kFp64);
  VerifyRequest request{.recipes = {}, .reference = recipe, .steps = 3};
  const auto with = [&](const auto& change) {
    request.recipes.push_back(recipe);
    change(request.recipes.back().layout);
  };
  with([](auto& layout) { layout.dp_batch_weights = {3, 1, 1, 1}; });
  with([](auto& layout) {
    layout.dp_batch_weights = {1, 10, 1, 1}, layout.zero = 1;
  });  // three copies have no row or one
  with([](auto& layout) { layout.bucket_mb = 0.001; });
  with([](auto& layout) { layout.bucket_mb = 0, layout.zero = 2; });
  with([](auto& layout) { layout.bucket_mb = 0.002, layout.first_bucket_mb = 0.0001, layout.reduce_groups = 2; });
  with([](auto& layout) { layout.bucket_mb = 0.001, layout.reduce_groups = 3, layout.zero = 2; });
  with([](auto& layout) { layout.find_unused = true, layout.zero = 1; });
  with([](auto& layout) { layout.find_unused = true, layout.zero = 2; });
  with([](auto& layout) { layout.find_unused = true, layout.zero = 3, layout.bucket_mb = 0.001; });
  with([](auto& layout) { layout.order = "tp cp dp pp", layout.tp = 2, layout.zero = 3; });
  comm::run_ranks(4, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t i, const VerifyResult& result) { EXPECT_TRUE(result.equal) << i; });
  });
}

TEST(Layouts, SumsInSixteenBitsAreNear) {
  spec::Recipe recipe = even_recipe(Family::kGpt2, Precision::kBf16);
  VerifyRequest request{.recipes = {recipe, recipe}, .reference = recipe, .steps = 3};
  request.recipes[0].layout = {.reduce = spec::ReduceKind::kBf16};
  request.recipes[1].layout = {.zero = 2, .reduce = spec::ReduceKind::kBf16};
  comm::run_ranks(4, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t i, const VerifyResult& result) { EXPECT_TRUE(result.equal) << i; });
  });
}

TEST(Layouts, ImpossibleOnesNameTheNumbersAndWhatWorks) {
  const auto message = [](const std::string& text, int ranks) -> std::string {
    spec::Recipe recipe = even_recipe(Family::kGpt2, Precision::kFp32);
    const plan::LayoutCase layout = plan::parse_layout(text);
    recipe.layout = layout.layout;
    try {
      with_trainers(recipe, ranks, [](Trainer&, comm::Rank&) {});
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "no error";
  };
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(message("tp=3", 3), AllOf(HasSubstr("layout.tp"), HasSubstr("8"), HasSubstr("set layout.tp")));
  EXPECT_THAT(message("cp=3", 3), AllOf(HasSubstr("layout.cp"), HasSubstr("16 tokens"), HasSubstr("set layout.cp")));
}

/// What recomputation within a budget counts of a block is what is saved of it, whether its norms come first or last,
/// and beside an encoder with a longer sequence.
TEST(Layouts, BlocksSaveWhatABudgetCounts) {
  for (const Family family : {Family::kLlama, Family::kGpt2, Family::kBert, Family::kTransformer, Family::kT5}) {
    for (const int tp : {1, 2}) {
      spec::Recipe recipe = even_recipe(family, Precision::kFp32);
      recipe.layout.tp = tp;
      recipe.train.micro_batch_size = 2;
      if (spec::has_encoder(family)) recipe.model.num_encoder_layers = 3, recipe.data.source_seq_len = 24;
      const auto saved = [&](spec::RecomputeKind kind, std::optional<double> gb) {
        recipe.train.recompute = kind;
        recipe.train.recompute_gb = gb;
        double bytes = 0;
        with_trainers(recipe, tp, [&](Trainer& trainer, comm::Rank& rank) {
          trainer.step();
          if (rank.rank() == 0) bytes = static_cast<double>(trainer.engine().account().activations);
        });
        return bytes;
      };
      const spec::ModelShape shape = model_shape(recipe);
      const spec::BlockBytes block = plan::block_bytes(recipe, shape);
      const spec::BlockBytes encoder =
          shape.num_encoder_layers > 0 ? plan::block_bytes(recipe, shape, /*encoder=*/true) : spec::BlockBytes{};
      const auto layers = static_cast<double>(shape.num_layers),
                 encoders = static_cast<double>(shape.num_encoder_layers);
      const double none = saved(spec::RecomputeKind::kNone, {}), full = saved(spec::RecomputeKind::kFull, {});
      const double blocks = layers * block.saved + encoders * encoder.saved;
      const double rest = none - blocks;  // embedding and head
      EXPECT_EQ(full - layers * block.input - encoders * encoder.input, rest)
          << static_cast<int>(family) << " tp " << tp;
      double budget = block.saved + 1.5 * block.input;
      if (encoders > 0)  // which the stacks share by what they would save
        budget = blocks * std::max(budget / (layers * block.saved),
                                   (encoder.saved + 1.5 * encoder.input) / (encoders * encoder.saved));
      const double within = saved(spec::RecomputeKind::kBudget, budget / 1e9);
      EXPECT_LE(within - rest, budget) << static_cast<int>(family) << " tp " << tp;
      EXPECT_LT(within, none);
    }
  }
}

/// What a rank keeps and sends is what the papers say, to the byte.
TEST(Layouts, KeepAndSendWhatTheFormulasSay) {
  const auto exact_of = [](spec::Recipe recipe, const std::string& text, int ranks, const spec::TrainConfig& keeps) {
    const bool offload = text.ends_with(" offload");
    const plan::LayoutCase layout = plan::parse_layout(offload ? text.substr(0, text.rfind(' ')) : text);
    recipe.layout = layout.layout;
    if (offload) recipe.layout.offload = spec::OffloadKind::kOptimizer;
    recipe.pipeline = layout.pipeline;
    recipe.train.micro_batch_size = 2;
    recipe.train.recompute = keeps.recompute;
    recipe.train.recompute_norms = keeps.recompute_norms;
    recipe.train.save_mlp_activations = keeps.save_mlp_activations;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank&) {
      const Explanation explanation = explain(trainer);
      EXPECT_FALSE(explanation.traffic.empty()) << text;
      EXPECT_THAT(explanation.gradients, testing::EndsWith(recipe.layout.zero > 0 ? "reduce-scatter of each bucket"
                                                                                  : "all-reduce of each bucket"));
      for (const auto& line : explanation.traffic) {  // bytes that nobody has counted would be a line without formula
        EXPECT_NEAR(line.measured, line.formula, 1) << text << ": " << line.name << "\n" << explanation.text();
      }
      for (const auto& line : explanation.memory) {
        if (line.formula == 0) continue;
        // Flat parts are rounded up to whole vectors.
        EXPECT_NEAR(line.measured, line.formula, line.name == "activations" ? 0 : 0.05 * line.formula)
            << text << ": " << line.name << "\n"
            << explanation.text();
      }
    });
  };
  const auto exact = [&](const std::string& text, Precision precision, int ranks, const spec::TrainConfig& keeps = {}) {
    exact_of(even_recipe(Family::kLlama, precision), text, ranks, keeps);
  };
  for (const std::int64_t q_lora_rank : {20, 0}) {
    for (const char* text : {"zero=0", "tp=4", "tp=4 sp", "tp=2 sp sp_save_gathered", "cp=4 cp_kind=ring",
                             "cp=4 cp_kind=ulysses", "cp=4 cp_kind=gather"}) {
      exact_of(latent_recipe(q_lora_rank, Precision::kBf16), text, 4, {});
      exact_of(latent_recipe(q_lora_rank, Precision::kBf16), text, 4, {.recompute_norms = true});
    }
  }
  for (const char* text : {"cp=4 cp_kind=ring", "cp=4 cp_kind=gather", "cp=2 cp_kind=ring tp=2 sp"})
    exact_of(sparse_recipe(128, Precision::kBf16), text, 4, {});
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp64}) {
    for (const char* text :
         {"zero=0", "zero=1", "zero=2", "zero=3", "tp=4", "tp=4 sp", "tp=2 sp sp_save_gathered zero=2",
          "tp=2 sp zero=1", "cp=4 cp_kind=ring", "cp=4 cp_kind=ulysses", "cp=4 cp_kind=gather",
          "cp=4 cp_kind=ring cp_ulysses=2", "zero=3 zero_group=2", "pp=2 zero=1", "pp=2 tp=2 sp", "zero=0 offload",
          "zero=1 offload", "zero=2 offload", "tp=2 zero=3 offload"}) {
      exact(text, precision, 4);
    }
  }
  exact("tp=2 sp zero=3", Precision::kFp32, 4, {.recompute = spec::RecomputeKind::kFull});
  exact("cp=2 cp_kind=ring zero=2", Precision::kFp32, 4, {.recompute = spec::RecomputeKind::kFull});
  for (const char* text : {"zero=0", "zero=3", "tp=4", "tp=4 sp", "tp=2 sp sp_save_gathered zero=2",
                           "cp=4 cp_kind=ring", "pp=2 zero=1", "pp=2 tp=2 sp"}) {
    exact(text, Precision::kBf16, 4, {.recompute_norms = true});
    exact(text, Precision::kBf16, 4, {.save_mlp_activations = true});
  }
}

/// Where a rank's bytes on their way are not what the formulas say.
std::vector<std::string> unaccounted(spec::Recipe recipe, const std::string& text, int ranks) {
  const plan::LayoutCase layout = plan::parse_layout(text);
  recipe.layout = layout.layout;
  recipe.pipeline = layout.pipeline;
  std::vector<std::string> wrong;
  std::mutex mutex;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    const Explanation explanation = explain(trainer);
    const std::lock_guard lock(mutex);
    if (explanation.traffic.empty()) wrong.push_back(text + ": nothing was sent");
    for (const Explanation::Line& line : explanation.traffic) {
      if (std::abs(line.measured - line.formula) > 1)
        wrong.push_back(fmt::format("{}: rank {}, {}: {} bytes sent, {} by the formulas", text, rank.rank(), line.name,
                                    line.measured, line.formula));
    }
  });
  return wrong;
}

/// Two streams of tokens, of which one may be longer, and what a decoder asks of the other.
TEST(Layouts, SendWhatTheFormulasSayOfAnEncoderAndADecoder) {
  for (const Family family : {Family::kTransformer, Family::kT5}) {
    for (const std::int64_t source : {16, 32}) {
      spec::Recipe recipe = even_recipe(family, Precision::kBf16);
      recipe.model.num_encoder_layers = 2;
      recipe.data.source_seq_len = source;
      recipe.train.micro_batch_size = 2;
      for (const char* text : {"zero=1", "zero=3", "tp=4", "tp=4 sp", "tp=2 sp sp_save_gathered zero=2",
                               "cp=4 cp_kind=ring", "cp=4 cp_kind=ulysses", "cp=4 cp_kind=gather",
                               "cp=4 cp_kind=ring cp_ulysses=2", "cp=2 cp_kind=gather tp=2 sp", "pp=4", "pp=2 tp=2",
                               "pp=2 tp=2 sp schedule=zb-h1", "pp=2 zero=1 schedule=chimera"}) {
        EXPECT_THAT(unaccounted(recipe, text, 4), testing::IsEmpty()) << static_cast<int>(family);
      }
      recipe.train.recompute = spec::RecomputeKind::kFull;
      for (const char* text : {"tp=4 sp", "cp=4 cp_kind=gather", "pp=2 tp=2"})
        EXPECT_THAT(unaccounted(recipe, text, 4), testing::IsEmpty()) << static_cast<int>(family) << ", recomputed";
    }
  }
}

/// A chunk that two ranks of a pipeline hold, and a table that several stages compute with.
TEST(Layouts, SendWhatTheFormulasSayOfParametersThatStagesShare) {
  spec::Recipe recipe = even_recipe(Family::kLlama, Precision::kBf16);
  for (const bool tied : {false, true}) {
    recipe.model.tied = tied;
    for (const char* text :
         {"pp=2 schedule=chimera", "pp=2 zero=2 schedule=chimera", "pp=2 tp=2 schedule=dualpipe", "pp=4", "pp=2 zero=1",
          "pp=2 zero=3 schedule=zb-v", "pp=2 schedule=pipedream-2bw", "pp=2 zero=1 schedule=pipedream"}) {
      EXPECT_THAT(unaccounted(recipe, text, 4), testing::IsEmpty()) << (tied ? "tied" : "");
    }
  }
  recipe = even_recipe(Family::kDeepseekV3, Precision::kBf16);
  recipe.model.mtp_depth = 1;  // a second term of the loss
  EXPECT_THAT(unaccounted(recipe, "pp=2 tp=2", 4), testing::IsEmpty());
}

/// Every token visits every expert, so that routing is balanced: rows to experts and back, gradients of experts over
/// the ranks that have the same ones, loads and logits.
TEST(Layouts, SendWhatTheFormulasSayOfExperts) {
  spec::Recipe recipe = even_recipe(Family::kMistral, Precision::kBf16);
  recipe.train.micro_batch_size = 2;
  recipe.model.experts = {.num_experts = 4, .top_k = 4, .ffn_size = 16, .every = 2};
  for (const std::int64_t shared : {0, 1}) {
    recipe.model.experts.num_shared_experts = shared;
    for (const char* text :
         {"zero=0", "ep=2", "ep=4", "ep=2 zero=1", "ep=2 zero=3", "ep=4 zero=2", "ep=2 zero=2 zero_group=2", "tp=2",
          "tp=2 ep=2", "tp=2 sp ep=2 zero=1", "tp=4 sp", "cp=2 cp_kind=ring ep=2", "cp=4 cp_kind=ulysses ep=2 zero=1",
          "cp=2 cp_kind=gather ep=4", "pp=2 ep=2", "pp=2 ep=2 zero=2 schedule=zb-h1", "pp=2 tp=2 sp"}) {
      EXPECT_THAT(unaccounted(recipe, text, 4), testing::IsEmpty()) << shared << " shared experts";
    }
  }
}

}  // namespace
}  // namespace trireme::train
