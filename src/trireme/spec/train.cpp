#include "trireme/spec/train.h"

namespace trireme::spec {
namespace {

constexpr Named<RecomputeKind> kRecomputes[] = {
    {"none", RecomputeKind::kNone},   {"selective", RecomputeKind::kSelective}, {"full", RecomputeKind::kFull},
    {"every", RecomputeKind::kEvery}, {"sqrt", RecomputeKind::kSqrt},
};

}  // namespace

std::span<const Named<RecomputeKind>> enum_names(std::type_identity<RecomputeKind>) { return kRecomputes; }

void describe(config::Section<TrainConfig>& section) {
  section.meaning("how long a run goes, and how a rank computes its share of a step");
  section.field("steps", &TrainConfig::steps, "when the run ends; or give train.tokens").at_least(1);
  section.field("tokens", &TrainConfig::tokens, "the run ends with the step that reaches so many tokens")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field("micro_batch_size", &TrainConfig::micro_batch_size,
             "rows that go through the model at once on each rank; gradients add up over them; unset: all that a rank "
             "has of a step")
      .at_least(1);
  section
      .field("threads", &TrainConfig::threads,
             "that each rank computes with; unset: the machine's cores shared among its ranks")
      .range(1, 4096);
  section.field("recompute", &TrainConfig::recompute,
                "what backward recomputes instead of keeping it: nothing, attention's core, every block, all but each "
                "recompute_every-th block, or about sqrt(layers) segments");
  section.field("recompute_every", &TrainConfig::recompute_every, "for recompute = \"every\"").at_least(1);
  section.field("offload_activations", &TrainConfig::offload_activations,
                "with recompute: the inputs that are kept wait on the host until backward");
  section
      .field("memory_gb", &TrainConfig::memory_gb,
             "that each rank may use of its device, in 10^9 bytes: the run stops with a table of what is where when it "
             "needs more; unset: no limit")
      .above(0.0);
  section.field(
      "cuda_graphs", &TrainConfig::cuda_graphs,
      "on a GPU: record the kernels of a microbatch once and start them as one from then on; of several ranks "
      "where they are processes, with layout.tp and layout.zero up to 1");
  section.field("gemm_autotune", &TrainConfig::gemm_autotune,
                "on a GPU: the kernels of GEMMs are timed when a shape is first met, and the fastest is "
                "written to gpu-choices.json; false: cuBLAS's own choice");
  section.field("recompute_norms", &TrainConfig::recompute_norms,
                "make what norms give again in backward, from their inputs, instead of keeping it: the same bits");
  section.field("save_mlp_activations", &TrainConfig::save_mlp_activations,
                "what the activation of an MLP gave is kept for backward instead of recomputed: a little faster, more "
                "memory");
  section
      .field("hash_every", &TrainConfig::hash_every,
             "every so many steps the hash of the whole state is written down, by which `trireme diff` finds where two "
             "runs part; 0: never")
      .at_least(0);
  section.field("freeze", &TrainConfig::freeze,
                "parameters that stay as they are: patterns of their names, '*' for any text, '?' for any letter");
}

void describe(config::Section<EvalConfig>& section) {
  section.meaning("validation within training, on samples that are not trained on");
  section.field("every", &EvalConfig::every, "steps between validations, and one at the end; 0: none").at_least(0);
  section.field("samples", &EvalConfig::samples, "how many, always the same ones").at_least(1);
}

void describe(config::Section<CheckpointConfig>& section) {
  section.meaning("what a run can go on from");
  section.field("every", &CheckpointConfig::every, "steps between checkpoints, and one at the end; 0: only at the end")
      .at_least(0);
  section
      .field("interval", &CheckpointConfig::interval,
             "also after so much time without one: \"10min\"; with every = 0, only then and at the end")
      .at_least(std::chrono::milliseconds(1));
  section.field("automatic", &CheckpointConfig::automatic,
                "choose the interval that loses least time (Young, Daly), from what saving costs and how often runs "
                "fail");
  section
      .field("mtbf", &CheckpointConfig::mtbf,
             "mean time between failures, for automatic; unset: as this run has seen, at first 24h")
      .at_least(std::chrono::seconds(1));
  section.field("keep", &CheckpointConfig::keep, "how many of the newest stay; 0: all").at_least(0);
  section
      .field("keep_every", &CheckpointConfig::keep_every, "those of steps that are multiples of it stay too; 0: none")
      .at_least(0);
  section
      .field("keep_best", &CheckpointConfig::keep_best,
             "so many with the lowest validation loss stay too, by the last validation before them")
      .at_least(0);
  section.field("background", &CheckpointConfig::background,
                "copy the state during forward and backward and write it while training goes on: takes memory for a "
                "second state");
  section.field("threads", &CheckpointConfig::threads, "of each rank, that write and read checkpoints").range(1, 256);
  section
      .field("grace", &CheckpointConfig::grace,
             "how long saving and stopping may take after SIGTERM, SIGUSR1 or Ctrl-C before the process ends anyway")
      .at_least(std::chrono::seconds(1));
}

std::vector<config::Problem> find_problems(const CheckpointConfig& checkpoint) {
  std::vector<config::Problem> problems;
  if (checkpoint.automatic && checkpoint.interval) {
    problems.push_back({.key = "checkpoint.interval",
                        .reason = "is given beside checkpoint.automatic, which chooses it",
                        .hint = "leave one out"});
  }
  if (checkpoint.mtbf && !checkpoint.automatic) {
    problems.push_back({.key = "checkpoint.mtbf",
                        .reason = "is given, but only checkpoint.automatic uses it",
                        .hint = "set checkpoint.automatic = true"});
  }
  if (checkpoint.keep == 0 && (checkpoint.keep_every > 0 || checkpoint.keep_best > 0)) {
    problems.push_back({.key = "checkpoint.keep",
                        .reason = "is 0, so all stay and the other rules mean nothing",
                        .hint = "set checkpoint.keep = 2"});
  }
  return problems;
}

std::vector<config::Problem> find_problems(const TrainConfig& train) {
  std::vector<config::Problem> problems;
  if (train.steps && train.tokens) {
    problems.push_back({.key = "train.tokens",
                        .reason = "is given beside train.steps, and only one of them can end the run",
                        .hint = "leave one out"});
  }
  if (train.recompute != RecomputeKind::kEvery && train.recompute_every != TrainConfig{}.recompute_every) {
    problems.push_back({.key = "train.recompute_every",
                        .reason = "is given, but train.recompute is not \"every\"",
                        .hint = "set train.recompute = \"every\""});
  }
  const bool keeps_inputs = train.recompute == RecomputeKind::kFull || train.recompute == RecomputeKind::kSqrt ||
                            train.recompute == RecomputeKind::kEvery;
  if (train.offload_activations && !keeps_inputs) {
    problems.push_back({.key = "train.offload_activations",
                        .reason = "moves the inputs of recomputed blocks, but train.recompute keeps none",
                        .hint = "set train.recompute = \"full\""});
  }
  return problems;
}

}  // namespace trireme::spec
