#include "trireme/plan/features.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/schedule/builders.h"

namespace trireme::plan {
namespace {

using spec::Recipe;

void take_at_least(int& value, int least) { value = std::max(value, least); }
void take_replicas(Recipe& recipe, int least) { recipe.layout.dp = std::max(recipe.layout.dp.value_or(1), least); }
void take_bf16(Recipe& recipe) {
  if (recipe.precision.compute == spec::Precision::kFp32) recipe.precision.compute = spec::Precision::kBf16;
}
void take_gpu(Recipe& recipe) { recipe.run.device = spec::DeviceKind::kCuda; }

void take_zero(Recipe& recipe, int stage) {
  take_replicas(recipe, 2);
  take_at_least(recipe.layout.zero, stage);
}

void take_sequence_parallel(Recipe& recipe) {
  take_at_least(recipe.layout.tp, 2);
  recipe.layout.sequence_parallel = true;
}

void take_context_parallel(Recipe& recipe, spec::ContextKind kind, int ranks, int ulysses) {
  recipe.layout.cp_kind = kind;
  take_at_least(recipe.layout.cp, ranks);
  recipe.layout.cp_ulysses = ulysses;
}

void take_schedule(Recipe& recipe, const schedule::Kind& kind) {
  take_at_least(recipe.layout.pp, 2);
  recipe.pipeline.schedule = kind.name;
  take_at_least(recipe.pipeline.virtual_stages, kind.default_chunks);
  // Half of a micro-batch is one sequence at least.
  if (kind.name == "chimera-halving") recipe.train.micro_batch_size = 2;
  if (kind.name == "spectrain") {  // predicts by the momentum of SGD
    recipe.optim.kind = spec::OptimizerKind::kSgd;
    recipe.optim.momentum = 0.9;
  }
  if (kind.name == "hetpipe") {  // whose local updates are those of plain SGD
    recipe.optim.kind = spec::OptimizerKind::kSgd;
    recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
  }
}

void take_fp8(Recipe& recipe, spec::GemmPrecision gemm) {
  take_gpu(recipe);
  take_bf16(recipe);
  recipe.precision.gemm = gemm;
  // Tiles of 128, whoever shards them. CPUs take FP8 too, but GPUs are not trained on here, so these sizes cost
  // nothing.
  constexpr std::int64_t kTile = 128, kShards = 4;
  const std::int64_t rows = recipe.batch.global_batch_tokens / recipe.data.seq_len;
  recipe.model.head_dim = kTile;
  recipe.model.hidden_size = recipe.model.ffn_size = kTile * kShards;
  recipe.data.seq_len = kTile * kShards * 2;
  recipe.model.max_seq_len = recipe.data.seq_len;
  recipe.batch.global_batch_tokens = rows * recipe.data.seq_len;
}

void take_encoder_decoder(Recipe& recipe) {
  recipe.model.family = spec::Family::kTransformer;
  recipe.model.num_encoder_layers = 2;
  recipe.data.synthetic.kind = spec::SyntheticKind::kReverse;
}

void take_experts(Recipe& recipe) {
  recipe.model.experts.num_experts = 4;
  recipe.model.experts.top_k = 2;
  recipe.model.experts.num_shared_experts = 1;
  recipe.model.experts.aux_loss_weight = 0.01;
}

std::vector<Feature> features_of_layouts() {
  using spec::ContextKind;
  return {
      {"data parallelism", "", [](Recipe& r) { take_replicas(r, 2); }},
      {"a batch that ranks do not divide", "", [](Recipe& r) { r.batch.global_batch_tokens = 7 * r.data.seq_len; }},
      {"dp_batch_weights", "",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.layout.dp_batch_weights.assign(static_cast<std::size_t>(*r.layout.dp), 1.0);
         r.layout.dp_batch_weights[0] = 2;
       }},
      {"ZeRO-1", "ZeRO", [](Recipe& r) { take_zero(r, 1); }},
      {"ZeRO-2", "ZeRO", [](Recipe& r) { take_zero(r, 2); }},
      {"ZeRO-3", "ZeRO", [](Recipe& r) { take_zero(r, 3); }},
      {"ZeRO groups (HSDP)", "",
       [](Recipe& r) {
         take_zero(r, 1);
         take_replicas(r, 4);
         if (r.layout.dp_batch_weights.size() == 2) r.layout.dp_batch_weights = {2, 1, 1, 1};
         // Pipelines from both ends want 2p micro-batches each.
         const std::int64_t rows = r.batch.global_batch_tokens / r.data.seq_len;
         if (rows % 4 == 0) r.batch.global_batch_tokens = std::max<std::int64_t>(rows, 16) * r.data.seq_len;
         r.layout.zero_group = 2;
       }},
      {"bf16 reduction", "", [](Recipe& r) { take_replicas(r, 2), r.layout.reduce = spec::ReduceKind::kBf16; }},
      {"compressed gradients (PowerSGD)", "compress",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.compress = {.kind = spec::CompressKind::kPowerSgd, .min_elements = 100, .rank = 2};
       }},
      {"local updates (DiLoCo)", "compress",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.compress = {.kind = spec::CompressKind::kDiloco, .interval = 2};
       }},
      {"offload of the optimizer", "", [](Recipe& r) { r.layout.offload = spec::OffloadKind::kOptimizer; }},
      {"delayed updates", "",
       [](Recipe& r) {
         r.layout.offload = spec::OffloadKind::kOptimizer;
         r.layout.delayed_update = true;
         r.layout.offload_warmup = 1;
       }},
      {"tensor parallelism", "", [](Recipe& r) { take_at_least(r.layout.tp, 2); }},
      {"sequence parallelism", "", [](Recipe& r) { take_sequence_parallel(r); }},
      {"tp_overlap", "", [](Recipe& r) { take_sequence_parallel(r), r.layout.tp_overlap = true; }},
      {"sp_save_gathered", "", [](Recipe& r) { take_sequence_parallel(r), r.layout.sp_save_gathered = true; }},
      {"ring attention", "cp", [](Recipe& r) { take_context_parallel(r, ContextKind::kRing, 2, 1); }},
      {"Ulysses", "cp", [](Recipe& r) { take_context_parallel(r, ContextKind::kUlysses, 2, 1); }},
      {"gathered keys (cp)", "cp", [](Recipe& r) { take_context_parallel(r, ContextKind::kGather, 2, 1); }},
      {"Ulysses inside a ring", "cp", [](Recipe& r) { take_context_parallel(r, ContextKind::kRing, 4, 2); }},
      {"expert parallelism", "",
       [](Recipe& r) {
         take_experts(r);
         take_replicas(r, 2);
         take_at_least(r.layout.ep, 2);
       }},
  };
}

