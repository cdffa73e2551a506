// precision.gradients: matrices' and tables' gradients of 16 bits beside fp32 masters and moments.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "tests/train/support.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/store.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/train/diagnose/explain.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Gradients;
using spec::Precision;

spec::Recipe narrow(spec::Recipe recipe) {
  const bool half = recipe.precision.compute == Precision::kFp16;
  recipe.precision.gradients = half ? Gradients::kFp16 : Gradients::kBf16;
  return recipe;
}

spec::Recipe narrow_gradients_recipe(Family family = Family::kLlama, Precision precision = Precision::kBf16) {
  spec::Recipe recipe = small_recipe(family, precision);
  recipe.model.dropout = recipe.model.attention_dropout = 0;
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.layout.bucket_mb = 0.002;  // several buckets, of both types
  return recipe;
}

struct NarrowCourse {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> masters;
};

using Look = std::function<void(nn::Params&)>;
NarrowCourse course_of(const spec::Recipe& recipe, int steps, const Look& look = nullptr) {
  NarrowCourse course;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    if (look) trainer.on_gradients(look);
    for (int step = 0; step < steps; ++step) {
      const StepReport report = trainer.step();
      course.losses.push_back(report.loss);
      course.norms.push_back(report.gradient_norm);
    }
    for (const nn::Param& param : trainer.params()) course.masters.push_back(param.master.clone());
  });
  return course;
}

void expect_same_course(const NarrowCourse& a, const NarrowCourse& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.masters.size(), b.masters.size());
  for (std::size_t i = 0; i < a.masters.size(); ++i) EXPECT_TRUE(at::equal(a.masters[i], b.masters[i])) << i;
}

TEST(NarrowGradients, AreThoseOfMatricesAndTablesAlone) {
  for (const bool masters : {true, false}) {
    spec::Recipe recipe = narrow(narrow_gradients_recipe(Family::kGpt2));
    if (!masters) recipe.precision.master_weights = spec::MasterWeights::kNone;
    course_of(recipe, 1, [&](nn::Params& params) {
      for (const nn::Param& param : params) {
        const bool matrix = param.placement.shape.size() == 2, layer = param.name.starts_with("layers.");
        EXPECT_EQ(param.gradient.scalar_type(), matrix ? at::kBFloat16 : at::kFloat) << param.name;
        EXPECT_EQ(param.value.scalar_type(), at::kBFloat16) << param.name;
        EXPECT_EQ(param.master.scalar_type(), !masters && matrix && layer ? at::kBFloat16 : at::kFloat) << param.name;
      }
    });
  }
}

/// The plain way: fp32 gradients of one micro, each rounded once before norm and update. The bits are the same, also of
/// tied tables, to which head and embedding both give.
TEST(NarrowGradients, AreFp32OnesRoundedOnce) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kBert}) {
    for (const auto kind : {spec::OptimizerKind::kAdamw, spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad,
                            spec::OptimizerKind::kLamb, spec::OptimizerKind::kLars}) {
      for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
        SCOPED_TRACE(fmt::format("family {}, optimizer {}, precision {}", static_cast<int>(family),
                                 static_cast<int>(kind), static_cast<int>(precision)));
        spec::Recipe recipe = narrow_gradients_recipe(family, precision);
        recipe.optim.kind = kind;
        const at::ScalarType type = nn::compute_type(precision);
        const NarrowCourse rounded = course_of(recipe, 5, [&](nn::Params& params) {
          for (nn::Param& param : params) {
            if (param.placement.shape.size() > 1) param.gradient.copy_(param.gradient.to(type));
          }
        });
        expect_same_course(course_of(narrow(recipe), 5), rounded);
      }
    }
  }
}

TEST(NarrowGradients, LearnAsWideOnesDo) {
  for (const std::int64_t micro_batch_size : {6, 2}) {
    spec::Recipe recipe = narrow_gradients_recipe();
    recipe.optim.learning_rate = 3e-3;
    recipe.train.micro_batch_size = micro_batch_size;
    const std::vector<double> wide = course_of(recipe, 60).losses, few = course_of(narrow(recipe), 60).losses;
    EXPECT_LT(wide.back(), wide.front() - 0.3);
    for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_NEAR(few[i], wide[i], 0.03 * wide[i]) << i;
  }
}

