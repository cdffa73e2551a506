#include "tests/nn/layer_cases.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/random.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/block.h"
#include "trireme/nn/latent_attention.h"
#include "trireme/nn/mlp.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn {
namespace {

constexpr Init kNormal{Init::Kind::kNormal, 1};
constexpr double kLatentScale = 0.45;  // no 1 / sqrt of anything: YaRN changes it

Linear linear(Params& params, const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
  Param& weight = params.add(name + ".weight", {out, in}, {Init::Kind::kNormal, 1 / std::sqrt(double(in))}, true);
  return {weight, bias ? &params.add(name + ".bias", {out}, kNormal, false) : nullptr};
}

Norm norm(Params& params, const std::string& name, std::int64_t width, kernels::NormKind kind) {
  Param& weight = params.add(name + ".weight", {width}, kNormal, false);
  const bool layer = kind == kernels::NormKind::kLayer;
  return {
      {.kind = kind, .epsilon = 1e-5}, &weight, layer ? &params.add(name + ".bias", {width}, kNormal, false) : nullptr};
}

at::Tensor dense_linear(const at::Tensor& x, const NamedWeights& weights, const std::string& name) {
  const auto bias = weights.find(name + ".bias");
  const at::Tensor y = at::matmul(x, weights.at(name + ".weight").t());
  return bias == weights.end() ? y : y + bias->second;
}

at::Tensor dense_norm(const at::Tensor& x, const NamedWeights& weights, const std::string& name) {
  const at::Tensor& weight = weights.at(name + ".weight");
  const auto bias = weights.find(name + ".bias");
  if (bias == weights.end()) return x * at::rsqrt((x * x).mean(-1, true) + 1e-5) * weight;
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * at::rsqrt((centred * centred).mean(-1, true) + 1e-5) * weight + bias->second;
}

at::Tensor dense_mlp(const at::Tensor& x, const NamedWeights& weights, const std::string& name,
                     kernels::Activation kind, bool gated) {
  at::Tensor inner = dense_linear(x, weights, name + ".in");
  const auto act = [&](const at::Tensor& value) {
    switch (kind) {
      case kernels::Activation::kRelu:
        return at::relu(value);
      case kernels::Activation::kGelu:
        return at::gelu(value);
      case kernels::Activation::kGeluTanh:
        return at::gelu(value, "tanh");
      case kernels::Activation::kSilu:
        return at::silu(value);
    }
    return value;
  };
  if (gated) {
    const auto halves = inner.chunk(2, -1);
    return dense_linear(act(halves[0]) * halves[1], weights, name + ".out");
  }
  return dense_linear(act(inner), weights, name + ".out");
}

struct AttentionFeatures {
  std::int64_t num_heads, num_kv_heads, head_dim;
  bool causal = true, rotary = false, head_norms = false, documents = false;
  std::int64_t window = 0;
};

std::unique_ptr<SelfAttention> attention(Params& params, const std::string& name, std::int64_t width,
                                         const AttentionFeatures& f) {
  const Linear qkv = linear(params, name + ".qkv", width, (f.num_heads + 2 * f.num_kv_heads) * f.head_dim);
  std::optional<QueryKeyNorm> norms;
  if (f.head_norms) {
    norms.emplace(QueryKeyNorm{norm(params, name + ".q_norm", f.head_dim, kernels::NormKind::kRms),
                               norm(params, name + ".k_norm", f.head_dim, kernels::NormKind::kRms)});
  }
  const Linear out = linear(params, name + ".out", f.num_heads * f.head_dim, width);
  std::shared_ptr<RotaryEmbedding> rotary;
  if (f.rotary) rotary = std::make_shared<RotaryEmbedding>(spec::Rotary{.base = 100}, f.head_dim);
  AttentionShape shape{.name = name, .num_heads = f.num_heads, .num_kv_heads = f.num_kv_heads, .head_dim = f.head_dim};
  shape.causal = f.causal;
  shape.window = f.window;
  return std::make_unique<SelfAttention>(shape, qkv, out, std::move(norms), rotary);
}

at::Tensor dense_self_attention(const at::Tensor& x, const NamedWeights& weights, const Context& context,
                                const std::string& name, const AttentionFeatures& f) {
  const at::Tensor heads = dense_linear(x, weights, name + ".qkv")
                               .view({x.size(0), x.size(1), f.num_heads + 2 * f.num_kv_heads, f.head_dim});
  at::Tensor q = heads.narrow(2, 0, f.num_heads), k = heads.narrow(2, f.num_heads, f.num_kv_heads);
  if (f.head_norms) {
    q = dense_norm(q, weights, name + ".q_norm");
    k = dense_norm(k, weights, name + ".k_norm");
  }
  if (f.rotary) {
    q = dense_rotary(q, context.sequence.positions, 100);
    k = dense_rotary(k, context.sequence.positions, 100);
  }
  const DenseMask mask{f.causal, f.window, context.sequence.documents, context.sequence.documents};
  const at::Tensor out = dense_attention(q, k, heads.narrow(2, f.num_heads + f.num_kv_heads, f.num_kv_heads), mask);
  return dense_linear(out.reshape({x.size(0), x.size(1), -1}), weights, name + ".out");
}

/// Three documents a row, positions that start again in each.
void pack_documents(Context& context) {
  const std::int64_t batch = context.sequence.positions.size(0), length = context.sequence.positions.size(1);
  context.sequence.documents = at::empty({batch, length}, at::kInt);
  for (std::int64_t row = 0; row < batch; ++row) {
    std::int64_t start = 0;
    for (std::int64_t column = 0; column < length; ++column) {
      const std::int64_t document = 3 * (column + row) / (length + row);
      if (column > 0 && document != context.sequence.documents[row][column - 1].item<int>()) start = column;
      context.sequence.documents[row][column] = document;
      context.sequence.positions[row][column] = column - start;
    }
  }
}

Block block(Params& params, const CaseSizes& s, const AttentionFeatures& f, kernels::NormKind kind, bool gated,
            bool norm_first) {
  const auto activation = gated ? kernels::Activation::kSilu : kernels::Activation::kGeluTanh;
  std::vector<Branch> branches;
  branches.push_back(
      {norm(params, "a.norm", s.hidden_size, kind), attention(params, "a", s.hidden_size, f), Dropout("a", 0)});
  branches.push_back({norm(params, "m.norm", s.hidden_size, kind),
                      std::make_unique<Mlp>(linear(params, "m.in", s.hidden_size, gated ? 2 * s.ffn_size : s.ffn_size),
                                            linear(params, "m.out", s.ffn_size, s.hidden_size), activation, gated),
                      Dropout("m", 0)});
  return Block(std::move(branches), norm_first, Stream::kSequence);
}

at::Tensor dense_block(const at::Tensor& x, const NamedWeights& weights, const Context& context,
                       const AttentionFeatures& f, bool gated, bool norm_first) {
  const auto activation = gated ? kernels::Activation::kSilu : kernels::Activation::kGeluTanh;
  if (norm_first) {
    const at::Tensor middle = x + dense_self_attention(dense_norm(x, weights, "a.norm"), weights, context, "a", f);
    return middle + dense_mlp(dense_norm(middle, weights, "m.norm"), weights, "m", activation, gated);
  }
  const at::Tensor middle = dense_norm(x + dense_self_attention(x, weights, context, "a", f), weights, "a.norm");
  return dense_norm(middle + dense_mlp(middle, weights, "m", activation, gated), weights, "m.norm");
}

LayerCase attention_case(const std::string& name, const CaseSizes& s, AttentionFeatures f) {
  LayerCase out{.name = name, .inputs = {{s.batch, s.sequence, s.hidden_size}}};
  out.build = [=](Params& params) { return attention(params, "a", s.hidden_size, f); };
  out.oracle = [=](const Tensors& in, const NamedWeights& weights, const Context& context) {
    return dense_self_attention(in[0], weights, context, "a", f);
  };
  if (f.documents) out.prepare = pack_documents;
  return out;
}

LayerCase mlp_case(const std::string& name, const CaseSizes& s, kernels::Activation kind, bool gated) {
  LayerCase out{.name = name, .inputs = {{s.batch, s.sequence, s.hidden_size}}};
  out.build = [=](Params& params) {
    return std::make_unique<Mlp>(linear(params, "m.in", s.hidden_size, gated ? 2 * s.ffn_size : s.ffn_size),
                                 linear(params, "m.out", s.ffn_size, s.hidden_size), kind, gated);
  };
  out.oracle = [=](const Tensors& in, const NamedWeights& weights, const Context&) {
    return dense_mlp(in[0], weights, "m", kind, gated);
  };
  return out;
}

LayerCase block_case(const std::string& name, const CaseSizes& s, AttentionFeatures f, kernels::NormKind kind,
                     bool gated, bool norm_first) {
  LayerCase out{.name = name, .inputs = {{s.batch, s.sequence, s.hidden_size}}};
  out.build = [=](Params& params) { return std::make_unique<Block>(block(params, s, f, kind, gated, norm_first)); };
  out.oracle = [=](const Tensors& in, const NamedWeights& weights, const Context& context) {
    return dense_block(in[0], weights, context, f, gated, norm_first);
  };
  return out;
}

LayerCase cross_case(const CaseSizes& s) {
  LayerCase out{.name = "cross_attention",
                .inputs = {{s.batch, s.sequence, s.hidden_size}, {s.batch, s.sequence + 4, s.hidden_size}}};
  const std::int64_t queries = s.num_heads * s.head_dim, keys = s.num_kv_heads * s.head_dim;
  out.build = [=](Params& params) {
    AttentionShape shape{.name = "c", .num_heads = s.num_heads, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim};
    shape.causal = false;
    const Linear q = linear(params, "c.q", s.hidden_size, queries),
                 kv = linear(params, "c.kv", s.hidden_size, 2 * keys);
    return std::make_unique<CrossAttention>(shape, q, kv, linear(params, "c.out", queries, s.hidden_size));
  };
  out.oracle = [=](const Tensors& in, const NamedWeights& weights, const Context&) {
    const at::Tensor q = dense_linear(in[0], weights, "c.q").view({s.batch, -1, s.num_heads, s.head_dim});
    const at::Tensor kv = dense_linear(in[1], weights, "c.kv").view({s.batch, -1, 2 * s.num_kv_heads, s.head_dim});
    const at::Tensor y = dense_attention(q, kv.narrow(2, 0, s.num_kv_heads),
                                         kv.narrow(2, s.num_kv_heads, s.num_kv_heads), {.causal = false});
    return dense_linear(y.reshape({s.batch, in[0].size(1), -1}), weights, "c.out");
  };
  return out;
}

/// Sizes of latent attention that follow from a layer's: ranks that differ from each other and from heads.
struct LatentCase {
  std::int64_t q_rank = 0;  // 0: queries from x
  bool documents = false, recompute = false;
};

LayerCase latent_case(const std::string& name, const CaseSizes& s, LatentCase f) {
  const LatentSizes sizes{.kv_lora_rank = s.hidden_size / 2,
                          .qk_nope_head_dim = s.head_dim,
                          .qk_rope_head_dim = 4,
                          .v_head_dim = s.head_dim - 1};
  const std::int64_t heads = s.num_heads;
  LayerCase out{.name = name, .inputs = {{s.batch, s.sequence, s.hidden_size}}};
  out.build = [=](Params& params) {
    std::optional<LatentProjections::Down> q_down;
    if (f.q_rank > 0) {
      const Linear down = linear(params, "a.q_down", s.hidden_size, f.q_rank, false);
      q_down.emplace(LatentProjections::Down{down, norm(params, "a.q_norm", f.q_rank, kernels::NormKind::kRms)});
    }
    const Linear q_up =
        linear(params, "a.q_up", f.q_rank > 0 ? f.q_rank : s.hidden_size, heads * sizes.qk_head_dim(), false);
    const Linear kv_down =
        linear(params, "a.kv_down", s.hidden_size, sizes.kv_lora_rank + sizes.qk_rope_head_dim, false);
    const Norm kv_norm = norm(params, "a.kv_norm", sizes.kv_lora_rank, kernels::NormKind::kRms);
    const Linear kv_up =
        linear(params, "a.kv_up", sizes.kv_lora_rank, heads * (sizes.qk_nope_head_dim + sizes.v_head_dim), false);
    const Linear to_x = linear(params, "a.out", heads * sizes.v_head_dim, s.hidden_size, false);
    AttentionShape shape{
        .name = "a", .num_heads = heads, .num_kv_heads = heads, .head_dim = sizes.qk_head_dim(), .scale = kLatentScale};
    shape.recompute_core = f.recompute;
    return std::make_unique<LatentAttention>(
        shape, sizes, LatentProjections{std::move(q_down), q_up, kv_down, kv_norm, kv_up, to_x},
        std::make_shared<RotaryEmbedding>(spec::Rotary{.base = 100}, sizes.qk_rope_head_dim));
  };
  out.oracle = [=](const Tensors& in, const NamedWeights& weights, const Context& context) {
    const at::Tensor& x = in[0];
    const auto by_heads = [&](const at::Tensor& wide) { return wide.view({x.size(0), x.size(1), heads, -1}); };
    const at::Tensor& positions = context.sequence.positions;
    at::Tensor latent = x;
    if (f.q_rank > 0) latent = dense_norm(dense_linear(x, weights, "a.q_down"), weights, "a.q_norm");
    const at::Tensor q = by_heads(dense_linear(latent, weights, "a.q_up"));
    const at::Tensor both = dense_linear(x, weights, "a.kv_down");
    const at::Tensor kv = by_heads(
        dense_linear(dense_norm(both.narrow(2, 0, sizes.kv_lora_rank), weights, "a.kv_norm"), weights, "a.kv_up"));
    const at::Tensor shared = dense_interleaved_rotary(
        both.narrow(2, sizes.kv_lora_rank, sizes.qk_rope_head_dim).unsqueeze(2), positions, 100);
    const at::Tensor queries =
        at::cat({q.narrow(3, 0, sizes.qk_nope_head_dim),
                 dense_interleaved_rotary(q.narrow(3, sizes.qk_nope_head_dim, sizes.qk_rope_head_dim), positions, 100)},
                3);
    const at::Tensor keys = at::cat(
        {kv.narrow(3, 0, sizes.qk_nope_head_dim), shared.expand({x.size(0), x.size(1), heads, sizes.qk_rope_head_dim})},
        3);
    DenseMask mask{.query_documents = context.sequence.documents, .key_documents = context.sequence.documents};
    mask.scale = kLatentScale;
    const at::Tensor y = dense_attention(queries, keys, kv.narrow(3, sizes.qk_nope_head_dim, sizes.v_head_dim), mask);
    return dense_linear(y.reshape({x.size(0), x.size(1), -1}), weights, "a.out");
  };
  if (f.documents) out.prepare = pack_documents;
  return out;
}

}  // namespace

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DenseMask& mask) {
  const std::int64_t group = q.size(2) / k.size(2);
  const at::Tensor queries = q.transpose(1, 2);
  const at::Tensor keys = k.transpose(1, 2).repeat_interleave(group, 1),
                   values = v.transpose(1, 2).repeat_interleave(group, 1);
  const double scale = mask.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  at::Tensor scores = at::matmul(queries, keys.transpose(2, 3)) * scale;
  const at::Tensor rows = at::arange(q.size(1)).unsqueeze(1), columns = at::arange(k.size(1)).unsqueeze(0);
  at::Tensor hidden = at::zeros({q.size(0), 1, q.size(1), k.size(1)}, at::kBool);
  if (mask.causal) hidden = hidden | columns.gt(rows);
  if (mask.window > 0) hidden = hidden | columns.le(rows - mask.window);
  if (mask.window > 0 && !mask.causal) hidden = hidden | columns.ge(rows + mask.window);
  if (mask.query_documents.defined()) {
    hidden = hidden | mask.query_documents.unsqueeze(2).ne(mask.key_documents.unsqueeze(1)).unsqueeze(1);
  }
  scores = scores.masked_fill(hidden, -INFINITY);
  return at::matmul(at::softmax(scores, -1), values).transpose(1, 2);
}

