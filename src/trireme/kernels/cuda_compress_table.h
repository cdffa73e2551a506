// kernels/cuda_compress_table.h -- what gradient compression asks of a GPU: codes with residuals, the largest elements,
// orthonormal columns. A table of libtrireme_cuda beside cuda_table.h's.
//
// All pointers are device memory; numbers are float, or double where Element says so. Sums have one order, and what is
// chosen does not depend on who comes first: the same input gives the same bits on every rank.
//
// A parameter's elements (or rows) are shared out among `owners`, share o being [n o / owners, n (o + 1) / owners); its
// code lies in one slot for each owner, `slot_bytes` apart.
// Depends on: device/cuda_runtime.h.
#pragma once

#include <cstdint>

#include "trireme/device/cuda_runtime.h"
#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

/// One bit an element and two means a row (means of those below zero and of the others). c = gradient + kept; next is
/// what the code leaves of it, and may be `kept`.
struct CudaRowCode {
  const void *gradient = nullptr, *kept = nullptr;
  void* next = nullptr;
  std::uint8_t* codes = nullptr;              // of the first owner: two numbers a row
  std::int64_t slot_bytes = 0, signs_at = 0;  // signs: from there on, words of 32 for each row
  std::int64_t rows = 0, columns = 0, owners = 1;
  double* errors = nullptr;  // |c - said|^2 and |c|^2 of each row
};
/// out [rows, columns] = what the codes of `messages`, each so many bytes after the last, say together.
struct CudaRowDecode {
  const std::uint8_t* codes = nullptr;
  std::int64_t slot_bytes = 0, signs_at = 0, message_bytes = 0;
  std::int64_t rows = 0, columns = 0, owners = 1, messages = 1;
  void* out = nullptr;
};

/// Signs and a scale for each share: |c|_2 / sqrt(n) of the n elements whose variance is not 0; the others stand still.
struct CudaScaledCode {
  const void *values = nullptr, *kept = nullptr, *variance = nullptr;
  void* next = nullptr;
  std::uint8_t* codes = nullptr;  // of the first owner: the scale
  std::int64_t slot_bytes = 0, signs_at = 0;
  std::int64_t count = 0, owners = 1;
  double* partial = nullptr;  // room for kCudaScaledBlocks x 3 numbers for each owner
  double* errors = nullptr;   // |c - said|^2 and |c|^2 of each share
};
inline constexpr std::int64_t kCudaScaledBlocks = 2048;
/// out = factor * (what all messages say), 0 where the variance is.
struct CudaScaledDecode {
  const std::uint8_t* codes = nullptr;
  const void* variance = nullptr;
  std::int64_t slot_bytes = 0, signs_at = 0, message_bytes = 0;
  std::int64_t count = 0, owners = 1, messages = 1;
  double factor = 1;
  void* out = nullptr;
};

/// QSGD in fixed bits: norms of buckets, and levels in `width` words for every 32 elements, bit by bit. Draws are
/// parallel/compress/qsgd_code.h's.
struct CudaQsgdCode {
  const void* values = nullptr;
  void* norms = nullptr;
  std::uint32_t* words = nullptr;
  std::int64_t count = 0, bucket_size = 512;
  std::int32_t levels = 7, width = 4;
  bool by_max = true;
  std::uint32_t draws[4] = {};
  double* errors = nullptr;  // of each bucket
};
/// out = what all messages say together; norms and words of the first one.
struct CudaQsgdDecode {
  const void* norms = nullptr;
  const std::uint32_t* words = nullptr;
  std::int64_t message_bytes = 0, count = 0, bucket_size = 512, messages = 1;
  std::int32_t levels = 7, width = 4;
  void* out = nullptr;
};

