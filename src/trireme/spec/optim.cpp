#include "trireme/spec/optim.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::spec {
namespace {

constexpr Named<OptimizerKind> kOptimizers[] = {
    {"sgd", OptimizerKind::kSgd},
    {"adagrad", OptimizerKind::kAdagrad},
    {"adam", OptimizerKind::kAdam},
    {"adamw", OptimizerKind::kAdamw},
    {"lamb", OptimizerKind::kLamb},
    {"lars", OptimizerKind::kLars},
    {"lion", OptimizerKind::kLion},
    {"muon", OptimizerKind::kMuon},
    {"adafactor", OptimizerKind::kAdafactor},
    {"shampoo", OptimizerKind::kShampoo},
    {"soap", OptimizerKind::kSoap},
    {"schedule-free-adamw", OptimizerKind::kScheduleFree},
};
constexpr Named<MuonScale> kMuonScales[] = {{"rms", MuonScale::kRms}, {"spectral", MuonScale::kSpectral}};
constexpr Named<NewtonSchulzDtype> kNewtonSchulz[] = {
    {"auto", NewtonSchulzDtype::kAuto}, {"bf16", NewtonSchulzDtype::kBf16}, {"fp32", NewtonSchulzDtype::kFp32}};
constexpr Named<GemmPrecision> kGemms[] = {
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
  return !has_momentum(kind) && kind != OptimizerKind::kAdagrad && kind != OptimizerKind::kAdafactor;
}
bool has_preconditioners(OptimizerKind kind) { return kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap; }

/// "optim.momentum is given, but ...": a key that is given and then ignored lets people compare the wrong things.
config::Problem unused(const std::string& key, OptimizerKind kind, std::string_view users) {
  return {.key = "optim." + key,
          .reason = fmt::format("is given, but optim.kind = \"{}\" does not use it",
                                name_in<OptimizerKind>(kOptimizers, kind)),
          .hint = fmt::format("leave it out, or set optim.kind = \"{}\"", users)};
}

}  // namespace

std::span<const Named<OptimizerKind>> enum_names(std::type_identity<OptimizerKind>) { return kOptimizers; }
std::span<const Named<MuonScale>> enum_names(std::type_identity<MuonScale>) { return kMuonScales; }
std::span<const Named<NewtonSchulzDtype>> enum_names(std::type_identity<NewtonSchulzDtype>) { return kNewtonSchulz; }
std::span<const Named<GemmPrecision>> enum_names(std::type_identity<GemmPrecision>) { return kGemms; }
std::span<const Named<StateDtype>> enum_names(std::type_identity<StateDtype>) { return kStates; }
std::span<const Named<MasterWeights>> enum_names(std::type_identity<MasterWeights>) { return kMasters; }
std::span<const Named<Gradients>> enum_names(std::type_identity<Gradients>) { return kGradients; }
std::span<const Named<Precision>> enum_names(std::type_identity<Precision>) { return kPrecisions; }

void describe(config::Section<ParamGroup>& section) {
  section.meaning("parameter groups with their own settings; the first group whose pattern matches a parameter counts");
  section.field("pattern", &ParamGroup::pattern, "pattern of parameter names: '*' is any text, '?' any letter")
      .required();
  section.field("rate", &ParamGroup::rate, "factor on the learning rate").at_least(0);
  section
      .field("weight_decay", &ParamGroup::weight_decay,
             "weight decay of all parameters that match, biases and norms too; unset: optim.weight_decay by its rule")
      .at_least(0);
}

