#include "trireme/spec/optim.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::spec {
namespace {

constexpr Named<OptimizerKind> kOptimizers[] = {
    {"sgd", OptimizerKind::kSgd},     {"adagrad", OptimizerKind::kAdagrad}, {"adam", OptimizerKind::kAdam},
    {"adamw", OptimizerKind::kAdamw}, {"lamb", OptimizerKind::kLamb},       {"lars", OptimizerKind::kLars},
};
constexpr Named<GemmPrecision> kProducts[] = {
    {"same", GemmPrecision::kSame},
    {"fp8", GemmPrecision::kFp8},
    {"fp8-blocks", GemmPrecision::kFp8Blocks},
    {"fp8-delayed", GemmPrecision::kFp8Delayed},
};
constexpr Named<StateDtype> kStates[] = {{"fp32", StateDtype::kFp32}, {"bf16", StateDtype::kBf16}};
constexpr Named<MasterWeights> kMasters[] = {
    {"fp32", MasterWeights::kFp32}, {"none", MasterWeights::kNone}, {"norms-and-biases", MasterWeights::kVectors}};
constexpr Named<Gradients> kGradients[] = {
    {"fp32", Gradients::kFp32}, {"bf16", Gradients::kBf16}, {"fp16", Gradients::kFp16}};
constexpr Named<Precision> kPrecisions[] = {
    {"fp32", Precision::kFp32},
    {"bf16", Precision::kBf16},
    {"fp16", Precision::kFp16},
    {"fp64", Precision::kFp64},
};

bool has_momentum(OptimizerKind kind) { return kind == OptimizerKind::kSgd || kind == OptimizerKind::kLars; }
bool has_betas(OptimizerKind kind) {
  return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamw || kind == OptimizerKind::kLamb;
}

/// "optim.momentum is given, but ...": a key that is given and then ignored lets people compare the wrong things.
config::Problem unused(const std::string& key, OptimizerKind kind, std::string_view users) {
  return {.key = "optim." + key,
          .reason = fmt::format("is given, but optim.kind = \"{}\" does not use it",
                                name_in<OptimizerKind>(kOptimizers, kind)),
          .hint = fmt::format("leave it out, or set optim.kind = \"{}\"", users)};
}

}  // namespace

std::span<const Named<OptimizerKind>> enum_names(std::type_identity<OptimizerKind>) { return kOptimizers; }
std::span<const Named<GemmPrecision>> enum_names(std::type_identity<GemmPrecision>) { return kProducts; }
std::span<const Named<StateDtype>> enum_names(std::type_identity<StateDtype>) { return kStates; }
std::span<const Named<MasterWeights>> enum_names(std::type_identity<MasterWeights>) { return kMasters; }
std::span<const Named<Gradients>> enum_names(std::type_identity<Gradients>) { return kGradients; }
std::span<const Named<Precision>> enum_names(std::type_identity<Precision>) { return kPrecisions; }

void describe(config::Section<ParamGroup>& section) {
  section.meaning("parameters that are updated differently; the first group whose pattern matches a name counts");
  section.field("pattern", &ParamGroup::pattern, "names of parameters: '*' is any text, '?' any letter").required();
  section.field("rate", &ParamGroup::rate, "the learning rate is multiplied by it").at_least(0);
  section
      .field("weight_decay", &ParamGroup::weight_decay,
             "in place of optim.weight_decay, for all that match, biases and norms too")
      .at_least(0);
}

void describe(config::Section<OptimConfig>& section) {
  section.meaning("the rule by which gradients change weights");
  section.field("kind", &OptimConfig::kind, "the optimizer");
  section.field("learning_rate", &OptimConfig::learning_rate, "the rate after warm-up, before any decay").at_least(0);
  section
      .field("weight_decay", &OptimConfig::weight_decay,
             "of matrices; biases and norms have none. adamw and lamb shrink the weight itself, the others add it to "
             "the gradient")
      .at_least(0);
  section.field("beta1", &OptimConfig::beta1, "adam, adamw, lamb: how much of the mean gradient is kept each step")
      .range(0, 0.999999);
  section.field("beta2", &OptimConfig::beta2, "adam, adamw, lamb: how much of the mean square is kept each step")
      .range(0, 0.999999);
  section
      .field("epsilon", &OptimConfig::epsilon,
             "added to the root of the mean square; unset: 1e-8 for adam and adamw, 1e-6 for lamb, 1e-10 for adagrad")
      .above(0);
  section.field("momentum", &OptimConfig::momentum, "sgd, lars: how much of the velocity is kept each step")
      .range(0, 0.999999);
  section.field("nesterov", &OptimConfig::nesterov, "sgd: take the gradient's step from where momentum leads");
  section.field("trust", &OptimConfig::trust, "lars: length of an update, as a part of the weight's").above(0);
  section
      .field("grad_clip_norm", &OptimConfig::grad_clip_norm,
             "the gradient's norm over all parameters is kept below it; 0: not clipped")
      .at_least(0);
  section.field("state_dtype", &OptimConfig::state_dtype,
                "adam, adamw: what both moments are kept as; bf16 halves them, rounded up or down stochastically");
  section.tables("groups", &OptimConfig::groups);
}