std::vector<Feature> features_of_pipelines() {
  std::vector<Feature> all;
  for (const schedule::Kind& kind : schedule::kinds()) {
    all.push_back({std::string(kind.name), "schedule", [&kind](Recipe& r) { take_schedule(r, kind); }});
  }
  const auto stages = [](Recipe& r) { take_at_least(r.layout.pp, 2); };
  all.push_back({"drain_every > 1", "", [=](Recipe& r) { stages(r), r.pipeline.drain_every = 2; }});
  all.push_back({"split by size", "split", [=](Recipe& r) { stages(r), r.pipeline.split = "size"; }});
  all.push_back({"split by time", "split", [=](Recipe& r) { stages(r), r.pipeline.split = "time"; }});
  all.push_back(
      {"split by PipeDream's planner", "split", [=](Recipe& r) { stages(r), r.pipeline.split = "pipedream"; }});
  all.push_back({"stages on several ranks", "split", [](Recipe& r) {
                   take_at_least(r.layout.pp, 3);
                   r.pipeline.stage_ranks = {2, 1};
                 }});
  all.push_back({"scatter/gather between stages", "", [=](Recipe& r) {
                   stages(r);
                   take_at_least(r.layout.tp, 2);
                   r.pipeline.scatter_gather = true;
                 }});
  return all;
}

