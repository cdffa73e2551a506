// The table of libtrireme_cuda for gradient compression.
#include "trireme/kernels/cuda_plugin/compress_functions.h"

namespace trireme::kernels {
namespace {

constexpr CudaCompressKernels kCompress = {.header = kCudaCompressHeader,
                                           .encode_rows = gpu::encode_rows,
                                           .decode_rows = gpu::decode_rows,
                                           .encode_scaled = gpu::encode_scaled,
                                           .decode_scaled = gpu::decode_scaled,
                                           .encode_qsgd = gpu::encode_qsgd,
                                           .decode_qsgd = gpu::decode_qsgd,
                                           .encode_delta = gpu::encode_delta,
                                           .mean_delta = gpu::mean_delta,
                                           .decode_delta = gpu::decode_delta,
                                           .top_k = gpu::top_k,
                                           .scatter_add = gpu::scatter_add,
                                           .orthogonalise = gpu::orthogonalise};

}  // namespace

const CudaCompressKernels* trireme_cuda_compress() { return &kCompress; }

}  // namespace trireme::kernels
