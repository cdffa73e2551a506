// ps/lasso.h -- L1-regularised logistic regression by delayed block proximal gradient (Li et al. 2014, section 5.1).
//
//   minimise  F(w) = sum_i log(1 + exp(-y_i x_i . w)) + lambda |w|_1
//
// Clock t is about one block of features. Each worker pushes, over its own rows, the gradient u of the block and a
// bound L of its curvature; servers sum both over workers and set w <- soft(w - u / L, lambda / L); workers pull the
// block back. Clock t begins when clocks <= t - tau - 1 are done, so gradients lack the last tau blocks at most, and L
// is larger by the blocks that may be under way. Between passes all gradients are made anew at the same weights,
// without an update (L = 0): that tells how far the optimality conditions (KKT) are from holding, and which features
// the KKT filter may leave out until the next time. So filters and delays change the way and never the solution.
// Depends on: comm (mailbox), formats (libsvm), ps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/comm/mailbox.h"
#include "trireme/formats/libsvm.h"
#include "trireme/ps/filters.h"

namespace trireme::ps {

struct LassoOptions {
  double lambda = 1;
  double tolerance = 1e-6;  ///< of the largest violation of the optimality conditions
  int servers = 2, workers = 2, copies = 1, blocks = 8;
  std::uint64_t tau = 1;
  bool kkt_filter = true;
  Filters filters = {};  ///< key caching and compression; those that hold values back are not for sums over workers
  int passes = 20;       ///< over the blocks between two checks
  int checks = 2000;     ///< at most
};

struct LassoResult {
  std::vector<double> weights;
  double objective = 0, violation = 0;
  int checks = 0;
  bool converged = false;
  std::uint64_t most_stale = 0;
  std::int64_t pushed_keys = 0, all_keys = 0;  ///< of worker 0: sent, and without the KKT filter
  std::int64_t sent_bytes = 0, raw_bytes = 0;  ///< of worker 0
  std::int64_t nonzeros() const;
};

double lasso_objective(const formats::SparseSamples& samples, const std::vector<double>& weights, double lambda);
/// The largest distance of any feature from its optimality condition: u = -lambda sign(w) where w is not 0, |u| <=
/// lambda where it is.
double kkt_violation(const std::vector<double>& weights, const std::vector<double>& gradient, double lambda);
std::vector<double> lasso_gradient(const formats::SparseSamples& samples, const std::vector<double>& weights);

/// One feature after the other, on one thread: the plain version.
LassoResult solve_lasso_serially(const formats::SparseSamples& samples, double lambda, double tolerance);

/// Addresses: 0 the manager, then servers, then workers.
constexpr int lasso_mailboxes(const LassoOptions& options) { return 1 + options.servers + options.workers; }
/// ConfigError where the options do not go together with the samples.
void check_lasso(const formats::SparseSamples& samples, const LassoOptions& options);
/// One mailbox's part; the result is filled in by worker 0's call.
void run_lasso(comm::Mailbox& mailbox, const formats::SparseSamples& samples, const LassoOptions& options,
               LassoResult& result);

}  // namespace trireme::ps
