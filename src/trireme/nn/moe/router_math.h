// nn/moe/router_math.h -- what routers are made of: selection with ties to the lowest number, softmax, CV^2, capacity.
//
// Depends on: router.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/nn/moe/router.h"

namespace trireme::nn::moe {

/// Rows of a matrix that lies in a span.
template <typename Number>
std::span<Number> row_of(std::span<Number> matrix, std::int64_t row, std::int64_t width) {
  return matrix.subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
}

/// The numbers of the k largest, falling; of equal ones the lowest number first. k may exceed how many there are.
std::vector<std::int32_t> top_k(std::span<const double> scores, std::int64_t k);
/// Into `out`, whose memory is used again: for loops over tokens.
void top_k(std::span<const double> scores, std::int64_t k, std::vector<std::int32_t>& out);

/// Of `scores` [tokens, experts], the k tokens with the largest ones for an expert, falling, the lowest number first of
/// equal ones. Compared in fp32: two tokens can be equal (a sample that begins with one token twice), and their scores
/// in double then differ by 1e-17, as sums come out in the order of this layout. Experts' weights are never equal.
std::vector<std::int32_t> top_tokens(std::span<const double> scores, std::int64_t experts, std::int64_t expert,
                                     std::int64_t k);

/// p = softmax(x); gives log(sum(exp(x))). p may be x.
double softmax(std::span<const double> x, std::span<double> p);
/// grad_x += p (grad_p - sum(p grad_p)).
void add_softmax_gradient(std::span<const double> p, std::span<const double> grad_p, std::span<double> grad_x);

double sigmoid(double x);
double softplus(double x);

/// (standard deviation / mean)^2 with the population's variance; 0 where the mean is 0.
double cv_squared(std::span<const double> values);
/// Its gradient.
std::vector<double> cv_squared_gradient(std::span<const double> values);

/// Tokens that an expert takes: ceil(choices * tokens / experts * factor), at most all tokens.
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t choices, std::int64_t experts, double factor);

/// Drops what exceeds `capacity` of an expert: first choices in the order of tokens, then second ones, and so on. Those
/// that are dropped already take no place.
void drop_above_capacity(Routing& routing, std::int64_t experts, std::int64_t capacity);

/// sum over experts of share_i * mean probability_i, with share_i = counts_i / sum(counts); 0 without tokens.
/// `probabilities` are [tokens, experts].
double balance(std::span<const std::int64_t> counts, std::span<const double> probabilities);

/// From tokens of each expert to experts of each token, in falling order of gates; for routers where experts choose.
struct TakenToken {
  std::int32_t expert = 0;
  std::int64_t token = 0;
  double gate = 0;
};
void set_choices(Routing& routing, std::int64_t tokens, std::vector<TakenToken> taken);

}  // namespace trireme::nn::moe
