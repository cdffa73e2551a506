// The operators' table of libtrireme_cuda.
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels {
namespace {

constexpr CudaKernels kKernels = {.header = kCudaKernelsHeader,
                                  .norm_forward = gpu::norm_forward,
                                  .norm_backward = gpu::norm_backward,
                                  .activation_forward = gpu::activation_forward,
                                  .activation_backward = gpu::activation_backward,
                                  .gated_forward = gpu::gated_forward,
                                  .gated_backward = gpu::gated_backward,
                                  .cross_entropy = gpu::cross_entropy,
                                  .dropout = gpu::dropout,
                                  .embedding_forward = gpu::embedding_forward,
                                  .embedding_backward = gpu::embedding_backward,
                                  .rotary = gpu::rotary,
                                  .sum_rows = gpu::sum_rows,
                                  .sgd = gpu::sgd,
                                  .adagrad = gpu::adagrad,
                                  .adam = gpu::adam,
                                  .lamb = gpu::lamb,
                                  .apply = gpu::apply,
                                  .lars = gpu::lars,
                                  .squares = gpu::squares,
                                  .attention_forward = gpu::attention_forward,
                                  .attention_backward = gpu::attention_backward,
                                  .cudnn_ready = gpu::cudnn_ready,
                                  .cudnn_plan = gpu::cudnn_plan,
                                  .cudnn_run = gpu::cudnn_run,
                                  .fold = gpu::fold,
                                  .fp8 = gpu::fp8,
                                  .fp8_gated_backward = gpu::fp8_gated_backward,
                                  .slice_values = gpu::slice_values,
                                  .slice_gradients = gpu::slice_gradients,
                                  .tuning_key = gpu::tuning_key,
                                  .gemm_algorithms = gpu::gemm_algorithms,
                                  .gemm_fits = gpu::gemm_fits,
                                  .gemm = gpu::gemm,
                                  .set_step_scalars = gpu::set_step_scalars,
                                  .clip_grad_norm = gpu::clip_grad_norm,
                                  .fp8_advance = gpu::fp8_advance};

}  // namespace

const CudaKernels* trireme_cuda_kernels() { return &kKernels; }

}  // namespace trireme::kernels
