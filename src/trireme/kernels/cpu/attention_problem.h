// kernels/cpu/attention_problem.h -- what attention.cpp hands to the bodies: plain pointers, strides and numbers.
//
// The bodies are compiled once per instruction set (attention_body.h), so neither tensors nor the standard library's
// templates appear here. A call is cut into spans of blocks of queries, by the shapes alone; each span is computed by
// one thread and what spans add to the same gradient is added in their order, so threads never change a bit.
// Depends on: std.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::kernels::cpu {

enum class AttentionType : std::uint8_t { kFloat, kDouble, kHalf, kBfloat16 };
constexpr int kAttentionTypes = 4;

/// A tensor [batch, seq_len, heads, head_dim]: strides count elements, the last is 1.
template <typename Pointer>
struct AttentionRows {
  Pointer data = nullptr;
  std::int64_t batch = 0, row = 0, head = 0;
};

struct AttentionDropoutRng {
  const std::uint32_t (*streams)[4] = nullptr;  ///< [batch * heads]: where each head's draws are; null: none fall
  std::uint32_t threshold = 0;                  ///< a probability falls when its 32 bits are below this
  double dropout_scale = 1;                     ///< 1 / (1 - p)
};

/// Block-sparse attention: a tile of a unit's 128 queries by four chunks of 16 keys, which need not be neighbours, and
/// of which some blocks of 16 x 16 are computed. Bit 4 i + j stands for queries 16 i to 16 i + 15 of the unit and chunk
/// j.
struct AttentionTile {
  std::int32_t chunks[4] = {};  ///< keys 16 chunk to 16 chunk + 15; -1 behind the last
  std::uint32_t blocks = 0;
};

struct AttentionProblem {
  std::int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, head_dim = 0;
  double scale = 1;
  /// Query i of batch row b sees keys [begin[b * visible_batch + i], end[...]): every mask we have leaves one range.
  const std::int32_t *visible_begin = nullptr, *visible_end = nullptr;
  std::int64_t visible_batch = 0;
  std::int64_t query_position = 0, key_position = 0;  ///< for the draws
  AttentionDropoutRng dropout_rng;
  /// Block-sparse: unit u of head h has tiles [tile_begin[h * units + u], tile_begin[... + 1]); null: all tiles.
  const std::int64_t* tile_begin = nullptr;
  const AttentionTile* tiles = nullptr;

  AttentionRows<const void*> q, k, v, dout, out_read;
  AttentionRows<void*> out, dq, dk, dv;
  void* lse = nullptr;  ///< [batch, heads, queries]; written by the forward pass, read by the backward pass
  std::int64_t lse_batch = 0, lse_head = 0;

  std::int64_t group() const { return heads / key_heads; }
};

/// Units [begin, end) of one head of keys; a unit is one block of queries of one of the heads that share it.
struct AttentionSpan {
  std::int64_t batch = 0, key_head = 0, begin = 0, end = 0;
  const AttentionSpan* next = nullptr;  ///< what this thread does next, if that is known: its rows are fetched early
};

/// Rows of the output that a merge joins: out = out_weight * out + other_weight * other.
struct AttentionMerge {
  void* out = nullptr;
  const void* other = nullptr;
  std::int64_t size = 0;
  double out_weight = 0, other_weight = 0;
};

/// The functions for one element type. Scratch is 64-byte aligned and belongs to one thread.
struct AttentionBody {
  std::size_t (*forward_scratch)(const AttentionProblem&) = nullptr;
  void (*forward)(const AttentionProblem&, const AttentionSpan&, void* scratch) = nullptr;
  std::size_t (*backward_scratch)(const AttentionProblem&) = nullptr;
  /// Writes dq; leaves the span's share of dk and dv in `sums`, which `write_sums` adds up and writes.
  void (*backward)(const AttentionProblem&, const AttentionSpan&, void* sums, void* scratch) = nullptr;
  std::size_t (*sums_bytes)(const AttentionProblem&) = nullptr;
  /// `sums`: those of the spans of one head of keys, one after the other. The first is overwritten.
  void (*write_sums)(const AttentionProblem&, std::int64_t batch, std::int64_t key_head, void* sums,
                     std::int64_t spans) = nullptr;
  void (*merge)(const AttentionMerge&) = nullptr;
};

struct AttentionBodies {
  AttentionBody by_type[kAttentionTypes];
};

constexpr std::int64_t kAttentionQueryBlock = 128;  ///< queries in a unit
constexpr std::int64_t kAttentionKeyBlock = 64;     ///< keys in a tile

extern const AttentionBodies kAttentionPlain, kAttentionV3, kAttentionV4;
extern const AttentionBody kAttentionBfloat16Dot;  ///< bfloat16 where the machine multiplies it

}  // namespace trireme::kernels::cpu
