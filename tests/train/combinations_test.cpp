// What `trireme check` accepts is what the trainer builds and trains, and what it refuses the trainer refuses in the
// same words: over pairs of features, random combinations of them, and mistakes that hit the remaining rules.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "tests/train/support.h"
#include "trireme/base/new_file.h"
#include "trireme/base/random.h"
#include "trireme/plan/combinations.h"
#include "trireme/plan/run_setup.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/parameters.h"
#include "trireme/spec/rules.h"

namespace trireme::train {
namespace {

struct Case {
  std::string name;
  spec::Recipe recipe;
};

std::string names_of(const std::vector<const plan::Feature*>& features) {
  std::vector<std::string> names;
  for (const plan::Feature* feature : features) names.push_back(feature->name);
  return fmt::format("{}", fmt::join(names, " + "));
}

Case case_of(const std::vector<const plan::Feature*>& features) {
  return {names_of(features), plan::combine(features).recipe};
}

/// All that `trireme check` finds without opening files.
std::vector<config::Problem> checked(const spec::Recipe& recipe, std::set<std::string_view>* rules = nullptr) {
  std::vector<config::Problem> problems = spec::find_problems(recipe);
  const auto setup = plan::run_setup(recipe, *spec::shape_of(recipe.model), {.ranks = plan::ranks_of(recipe)});
  const auto refusals = spec::find_refusals(setup, spec::RuleNeeds::kLayout);  // as plan/check_recipe.cpp
  for (const spec::Refusal& refusal : refusals) problems.push_back(refusal.problem);
  if (rules != nullptr) {
    for (const spec::Refusal& refusal : spec::find_refusals(setup)) rules->insert(refusal.rule->name);
  }
  return problems;
}

/// Two steps on as many threads as the recipe has ranks; what the trainer refuses.
std::vector<config::Problem> trained(const spec::Recipe& recipe) {
  spec::Recipe data = plan::feature_base();  // whatever the recipe's own data is
  data.model = recipe.model;
  data.data.seq_len = recipe.data.seq_len;
  if (recipe.data.synthetic.kind) data.data.synthetic = recipe.data.synthetic;
  std::vector<config::Problem> refused;
  try {
    comm::run_ranks(plan::ranks_of(recipe), [&](comm::Rank& rank) {
      at::set_num_threads(1);
      const auto samples = data::open_samples(data, data::Split::kTrain);
      Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples);
      for (int step = 0; step < 2; ++step) {
        const StepReport report = trainer.step();
        if (!std::isfinite(report.loss)) throw InternalError("the loss is not finite");
      }
    });
  } catch (const config::ProblemsError& error) {
    refused = error.problems();
  }
  return refused;
}

std::vector<Case> feature_pairs() {
  std::vector<Case> cases;
  const auto all = plan::features();
  for (const plan::Feature& feature : all) cases.push_back(case_of({&feature}));
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (plan::can_meet(all[i], all[j])) cases.push_back(case_of({&all[i], &all[j]}));
    }
  }
  return cases;
}

std::vector<Case> random_combinations(int count) {
  std::vector<Case> cases;
  const auto all = plan::features();
  Random random(7, "combinations");
  std::uint64_t draw = 0;
  while (static_cast<int>(cases.size()) < count) {
    std::vector<const plan::Feature*> chosen;
    const std::size_t wanted = 3 + random.below(4, draw++);
    for (int tries = 0; tries < 50 && chosen.size() < wanted; ++tries) {
      const plan::Feature* next = &all[random.below(all.size(), draw++)];
      if (std::ranges::all_of(chosen, [&](const plan::Feature* other) { return plan::can_meet(*other, *next); }))
        chosen.push_back(next);
    }
    Case made = case_of(chosen);
    if (plan::ranks_of(made.recipe) <= 8) cases.push_back(std::move(made));
  }
  return cases;
}

