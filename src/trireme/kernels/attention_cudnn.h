// kernels/attention_cudnn.h -- behind attention_cuda.h: attention by cuDNN.
//
// Its graphs are called directly where libtrireme_cuda was built with its headers: the output and the three gradients
// are then written where the caller wants them, whatever their strides, so that gradients of a fused projection need no
// joining. Otherwise, and for what cuDNN refuses, ATen's operators call it, in tensors of their own; the log says so
// once for each shape. A plan is built when a shape is first met by a thread, and kept.
// Depends on: base.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "trireme/kernels/attention_cuda.h"
#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels {

/// A call as cuDNN is told it.
struct CudnnCall {
  CudaAttention attention{};
  Element element = Element::kBfloat16;
  CudnnPass pass = CudnnPass::kForward;
};
/// These look at tensors only: no GPU is asked. `lse` is contiguous.
CudnnCall cudnn_forward_call(const AttentionResult& into, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const Attention& options);
CudnnCall cudnn_backward_call(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                              const Attention& options, bool fixed);
/// Whether addresses and strides are multiples of 16 bytes: cuDNN's kernels read and write that much at once.
bool cudnn_aligned(const CudnnCall& call);
/// Everything that a plan depends on. Calls that differ in addresses alone, or in strides over a single element, are
/// the same.
using CudnnKey = std::array<std::int64_t, 36>;
CudnnKey cudnn_key(const CudnnCall& call, int gpu);
/// "attention backward bf16, batch 32, queries 1024, keys 1024, heads 12/12, size 64, causal".
std::string cudnn_text(const CudnnCall& call);

/// Of the whole process: false leaves all calls to ATen. True at the start; for comparisons.
void set_direct_cudnn(bool on);

/// Into `result`, or in its place tensors of ATen's.
void cudnn_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const Attention& options);
/// Straight into the views. `fixed`: the same bits every time. False where cuDNN cannot be called so: nothing is
/// written.
bool cudnn_backward_into(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                         const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                         const Attention& options, bool fixed);
/// Through ATen, which takes values narrower than keys too; a c10::Error where cuDNN has no plan.
AttentionResult cudnn_forward_by_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const Attention& options);
/// Through ATen, in no fixed order.
std::array<at::Tensor, 3> cudnn_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                         const Attention& options);

}  // namespace trireme::kernels
