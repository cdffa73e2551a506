// plan/goodput.h -- how much of the time is left for training when devices fail and checkpoints are written.
//
// Depends on: job, cost.
#pragma once

#include "trireme/cost/hardware.h"
#include "trireme/plan/job.h"

namespace trireme::plan {

/// Young 1974: sqrt(2 C M). Seconds of work between checkpoints that cost C, when failures are M apart in the mean.
double young_interval(double checkpoint_seconds, double mtbf_seconds);
/// Daly 2006, the higher-order form; M where a checkpoint costs 2 M or more.
double daly_interval(double checkpoint_seconds, double mtbf_seconds);
/// Daly 2006, the exact model: wall time for each second of work, with failures exponentially distributed and a
/// restart that can fail too.
double expected_slowdown(double interval, double checkpoint_seconds, double mtbf_seconds, double restart_seconds);

struct Goodput {
  double mtbf_seconds = 0;        ///< of the whole job
  double checkpoint_bytes = 0;    ///< weights, master weights and moments
  double checkpoint_seconds = 0;  ///< training stands still: background writing only makes it better
  double interval_seconds = 0;    ///< Daly's
  double share = 0;               ///< of the time in which training moves on
};

Goodput estimate_goodput(const cost::Hardware& hardware, const Job& job, int gpus);

}  // namespace trireme::plan
