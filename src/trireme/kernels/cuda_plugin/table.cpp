// The tables of libtrireme_cuda: operators, gradient compression, inference, experts, images.
#include "trireme/kernels/cuda_plugin/compress_functions.h"
#include "trireme/kernels/cuda_plugin/functions.h"
#include "trireme/kernels/cuda_plugin/image_functions.h"
#include "trireme/kernels/cuda_plugin/inference_functions.h"
#include "trireme/kernels/cuda_plugin/moe_functions.h"

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

constexpr CudaInference kInference = {.header = kCudaInferenceHeader,
                                      .paged_attention = gpu::paged_attention,
                                      .paged_write = gpu::paged_write,
                                      .skinny_gemm = gpu::skinny_gemm,
                                      .argmax = gpu::argmax,
                                      .stream_gemm = gpu::stream_gemm,
                                      .stream_gemm_fits = gpu::stream_gemm_fits,
                                      .quantise_rows = gpu::quantise_rows};

constexpr CudaMoeKernels kMoeKernels = {.header = kCudaMoeHeader,
                                        .route = gpu::moe_route,
                                        .route_backward = gpu::moe_route_backward,
                                        .order_rows = gpu::moe_order_rows,
                                        .permute = gpu::moe_permute,
                                        .combine = gpu::moe_combine,
                                        .activate = gpu::moe_activate,
                                        .activate_backward = gpu::moe_activate_backward,
                                        .add_groups = gpu::moe_add_groups,
                                        .has_weight_grad = gpu::moe_has_weight_grad,
                                        .weight_grad = gpu::moe_weight_grad};

constexpr CudaImageKernels kImages = {.header = kCudaImageHeader,
                                      .batch_norm_statistics = gpu::batch_norm_statistics,
                                      .batch_norm_apply = gpu::batch_norm_apply,
                                      .batch_norm_sums = gpu::batch_norm_sums,
                                      .batch_norm_gradient = gpu::batch_norm_gradient,
                                      .max_pool = gpu::max_pool,
                                      .max_pool_backward = gpu::max_pool_backward};

}  // namespace

const CudaKernels* trireme_cuda_kernels() { return &kKernels; }
const CudaCompressKernels* trireme_cuda_compress() { return &kCompress; }
const CudaInference* trireme_cuda_inference() { return &kInference; }
const CudaMoeKernels* trireme_cuda_moe_kernels() { return &kMoeKernels; }
const CudaImageKernels* trireme_cuda_images() { return &kImages; }

}  // namespace trireme::kernels
