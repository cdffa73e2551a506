#include "trireme/spec/train.h"

namespace trireme::spec {
namespace {

constexpr Named<RecomputeKind> kRecomputes[] = {
    {"none", RecomputeKind::kNone},     {"selective", RecomputeKind::kSelective},
    {"full", RecomputeKind::kFull},     {"every", RecomputeKind::kEvery},
    {"sqrt", RecomputeKind::kSqrt},     {"recursive", RecomputeKind::kRecursive},
    {"budget", RecomputeKind::kBudget}, {"stage", RecomputeKind::kStage},
};

constexpr Named<TrainMode> kTrainModes[] = {{"synchronous", TrainMode::kSynchronous},
                                            {"downpour", TrainMode::kDownpour},
                                            {"sandblaster", TrainMode::kSandblaster}};
constexpr Named<EvalWeights> kEvalWeights[] = {{"trained", EvalWeights::kTrained}, {"ema", EvalWeights::kEma}};
constexpr Named<OmpWaitPolicy> kWaitPolicies[] = {{"active", OmpWaitPolicy::kActive},
                                                  {"passive", OmpWaitPolicy::kPassive}};

}  // namespace

std::span<const Named<TrainMode>> enum_names(std::type_identity<TrainMode>) { return kTrainModes; }
std::span<const Named<EvalWeights>> enum_names(std::type_identity<EvalWeights>) { return kEvalWeights; }
std::span<const Named<OmpWaitPolicy>> enum_names(std::type_identity<OmpWaitPolicy>) { return kWaitPolicies; }
std::span<const Named<RecomputeKind>> enum_names(std::type_identity<RecomputeKind>) { return kRecomputes; }

void describe(config::Section<TrainConfig>& section) {
  section.meaning("length of the run, micro-batches, activation memory and GPU execution");
  section.field(
      "mode", &TrainConfig::mode,
      "synchronous: gradients are summed over all ranks in every step; downpour: replicas push gradients to "
      "parameter servers and fetch weights from them, and nobody waits for anybody; sandblaster: L-BFGS on the "
      "batch of the first step, an iteration a step, in place of [optim]: every rank has a shard of its vectors and "
      "computes portions of the batch as it is free (both Dean et al. 2012)");
  section.field("work_stealing", &TrainConfig::work_stealing,
                "a data-parallel rank that has done its micro-batches of a step takes those that slower ranks have not "
                "begun (FlexRR); any rank can read any sample, so the gradient is the same");
  section.field("steps", &TrainConfig::steps, "optimizer steps to train for; or give train.tokens").at_least(1);
  section.field("tokens", &TrainConfig::tokens, "tokens to train on: the run ends with the step that reaches them")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field(
          "micro_batch_size", &TrainConfig::micro_batch_size,
          "sequences of one forward and backward pass on each rank; gradients are accumulated over the micro-batches "
          "of a step; unset: one micro-batch, without gradient accumulation")
      .at_least(1);
  section
      .field("gradient_accumulation_steps", &TrainConfig::gradient_accumulation_steps,
             "micro-batches whose gradients are accumulated in a step; with one of train.micro_batch_size and "
             "batch.global_batch_tokens the other follows: tokens = sequences * data.seq_len * data-parallel size * "
             "this")
      .range(1, 1 << 20);
  section
      .field("threads", &TrainConfig::threads,
             "CPU threads of each rank; unset: the machine's cores divided by its ranks")
      .range(1, 4096);
  section.field("omp_wait_policy", &TrainConfig::omp_wait_policy,
                "how CPU threads wait for each other: active: spinning, for cores of one's own; passive: asleep, for "
                "cores that other programs use, too; unset: OMP_WAIT_POLICY, or a little of both");
  section.field("recompute", &TrainConfig::recompute,
                "activation recomputation (checkpointing); none; selective: the attention core; full: every block; "
                "every: all but each recompute_every-th block; sqrt: segments of about sqrt(num_layers) blocks; "
                "recursive: segments in segments, about log2(num_layers) saved inputs; budget: segments that recompute "
                "least within recompute_gb (both for each chunk of a pipeline by itself); stage: everything between "
                "the boundaries of pipeline stages (GPipe)");
  section
      .field("recompute_every", &TrainConfig::recompute_every,
             "with recompute = \"every\": one block in this many saves its activations")
      .at_least(1);
  section
      .field("recompute_gb", &TrainConfig::recompute_gb,
             "with recompute = \"budget\": GB (1e9 bytes) of activations that the blocks of a rank may save of a "
             "micro-batch")
      .above(0);
  section.field("contiguous_activations", &TrainConfig::contiguous_activations,
                "with recompute: the saved inputs of blocks are copied side by side into memory that is allocated "
                "once, so that they do not cut the device's memory into pieces (ZeRO-R)");
  section.field("offload_activations", &TrainConfig::offload_activations,
                "with recompute: the saved inputs of blocks wait in host memory until backward");
  section.field("partition_activations", &TrainConfig::partition_activations,
                "with recompute and layout.tp: each tensor-parallel rank keeps its part of the saved inputs of blocks, "
                "which are all-gathered in backward (ZeRO-R)");
  section
      .field("memory_gb", &TrainConfig::memory_gb,
             "memory limit of each rank's device in GB (10^9 bytes); a run that needs more stops with a table of what "
             "takes it; unset: no limit")
      .above(0.0);
  section.field("cuda_graphs", &TrainConfig::cuda_graphs,
                "on a GPU: capture the kernels of a micro-batch in a CUDA graph and replay it; with several ranks they "
                "must be processes, with layout.tp and layout.zero up to 1");
  section.field("gemm_autotune", &TrainConfig::gemm_autotune,
                "on a GPU: time the candidate GEMM kernels at the first use of a shape and keep the fastest, in "
                "gpu-choices.json; false: cuBLASLt's heuristic");
  section.field("recompute_norms", &TrainConfig::recompute_norms,
                "recompute the outputs of norms in backward instead of saving them: less memory, the same bits");
  section.field("save_mlp_activations", &TrainConfig::save_mlp_activations,
                "save the outputs of the MLP's activation function for backward instead of recomputing them: a little "
                "faster, more memory");
  section.field(
      "noise_scale", &TrainConfig::noise_scale,
      "measure the gradient noise scale (McCandlish et al. 2018), whole and of each layer, from the norms of "
      "the first micro-batch of each data-parallel rank and of the whole batch; noise_scale in metrics.jsonl");
  section
      .field("noise_scale_ema", &TrainConfig::noise_scale_ema,
             "with noise_scale: decay rate of the averages of its numerator and denominator")
      .range(0, 0.999999);
  section
      .field(
          "layer_keep", &TrainConfig::layer_keep,
          "progressive layer dropping (Zhang, He 2020): share theta of layers that is kept in the end; at step t it is "
          "(1 - theta) exp(-gamma t) + theta, and layer i of L is kept with probability 1 - (i / L) (1 - that); "
          "unset: no layer is dropped")
      .range(0.01, 1);
  section
      .field("layer_keep_gamma", &TrainConfig::layer_keep_gamma,
             "with layer_keep: gamma; unset: 100 / steps of the run")
      .above(0);
  section
      .field("hash_every", &TrainConfig::hash_every,
             "steps between hashes of the whole training state, by which `trireme diff` finds where two runs diverge; "
             "0: never")
      .at_least(0);
  section.field(
      "freeze", &TrainConfig::freeze,
      "patterns of frozen parameters, which are not trained, by our names or Hugging Face's: '*' is any text, '?' any "
      "letter");
  section.retired("microbatch", "micro_batch_size");
  section.retired("capture", "cuda_graphs");
  section.retired("tune", "gemm_autotune");
  section.retired("remake_norms", "recompute_norms");
  section.retired("keep_active", "save_mlp_activations");
}

void describe(config::Section<EvalConfig>& section) {
  section.meaning("validation during training, on held-out samples");
  section.field("every", &EvalConfig::every, "steps between validations, with one more at the end; 0: none")
      .at_least(0);
  section.field("samples", &EvalConfig::samples, "validation samples, the same ones each time").at_least(1);
  section.field(
      "weights", &EvalConfig::weights,
      "weights that validation uses, and with them whatever opens a checkpoint of the run (eval, generate, convert, "
      "serve, model.init_from); trained: as they are, of schedule-free-adamw the averaged ones; ema: the moving "
      "average of optim.ema_decay");
}

void describe(config::Section<CheckpointConfig>& section) {
  section.meaning("when checkpoints are saved, which are kept, and how they are written");
  section
      .field("every", &CheckpointConfig::every,
             "steps between checkpoints, with one more at the end; 0: only at the end")
      .at_least(0);
  section
      .field("interval", &CheckpointConfig::interval,
             "time between checkpoints, beside `every`: \"10min\"; with every = 0, only by time and at the end")
      .at_least(std::chrono::milliseconds(1));
  section.field(
      "automatic", &CheckpointConfig::automatic,
      "choose the interval that loses least time (Young, Daly) from the measured cost of saving and the MTBF");
  section
      .field(
          "mtbf", &CheckpointConfig::mtbf,
          "with automatic: mean time between failures of the whole job; unset: as observed in this run, at first 24h")
      .at_least(std::chrono::seconds(1));
  section.field("keep", &CheckpointConfig::keep, "newest checkpoints to keep; 0: all").at_least(0);
  section
      .field("keep_every", &CheckpointConfig::keep_every,
             "also keep checkpoints of steps that are multiples of this; 0: none")
      .at_least(0);
  section
      .field("keep_best", &CheckpointConfig::keep_best,
             "also keep this many checkpoints with the lowest validation loss, by the last validation before them")
      .at_least(0);
  section.field(
      "background", &CheckpointConfig::background,
      "asynchronous checkpointing: snapshot the state during forward and backward and write it while training "
      "goes on; takes memory for a second state");
  section
      .field("threads", &CheckpointConfig::threads,
             "threads of each rank that copy and read checkpoints; twice as many write")
      .range(1, 256);
  section
      .field("grace", &CheckpointConfig::grace,
             "time allowed for the last checkpoint after SIGTERM, SIGUSR1 or Ctrl-C before the process exits anyway")
      .at_least(std::chrono::seconds(1));
  section.retired("failures", "mtbf");
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
                        .reason = "is 0, so all are kept and the other rules have no effect",
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
  if (train.recompute == RecomputeKind::kBudget && !train.recompute_gb) {
    problems.push_back({.key = "train.recompute_gb",
                        .reason = "is not given, but train.recompute = \"budget\" saves as much as it allows",
                        .hint = "set train.recompute_gb = 2.0, or train.recompute = \"sqrt\""});
  }
  if (train.recompute != RecomputeKind::kBudget && train.recompute_gb) {
    problems.push_back({.key = "train.recompute_gb",
                        .reason = "is given, but train.recompute is not \"budget\"",
                        .hint = "set train.recompute = \"budget\""});
  }
  if (train.recompute == RecomputeKind::kBudget && !train.micro_batch_size && !train.gradient_accumulation_steps) {
    problems.push_back({.key = "train.recompute",
                        .reason = "\"budget\" counts the activations of a micro-batch, whose size is not given",
                        .hint = "set train.micro_batch_size = 1"});
  }
  const bool saves_inputs = train.recompute != RecomputeKind::kNone && train.recompute != RecomputeKind::kSelective &&
                            train.recompute != RecomputeKind::kStage;
  if (train.offload_activations && !saves_inputs) {
    problems.push_back({.key = "train.offload_activations",
                        .reason = "moves the saved inputs of recomputed blocks, but train.recompute saves none",
                        .hint = "set train.recompute = \"full\""});
  }
  if (train.contiguous_activations && !saves_inputs) {
    problems.push_back({.key = "train.contiguous_activations",
                        .reason = "is about the saved inputs of recomputed blocks, but train.recompute saves none",
                        .hint = "set train.recompute = \"full\""});
  }
  if (train.contiguous_activations && (train.offload_activations || train.cuda_graphs)) {
    problems.push_back(
        {.key = "train.contiguous_activations",
         .reason =
             train.offload_activations
                 ? "lays saved inputs side by side on the device, but with train.offload_activations they leave it"
                 : "lays saved inputs side by side, but with train.cuda_graphs a step's memory is laid out once",
         .hint = "set train.contiguous_activations = false"});
  }
  if (train.partition_activations && !saves_inputs) {
    problems.push_back({.key = "train.partition_activations",
                        .reason = "shares out the saved inputs of recomputed blocks, but train.recompute saves none",
                        .hint = "set train.recompute = \"full\""});
  }
  return problems;
}

}  // namespace trireme::spec