/// What no combination of sensible features does.
std::vector<Case> mistakes() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, const std::function<void(spec::Recipe&)>& change) {
    cases.push_back({name, plan::feature_base()});
    change(cases.back().recipe);
  };
  const auto compress = [](auto& r, spec::CompressKind kind) { r.layout.dp = 2, r.compress.kind = kind; };
  add("Elias codes on a GPU", [=](auto& r) {
    compress(r, spec::CompressKind::kQsgd), r.compress.coding = spec::QsgdCoding::kElias;
    r.run.device = spec::DeviceKind::kCuda;
  });
  add("block-sparse attention around a ring", [](auto& r) {
    r.model.sparse_attention.mode = spec::SparseMode::kFixed, r.model.sparse_attention.block = 16;
    r.layout.cp = 2, r.layout.cp_kind = spec::ContextKind::kRing;
  });
  add("block-sparse attention around a ring of whole blocks", [](auto& r) {
    r.model.sparse_attention.mode = spec::SparseMode::kFixed, r.model.sparse_attention.block = 32;
    r.model.max_seq_len = r.data.seq_len = 64, r.batch.global_batch_tokens = 8 * 64;
    r.layout.cp = 2, r.layout.cp_kind = spec::ContextKind::kRing;
  });
  add("compression beside find_unused",
      [=](auto& r) { compress(r, spec::CompressKind::kQsgd), r.layout.find_unused = true; });
  add("1-bit Adam of SGD",
      [=](auto& r) { compress(r, spec::CompressKind::kOnebitAdam), r.optim.kind = spec::OptimizerKind::kSgd; });
  add("DGC beside momentum",
      [=](auto& r) { compress(r, spec::CompressKind::kDgc), r.optim.kind = spec::OptimizerKind::kSgd; });
  add("local clip without clipping", [=](auto& r) {
    compress(r, spec::CompressKind::kDgc), r.compress.local_clip = true, r.optim.grad_clip_norm = 0;
  });
  add("copies that differ, compared",
      [=](auto& r) { compress(r, spec::CompressKind::kLocalSgd), r.health.compare_replicas = 1; });
  add("compression of an embedding on two stages", [=](auto& r) {
    compress(r, spec::CompressKind::kCsc), r.compress.min_elements = 100, r.layout.pp = 2, r.model.tied = true;
  });
  add("3 workers of 2", [=](auto& r) { compress(r, spec::CompressKind::kDiloco), r.compress.workers = 3; });
  add("nodes of unknown size",
      [=](auto& r) { compress(r, spec::CompressKind::kPowerSgd), r.compress.across = spec::CompressAcross::kNode; });
  add("Muon beside local updates",
      [=](auto& r) { compress(r, spec::CompressKind::kLocalSgd), r.optim.kind = spec::OptimizerKind::kMuon; });
  add("an average beside late updates", [](auto& r) {
    r.layout.offload = spec::OffloadKind::kOptimizer, r.layout.delayed_update = true, r.optim.ema_decay = 0.9;
  });
  add("Muon beside late updates", [](auto& r) {
    r.layout.offload = spec::OffloadKind::kOptimizer, r.layout.delayed_update = true;
    r.optim.kind = spec::OptimizerKind::kMuon;
  });
  add("LAMB beside late updates", [](auto& r) {
    r.layout.offload = spec::OffloadKind::kOptimizer, r.layout.delayed_update = true, r.layout.dp = 2;
    r.optim.kind = spec::OptimizerKind::kLamb;
  });
  add("schedule-free AdamW beside late updates", [](auto& r) {
    r.layout.offload = spec::OffloadKind::kOptimizer, r.layout.delayed_update = true, r.layout.dp = 2;
    r.optim.kind = spec::OptimizerKind::kScheduleFree;
  });
  add("Muon beside find_unused",
      [](auto& r) { r.layout.dp = 2, r.layout.find_unused = true, r.optim.kind = spec::OptimizerKind::kMuon; });
  add("an average that nobody keeps", [](auto& r) { r.eval.weights = spec::EvalWeights::kEma; });
  add("a pace of dropping nothing", [](auto& r) { r.train.layer_keep_gamma = 0.1; });
  add("a batch by noise without steps", [](auto& r) {
    r.batch.kind = spec::BatchKind::kNoise, r.batch.maximum = 4 * r.batch.global_batch_tokens, r.layout.dp = 2;
    r.train.tokens = 4 * r.batch.global_batch_tokens, r.train.steps.reset();
  });
  add("an average in a pipeline that stays full",
      [](auto& r) { r.layout.pp = 2, r.pipeline.drain_every = 2, r.optim.ema_decay = 0.9; });
  add("Adafactor of a tied embedding in stages",
      [](auto& r) { r.layout.pp = 2, r.model.tied = true, r.optim.kind = spec::OptimizerKind::kAdafactor; });
  add("Downpour SGD of LAMB", [](auto& r) {
    r.layout.dp = 2, r.train.mode = spec::TrainMode::kDownpour, r.optim.kind = spec::OptimizerKind::kLamb;
  });
  add("three servers beside two ranks",
      [](auto& r) { r.layout.dp = 2, r.train.mode = spec::TrainMode::kDownpour, r.downpour.servers = 3; });
  add("copies without servers", [](auto& r) {
    r.layout.dp = 2, r.train.mode = spec::TrainMode::kDownpour, r.downpour.copies = 2;
    r.optim.kind = spec::OptimizerKind::kAdagrad, r.optim.grad_clip_norm = 0;
  });
  add("nothing to steal", [](auto& r) { r.layout.dp = 2, r.train.work_stealing = true; });
  add("noise of stages", [](auto& r) { r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1; });
  add("noise of a pipeline that stays full", [](auto& r) {
    r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1, r.pipeline.drain_every = 2;
  });
  add("noise of two micro-batches at once", [](auto& r) {
    r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1, r.pipeline.schedule = "chimera-doubling";
  });
  add("noise of experts that others add to first", [](auto& r) {
    r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1, r.pipeline.schedule = "gpipe";
    r.model.experts = {.num_experts = 4, .top_k = 2};
  });
  add("noise of a tied embedding whose ends share a rank", [](auto& r) {
    r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1, r.model.tied = true;
    r.pipeline.schedule = "zb-v";
  });
  add("noise of further tokens in stages", [](auto& r) {
    r.layout.pp = 2, r.train.noise_scale = true, r.train.micro_batch_size = 1, r.model.mtp_depth = 1;
  });
  add("noise of gradients on the host", [](auto& r) {
    r.layout.offload = spec::OffloadKind::kOptimizer, r.train.noise_scale = true, r.train.micro_batch_size = 1;
  });
  add("dropped layers of steps together",
      [](auto& r) { r.layout.pp = 2, r.pipeline.drain_every = 2, r.train.layer_keep = 0.5; });
  add("dropped layers of two micro-batches at once", [](auto& r) {
    r.layout.pp = 2, r.pipeline.schedule = "chimera-doubling", r.train.layer_keep = 0.5, r.train.micro_batch_size = 1;
  });
  add("noise in a graph", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.train.cuda_graphs = true;
    r.train.noise_scale = true, r.train.micro_batch_size = 1;
  });
  add("noise of shared rows", [](auto& r) { r.layout.cp = 2, r.layout.dp = 2, r.train.noise_scale = true; });
  add("noise of one batch", [](auto& r) { r.train.noise_scale = true; });
  add("muP of SGD", [](auto& r) { r.model.mup_base_hidden_size = 16, r.optim.kind = spec::OptimizerKind::kSgd; });
  add("tp 3", [](auto& r) { r.layout.tp = 3; });
  add("tp 8", [](auto& r) { r.layout.tp = 8; });
  add("cp 3", [](auto& r) { r.layout.cp = 3; });
  add("ulysses 8", [](auto& r) { r.layout.cp = 8, r.layout.cp_kind = spec::ContextKind::kUlysses; });
  add("ulysses 3 of cp 4", [](auto& r) { r.layout.cp = 4, r.layout.cp_ulysses = 3; });
  add("ulysses 2 of one head", [](auto& r) { r.layout.tp = 4, r.layout.cp = 4, r.layout.cp_ulysses = 2; });
  add("a source that cp does not divide", [](auto& r) {
    r.model.family = spec::Family::kTransformer, r.model.num_encoder_layers = 2;
    r.data.synthetic.kind = spec::SyntheticKind::kReverse, r.data.source_seq_len = 15;
    r.layout.cp = 2;
  });
  add("sp without tp", [](auto& r) { r.layout.sequence_parallel = true; });
  add("sp of odd sequences", [](auto& r) {
    r.layout.tp = 2, r.layout.sequence_parallel = true;
    r.data.seq_len = 15, r.batch.global_batch_tokens = 60;
  });
  add("more stages than layers", [](auto& r) { r.layout.pp = 8; });
  add("more chunks than segments", [](auto& r) {
    r.layout.pp = 3, r.pipeline.schedule = "interleaved", r.pipeline.virtual_stages = 2;
    r.train.recompute = spec::RecomputeKind::kSqrt;
  });
  add("five ranks for tp 2", [](auto& r) { r.layout.tp = 2, r.comm.ranks = 5; });
  add("dp 3 of four ranks", [](auto& r) { r.layout.dp = 3, r.comm.ranks = 4; });
  add("zero_group 3 of 4", [](auto& r) { r.layout.zero = 1, r.layout.zero_group = 3, r.comm.ranks = 4; });
  add("three weights for two", [](auto& r) { r.layout.dp = 2, r.layout.dp_batch_weights = {1, 1, 1}; });
  add("ep without experts", [](auto& r) { r.layout.dp = 2, r.layout.ep = 2; });
  add("ep 3 of 4 experts",
      [](auto& r) { r.layout.dp = 3, r.layout.ep = 3, r.model.experts = {.num_experts = 4, .top_k = 2}; });
  add("zero_group 2 beside ep 3", [](auto& r) {
    r.layout.dp = 6, r.layout.ep = 3, r.layout.zero = 1, r.layout.zero_group = 2;
    r.model.experts = {.num_experts = 3, .top_k = 2};
  });
  add("nodes of 2 beside ep 3", [](auto& r) {
    r.layout.dp = 3, r.layout.ep = 3, r.model.experts = {.num_experts = 3, .top_k = 2, .node_ranks = 2};
  });
  add("2 copies of experts for 3 ranks", [](auto& r) {
    r.layout.dp = 3, r.layout.ep = 3;
    r.model.experts = {.num_experts = 3, .top_k = 2, .redundant_experts = 2, .rebalance_every = 1};
  });
  const auto moving = [](spec::Recipe& r) {
    r.layout.dp = 2, r.layout.ep = 2;
    r.model.experts = {.num_experts = 4, .top_k = 2, .move_experts = true, .rebalance_every = 1};
  };
  add("experts that move", [=](auto& r) { moving(r); });
  add("experts that move under offload", [=](auto& r) { moving(r), r.layout.offload = spec::OffloadKind::kOptimizer; });
  add("experts that move, with compression",
      [=](auto& r) { moving(r), r.compress.kind = spec::CompressKind::kPowerSgd; });
  const auto in_flight = [](spec::Recipe& r) {
    r.layout.pp = 2, r.pipeline.schedule = "pipedream", r.model.tied = false;
    r.model.experts = {.num_experts = 4, .top_k = 2, .router = spec::RouterKind::kSigmoidTopK};
  };
  add("experts of steps in flight", [=](auto& r) { in_flight(r); });
  add("experts of steps in flight, with biases",
      [=](auto& r) { in_flight(r), r.model.experts.bias_update_rate = 0.01; });
  add("experts of steps in flight that move", [=](auto& r) {
    in_flight(r), r.layout.dp = r.layout.ep = 2;
    r.model.experts.move_experts = true, r.model.experts.rebalance_every = 1;
  });
  const auto t5 = [](spec::Recipe& r) {
    r.model.family = spec::Family::kT5, r.model.num_encoder_layers = 2, r.model.gated = false, r.model.tied = true;
    r.model.num_kv_heads = r.model.num_heads, r.data.synthetic.kind = spec::SyntheticKind::kReverse;
  };
  add("relative positions of parts of a sequence", [=](auto& r) { t5(r), r.layout.cp = 2; });
  add("relative positions of two stages", [=](auto& r) { t5(r), r.layout.pp = 2; });
  add("relative positions of parts and stages", [=](auto& r) { t5(r), r.layout.pp = 2, r.layout.cp = 2; });
  add("relative positions", [=](auto& r) { t5(r), r.layout.tp = 2; });
  add("balance groups of 3", [](auto& r) { r.model.experts = {.num_experts = 4, .top_k = 2, .balance_group = 3}; });
  add("CUDA graphs of experts with a capacity", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.train.cuda_graphs = true;
    r.model.experts = {.num_experts = 4, .top_k = 2, .capacity_factor = 1.25};
  });
  add("scatter/gather without tp", [](auto& r) { r.layout.pp = 2, r.pipeline.scatter_gather = true; });
  add("stages with more ranks than pp", [](auto& r) { r.layout.pp = 3, r.pipeline.stage_ranks = {2, 2}; });
  add("a stage without ranks", [](auto& r) { r.layout.pp = 2, r.pipeline.stage_ranks = {2, 0}; });
  add("ranks of stages beside their planner", [](auto& r) {
    r.layout.pp = 3, r.pipeline.stage_ranks = {2, 1}, r.pipeline.split = "pipedream";
  });
  add("stages on several ranks with gpipe", [](auto& r) {
    r.layout.pp = 3, r.pipeline.stage_ranks = {2, 1}, r.pipeline.schedule = "gpipe";
  });
  add("fewer micro-batches than ranks of a stage", [](auto& r) {
    r.layout.pp = 4, r.pipeline.stage_ranks = {3, 1}, r.train.micro_batch_size = 4;
  });
  add("recomputed stages without pp", [](auto& r) { r.train.recompute = spec::RecomputeKind::kStage; });
  add("recursive recomputation with pp",
      [](auto& r) { r.layout.pp = 2, r.train.recompute = spec::RecomputeKind::kRecursive; });
  add("splits of virtual workers without waves",
      [](auto& r) { r.layout.pp = 2, r.layout.dp = 2, r.pipeline.split = "size;size:2,1"; });
  add("delayed FP8 scales in waves", [](auto& r) {
    r.layout.pp = 2, r.layout.dp = 2, r.pipeline.schedule = "hetpipe";
    r.precision.compute = spec::Precision::kBf16, r.precision.gemm = spec::GemmPrecision::kFp8Delayed;
    r.optim.kind = spec::OptimizerKind::kSgd;
    r.optim.momentum = r.optim.weight_decay = r.optim.grad_clip_norm = 0;
  });
  const auto budget = [](spec::Recipe& r, double gb) {
    r.train.recompute = spec::RecomputeKind::kBudget, r.train.recompute_gb = gb, r.train.micro_batch_size = 2;
  };
  add("a budget for BERT", [=](auto& r) { budget(r, 1), r.model.family = spec::Family::kBert, r.model.tied = true; });
  add("a budget of less than a block", [=](auto& r) { budget(r, 1e-6); });
  add("a budget of a block without the input of another", [=](auto& r) { budget(r, 4e-5); });
  for (const double gb : {4.2e-5, 4.4e-5, 4.6e-5, 5e-5, 6e-5, 8e-5})
    add("a budget near its least", [=](auto& r) { budget(r, gb); });
  for (const double gb : {4e-5, 4.4e-5, 5e-5, 6e-5, 8e-5, 1e-4, 1.2e-4}) {
    add("a budget of stages", [=](auto& r) { budget(r, gb), r.layout.pp = 2; });
    add("a budget of stages of one block", [=](auto& r) { budget(r, gb), r.layout.pp = 4; });
    add("a budget that chunks share", [=](auto& r) {
      budget(r, gb), r.layout.pp = 2, r.pipeline.schedule = "interleaved", r.pipeline.virtual_stages = 2;
    });
    add("a budget of two directions",
        [=](auto& r) { budget(r, gb), r.layout.pp = 2, r.pipeline.schedule = "chimera"; });
  }
  add("a budget of an encoder and a decoder", [=](auto& r) {
    budget(r, 1), r.model.family = spec::Family::kTransformer, r.model.num_encoder_layers = 2;
    r.data.synthetic.kind = spec::SyntheticKind::kReverse;
  });
  add("halves of one sequence", [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "chimera-halving"; });
  add("doubled forwards with partitioned activations", [](auto& r) {
    r.layout.pp = 2, r.layout.tp = 2, r.pipeline.schedule = "chimera-doubling";
    r.train.recompute = spec::RecomputeKind::kFull, r.train.partition_activations = true;
  });
  add("doubled forwards with offload", [](auto& r) {
    r.layout.pp = 2, r.pipeline.schedule = "chimera-doubling";
    r.train.recompute = spec::RecomputeKind::kFull, r.train.offload_activations = true;
  });
  add("experts on two ranks", [](auto& r) { r.layout.dp = r.layout.ep = 2; });
  add("virtual stages without pp", [](auto& r) { r.pipeline.virtual_stages = 2; });
  add("as many further tokens as a sequence has", [](auto& r) { r.model.mtp_depth = r.data.seq_len; });
  add("drains without pp", [](auto& r) { r.pipeline.drain_every = 2; });
  add("an unknown schedule", [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "1f1d"; });
  add("a file that is not there", [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "file:nowhere.txt"; });
  add("zb-v with three chunks",
      [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "zb-v", r.pipeline.virtual_stages = 3; });
  add("2BW with one micro-batch",
      [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "pipedream-2bw", r.train.micro_batch_size = 8; });
  add("pipedream with two chunks",
      [](auto& r) { r.layout.pp = 2, r.pipeline.schedule = "pipedream", r.pipeline.virtual_stages = 2; });
  add("checkpoints between drains",
      [](auto& r) { r.layout.pp = 2, r.pipeline.drain_every = 2, r.checkpoint.every = 3; });
  add("hashes between drains", [](auto& r) { r.layout.pp = 2, r.pipeline.drain_every = 6, r.train.hash_every = 4; });
  add("an entry that is not there", [](auto& r) { r.layout.pp = 2, r.pipeline.split = "layers.9"; });
  add("entries in another order", [](auto& r) { r.layout.pp = 3, r.pipeline.split = "layers.2,layers.1"; });
  add("too few entries", [](auto& r) { r.layout.pp = 4, r.pipeline.split = "layers.2,layers.3"; });
  add("the right entries", [](auto& r) { r.layout.pp = 3, r.pipeline.split = "layers.1, norm"; });
  add("no length", [](auto& r) { r.train.steps.reset(); });
  add("a batch of broken rows", [](auto& r) { r.batch.global_batch_tokens = 100; });
  add("a ramp of broken rows", [](auto& r) {
    r.batch.kind = spec::BatchKind::kRamp, r.batch.start = 16, r.batch.over = 512, r.train.steps = 40;
  });
  add("learned positions", [](auto& r) { r.model.family = spec::Family::kGpt2, r.model.max_seq_len = 8; });
  add("beyond the context", [](auto& r) { r.model.max_seq_len = 8; });
  add("nothing for validation", [](auto& r) {
    r.data.synthetic.kind.reset();
    r.data.sources = {{.path = "nowhere", .weight = {}}};
    r.data.validation_fraction = 0;
    r.eval.every = 2;
  });
  add("partitioned activations without tp",
      [](auto& r) { r.train.recompute = spec::RecomputeKind::kFull, r.train.partition_activations = true; });
  add("find_unused with ZeRO 3 and stages",
      [](auto& r) { r.layout.dp = 2, r.layout.pp = 2, r.layout.zero = 3, r.layout.find_unused = true; });
  add("find_unused with ZeRO 2", [](auto& r) { r.layout.dp = 2, r.layout.zero = 2, r.layout.find_unused = true; });
  add("graphs and find_unused", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda;
    r.train.cuda_graphs = true, r.layout.find_unused = true;
  });
  add("graphs on the CPU", [](auto& r) { r.train.cuda_graphs = true; });
  add("a pattern of nothing", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.precision.compute = spec::Precision::kBf16;
    r.precision.gemm = spec::GemmPrecision::kFp8, r.precision.gemm_exclude = {"laiers.*"};
  });
  add("a group of nothing", [](auto& r) { r.optim.groups = {{.pattern = "wte", .rate = 1, .weight_decay = {}}}; });
  add("everything frozen", [](auto& r) { r.train.freeze = {"*"}; });
  add("FP8 of small matrices", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.precision.compute = spec::Precision::kBf16;
    r.precision.gemm = spec::GemmPrecision::kFp8Blocks;
  });
  add("FP8 of few tokens", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.precision.compute = spec::Precision::kBf16;
    r.precision.gemm = spec::GemmPrecision::kFp8;
    r.data.seq_len = 12, r.batch.global_batch_tokens = 60;
  });
  add("SGD of bf16 weights on a GPU", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.precision.compute = spec::Precision::kBf16;
    r.precision.master_weights = spec::MasterWeights::kNone, r.optim.kind = spec::OptimizerKind::kSgd;
  });
  add("delayed updates without offload", [](auto& r) { r.layout.delayed_update = true; });
  add("GPUs behind an emulated network", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.comm.transport = spec::Transport::kEmulated, r.layout.dp = 2;
  });
  add("graphs and offload", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.train.cuda_graphs = true;
    r.layout.zero = 1, r.layout.offload = spec::OffloadKind::kOptimizer;
  });
  add("graphs and overlap", [](auto& r) {
    r.run.device = spec::DeviceKind::kCuda, r.train.cuda_graphs = true;
    r.layout.tp = 2, r.layout.sequence_parallel = r.layout.tp_overlap = true;
  });
  return cases;
}