/// Rounded to 16 bits, or to 8 with a scale for every kCudaDeltaBlock elements of a share.
inline constexpr std::int64_t kCudaDeltaBlock = 512;
struct CudaDeltaCode {
  const void* values = nullptr;
  void* residual = nullptr;       // added to values; becomes what was left out
  std::uint8_t* codes = nullptr;  // of the first owner
  std::int64_t slot_bytes = 0, levels_at = 0;
  std::int64_t count = 0, owners = 1;
  bool half = false;
};
/// The owner's part: the mean of what all messages say of its share, rounded again; `owners` times what that leaves out
/// is added to its residual.
struct CudaDeltaMean {
  const std::uint8_t* codes = nullptr;
  std::int64_t message_bytes = 0, levels_at = 0, messages = 1;
  std::uint8_t* mean = nullptr;  // the code
  std::int64_t count = 0;        // of the share
  void* residual = nullptr;      // of the share
  bool half = false;
};
struct CudaDeltaDecode {
  const std::uint8_t* codes = nullptr;
  std::int64_t slot_bytes = 0, levels_at = 0, count = 0, owners = 1;
  void* out = nullptr;
  bool half = false;
};

/// The k largest by absolute value (of equal ones the first; NaN as infinity), in any order: places and values out,
/// zero in `values` and `also`. Exact; a sample of every `stride`-th number only spares passes.
struct CudaTopK {
  void* values = nullptr;
  void* also = nullptr;  // null: nothing else is cleared
  std::int64_t count = 0, k = 0;
  std::int64_t stride = 0, sampled_place = 0;  // stride 0: no sample
  std::uint32_t* candidates = nullptr;         // room for `count`
  std::uint64_t* state = nullptr;              // room for kCudaTopKState
  std::uint32_t* places = nullptr;
  void* chosen = nullptr;
};
inline constexpr std::int64_t kCudaTopKState = 320;
/// out[places[i]] += values[i]; no place twice.
struct CudaScatter {
  const std::uint32_t* places = nullptr;
  const void* values = nullptr;
  std::int64_t count = 0;
  void* out = nullptr;
};

/// Columns of [rows, rank] become orthonormal, in place: parallel/compress/power_iteration.h.
struct CudaColumns {
  void* values = nullptr;
  std::int64_t rows = 0, rank = 0;
};

/// Raised by one whenever a member changes its meaning or place.
inline constexpr std::uint32_t kCudaCompressVersion = 2;

struct CudaCompressKernels {
  device::CudaTableHeader header;
  device::CudaError (*encode_rows)(const CudaRowCode&, Element, device::CudaStream);
  device::CudaError (*decode_rows)(const CudaRowDecode&, Element, device::CudaStream);
  device::CudaError (*encode_scaled)(const CudaScaledCode&, Element, device::CudaStream);
  device::CudaError (*decode_scaled)(const CudaScaledDecode&, Element, device::CudaStream);
  device::CudaError (*encode_qsgd)(const CudaQsgdCode&, Element, device::CudaStream);
  device::CudaError (*decode_qsgd)(const CudaQsgdDecode&, Element, device::CudaStream);
  device::CudaError (*encode_delta)(const CudaDeltaCode&, Element, device::CudaStream);
  device::CudaError (*mean_delta)(const CudaDeltaMean&, Element, device::CudaStream);
  device::CudaError (*decode_delta)(const CudaDeltaDecode&, Element, device::CudaStream);
  device::CudaError (*top_k)(const CudaTopK&, Element, device::CudaStream);
  device::CudaError (*scatter_add)(const CudaScatter&, Element, device::CudaStream);
  device::CudaError (*orthogonalise)(const CudaColumns* matrices, std::int64_t count, Element, device::CudaStream);
};

inline constexpr device::CudaTableHeader kCudaCompressHeader{kCudaCompressVersion, sizeof(CudaCompressKernels)};

extern "C" {
/// The symbol that the library is asked for.
__attribute__((visibility("default"))) const CudaCompressKernels* trireme_cuda_compress();
}
using CudaCompressEntry = decltype(trireme_cuda_compress);
inline constexpr const char* kCudaCompressEntry = "trireme_cuda_compress";

}  // namespace trireme::kernels