TEST(NarrowGradients, AreTheSameBitsEveryTimeAndUnderZeroAndOffloadOfOneRank) {
  const spec::Recipe plain = narrow(narrow_gradients_recipe());
  const NarrowCourse course = course_of(plain, 5);
  expect_same_course(course_of(plain, 5), course);
  for (const int zero : {0, 1, 2, 3}) {
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(fmt::format("zero {}, offload {}", zero, offload));
      spec::Recipe recipe = plain;
      recipe.layout.zero = zero;
      if (offload) recipe.layout.offload = spec::OffloadKind::kOptimizer;
      EXPECT_EQ(course_of(recipe, 5).losses, course.losses);
    }
  }
}

struct Layout {
  const char* name;
  int ranks;
  std::function<void(spec::Recipe&)> set;
};

/// Every layout beside the serial run, gradients and weights too.
TEST(NarrowGradients, GoWithEveryLayout) {
  const auto zero = [](int stage) {
    return [stage](spec::Recipe& recipe) { recipe.layout.dp = 2, recipe.layout.zero = stage; };
  };
  const auto offload = [](int stage) {
    return [stage](spec::Recipe& recipe) {
      recipe.layout.dp = 2, recipe.layout.zero = stage, recipe.layout.offload = spec::OffloadKind::kOptimizer;
    };
  };
  const Layout layouts[] = {
      {"dp", 2, zero(0)},
      {"zero 1", 2, zero(1)},
      {"zero 2", 2, zero(2)},
      {"zero 3", 2, zero(3)},
      {"zero 2 in groups", 4,
       [](spec::Recipe& recipe) { recipe.layout.dp = 4, recipe.layout.zero = 2, recipe.layout.zero_group = 2; }},
      {"reduce bf16", 2,
       [](spec::Recipe& recipe) { recipe.layout.dp = 2, recipe.layout.reduce = spec::ReduceKind::kBf16; }},
      {"reduce bf16, zero 1", 2,
       [](spec::Recipe& recipe) {
         recipe.layout.dp = 2, recipe.layout.zero = 1, recipe.layout.reduce = spec::ReduceKind::kBf16;
       }},
      {"offload", 2, offload(0)},
      {"offload, zero 2", 2, offload(2)},
      {"offload, rounded on the way", 1,
       [](spec::Recipe& recipe) {
         recipe.layout.offload = spec::OffloadKind::kOptimizer, recipe.layout.reduce = spec::ReduceKind::kBf16;
       }},
      {"tp", 2, [](spec::Recipe& recipe) { recipe.layout.tp = 2; }},
      {"tp, sequence", 2, [](spec::Recipe& recipe) { recipe.layout.tp = 2, recipe.layout.sequence_parallel = true; }},
      {"cp", 2, [](spec::Recipe& recipe) { recipe.layout.cp = 2; }},
      {"pp", 2, [](spec::Recipe& recipe) { recipe.layout.pp = 2; }},
      {"pp, dp, zero 1", 4,
       [](spec::Recipe& recipe) { recipe.layout.pp = 2, recipe.layout.dp = 2, recipe.layout.zero = 1; }},
  };
  set_log_level(LogLevel::kError);  // of micros that add up
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(fmt::format("family {}, {}", static_cast<int>(family), layout.name));
      spec::Recipe recipe = narrow(narrow_gradients_recipe(family));
      recipe.batch.global_batch_tokens = 8 * 12;
      recipe.train.micro_batch_size = 2;
      layout.set(recipe);
      const VerifyResult result = verify_beside_one_rank(recipe, layout.ranks, 3);
      EXPECT_TRUE(result.equal) << result.gradients.name << " by " << result.gradients.relative << ", "
                                << result.weights.name << " by " << result.weights.relative;
    }
  }
  set_log_level(LogLevel::kInfo);
}

