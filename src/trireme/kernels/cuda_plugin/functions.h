// kernels/cuda_plugin/functions.h -- the launching functions that the table is made of: cuda_table.h says what they do.
#pragma once

#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels::gpu {

CudaError norm_forward(const NormForwardLoop&, const CudaNormWeights&, Element, bool layer, std::int64_t rows,
                       CudaStream);
CudaError norm_backward(const NormBackwardLoop&, const CudaNormWeights&, const CudaColumnSums&, Element, bool layer,
                        std::int64_t rows, CudaStream);
CudaError activation_forward(const ActivationLoop&, int kind, Element, std::int64_t rows, CudaStream);
CudaError activation_backward(const ActivationLoop&, const CudaColumnSums&, int kind, Element, std::int64_t rows,
                              CudaStream);
/// As the last, with sums.first to add to.
CudaError activation_backward_sums(const ActivationLoop&, const CudaColumnSums&, int kind, Element, std::int64_t rows,
                                   CudaStream);
CudaError gated_forward(const GatedLoop&, int kind, Element, std::int64_t rows, CudaStream);
CudaError gated_backward(const GatedLoop&, int kind, Element, std::int64_t rows, CudaStream);
CudaError cross_entropy(const CrossEntropyLoop&, Element, std::int64_t rows, CudaStream);
CudaError dropout(const DropoutLoop&, Element, std::int64_t rows, CudaStream);
CudaError embedding_forward(const EmbeddingForwardLoop&, Element, std::int64_t rows, CudaStream);
CudaError embedding_backward(const EmbeddingBackwardLoop&, Element, std::int64_t first_row, std::int64_t table_rows,
                             std::int64_t width, CudaStream);
CudaError rotary(const RotaryLoop&, Element, std::int64_t tokens, CudaStream);
CudaError sum_rows(const SumRowsLoop&, const CudaColumnSums&, Element, std::int64_t rows, CudaStream);
CudaError sgd(const UpdateLoop&, const SgdNumbers&, std::int64_t count, CudaStream);
CudaError adagrad(const UpdateLoop&, const AdagradNumbers&, std::int64_t count, CudaStream);
CudaError adam(const CudaAdam*, std::int64_t tensors, CudaStream);
CudaError lamb(const UpdateLoop&, const AdamNumbers&, std::int64_t count, CudaStream);
CudaError apply(const UpdateLoop&, double rate, std::int64_t count, CudaStream);
CudaError lars(const UpdateLoop&, const LarsNumbers&, std::int64_t count, CudaStream);
CudaError squares(const CudaSquares*, std::int64_t tensors, double* partial, double* sums, CudaStream);
CudaError attention_forward(const CudaAttention&, Element, CudaStream);
CudaError attention_backward(const CudaAttention&, Element, CudaStream);
CudaError cudnn_ready();
CudaError cudnn_plan(const CudaAttention&, Element, CudnnPass, void** plan, std::int64_t* workspace);
CudaError cudnn_run(const void* plan, const CudaAttention&, void* workspace, CudaStream);
CudaError fold(const CudaFold&, CudaStream);
CudaError fp8(const CudaFp8&, CudaStream);
CudaError fp8_gated_backward(const CudaFp8Gated&, CudaStream);
CudaError slice_values(const CrossEntropySlice&, Element, std::int64_t rows, CudaStream);
CudaError slice_gradients(const CrossEntropySlice&, Element, std::int64_t rows, CudaStream);
CudaError tuning_key(const char** card, std::uint64_t* library);
CudaError gemm_algorithms(const CudaGemm&, std::int64_t workspace, CudaGemmAlgorithm* algorithms, int most, int* found);
CudaError gemm_fits(const CudaGemm&, const CudaGemmAlgorithm&, bool* fits);
CudaError gemm(const CudaGemm&, const CudaGemmAlgorithm&, void* workspace, CudaStream);
CudaError set_step_scalars(double* to, double a, double b, double c, double d, CudaStream);
CudaError clip_grad_norm(const CudaClipGradNorm&, CudaStream);
CudaError fp8_advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, double factor,
                      CudaStream);

}  // namespace trireme::kernels::gpu
