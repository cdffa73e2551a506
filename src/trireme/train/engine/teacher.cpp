#include "trireme/train/engine/teacher.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/nn/head.h"
#include "trireme/plan/run_setup.h"
#include "trireme/spec/rules.h"

namespace trireme::train {
namespace {

const char* kind_of(const spec::ModelShape& shape) {
  if (shape.num_encoder_layers > 0) return "an encoder-decoder";
  return shape.causal ? "a decoder" : "an encoder";
}

/// What rules refuse of the teacher: it stands on the student's ranks, but is one stage, and it takes the student's
/// micro-batches.
void require_rules_of(const spec::Recipe& recipe, const spec::ModelShape& teacher) {
  spec::RunSetup setup{.recipe = recipe, .shape = teacher, .seq_len = recipe.data.seq_len, .rows = {}, .ranks = {}};
  // A dense teacher of a student with experts is whole on all ranks that these are sharded over.
  if (!teacher.experts.used()) setup.recipe.layout.ep = 1;
  // How many replicas there are is the student's matter.
  if (!setup.recipe.layout.dp) setup.recipe.layout.dp = setup.recipe.layout.ep;
  spec::RunSetup of_micros = setup;
  if (recipe.layout.pp > 1) of_micros.schedule = plan::schedule_traits(recipe);
  setup.recipe.layout.pp = 1;
  setup.recipe.pipeline = {};
  std::vector<spec::Refusal> refusals =
      spec::find_refusals(std::move(setup), spec::RuleNeeds::kLayout, spec::RuleNeeds::kLayout);
  for (spec::Refusal& refusal :
       spec::find_refusals(std::move(of_micros), spec::RuleNeeds::kRun, spec::RuleNeeds::kRun)) {
    if (refusal.rule->name == "balance-groups-are-whole") refusals.push_back(std::move(refusal));
  }
  if (refusals.empty()) return;
  throw config::ProblemsError(fmt::format("the teacher, {}", recipe.distill.teacher), spec::problems_of(refusals));
}

/// Of the ranks that run the teacher the one that tells of it: a pipeline has it in its last stage.
bool is_first_of_stage(const nn::ParallelContext& parallel) {
  const auto at = parallel.mesh.coordinates(parallel.rank);
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] != 0 && parallel.mesh.axes()[i].name != nn::kPipelineAxis) return false;
  }
  return true;
}

}  // namespace

void require_teacher(const spec::Recipe& recipe, const spec::ModelShape& student) {
  const std::string& path = recipe.distill.teacher;
  const spec::ModelShape teacher = checkpoint::stored_shape(path);
  if (std::string_view(kind_of(teacher)) != kind_of(student)) {
    throw ConfigError(
        fmt::format("distill.teacher: {} holds {}, and the model is {}", path, kind_of(teacher), kind_of(student)),
        "name a teacher that reads and predicts the same tokens");
  }
  if (teacher.vocab_size != student.vocab_size) {
    throw ConfigError(
        fmt::format("distill.teacher: {} has a vocabulary of {}, and the model one of {}: their probabilities are not "
                    "of the same tokens",
                    path, teacher.vocab_size, student.vocab_size),
        fmt::format("set model.vocab_size = {}, with the teacher's tokenizer", teacher.vocab_size));
  }
  if (teacher.position_kind == spec::PositionKind::kLearned && teacher.max_seq_len < recipe.data.seq_len) {
    throw ConfigError(fmt::format("distill.teacher: {} has positions up to {}, and data.seq_len is {}", path,
                                  teacher.max_seq_len, recipe.data.seq_len),
                      fmt::format("set data.seq_len = {}", teacher.max_seq_len));
  }
  require_rules_of(recipe, teacher);
}

double teacher_bytes(const spec::Recipe& recipe) {
  if (!recipe.distill.used()) return 0;
  const spec::ModelShape shape = checkpoint::stored_shape(recipe.distill.teacher);
  return static_cast<double>(spec::count_parameters(shape).total()) / recipe.layout.tp *
         static_cast<double>(at::elementSize(nn::compute_type(recipe.precision.compute)));
}

Teacher::Teacher(const spec::Recipe& recipe, const spec::ModelShape& student, const nn::ParallelContext& parallel,
                 at::Device device)
    : config_(recipe.distill) {
  require_teacher(recipe, student);
  checkpoint::OpenedModel opened = checkpoint::open_model(
      config_.teacher,
      {.precision = recipe.precision.compute,
       .device = device,
       .build = {.logits_chunk_bytes = spec::logits_chunk_bytes(recipe.run.device), .parallel = &parallel}});
  model_ = std::move(opened.model);
  // Checkpoints hold master weights, in their type; the teacher computes with its values and needs no more.
  for (nn::Param& param : model_->params) param.master = param.value;
  head_ = dynamic_cast<const nn::Head*>(model_->layers.back().layer.get());
  TRIREME_CHECK(head_ != nullptr, "the last entry of {} is no head", config_.teacher);
  if (is_first_of_stage(parallel)) {
    log_info("distillation: {} of the loss from {}, a {}", config_.weight, opened.what,
             spec::shape_text(model_->shape));
  }
}

void Teacher::teach(const nn::Tensors& inputs, nn::Context& context) {
  if (!context.training) return;
  nn::Context mine;
  mine.seed = context.seed;
  mine.step = context.step;
  mine.samples = context.samples;
  mine.filler = context.filler;
  mine.sequence = context.sequence;
  mine.source = context.source;
  mine.segments = context.segments;
  context.distillation = std::make_shared<nn::Distillation>(
      nn::Distillation{.head = *head_,
                       .weight = config_.weight,
                       .temperature = config_.temperature,
                       .head_input = [this, inputs, mine = std::move(mine)] { return head_input(inputs, mine); }});
}

at::Tensor Teacher::head_input(nn::Tensors inputs, nn::Context context) {
  for (std::size_t i = 0; i + 1 < model_->layers.size(); ++i) {
    inputs = model_->layers[i].layer->forward(std::move(inputs), context, nullptr);
  }
  return std::move(inputs.at(0));
}

std::unique_ptr<Teacher> make_teacher(const spec::Recipe& recipe, const spec::ModelShape& student,
                                      const nn::ParallelContext& parallel, at::Device device) {
  return recipe.distill.used() ? std::make_unique<Teacher>(recipe, student, parallel, device) : nullptr;
}

}  // namespace trireme::train