void describe(config::Section<LossScaleConfig>& section) {
  section.meaning("the loss is multiplied by it before backward, so that small gradients survive fp16");
  section.field("initial", &LossScaleConfig::initial, "where it starts").above(0);
  section.field("growth", &LossScaleConfig::growth, "factor after so many good steps").at_least(1);
  section.field("backoff", &LossScaleConfig::backoff, "factor when a gradient overflows; that step is skipped")
      .range(1e-6, 0.999999);
  section.field("interval", &LossScaleConfig::interval, "good steps in a row before it grows")
      .unit(Unit::kCount)
      .at_least(1);
  section.field("minimum", &LossScaleConfig::minimum, "overflow at this scale is an error").above(0);
  section.field("maximum", &LossScaleConfig::maximum, "it does not grow beyond this").above(0);
}

void describe(config::Section<PrecisionConfig>& section) {
  section.meaning("the numbers that are computed with");
  section.field("compute", &PrecisionConfig::compute,
                "of weights and activations; the optimizer keeps fp32 masters of bf16 and fp16 weights");
  section.field(
      "master_weights", &PrecisionConfig::master_weights,
      "what an update adds to; none: matrices of layers have bf16 weights and gradients alone, and updates are "
      "stochastically rounded (compute = bf16, adam or adamw); vectors: tables of tokens too, so that only norms and "
      "biases "
      "have masters");
  section.field(
      "gradients", &PrecisionConfig::gradients,
      "of matrices and tables; bf16 (or fp16) beside a compute of that type: half the memory, and every sum over "
      "micros and ranks is rounded to it. Those of vectors are fp32");
  section.field(
      "gemm", &PrecisionConfig::gemm,
      "of the layers' GEMMs: rounded as compute says, or to 8 bits on their way in, with a scale for "
      "each tensor or for small blocks, from the numbers as they are or (delayed) as they were; never the head's");
  section.field("gemm_exclude", &PrecisionConfig::gemm_exclude,
                "patterns of matrices whose GEMMs stay in the compute type, such as \"layers.0.*\"");
  section
      .field("fp8_history", &PrecisionConfig::fp8_history,
             "fp8-delayed: a scale comes from the largest number of so many steps before")
      .range(1, 4096);
  section
      .field("fp8_margin", &PrecisionConfig::fp8_margin,
             "fp8-delayed: so many factors of two are left for numbers larger than those")
      .range(0, 8);
  section.field(
      "deterministic_attention", &PrecisionConfig::deterministic_attention,
      "on a GPU: attention's backward pass adds up in a fixed order, so that the same run gives the same bits; "
      "slower, and the log says by how much");
  section.section("loss_scale", &PrecisionConfig::loss_scale);
}

std::vector<config::Problem> find_problems(const OptimConfig& optim) {
  std::vector<config::Problem> problems;
  const OptimConfig defaults;
  if (!has_momentum(optim.kind) && optim.momentum != defaults.momentum) {
    problems.push_back(unused("momentum", optim.kind, "sgd"));
  }
  if (!has_betas(optim.kind)) {
    if (optim.beta1 != defaults.beta1) problems.push_back(unused("beta1", optim.kind, "adamw"));
    if (optim.beta2 != defaults.beta2) problems.push_back(unused("beta2", optim.kind, "adamw"));
  }
  if (has_momentum(optim.kind) && optim.epsilon) problems.push_back(unused("epsilon", optim.kind, "adamw"));
  if (optim.kind != OptimizerKind::kLars && optim.trust != defaults.trust) {
    problems.push_back(unused("trust", optim.kind, "lars"));
  }
  const bool is_adam = optim.kind == OptimizerKind::kAdam || optim.kind == OptimizerKind::kAdamw;
  if (optim.state_dtype != defaults.state_dtype && !is_adam) problems.push_back(unused("states", optim.kind, "adamw"));
  if (optim.nesterov && optim.kind != OptimizerKind::kSgd) {
    problems.push_back(unused("nesterov", optim.kind, "sgd"));
  } else if (optim.nesterov && optim.momentum == 0) {
    problems.push_back({.key = "optim.nesterov",
                        .reason = "looks ahead along the momentum, but optim.momentum = 0",
                        .hint = "set optim.momentum = 0.9"});
  }
  return problems;
}

std::vector<config::Problem> find_problems(const OptimConfig& optim, std::span<const std::string> parameters) {
  std::vector<config::Problem> problems;
  for (std::size_t i = 0; i < optim.groups.size(); ++i) {
    const std::string& pattern = optim.groups[i].pattern;
    if (std::ranges::any_of(parameters, [&](const std::string& name) { return matches(pattern, name); })) continue;
    problems.push_back(
        {.key = fmt::format("optim.groups.{}.pattern", i),
         .reason = fmt::format("\"{}\" matches none of {}{}", pattern, counted(parameters.size(), "parameter"),
                               did_you_mean(pattern, parameters)),
         .hint = parameters.empty() ? "" : fmt::format("a name is \"{}\"", parameters.front())});
  }
  return problems;
}