/// Tables from files: one step, which is repeated, and two that overlap.
std::vector<Case> files(const std::filesystem::path& folder) {
  std::vector<Case> cases;
  const auto add = [&](const char* name, const schedule::Schedule& table, std::optional<int> drain_every) {
    const auto path = folder / (std::string(name) + ".txt");
    write_text_file(path, schedule::to_text(table));
    cases.push_back({name, plan::feature_base()});
    spec::Recipe& recipe = cases.back().recipe;
    recipe.layout.pp = 2;
    recipe.pipeline.schedule = "file:" + path.string();
    recipe.pipeline.drain_every = drain_every;
  };
  const auto step = schedule::build("1f1b", {.ranks = 2, .micros = 8});
  const auto two = schedule::build("pipedream-2bw", {.ranks = 2, .micros = 8, .steps = 2});
  add("a step in a file", step, {});
  add("a step in a file and drains", step, 2);
  add("two steps in a file", two, 2);
  add("two steps in a file beside other drains", two, 4);
  add("a file for other micro-batches", schedule::build("1f1b", {.ranks = 2, .micros = 4}), {});
  return cases;
}

/// Takes the first way out that each hint names; false where there is none that could be read.
bool follow(const std::vector<config::Problem>& problems, spec::Recipe& recipe) {
  static const std::regex kAssignment(R"(([a-z_0-9]+(?:\.[a-z_0-9]+)+) = ("[^"]*"|[-\w.]+))"),
      kLeave(R"(leave (\S+) out)"), kStart(R"(start (\d+) ranks)");
  std::vector<std::string> sets;
  const bool counted = std::ranges::any_of(problems, [](const auto& problem) { return problem.key == "layout.dp"; });
  for (const config::Problem& problem : problems) {
    if (counted && problem.key == "layout")
      continue;  // the same ranks, as the recipe alone has them: check says it once
    const std::string hint = problem.hint.substr(0, problem.hint.find(", or "));
    std::size_t found = 0;
    for (std::sregex_iterator it(hint.begin(), hint.end(), kAssignment), end; it != end; ++it, ++found) {
      std::string value = (*it)[2];
      std::erase(value, '"');
      sets.push_back((*it)[1].str() + "=" + value);
    }
    std::smatch match;
    if (std::regex_search(hint, match, kStart)) sets.push_back("comm.ranks=" + match[1].str()), ++found;
    if (std::regex_search(hint, match, kLeave)) {
      ++found;
      const std::string key = match[1] == "it" ? problem.key : match[1].str();
      // What is no optional key is left out by its default.
      if (key.starts_with("compress.")) {
        recipe.compress = {};
      } else {
        sets.push_back(key + (key == "optim.state_dtype" ? "=fp32" : "="));
      }
    }
    if (found == 0) return false;
  }
  std::vector<config::Problem> wrong;
  config::read_into(spec::recipe_schema(), &recipe, {.sets = sets}, wrong);
  return wrong.empty();
}

