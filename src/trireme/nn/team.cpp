#include "trireme/nn/team.h"

namespace trireme::nn {

layout::Placing Team::placing(const std::string& name, layout::Shape shape) const {
  layout::Placing placing(mesh, rank, name, std::move(shape));
  for (const layout::Axis& axis : mesh.axes()) {
    if (axis.name == "pp") placing.only_at("pp", mesh.coordinate(rank, "pp"));
  }
  return placing;
}

const Team& alone() {
  static const Team team;
  return team;
}

}  // namespace trireme::nn