std::vector<Feature> features_of_numbers() {
  using spec::Gradients, spec::MasterWeights, spec::OptimizerKind, spec::Precision;
  const auto optimizer = [](OptimizerKind kind) {
    return [kind](Recipe& r) { r.optim.kind = kind, r.optim.momentum = spec::OptimConfig{}.momentum; };
  };
  return {
      {"bf16", "compute", [](Recipe& r) { r.precision.compute = Precision::kBf16; }},
      {"fp16", "compute", [](Recipe& r) { r.precision.compute = Precision::kFp16; }},
      {"fp64", "compute", [](Recipe& r) { r.precision.compute = Precision::kFp64; }},
      {"no master weights", "masters",
       [](Recipe& r) { take_bf16(r), r.precision.master_weights = MasterWeights::kNone; }},
      {"master weights of vectors", "masters",
       [](Recipe& r) { take_bf16(r), r.precision.master_weights = MasterWeights::kVectors; }},
      {"bf16 gradients", "", [](Recipe& r) { take_bf16(r), r.precision.gradients = Gradients::kBf16; }},
      {"bf16 optimizer state", "", [](Recipe& r) { r.optim.state_dtype = spec::StateDtype::kBf16; }},
      {"FP8", "GEMMs", [](Recipe& r) { take_fp8(r, spec::GemmPrecision::kFp8); }},
      {"FP8 blocks", "GEMMs", [](Recipe& r) { take_fp8(r, spec::GemmPrecision::kFp8Blocks); }},
      {"delayed FP8 scaling", "GEMMs", [](Recipe& r) { take_fp8(r, spec::GemmPrecision::kFp8Delayed); }},
      {"SGD", "optimizer", optimizer(OptimizerKind::kSgd)},
      {"Adagrad", "optimizer", optimizer(OptimizerKind::kAdagrad)},
      {"Adam", "optimizer", optimizer(OptimizerKind::kAdam)},
      {"LAMB", "optimizer", optimizer(OptimizerKind::kLamb)},
      {"LARS", "optimizer", optimizer(OptimizerKind::kLars)},
      {"Muon", "optimizer", optimizer(OptimizerKind::kMuon)},
  };
}

std::vector<Feature> features_of_steps() {
  using spec::RecomputeKind;
  const auto recompute = [](RecomputeKind kind) { return [kind](Recipe& r) { r.train.recompute = kind; }; };
  return {
      {"gradient accumulation", "", [](Recipe& r) { r.train.micro_batch_size = 2; }},
      {"a growing batch", "",
       [](Recipe& r) {
         r.batch.kind = spec::BatchKind::kRamp;
         r.batch.multiple = r.data.seq_len;
         r.batch.start = 4 * r.data.seq_len;
         r.batch.over = 16 * r.data.seq_len;
       }},
      {"selective recomputation", "recompute", recompute(RecomputeKind::kSelective)},
      {"full recomputation", "recompute", recompute(RecomputeKind::kFull)},
      {"recomputation in segments", "recompute", recompute(RecomputeKind::kSqrt)},
      {"recursive recomputation", "recompute", recompute(RecomputeKind::kRecursive)},
      {"recomputation within a budget", "recompute",
       [](Recipe& r) {
         r.train.recompute = RecomputeKind::kBudget;
         r.train.recompute_gb = 1;
         if (!r.train.micro_batch_size) r.train.micro_batch_size = 2;
       }},
      {"recomputation of stages", "recompute",
       [](Recipe& r) {
         take_at_least(r.layout.pp, 2);
         r.train.recompute = RecomputeKind::kStage;
       }},
      {"offload of activations", "",
       [](Recipe& r) {
         if (r.train.recompute == RecomputeKind::kNone) r.train.recompute = RecomputeKind::kFull;
         r.train.offload_activations = true;
       }},
      {"recompute_norms", "", [](Recipe& r) { r.train.recompute_norms = true; }},
      {"save_mlp_activations", "", [](Recipe& r) { r.train.save_mlp_activations = true; }},
      {"progressive layer dropping", "", [](Recipe& r) { r.train.layer_keep = 0.5; }},
      {"frozen parameters", "", [](Recipe& r) { r.train.freeze = {"layers.*.mlp.*"}; }},
      {"CUDA graphs", "", [](Recipe& r) { take_gpu(r), r.train.cuda_graphs = true; }},
      {"Downpour SGD", "mode",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.train.mode = spec::TrainMode::kDownpour;
       }},
      {"Sandblaster L-BFGS", "mode",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.train.mode = spec::TrainMode::kSandblaster;
       }},
      {"work stealing", "",
       [](Recipe& r) {
         take_replicas(r, 2);
         r.train.work_stealing = true;
         if (!r.train.micro_batch_size) r.train.micro_batch_size = 1;
       }},
      {"health.spike", "", [](Recipe& r) { r.health.spike = spec::AnomalyPolicy::kSkip; }},
      {"health.non_finite", "", [](Recipe& r) { r.health.non_finite = spec::AnomalyPolicy::kSkip; }},
      {"validation", "", [](Recipe& r) { r.eval.every = 2; }},
  };
}

