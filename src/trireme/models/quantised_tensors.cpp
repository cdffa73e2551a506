#include "trireme/models/quantised_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/formats/format_error.h"

namespace trireme::models {
namespace {

using formats::Dtype;
using formats::FormatError;
using formats::HfTensor;
using kernels::QuantisedWeight;
using kernels::WeightFormat;

constexpr std::int64_t kCodesPerWord = 8;
/// AWQ's place of each of a word's eight outputs.
constexpr std::array<int, kCodesPerWord> kAwqOrder{0, 2, 4, 6, 1, 3, 5, 7};

[[noreturn]] void refuse_method(const formats::HfConfig& config, const std::string& what) {
  throw ConfigError(
      fmt::format("{}: quantization_config says {}, which is not read", config.source(), what),
      "read are gptq and awq with 4 bits, compressed-tensors with 8 bits and a scale a channel, and fp8 in "
      "blocks of 128 x 128");
}

std::int64_t group_of_config(const formats::HfConfig& config, const char* key) {
  const auto group = config.get_or<std::int64_t>(fmt::format("quantization_config.{}", key), 128);
  if (group == -1) return 0;
  if (group < 2) refuse_method(config, fmt::format("{} {}", key, group));
  return group;
}

/// compressed-tensors names sets of modules; the folders that are read have one.
QuantisedFormat compressed_format(const formats::HfConfig& config) {
  const auto format = config.get_or<std::string>("quantization_config.format", "");
  if (format != "int-quantized" && format != "float-quantized" && format != "naive-quantized")
    refuse_method(config, fmt::format("the format {}", formats::shown(format)));
  const auto& section = config.json()["quantization_config"];
  if (!section.contains("config_groups")) refuse_method(config, "no config_groups");
  const auto& groups = section["config_groups"];
  if (!groups.is_object() || groups.size() != 1) refuse_method(config, "several config_groups");
  const std::string first = fmt::format("quantization_config.config_groups.{}", groups.begin().key());
  const auto bits = config.get_or<std::int64_t>(first + ".weights.num_bits", 8);
  const auto type = config.get_or<std::string>(first + ".weights.type", "int");
  const auto strategy = config.get_or<std::string>(first + ".weights.strategy", "tensor");
  if (bits != 8 || strategy != "channel" || !config.get_or<bool>(first + ".weights.symmetric", true))
    refuse_method(config, fmt::format("weights of {} bits by {}", bits, formats::shown(strategy)));
  return {.layout = QuantisedLayout::kChannel, .format = type == "float" ? WeightFormat::kE4m3 : WeightFormat::kInt8};
}

std::string base_of(std::string_view name) {
  constexpr std::string_view kEnd = ".weight";
  return std::string(name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name);
}

std::string about(const HfTensor& tensor) {
  return fmt::format("{}: tensor {} is {}", tensor.file->path().string(), formats::shown(tensor.info->name),
                     formats::to_text(*tensor.info));
}

const HfTensor& part(const formats::HfDirectory& directory, const std::string& name,
                     const std::vector<std::int64_t>& shape, std::initializer_list<Dtype> types) {
  const HfTensor& found = directory.tensor(name);
  if (found.info->shape != shape || std::ranges::find(types, found.info->dtype) == types.end()) {
    throw FormatError(fmt::format("{}, but the matrix wants [{}] there", about(found), fmt::join(shape, ", ")));
  }
  return found;
}

at::ScalarType type_of_codes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI32:
      return at::kInt;
    case Dtype::kI8:
      return at::kChar;
    case Dtype::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

/// A copy: files need not align their tensors.
at::Tensor copied(const HfTensor& tensor) {
  at::Tensor out = at::empty(tensor.info->shape, type_of_codes(tensor.info->dtype));
  const auto bytes = tensor.bytes();
  TRIREME_CHECK(bytes.size() == static_cast<std::size_t>(out.nbytes()), "{}", about(tensor));
  std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  return out;
}

at::Tensor finite_floats(const HfTensor& tensor) {
  at::Tensor out = copied(tensor).to(at::kFloat);
  if (!at::all(at::isfinite(out)).item<bool>()) throw FormatError(about(tensor) + ", with scales that are NaN or Inf");
  return out;
}

/// int32 [a, b / 8] -> uint8 [a, b], each word's codes in the order that is given.
at::Tensor unpacked(const at::Tensor& words, const std::array<int, kCodesPerWord>& order) {
  at::Tensor out = at::empty({words.size(0), words.size(1) * kCodesPerWord}, at::kByte);
  const auto* from = words.const_data_ptr<std::int32_t>();
  auto* to = out.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < words.numel(); ++i, to += kCodesPerWord) {
    const auto word = static_cast<std::uint32_t>(from[i]);
    for (std::size_t at = 0; at < kCodesPerWord; ++at) {
      to[order[at]] = static_cast<std::uint8_t>((word >> (4 * at)) & 15U);
    }
  }
  return out;
}

constexpr std::array<int, kCodesPerWord> kInOrder{0, 1, 2, 3, 4, 5, 6, 7};

/// uint8 codes [rows, columns] -> two a byte, the even column's low.
at::Tensor paired(const at::Tensor& codes) {
  const at::Tensor pairs = codes.view({codes.size(0), codes.size(1) / 2, 2});
  return (pairs.select(2, 0) + pairs.select(2, 1) * 16).to(at::kByte).contiguous();
}

/// GPTQ's g_idx, where it is not 0, 0, .., 1, 1, ..
at::Tensor act_order(const formats::HfDirectory& directory, const std::string& base, std::int64_t columns,
                     std::int64_t group) {
  if (directory.find(base + ".g_idx") == nullptr) return {};
  const HfTensor& stored = part(directory, base + ".g_idx", {columns}, {Dtype::kI32});
  const at::Tensor groups = copied(stored).to(at::kLong);
  const auto* of = groups.const_data_ptr<std::int64_t>();
  bool in_order = true;
  for (std::int64_t column = 0; column < columns; ++column) {
    if (of[column] < 0 || of[column] >= columns / group)
      throw FormatError(fmt::format("{}, with group {} of {}", about(stored), of[column], columns / group));
    in_order &= of[column] == column / group;
  }
  return in_order ? at::Tensor() : groups;
}

StoredMatrix read_int4(const formats::HfDirectory& directory, const PublishedTensor& tensor,
                       const QuantisedFormat& format) {
  const std::string base = base_of(tensor.name);
  const std::int64_t rows = tensor.rows, columns = row_elements(*tensor.param);
  const std::int64_t group = format.group == 0 ? columns : format.group;
  if (columns % group != 0 || group % 2 != 0 || rows % kCodesPerWord != 0 || columns % kCodesPerWord != 0) {
    throw FormatError(fmt::format("{}: {} is [{}, {}], which groups of {} and words of eight codes do not divide",
                                  directory.path().string(), formats::shown(base), rows, columns, group));
  }
  const std::int64_t groups = columns / group;
  const bool gptq = format.layout == QuantisedLayout::kGptq;
  const auto shape = gptq ? std::vector{columns / kCodesPerWord, rows} : std::vector{columns, rows / kCodesPerWord};
  const at::Tensor words = copied(part(directory, base + ".qweight", shape, {Dtype::kI32}));
  StoredMatrix out{.weight = {.format = WeightFormat::kInt4, .rows = rows, .columns = columns, .group = group},
                   .group_of = {}};
  if (gptq) {  // a word is eight neighbouring inputs of one output, low ones first: our bytes, once rows are outputs
    out.weight.values = words.t().contiguous().view(at::kByte).view({rows, columns / 2});
    out.group_of = act_order(directory, base, columns, group);
  } else {
    out.weight.values = paired(unpacked(words, kAwqOrder).t().contiguous());
  }
  const auto packed_zeros = copied(part(directory, base + ".qzeros", {groups, rows / kCodesPerWord}, {Dtype::kI32}));
  at::Tensor zeros = unpacked(packed_zeros, gptq ? kInOrder : kAwqOrder);
  if (format.zeros_less_one) zeros = at::bitwise_and(zeros + 1, 15);
  out.weight.zeros = zeros.t().to(at::kFloat).contiguous();
  out.weight.scales =
      finite_floats(part(directory, base + ".scales", {groups, rows}, {Dtype::kF16, Dtype::kBF16, Dtype::kF32}))
          .t()
          .contiguous();
  return out;
}

StoredMatrix read_channel(const formats::HfDirectory& directory, const PublishedTensor& tensor,
                          const QuantisedFormat& format) {
  const std::int64_t rows = tensor.rows, columns = row_elements(*tensor.param);
  const Dtype type = format.format == WeightFormat::kE4m3 ? Dtype::kF8E4M3 : Dtype::kI8;
  const std::string scales = base_of(tensor.name) + ".weight_scale";
  return {
      .weight = {.format = format.format,
                 .rows = rows,
                 .columns = columns,
                 .group = columns,
                 .values = copied(part(directory, tensor.name, {rows, columns}, {type})),
                 .scales = finite_floats(part(directory, scales, {rows, 1}, {Dtype::kF16, Dtype::kBF16, Dtype::kF32}))},
      .group_of = {}};
}

}  // namespace

