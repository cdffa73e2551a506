// models/matrix_codec.h -- how save_published() writes matrices in fewer bits, as quantised_tensors.h reads them.
//
// Rounds to nearest. int8 and FP8: a scale a row. int4: a scale and a zero point for each group of inputs, in GPTQ's
// layout or AWQ's, whose scales are F16: weights are rounded with the scale that is written, so that what is read is
// what was meant.
// Depends on: base, formats, kernels, quantised_tensors.h.
#pragma once

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

}  // namespace trireme::models
