// models/matrix_codec.h -- how save_published() writes matrices in fewer bits, as quantised_tensors.h reads them.
//
// Rounds to nearest. int8 and FP8: a scale a row. int4: a scale and a zero point for each group of inputs, in GPTQ's
// layout or AWQ's, whose scales are F16: weights are rounded with the scale that is written, so that what is read is
// what was meant.
// Depends on: base, formats, kernels, quantised_tensors.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/models/quantised_tensors.h"

namespace trireme::models {

class MatrixCodec {
 public:
  virtual ~MatrixCodec() = default;
  /// config.json's quantization_config, as JSON.
  virtual std::string config() const = 0;
  /// What stands for NAME.weight of [rows, columns]. ConfigError naming it where it cannot be.
  virtual std::vector<formats::TensorSpec> specs(const std::string& name, std::int64_t rows,
                                                 std::int64_t columns) const = 0;
  /// The tensors of specs(), by their order, of a matrix [rows, columns] whose rows are outputs.
  virtual std::vector<at::Tensor> encode(const at::Tensor& matrix) const = 0;
};

struct CodecOptions {
  kernels::WeightFormat format = kernels::WeightFormat::kInt8;
  std::int64_t group = 128;                         ///< int4
  bool symmetric = false;                           ///< int4: zero points are 8
  QuantisedLayout layout = QuantisedLayout::kGptq;  ///< int4: GPTQ's or AWQ's
};
std::unique_ptr<MatrixCodec> make_codec(const CodecOptions& options);

// Matrices as DeepSeek-V3 publishes them: codes of 8 bits (e4m3) and a scale for each 128 x 128. A scale is the block's
// largest magnitude over the largest code, 448, and 1 for a block of zeros; a value is its code times the scale, which
// is what the file calls weight_scale_inv.

inline constexpr std::int64_t kFp8Block = 128;
inline constexpr std::int64_t fp8_blocks(std::int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

struct Fp8Blocks {
  at::Tensor codes;   ///< float8_e4m3fn [rows, columns]
  at::Tensor scales;  ///< float [blocks down, blocks across]
};
/// To the nearest code, ties to even. A NaN or Inf is an error of whoever has it: FormatError.
Fp8Blocks to_fp8_blocks(const at::Tensor& matrix);

}  // namespace trireme::models