class Tally {
 public:
  /// Whether trainer and check agree; accepted recipes that need a GPU are not trained.
  void look_at(const Case& one) {
    const std::vector<config::Problem> problems = checked(one.recipe, &rules_);
    const bool trainable = problems.empty() && one.recipe.run.device == spec::DeviceKind::kCpu;
    if (problems.empty() && !trainable) return;
    ++(problems.empty() ? accepted : refused);
    try {
      const std::vector<config::Problem> found = trained(one.recipe);
      EXPECT_EQ(found, problems) << one.name;
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << ": check " << (problems.empty() ? "accepts" : "refuses")
                    << " it, the trainer fails: " << error.what();
    }
  }
  std::vector<std::string_view> missing() const {
    std::vector<std::string_view> names;
    for (const spec::Rule& rule : spec::rules()) {
      if (!rules_.contains(rule.name)) names.push_back(rule.name);
    }
    return names;
  }
  int accepted = 0, refused = 0;

 private:
  std::set<std::string_view> rules_;
};

/// Half a second for hundreds of refusals, and about a minute of training.
TEST(Combinations, CheckAndTrainerAgree) {
  const auto begin = std::chrono::steady_clock::now();
  Tally tally;
  for (const Case& one : mistakes()) tally.look_at(one);
  for (const Case& one : files(testing::TempDir())) tally.look_at(one);
  for (const Case& one : random_combinations(300)) tally.look_at(one);
  const std::vector<Case> pairs = feature_pairs();
  // Every refused pair; of those that train, a seventh, another one for each feature.
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (i < plan::features().size() || i % 7 == 0 || !checked(pairs[i].recipe).empty()) tally.look_at(pairs[i]);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} accepted and trained, {} refused, {:.1f} s\n", tally.accepted, tally.refused, seconds);
  EXPECT_GE(tally.accepted + tally.refused, 500);
  EXPECT_GE(tally.refused, 150);
  EXPECT_GE(tally.accepted, 150);
  EXPECT_THAT(tally.missing(), testing::IsEmpty()) << "no recipe here meets these rules";
}

