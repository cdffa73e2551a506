// parallel/compress/gpu_codes.h -- codes of gradients in a GPU's memory: where they lie in messages, and their kernels.
//
// The host's codes follow one another byte by byte; here every message has one length and every part of it begins at a
// multiple of 16 bytes, so that nobody has to ask how long it is. Values mean the same.
// Depends on: exchange, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "trireme/parallel/compress/exchange.h"
#include "trireme/spec/compress.h"

namespace trireme::parallel {

/// Parts of a message, one after the other.
class SlotLayout {
 public:
  /// Where the next part begins.
  std::int64_t add(std::int64_t bytes) { return std::exchange(bytes_, bytes_ + aligned(bytes)); }
  std::int64_t bytes() const { return bytes_; }
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

 private:
  std::int64_t bytes_ = 0;
};

/// What the largest share of `count` things has.
inline std::int64_t largest_share(std::int64_t count, int copies) { return (count + copies - 1) / copies; }
/// Bytes in the memory of `like`.
at::Tensor bytes_like(const at::Tensor& like, at::IntArrayRef shape);

/// The code of one parameter's rows, shared out among copies.
struct GpuRowCode {
  std::int64_t rows = 0, columns = 0, at = 0, signs_at = 0;
  GpuRowCode(std::int64_t rows, std::int64_t columns, int copies, std::int64_t width, SlotLayout& layout);
  /// Into [copies, slot] (or [slot]: rows of one owner); gives |c - said|^2 and |c|^2 of each row.
  at::Tensor encode(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& next, std::int64_t own_rows,
                    const at::Tensor& codes) const;
  /// The sum of what [copies, slot] say of one owner's rows.
  void decode_sum(const at::Tensor& codes, std::int64_t own_rows, at::Tensor& out) const;
  /// All rows, each from its owner's slot of [copies, slot].
  void decode_all(const at::Tensor& codes, at::Tensor& out) const;
};

/// The same of signs and a scale for each share of elements.
struct GpuScaledCode {
  std::int64_t count = 0, at = 0;
  GpuScaledCode(std::int64_t count, int copies, SlotLayout& layout);
  /// Gives |c - said|^2 and |c|^2 of each share.
  at::Tensor encode(const at::Tensor& values, const at::Tensor& kept, const at::Tensor& next,
                    const at::Tensor& variance, const at::Tensor& codes) const;
  void decode_mean(const at::Tensor& codes, const at::Tensor& variance, at::Tensor& out) const;
  void decode_all(const at::Tensor& codes, const at::Tensor& variance, at::Tensor& out) const;
};

/// QSGD with fixed bits, of a whole parameter in a message to everybody.
struct GpuQsgdCode {
  std::int64_t count = 0, norms_at = 0, words_at = 0;
  const spec::CompressConfig& config;
  GpuQsgdCode(std::int64_t count, const spec::CompressConfig& config, std::int64_t width, SlotLayout& layout);
  /// Into [slot]; gives the errors of buckets.
  at::Tensor encode(const at::Tensor& values, const std::array<std::uint32_t, 4>& draws, at::Tensor& code) const;
  /// The sum over [copies, slot].
  void decode_sum(const at::Tensor& codes, at::Tensor& out) const;
};

/// Places and values of the largest elements, in a message to everybody.
struct GpuTopKCode {
  std::int64_t count = 0, k = 0, places_at = 0, values_at = 0;
  GpuTopKCode(std::int64_t count, std::int64_t k, std::int64_t width, SlotLayout& layout);
  /// Takes them out of `values`, and clears `also` there, where it is defined.
  void take(at::Tensor& values, at::Tensor also, double sample, at::Tensor& code) const;
  /// out += what [slot] says.
  void add(const at::Tensor& code, at::Tensor& out) const;
};

/// delta_code.h's mean_rounded.
void mean_rounded_on_gpu(CopyExchange& exchange, at::Tensor& values, at::Tensor& residual,
                         std::span<const std::int64_t> lengths, spec::DeltaDtype type);
/// power_iteration.h's orthogonalise, of many matrices.
void orthogonalise_on_gpu(std::span<at::Tensor> matrices);

}  // namespace trireme::parallel
