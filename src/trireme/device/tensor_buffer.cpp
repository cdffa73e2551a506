#include "trireme/device/tensor_buffer.h"

#include <ATen/core/Tensor.h>

#include <string_view>

#include "trireme/base/error.h"

namespace trireme::device {
namespace {

struct TypePair {
  comm::DType comm;
  c10::ScalarType torch;
};
constexpr TypePair kTypes[] = {
    {comm::DType::kF32, c10::ScalarType::Float}, {comm::DType::kF64, c10::ScalarType::Double},
    {comm::DType::kF16, c10::ScalarType::Half},  {comm::DType::kBF16, c10::ScalarType::BFloat16},
    {comm::DType::kI32, c10::ScalarType::Int},   {comm::DType::kI64, c10::ScalarType::Long},
    {comm::DType::kU8, c10::ScalarType::Byte},
};

void check_contiguous(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw ConfigError("an undefined tensor was given to a communication call", "give it a tensor that holds data");
  }
  if (!tensor.has_storage() || tensor.layout() != c10::Layout::Strided) {
    throw ConfigError("a tensor without plain memory (sparse, or of a backend of its own) cannot be communicated",
                      "turn it into a dense tensor first");
  }
  if (!tensor.is_contiguous()) {
    throw ConfigError(fmt::format("a tensor of shape [{}] with strides [{}] is not contiguous, so its elements are no "
                                  "single run of memory",
                                  fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")),
                      "communicate tensor.contiguous(), and copy the result back if the call writes");
  }
}

}  // namespace

comm::DType to_dtype(c10::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.comm;
  }
  throw ConfigError(fmt::format("tensors of type {} cannot be communicated", c10::toString(type)),
                    "convert to float, double, half, bfloat16, int, long or byte");
}

c10::ScalarType to_scalar_type(comm::DType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.comm == type) return pair.torch;
  }
  TRIREME_CHECK(false, "element type {} has no tensor type", static_cast<int>(type));
  return c10::ScalarType::Undefined;
}

comm::Device to_comm_device(c10::Device device) {
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {comm::DeviceKind::kCuda, device.has_index() ? device.index() : 0};
  throw ConfigError(fmt::format("a tensor on {} cannot be communicated", device.str()), "move it to cpu or cuda");
}

c10::Device to_torch_device(comm::Device device) {
  if (device.kind == comm::DeviceKind::kCpu) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
}

comm::Buffer to_buffer(at::Tensor& tensor) {
  check_contiguous(tensor);
  return {tensor.mutable_data_ptr(), static_cast<std::size_t>(tensor.numel()), to_dtype(tensor.scalar_type()),
          to_comm_device(tensor.device())};
}

comm::ConstBuffer to_const_buffer(const at::Tensor& tensor) {
  check_contiguous(tensor);
  return {tensor.const_data_ptr(), static_cast<std::size_t>(tensor.numel()), to_dtype(tensor.scalar_type()),
          to_comm_device(tensor.device())};
}

}  // namespace trireme::device
