// schedule/waves.h -- wave synchronous parallel (HetPipe, Park et al. 2020, 2005.14038, section 5): which weights a
// minibatch of a virtual worker computes with, and how stale they may be.
//
// A virtual worker is a pipeline that has Nm minibatches in flight; a wave is Nm of them in a row. At the end of a wave
// it pushes the sum of its updates, once. In a table a micro is a minibatch, the micros of an optimizer step are a wave
// of every virtual worker, kReduceGradients is the push and kOptimizerStep the pull that brings the wave in.
//
// Ours is the paper's bound made exact: minibatch m of a virtual worker (from 0, since the pipeline was empty) computes
// with all waves of everybody up to version(m), which is the oldest that the paper allows, and with its own minibatches
// up to m - Nm. A run is then a function of its recipe, whatever the machines do, and has a serial twin.
// Depends on: schedule.
#pragma once

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

struct WaveLaw {
  int minibatches = 1;     ///< of a wave: Nm
  int clock_distance = 0;  ///< D

  /// The law of a table of kWaves.
  static WaveLaw of(const Schedule& schedule);

  /// Waves of all virtual workers in the weights of minibatch m: it starts its wave's last minibatch only with all
  /// waves but the D + 1 before its own.
  int version(int minibatch) const;
  /// The first own minibatch that is not in its weights: all before it are, through waves or by themselves.
  int own_until(int minibatch) const;

  /// Own updates that weights may lack: Nm - 1.
  int local_bound() const { return minibatches - 1; }
  /// Updates of others: (D + 1)(s_local + 1) + s_local - 1, minibatches of each.
  int global_bound() const { return (clock_distance + 1) * (local_bound() + 1) + local_bound() - 1; }
};

/// What was met, against the bounds: for whoever runs or simulates waves.
struct StalenessMonitor {
  WaveLaw law;
  int local = 0, global = 0;  ///< the most so far
  /// A minibatch begins with so many waves of everybody and its own minibatches before `own`. An internal error above
  /// the bounds.
  void met(int minibatch, int waves, int own);
};

/// Of a table with several virtual workers: which minibatch of its own worker a micro is.
int own_number(const Schedule& schedule, int micro);

}  // namespace trireme::schedule
