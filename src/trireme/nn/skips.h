// nn/skips.h -- tensors that one layer hands straight to a later one, past those between: the long arms of U-shaped
// networks.
//
// A SkipLayer names what it hands on in gives() and what it takes in takes(). Whoever runs it says with use() where the
// tensors of the micro are: forward gives and takes, backward gives gradients back and takes them back. On one rank
// that is all; a pipeline carries them from rank to rank without touching the stages between.
// Depends on: layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"

namespace trireme::nn {

class Skips {
 public:
  void give(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }
  /// Stays until the micro is over: a layer that is computed again takes it again. An InternalError where nobody gave.
  at::Tensor take(const std::string& name) const { return find(tensors_, name, "tensor"); }
  void give_back(const std::string& name, at::Tensor gradient) { gradients_[name] = std::move(gradient); }
  at::Tensor take_back(const std::string& name) const { return find(gradients_, name, "gradient"); }

 private:
  using Named = std::map<std::string, at::Tensor>;
  static at::Tensor find(const Named& named, const std::string& name, const char* what);
  Named tensors_, gradients_;
};

class SkipLayer : public Layer {
 public:
  virtual std::vector<std::string> gives() const { return {}; }
  virtual std::vector<std::string> takes() const { return {}; }
  /// Before each pass; borrowed until the next.
  void use(Skips& skips) { skips_ = &skips; }

 protected:
  /// An InternalError where nobody said.
  Skips& skips() const;

 private:
  Skips* skips_ = nullptr;
};

}  // namespace trireme::nn