std::optional<QuantisedFormat> quantised_format(const formats::HfConfig& config) {
  if (!config.json().contains("quantization_config") || config.json()["quantization_config"].is_null())
    return std::nullopt;
  const auto text = [&](const char* key, const char* otherwise) {
    return config.get_or<std::string>(fmt::format("quantization_config.{}", key), otherwise);
  };
  const auto number = [&](const char* key, std::int64_t otherwise) {
    return config.get_or<std::int64_t>(fmt::format("quantization_config.{}", key), otherwise);
  };
  const std::string method = text("quant_method", "");
  if (method == "fp8") return std::nullopt;
  if (method == "compressed-tensors") return compressed_format(config);
  if (method == "gptq") {
    if (number("bits", 4) != 4) refuse_method(config, fmt::format("gptq of {} bits", number("bits", 4)));
    const std::string version = text("checkpoint_format", "gptq");
    if (version != "gptq" && version != "gptq_v2") refuse_method(config, "gptq as " + formats::shown(version));
    return QuantisedFormat{.layout = QuantisedLayout::kGptq,
                           .format = WeightFormat::kInt4,
                           .group = group_of_config(config, "group_size"),
                           .zeros_less_one = version == "gptq"};
  }
  if (method == "awq") {
    const auto bits = number("bits", number("w_bit", 4));
    std::string version = text("version", "gemm");
    std::ranges::transform(version, version.begin(), [](unsigned char c) { return std::tolower(c); });
    if (bits != 4 || version != "gemm")
      refuse_method(config, fmt::format("awq of {} bits as {}", bits, formats::shown(version)));
    const bool older = config.json()["quantization_config"].contains("q_group_size");
    return QuantisedFormat{.layout = QuantisedLayout::kAwq,
                           .format = WeightFormat::kInt4,
                           .group = group_of_config(config, older ? "q_group_size" : "group_size")};
  }
  refuse_method(config, fmt::format("quant_method {}", formats::shown(method)));
}

