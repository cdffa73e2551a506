// What a model's shape cannot be, each with a way out.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "trireme/base/text.h"
#include "trireme/spec/model_shape.h"

namespace trireme::spec {
namespace {

/// A field and a rule it breaks.
class ShapeProblems {
 public:
  explicit ShapeProblems(std::string prefix) : prefix_(std::move(prefix)) {}
  void at_most(const char* field, std::int64_t value, std::int64_t most) {
    if (value > most) add(field, fmt::format("must be at most {}, but is {}", most, value), {});
  }
  void at_least_one(const char* field, std::int64_t value) {
    if (value < 1) add(field, fmt::format("must be at least 1, but is {}", value), {});
  }
  void share(const char* field, double value) {
    if (!(value >= 0 && value < 1)) add(field, fmt::format("must be at least 0 and below 1, but is {}", value), {});
  }
  void add(const std::string& field, std::string reason, std::string hint) {
    add_key(prefix_ + "." + field, std::move(reason), std::move(hint));
  }
  void add_key(std::string key, std::string reason, std::string hint) {
    add({.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  }
  void add(config::Problem problem) { found_.push_back(std::move(problem)); }
  std::vector<config::Problem> take() { return std::move(found_); }
  bool none() const { return found_.empty(); }

 private:
  std::string prefix_;
  std::vector<config::Problem> found_;
};

void find_mla_problems(const ModelShape& shape, const std::string& prefix, ShapeProblems& problems) {
  const Mla& mla = shape.mla;
  for (const auto& [field, value] : {std::pair{"mla.q_lora_rank", mla.q_lora_rank},
                                     {"mla.qk_rope_head_dim", mla.qk_rope_head_dim},
                                     {"mla.v_head_dim", mla.v_head_dim}}) {
    if (!mla.used() && value != 0)
      problems.add(field, "is given, but there is no latent attention without mla.kv_lora_rank",
                   fmt::format("set {}.mla.kv_lora_rank, or leave it out", prefix));
  }
  if (!mla.used()) return;
  if (mla.qk_rope_head_dim < 2 || mla.qk_rope_head_dim % 2 != 0)
    problems.add(
        "mla.qk_rope_head_dim", fmt::format("RoPE rotates pairs of dimensions, but it is {}", mla.qk_rope_head_dim),
        fmt::format("set {}.mla.qk_rope_head_dim = {}", prefix, std::max<std::int64_t>(2, mla.qk_rope_head_dim + 1)));
  if (mla.v_head_dim < 1 || mla.v_head_dim > shape.head_dim + mla.qk_rope_head_dim)
    problems.add("mla.v_head_dim",
                 fmt::format("is {}, but a value head has at least 1 dimension and at most the {} of a key head",
                             mla.v_head_dim, shape.head_dim + mla.qk_rope_head_dim),
                 fmt::format("set {}.mla.v_head_dim = {}", prefix, shape.head_dim));
  if (shape.num_kv_heads != shape.num_heads)
    problems.add("num_kv_heads",
                 fmt::format("is {}, but latent attention has keys and values for each of the {} query heads",
                             shape.num_kv_heads, shape.num_heads),
                 fmt::format("set {}.num_kv_heads = {}", prefix, shape.num_heads));
  if (shape.position_kind != PositionKind::kRotary)
    problems.add("position_kind", "latent attention has its positions in RoPE",
                 fmt::format("set {}.position_kind = \"rotary\"", prefix));
  if (shape.query_key_norm)
    problems.add("query_key_norm", "latent attention normalises its latents, not heads",
                 fmt::format("set {}.query_key_norm = false", prefix));
  if (shape.attention_bias)
    problems.add("attention_bias", "projections of latent attention have no biases",
                 fmt::format("set {}.attention_bias = false", prefix));
  if (shape.num_encoder_layers > 0)
    problems.add("mla.kv_lora_rank", "an encoder beside a decoder has plain attention",
                 fmt::format("set {}.mla.kv_lora_rank = 0", prefix));
}

void find_relative_problems(const ModelShape& shape, const std::string& prefix, ShapeProblems& problems) {
  const bool relative = shape.position_kind == PositionKind::kRelative;
  if (relative != (shape.family == Family::kT5))
    problems.add(
        "position_kind",
        relative ? "relative position biases are T5's" : "T5 has relative position biases and no other positions",
        relative ? fmt::format("set {}.family = \"t5\", or take another position_kind", prefix)
                 : fmt::format("set {}.position_kind = \"relative\"", prefix));
  if (!relative) return;
  // Half of the buckets for either side in an encoder, half of those for exact distances.
  const std::int64_t exact = shape.relative_attention_num_buckets / 4;
  if (shape.relative_attention_num_buckets % 4 != 0 || shape.relative_attention_num_buckets < 4)
    problems.add(
        "relative_attention_num_buckets",
        fmt::format("{} buckets do not halve twice: either side, and exact distances of each",
                    shape.relative_attention_num_buckets),
        fmt::format("set {}.relative_attention_num_buckets = {}", prefix, 4 * std::max<std::int64_t>(1, exact)));
  if (shape.relative_attention_max_distance <= 2 * exact)
    problems.add(
        "relative_attention_max_distance",
        fmt::format("{} is not beyond the {} distances that have buckets of their own",
                    shape.relative_attention_max_distance, 2 * exact),
        fmt::format("set {}.relative_attention_max_distance = {}", prefix, 8 * std::max<std::int64_t>(1, exact)));
  if (shape.attention_dropout > 0)
    problems.add("attention_dropout", "attention with relative position biases has no dropout of its own",
                 fmt::format("set {}.attention_dropout = 0", prefix));
  if (shape.window > 0)
    problems.add("window", "attention with relative position biases has no window",
                 fmt::format("set {}.window = 0", prefix));
}

void find_expert_problems(const ModelShape& shape, ShapeProblems& problems) {
  const Experts& experts = shape.experts;
  if (!experts.used()) return;
  if (expert_layers(shape) == 0)
    problems.add_key("experts.first_dense_layers",
                     fmt::format("leaves no MoE layer of {}, where one in {} is one",
                                 counted(static_cast<std::size_t>(shape.num_layers), "layer"), experts.every),
                     "set experts.first_dense_layers = 0 and experts.every = 1");
  constexpr std::int64_t kScaled = 128;  // values that share a scale
  if (experts.dispatch_precision == DispatchPrecision::kFp8 && shape.hidden_size % kScaled != 0)
    problems.add_key("experts.dispatch_precision",
                     fmt::format("is fp8 with a scale for each {} values, which do not divide hidden_size = {}",
                                 kScaled, shape.hidden_size),
                     "set experts.dispatch_precision = \"same\"");
  for (config::Problem& problem : find_problems(experts)) problems.add(std::move(problem));
}

void find_mtp_problems(const ModelShape& shape, const std::string& prefix, ShapeProblems& problems) {
  const std::string off = fmt::format("set {}.mtp_depth = 0", prefix);
  if (shape.mtp_depth < 0)
    problems.add("mtp_depth", fmt::format("must be at least 0, but is {}", shape.mtp_depth), off);
  if (!(shape.mtp_loss_weight >= 0))
    problems.add("mtp_loss_weight", fmt::format("must be at least 0, but is {}", shape.mtp_loss_weight), {});
  if (shape.mtp_depth < 1) return;
  if (shape.mtp_depth >= shape.max_seq_len)
    problems.add("mtp_depth",
                 fmt::format("{} further tokens, but sequences have at most {}", shape.mtp_depth, shape.max_seq_len),
                 fmt::format("set {}.mtp_depth = 1", prefix));
  if (!shape.causal || !shape.norm_first || shape.num_encoder_layers > 0)
    problems.add("mtp_depth", "multi-token prediction is for causal decoders with a norm before the head", off);
  if (shape.position_kind != PositionKind::kRotary)
    problems.add("mtp_depth",
                 "the embedding that multi-token prediction shares must be of tokens alone, not of positions",
                 fmt::format("set {}.position_kind = \"rotary\", or {}", prefix, off.substr(4)));
}

}  // namespace

std::vector<config::Problem> find_problems(const ModelShape& shape, const std::string& prefix) {
  ShapeProblems problems(prefix);
  for (const auto& [field, value] : {std::pair{"vocab_size", shape.vocab_size},
                                     {"max_seq_len", shape.max_seq_len},
                                     {"hidden_size", shape.hidden_size},
                                     {"num_layers", shape.num_layers},
                                     {"num_heads", shape.num_heads},
                                     {"num_kv_heads", shape.num_kv_heads},
                                     {"head_dim", shape.head_dim},
                                     {"ffn_size", shape.ffn_size}}) {
    problems.at_least_one(field, value);
  }
  if (shape.mup_base_hidden_size > 0 && (has_encoder(shape.family) || shape.experts.used() || shape.mla.used()))
    problems.add("mup_base_hidden_size",
                 "scales the matrices of plain attention and MLPs, but this model has others: Glorot's initialisation, "
                 "experts or latent attention",
                 "leave it out");
  if (shape.mup_base_head_dim > 0 && shape.mup_base_hidden_size == 0)
    problems.add("mup_base_head_dim", "is given without mup_base_hidden_size",
                 "set mup_base_hidden_size, or leave it out");
  // Far beyond every model, and small enough that counts of parameters and operations fit into 63 bits.
  constexpr std::int64_t kWidest = 1 << 20, kMostParts = 1 << 16, kMostTokens = 1 << 28;
  for (const auto& [field, value, most] : {std::tuple{"vocab_size", shape.vocab_size, kMostTokens},
                                           {"max_seq_len", shape.max_seq_len, kMostTokens},
                                           {"segments", shape.segments, kMostParts},
                                           {"hidden_size", shape.hidden_size, kWidest},
                                           {"ffn_size", shape.ffn_size, kWidest},
                                           {"num_layers", shape.num_layers, kMostParts},
                                           {"num_encoder_layers", shape.num_encoder_layers, kMostParts},
                                           {"num_heads", shape.num_heads, kMostParts},
                                           {"num_kv_heads", shape.num_kv_heads, kMostParts},
                                           {"head_dim", shape.head_dim, kMostParts},
                                           {"mla.q_lora_rank", shape.mla.q_lora_rank, kWidest},
                                           {"mla.kv_lora_rank", shape.mla.kv_lora_rank, kWidest},
                                           {"mla.qk_rope_head_dim", shape.mla.qk_rope_head_dim, kMostParts},
                                           {"mla.v_head_dim", shape.mla.v_head_dim, kMostParts},
                                           {"mtp_depth", shape.mtp_depth, kMostParts}}) {
    problems.at_most(field, value, most);
  }
  if (problems.none() && shape.num_heads * shape.head_dim > kWidest) {
    problems.add("num_heads",
                 fmt::format("{} heads of dimension {} exceed {} in all", shape.num_heads, shape.head_dim, kWidest),
                 {});
  }
  problems.share("dropout", shape.dropout);
  problems.share("attention_dropout", shape.attention_dropout);
  problems.share("label_smoothing", shape.label_smoothing);
  if (shape.window < 0) problems.add("window", fmt::format("must be at least 0, but is {}", shape.window), {});
  if (!problems.none()) return problems.take();
  if (shape.num_heads % shape.num_kv_heads != 0) {
    std::int64_t fits = shape.num_kv_heads;
    while (shape.num_heads % fits != 0) --fits;
    problems.add("num_kv_heads",
                 fmt::format("{} does not divide num_heads = {}: each group of query heads shares one",
                             shape.num_kv_heads, shape.num_heads),
                 fmt::format("set {}.num_kv_heads = {}", prefix, fits));
  }
  const bool fixed_width =
      shape.family == Family::kGpt2 || shape.family == Family::kBert || shape.family == Family::kTransformer;
  if (fixed_width && shape.num_heads * shape.head_dim != shape.hidden_size) {
    const bool fits = shape.hidden_size % shape.head_dim == 0;
    problems.add("num_heads",
                 fmt::format("{} heads of dimension {} make {}, but hidden_size is {}; in this family they are equal",
                             shape.num_heads, shape.head_dim, shape.num_heads * shape.head_dim, shape.hidden_size),
                 fits ? fmt::format("set {0}.num_heads = {1} and {0}.num_kv_heads = {1}", prefix,
                                    shape.hidden_size / shape.head_dim)
                      : fmt::format("set {}.hidden_size = {}", prefix, shape.num_heads * shape.head_dim));
  }
  if (shape.position_kind == PositionKind::kRotary && !shape.mla.used() && shape.head_dim % 2 != 0) {
    problems.add("head_dim", fmt::format("RoPE rotates pairs of dimensions, but {} is odd", shape.head_dim),
                 fmt::format("set {}.head_dim = {}", prefix, shape.head_dim + 1));
  }
  if (shape.position_kind == PositionKind::kRotary && shape.rotary.scaling != RotaryScaling::kNone &&
      !(shape.rotary.factor > 0)) {
    problems.add("rotary.factor", fmt::format("must be above 0, but is {}", shape.rotary.factor), {});
  }
  if (has_encoder(shape.family) != (shape.num_encoder_layers > 0)) {
    problems.add(
        "num_encoder_layers",
        shape.num_encoder_layers > 0
            ? "only the families \"transformer\" and \"t5\" have an encoder beside their decoder"
            : fmt::format("family \"{}\" needs an encoder",
                          name_in(enum_names(std::type_identity<Family>()), shape.family)),
        fmt::format("set {}.num_encoder_layers = {}", prefix, shape.num_encoder_layers > 0 ? 0 : shape.num_layers));
  }
  find_relative_problems(shape, prefix, problems);
  for (const SparseProblem& one : find_sparse_problems(shape.sparse_attention, shape.causal))
    problems.add("sparse_attention." + one.field, one.reason, one.hint);
  if (shape.sparse_attention.used()) {
    const auto excludes = [&](bool given, const char* what) {
      if (given)
        problems.add("sparse_attention.mode", fmt::format("does not go together with {}", what),
                     fmt::format("set {}.sparse_attention.mode = \"none\"", prefix));
    };
    excludes(shape.mla.used(), "latent attention (mla)");
    excludes(shape.window > 0, "a sliding window: take mode \"longformer\" for both");
    excludes(shape.num_encoder_layers > 0, "an encoder beside a decoder");
  }
  find_mla_problems(shape, prefix, problems);
  find_mtp_problems(shape, prefix, problems);
  find_expert_problems(shape, problems);
  return problems.take();
}

}  // namespace trireme::spec
