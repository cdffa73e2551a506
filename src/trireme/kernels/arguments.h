// kernels/arguments.h -- what the operators' bodies get instead of tensors, and the checks that make it safe.
//
// Tensors are on the CPU or on one GPU. A wrong argument is a ConfigError that names the operator, the tensor, its
// shape and type, and what would have been right. Checks look at shapes and types only; they cost nanoseconds.
// Depends on: base.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/kernels/cpu/element.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// A tensor as rows: all its dimensions but the last, which is contiguous.
struct Rows {
  void* data = nullptr;  ///< null: the tensor is undefined
  std::int64_t rows = 0, width = 0, stride = 0;
  Element element = Element::kFloat;

  explicit operator bool() const { return data != nullptr; }
};

class Arguments {
 public:
  explicit Arguments(std::string_view operation) : operation_(operation) {}

  /// Float, double, bfloat16 or half rows with one stride between them.
  Rows rows(const at::Tensor& tensor, std::string_view name) const;
  /// The same, of the shape and type of `like`.
  Rows rows_like(const at::Tensor& tensor, std::string_view name, const Rows& like, std::string_view like_name) const;
  /// Null when undefined; else `count` contiguous numbers of type float, or double where `element` is.
  void* sums(const at::Tensor& tensor, std::string_view name, std::int64_t count, Element element) const;
  /// `count` contiguous int64 numbers.
  const std::int64_t* numbers(const at::Tensor& tensor, std::string_view name, std::int64_t count) const;
  /// The type of a defined tensor.
  Element element(const at::Tensor& tensor, std::string_view name) const;

  /// Whether the tensors checked so far lie on a GPU. They must all lie in one place.
  bool on_gpu() const { return gpu_ >= 0; }

  [[noreturn]] void refuse(std::string why, std::string hint = {}) const;

 private:
  void check_here(const at::Tensor& tensor, std::string_view name) const;
  std::string_view operation_;
  mutable int gpu_ = -2;  // of the first tensor that was checked; -1: the CPU, -2: none was
};

/// "x, bfloat16 [3, 5]": a tensor in messages.
std::string describe(const at::Tensor& tensor, std::string_view name);
std::string_view to_string(Element element);
inline std::int64_t bytes_of(Element element) {
  return element == Element::kDouble ? 8 : element == Element::kFloat ? 4 : 2;
}
/// What sums over elements are kept in.
inline Element sums_of(Element element) { return element == Element::kDouble ? Element::kDouble : Element::kFloat; }

}  // namespace trireme::kernels
