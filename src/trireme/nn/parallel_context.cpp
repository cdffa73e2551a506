#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

layout::Placing ParallelContext::placing(const std::string& name, layout::Shape shape) const {
  layout::Placing placing(mesh, rank, name, std::move(shape));
  for (const layout::Axis& axis : mesh.axes()) {
    if (axis.name == "pp") placing.only_at("pp", mesh.coordinate(rank, "pp"));
  }
  return placing;
}

const ParallelContext& alone() {
  static const ParallelContext parallel;
  return parallel;
}

}  // namespace trireme::nn
