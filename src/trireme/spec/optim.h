// spec/optim.h -- the optimizer, its parameter groups, and mixed precision: [optim] and [precision].
//
//   [optim]                          [[optim.groups]]             [precision]
//   kind = "adamw"                   pattern = "*.embedding"      compute = "bf16"
//   learning_rate = 6e-4             rate = 0.5
//
// Values and counting only: the planner asks here what state an optimizer has for each parameter; the optim room
// updates. The schedules of learning rate and batch are in hyperparameters.h.
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

enum class OptimizerKind : std::uint8_t {
  kSgd,           ///< with momentum, perhaps Nesterov's
  kAdagrad,       ///< Duchi et al. 2011
  kAdam,          ///< Kingma, Ba 2014; decay is added to the gradient
  kAdamw,         ///< Loshchilov, Hutter 2017; decay shrinks the weight itself
  kLamb,          ///< You et al. 2019: Adam with a rate for each parameter, from its norms
  kLars,          ///< You et al. 2017: momentum with a rate for each parameter, from its norms
  kLion,          ///< Chen et al. 2023: the sign of an interpolated momentum
  kScheduleFree,  ///< Defazio et al. 2024: AdamW that averages its iterates in place of a schedule
  kMuon,          ///< Jordan et al. 2024: orthogonalised momentum of matrices, AdamW for the rest
  kAdafactor,     ///< Shazeer, Stern 2018: second moments of matrices by their rows and columns
  kShampoo,       ///< Gupta et al. 2018: matrices preconditioned from both sides, AdamW for the rest
  kSoap,          ///< Vyas et al. 2024: Adam in the eigenbasis of Shampoo's preconditioners
};
std::span<const Named<OptimizerKind>> enum_names(std::type_identity<OptimizerKind>);

/// Data type of the optimizer state (fp64 beside fp64 weights).
enum class StateDtype : std::uint8_t {
  kFp32,
  kBf16,  ///< adam, adamw: both moments, with stochastic rounding
};
std::span<const Named<StateDtype>> enum_names(std::type_identity<StateDtype>);

/// What Muon multiplies an orthogonalised matrix of m rows and n columns by.
enum class MuonScale : std::uint8_t {
  kRms,       ///< 0.2 sqrt(max(m, n)): the RMS of AdamW's updates, so one learning rate serves both (Liu et al. 2025)
  kSpectral,  ///< sqrt(max(1, m / n)) (Jordan et al. 2024)
};
std::span<const Named<MuonScale>> enum_names(std::type_identity<MuonScale>);

/// In what Newton-Schulz iterations compute.
enum class NewtonSchulzDtype : std::uint8_t {
  kAuto,  ///< bf16 on a GPU, the type of the master weights elsewhere
  kBf16,
  kFp32,  ///< that of the master weights
};
std::span<const Named<NewtonSchulzDtype>> enum_names(std::type_identity<NewtonSchulzDtype>);

/// Parameters whose names match, and what is different for them. The first group that matches counts.
struct ParamGroup {
  std::string pattern;                 ///< '*' stands for any text, '?' for any letter
  double rate = 1;                     ///< the learning rate is multiplied by it
  std::optional<double> weight_decay;  ///< given: for all that match, biases and norms too
  bool operator==(const ParamGroup&) const = default;
};

/// [optim]
struct OptimConfig {
  OptimizerKind kind = OptimizerKind::kAdamw;
  double learning_rate = 3e-4;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;
  std::optional<double> epsilon;  ///< unset: epsilon_of()
  double momentum = 0.9;
  bool nesterov = false;
  double trust = 0.001;
  double weight_norm_min = 0;             ///< LAMB's gamma_l
  std::optional<double> weight_norm_max;  ///< LAMB's gamma_u; unset: none
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  MuonScale muon_scale = MuonScale::kRms;
  int newton_schulz_steps = 5;
  NewtonSchulzDtype newton_schulz_dtype = NewtonSchulzDtype::kAuto;
  double factored_decay = 0.8;  ///< Adafactor's c: beta2 of step t is 1 - t^-c
  double update_clip = 1;       ///< Adafactor's d: the largest RMS of an update
  bool parameter_scale = true;  ///< Adafactor: steps are relative to the RMS of the parameter
  double preconditioner_beta = 0.95;
  std::int64_t precondition_every = 10;
  std::optional<double> ema_decay;  ///< of the exponential moving average of weights; unset: none
  double grad_clip_norm = 0;
  StateDtype state_dtype = StateDtype::kFp32;
  std::vector<ParamGroup> groups;
  bool operator==(const OptimConfig&) const = default;
};

