// The run: checkpoints, evaluation, logs, and arguments that choose among implementations.
#include <algorithm>

#include "trireme/spec/import/megatron/rows.h"

namespace trireme::spec::megatron {
namespace {

void take_eval_samples(RecipeImport& in, const ForeignKey& given) {
  in.set("eval.samples",
         static_cast<std::int64_t>(std::max(1.0, in.number(given.name) * in.number("global-batch-size", 1))),
         in.origin(given) + " batches of --global-batch-size");
}

constexpr std::string_view kFusions = "which operators are fused is not a choice here";
constexpr std::string_view kLogs = "what a run logs is in its folder: metrics.jsonl, TensorBoard files, report";
constexpr std::string_view kResume = "`trireme train --resume` goes on with everything";

constexpr std::string_view kOneImplementation = "selects code of Megatron-LM's; there is one implementation here";

const ImportRow kRun[] = {
    // checkpoints, evaluation, logs
    {.name = "save", .key = "run.out"},
    {.name = "save-interval", .key = "checkpoint.every"},
    {.name = "load", .without = kResume},
    {.name = "pretrained-checkpoint", .refuse = "give a Hugging Face folder by --set model.init_from=FOLDER"},
    {.name = "finetune", .without = "a run begins anew unless it is resumed"},
    {.name = "no-load-optim", .refuse = kResume},
    {.name = "no-load-rng", .refuse = kResume},
    {.name = "no-save-optim", .refuse = "checkpoints are whole; `trireme convert` writes weights alone"},
    {.name = "no-save-rng", .refuse = "checkpoints are whole; `trireme convert` writes weights alone"},
    {.name = "ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "use-dist-ckpt", .without = "there is one format, which loads under every layout"},
    {.name = "dist-ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "auto-detect-ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "ckpt-fully-parallel-save", .without = "every rank writes its own shards"},
    {.name = "ckpt-fully-parallel-load", .without = "every rank reads its own shards"},
    {.name = "async-save", .key = "checkpoint.background", .value = "true"},
    {.name = "use-checkpoint-args", .without = "the recipe always counts"},
    {.name = "exit-on-missing-checkpoint", .without = "--resume without a checkpoint is an error"},
    {.name = "eval-interval", .key = "eval.every"},
    {.name = "eval-iters", .take = take_eval_samples},
    {.name = "log-interval", .without = kLogs},
    {.name = "log-*", .without = kLogs},
    {.name = "tensorboard-*", .without = kLogs},
    {.name = "timing-log-level", .without = kLogs},
    {.name = "timing-log-option", .without = kLogs},
    {.name = "no-log-*", .without = kLogs},
    {.name = "one-logger-*", .without = kLogs},
    {.name = "enable-one-logger", .without = kLogs},
    {.name = "no-one-logger", .without = kLogs},
    {.name = "wandb-*", .refuse = "runs are not sent to other machines; TensorBoard files can be"},
    {.name = "profile", .without = "`trireme train --trace` has the times of a step"},
    {.name = "profile-*", .without = "`trireme train --trace` has the times of a step"},
    {.name = "use-pytorch-profiler", .without = "`trireme train --trace` has the times of a step"},
    {.name = "exit-duration-in-mins",
     .without = "`trireme train` ends on SIGTERM with a checkpoint; the launcher's limit is enough"},
    {.name = "exit-signal-handler", .without = "a run always ends on SIGTERM with a checkpoint"},
    {.name = "exit-interval", .refuse = "a run ends at train.steps"},
    {.name = "check-for-nan-in-loss-and-grad", .without = "health.non_finite is \"stop\" by default"},
    {.name = "no-check-for-nan-in-loss-and-grad", .key = "health.non_finite", .value = "\"ignore\""},
    {.name = "rerun-mode", .without = "[health] says what happens at NaN and spikes"},
    {.name = "manual-gc", .without = "there is no garbage collector"},
    {.name = "manual-gc-interval", .without = "there is no garbage collector"},
    {.name = "seed", .key = "run.seed"},
    {.name = "data-parallel-random-init", .without = "initial values never depend on the layout"},
    // code
    {.name = "use-mcore-models", .without = kOneImplementation},
    {.name = "use-legacy-models", .without = kOneImplementation},
    {.name = "use-ring-exchange-p2p", .without = kOneImplementation},
    {.name = "transformer-impl", .without = kOneImplementation},
    {.name = "use-flash-attn", .without = "attention is always fused"},
    {.name = "attention-backend", .without = "attention is always fused"},
    {.name = "deterministic-mode", .key = "precision.deterministic_attention", .value = "true"},
    {.name = "no-masked-softmax-fusion", .without = kFusions},
    {.name = "no-bias-gelu-fusion", .without = kFusions},
    {.name = "no-bias-swiglu-fusion", .without = kFusions},
    {.name = "no-bias-dropout-fusion", .without = kFusions},
    {.name = "no-rope-fusion", .without = kFusions},
    {.name = "apply-rope-fusion", .without = kFusions},
    {.name = "no-persist-layer-norm", .without = kFusions},
    {.name = "no-gradient-accumulation-fusion", .without = kFusions},
    {.name = "gradient-accumulation-fusion", .without = kFusions},
    {.name = "cross-entropy-loss-fusion", .without = "cross-entropy is fused with the output head"},
    {.name = "cross-entropy-fusion-impl", .without = "cross-entropy is fused with the output head"},
    {.name = "enable-cuda-graph", .key = "train.cuda_graphs", .value = "true"},
    {.name = "te-rng-tracker", .without = "draws are functions of their index"},
    {.name = "use-cpu-initialization", .without = "initial values are the same on every device"},
    {.name = "empty-unused-memory-level", .without = "memory comes from a pool"},
    {.name = "no-initialization", .refuse = "weights are always initialised"},
};

}  // namespace

std::span<const ImportRow> run_rows() { return kRun; }

}  // namespace trireme::spec::megatron
