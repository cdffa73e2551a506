// train/engine/updates.h -- when a step's update happens: at its end, or, on the host, beside the next step.
//
// Late updates are ZeRO-Offload's (Ren et al. 2021, section 5.2), for an update that would take longer than a step's
// passes. Steps are numbered from 1, W = layout.offload_warmup, m_t are the masters after the updates of t steps (m_0
// the first numbers), v_t what layers compute step t with, and U is the optimizer with clipping:
//
//   g_t = gradient of step t's loss at v_t         m_t = U(m_(t-1), g_t)
//   v_t = m_(t-1)      for t <= W + 1              v_t = m_(t-2)      for t > W + 1
//
// So step W + 1 is the first whose update is late: while it runs on a thread of its own, step W + 2 computes with the
// numbers that step W + 1 had, and they change to m_(W+1) when that step's gradients are complete. Norm, clipping and
// the check for numbers that are not finite are of g_t itself and happen at the end of step t, before its update is
// deferred. A step that fp16 skips has no update; the one before it still comes in at its end. What an optimizer asks
// of other ranks (trust ratios, whole matrices) goes over groups of that thread's own. The moving average of weights
// follows m_t, on the same thread.
//
// MasterWeights lie one update ahead of what is computed with, so the state has both: "computed/PARAMETER" is v_(t+1).
// A save waits for the update under way and does not bring it in, hence changes nothing; going on from it gives the
// same bits.
// Depends on: base, nn, optim, parallel, spec.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/base/worker.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/spec/layout_config.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/weight_average.h"

namespace trireme::train {

class Updates {
 public:
  /// All borrowed. `average` is brought up to date after each update; null: there is none.
  Updates(const spec::LayoutConfig& layout, Engine& engine, optim::Optimizer& optimizer,
          WeightAverage* average = nullptr);

  /// The update of a step whose gradients are complete, `steps` of them before it. On all ranks together; throws as
  /// optim::update does, and then nothing has changed.
  optim::UpdateResult take(const optim::UpdateOptions& options, std::int64_t steps);
  /// What layers compute with, where masters are or may be ahead of it; empty where no update is late. After wait().
  std::vector<at::Tensor> computed() const;
  /// Masters have other numbers for a while, or those of before again. `computed`: copies of computed(), to be computed
  /// with again; empty: the masters are, rounded.
  void exchanged(const std::vector<at::Tensor>& computed);
  /// What layers compute with goes its way to all ranks once more, as after an update; no number changes.
  void send_again();
  /// Between steps, after wait(): masters and what layers compute with have changed places alike, on all ranks
  /// together.
  void moved();
  /// Until masters and moments are complete and no weights are on their way: the state may be read and written.
  void wait();

  /// Late updates, from the end of their step until done; nothing: none is ever late.
  std::optional<QueueReading> queue() { return worker_ ? std::optional(worker_->queue()) : std::nullopt; }

  void add_state(nn::State& state);
  /// The state was read from a checkpoint.
  void loaded();

 private:
  Engine& engine_;
  optim::Optimizer& optimizer_;
  WeightAverage* average_;
  std::int64_t warmup_;
  bool unseen_ = false;             // masters are ahead of what is computed with
  std::unique_ptr<Worker> worker_;  // null: no update is ever late
};

}  // namespace trireme::train