/// Data type of weights and activations, beside fp32 master weights (fp64 for fp64).
enum class Precision : std::uint8_t { kFp32, kBf16, kFp16, kFp64 };
std::span<const Named<Precision>> enum_names(std::type_identity<Precision>);

/// [precision.loss_scale]: fp16 only.
struct LossScaleConfig {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;
  double minimum = 1, maximum = 16777216;  // 2^24
  bool operator==(const LossScaleConfig&) const = default;
};

/// Data type of the GEMM inputs of a model's layers.
enum class GemmPrecision : std::uint8_t {
  kSame,        ///< the compute type
  kFp8,         ///< FP8, current scaling: one scale a tensor, from its own amax
  kFp8Blocks,   ///< FP8, scales of 1 x 128 and 128 x 128 blocks (DeepSeek-V3)
  kFp8Delayed,  ///< FP8, delayed scaling: one scale a tensor, from the amax history
};
std::span<const Named<GemmPrecision>> enum_names(std::type_identity<GemmPrecision>);

/// Which parameters have master weights beside bf16 compute weights.
enum class MasterWeights : std::uint8_t {
  kFp32,
  kNone,     ///< not matrices of layers: bf16 gradients, updates with stochastic rounding into the weights
  kVectors,  ///< norms and biases alone: embeddings are as matrices of layers
};
std::span<const Named<MasterWeights>> enum_names(std::type_identity<MasterWeights>);

/// Data type in which gradients of matrices and embeddings are accumulated and reduced. Those of norms and biases are
/// fp32 (fp64), and so are master weights and moments whatever this is.
enum class Gradients : std::uint8_t {
  kFp32,
  kBf16,  ///< as bf16 weights are
  kFp16,  ///< as fp16 weights are
};
std::span<const Named<Gradients>> enum_names(std::type_identity<Gradients>);

/// [precision]
struct PrecisionConfig {
  Precision compute = Precision::kFp32;
  MasterWeights master_weights = MasterWeights::kFp32;
  Gradients gradients = Gradients::kFp32;
  GemmPrecision gemm = GemmPrecision::kSame;
  std::vector<std::string> gemm_exclude;  ///< matrices whose GEMMs stay in the compute type
  std::int64_t fp8_history = 16;          ///< fp8-delayed: steps of the amax history
  std::int64_t fp8_margin = 0;            ///< fp8-delayed: headroom in powers of two
  bool deterministic_attention = false;   ///< GPU: deterministic backward, slower
  LossScaleConfig loss_scale;
  bool operator==(const PrecisionConfig&) const = default;
};

void describe(config::Section<ParamGroup>& section);
void describe(config::Section<OptimConfig>& section);
void describe(config::Section<LossScaleConfig>& section);
void describe(config::Section<PrecisionConfig>& section);

std::vector<config::Problem> find_problems(const OptimConfig& optim);
std::vector<config::Problem> find_problems(const PrecisionConfig& precision);
/// Whether matrices and embeddings have 16-bit gradients beside fp32 master weights.
bool has_narrow_gradients(const PrecisionConfig& precision);
/// Patterns that match none of a model's parameters: all of its names, not those that one rank holds.
std::vector<config::Problem> find_problems(const OptimConfig& optim, std::span<const std::string> parameters);

/// What was given, or what the optimizer's authors take: 1e-8 for Adam, 1e-6 for LAMB, 1e-10 for Adagrad and 1e-30 for
/// Adafactor.
double epsilon_of(const OptimConfig& optim);
/// Optimizer state elements for each element of a trainable parameter that is no matrix to the optimizer.
int moments_of(const OptimConfig& optim);
/// Likewise of those that are. Shampoo and SOAP keep squares of both sides: those of a Transformer's usual matrices.
double matrix_moments_of(const OptimConfig& optim);
/// Exactly, of one parameter of this shape.
std::int64_t state_elements(const OptimConfig& optim, std::string_view name, std::span<const std::int64_t> shape);
/// Whether the optimizer treats this parameter as a matrix: of hidden layers for Muon, Shampoo and SOAP, every one for
/// Adafactor, none for the others.
bool treats_as_matrix(const OptimConfig& optim, std::string_view name, std::size_t dimensions);
/// Whether it treats some so. A step then needs whole matrices: ranks exchange parts of them.
bool has_matrix_updates(OptimizerKind kind);
/// Whether `name` matches `pattern`: '*' is any text, '?' any letter.
bool matches(std::string_view pattern, std::string_view name);

/// What holds for one parameter.
struct ParamRule {
  double rate = 1, weight_decay = 0;
  bool operator==(const ParamRule&) const = default;
};
/// `decays`: it is a matrix, no bias or norm.
ParamRule rule_for(const OptimConfig& optim, std::string_view name, bool decays);

}  // namespace trireme::spec
