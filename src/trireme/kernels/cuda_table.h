// kernels/cuda_table.h -- the operators' bodies for GPUs, as a table that libtrireme_cuda offers beside the CUDA
// runtime's (device/cuda_runtime.h).
//
// Plain C++: neither tensors nor CUDA. The structs are those of the CPU's loops (cpu/*_table.h), their pointers being
// device memory. Every function launches its work on `stream`, waits for nothing, and returns null, or CUDA's error.
// Orders of summation follow from shapes alone: the same card gives the same bits.
// Depends on: device/cuda_runtime.h.
#pragma once

#include <cstdint>

#include "trireme/device/cuda_runtime.h"
#include "trireme/kernels/cpu/activation_table.h"
#include "trireme/kernels/cpu/cross_entropy_table.h"
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/embedding_table.h"
#include "trireme/kernels/cpu/norm_table.h"
#include "trireme/kernels/cpu/rotary_table.h"
#include "trireme/kernels/cpu/sum_rows_table.h"
#include "trireme/kernels/cpu/update_table.h"

namespace trireme::kernels {

using device::CudaError;
using device::CudaStream;

/// A norm's weight and bias as they are stored; null: none.
struct CudaNormWeights {
  const void *weight = nullptr, *bias = nullptr;
  Element weight_element = Element::kFloat, bias_element = Element::kFloat;
  double offset = 0;  // added to the weight
};

/// Sums over rows: blocks of rows leave partial sums [blocks, width], float (double), which a second pass adds up.
struct CudaColumnSums {
  void* partial = nullptr;  // room for kCudaSumBlocks x width x sums
  void* first = nullptr;    // added to, or begun with the sum; null: left out
  void* second = nullptr;
  bool begin_first = false, begin_second = false;
};
inline constexpr std::int64_t kCudaSumBlocks = 1056;

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
  std::int64_t batch, queries, keys, heads, key_heads, head_dim;
  std::int64_t query_position, key_position, window;
  double scale;
  bool causal;
  const std::int32_t *query_documents, *key_documents;  // null: none
  std::int64_t query_document_stride, key_document_stride;
  const std::uint32_t* dropout_rng;  // four words for each (batch, head); null: no dropout
  std::uint32_t threshold;
  double dropout_scale;
};

/// Which of cuDNN's graphs of attention; fixed: with the same bits every time.
enum class CudnnPass : std::int32_t { kForward, kBackward, kFixedBackward };

/// What the comm room asks of a GPU that ranks share: every to[k][i] = (from[0][i] (+) from[1][i] (+) ...) / divisor.
struct CudaFold {
  enum Type : std::int32_t { kFloat, kDouble, kHalf, kBfloat16, kInt32, kInt64, kUint8 };
  enum Reduce : std::int32_t { kSum, kProduct, kMin, kMax };
  static constexpr int kMost = 32;
  const void* from[kMost] = {};
  void* to[kMost] = {};
  int froms = 0, tos = 0, divisor = 1;
  Type type = kFloat;
  Reduce reduce = kSum;
  std::int64_t count = 0;
};

/// A matrix [rows, width] to FP8, and its transpose: kernels/fp8.h.
struct CudaFp8 {
  enum Format : std::int32_t { kE4m3, kE5m2 };
  enum Scaling : std::int32_t { kWhole, kLine, kTile };
  const void* x = nullptr;
  const void* up = nullptr;  // where given, f(x) up is quantised, of a known scale
  void* largest = nullptr;   // room for a float
  Element element = Element::kFloat;
  std::int64_t rows = 0, width = 0, stride = 0, up_stride = 0;
  std::int32_t activation = 0;  // f
  Format format = kE4m3;
  Scaling scaling = kWhole;
  std::uint8_t *out_rows = nullptr, *out_columns = nullptr;  // [rows, width], [width, rows]; null: left out
  // One; or for lines [width / 128][rows] and [rows / 128][width]; or for tiles by tile of `out`.
  float *row_scales = nullptr, *column_scales = nullptr;
  std::int64_t row_scale_stride = 0, column_scale_stride = 0;
  // A whole tensor's scale that is known already, in place of `largest`; and where its largest number is noted.
  const float* scale = nullptr;
  float* amax = nullptr;
};

/// Backward of y = f(gate) up: both gradients side by side, and y recomputed, each quantised to FP8 by a known scale as
/// it is made.
struct CudaFp8Gated {
  const void *gate = nullptr, *up = nullptr, *dy = nullptr;
  std::int64_t gate_stride = 0, up_stride = 0, dy_stride = 0;
  Element element = Element::kFloat;
  std::int32_t activation = 0;  // f
  std::int64_t rows = 0, width = 0;
  struct Out {
    std::uint8_t *rows = nullptr, *columns = nullptr;  // as CudaFp8's; null: left out
    CudaFp8::Format format = CudaFp8::kE4m3;
    const float* scale = nullptr;
    float* amax = nullptr;                                // may be null
    float *row_scale = nullptr, *column_scale = nullptr;  // where the scale is written to; null: nowhere
  };
  Out grad;        // [rows, 2 width], the gate's half first
  Out recomputed;  // [rows, width]
};

