// A KV cache's numbers in FP8, and attention that reads the codes.
#include "trireme/kernels/kv_codes.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tests/kernels/support.h"
#include "trireme/kernels/fp8_codes.h"
#include "trireme/kernels/paged_attention.h"

namespace trireme::kernels {
namespace {

TEST(KvCodes, NoNumberIsFurtherThanASixteenthOfItself) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const std::int64_t part : {1, 8, 24}) {
      const at::Tensor x = normal_tensor({7, 3, 24}, type, "x") * 5;
      const KvCodes made = to_kv_codes(x, part);
      EXPECT_EQ(made.codes.scalar_type(), at::kByte);
      EXPECT_EQ(made.scales.sizes(), at::IntArrayRef({7, 3, 24 / part}));
      const at::Tensor exact = x.to(at::kFloat), back = from_kv_codes(made, at::kFloat);
      const at::Tensor scales = made.scales.unsqueeze(3).expand({7, 3, 24 / part, part}).reshape({7, 3, 24});
      const at::Tensor bound = at::maximum(exact.abs() / 16, scales / 1024) * 1.0001;
      EXPECT_TRUE(((back - exact).abs() <= bound).all().item<bool>()) << part;
      // The codes are those of fp8_codes.h, which a GPU has as well.
      const at::Tensor quotients = (exact / scales).contiguous(), codes = made.codes.contiguous();
      for (std::int64_t i = 0; i < codes.numel(); ++i) {
        EXPECT_EQ(codes.const_data_ptr<std::uint8_t>()[i],
                  encode_fp8(quotients.const_data_ptr<float>()[i], Fp8Format::kE4m3));
      }
      // The largest of a part comes back as it was, but for the scale's own rounding.
      if (part == 1) {
        EXPECT_LE(((back - exact).abs() / exact.abs()).max().item<float>(), 1e-6F);
      }
    }
  }
}

TEST(KvCodes, ZerosStayAndNoNumbersStayNone) {
  const KvCodes zeros = to_kv_codes(at::zeros({2, 1, 16}), 16);
  EXPECT_EQ(from_kv_codes(zeros, at::kFloat).abs().max().item<float>(), 0);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    at::Tensor x = at::ones({2, 1, 16});
    x[1][0][3] = bad;
    const at::Tensor back = from_kv_codes(to_kv_codes(x, 16), at::kFloat);
    EXPECT_TRUE(at::allclose(back[0], x[0]));
    EXPECT_TRUE(back[1].isnan().any().item<bool>()) << bad;
  }
}

/// Codes in blocks against their numbers in blocks: the same loop once they are floats, so the same bits.
TEST(KvCodes, AttentionReadsThemWhereTheyLie) {
  struct Shape {
    std::int64_t heads, kv_heads, size, part, window;
  };
  for (const InstructionSet set :
       {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4, InstructionSet::kV4Bf16}) {
    if (set > machine_instruction_set()) continue;
    const UseInstructionSet use(set);
    for (const Shape& shape :
         std::vector<Shape>{{4, 4, 24, 24, 0}, {8, 2, 64, 64, 0}, {6, 1, 36, 4, 0}, {4, 2, 33, 33, 9}}) {
      for (const auto type : {at::kFloat, at::kDouble}) {
        const auto draw = [&](const char* what) {
          return normal_tensor({5, 16, shape.kv_heads, shape.size}, type, what);
        };
        const KvCodes keys = to_kv_codes(draw("k"), shape.part), values = to_kv_codes(draw("v"), shape.part);
        const std::vector<std::int32_t> first{3, 0, 4}, second{1};
        const std::vector<PagedSequence> sequences{{0, 5, 37, first}, {5, 2, 3, second}};
        const at::Tensor q = normal_tensor({7, shape.heads, shape.size}, type, "q");
        at::Tensor out = at::empty_like(q), expected = at::empty_like(q);
        paged_attention(expected, q, from_kv_codes(keys, type), from_kv_codes(values, type), sequences,
                        {.scale = 0.3, .window = shape.window});
        paged_attention(out, q, keys.codes, values.codes, sequences,
                        {.scale = 0.3,
                         .window = shape.window,
                         .key_scales = keys.scales.contiguous(),
                         .value_scales = values.scales.contiguous()});
        if (type == at::kFloat) {
          EXPECT_TRUE(at::equal(out, expected)) << to_string(set) << " " << shape.size;
        } else {
          EXPECT_LE((out - expected).abs().max().item<double>(), 1e-6);  // scales are floats
        }
      }
    }
  }
}

TEST(KvCodes, AttentionRefusesCodesWithoutTheirScales) {
  const KvCodes keys = to_kv_codes(normal_tensor({2, 16, 1, 8}, at::kFloat, "k"), 8);
  const std::vector<std::int32_t> table{0};
  const std::vector<PagedSequence> sequences{{0, 1, 3, table}};
  const at::Tensor q = normal_tensor({1, 1, 8}, at::kFloat, "q");
  at::Tensor out = at::empty_like(q);
  EXPECT_ANY_THROW(paged_attention(out, q, keys.codes, keys.codes, sequences, {}));
  EXPECT_ANY_THROW(paged_attention(out, q, keys.codes, keys.codes, sequences,
                                   {.key_scales = keys.scales, .value_scales = keys.scales.narrow(0, 0, 1)}));
}

}  // namespace
}  // namespace trireme::kernels
