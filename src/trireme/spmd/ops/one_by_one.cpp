// Convolutions of 1 x 1 of whole images on a GPU: matrices of channels, by whichever of the convolution's and the
// GEMM's library is faster. The first call of each shape times both.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <chrono>

#include "trireme/base/stopwatch.h"
#include "trireme/device/cuda.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

constexpr int kTimedCalls = 10;

/// [n, channels, height, width], channels last, as [pixels, channels].
at::Tensor pixels_of(const at::Tensor& image) { return image.permute({0, 2, 3, 1}).reshape({-1, image.size(1)}); }
/// [out, in, 1, 1] as [out, in].
at::Tensor matrix_of(const at::Tensor& weight) { return weight.reshape({weight.size(0), weight.size(1)}); }

at::Tensor by_gemm(const OpCall& call) {
  const at::Tensor &a = call.inputs[0].data, &b = call.inputs[1].data;
  const std::vector<Index>& sizes = call.outputs[0].sizes;
  if (call.op.part == pg::Part::kBackwardWeight) return at::mm(pixels_of(b).t(), pixels_of(a)).view(sizes);
  at::Tensor out = at::empty(sizes, a.options(), at::MemoryFormat::ChannelsLast), rows = pixels_of(out);
  const at::Tensor weight = matrix_of(b);
  at::mm_out(rows, pixels_of(a), call.op.part == pg::Part::kForward ? weight.t() : weight);
  return out;
}

double seconds_of(const std::function<at::Tensor()>& body, c10::Device device) {
  body();  // chooses its algorithm, and takes memory
  device::synchronise(device);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimedCalls; ++i) body();
  device::synchronise(device);
  return seconds_since(begin);
}

bool is_image_of_matrix(const at::Tensor& image) {
  return image.dim() == 4 && image.is_cuda() && image.is_contiguous(at::MemoryFormat::ChannelsLast);
}

bool is_one_by_one(const OpCall& call) {
  const pg::Op& op = call.op;
  if (!call.gemm_is_faster || op.windows.size() != 2 || op.bias) return false;
  for (const pg::Window& w : op.windows) {
    if (w.kernel != 1 || w.stride != 1 || w.padding != 0) return false;
  }
  const at::Tensor &a = call.inputs[0].data, &b = call.inputs[1].data;
  // No rows of neighbours: a block that begins where the tile does, and has as many pixels.
  const Block& image = op.part == pg::Part::kBackwardWeight ? call.inputs[1] : call.inputs[0];
  const std::vector<Index> of = op.part == pg::Part::kBackwardWeight ? a.sizes().vec() : call.outputs[0].sizes;
  if (!is_image_of_matrix(a) || image.data.size(2) != of[2] || image.data.size(3) != of[3]) return false;
  if (op.part == pg::Part::kBackwardWeight) return is_image_of_matrix(b);
  return (op.part == pg::Part::kForward || op.part == pg::Part::kBackwardData) && b.is_non_overlapping_and_dense();
}

}  // namespace

at::Tensor one_by_one_convolution(const OpCall& call, const std::function<at::Tensor()>& by_library) {
  if (!is_one_by_one(call)) return by_library();
  const at::Tensor &a = call.inputs[0].data, &b = call.inputs[1].data;
  const std::vector<Index> key{static_cast<Index>(call.op.part), a.numel() / a.size(1), a.size(1), b.size(0),
                               b.size(1)};
  const auto gemm = [&] { return by_gemm(call); };
  auto found = call.gemm_is_faster->find(key);
  if (found == call.gemm_is_faster->end()) {
    const double library = seconds_of(by_library, a.device()), product = seconds_of(gemm, a.device());
    found = call.gemm_is_faster->emplace(key, product < library).first;
  }
  return found->second ? gemm() : by_library();
}

}  // namespace trireme::spmd