/// D [m, n] = A [m, k] B [k, n] (+ D), by cuBLASLt; all stored by rows. Sums in float.
struct CudaGemm {
  enum Type : std::int32_t { kFloat, kHalf, kBfloat16, kE4m3, kE5m2 };
  enum Epilogue : std::int32_t {
    kPlain,
    kBias,    ///< bias [n] is added
    kGelu,    ///< GELU (by tanh) of D + bias, where there is one; the pre-activation goes to aux
    kDgelu,   ///< D times GELU's derivative at aux
    kBgradA,  ///< the sum of A over k goes to bias [m]
  };
  Type a_type = kFloat, b_type = kFloat, d_type = kFloat;  // bias and aux are of D's type
  Epilogue epilogue = kPlain;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0, d_stride = 0, aux_stride = 0;  // between rows, in elements
  bool transpose_a = false, transpose_b = false;                                        // stored as [k, m], [n, k]
  bool add = false;                                                                     // C, or D where there is no C
  bool fast = false;                                    // FP8: sums as the tensor cores make them
  int alignment = 16;                                   // bytes, of all pointers
  const void *a = nullptr, *b = nullptr, *c = nullptr;  // C is of D's type
  void *d = nullptr, *bias = nullptr, *aux = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;  // of FP8 operands; null: 1
};
/// One algorithm that the library has for a GEMM.
struct CudaGemmAlgorithm {
  std::uint64_t words[8] = {};
  std::int64_t workspace = 0;  // bytes
  std::int32_t algorithm = 0, tile = 0, stages = 0, split_k = 0, reduction = 0, swizzle = 0, custom = 0, inner = 0,
               cluster = 0;  // what the words say
};

/// What an update in a captured step reads from device memory: see update.h. `taken` 0: nothing changes.
struct CudaStepScalars {
  double gradient_scale, rate, root, weight_decay;
  std::int64_t taken;
};
/// Turns sums of squares into CudaStepScalars for each tensor, clips by their norm, and leaves norm and outcome in
/// `result`.
struct CudaClipGradNorm {
  const double* squares = nullptr;  // one for each tensor
  std::int64_t tensors = 0;
  const double* factors = nullptr;  // of the learning rate, for each tensor, and behind them those of its decay
  /// learning rate, what gradients are multiplied by, Adam's 1 - beta1^step and 1 / sqrt(1 - beta2^step)
  const double* numbers = nullptr;
  double clip = 0;
  CudaStepScalars* device_scalars = nullptr;
  const double* loss = nullptr;  // NaN or Inf: the step is not taken
  double* result = nullptr;      // norm, clip factor, whether it was taken; result[3]: sticks at 1 once one was not
};

/// Raised by one whenever a member changes its meaning or place.
inline constexpr std::uint32_t kCudaKernelsVersion = 9;

struct CudaKernels {
  device::CudaTableHeader header;
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
  /// Null, or why cuDNN cannot be called by us: no headers when this was built, no library now.
  CudaError (*cudnn_ready)();
  /// A plan for calls of this type, shape, strides, mask and scale on the current device, and the bytes that it works
  /// in; or why cuDNN has none. For this thread alone, and for good: a CUDA graph may outlive whoever captured it.
  CudaError (*cudnn_plan)(const CudaAttention&, Element, CudnnPass, void** plan, std::int64_t* workspace);
  /// Neither documents nor windows, dropout or positions; addresses and strides are multiples of 16 bytes.
  CudaError (*cudnn_run)(const void* plan, const CudaAttention&, void* workspace, CudaStream);

  CudaError (*fold)(const CudaFold&, CudaStream);
  CudaError (*fp8)(const CudaFp8&, CudaStream);
  CudaError (*fp8_gated_backward)(const CudaFp8Gated&, CudaStream);
  CudaError (*slice_values)(const CrossEntropySlice&, Element, std::int64_t rows, CudaStream);
  CudaError (*slice_gradients)(const CrossEntropySlice&, Element, std::int64_t rows, CudaStream);

  /// The card's name and the GEMM library's version; what makes timings comparable.
  CudaError (*tuning_key)(const char** card, std::uint64_t* library);
  /// At most `most` algorithms, the heuristic's favourite first; none where it has none.
  CudaError (*gemm_algorithms)(const CudaGemm&, std::int64_t workspace, CudaGemmAlgorithm* algorithms, int most,
                               int* found);
  /// Whether an algorithm from a file can still run this GEMM.
  CudaError (*gemm_fits)(const CudaGemm&, const CudaGemmAlgorithm&, bool* fits);
  CudaError (*gemm)(const CudaGemm&, const CudaGemmAlgorithm&, void* workspace, CudaStream);

  /// Four doubles into device memory, by value: what the host writes afterwards does not matter.
  CudaError (*set_step_scalars)(double* to, double a, double b, double c, double d, CudaStream);
  CudaError (*clip_grad_norm)(const CudaClipGradNorm&, CudaStream);
  /// kernels/fp8.h: fp8_advance.
  CudaError (*fp8_advance)(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, double factor,
                           CudaStream);
};

inline constexpr device::CudaTableHeader kCudaKernelsHeader{kCudaKernelsVersion, sizeof(CudaKernels)};

extern "C" {
/// The symbol that the library is asked for.
__attribute__((visibility("default"))) const CudaKernels* trireme_cuda_kernels();
}
using CudaKernelsEntry = decltype(trireme_cuda_kernels);
inline constexpr const char* kCudaKernelsEntry = "trireme_cuda_kernels";

}  // namespace trireme::kernels
