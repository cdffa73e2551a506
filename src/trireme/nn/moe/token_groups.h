// nn/moe/token_groups.h -- from the tokens of a rank to balance groups of whole samples, and from routings to rows.
//
// Depends on: base, comm, router.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/nn/context.h"
#include "trireme/nn/moe/router.h"
#include "trireme/nn/moe/row_ops.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn::moe {

class ExpertCopies;

/// The tokens of a micro-batch's whole samples, those of other context- and sequence-parallel ranks included.
struct TokenGroups {
  std::int64_t samples = 0, length = 0;  ///< tokens are samples x length
  std::int64_t group_samples = 1;        ///< of each group; of the last in evaluation perhaps fewer
  std::vector<std::int64_t> numbers;     ///< of each token: as nn::token_numbers
  std::vector<std::int64_t> mine;        ///< which of them this rank has, in its order

  std::int64_t groups() const { return (samples + group_samples - 1) / group_samples; }
  std::int64_t samples_of(std::int64_t group) const;
  /// Tokens of the group: [first, first + count).
  std::int64_t first_token(std::int64_t group) const { return group * group_samples * length; }
  std::int64_t tokens_of(std::int64_t group) const { return samples_of(group) * length; }
};

/// `x` [samples, tokens here, ..]. In training a ConfigError where a micro-batch does not hold whole groups. An
/// inference step with a KV cache is one group.
TokenGroups token_groups(const at::Tensor& x, std::int64_t group_samples, const Context& context, Stream stream,
                         const ParallelContext& parallel);

/// [samples, tokens here, n] of each rank becomes [samples, length, n] on all that share the samples, by column.
at::Tensor gather_tokens(const at::Tensor& part, std::int64_t length, const ParallelContext& parallel);

/// The kept choices of this rank's tokens, sorted by (expert, token).
struct HomeRows {
  std::vector<std::int64_t> counts;       ///< [experts], or slots of experts and copies
  at::Tensor token;                       ///< int64 [rows]: which of this rank's tokens
  at::Tensor token_number;                ///< int64 [rows]: global
  at::Tensor gates;                       ///< [rows]
  std::vector<std::size_t> choice;        ///< [rows]: its place in the choices of all groups, one after the other
  std::vector<std::int64_t> first, rows;  ///< of each token, its rows by falling gate, then by expert

  /// Its tensors go to a GPU, where the tokens are.
  void move_to(at::Device device);
  TokenRows of_tokens() const { return {first, rows}; }
};
struct HomeOptions {
  std::int64_t experts = 1;
  at::ScalarType gate_type = at::kFloat;
  TokenRange taken;                      ///< of this rank's tokens, those whose rows it dispatches; others have none
  const ExpertCopies* copies = nullptr;  ///< where experts have some, rows are sorted by slot, and counted by it
};
HomeRows home_rows(const TokenGroups& groups, std::span<const Routing> routings, const HomeOptions& options);

}  // namespace trireme::nn::moe
