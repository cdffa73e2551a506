// A dense student that learns from a mixture of experts (Switch Transformer, section 4.1): where it starts, what
// layouts make of it, and whether it learns.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/train/support.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/models/published.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/train/engine/teacher.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using spec::Family;
using testing::HasSubstr;

class Distilled : public testing::Test {
 protected:
  Distilled() : folder_(fs::path(testing::TempDir()) / fmt::format("distill-{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Distilled() override { fs::remove_all(folder_); }

  static spec::Recipe with_experts(Family family) {
    spec::Recipe recipe = small_recipe(family, spec::Precision::kFp64);
    recipe.model.experts = {.num_experts = 4, .top_k = 2};
    if (family == Family::kT5) {
      recipe.model.experts.top_k = 1, recipe.model.experts.every = 2;
      recipe.model.experts.router = spec::RouterKind::kSwitch;
    }
    return recipe;
  }
  /// What a model of the recipe is after so many steps.
  std::string trained(const spec::Recipe& recipe, int steps, const std::string& name) const {
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < steps; ++step) trainer.step();
      models::save_published(trainer.model(), folder_ / name, formats::Dtype::kF32);
    });
    return (folder_ / name).string();
  }
  /// A dense model of it.
  static spec::Recipe student_of(const spec::Recipe& recipe, const std::string& teacher) {
    spec::Recipe student = recipe;
    student.model = {};
    student.model.init_from = teacher;
    student.model.init_dense = true;
    student.distill.teacher = teacher;
    student.batch.global_batch_tokens = 8 * 12;
    student.train.micro_batch_size = 1;
    return student;
  }
  static void expect_equal(const spec::Recipe& recipe, const std::vector<std::string>& layouts, int ranks) {
    VerifyRequest request{.recipes = {}, .reference = recipe, .steps = 3};
    for (const std::string& layout : layouts) {
      const plan::LayoutCase one = plan::parse_layout(layout);
      request.recipes.push_back(recipe);
      request.recipes.back().layout = one.layout;
      request.recipes.back().pipeline = one.pipeline;
    }
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      verify(request, rank, [&](std::size_t i, const VerifyResult& result) {
        if (rank.rank() != 0) return;
        EXPECT_TRUE(result.equal) << layouts[i] << ": gradients " << result.gradients.name << " "
                                  << result.gradients.relative << ", weights " << result.weights.name << " "
                                  << result.weights.relative;
      });
    });
  }

  fs::path folder_;
};

TEST_F(Distilled, ADenseStudentStartsWithTheWeightsThatAreNotTheExperts) {
  const spec::Recipe recipe = with_experts(Family::kMistral);
  const std::string teacher = trained(recipe, 2, "teacher");
  const auto stored = checkpoint::open_model(teacher, {});
  with_trainers(student_of(recipe, teacher), 1, [&](Trainer& trainer, comm::Rank&) {
    int loaded = 0, fresh = 0;
    spec::Recipe drawn = small_recipe(Family::kMistral, spec::Precision::kFp64);
    const auto initial = models::build(*spec::shape_of(drawn.model), {});
    nn::initialise(initial->params, nn::Precision::kFp64, 3);
    for (const nn::Param& param : trainer.model().params) {
      const bool of_mixture =
          param.name.find(".mlp.in.") != std::string::npos || param.name.find(".mlp.out.") != std::string::npos;
      const at::Tensor expected =
          of_mixture ? initial->params.at(param.name).master : stored.model->params.at(param.name).master;
      EXPECT_TRUE(at::equal(param.master, expected.to(param.master.scalar_type()))) << param.name;
      of_mixture ? ++fresh : ++loaded;
    }
    EXPECT_EQ(fresh, 4);  // two matrices of each layer
    EXPECT_GT(loaded, fresh);
  });
}

TEST_F(Distilled, EveryLayoutIsWhatOneRankComputes) {
  const spec::Recipe recipe = with_experts(Family::kMistral);
  const std::string teacher = trained(recipe, 2, "teacher");
  spec::Recipe student = student_of(recipe, teacher);
  student.distill.temperature = 2;
  student.model.z_loss = 1e-3;
  expect_equal(student,
               {"dp=2", "dp=2 zero=3", "tp=2", "tp=2 sp", "cp=2", "pp=2 schedule=1f1b", "pp=2 schedule=dualpipe",
                "pp=2 schedule=zb-h1"},
               2);
  // A student with experts: it and its teacher are sharded over the same ranks.
  spec::Recipe with = student;
  with.model = recipe.model;
  expect_equal(with, {"ep=2", "cp=2 ep=2", "ep=2 zero=2"}, 2);
}

