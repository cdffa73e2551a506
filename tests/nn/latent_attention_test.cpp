// Latent attention: the absorbed form over a cache of latents, and heads split over ranks, against the plain layer.
#include "trireme/nn/latent_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kHiddenSize = 24, kHeads = 4, kQueryRank = 10;
constexpr LatentSizes kSizes{.kv_lora_rank = 12, .qk_nope_head_dim = 6, .qk_rope_head_dim = 4, .v_head_dim = 5};

at::Tensor drawn(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  Random(11, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out;
}

/// The layer with `heads` heads from `first_head` on: weights of all ranks are parts of the same.
struct LatentFixture {
  Params params;
  std::unique_ptr<LatentAttention> layer;

  explicit LatentFixture(bool latent_queries, std::int64_t window = 0,
                         const ParallelContext& parallel = single_rank()) {
    const std::int64_t ranks = parallel.tensor_ranks(), heads = kHeads / ranks, rank = parallel.tensor_rank();
    const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in, LinearSplit split) {
      at::Tensor whole = drawn(name, {out, in}) / std::sqrt(static_cast<double>(in));
      if (split == LinearSplit::kColumn) whole = whole.narrow(0, rank * out / ranks, out / ranks);
      if (split == LinearSplit::kRow) whole = whole.narrow(1, rank * in / ranks, in / ranks);
      Param& param = params.add(name, {whole.size(0), whole.size(1)}, {}, true);
      values_[name] = whole.contiguous();
      return Linear(param, nullptr, split, parallel);
    };
    const auto norm = [&](const std::string& name, std::int64_t size) {
      values_[name] = drawn(name, {size});
      return Norm({.kind = kernels::NormKind::kRms, .epsilon = 1e-5}, &params.add(name, {size}, {}, false), nullptr);
    };
    std::optional<LatentProjections::Down> q_down;
    if (latent_queries) {
      const Linear down = matrix("q_down", kQueryRank, kHiddenSize, LinearSplit::kNone);
      q_down.emplace(LatentProjections::Down{down, norm("q_norm", kQueryRank)});
    }
    const Linear q_up =
        matrix("q_up", kHeads * kSizes.qk_head_dim(), latent_queries ? kQueryRank : kHiddenSize, LinearSplit::kColumn);
    const Linear kv_down =
        matrix("kv_down", kSizes.kv_lora_rank + kSizes.qk_rope_head_dim, kHiddenSize, LinearSplit::kNone);
    const Norm kv_norm = norm("kv_norm", kSizes.kv_lora_rank);
    const Linear kv_up = matrix("kv_up", kHeads * (kSizes.qk_nope_head_dim + kSizes.v_head_dim), kSizes.kv_lora_rank,
                                LinearSplit::kColumn);
    const Linear out = matrix("out", kHiddenSize, kHeads * kSizes.v_head_dim, LinearSplit::kRow);
    AttentionShape shape{.name = "a",
                         .num_heads = heads,
                         .num_kv_heads = heads,
                         .head_dim = kSizes.qk_head_dim(),
                         .first_head = rank * heads,
                         .window = window,
                         .scale = 0.3};
    layer = std::make_unique<LatentAttention>(
        shape, kSizes, LatentProjections{std::move(q_down), q_up, kv_down, kv_norm, kv_up, out},
        std::make_shared<RotaryEmbedding>(spec::Rotary{.base = 100}, kSizes.qk_rope_head_dim), nullptr, parallel);
    allocate(params, Precision::kFp64);
    for (Param& param : params) {
      param.master.copy_(values_.at(param.name));
      publish(param);
    }
  }

 private:
  std::map<std::string, at::Tensor> values_;
};

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

/// Sequences that come in chunks, over one cache.
class Cached {
 public:
  Cached(LatentFixture& fixture, std::int64_t window, std::int64_t sequences, std::int64_t max_tokens)
      : fixture_(fixture), manager_(groups_of(window, sequences, max_tokens)) {
    cache_.groups = groups_of(window, sequences, max_tokens);
    for (std::int64_t i = 0; i < sequences; ++i) tables_.push_back(manager_.new_tables());
    lengths_.resize(static_cast<std::size_t>(sequences), 0);
  }

  /// chunks[i] new tokens of sequence i, [tokens, width]; undefined: none. The outputs, likewise.
  std::vector<at::Tensor> step(const std::vector<at::Tensor>& chunks) {
    std::vector<SequenceStep> steps;
    std::vector<at::Tensor> rows;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (!chunks[i].defined()) continue;
      const std::int64_t tokens = chunks[i].size(0);
      EXPECT_TRUE(manager_.reserve(tables_[i], lengths_[i] + tokens));
      steps.push_back({.context_len = lengths_[i], .query_len = tokens, .tables = tables_[i]});
      rows.push_back(chunks[i]);
      lengths_[i] += tokens;
    }
    const KvBatch batch = make_kv_batch(cache_, steps);
    Context context;
    context.kv_batch = &batch;
    context.sequence = packed_sequence(batch);
    const at::Tensor y = fixture_.layer->forward(at::cat(rows, 0).unsqueeze(0), context, nullptr).squeeze(0);
    std::vector<at::Tensor> out(chunks.size());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (!chunks[i].defined()) continue;
      out[i] = y.narrow(0, at, chunks[i].size(0));
      at += chunks[i].size(0);
    }
    return out;
  }

  const KvCache& cache() const { return cache_; }

 private:
  static std::vector<KvCacheGroup> groups_of(std::int64_t window, std::int64_t sequences, std::int64_t max_tokens) {
    return {{.window = window, .num_blocks = sequences * (blocks_for(max_tokens) + 1)}};
  }

  LatentFixture& fixture_;
  KvCache cache_;
  BlockManager manager_;
  std::vector<BlockManager::Tables> tables_;
  std::vector<std::int64_t> lengths_;
};