std::vector<Feature> features_of_models() {
  return {
      {"tied embeddings", "", [](Recipe& r) { r.model.tied = true; }},
      {"grouped-query attention", "", [](Recipe& r) { r.model.num_kv_heads = 2; }},
      {"dropout", "", [](Recipe& r) { r.model.dropout = r.model.attention_dropout = 0.1; }},
      {"sliding window", "", [](Recipe& r) { r.model.window = 6; }},
      {"z-loss", "", [](Recipe& r) { r.model.z_loss = 1e-3; }},
      {"experts", "", [](Recipe& r) { take_experts(r); }},
      {"GPT-2", "model", [](Recipe& r) { r.model.family = spec::Family::kGpt2; }},
      {"BERT", "model",
       [](Recipe& r) {
         r.model.family = spec::Family::kBert;
         r.model.tied = true;
       }},
      {"encoder-decoder", "model", [](Recipe& r) { take_encoder_decoder(r); }},
      {"an emulated network", "", [](Recipe& r) { r.comm.transport = spec::Transport::kEmulated; }},
  };
}

}  // namespace

std::span<const Feature> features() {
  static const std::vector<Feature> all = [] {
    std::vector<Feature> joined;
    for (auto& group : {features_of_layouts(), features_of_pipelines(), features_of_numbers(), features_of_steps(),
                        features_of_models()}) {
      joined.insert(joined.end(), group.begin(), group.end());
    }
    return joined;
  }();
  return all;
}

Recipe feature_base() {
  Recipe recipe;
  recipe.run.seed = 3;
  recipe.model.family = spec::Family::kLlama;
  recipe.model.vocab_size = 24;
  recipe.model.max_seq_len = 16;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = 4;
  recipe.model.num_heads = recipe.model.num_kv_heads = 4;
  recipe.model.head_dim = 8;
  recipe.model.ffn_size = 32;
  recipe.model.tied = false;
  recipe.data.seq_len = 16;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.batch.global_batch_tokens = 8 * recipe.data.seq_len;
  recipe.optim.learning_rate = 1e-3;
  recipe.optim.grad_clip_norm = 1;
  recipe.train.steps = 4;
  recipe.train.hash_every = recipe.checkpoint.every = 0;
  return recipe;
}

int ranks_of(const Recipe& recipe) {
  return recipe.comm.ranks.value_or(static_cast<int>(recipe.layout.ranks_per_copy() * recipe.layout.dp.value_or(1)));
}

}  // namespace trireme::plan
