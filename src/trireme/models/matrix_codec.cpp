#include "trireme/models/matrix_codec.h"
#include "trireme/formats/format_error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/max.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::models {
namespace {

using formats::Dtype;
using formats::TensorSpec;
using kernels::QuantisedWeight;
using kernels::WeightFormat;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kPerWord = 8;
using WordOrder = std::array<int, kPerWord>;
constexpr WordOrder kGptqOrder{0, 1, 2, 3, 4, 5, 6, 7}, kAwqWordOrder{0, 2, 4, 6, 1, 3, 5, 7};

std::string base_name(const std::string& name) {
  constexpr std::string_view kEnd = ".weight";
  TRIREME_CHECK(name.ends_with(kEnd), "{} is no matrix", name);
  return name.substr(0, name.size() - kEnd.size());
}

/// One scale an output: compressed-tensors' int-quantized and float-quantized.
class ChannelCodec final : public MatrixCodec {
 public:
  explicit ChannelCodec(WeightFormat format) : format_(format) {}

  std::string config() const override {
    const bool floats = format_ == WeightFormat::kE4m3;
    const Json weights{{"num_bits", 8},
                       {"type", floats ? "float" : "int"},
                       {"symmetric", true},
                       {"strategy", "channel"},
                       {"dynamic", false}};
    return Json{{"quant_method", "compressed-tensors"},
                {"format", floats ? "float-quantized" : "int-quantized"},
                {"quantization_status", "compressed"},
                {"config_groups",
                 {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}}}}},
                {"ignore", {"lm_head"}}}
        .dump();
  }
  std::vector<TensorSpec> specs(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    const Dtype codes = format_ == WeightFormat::kE4m3 ? Dtype::kF8E4M3 : Dtype::kI8;
    return {{.name = name, .dtype = codes, .shape = {rows, columns}},
            {.name = name + "_scale", .dtype = Dtype::kF32, .shape = {rows, 1}}};
  }
  std::vector<at::Tensor> encode(const at::Tensor& matrix) const override {
    const QuantisedWeight of = kernels::quantise_weight(matrix, {.format = format_});
    return {of.values, of.scales};
  }

 private:
  WeightFormat format_;
};

/// uint8 [a, b] -> int32 [a, b / 8], each word's codes at the places that `order` says.
at::Tensor packed(const at::Tensor& codes, const WordOrder& order) {
  at::Tensor out = at::empty({codes.size(0), codes.size(1) / kPerWord}, at::kInt);
  const at::Tensor here = codes.contiguous();
  const auto* from = here.const_data_ptr<std::uint8_t>();
  auto* to = out.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < out.numel(); ++i, from += kPerWord) {
    std::uint32_t word = 0;
    for (std::size_t at = 0; at < kPerWord; ++at) word |= std::uint32_t{from[order[at]]} << (4 * at);
    to[i] = static_cast<std::int32_t>(word);
  }
  return out;
}

class Int4Codec final : public MatrixCodec {
 public:
  explicit Int4Codec(CodecOptions options) : options_(options) {}

  std::string config() const override {
    if (gptq()) {
      return Json{{"quant_method", "gptq"},    {"bits", 4},         {"group_size", options_.group},
                  {"sym", options_.symmetric}, {"desc_act", false}, {"checkpoint_format", "gptq"}}
          .dump();
    }
    return Json{
        {"quant_method", "awq"}, {"bits", 4}, {"group_size", options_.group}, {"zero_point", true}, {"version", "gemm"}}
        .dump();
  }
  std::vector<TensorSpec> specs(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    const std::string base = base_name(name);
    if (options_.group < kPerWord || options_.group % kPerWord != 0 || columns % options_.group != 0 ||
        rows % kPerWord != 0) {
      throw ConfigError(fmt::format("{} is [{}, {}]: {} outputs are no whole words of eight, or {} inputs no groups of "
                                    "{}",
                                    name, rows, columns, rows, columns, options_.group),
                        "give a --group-size that is a multiple of 8 and divides the inputs, or use int8");
    }
    const std::int64_t groups = columns / options_.group;
    std::vector<TensorSpec> out{
        {.name = base + ".qweight",
         .dtype = Dtype::kI32,
         .shape = gptq() ? std::vector{columns / kPerWord, rows} : std::vector{columns, rows / kPerWord}},
        {.name = base + ".qzeros", .dtype = Dtype::kI32, .shape = {groups, rows / kPerWord}},
        {.name = base + ".scales", .dtype = Dtype::kF16, .shape = {groups, rows}}};
    if (gptq()) out.push_back({.name = base + ".g_idx", .dtype = Dtype::kI32, .shape = {columns}});
    return out;
  }
  std::vector<at::Tensor> encode(const at::Tensor& matrix) const override {
    const QuantisedWeight of = kernels::quantise_weight(
        matrix, {.format = WeightFormat::kInt4, .group = options_.group, .symmetric = options_.symmetric});
    const std::int64_t rows = of.rows, columns = of.columns;
    const at::Tensor zeros = of.zeros.t().to(at::kByte).contiguous();  // [groups, rows]
    const at::Tensor scales = of.scales.t().to(at::kHalf).contiguous();
    if (gptq()) {
      // Two codes a byte, low ones first, are GPTQ's words of one output already.
      const at::Tensor words = of.values.view({rows, columns / kPerWord, 4}).view(at::kInt).squeeze(2).t().contiguous();
      const at::Tensor groups = at::floor_divide(at::arange(columns, at::kLong), options_.group).to(at::kInt);
      return {words, packed(at::bitwise_and(zeros + 15, 15), kGptqOrder), scales, groups};  // less one, around
    }
    at::Tensor codes = at::empty({rows, columns / 2, 2}, at::kByte);
    codes.select(2, 0).copy_(at::bitwise_and(of.values, 15));
    codes.select(2, 1).copy_(of.values.__rshift__(4));
    return {packed(codes.view({rows, columns}).t(), kAwqWordOrder), packed(zeros, kAwqWordOrder), scales};
  }

 private:
  bool gptq() const { return options_.layout == QuantisedLayout::kGptq; }
  CodecOptions options_;
};

}  // namespace

std::unique_ptr<MatrixCodec> make_codec(const CodecOptions& options) {
  if (options.format == WeightFormat::kInt4) return std::make_unique<Int4Codec>(options);
  return std::make_unique<ChannelCodec>(options.format);
}

Fp8Blocks to_fp8_blocks(const at::Tensor& matrix) {
  constexpr float kLargest = 448;
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor values = matrix.to(at::kFloat);
  Fp8Blocks out{.codes = at::empty({rows, columns}, at::kFloat8_e4m3fn),
                .scales = at::empty({fp8_blocks(rows), fp8_blocks(columns)}, at::kFloat)};
  auto* scale = out.scales.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < rows; row += kFp8Block) {
    for (std::int64_t column = 0; column < columns; column += kFp8Block) {
      const auto block = [&](const at::Tensor& of) {
        return of.narrow(0, row, std::min(kFp8Block, rows - row))
            .narrow(1, column, std::min(kFp8Block, columns - column));
      };
      const float largest = at::max(at::abs(block(values))).item<float>();
      if (!std::isfinite(largest)) throw formats::FormatError("a matrix with NaN or Inf has no FP8 form");
      *scale = largest > 0 ? largest / kLargest : 1;
      block(out.codes).copy_((block(values) / *scale).clamp(-kLargest, kLargest).to(at::kFloat8_e4m3fn));
      ++scale;
    }
  }
  return out;
}

}  // namespace trireme::models