void describe(config::Section<OptimConfig>& section) {
  section.meaning("the optimizer");
  section.field("kind", &OptimConfig::kind,
                "optimizer; muon, shampoo and soap are for matrices of layers, with adamw for embeddings, the head, "
                "norms and biases");
  section.field("learning_rate", &OptimConfig::learning_rate, "peak learning rate: after warm-up, before any decay")
      .at_least(0);
  section
      .field(
          "weight_decay", &OptimConfig::weight_decay,
          "weight decay of matrices; biases and norms have none. Added to the gradient in sgd, adagrad, adam and lars, "
          "decoupled in the others")
      .at_least(0);
  section
      .field("beta1", &OptimConfig::beta1,
             "all with an Adam part: decay rate of the first moment; lion: the "
             "interpolation of its update; schedule-free-adamw: the interpolation between averaged and last weights")
      .range(0, 0.999999);
  section
      .field("beta2", &OptimConfig::beta2,
             "all with an Adam part: decay rate of the second moment; lion: decay "
             "rate of the momentum, for which its authors take 0.99")
      .range(0, 0.999999);
  section
      .field("epsilon", &OptimConfig::epsilon,
             "added to the square root of the second moment; unset: 1e-8 for adam and adamw, 1e-6 for lamb, 1e-10 for "
             "adagrad. adafactor: added to squared gradients; unset: 1e-30")
      .above(0);
  section.field("momentum", &OptimConfig::momentum, "sgd, lars: momentum").range(0, 0.999999);
  section.field("nesterov", &OptimConfig::nesterov, "sgd: Nesterov momentum");
  section.field("trust", &OptimConfig::trust, "lars: trust coefficient").above(0);
  section
      .field("weight_norm_min", &OptimConfig::weight_norm_min,
             "lamb: lower bound of the weight norm in the trust ratio (gamma_l of phi)")
      .at_least(0);
  section
      .field("weight_norm_max", &OptimConfig::weight_norm_max,
             "lamb: upper bound of the weight norm in the trust ratio (gamma_u of phi); unset: none")
      .above(0);
  section.field("muon_momentum", &OptimConfig::muon_momentum, "muon: momentum of matrices").range(0, 0.999999);
  section.field("muon_nesterov", &OptimConfig::muon_nesterov, "muon: Nesterov momentum");
  section.field(
      "muon_scale", &OptimConfig::muon_scale,
      "muon: factor on an orthogonalised matrix of m rows and n columns; rms: 0.2 sqrt(max(m, n)), the RMS of "
      "adamw's updates, so that one learning rate serves both; spectral: sqrt(max(1, m / n))");
  section.field("newton_schulz_steps", &OptimConfig::newton_schulz_steps, "muon: Newton-Schulz iterations")
      .range(1, 30);
  section.field(
      "newton_schulz_dtype", &OptimConfig::newton_schulz_dtype,
      "muon: data type of the iterations; auto: bf16 on a GPU, that of the master weights elsewhere; fp32: that "
      "of the master weights everywhere");
  section
      .field("factored_decay", &OptimConfig::factored_decay,
             "adafactor: exponent c of the decay rate 1 - t^-c of the second moment at step t")
      .range(0, 1);
  section.field("update_clip", &OptimConfig::update_clip, "adafactor: largest RMS of an update; larger ones are scaled")
      .above(0);
  section.field("parameter_scale", &OptimConfig::parameter_scale,
                "adafactor: updates are relative to the RMS of the parameter, at least 0.001");
  section
      .field("preconditioner_beta", &OptimConfig::preconditioner_beta,
             "shampoo, soap: decay rate of the preconditioners; 1: sums, as in the paper of shampoo")
      .range(0, 1);
  section
      .field("precondition_every", &OptimConfig::precondition_every,
             "shampoo, soap: steps from one eigendecomposition of the preconditioners to the next")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field("ema_decay", &OptimConfig::ema_decay,
             "decay rate of an exponential moving average of weights, kept in checkpoints; eval.weights says whether "
             "it is "
             "evaluated; unset: none")
      .range(0, 0.9999999);
  section
      .field("grad_clip_norm", &OptimConfig::grad_clip_norm,
             "gradients are clipped to this global L2 norm; 0: no clipping")
      .at_least(0);
  section.field("state_dtype", &OptimConfig::state_dtype,
                "adam, adamw: data type of both moments; bf16 halves their memory and uses stochastic rounding");
  section.tables("groups", &OptimConfig::groups);
  section.retired("clip", "grad_clip_norm");
  section.retired("states", "state_dtype");
}

