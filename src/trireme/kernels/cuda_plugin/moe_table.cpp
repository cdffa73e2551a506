// The experts' table of libtrireme_cuda.
#include "trireme/kernels/cuda_plugin/moe_functions.h"

namespace trireme::kernels {
namespace {

constexpr CudaMoeKernels kMoeKernels = {.header = kCudaMoeHeader,
                                        .route = gpu::moe_route,
                                        .route_backward = gpu::moe_route_backward,
                                        .order_rows = gpu::moe_order_rows,
                                        .permute = gpu::moe_permute,
                                        .combine = gpu::moe_combine,
                                        .activate = gpu::moe_activate,
                                        .activate_backward = gpu::moe_activate_backward,
                                        .add_groups = gpu::moe_add_groups};

}  // namespace

const CudaMoeKernels* trireme_cuda_moe_kernels() { return &kMoeKernels; }

}  // namespace trireme::kernels
