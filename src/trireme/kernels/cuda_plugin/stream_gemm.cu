// GEMMs of few rows as a stream of weights: how each is laid out.
#include "trireme/kernels/cuda_plugin/stream_gemm.cuh"

#include <cmath>

namespace trireme::kernels::gpu {
namespace {

constexpr int kPerMultiprocessor = 2;

/// Two thread blocks a multiprocessor; the fewest slices of the inner dimension, unless more of them share out the
/// tiles so much more evenly. No clusters: nothing fits.
template <int kFormat, int kTiles, int kDepth>
StreamLayout best_layout(const Skinny& c) {
  StreamLayout best;
  float least = INFINITY;
  for (int slices = 1; slices <= (launches_dependents() ? 8 : 1); slices *= 2) {
    if (c.k % (slices * Piece<kFormat>::kNumbers) != 0) break;
    const StreamLayout layout = lay_out_stream<kFormat, kTiles, kDepth>(c, slices, kPerMultiprocessor);
    if (layout.bytes > most_shared(kPerMultiprocessor)) continue;
    const float share = static_cast<float>(layout.tiles) / static_cast<float>(layout.clusters);
    const float cost = std::ceil(share) / share * (1 + 0.03F * static_cast<float>(slices));
    if (cost < least) least = cost, best = layout;
  }
  return best;
}

template <int kFormat, int kTiles, int kDepth>
CudaError run_tiles(const Skinny& c, bool launch, CudaStream stream) {
  const StreamLayout layout = best_layout<kFormat, kTiles, kDepth>(c);
  if (layout.clusters == 0) return "a GEMM of few rows whose operands do not fit into shared memory";
  return launch ? launch_stream<Bf16, kFormat, kTiles, kDepth>(c, layout, stream) : nullptr;
}

template <int kFormat>
CudaError run_format(const Skinny& c, bool launch, CudaStream stream) {
  if (c.k % Piece<kFormat>::kNumbers != 0) return "rows that are no whole pieces";
  if (c.m <= 8) return run_tiles<kFormat, 1, 4>(c, launch, stream);
  return run_tiles<kFormat, 2, 2>(c, launch, stream);
}

CudaError run_stream(const Skinny& c, bool launch, CudaStream stream) {
  if (c.m > Skinny::kMostRows) return "more rows than the kernel for few has";
  if (c.element != Element::kBfloat16) return "the kernel that streams weights takes bf16";
  if (c.n % 16 != 0 || (c.gated && (c.bias || c.residual)))
    return "a GEMM that the kernel that streams weights has not";
  switch (c.format) {
    case Skinny::kSame:
      return run_format<Skinny::kSame>(c, launch, stream);
    case Skinny::kInt8:
      return run_format<Skinny::kInt8>(c, launch, stream);
    case Skinny::kInt4:
      if (c.group % 128 != 0) return "groups that are no multiple of 128";
      return run_format<Skinny::kInt4>(c, launch, stream);
    case Skinny::kE4m3:
      return run_format<Skinny::kE4m3>(c, launch, stream);
  }
  return "a weight format that no kernel has";
}

}  // namespace

CudaError stream_gemm(const Skinny& c, CudaStream stream) {
  if (c.m == 0 || c.n == 0) return nullptr;
  return run_stream(c, /*launch=*/true, stream);
}

CudaError stream_gemm_fits(const Skinny& c) { return run_stream(c, /*launch=*/false, nullptr); }

}  // namespace trireme::kernels::gpu