void describe(config::Section<LossScaleConfig>& section) {
  section.meaning("dynamic loss scaling for fp16: the loss is scaled so that small gradients survive");
  section.field("initial", &LossScaleConfig::initial, "initial loss scale").above(0);
  section.field("growth", &LossScaleConfig::growth, "growth factor, after `interval` steps without overflow")
      .at_least(1);
  section
      .field("backoff", &LossScaleConfig::backoff, "factor on overflow (Inf or NaN in gradients); that step is skipped")
      .range(1e-6, 0.999999);
  section.field("interval", &LossScaleConfig::interval, "steps in a row without overflow before the scale grows")
      .unit(Unit::kCount)
      .at_least(1);
  section.field("minimum", &LossScaleConfig::minimum, "lowest loss scale; an overflow there is an error").above(0);
  section.field("maximum", &LossScaleConfig::maximum, "highest loss scale").above(0);
}

void describe(config::Section<PrecisionConfig>& section) {
  section.meaning("mixed precision: data types of weights, gradients and GEMMs");
  section.field("compute", &PrecisionConfig::compute,
                "data type of weights and activations; bf16 and fp16 keep fp32 master weights in the optimizer");
  section.field("master_weights", &PrecisionConfig::master_weights,
                "fp32: every parameter has a master weight; none: matrices of layers have none, and their updates are "
                "written into bf16 weights with stochastic rounding (compute = bf16; on GPUs adam or adamw); "
                "norms-and-biases: "
                "embeddings have none either");
  section.field(
      "gradients", &PrecisionConfig::gradients,
      "data type in which gradients of matrices and embeddings are accumulated and reduced; bf16 or fp16 (the "
      "type of compute) halves their memory; those of norms and biases are fp32");
  section.field(
      "gemm", &PrecisionConfig::gemm,
      "GEMM inputs of the layers; same: the compute type; fp8: FP8 with current scaling, one scale a tensor; "
      "fp8-blocks: scales of 1x128 and 128x128 blocks (DeepSeek-V3); fp8-delayed: delayed scaling; the output "
      "head's GEMMs stay in the compute type");
  section.field("gemm_exclude", &PrecisionConfig::gemm_exclude,
                "patterns of weight matrices whose GEMMs stay in the compute type, such as \"layers.0.*\"");
  section
      .field("fp8_history", &PrecisionConfig::fp8_history,
             "fp8-delayed: length of the amax history that a scale is computed from, in steps")
      .range(1, 4096);
  section
      .field("fp8_margin", &PrecisionConfig::fp8_margin,
             "fp8-delayed: headroom above the largest amax, in powers of two")
      .range(0, 8);
  section.field("deterministic_attention", &PrecisionConfig::deterministic_attention,
                "on a GPU: deterministic attention backward, so that the same run gives the same bits; slower, and the "
                "log says by how much");
  section.section("loss_scale", &PrecisionConfig::loss_scale);
  section.retired("masters", "master_weights");
  section.retired("products", "gemm");
  section.retired("products_keep", "gemm_exclude");
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
  const bool has_epsilon = !has_momentum(optim.kind) && optim.kind != OptimizerKind::kLion;
  if (!has_epsilon && optim.epsilon) problems.push_back(unused("epsilon", optim.kind, "adamw"));
  if (optim.kind != OptimizerKind::kLars && optim.trust != defaults.trust) {
    problems.push_back(unused("trust", optim.kind, "lars"));
  }
  if (optim.kind != OptimizerKind::kLamb) {
    if (optim.weight_norm_min != defaults.weight_norm_min)
      problems.push_back(unused("weight_norm_min", optim.kind, "lamb"));
    if (optim.weight_norm_max) problems.push_back(unused("weight_norm_max", optim.kind, "lamb"));
  } else if (optim.weight_norm_max && *optim.weight_norm_max < optim.weight_norm_min) {
    problems.push_back({.key = "optim.weight_norm_max",
                        .reason = fmt::format("is {}, below optim.weight_norm_min = {}", *optim.weight_norm_max,
                                              optim.weight_norm_min),
                        .hint = fmt::format("set optim.weight_norm_max = {}", optim.weight_norm_min)});
  }
  const auto only = [&](const char* key, bool given, OptimizerKind user, const char* name) {
    if (given && optim.kind != user) problems.push_back(unused(key, optim.kind, name));
  };
  using enum OptimizerKind;
  only("muon_momentum", optim.muon_momentum != defaults.muon_momentum, kMuon, "muon");
  only("muon_nesterov", optim.muon_nesterov != defaults.muon_nesterov, kMuon, "muon");
  only("muon_scale", optim.muon_scale != defaults.muon_scale, kMuon, "muon");
  only("newton_schulz_steps", optim.newton_schulz_steps != defaults.newton_schulz_steps, kMuon, "muon");
  only("newton_schulz_dtype", optim.newton_schulz_dtype != defaults.newton_schulz_dtype, kMuon, "muon");
  only("factored_decay", optim.factored_decay != defaults.factored_decay, kAdafactor, "adafactor");
  only("update_clip", optim.update_clip != defaults.update_clip, kAdafactor, "adafactor");
  only("parameter_scale", optim.parameter_scale != defaults.parameter_scale, kAdafactor, "adafactor");
  if (!has_preconditioners(optim.kind)) {
    if (optim.preconditioner_beta != defaults.preconditioner_beta)
      problems.push_back(unused("preconditioner_beta", optim.kind, "soap"));
    if (optim.precondition_every != defaults.precondition_every)
      problems.push_back(unused("precondition_every", optim.kind, "soap"));
  }
  if (optim.kind == kScheduleFree && optim.beta1 == 0) {
    problems.push_back({.key = "optim.beta1",
                        .reason = "is 0, but schedule-free-adamw finds its averaged weights by dividing by it",
                        .hint = "set optim.beta1 = 0.9"});
  }
  if (optim.kind == kScheduleFree && optim.ema_decay) {
    problems.push_back({.key = "optim.ema_decay",
                        .reason = "is given, but schedule-free-adamw averages weights itself",
                        .hint = "leave it out, or set optim.kind = \"adamw\""});
  }
  const bool is_adam = optim.kind == OptimizerKind::kAdam || optim.kind == OptimizerKind::kAdamw;
  if (optim.state_dtype != defaults.state_dtype && !is_adam)
    problems.push_back(unused("state_dtype", optim.kind, "adamw"));
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
  if (optim.kind == OptimizerKind::kAdafactor) return 1e-30;
  return optim.kind == OptimizerKind::kLamb ? 1e-6 : 1e-8;
}

