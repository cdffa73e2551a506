#include "trireme/formats/onnx.h"

#include <fmt/format.h>

#include <cstring>

#include "trireme/formats/protobuf_reader.h"

namespace trireme::formats {
namespace {

constexpr std::size_t kMostOnnxIntegers = 64;

OnnxType onnx_type(std::int64_t number) {
  switch (number) {
    case 0:
    case 1:
    case 6:
    case 7:
    case 9:
    case 10:
    case 11:
    case 16:
      return static_cast<OnnxType>(number);
    default:
      return OnnxType::kOther;
  }
}

/// Elements of little-endian bytes.
template <typename Element>
std::vector<Element> little_endian(std::string_view bytes) {
  std::vector<Element> elements(bytes.size() / sizeof(Element));
  if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(Element));
  return elements;
}

OnnxTensor onnx_tensor(ProtobufReader in) {
  OnnxTensor tensor;
  std::string_view raw;
  std::vector<std::int64_t> integers;
  std::vector<float> reals;
  while (in.next()) {
    switch (in.field()) {
      case 1:
        in.append_integers(tensor.dims);
        break;
      case 2:
        tensor.type = onnx_type(in.integer());
        break;
      case 4:
        in.append_reals(reals);
        break;
      case 5:
      case 7:
        in.append_integers(integers);
        break;
      case 8:
        tensor.name = in.text();
        break;
      case 9:
        raw = in.text();
        break;
      default:
        break;
    }
  }
  double elements = 1;
  for (const std::int64_t dim : tensor.dims) {
    if (dim < 0) in.fail(fmt::format("tensor {} has a dimension of {}", shown(tensor.name), dim));
    elements *= static_cast<double>(dim);
  }
  if ((tensor.type == OnnxType::kInt64 || tensor.type == OnnxType::kInt32) && elements <= kMostOnnxIntegers) {
    if (tensor.type == OnnxType::kInt64 && !raw.empty()) integers = little_endian<std::int64_t>(raw);
    if (tensor.type == OnnxType::kInt32 && !raw.empty()) {
      const auto narrow = little_endian<std::int32_t>(raw);
      integers.assign(narrow.begin(), narrow.end());
    }
    if (static_cast<double>(integers.size()) != elements)
      in.fail(fmt::format("tensor {} has {} elements and {} values", shown(tensor.name), elements, integers.size()));
    tensor.integers = std::move(integers);
  }
  if (tensor.type == OnnxType::kFloat && elements == 1) tensor.reals = raw.empty() ? reals : little_endian<float>(raw);
  return tensor;
}

std::pair<std::string, OnnxAttribute> onnx_attribute(ProtobufReader in) {
  std::string name;
  OnnxAttribute attribute;
  while (in.next()) {
    switch (in.field()) {
      case 1:
        name = in.text();
        break;
      case 2:
        attribute.real = in.real();
        break;
      case 3:
        attribute.integer = in.integer();
        break;
      case 4:
        attribute.text = in.text();
        break;
      case 5:
      case 10:
        attribute.tensors.push_back(onnx_tensor(in.message()));
        break;
      case 6:
      case 11:
        attribute.has_graph = true;
        break;
      case 7:
        in.append_reals(attribute.reals);
        break;
      case 8:
        in.append_integers(attribute.integers);
        break;
      default:
        break;
    }
  }
  return {std::move(name), std::move(attribute)};
}

OnnxNode onnx_node(ProtobufReader in) {
  OnnxNode node;
  while (in.next()) {
    switch (in.field()) {
      case 1:
        node.inputs.emplace_back(in.text());
        break;
      case 2:
        node.outputs.emplace_back(in.text());
        break;
      case 3:
        node.name = in.text();
        break;
      case 4:
        node.type = in.text();
        break;
      case 5:
        node.attributes.insert(onnx_attribute(in.message()));
        break;
      case 7:
        node.domain = in.text();
        break;
      default:
        break;
    }
  }
  if (node.name.empty() && !node.outputs.empty()) node.name = node.outputs[0];
  return node;
}

OnnxDim onnx_dim(ProtobufReader in) {
  OnnxDim dim;
  while (in.next()) {
    if (in.field() == 1) dim.size = in.integer();
    if (in.field() == 2) dim.name = in.text();
  }
  return dim;
}

OnnxValue onnx_value(ProtobufReader in) {
  OnnxValue value;
  while (in.next()) {
    if (in.field() == 1) value.name = in.text();
    if (in.field() != 2) continue;
    ProtobufReader type = in.message();
    while (type.next()) {
      if (type.field() != 1) continue;  // sequences, maps and optional ones: no tensors
      ProtobufReader tensor = type.message();
      while (tensor.next()) {
        if (tensor.field() == 1) value.type = onnx_type(tensor.integer());
        if (tensor.field() != 2) continue;
        value.has_shape = true;
        ProtobufReader shape = tensor.message();
        while (shape.next()) {
          if (shape.field() == 1) value.dims.push_back(onnx_dim(shape.message()));
        }
      }
    }
  }
  return value;
}

void onnx_graph(ProtobufReader in, OnnxModel& model) {
  while (in.next()) {
    switch (in.field()) {
      case 1:
        model.nodes.push_back(onnx_node(in.message()));
        break;
      case 2:
        model.graph = in.text();
        break;
      case 5:
        model.initializers.push_back(onnx_tensor(in.message()));
        break;
      case 11:
        model.inputs.push_back(onnx_value(in.message()));
        break;
      case 12:
        model.outputs.push_back(onnx_value(in.message()));
        break;
      case 13:
        model.values.push_back(onnx_value(in.message()));
        break;
      default:
        break;
    }
  }
}

}  // namespace

const OnnxAttribute* OnnxNode::attribute(std::string_view wanted) const {
  const auto found = attributes.find(wanted);
  return found == attributes.end() ? nullptr : &found->second;
}

OnnxModel read_onnx(std::string_view bytes, const std::string& source) {
  OnnxModel model;
  bool has_graph = false;
  ProtobufReader in(bytes, source);
  while (in.next()) {
    if (in.field() == 1) model.ir_version = in.integer();
    if (in.field() == 2) model.producer = in.text();
    if (in.field() == 7) {
      if (has_graph) in.fail("the model has a second graph");
      has_graph = true;
      onnx_graph(in.message(), model);
    }
    if (in.field() == 8) {
      ProtobufReader opset = in.message();
      std::string domain;
      std::int64_t version = 0;
      while (opset.next()) {
        if (opset.field() == 1) domain = opset.text();
        if (opset.field() == 2) version = opset.integer();
      }
      if (domain.empty() || domain == "ai.onnx") model.opset = version;
    }
  }
  if (!has_graph || model.nodes.empty())
    throw FormatError(source + ": this is no ONNX model: it has no graph with nodes", "take a file that ends in .onnx");
  return model;
}

}  // namespace trireme::formats
