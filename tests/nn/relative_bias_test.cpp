// T5's relative position biases: buckets as the reference has them, and attention against autograd in double.
#include "trireme/nn/relative_bias.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

using testing::ElementsAreArray;

TEST(RelativeBuckets, AreTheReferences) {  // T5Attention._relative_position_bucket of transformers 4.57.1
  const std::vector<std::int64_t> distances{-300, -128, -127, -100, -64, -40, -20, -16, -12, -9,  -8,  -7, -1,
                                            0,    1,    5,    8,    11,  16,  33,  64,  90,  127, 128, 500};
  const auto buckets = [&](bool both_sides) {
    const RelativeBuckets rule{.buckets = 32, .max_distance = 128, .both_sides = both_sides};
    std::vector<std::int64_t> found;
    for (const std::int64_t distance : distances) found.push_back(rule.bucket_of(distance));
    return found;
  };
  EXPECT_THAT(buckets(true), ElementsAreArray({15, 15, 15, 15, 14, 12, 10, 10, 9,  8,  8,  7, 1,
                                               0,  17, 21, 24, 24, 26, 28, 30, 30, 31, 31, 31}));
  EXPECT_THAT(buckets(false),
              ElementsAreArray({31, 31, 31, 30, 26, 23, 17, 16, 12, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

at::Tensor drawn(std::vector<std::int64_t> sizes, const char* stream) {
  at::Tensor out = at::empty(sizes, at::kDouble);
  Random(9, stream).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out;
}

/// Scores, bias and mask written out, differentiated by autograd.
at::Tensor written_out(const AttentionShape& shape, const RelativeBuckets& rule, const at::Tensor& table,
                       const at::Tensor& documents, const Tensors& qkv) {
  const std::int64_t tokens = qkv[0].size(1), shared = shape.num_heads / shape.num_kv_heads;
  const auto heads = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor k = heads(qkv[1]).repeat_interleave(shared, 1), v = heads(qkv[2]).repeat_interleave(shared, 1);
  at::Tensor scores = at::matmul(heads(qkv[0]), k.transpose(2, 3)) * *shape.scale;
  at::Tensor bucket = at::empty({tokens, tokens}, at::kLong), hidden = at::zeros({tokens, tokens}, at::kBool);
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = 0; j < tokens; ++j) {
      bucket[i][j] = rule.bucket_of(j - i);
      hidden[i][j] = shape.causal && j > i;
    }
  }
  scores = scores + table.index_select(0, bucket.view({-1})).view({tokens, tokens, -1}).permute({2, 0, 1});
  at::Tensor masked = hidden.unsqueeze(0).unsqueeze(0);
  if (documents.defined()) masked = masked | (documents.unsqueeze(2) != documents.unsqueeze(1)).unsqueeze(1);
  return at::matmul(at::softmax(scores.masked_fill(masked, -INFINITY), -1), v).transpose(1, 2);
}

TEST(RelativeBias, EqualsAutogradInDouble) {
  const std::int64_t batch = 2, tokens = 13, size = 5;
  for (const bool causal : {false, true}) {
    for (const bool packed : {false, true}) {
      for (const std::int64_t kv_heads : {4, 2}) {
        SCOPED_TRACE(testing::Message() << causal << packed << kv_heads);
        const AttentionShape shape{
            .name = "t5", .num_heads = 4, .num_kv_heads = kv_heads, .head_dim = size, .causal = causal, .scale = 0.7};
        const RelativeBuckets rule{.buckets = 8, .max_distance = 7, .both_sides = !causal};
        Params params;
        Param& table = params.add("table", {8, 4}, {Init::Kind::kNormal, 1}, false);
        initialise(params, Precision::kFp64, 3);
        const RelativeBias bias(rule, table);
        Context context;
        Sequence sequence = plain_sequence(batch, tokens);
        if (packed) sequence.documents = (at::arange(tokens) / 6).to(at::kInt).unsqueeze(0).repeat({batch, 1});
        const BlockPlace place = place_in_rows(sequence, tokens, {0, tokens}, {0, tokens});
        const Tensors qkv{drawn({batch, tokens, 4, size}, "q"), drawn({batch, tokens, kv_heads, size}, "k"),
                          drawn({batch, tokens, kv_heads, size}, "v")};
        const at::Tensor dout = drawn({batch, tokens, 4, size}, "dy");

        Tensors leaves;
        for (const at::Tensor& one : qkv) leaves.push_back(one.clone().requires_grad_());
        const at::Tensor values = table.value.clone().requires_grad_();
        const at::Tensor expected = written_out(shape, rule, values, sequence.documents, leaves);
        expected.backward(dout);

        const CoreResult result = bias.forward(shape, place, context, qkv[0], qkv[1], qkv[2]);
        EXPECT_LE((result.out - expected).abs().max().item<double>(), 1e-13);
        CoreGradients gradients{at::empty_like(qkv[0]), at::empty_like(qkv[1]), at::empty_like(qkv[2])};
        bias.backward(shape, place, context, gradients, dout, qkv[0], qkv[1], qkv[2], result);
        EXPECT_LE((gradients.q - leaves[0].grad()).abs().max().item<double>(), 1e-12);
        EXPECT_LE((gradients.k - leaves[1].grad()).abs().max().item<double>(), 1e-12);
        EXPECT_LE((gradients.v - leaves[2].grad()).abs().max().item<double>(), 1e-12);
        EXPECT_LE((table.gradient - values.grad()).abs().max().item<double>(), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::nn
