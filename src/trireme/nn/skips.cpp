#include "trireme/nn/skips.h"

#include "trireme/base/error.h"

namespace trireme::nn {

at::Tensor Skips::find(const Named& named, const std::string& name, const char* what) {
  const auto found = named.find(name);
  TRIREME_CHECK(found != named.end(), "a layer takes the {} of skip {}, which none gave before it", what, name);
  return found->second;
}

Skips& SkipLayer::skips() const {
  TRIREME_CHECK(skips_ != nullptr, "a layer with skips runs before use() said where they are");
  return *skips_;
}

}  // namespace trireme::nn