/// A hint is a promise: whoever does what it says, perhaps a few times, has a recipe that is accepted.
TEST(Combinations, HintsLeadToARecipeThatIsAccepted) {
  std::vector<Case> cases = mistakes();
  for (const Case& one : random_combinations(300)) cases.push_back(one);
  for (Case& one : cases) {
    // Its data is not there either; and patterns only their writer knows.
    if (one.name == "nothing for validation" || one.name.ends_with("of nothing")) continue;
    std::vector<config::Problem> problems = checked(one.recipe);
    for (int round = 0; round < 10 && !problems.empty(); ++round) {
      ASSERT_TRUE(follow(problems, one.recipe)) << one.name << ": " << problems.front().hint;
      problems = checked(one.recipe);
    }
    EXPECT_TRUE(problems.empty()) << one.name << ": " << problems.front().reason << " -> " << problems.front().hint;
  }
}

TEST(Combinations, RulesAreNamedOnceAndSayWhy) {
  std::set<std::string_view> names;
  for (const spec::Rule& rule : spec::rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.refuses.empty() || rule.why.empty()) << rule.name;
  }
}

/// The entries that a check cuts between are those that the model is built of.
TEST(Combinations, EntriesAreTheModels) {
  for (const auto recompute : {spec::RecomputeKind::kNone, spec::RecomputeKind::kSqrt}) {
    for (const auto& [name, family] : spec::enum_names(std::type_identity<spec::Family>())) {
      spec::Recipe recipe = small_recipe(family);
      recipe.model.num_layers = 5;
      recipe.train.recompute = recompute;
      const spec::ModelShape shape = model_shape(recipe);
      const auto model = models::build(shape, build_options(recipe));
      std::vector<std::string> built;
      for (const models::NamedLayer& entry : model->layers) built.push_back(entry.name);
      EXPECT_EQ(spec::chain_entries(shape, recompute), built) << name;
    }
  }
}

