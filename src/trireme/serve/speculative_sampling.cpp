#include "trireme/serve/speculative_sampling.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::serve {

double acceptance(const Distribution& p, const Distribution& q, std::int64_t token) {
  const double drawn = q.of(token);
  TRIREME_CHECK(drawn > 0, "a draft of token {} from a distribution that has none", token);
  return std::min(1.0, p.of(token) / drawn);
}

Distribution residual_of(const Distribution& p, const Distribution& q) {
  Distribution out;
  double total = 0;
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    const double left = p.probabilities[i] - q.of(p.tokens[i]);
    if (left <= 0) continue;
    out.tokens.push_back(p.tokens[i]);
    out.probabilities.push_back(left);
    total += left;
  }
  if (out.tokens.empty()) return p;
  for (double& probability : out.probabilities) probability /= total;
  return out;
}

Verified verify_draft(const Distribution& p, const Distribution& q, std::int64_t draft, double accept,
                      double residual) {
  if (accept < acceptance(p, q, draft)) return {draft, true};
  return {residual_of(p, q).draw(residual), false};
}

}  // namespace trireme::serve
