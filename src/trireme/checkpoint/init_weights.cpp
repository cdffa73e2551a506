#include "trireme/checkpoint/init_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/open_model.h"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;

/// Keys that change how a model is trained or how far it reaches, but no weight and not what one means.
bool is_harmless(std::string_view key) {
  constexpr std::array<std::string_view, 9> kKeys = {"dropout", "attention_dropout", "label_smoothing",
                                                     "z_loss",  "init_std",          "scaled_residual_init",
                                                     "epsilon", "max_seq_len",       "mtp_loss_weight"};
  // What balances experts, and how a layer computes them.
  constexpr std::array<std::string_view, 16> kExperts = {"experts.aux_loss_weight",
                                                         "experts.z_loss_weight",
                                                         "experts.importance_loss_weight",
                                                         "experts.load_loss_weight",
                                                         "experts.threshold_loss_weight",
                                                         "experts.jitter",
                                                         "experts.expert_dropout",
                                                         "experts.balance_group",
                                                         "experts.arena",
                                                         "experts.bias_centered",
                                                         "experts.node_ranks",
                                                         "experts.slice_over_tp",
                                                         "experts.redundant_experts",
                                                         "experts.move_experts",
                                                         "experts.rebalance_every",
                                                         "experts.dispatch_precision"};
  if (std::ranges::find(kExperts, key) != kExperts.end()) return true;
  return key.starts_with("rotary.") || key.starts_with("window") || std::ranges::find(kKeys, key) != kKeys.end();
}

/// How many leading elements of a parameter the stored one of its name has: all, the rows that both vocabularies have,
/// or 0 where it does not fit.
std::int64_t common_elements(const nn::Param& param, const nn::Param* stored, const spec::ModelShape& shape,
                             const spec::ModelShape& stored_as, bool resize) {
  if (stored == nullptr) return 0;
  const auto &mine = param.placement.shape, &theirs = stored->placement.shape;
  if (mine == theirs) return param.elements();
  const bool vocabulary = resize && mine.size() == theirs.size() && mine[0] == shape.vocab_size &&
                          theirs[0] == stored_as.vocab_size &&
                          std::equal(mine.begin() + 1, mine.end(), theirs.begin() + 1);
  return vocabulary ? std::min(param.elements(), stored->elements()) : 0;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  return names.size() <= kShown ? listed(first)
                                : fmt::format("{} and {} more", fmt::join(first, ", "), names.size() - kShown);
}

}  // namespace

void check_init_shape(const spec::ModelShape& stored, const spec::ModelShape& shape, const spec::ModelConfig& model) {
  if (model.init_dense && !stored.experts.used()) {
    throw ConfigError(fmt::format("model.init_dense is given, but {} holds a model without experts", *model.init_from),
                      "leave model.init_dense out");
  }
  if (!stored.experts.used() && !model.experts.used() && model.experts != spec::Experts{}) {
    throw ConfigError(fmt::format("[experts] is given, but {} holds a model without experts", *model.init_from),
                      "leave [experts] out");
  }
  if (auto problems = spec::find_problems(shape, "model"); !problems.empty()) {
    throw config::ProblemsError(fmt::format("the model that is made of {}", *model.init_from), std::move(problems));
  }
  std::vector<std::string> changed;
  for (const std::string& difference : spec::differences(shape, stored)) {
    const std::string key = difference.substr(0, difference.find(' '));
    const bool positions = key == "max_seq_len" && shape.position_kind == spec::PositionKind::kLearned;
    if (is_harmless(key) && !positions) continue;
    if (key == "mtp_depth" && shape.mtp_depth < stored.mtp_depth) continue;  // modules that are not asked for
    // 0 is no bias, which chooses other experts; any other rate goes on from what is stored.
    const bool biased = shape.experts.bias_update_rate > 0 && stored.experts.bias_update_rate > 0;
    if (key == "experts.bias_update_rate" && biased) continue;
    if (key == "vocab_size" && model.init_resize_vocab) continue;
    if (key.starts_with("experts.") && model.init_dense) continue;
    changed.push_back(key.starts_with("experts.") ? difference : fmt::format("model.{}", difference));
  }
  const bool only_vocabulary = changed.size() == 1 && changed[0].starts_with("model.vocab_size");
  if (!changed.empty() && !model.init_partial) {
    throw ConfigError(
        fmt::format("{} does not fit the weights in {}, a {}", listed(changed), *model.init_from,
                    spec::shape_text(stored)),
        fmt::format("leave {} out; or set model.{} = true to keep what fits and initialise the rest",
                    changed.size() == 1 ? "it" : "them", only_vocabulary ? "init_resize_vocab" : "init_partial"));
  }
}

std::string longer_context(const spec::ModelShape& shape, const std::string& init_from) {
  const spec::ModelShape stored = stored_shape(init_from);
  if (shape.max_seq_len <= stored.max_seq_len || !(shape.rotary == stored.rotary)) return {};
  return fmt::format(
      "model.max_seq_len = {} is beyond the {} that {} was trained on, without RoPE scaling (model.rotary.scaling)",
      shape.max_seq_len, stored.max_seq_len, init_from);
}

std::string InitReport::text() const {
  std::string out = fmt::format("weights: {} of {} from {}", counted(loaded, "tensor"),
                                short_count(static_cast<double>(elements)) + " parameters", what);
  if (!partly.empty()) out += fmt::format("; resized: {}", some_of(partly));
  if (!fresh.empty()) out += fmt::format("; initialised from run.seed: {}", some_of(fresh));
  return out;
}

InitReport fill_what_fits(const spec::ModelConfig& model, const spec::ModelShape& shape, nn::Params& params) {
  const StoredWeights weights(*model.init_from);
  const models::Model& stored = weights.model();
  InitReport report{.what = weights.what()};
  const auto whole = models::build(shape, {});
  for (const nn::Param& param : whole->params) {
    const std::int64_t common =
        common_elements(param, stored.params.find(param.name), shape, stored.shape, model.init_resize_vocab);
    report.elements += common;
    if (common > 0) ++report.loaded;
    if (common > 0 && param.placement.shape != stored.params.find(param.name)->placement.shape) {
      report.partly.push_back(param.name);
    }
    if (common == 0) report.fresh.push_back(param.name);
  }
  for (nn::Param& param : params) {
    const nn::Param* from = stored.params.find(param.name);
    const std::int64_t common = common_elements(param, from, shape, stored.shape, model.init_resize_vocab);
    at::Tensor master = param.master.view({-1});
    for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
      const layout::Index end = std::min<layout::Index>(run.count, common - run.global);
      for (layout::Index at = 0; at < end; at += kElementsAtOnce) {
        const layout::Index count = std::min(kElementsAtOnce, end - at);
        master.narrow(0, run.local + at, count).copy_(weights.read(*from, run.global + at, run.global + at + count));
      }
    }
    nn::publish(param);
  }
  return report;
}

}  // namespace trireme::checkpoint
