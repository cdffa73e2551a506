// formats/onnx.h -- ONNX files: nodes, shapes and attributes of a model; of its weights the shapes only.
//
//   OnnxModel model = read_onnx(file.text(), "net.onnx");
//
// Read with a reader of our own for the messages of onnx.proto3 (IR version 3 to 13). Numbers of weights are left where
// they are, in the file or beside it (external data); those of small integer tensors, which are shapes and indices, are
// read.
// Depends on: protobuf_reader.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/format_error.h"

namespace trireme::formats {

enum class OnnxType : std::uint8_t {
  kNone = 0,
  kFloat = 1,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kBfloat16 = 16,
  kOther = 255
};

struct OnnxTensor {
  std::string name;
  OnnxType type = OnnxType::kNone;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> integers;  ///< of a tensor of int32 or int64 with at most 64 elements
  std::vector<float> reals;            ///< of a tensor of fp32 with one element
};

struct OnnxAttribute {
  std::int64_t integer = 0;
  float real = 0;
  std::string text;
  std::vector<std::int64_t> integers;
  std::vector<float> reals;
  std::vector<OnnxTensor> tensors;  ///< of a tensor: one
  bool has_graph = false;
};

struct OnnxNode {
  std::string name, type, domain;
  std::vector<std::string> inputs, outputs;  ///< "" where an optional one is left out
  std::map<std::string, OnnxAttribute, std::less<>> attributes;

  const OnnxAttribute* attribute(std::string_view name) const;
};

struct OnnxDim {
  std::int64_t size = -1;  ///< -1: a name stands in its place, or nothing
  std::string name;
};

struct OnnxValue {
  std::string name;
  OnnxType type = OnnxType::kNone;
  bool has_shape = false;
  std::vector<OnnxDim> dims;
};

struct OnnxModel {
  std::int64_t ir_version = 0, opset = 0;  ///< opset: of the domain "" or "ai.onnx"
  std::string producer, graph;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValue> inputs, outputs, values;  ///< values: shapes of what is between them, where they are given
};

/// FormatError with `source` and the byte, or with the name of the node or tensor.
OnnxModel read_onnx(std::string_view bytes, const std::string& source);

}  // namespace trireme::formats
