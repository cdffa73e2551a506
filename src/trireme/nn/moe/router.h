// nn/moe/router.h -- a router: which experts a token visits, with which gate weights, and what keeps them balanced.
//
// A router is a pure function of the logits of one balance group: g consecutive samples of the global batch, all of
// their tokens. Loads, auxiliary losses, capacity and choices that look at other tokens are defined over that group and
// over nothing else, so no data-parallel, micro-batch, context, sequence or expert split changes them.
//
// Where ranks share the tokens of a sample (context and sequence parallelism), the logits of the group are all-gathered
// (a few floats per token) and each rank computes the same routing. Backward then needs no communication:
//   - gates of a token are a function of its own logits, once the choices are made, so their gradient stays with the
//     rank that has the token;
//   - losses are functions of all logits of the group, which every rank has. Each computes the gradient of the whole
//     loss with respect to the logits of all tokens and keeps the rows of its own, so the gather's backward, a
//     reduce-scatter of equal copies divided by their number, is the identity on these rows;
//   - the router's weight gets the rows of each rank's own tokens: summed over those ranks, like any other weight.
// A loss itself is the same on all of them and is counted once. What is learned beside the logits (the thresholds of
// strict balance) gets its whole gradient on each of these ranks: Param::equal_axes names them.
//
// Choices carry no gradient, nor do biases that only select. Ties go to the lowest number. Random draws are functions
// of (seed, layer, step, global token, expert). Logits, gates and gradients are float (double in a model of doubles)
// outside; in here arithmetic is in double, a few operations per logit, so that compilers and devices agree on choices.
// To add a router: a file with a class, its kind in spec/experts.h and a row in the table of router.cpp.
// Depends on: base, spec. No tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/spec/experts.h"

namespace trireme::nn::moe {

/// The logits of a balance group, with what choices and draws depend on besides.
struct RouterInput {
  std::span<const double> logits;               ///< [tokens, Router::outputs()], row by row
  std::span<const std::int64_t> token_numbers;  ///< global, ascending
  std::span<const double> bias = {};            ///< [experts] of a router that has one
  std::string_view layer = {};                  ///< its name: of streams of draws and in messages
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool training = false;     ///< noise is drawn
  bool wants_losses = true;  ///< false in backward, which has told them
  bool limited = true;       ///< false where tokens come one by one (generation): no capacity, nothing is dropped

  std::int64_t tokens() const { return static_cast<std::int64_t>(token_numbers.size()); }
};

/// A token and one of its experts.
struct Choice {
  std::int32_t expert = 0;
  bool kept = true;  ///< false: dropped, it contributes nothing
  double gate = 0;   ///< weight of the expert's output
};

/// The mean of a loss over a balance group. Of weight 0: a metric.
struct RouterLoss {
  std::string name;
  double value = 0, weight = 0;
};

struct Routing {
  std::vector<std::int64_t> first;   ///< [tokens + 1]: those of token t are first[t] .. first[t + 1]
  std::vector<Choice> choices;       ///< of a token by falling selection score, then by expert
  std::vector<std::int64_t> counts;  ///< [experts]: choices of it, dropped ones included
  std::vector<std::int64_t> dropped;
  std::vector<RouterLoss> losses;

  std::int64_t tokens() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const Choice> of_token(std::int64_t token) const;
};

struct RouterGrad {
  std::vector<double> logits;  ///< [tokens, outputs]
  std::vector<double> bias;    ///< [experts] where it is learned, empty otherwise
};

class Router {
 public:
  /// What a number for each expert, beside the logits, is.
  enum class BiasKind : std::uint8_t {
    kNone,
    kBalanced,  ///< moved after each step by the loads of the step: balance.h
    kLearned,   ///< a parameter with a gradient
  };

  explicit Router(const spec::Experts& config) : config_(config) {}
  virtual ~Router() = default;
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  const spec::Experts& config() const { return config_; }
  std::int64_t experts() const { return config_.num_experts; }
  /// Logits of a token: one an expert, or more (noise, a first level).
  virtual std::int64_t outputs() const { return experts(); }
  virtual BiasKind bias_kind() const { return BiasKind::kNone; }
  /// The most experts that one token may visit.
  virtual std::int64_t most_choices() const { return config_.top_k; }
  /// Whether the choices of a token depend on other tokens in evaluation too, and without a capacity.
  virtual bool looks_at_other_tokens() const { return false; }

  /// An Error naming layer, step and token for a logit that is NaN.
  Routing route(const RouterInput& input) const;
  /// The gradient of sum over choices of grad_gates * gate + loss_scale * (weighted sum of the losses). `routing` is
  /// what route() gave for this input; `grad_gates` has a number for each of its choices, 0 for dropped ones.
  RouterGrad backward(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                      double loss_scale) const;

 protected:
  /// Fills `first` and `choices` with their gates.
  virtual void choose(const RouterInput& input, Routing& routing) const = 0;
  /// After the counts are there.
  virtual void add_losses(const RouterInput& input, Routing& routing) const = 0;
  virtual void add_gradients(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                             double loss_scale, RouterGrad& grad) const = 0;

 private:
  spec::Experts config_;
};

/// A ConfigError with every problem of the configuration where it has some.
std::unique_ptr<Router> make_router(const spec::Experts& config);

// The table's rows; each in a file of its own name.
std::unique_ptr<Router> make_softmax_top_k(const spec::Experts& config);
std::unique_ptr<Router> make_sigmoid_top_k(const spec::Experts& config);
std::unique_ptr<Router> make_switch(const spec::Experts& config);
std::unique_ptr<Router> make_gshard(const spec::Experts& config);
std::unique_ptr<Router> make_noisy_top_k(const spec::Experts& config);
std::unique_ptr<Router> make_strict_balance(const spec::Experts& config);
std::unique_ptr<Router> make_expert_choice(const spec::Experts& config);

// Names of losses and metrics; those of several layers are added up.
inline constexpr const char *kAuxLoss = "router_aux_loss", *kScaledAuxLoss = "router_aux_loss_scaled",
                            *kRouterZLoss = "router_z_loss", *kImportanceLoss = "router_importance_loss",
                            *kLoadLoss = "router_load_loss", *kThresholdLoss = "router_threshold_loss";

}  // namespace trireme::nn::moe