at::Tensor dense_rotary(const at::Tensor& x, const at::Tensor& positions, double base) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor inverse = at::pow(base, -at::arange(half, at::kDouble) / half);
  const at::Tensor angles = (positions.to(at::kDouble).unsqueeze(-1) * inverse).unsqueeze(2).to(x.scalar_type());
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()}, -1);
}

at::Tensor dense_interleaved_rotary(const at::Tensor& x, const at::Tensor& positions, double base) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor halves = x.unflatten(-1, {half, 2}).transpose(-1, -2).flatten(-2);
  return dense_rotary(halves, positions, base).unflatten(-1, {2, half}).transpose(-1, -2).flatten(-2);
}

std::vector<LayerCase> layer_cases(const CaseSizes& s) {
  using kernels::Activation;
  using kernels::NormKind;
  std::vector<LayerCase> cases;
  for (const bool bias : {true, false}) {
    LayerCase out{.name = bias ? "linear" : "linear_without_bias", .inputs = {{s.batch, s.sequence, s.hidden_size}}};
    out.build = [=](Params& params) {
      return std::make_unique<Linear>(linear(params, "l", s.hidden_size, s.ffn_size, bias));
    };
    out.oracle = [](const Tensors& in, const NamedWeights& weights, const Context&) {
      return dense_linear(in[0], weights, "l");
    };
    cases.push_back(std::move(out));
  }
  for (const auto kind : {NormKind::kLayer, NormKind::kRms}) {
    LayerCase out{.name = kind == NormKind::kLayer ? "layer_norm" : "rms_norm",
                  .inputs = {{s.batch, s.sequence, s.hidden_size}}};
    out.build = [=](Params& params) { return std::make_unique<Norm>(norm(params, "n", s.hidden_size, kind)); };
    out.oracle = [](const Tensors& in, const NamedWeights& weights, const Context&) {
      return dense_norm(in[0], weights, "n");
    };
    cases.push_back(std::move(out));
  }
  cases.push_back({.name = "gelu", .inputs = {{s.batch, s.sequence, s.ffn_size}}});
  cases.back().build = [](Params&) { return std::make_unique<Activate>(Activation::kGelu); };
  cases.back().oracle = [](const Tensors& in, const NamedWeights&, const Context&) { return at::gelu(in[0]); };

  cases.push_back(mlp_case("mlp_relu", s, Activation::kRelu, false));
  cases.push_back(mlp_case("mlp_gelu", s, Activation::kGelu, false));
  cases.push_back(mlp_case("mlp_gelu_tanh", s, Activation::kGeluTanh, false));
  cases.push_back(mlp_case("mlp_swiglu", s, Activation::kSilu, true));

  const AttentionFeatures full{s.num_heads, s.num_heads, s.head_dim}, grouped{s.num_heads, s.num_kv_heads, s.head_dim};
  const auto with = [](AttentionFeatures f, auto change) {
    change(f);
    return f;
  };
  cases.push_back(attention_case("attention_multi_head", s, full));
  cases.push_back(attention_case("attention_grouped", s, grouped));
  cases.push_back(attention_case("attention_multi_query", s, {s.num_heads, 1, s.head_dim}));
  cases.push_back(attention_case("attention_bidirectional", s, with(full, [](auto& f) { f.causal = false; })));
  cases.push_back(attention_case("attention_rotary", s, with(grouped, [](auto& f) { f.rotary = true; })));
  cases.push_back(attention_case("attention_window", s, with(grouped, [](auto& f) { f.window = 5; })));
  cases.push_back(
      attention_case("attention_head_norms", s, with(grouped, [](auto& f) { f.head_norms = f.rotary = true; })));
  cases.push_back(
      attention_case("attention_documents", s, with(grouped, [](auto& f) { f.documents = f.rotary = true; })));
  cases.push_back(latent_case("latent_attention", s, {.q_rank = s.hidden_size - 5}));
  cases.push_back(latent_case("latent_attention_direct_queries", s, {.documents = true}));
  cases.push_back(latent_case("latent_attention_recomputed", s, {.q_rank = s.hidden_size - 5, .recompute = true}));
  cases.push_back(cross_case(s));
  cases.push_back(block_case("block_gpt2", s, full, NormKind::kLayer, false, true));
  cases.push_back(
      block_case("block_llama", s, with(grouped, [](auto& f) { f.rotary = true; }), NormKind::kRms, true, true));
  cases.push_back(
      block_case("block_post_norm", s, with(full, [](auto& f) { f.causal = false; }), NormKind::kLayer, false, false));
  LayerCase again = block_case("block_recomputed", s, full, NormKind::kLayer, false, true);
  again.build = [inner = again.build](Params& params) { return std::make_unique<Recomputed>(inner(params)); };
  cases.push_back(std::move(again));
  return cases;
}

void fill_weights(Params& params, Precision precision) { initialise(params, precision, /*seed=*/7); }

Tensors case_inputs(const LayerCase& layer_case, at::ScalarType type) {
  Tensors out;
  for (std::size_t i = 0; i < layer_case.inputs.size(); ++i) {
    at::Tensor x = at::empty(layer_case.inputs[i], at::kDouble);
    Random(3, "input " + std::to_string(i))
        .fill_normal(0, std::span(x.data_ptr<double>(), static_cast<std::size_t>(x.numel())));
    out.push_back(x.to(type));
  }
  return out;
}

Context case_context(const LayerCase& layer_case) {
  Context context;
  const auto& shape = layer_case.inputs[0];
  context.sequence = plain_sequence(shape[0], shape[1]);
  if (layer_case.inputs.size() > 1) context.source = plain_sequence(shape[0], layer_case.inputs[1][1]);
  context.samples = at::arange(shape[0], at::kLong);
  if (layer_case.prepare) layer_case.prepare(context);
  return context;
}

}  // namespace trireme::nn
