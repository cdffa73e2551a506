// kernels/cuda_table.h -- the operators' bodies for GPUs, as the table that libtrireme_cuda offers.
//
// Plain C++: neither tensors nor CUDA. The structs are those of the CPU's loops (cpu/*_table.h), their pointers being
// device memory. Every function starts its work on `stream`, a cudaStream_t, waits for nothing, and returns null, or
// what went wrong in words. Orders of summation follow from shapes alone: the same card gives the same bits.
// Depends on: nothing.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/activation_table.h"
#include "trireme/kernels/cpu/cross_entropy_table.h"
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/embedding_table.h"
#include "trireme/kernels/cpu/norm_table.h"
#include "trireme/kernels/cpu/rotary_table.h"
#include "trireme/kernels/cpu/sum_rows_table.h"
#include "trireme/kernels/cpu/update_table.h"

namespace trireme::kernels {

using CudaStream = void*;
using CudaError = const char*;  // null: none

/// A norm's weight and bias as they are stored; null: none.
struct CudaNormWeights {
  const void *weight = nullptr, *bias = nullptr;
  Element weight_element = Element::kFloat, bias_element = Element::kFloat;
  double offset = 0;  // added to the weight
};

/// Sums over rows: blocks of rows leave partial sums [blocks, width], float (double), which a second pass adds up.
struct CudaColumnSums {
  void* partial = nullptr;  // room for kCudaSumBlocks x width x sums
  void* first = nullptr;    // added to; null: left out
  void* second = nullptr;
};
inline constexpr std::int64_t kCudaSumBlocks = 528;

/// One tensor of an update over many.
struct CudaAdam {
  UpdateLoop loop;
  AdamNumbers numbers;
  std::int64_t count;
};
/// Sums of squares are made in pieces of this many elements.
inline constexpr std::int64_t kCudaSquaresPiece = std::int64_t{1} << 15;
struct CudaSquares {
  Stream numbers;
  std::int64_t count;
};

/// Attention of any type, mask and dropout, straight from the definition: right everywhere, fast nowhere.
struct CudaAttention {
  const void *q, *k, *v, *dout, *out_read;
  void *out, *dq, *dk, *dv;
  void* lse;    // float (double) [batch, heads, queries], contiguous
  void* delta;  // backward: room for as many numbers
  // Strides of batch, row and head, in elements.
  std::int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3], dout_strides[3];
  std::int64_t dq_strides[3], dk_strides[3], dv_strides[3];
  std::int64_t batch, queries, keys, heads, key_heads, head_size;
  std::int64_t query_position, key_position, window;
  double scale;
  bool causal;
  const std::int32_t *query_documents, *key_documents;  // null: none
  std::int64_t query_document_stride, key_document_stride;
  const std::uint32_t* coins;  // four words for each (batch, head); null: no dropout
  std::uint32_t threshold;
  double kept_factor;
};

/// Raised by one whenever a member changes its meaning or place.
inline constexpr std::uint32_t kCudaKernelsVersion = 1;

struct CudaKernels {
  std::uint32_t version;
  /// The current stream of the tensor library on the current device.
  CudaStream (*current_stream)();
  /// The most bytes that tensors have had on a device since `forget_peak`.
  std::int64_t (*peak_bytes)(int device);
  void (*forget_peak)(int device);
  /// Null when kernels run on the current device; otherwise why not.
  CudaError (*probe)();
  CudaError (*norm_forward)(const NormForwardLoop&, const CudaNormWeights&, Element, bool layer, std::int64_t rows,
                            CudaStream);
  CudaError (*norm_backward)(const NormBackwardLoop&, const CudaNormWeights&, const CudaColumnSums&, Element,
                             bool layer, std::int64_t rows, CudaStream);
  CudaError (*activation_forward)(const ActivationLoop&, int kind, Element, std::int64_t rows, CudaStream);
  CudaError (*activation_backward)(const ActivationLoop&, const CudaColumnSums&, int kind, Element, std::int64_t rows,
                                   CudaStream);
  CudaError (*gated_forward)(const GatedLoop&, int kind, Element, std::int64_t rows, CudaStream);
  CudaError (*gated_backward)(const GatedLoop&, int kind, Element, std::int64_t rows, CudaStream);
  CudaError (*cross_entropy)(const CrossEntropyLoop&, Element, std::int64_t rows, CudaStream);
  CudaError (*dropout)(const DropoutLoop&, Element, std::int64_t rows, CudaStream);
  CudaError (*embedding_forward)(const EmbeddingForwardLoop&, Element, std::int64_t rows, CudaStream);
  /// `rows` of the loop holds ids, sorted; those outside [first_row, first_row + table_rows) are passed over.
  CudaError (*embedding_backward)(const EmbeddingBackwardLoop&, Element, std::int64_t first_row,
                                  std::int64_t table_rows, std::int64_t width, CudaStream);
  CudaError (*rotary)(const RotaryLoop&, Element, std::int64_t tokens, CudaStream);
  CudaError (*sum_rows)(const SumRowsLoop&, const CudaColumnSums&, Element, std::int64_t rows, CudaStream);

  CudaError (*sgd)(const UpdateLoop&, const SgdNumbers&, std::int64_t count, CudaStream);
  CudaError (*adagrad)(const UpdateLoop&, const AdagradNumbers&, std::int64_t count, CudaStream);
  CudaError (*adam)(const CudaAdam* tensors, std::int64_t tensors_count, CudaStream);
  /// Leaves the update; its squares and the weight's are asked for with `squares`.
  CudaError (*lamb)(const UpdateLoop&, const AdamNumbers&, std::int64_t count, CudaStream);
  CudaError (*apply)(const UpdateLoop&, double rate, std::int64_t count, CudaStream);
  CudaError (*lars)(const UpdateLoop&, const LarsNumbers&, std::int64_t count, CudaStream);
  /// sums[i]: of tensor i's squares, doubles on the device. `partial`: room for a double for each piece of each tensor.
  CudaError (*squares)(const CudaSquares* tensors, std::int64_t tensors_count, double* partial, double* sums,
                       CudaStream);

  CudaError (*attention_forward)(const CudaAttention&, Element, CudaStream);
  CudaError (*attention_backward)(const CudaAttention&, Element, CudaStream);
};

extern "C" {
/// The one symbol that the library is asked for.
__attribute__((visibility("default"))) const CudaKernels* trireme_cuda_kernels();
}
using CudaKernelsEntry = decltype(trireme_cuda_kernels);
inline constexpr const char* kCudaKernelsEntry = "trireme_cuda_kernels";

}  // namespace trireme::kernels
