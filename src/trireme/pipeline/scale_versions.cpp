#include "trireme/pipeline/scale_versions.h"

#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"

namespace trireme::pipeline {

void ScaleVersions::begin() {
  largest_.clear();
  scales_.clear();
  step_ = -1;
  known_ = history_.known();
  scales_[0] = history_.scales().clone();
}

void ScaleVersions::leave() {
  if (step_ >= 0) largest_.at(step_).copy_(history_.largest());
  step_ = -1;
}

void ScaleVersions::enter(int version, int step) {
  const auto scales = scales_.find(version);
  TRIREME_CHECK(scales != scales_.end(), "there are no scales of version {} for a micro-batch of step {}", version,
                step);
  leave();
  const auto [largest, is_new] = largest_.try_emplace(step);
  if (is_new) largest->second = at::zeros_like(scales->second);
  history_.scales().copy_(scales->second);
  history_.largest().copy_(largest->second);
  history_.set_known(known_ || version > 0);
  step_ = step;
}

void ScaleVersions::updated(int step) {
  leave();
  const auto seen = largest_.extract(step);
  if (seen.empty()) {
    history_.largest().zero_();  // a rank without rows
  } else {
    history_.largest().copy_(seen.mapped());
  }
  history_.advance(agree_);
  scales_[step + 1] = history_.scales().clone();
}

void ScaleVersions::rewind(int step) {
  step_ = -1;  // its numbers are among them
  std::erase_if(largest_, [step](const auto& entry) { return entry.first > step; });
}

void ScaleVersions::end() {
  leave();
  TRIREME_CHECK(largest_.empty(), "step {} has not been updated with what its passes met", largest_.begin()->first);
  history_.scales().copy_(scales_.rbegin()->second);
  history_.largest().zero_();
  history_.set_known(known_ || scales_.rbegin()->first > 0);
}

}  // namespace trireme::pipeline
