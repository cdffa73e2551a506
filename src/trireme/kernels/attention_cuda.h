// kernels/attention_cuda.h -- attention on a GPU: which kernel takes a call, and the call.
//
// bfloat16 and half without dropout go to the fastest library kernel that takes their mask: cuDNN's (attention_cudnn.h)
// or ATen's flash kernel for plain and causal attention, whichever is faster when a shape is first met (GEMM.h's
// choices, which are kept), the flash kernel for windows, packed documents and single queries. Everything else (float,
// double, dropout by our own numbers, blocks of longer sequences) goes to the plain kernel of cuda_plugin/attention.cu.
// Depends on: base. Arguments have been checked: attention.cpp.
#pragma once

#include "trireme/kernels/attention.h"
#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels {

enum class AttentionKernel { kCudnn, kFlash, kPlain };
/// What a call would run, from types, shapes and mask alone.
AttentionKernel attention_kernel(const at::Tensor& q, const at::Tensor& k, const Attention& options);

/// Into the tensors of `result`, or in their place the tensors that a library made.
void cuda_attention_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Attention& options);
/// Where gradients go: views of any strides.
struct AttentionGradients {
  at::Tensor &dq, &dk, &dv;
};
void cuda_attention_backward(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                             const Attention& options);
/// Keys that are wider than values, as latent attention has them, by cuDNN through ATen: nothing is filled up. False,
/// and nothing is done, where that has no kernel for the call: of other types and masks, or in a fixed order.
bool wide_keys_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const Attention& options);
bool wide_keys_backward(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const Attention& options);
/// What a body for GPUs is told of the inputs and the mask but for documents and dropout.
CudaAttention attention_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& options);
Element attention_element(const at::Tensor& x);
/// Of batch, row and head.
void set_attention_strides(std::int64_t (&to)[3], const at::Tensor& x);

void cuda_attention_merge(at::Tensor& out, at::Tensor& lse, const at::Tensor& other_out, const at::Tensor& other_lse);

}  // namespace trireme::kernels
