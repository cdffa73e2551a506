// parallel/compress/term_types.h -- gradients are float, or double where everything is.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace trireme::parallel {

/// body(T{}) with the element type of a tensor.
template <typename Body>
decltype(auto) with_element_type(at::ScalarType type, Body&& body) {
  if (type == at::kDouble) return std::forward<Body>(body)(double{});
  return std::forward<Body>(body)(float{});
}
template <typename Body>
decltype(auto) with_element_type(const at::Tensor& tensor, Body&& body) {
  return with_element_type(tensor.scalar_type(), std::forward<Body>(body));
}

template <typename T>
T* data_of(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

}  // namespace trireme::parallel