at::Tensor whole_sequence(LatentFixture& fixture, const at::Tensor& x) {
  Context context;
  context.sequence = plain_sequence(1, x.size(0));
  return fixture.layer->forward(x.unsqueeze(0), context, nullptr).squeeze(0);
}

TEST(LatentAttention, AbsorbedOverACacheEqualsPlain) {
  for (const std::int64_t window : {0, 7}) {
    for (const bool latent_queries : {true, false}) {
      LatentFixture fixture(latent_queries, window);
      const at::Tensor a = drawn("a", {41, kHiddenSize}), b = drawn("b", {30, kHiddenSize});
      const at::Tensor of_a = whole_sequence(fixture, a), of_b = whole_sequence(fixture, b);
      Cached cached(fixture, window, 2, 48);
      std::vector<at::Tensor> found_a, found_b;
      std::int64_t at_a = 0, at_b = 0;
      // A long prefill chunk and short ones, alone and beside each other, then decode.
      for (const auto& [of_first, of_second] : {std::pair{19, 0}, {0, 5}, {12, 1}, {1, 11}, {8, 3}, {1, 1}, {0, 9}}) {
        std::vector<at::Tensor> chunks(2);
        if (of_first > 0) chunks[0] = a.narrow(0, at_a, of_first);
        if (of_second > 0) chunks[1] = b.narrow(0, at_b, of_second);
        const auto out = cached.step(chunks);
        if (of_first > 0) found_a.push_back(out[0]);
        if (of_second > 0) found_b.push_back(out[1]);
        at_a += of_first;
        at_b += of_second;
      }
      ASSERT_EQ(at_a, 41);
      ASSERT_EQ(at_b, 30);
      EXPECT_LE(relative(at::cat(found_a, 0), of_a), 1e-12) << "window " << window;
      EXPECT_LE(relative(at::cat(found_b, 0), of_b), 1e-12) << "window " << window;
    }
  }
}

TEST(LatentAttention, CachesALatentAndAKeyForEachTokenWhateverTheHeads) {
  LatentFixture fixture(true);
  Cached cached(fixture, 0, 1, 48);
  cached.step({drawn("a", {3, kHiddenSize})});
  const KvCache::Layer& layer = cached.cache().layers.at(0);
  EXPECT_EQ(layer.keys.sizes(), at::IntArrayRef({4, kKvBlockSize, 1, kSizes.kv_lora_rank + kSizes.qk_rope_head_dim}));
  EXPECT_FALSE(layer.values.defined());
}

TEST(LatentAttention, SplitsHeadsOverRanks) {
  constexpr std::int64_t kSamples = 2, kLength = 12;
  const at::Tensor x = drawn("x", {kSamples, kLength, kHiddenSize}), dy = drawn("dy", {kSamples, kLength, kHiddenSize});
  for (const bool latent_queries : {true, false}) {
    LatentFixture alone(latent_queries);
    Context context;
    context.sequence = plain_sequence(kSamples, kLength);
    Tape tape;
    const at::Tensor y = alone.layer->forward(x, context, &tape);
    const at::Tensor dx = alone.layer->backward(dy.clone(), context, tape);
    for (const auto& [sequence, save_gathered] : {std::pair{false, false}, {true, false}, {true, true}}) {
      comm::run_ranks(2, [&](comm::Rank& rank) {
        ParallelContext parallel;
        parallel.tensor = &rank.world();
        parallel.sequence_parallel = sequence;
        parallel.sp_save_gathered = save_gathered;
        LatentFixture part(latent_queries, 0, parallel);
        const auto mine = [&](const at::Tensor& whole) {
          return sequence ? whole.narrow(1, rank.rank() * kLength / 2, kLength / 2).contiguous() : whole.clone();
        };
        Context here;
        here.sequence = plain_sequence(kSamples, kLength);
        Tape saved;
        EXPECT_LE(relative(part.layer->forward(mine(x), here, &saved), mine(y)), 1e-12);
        EXPECT_LE(relative(part.layer->backward(mine(dy), here, saved), mine(dx)), 1e-12);
        EXPECT_TRUE(saved.empty());
        for (Param& param : part.params) {
          const at::Tensor whole = alone.params.at(param.name).gradient;
          at::Tensor gradient = param.gradient.clone();
          at::Tensor expected = whole;
          if (whole.dim() == 2 && whole.size(0) != gradient.size(0)) {
            expected = whole.narrow(0, rank.rank() * whole.size(0) / 2, whole.size(0) / 2);
          } else if (whole.dim() == 2 && whole.size(1) != gradient.size(1)) {
            expected = whole.narrow(1, rank.rank() * whole.size(1) / 2, whole.size(1) / 2);
          } else if (sequence) {  // of this rank's tokens: the reduction over ranks follows
            at::Tensor sum = gradient.contiguous();
            sum_over(sum, rank.world());
            gradient = sum;
          }
          EXPECT_LE(relative(gradient, expected), 1e-12) << param.name;
        }
      });
    }
  }
}

}  // namespace
}  // namespace trireme::nn
