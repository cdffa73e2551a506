// kernels/attention.h -- softmax(scale q k^T + mask) v, tile by tile: no s x s matrix ever exists.
//
// FlashAttention's recipe: the forward pass keeps a running maximum and sum for each query row and saves their
// log-sum-exp; the backward pass computes the tiles' probabilities again from it. Tiles that the mask rules out are not
// visited, so a causal mask halves the work and a window makes it linear in the sequence.
//
// Tensors are [batch, seq_len, heads, head_dim], float, double, bfloat16 or half, any strides but a contiguous last
// dimension: q, k and v may be views of one fused projection. Queries' heads are a multiple of keys' heads (grouped
// and multi-query attention); gradients of shared heads are summed in a fixed order. The same inputs give the same bits
// whatever the number of threads; another instruction set may give others.
//
// Sums are kept in float (double for double). Where the machine multiplies bfloat16, the probabilities and their
// gradients are rounded to it for the GEMMs that follow, as flash kernels do; elsewhere, and in half precision,
// they stay float. Values that a query does not see must be finite: their products are multiplied by zero.
//
// Each thread keeps scratch between calls, as much as its largest call took: about one head's keys and values in
// packed forms (forward: once each; backward: three copies and two sums in float) and 128 rows of queries. Where
// batch x heads of keys are fewer than 16 and sequences long, the backward pass also keeps up to 16 heads' sums.
// On a GPU, bfloat16 and half run cuDNN's or ATen's flash kernels where those take the mask, our own otherwise:
// attention_cuda.h.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/dropout.h"

namespace trireme::kernels {

class BlockLayout;

struct Attention {
  double scale = 1.0;
  bool causal = false;      ///< a query sees keys at its own and earlier positions
  std::int64_t window = 0;  ///< and at most this many positions back, itself included (both ways if not causal); 0: all
  std::int64_t query_position = 0, key_position = 0;  ///< of the first row: blocks of a longer sequence, caches
  /// Packed documents: int32 [batch, seq_len] each, equal numbers see each other. A document's keys are neighbours; a
  /// ConfigError where they are not. Null or undefined both: all tokens of a row are one document.
  const at::Tensor* query_documents = nullptr;
  const at::Tensor* key_documents = nullptr;
  /// Of probabilities, after the softmax: lse knows nothing of it. The draw of (sample, head, query, key) is drawn by
  /// global indices, positions counted from query_position and key_position, all in [0, 2^32).
  const AttentionDropout* dropout = nullptr;
  /// Block-sparse attention: of what the mask leaves, only these blocks are computed (block_layout.h). Queries and keys
  /// are whole rows, or the rectangle of them that the layout is of; head h has the layout's head first_layout_head +
  /// h. Null: all blocks.
  const BlockLayout* blocks = nullptr;
  std::int64_t first_layout_head = 0;
  bool deterministic = false;  ///< on a GPU: backward gives the same bits every time; what that costs is logged once
};

/// `out` like q; `lse` float (double) [batch, heads, queries]: log-sum-exp of a row's scores, -inf where it sees no key
/// (its output is then zero). Both are written in full.
void attention_forward(at::Tensor& out, at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const Attention& options);

/// The same in tensors that it makes: on a GPU this spares a copy where a library makes its own.
struct AttentionResult {
  at::Tensor out, lse;
};
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Attention& options);

/// `dq`, `dk`, `dv` like q, k, v (any strides: views of one fused gradient) are overwritten. `lse` and `out` may come
/// from more keys than k has, as when blocks of keys pass round a ring: the gradients are then those of this block.
void attention_backward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const Attention& options);

/// A draw of 32 bits is below this, and its element dropped, with probability p.
std::uint32_t dropout_threshold(double p);

/// Joins the results over two sets of keys, `out` and `lse` taking in the other's: what a ring does with each block.
/// `out` is rounded to its type each time.
void attention_merge(at::Tensor& out, at::Tensor& lse, const at::Tensor& other_out, const at::Tensor& other_lse);

}  // namespace trireme::kernels