std::vector<config::Problem> find_problems(const PrecisionConfig& precision) {
  std::vector<config::Problem> problems;
  const LossScaleConfig& scale = precision.loss_scale;
  if (precision.master_weights != MasterWeights::kFp32 && precision.compute != Precision::kBf16) {
    problems.push_back({.key = "precision.master_weights",
                        .reason = fmt::format("is {}, which goes with bf16 weights, but precision.compute is {}",
                                              name_in<MasterWeights>(kMasters, precision.master_weights),
                                              name_in<Precision>(kPrecisions, precision.compute)),
                        .hint = "set precision.compute = \"bf16\", or precision.master_weights = \"fp32\""});
  }
  const Precision wanted = precision.gradients == Gradients::kBf16   ? Precision::kBf16
                           : precision.gradients == Gradients::kFp16 ? Precision::kFp16
                                                                     : precision.compute;
  if (wanted != precision.compute) {
    const bool narrow = precision.compute == Precision::kBf16 || precision.compute == Precision::kFp16;
    const std::string_view compute = name_in<Precision>(kPrecisions, precision.compute),
                           gradients = name_in<Gradients>(kGradients, precision.gradients);
    problems.push_back(
        {.key = "precision.gradients",
         .reason = fmt::format("is {}, but gradients of 16 bits have the type of weights, and precision.compute is {}",
                               gradients, compute),
         .hint = narrow ? fmt::format("set precision.gradients = \"{}\"", compute)
                        : fmt::format("set precision.compute = \"{}\", or precision.gradients = \"fp32\"", gradients)});
  }
  if (precision.gemm != GemmPrecision::kSame && precision.compute != Precision::kBf16) {
    problems.push_back(
        {.key = "precision.gemm",
         .reason = fmt::format("is {}, whose GEMMs go with bf16 activations, but precision.compute is {}",
                               name_in<GemmPrecision>(kProducts, precision.gemm),
                               name_in<Precision>(kPrecisions, precision.compute)),
         .hint = "set precision.compute = \"bf16\""});
  }
  if (precision.gemm == GemmPrecision::kSame && !precision.gemm_exclude.empty()) {
    problems.push_back({.key = "precision.gemm_exclude",
                        .reason = "names GEMMs that stay as they are, but precision.gemm changes none",
                        .hint = "set precision.gemm = \"fp8\", or leave it out"});
  }
  const PrecisionConfig usual;
  if (precision.gemm != GemmPrecision::kFp8Delayed &&
      (precision.fp8_history != usual.fp8_history || precision.fp8_margin != usual.fp8_margin)) {
    problems.push_back(
        {.key = precision.fp8_history != usual.fp8_history ? "precision.fp8_history" : "precision.fp8_margin",
         .reason = "is given, but only precision.gemm = \"fp8-delayed\" uses it",
         .hint = "leave it out, or set precision.gemm = \"fp8-delayed\""});
  }
  if (precision.compute != Precision::kFp16 && scale != LossScaleConfig{}) {
    problems.push_back({.key = "precision.loss_scale",
                        .reason = fmt::format("is given, but precision.compute = \"{}\" needs none",
                                              name_in<Precision>(kPrecisions, precision.compute)),
                        .hint = "set precision.compute = \"fp16\""});
  }
  if (scale.initial < scale.minimum || scale.initial > scale.maximum) {
    problems.push_back(
        {.key = "precision.loss_scale.initial",
         .reason = fmt::format("is {}, outside of {} to {}", scale.initial, scale.minimum, scale.maximum),
         .hint = fmt::format("set precision.loss_scale.initial = {}",
                             scale.initial < scale.minimum ? scale.minimum : scale.maximum)});
  }
  return problems;
}

bool has_narrow_gradients(const PrecisionConfig& precision) { return precision.gradients != Gradients::kFp32; }

double epsilon_of(const OptimConfig& optim) {
  if (optim.epsilon) return *optim.epsilon;
  if (optim.kind == OptimizerKind::kAdagrad) return 1e-10;
  return optim.kind == OptimizerKind::kLamb ? 1e-6 : 1e-8;
}

int moments_of(const OptimConfig& optim) {
  if (has_betas(optim.kind)) return 2;
  return optim.kind == OptimizerKind::kSgd && optim.momentum == 0 ? 0 : 1;
}

bool matches(std::string_view pattern, std::string_view name) {
  // After a '*' the rest is tried at every place; only the last '*' ever needs to be tried again.
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ParamRule rule_for(const OptimConfig& optim, std::string_view name, bool decays) {
  const double by_rule = decays ? optim.weight_decay : 0;
  for (const ParamGroup& group : optim.groups) {
    if (matches(group.pattern, name)) {
      return {.rate = group.rate, .weight_decay = group.weight_decay.value_or(by_rule)};
    }
  }
  return {.rate = 1, .weight_decay = by_rule};
}

}  // namespace trireme::spec