TEST(NarrowGradients, TakeHalfTheMemory) {
  const device::RankMemory wide = memory_after_a_step(narrow_gradients_recipe()),
                           few = memory_after_a_step(narrow(narrow_gradients_recipe()));
  const auto wide_bytes = static_cast<double>(wide.device.peak_of(device::MemoryUse::kGradients));
  EXPECT_NEAR(static_cast<double>(few.device.peak_of(device::MemoryUse::kGradients)), 0.5 * wide_bytes,
              0.05 * wide_bytes);  // but for vectors
  EXPECT_EQ(few.device.peak_of(device::MemoryUse::kOptimizer), wide.device.peak_of(device::MemoryUse::kOptimizer));
}

TEST(NarrowGradients, AreExplainedBesideFormulasThatStillHold) {
  spec::Recipe recipe = narrow(narrow_gradients_recipe());
  recipe.layout.dp = 2;
  recipe.layout.zero = 1;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
    const Explanation explanation = explain(trainer);
    if (rank.rank() != 0) return;
    for (const Explanation::Line& line : explanation.memory) {
      if (line.name == "master weights" || line.name == "optimizer") {
        EXPECT_NEAR(line.measured / line.formula, 1, 0.01) << line.name;  // buckets are filled up
      } else if (line.name == "gradients") {
        EXPECT_EQ(line.formula_text, "of several types");
      }
    }
    ASSERT_EQ(explanation.traffic.size(), 1U);  // but for vectors, which the formula counts as matrices
    EXPECT_NEAR(explanation.traffic[0].measured / explanation.traffic[0].formula, 1, 0.05);
  });
}

/// Gradients are no state: a run may go on with others.
TEST(NarrowGradients, AreNotInCheckpoints) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trireme-gradients-{}", getpid());
  std::vector<double> straight, again;
  with_trainers(narrow(narrow_gradients_recipe()), 1, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < 6; ++step) {
      if (step == 3) checkpoint::save(trainer.state(), {.folder = folder, .name = "state", .step = 3});
      straight.push_back(trainer.step().loss);
    }
  });
  for (const bool same : {true, false}) {
    again.clear();
    with_trainers(same ? narrow(narrow_gradients_recipe()) : narrow_gradients_recipe(), 1,
                  [&](Trainer& trainer, comm::Rank&) {
                    checkpoint::load(formats::CheckpointFolder(folder / "state"), trainer.state());
                    trainer.loaded();
                    for (int step = 3; step < 6; ++step) again.push_back(trainer.step().loss);
                  });
    for (std::size_t i = 0; i < 3; ++i) {
      if (same) {
        EXPECT_EQ(again[i], straight[3 + i]);
      } else {
        EXPECT_NEAR(again[i], straight[3 + i], 0.01 * straight[3 + i]);
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(NarrowGradients, WarnWhereSeveralMicrosAddUp) {
  const auto warnings = [](const spec::Recipe& recipe) {
    std::vector<std::string> lines;
    divert_log([&](std::string_view line) { lines.emplace_back(line); });
    with_trainers(recipe, 1, [](Trainer&, comm::Rank&) {});
    divert_log(nullptr);
    return lines;
  };
  using testing::AllOf;
  using testing::Contains;
  using testing::HasSubstr;
  using testing::Not;
  spec::Recipe recipe = narrow_gradients_recipe();
  EXPECT_THAT(warnings(narrow(recipe)), Not(Contains(HasSubstr("precision.gradients"))));
  recipe.train.micro_batch_size = 3;
  EXPECT_THAT(warnings(narrow(recipe)), Contains(AllOf(HasSubstr("precision.gradients = \"bf16\": the 2 micros"),
                                                       HasSubstr("train.micro_batch_size"))));
  EXPECT_THAT(warnings(recipe), Not(Contains(HasSubstr("precision.gradients"))));
}

}  // namespace
}  // namespace trireme::train
