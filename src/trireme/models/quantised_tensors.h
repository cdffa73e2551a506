// models/quantised_tensors.h -- matrices that published folders keep in fewer bits: GPTQ, AWQ, and a scale a row.
//
// Which of them a folder has, config.json says under quantization_config:
//   gptq                NAME.qweight int32 [in / 8, out], qzeros [groups, out / 8], scales [groups, out], perhaps g_idx
//   awq (gemm)          NAME.qweight int32 [in, out / 8], qzeros [groups, out / 8], scales [groups, out]
//   compressed-tensors  NAME.weight int8 or e4m3 [out, in] and NAME.weight_scale [out, 1]
// int4 is eight numbers a word; GPTQ's older files hold each zero point less one. FP8 in blocks of 128 x 128 is
// published.h's. Rows here are outputs, whichever way the family publishes its other matrices.
// Depends on: base, formats, kernels, layout, published.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "trireme/kernels/quantised_weight.h"
#include "trireme/models/published.h"

namespace trireme::models {

enum class QuantisedLayout : std::uint8_t { kGptq, kAwq, kChannel };

struct QuantisedFormat {
  QuantisedLayout layout = QuantisedLayout::kChannel;
  kernels::WeightFormat format = kernels::WeightFormat::kInt8;
  std::int64_t group = 0;       ///< int4: inputs that share a scale; 0: a whole row
  bool zeros_less_one = false;  ///< GPTQ's first version
};
/// None where the folder's matrices are plain, or FP8 in blocks. ConfigError for whatever else it says.
std::optional<QuantisedFormat> quantised_format(const formats::HfConfig& config);

/// The codes of this published matrix, NAME.weight; null: it is not in fewer bits.
const formats::HfTensor* find_codes(const formats::HfDirectory& directory, std::string_view name);
/// Whether a tensor of the folder is a part of some matrix that find_codes() knows.
bool is_part_of_codes(const formats::HfDirectory& directory, std::string_view name);

struct StoredMatrix {
  kernels::QuantisedWeight weight;
  at::Tensor group_of;  ///< int64 [in]: each input's group, where neighbours do not share them (GPTQ's act-order)
};
/// FormatError where parts are missing, or have other types or shapes than the matrix wants.
StoredMatrix read_codes(const formats::HfDirectory& directory, const PublishedTensor& tensor);
/// Float [rows, columns].
at::Tensor dequantise(const StoredMatrix& matrix);

/// A parameter's matrix from the published ones it is made of, by ascending rows; nothing where not all of them are in
/// fewer bits, or their groups are not neighbours.
std::optional<kernels::QuantisedWeight> read_quantised(const formats::HfDirectory& directory,
                                                       std::span<const PublishedTensor* const> parts);
/// This rank's rows and columns of a matrix. ConfigError where a cut goes through a group of int4.
kernels::QuantisedWeight part_of(const kernels::QuantisedWeight& whole, const layout::Placement& placement);

/// The matrices that are kept in fewer bits: of attention and MLPs, nearly all of a dense model. Embeddings, the head,
/// norms, routers, experts and what latent attention absorbs stay as they are.
bool is_quantisable(const nn::Param& param);

}  // namespace trireme::models
