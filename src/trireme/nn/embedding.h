// nn/embedding.h -- token ids to vectors, with learned or fixed positions, token types, a norm and dropout, as
// models ask. Ranks of a parallel context have a slice of the vocabulary each.
//
// Depends on: base, comm, kernels.
#pragma once

#include <optional>

#include "trireme/nn/dropout.h"
#include "trireme/nn/norm.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

struct EmbeddingParts {
  Param* tokens = nullptr;     ///< [vocab_size, hidden_size]
  Param* positions = nullptr;  ///< [positions, hidden_size], learned; or null
  at::Tensor fixed_positions;  ///< [positions, hidden_size], in double: rounded to the compute type; or undefined
  Param* segments = nullptr;   ///< [types, hidden_size], BERT's; or null
  double scale = 1;            ///< token vectors are multiplied by it (the original Transformer: sqrt(hidden_size))
  Stream stream = Stream::kSequence;
};

class Embedding final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  Embedding(EmbeddingParts parts, std::optional<Norm> norm, Dropout dropout,
            const ParallelContext& parallel = single_rank());
  /// int64 [batch, seq_len] to [batch, seq_len, hidden_size]. A ConfigError for a token beyond the vocabulary or a
  /// position beyond the table.
  at::Tensor forward(at::Tensor ids, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  void check(const at::Tensor& ids, const at::Tensor& positions, Context& context) const;
  /// Of [batch, seq_len] numbers, those of the tokens that this rank has after the embedding.
  at::Tensor part_of(const at::Tensor& numbers) const;
  at::Tensor position_table(Context& context);
  at::Tensor token_vectors(const at::Tensor& ids, const at::Tensor& positions, const at::Tensor& table,
                           Context& context) const;

  EmbeddingParts parts_;
  std::optional<Norm> norm_;
  Dropout dropout_;
  const ParallelContext* parallel_;
  at::Tensor fixed_;  ///< parts_.fixed_positions in the compute type, made when first needed
};

/// sin and cos of position / 10000^(2i/hidden_size), alternating (Vaswani et al. 2017, section 3.5); double [positions,
/// hidden_size].
at::Tensor sinusoidal_positions(std::int64_t positions, std::int64_t hidden_size);

}  // namespace trireme::nn