const HfTensor* find_codes(const formats::HfDirectory& directory, std::string_view name) {
  const std::string base = base_of(name);
  if (const HfTensor* words = directory.find(base + ".qweight")) return words;
  return directory.find(base + ".weight_scale") != nullptr ? directory.find(name) : nullptr;
}

bool is_part_of_codes(const formats::HfDirectory& directory, std::string_view name) {
  for (const std::string_view end : {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_scale"}) {
    if (name.ends_with(end))
      return find_codes(directory, std::string(name.substr(0, name.size() - end.size())) + ".weight") != nullptr;
  }
  return false;
}

StoredMatrix read_codes(const formats::HfDirectory& directory, const PublishedTensor& tensor) {
  const auto format = quantised_format(directory.config());
  if (!format) {
    throw FormatError(fmt::format("{} has {} quantised, but config.json has no quantization_config",
                                  directory.path().string(), formats::shown(tensor.name)));
  }
  return format->layout == QuantisedLayout::kChannel ? read_channel(directory, tensor, *format)
                                                     : read_int4(directory, tensor, *format);
}

at::Tensor dequantise(const StoredMatrix& matrix) {
  if (!matrix.group_of.defined()) return kernels::dequantise_weight(matrix.weight);
  const QuantisedWeight& of = matrix.weight;
  QuantisedWeight codes = of;  // each input a group of its own, whose scale and zero point are those of its group
  codes.group = 1;
  codes.scales = of.scales.index_select(1, matrix.group_of);
  codes.zeros = of.zeros.index_select(1, matrix.group_of);
  return kernels::dequantise_weight(codes);
}

std::optional<QuantisedWeight> read_quantised(const formats::HfDirectory& directory,
                                              std::span<const PublishedTensor* const> parts) {
  std::vector<at::Tensor> values, scales, zeros;
  QuantisedWeight out;
  for (const PublishedTensor* tensor : parts) {
    if (find_codes(directory, tensor->name) == nullptr) return std::nullopt;
    const StoredMatrix matrix = read_codes(directory, *tensor);
    if (matrix.group_of.defined()) return std::nullopt;
    out.format = matrix.weight.format, out.columns = matrix.weight.columns, out.group = matrix.weight.group;
    out.rows += matrix.weight.rows;
    values.push_back(matrix.weight.values);
    scales.push_back(matrix.weight.scales);
    if (matrix.weight.zeros.defined()) zeros.push_back(matrix.weight.zeros);
  }
  if (values.empty()) return std::nullopt;
  const auto joined = [](const std::vector<at::Tensor>& of) { return of.size() == 1 ? of[0] : at::cat(of); };
  out.values = joined(values);
  out.scales = joined(scales);
  if (!zeros.empty()) out.zeros = joined(zeros);
  return out;
}

QuantisedWeight part_of(const QuantisedWeight& whole, const layout::Placement& placement) {
  std::vector<std::int64_t> rows;
  std::int64_t first = 0, count = 0;
  for (const layout::ContiguousRun& run : layout::runs(placement)) {
    const std::int64_t from = run.global % whole.columns;
    const bool several = run.count > whole.columns;
    TRIREME_CHECK(!several || (from == 0 && run.count % whole.columns == 0), "{} is cut within rows", placement.name);
    first = from;
    count = std::min(run.count, whole.columns);
    for (std::int64_t at = run.global; at < run.global + run.count; at += count) rows.push_back(at / whole.columns);
  }
  if (first == 0 && count == whole.columns && static_cast<std::int64_t>(rows.size()) == whole.rows) return whole;
  const bool grouped = whole.format == WeightFormat::kInt4;
  const bool by_group = grouped && whole.group < whole.columns;
  const std::int64_t grain = by_group ? whole.group : grouped ? 2 : 1;
  if (first % grain != 0 || count % grain != 0) {
    throw ConfigError(fmt::format("{}: a rank's {} inputs from {} on are no whole groups of {}", placement.name, count,
                                  first, whole.group),
                      "use fewer ranks, or quantise with smaller groups");
  }
  const at::Tensor index = at::tensor(rows, at::kLong);
  const auto cut = [&](const at::Tensor& of, std::int64_t per) {
    return of.index_select(0, index).narrow(1, first / per, count / per).contiguous();
  };
  QuantisedWeight out = whole;
  out.rows = static_cast<std::int64_t>(rows.size());
  out.columns = count;
  out.values = cut(whole.values, grouped ? 2 : 1);
  out.group = by_group ? whole.group : count;
  out.scales = by_group ? cut(whole.scales, whole.group) : whole.scales.index_select(0, index);
  if (whole.zeros.defined()) out.zeros = by_group ? cut(whole.zeros, whole.group) : whole.zeros.index_select(0, index);
  return out;
}

bool is_quantisable(const nn::Param& param) {
  const std::string_view name = param.name;
  constexpr std::array<std::string_view, 4> kEnds{".attention.qkv.weight", ".attention.out.weight", ".mlp.in.weight",
                                                  ".mlp.out.weight"};
  return name.starts_with("layers.") && param.placement.shape.size() == 2 &&
         std::ranges::any_of(kEnds, [&](auto end) { return name.ends_with(end); });
}

}  // namespace trireme::models
