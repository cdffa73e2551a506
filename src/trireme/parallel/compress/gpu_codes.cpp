#include "trireme/parallel/compress/gpu_codes.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_compress_table.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::parallel {
namespace {

using kernels::Element;

Element wide_element(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? Element::kDouble : Element::kFloat;
}
std::uint8_t* byte_at(const at::Tensor& codes, std::int64_t at) {
  return static_cast<std::uint8_t*>(codes.mutable_data_ptr()) + at;
}
void* data_on_gpu(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
at::Tensor doubles_like(const at::Tensor& like, at::IntArrayRef shape) {
  return at::empty(shape, like.options().dtype(at::kDouble));
}
const kernels::CudaCompressKernels& compress_kernels() { return kernels::cuda_compress(); }
void check_launch(device::CudaError error, const char* what) { device::check_cuda(error, what); }

}  // namespace

at::Tensor bytes_like(const at::Tensor& like, at::IntArrayRef shape) {
  return at::empty(shape, like.options().dtype(at::kByte));
}

GpuRowCode::GpuRowCode(std::int64_t all_rows, std::int64_t all_columns, int copies, std::int64_t width,
                       SlotLayout& layout)
    : rows(all_rows), columns(all_columns) {
  const std::int64_t most = largest_share(rows, copies);
  signs_at = SlotLayout::aligned(2 * most * width);
  at = layout.add(signs_at + 4 * most * ((columns + 31) / 32));
}

at::Tensor GpuRowCode::encode(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& next,
                              std::int64_t own_rows, const at::Tensor& codes) const {
  const bool shared = codes.dim() == 2;
  const at::Tensor errors = doubles_like(gradient, {own_rows, 2});
  check_launch(compress_kernels().encode_rows({.gradient = data_on_gpu(gradient),
                                               .kept = data_on_gpu(kept),
                                               .next = data_on_gpu(next),
                                               .codes = byte_at(codes, at),
                                               .slot_bytes = shared ? codes.size(1) : 0,
                                               .signs_at = signs_at,
                                               .rows = own_rows,
                                               .columns = columns,
                                               .owners = shared ? codes.size(0) : 1,
                                               .errors = errors.mutable_data_ptr<double>()},
                                              wide_element(gradient), device::cuda_stream()),
               "packing of rows in one bit");
  return errors;
}

void GpuRowCode::decode_sum(const at::Tensor& codes, std::int64_t own_rows, at::Tensor& out) const {
  check_launch(compress_kernels().decode_rows({.codes = byte_at(codes, at),
                                               .signs_at = signs_at,
                                               .message_bytes = codes.size(1),
                                               .rows = own_rows,
                                               .columns = columns,
                                               .messages = codes.size(0),
                                               .out = data_on_gpu(out)},
                                              wide_element(out), device::cuda_stream()),
               "a sum of rows in one bit");
}

void GpuRowCode::decode_all(const at::Tensor& codes, at::Tensor& out) const {
  check_launch(compress_kernels().decode_rows({.codes = byte_at(codes, at),
                                               .slot_bytes = codes.size(1),
                                               .signs_at = signs_at,
                                               .rows = rows,
                                               .columns = columns,
                                               .owners = codes.size(0),
                                               .out = data_on_gpu(out)},
                                              wide_element(out), device::cuda_stream()),
               "unpacking of rows in one bit");
}

namespace {

constexpr std::int64_t kScaleBytes = 16;

}  // namespace

GpuScaledCode::GpuScaledCode(std::int64_t all, int copies, SlotLayout& layout)
    : count(all), at(layout.add(kScaleBytes + 4 * ((largest_share(all, copies) + 31) / 32))) {}

at::Tensor GpuScaledCode::encode(const at::Tensor& values, const at::Tensor& kept, const at::Tensor& next,
                                 const at::Tensor& variance, const at::Tensor& codes) const {
  const bool shared = codes.dim() == 2;
  const std::int64_t owners = shared ? codes.size(0) : 1;
  const at::Tensor errors = doubles_like(values, {owners, 2}),
                   partial = doubles_like(values, {owners * kernels::kCudaScaledBlocks * 3});
  check_launch(compress_kernels().encode_scaled({.values = data_on_gpu(values),
                                                 .kept = data_on_gpu(kept),
                                                 .variance = data_on_gpu(variance),
                                                 .next = data_on_gpu(next),
                                                 .codes = byte_at(codes, at),
                                                 .slot_bytes = shared ? codes.size(1) : 0,
                                                 .signs_at = kScaleBytes,
                                                 .count = values.numel(),
                                                 .owners = owners,
                                                 .partial = partial.mutable_data_ptr<double>(),
                                                 .errors = errors.mutable_data_ptr<double>()},
                                                wide_element(values), device::cuda_stream()),
               "packing in signs and a scale");
  return errors;
}

void GpuScaledCode::decode_mean(const at::Tensor& codes, const at::Tensor& variance, at::Tensor& out) const {
  check_launch(compress_kernels().decode_scaled({.codes = byte_at(codes, at),
                                                 .variance = data_on_gpu(variance),
                                                 .signs_at = kScaleBytes,
                                                 .message_bytes = codes.size(1),
                                                 .count = out.numel(),
                                                 .messages = codes.size(0),
                                                 .factor = 1.0 / static_cast<double>(codes.size(0)),
                                                 .out = data_on_gpu(out)},
                                                wide_element(out), device::cuda_stream()),
               "a mean of signs and scales");
}

void GpuScaledCode::decode_all(const at::Tensor& codes, const at::Tensor& variance, at::Tensor& out) const {
  check_launch(compress_kernels().decode_scaled({.codes = byte_at(codes, at),
                                                 .variance = data_on_gpu(variance),
                                                 .slot_bytes = codes.size(1),
                                                 .signs_at = kScaleBytes,
                                                 .count = out.numel(),
                                                 .owners = codes.size(0),
                                                 .out = data_on_gpu(out)},
                                                wide_element(out), device::cuda_stream()),
               "unpacking of signs and scales");
}

GpuQsgdCode::GpuQsgdCode(std::int64_t all, const spec::CompressConfig& options, std::int64_t width, SlotLayout& layout)
    : count(all), config(options) {
  const std::int64_t buckets = (count + config.bucket_size - 1) / config.bucket_size;
  norms_at = layout.add(buckets * width);
  words_at = layout.add(4 * buckets * ((config.bucket_size + 31) / 32) * fixed_bits(config.levels));
}

at::Tensor GpuQsgdCode::encode(const at::Tensor& values, const std::array<std::uint32_t, 4>& draws,
                               at::Tensor& code) const {
  const at::Tensor errors = doubles_like(values, {(count + config.bucket_size - 1) / config.bucket_size, 2});
  kernels::CudaQsgdCode call{.values = data_on_gpu(values),
                             .norms = byte_at(code, norms_at),
                             .words = reinterpret_cast<std::uint32_t*>(byte_at(code, words_at)),
                             .count = count,
                             .bucket_size = config.bucket_size,
                             .levels = config.levels,
                             .width = fixed_bits(config.levels),
                             .by_max = config.norm == spec::QsgdNorm::kMax,
                             .errors = errors.mutable_data_ptr<double>()};
  std::ranges::copy(draws, call.draws);
  check_launch(compress_kernels().encode_qsgd(call, wide_element(values), device::cuda_stream()), "QSGD's levels");
  return errors;
}

void GpuQsgdCode::decode_sum(const at::Tensor& codes, at::Tensor& out) const {
  check_launch(
      compress_kernels().decode_qsgd({.norms = byte_at(codes, norms_at),
                                      .words = reinterpret_cast<const std::uint32_t*>(byte_at(codes, words_at)),
                                      .message_bytes = codes.size(1),
                                      .count = count,
                                      .bucket_size = config.bucket_size,
                                      .messages = codes.size(0),
                                      .levels = config.levels,
                                      .width = fixed_bits(config.levels),
                                      .out = data_on_gpu(out)},
                                     wide_element(out), device::cuda_stream()),
      "a sum of QSGD's levels");
}

GpuTopKCode::GpuTopKCode(std::int64_t all, std::int64_t largest, std::int64_t width, SlotLayout& layout)
    : count(all), k(std::min(all, largest)), places_at(layout.add(4 * k)), values_at(layout.add(k * width)) {}

void GpuTopKCode::take(at::Tensor& values, at::Tensor also, double sample, at::Tensor& code) const {
  const SampledPlace sampled = sampled_place(count, k, sample);
  const at::Tensor candidates = at::empty({sampled.stride > 0 ? count : 0}, values.options().dtype(at::kInt)),
                   state = at::empty({kernels::kCudaTopKState}, values.options().dtype(at::kLong));
  check_launch(compress_kernels().top_k({.values = data_on_gpu(values),
                                         .also = also.defined() ? data_on_gpu(also) : nullptr,
                                         .count = count,
                                         .k = k,
                                         .stride = sampled.stride,
                                         .sampled_place = sampled.place,
                                         .candidates = reinterpret_cast<std::uint32_t*>(candidates.mutable_data_ptr()),
                                         .state = reinterpret_cast<std::uint64_t*>(state.mutable_data_ptr()),
                                         .places = reinterpret_cast<std::uint32_t*>(byte_at(code, places_at)),
                                         .chosen = byte_at(code, values_at)},
                                        wide_element(values), device::cuda_stream()),
               "the choice of the largest elements");
}

void GpuTopKCode::add(const at::Tensor& code, at::Tensor& out) const {
  check_launch(
      compress_kernels().scatter_add({.places = reinterpret_cast<const std::uint32_t*>(byte_at(code, places_at)),
                                      .values = byte_at(code, values_at),
                                      .count = k,
                                      .out = data_on_gpu(out)},
                                     wide_element(out), device::cuda_stream()),
      "a sum of the largest elements");
}

void mean_rounded_on_gpu(CopyExchange& exchange, at::Tensor& values, at::Tensor& residual,
                         std::span<const std::int64_t> lengths, spec::DeltaDtype type) {
  const int copies = exchange.copies(), me = exchange.copy();
  const bool half = type == spec::DeltaDtype::kFp16;
  const auto width = static_cast<std::int64_t>(values.element_size());
  const Element element = wide_element(values);
  struct Part {
    std::int64_t begin, length, at, levels_at;
  };
  std::vector<Part> parts;
  SlotLayout layout;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t most = largest_share(length, copies), blocks = (most + kernels::kCudaDeltaBlock - 1) / 512;
    const std::int64_t levels_at = half ? 0 : SlotLayout::aligned(blocks * width);
    parts.push_back({begin, length, layout.add(levels_at + most * (half ? 2 : 1)), levels_at});
    begin += length;
  }
  const auto at_element = [&](const at::Tensor& flat, std::int64_t i) {
    return static_cast<std::uint8_t*>(data_on_gpu(flat)) + i * width;
  };
  at::Tensor out = bytes_like(values, {copies, layout.bytes()});
  for (const Part& part : parts) {
    check_launch(compress_kernels().encode_delta({.values = at_element(values, part.begin),
                                                  .residual = at_element(residual, part.begin),
                                                  .codes = byte_at(out, part.at),
                                                  .slot_bytes = layout.bytes(),
                                                  .levels_at = part.levels_at,
                                                  .count = part.length,
                                                  .owners = copies,
                                                  .half = half},
                                                 element, device::cuda_stream()),
                 "rounding of pseudo-gradients");
  }
  const at::Tensor in = exchange.all_to_all(out);
  at::Tensor mine = bytes_like(values, {layout.bytes()});
  for (const Part& part : parts) {
    const Share1D share = share_of_copy(part.length, me, copies);
    check_launch(compress_kernels().mean_delta({.codes = byte_at(in, part.at),
                                                .message_bytes = layout.bytes(),
                                                .levels_at = part.levels_at,
                                                .messages = copies,
                                                .mean = byte_at(mine, part.at),
                                                .count = share.size(),
                                                .residual = at_element(residual, part.begin + share.begin),
                                                .half = half},
                                               element, device::cuda_stream()),
                 "the mean of pseudo-gradients");
  }
  const at::Tensor all = exchange.all_gather(mine);
  for (const Part& part : parts) {
    check_launch(compress_kernels().decode_delta({.codes = byte_at(all, part.at),
                                                  .slot_bytes = layout.bytes(),
                                                  .levels_at = part.levels_at,
                                                  .count = part.length,
                                                  .owners = copies,
                                                  .out = at_element(values, part.begin),
                                                  .half = half},
                                                 element, device::cuda_stream()),
                 "the mean of pseudo-gradients");
  }
}

void orthogonalise_on_gpu(std::span<at::Tensor> matrices) {
  std::vector<kernels::CudaColumns> calls;
  for (const at::Tensor& matrix : matrices)
    calls.push_back({.values = data_on_gpu(matrix), .rows = matrix.size(0), .rank = matrix.size(1)});
  if (calls.empty()) return;
  check_launch(compress_kernels().orthogonalise(calls.data(), static_cast<std::int64_t>(calls.size()),
                                                wide_element(matrices.front()), device::cuda_stream()),
               "orthonormal columns");
}

}  // namespace trireme::parallel