/// The parameters that rules look at are those that the model is built of, with their sizes on a tensor-parallel rank.
TEST(Combinations, ParametersAreTheModels) {
  for (const auto& [name, family] : spec::enum_names(std::type_identity<spec::Family>())) {
    for (const int tp : {1, 2, 4}) {
      spec::Recipe recipe = small_recipe(family);
      recipe.model.num_heads = 4;
      recipe.model.head_dim = *recipe.model.hidden_size / 4;
      recipe.model.num_kv_heads = family == spec::Family::kLlama ? 2 : 4;
      recipe.layout.tp = tp;
      comm::run_ranks(tp, [&](comm::Rank& rank) {
        const spec::ModelShape shape = model_shape(recipe);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        Trainer trainer(recipe, shape, rank.world(), *samples);
        std::map<std::string, std::vector<std::int64_t>> built, listed;
        for (const nn::Param& param : trainer.params()) built[param.name] = nn::local_shape(param.placement);
        for (const spec::ParameterShape& whole : spec::list_parameters(shape)) {
          const spec::ParameterShape local = spec::on_tensor_rank(whole, shape, tp);
          listed[local.name] = {local.rows};
          if (local.columns > 0) listed[local.name].push_back(local.columns);
        }
        EXPECT_EQ(listed, built) << name << " on " << tp;
      });
    }
  }
}

}  // namespace
}  // namespace trireme::train
