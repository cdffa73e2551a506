#include "trireme/kernels/arguments.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

std::string_view name_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "float";
    case c10::ScalarType::Double:
      return "double";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "half";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    default:
      return c10::toString(type);
  }
}

}  // namespace

std::string_view to_string(Element element) {
  constexpr std::string_view kNames[kElements] = {"float", "double", "bfloat16", "half"};
  return kNames[static_cast<int>(element)];
}

std::string describe(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) return fmt::format("{} (undefined)", name);
  return fmt::format("{}, {} [{}]", name, name_of(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void Arguments::refuse(std::string why, std::string hint) const {
  throw ConfigError(fmt::format("{}: {}", operation_, why), std::move(hint));
}

void Arguments::check_here(const at::Tensor& tensor, std::string_view name) const {
  if (!tensor.defined()) refuse(fmt::format("{} is undefined, but must hold data", name));
  const c10::Device device = tensor.device();
  if (!device.is_cpu() && !device.is_cuda()) {
    refuse(fmt::format("{} is on {}, but this operator has bodies for the CPU and for CUDA only",
                       describe(tensor, name), device.str()));
  }
  const int gpu = device.is_cpu() ? -1 : device.index();
  if (gpu_ == -2) gpu_ = gpu;
  if (gpu_ != gpu) {
    refuse(fmt::format("{} is on {}, but tensors before it are {}", describe(tensor, name), device.str(),
                       gpu_ < 0 ? std::string("on the CPU") : fmt::format("on GPU {}", gpu_)),
           "move them to one device");
  }
  if (tensor.layout() != c10::Layout::Strided) {
    refuse(fmt::format("{} is sparse or has a layout of its own", describe(tensor, name)), "give a dense tensor");
  }
}

Element Arguments::element(const at::Tensor& tensor, std::string_view name) const {
  check_here(tensor, name);
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return Element::kFloat;
    case c10::ScalarType::Double:
      return Element::kDouble;
    case c10::ScalarType::BFloat16:
      return Element::kBfloat16;
    case c10::ScalarType::Half:
      return Element::kHalf;
    default:
      refuse(fmt::format("{} must be float, double, bfloat16 or half", describe(tensor, name)));
  }
}

Rows Arguments::rows(const at::Tensor& tensor, std::string_view name) const {
  Rows result;
  result.element = element(tensor, name);
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const std::int64_t dims = tensor.dim();
  if (dims == 0) refuse(fmt::format("{} is a single number, but rows are needed", describe(tensor, name)));
  result.width = sizes[dims - 1];
  result.rows = 1;
  result.stride = result.width;
  bool even = result.width <= 1 || strides[dims - 1] == 1;
  // Walking outwards, every dimension must step over exactly what is inside it.
  bool first = true;
  std::int64_t covered = 0;
  for (std::int64_t d = dims - 2; d >= 0; --d) {
    if (sizes[d] != 1) {
      if (first) {
        result.stride = strides[d];
        covered = strides[d] * sizes[d];
        first = false;
      } else {
        even = even && strides[d] == covered;
        covered = strides[d] * sizes[d];
      }
    }
    result.rows *= sizes[d];
  }
  if (!even && tensor.numel() > 0) {
    refuse(fmt::format("{} has strides [{}]: its rows are not contiguous, or not evenly spaced", describe(tensor, name),
                       fmt::join(strides, ", ")),
           fmt::format("give {}.contiguous()", name));
  }
  // An empty tensor may have no memory at all; the address only says that the tensor is there.
  static char nothing;
  result.data = tensor.numel() > 0 ? const_cast<void*>(tensor.const_data_ptr()) : &nothing;
  return result;
}

Rows Arguments::rows_like(const at::Tensor& tensor, std::string_view name, const Rows& like,
                          std::string_view like_name) const {
  const Rows result = rows(tensor, name);
  if (result.rows != like.rows || result.width != like.width || result.element != like.element) {
    refuse(fmt::format("{} must be of {}'s type and shape, {} in {} rows of {}", describe(tensor, name), like_name,
                       to_string(like.element), like.rows, like.width));
  }
  return result;
}

void* Arguments::sums(const at::Tensor& tensor, std::string_view name, std::int64_t count, Element of) const {
  if (!tensor.defined()) return nullptr;
  check_here(tensor, name);
  const auto type = of == Element::kDouble ? c10::ScalarType::Double : c10::ScalarType::Float;
  if (tensor.scalar_type() != type || tensor.numel() != count || !tensor.is_contiguous()) {
    refuse(fmt::format("{} must be {} contiguous elements of type {}", describe(tensor, name), count, name_of(type)));
  }
  static char nothing;
  return count > 0 ? const_cast<void*>(tensor.const_data_ptr()) : &nothing;
}

const std::int64_t* Arguments::numbers(const at::Tensor& tensor, std::string_view name, std::int64_t count) const {
  check_here(tensor, name);
  if (tensor.scalar_type() != c10::ScalarType::Long || tensor.numel() != count || !tensor.is_contiguous()) {
    refuse(fmt::format("{} must be {} contiguous elements of type int64", describe(tensor, name), count));
  }
  return static_cast<const std::int64_t*>(tensor.const_data_ptr());
}

}  // namespace trireme::kernels