int moments_of(const OptimConfig& optim) {
  if (optim.kind == OptimizerKind::kLion || optim.kind == OptimizerKind::kAdafactor) return 1;
  if (has_betas(optim.kind)) return 2;
  return optim.kind == OptimizerKind::kSgd && optim.momentum == 0 ? 0 : 1;
}

double matrix_moments_of(const OptimConfig& optim) {
  // (m^2 + n^2) / mn, by elements, over the matrices of a layer with an MLP of four times its width.
  constexpr double kSides = 3.8;
  switch (optim.kind) {
    case OptimizerKind::kMuon:
      return 1;
    case OptimizerKind::kAdafactor:
      return 0;  // rows and columns: about a thousandth
    case OptimizerKind::kShampoo:
    case OptimizerKind::kSoap:
      return (optim.kind == OptimizerKind::kSoap ? 2 : 1) + 2 * kSides;
    default:
      return moments_of(optim);
  }
}

bool has_matrix_updates(OptimizerKind kind) {
  return kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdafactor || has_preconditioners(kind);
}

bool treats_as_matrix(const OptimConfig& optim, std::string_view name, std::size_t dimensions) {
  if (dimensions < 2 || !has_matrix_updates(optim.kind)) return false;
  if (optim.kind == OptimizerKind::kAdafactor) return true;
  return name.starts_with("layers.") || name.starts_with("encoder.layers.") || name.starts_with("mtp.");
}

std::int64_t state_elements(const OptimConfig& optim, std::string_view name, std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  if (!treats_as_matrix(optim, name, shape.size())) return moments_of(optim) * elements;
  if (optim.kind == OptimizerKind::kMuon || elements == 0) return elements;
  const std::int64_t rows = shape[shape.size() - 2], columns = shape.back(), matrices = elements / (rows * columns);
  if (optim.kind == OptimizerKind::kAdafactor) return matrices * (rows + columns);
  const std::int64_t sides = matrices * (rows * rows + columns * columns);
  return (optim.kind == OptimizerKind::kSoap ? 2 : 1) * elements + 2 * sides;
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
