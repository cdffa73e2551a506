// kernels/cuda_inference_table.h -- what only inference asks of a GPU, as a third table of libtrireme_cuda: attention
// over a paged KV cache, GEMMs of few rows, drawing tokens.
//
// Its own table beside cuda_table.h: training never loads it, and the two change at different times. The same rules
// hold: plain C++, pointers are device memory, every function launches on `stream`, waits for nothing, and returns null
// or CUDA's error. All of them may be captured in a CUDA graph: sizes that change from step to step are read on the
// device.
// Depends on: cuda_table.h.
#pragma once

#include <cstdint>

#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels {

/// Single queries over blocks of keys and values: paged_attention.h.
struct CudaPagedAttention {
  const void *q = nullptr, *keys = nullptr, *values = nullptr;
  void* out = nullptr;
  std::int64_t q_row = 0, q_head = 0, out_row = 0, out_head = 0;  // strides, in elements
  std::int64_t rows = 0;                                          // queries
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0, block_size = 0;
  const std::int32_t* block_tables = nullptr;  // [sequences, table_stride]
  std::int64_t table_stride = 0;
  const std::int32_t* sequences = nullptr;  // [rows]: which table
  const std::int32_t* lengths = nullptr;    // [rows]: keys up to and with its own; 0: the row is left alone
  double scale = 1;
  std::int64_t window = 0;  // 0: none
  // Each query's keys are shared out over so many thread blocks, whose results a second kernel combines.
  std::int32_t splits = 1;
  float *partial_out = nullptr, *partial_lse = nullptr;  // [rows, heads, splits, head_dim], [rows, heads, splits, 2]
};

/// New keys and values [rows, heads, head_dim] into their slots of [slots, heads, head_dim].
struct CudaPagedWrite {
  const void *k = nullptr, *v = nullptr;  // v null: none
  void *keys = nullptr, *values = nullptr;
  std::int64_t k_row = 0, v_row = 0;    // strides between rows, in elements; heads are contiguous
  std::int64_t rows = 0, width = 0;     // width: heads x head_dim
  const std::int64_t* slots = nullptr;  // below 0: not written
};

/// out [m, n] = x [m, k] W [n, k]^T (+ bias) (+ residual), few rows: the weight is read once, at the speed of memory.
struct CudaSkinnyGemm {
  enum Format : std::int32_t {
    kSame,  ///< as x
    kInt8,  ///< a scale a row
    kInt4,  ///< a scale and a zero point for each group of a row
    kE4m3,  ///< a scale a row
  };
  static constexpr std::int64_t kMostRows = 16;
  const void *x = nullptr, *weight = nullptr, *bias = nullptr, *residual = nullptr;
  void* out = nullptr;  // of x's type, or float
  Element element = Element::kBfloat16;
  Format format = kSame;
  bool float_out = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t x_stride = 0, weight_stride = 0, out_stride = 0,
               residual_stride = 0;                 // in elements; weights: of the format
  const float *scales = nullptr, *zeros = nullptr;  // [n] or [n, k / group]
  std::int64_t group = 0;
  const void* norm_weight = nullptr;  // [k]: x goes through an RMSNorm first
  float norm_eps = 0;
  bool gated = false;  // W's first half are gates: out [m, n / 2] = SiLU(gate) up, without bias and residual
};

/// Rows of x [rows, width] as e4m3, each over a scale of its own: the largest magnitude over 448 (1 where all are 0).
struct CudaQuantiseRows {
  const void* x = nullptr;
  std::int64_t rows = 0, width = 0, stride = 0;  // width: a multiple of 16
  void* codes = nullptr;                         // [rows, width]
  float* scales = nullptr;                       // [rows]
};

/// The likeliest token of each row of logits, the lowest of equals; -1 where a logit is NaN or the largest is infinite.
struct CudaArgmax {
  const void* logits = nullptr;
  Element element = Element::kFloat;
  std::int64_t rows = 0, width = 0, stride = 0;
  std::int64_t* tokens = nullptr;
};

inline constexpr std::uint32_t kCudaInferenceVersion = 2;

struct CudaInference {
  device::CudaTableHeader header;
  /// Heads of at most 256 numbers. On tensor cores: 16 bits, pages of 16, heads of 32, 64, 80, 96, 128 or 256.
  CudaError (*paged_attention)(const CudaPagedAttention&, Element, CudaStream);
  CudaError (*paged_write)(const CudaPagedWrite&, Element, CudaStream);
  CudaError (*skinny_gemm)(const CudaSkinnyGemm&, CudaStream);
  CudaError (*argmax)(const CudaArgmax&, CudaStream);
  /// x bf16; n a multiple of 16, k of 64 (bf16), 128 (int8, e4m3) or 256 (int4); operands that fit into shared memory.
  CudaError (*stream_gemm)(const CudaSkinnyGemm&, CudaStream);
  CudaError (*stream_gemm_fits)(const CudaSkinnyGemm&);  ///< why it would not run; null: it would
  CudaError (*quantise_rows)(const CudaQuantiseRows&, Element, CudaStream);
};

inline constexpr device::CudaTableHeader kCudaInferenceHeader{kCudaInferenceVersion, sizeof(CudaInference)};

extern "C" {
__attribute__((visibility("default"))) const CudaInference* trireme_cuda_inference();
}
using CudaInferenceEntry = decltype(trireme_cuda_inference);
inline constexpr const char* kCudaInferenceEntry = "trireme_cuda_inference";

}  // namespace trireme::kernels