TEST_F(Distilled, AnEncoderDecoderLearnsFromSwitch) {
  spec::Recipe recipe = with_experts(Family::kT5);
  const std::string teacher = trained(recipe, 2, "switch");
  expect_equal(student_of(recipe, teacher), {"dp=2", "tp=2", "tp=2 sp"}, 2);
}

/// Its stages compute with weights that are behind: the teacher's part of the loss, too.
TEST_F(Distilled, AsynchronousStagesLearnFromATeacher) {
  const spec::Recipe recipe = with_experts(Family::kMistral);
  spec::Recipe student = student_of(recipe, trained(recipe, 2, "teacher"));
  student.layout.pp = 2;
  student.pipeline.schedule = "pipedream";
  const VerifyResult result = verify_beside_one_rank(student, 2, 3);
  EXPECT_TRUE(result.equal) << result.gradients.name << " " << result.gradients.relative;
}

double last_of(const spec::Recipe& recipe, int steps, const std::string& term) {
  double mean = 0;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < steps; ++step) {
      const StepReport report = trainer.step();
      mean = 0;
      for (const observe::NamedLoss& loss : report.losses) {
        if (loss.name == term) mean = loss.mean;
      }
    }
  });
  return mean;
}

/// With the paper's quarter a student comes closer to its teacher than with the targets alone.
TEST_F(Distilled, AStudentComesCloserToItsTeacher) {
  spec::Recipe recipe = with_experts(Family::kMistral);
  recipe.precision.compute = spec::Precision::kFp32;
  recipe.optim.learning_rate = 5e-3;
  recipe.batch.global_batch_tokens = 16 * 12;
  const std::string teacher = trained(recipe, 150, "teacher");
  spec::Recipe taught = student_of(recipe, teacher), alone = taught;
  taught.batch = alone.batch = recipe.batch;
  taught.train.micro_batch_size = alone.train.micro_batch_size = 16;
  alone.distill.weight = 1e-9;  // told, not learnt
  const double with = last_of(taught, 30, "distillation_loss"), without = last_of(alone, 30, "distillation_loss");
  EXPECT_LT(with, without);
}

/// Each with a sentence and a fix.
TEST_F(Distilled, ATeacherThatDoesNotFitIsRefused) {
  const spec::Recipe recipe = with_experts(Family::kMistral);
  const std::string teacher = trained(recipe, 0, "teacher");
  const auto refused = [&](const spec::Recipe& student) -> std::string {
    try {
      require_teacher(student, *spec::shape_of(student.model));
    } catch (const Error& error) {
      return fmt::format("{} -> {}", error.message(), error.hint());
    }
    return "";
  };
  spec::Recipe student = small_recipe(Family::kMistral);
  student.distill.teacher = teacher;
  EXPECT_EQ(refused(student), "");
  student.model.vocab_size = 32;
  EXPECT_THAT(refused(student), testing::AllOf(HasSubstr("has a vocabulary of 24, and the model one of 32"),
                                               HasSubstr("set model.vocab_size = 24")));
  student = small_recipe(Family::kT5);
  student.distill.teacher = teacher;
  EXPECT_THAT(refused(student), HasSubstr("holds a decoder, and the model is an encoder-decoder"));
  student = small_recipe(Family::kMistral);
  student.distill.teacher = (folder_ / "nobody").string();
  EXPECT_THAT(refused(student), HasSubstr("does not exist"));
  student.distill.teacher = teacher;
  student.layout.tp = 4;  // of two heads
  EXPECT_THAT(refused(student), HasSubstr("4"));

  student = small_recipe(Family::kMistral);
  student.distill.weight = 0.5;
  ASSERT_EQ(spec::find_problems(student).size(), 1u);
  EXPECT_EQ(spec::find_problems(student)[0].key, "distill");
  student.distill.teacher = teacher;
  EXPECT_TRUE(spec::find_problems(student).empty());
  student.distill.weight = 1;
  student.model.z_loss = 0.01;
  ASSERT_EQ(spec::find_problems(student).size(), 1u);
  EXPECT_EQ(spec::find_problems(student)[0].hint, "set model.z_loss = 0");
  student.model.init_dense = true;
  student.model.z_loss = 0;
  ASSERT_EQ(spec::find_problems(student).size(), 1u);
  EXPECT_EQ(spec::find_problems(student)[0].key, "model.init_dense");
}

}  // namespace
}  // namespace trireme::train
