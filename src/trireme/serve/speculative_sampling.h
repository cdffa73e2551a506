// serve/speculative_sampling.h -- the rejection rule of speculative sampling (Leviathan 2023, 2211.17192; Chen 2023,
// 2302.01318).
//
// A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)); otherwise a token is drawn from
// max(p - q, 0), normalised. What comes out is distributed as p:
//   q(x) min(1, p(x) / q(x)) + (1 - sum_y q(y) min(1, p(y) / q(y))) residual(x) = p(x).
// q must be what the draft was really drawn from, after temperature and whatever else was left out.
// Depends on: sampler.h.
#pragma once

#include "trireme/serve/sampler.h"

namespace trireme::serve {

/// min(1, p / q) of a token that q can draw.
double acceptance(const Distribution& p, const Distribution& q, std::int64_t token);
/// max(p - q, 0), normalised; p itself where nothing is left, which a rejection never meets.
Distribution residual_of(const Distribution& p, const Distribution& q);

struct Verified {
  std::int64_t token = 0;
  bool accepted = false;
};
/// `accept` and `residual` are in [0, 1), of one token each.
Verified verify_draft(const Distribution& p, const Distribution& q, std::int64_t draft, double accept, double residual);

}  // namespace trireme::serve
