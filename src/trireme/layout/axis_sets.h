// layout/axis_sets.h -- sets of mesh axes and of parts of axes: what two of them share, and what is left of one.
//
// The ranks along "dp" are those along "dp%4" times those along "dp/4", so a set of axes is a set of factors of the
// ranks. Results name as few parts as possible, in the order of the mesh, inner parts first: "dp%4" with "dp/4" is
// "dp". Where two sets cut one axis so that neither cut divides the other ("dp%4" and "dp%6" of 12), a ConfigError says
// so.
// Depends on: base.
#pragma once

#include <string>

#include "trireme/layout/mesh.h"

namespace trireme::layout {

/// In both: of "dp tp" and "dp%4" that is "dp%4".
AxisNames intersect(const Mesh& mesh, const AxisNames& a, const AxisNames& b);
/// In one of them or in both.
AxisNames unite(const Mesh& mesh, const AxisNames& a, const AxisNames& b);
/// In the first and not in the second: of "dp tp" and "dp%4 pp" that is "dp/4 tp".
AxisNames subtract(const Mesh& mesh, const AxisNames& a, const AxisNames& b);

/// What is left of `axes` when `used` no longer counts: ("dp tp", "dp%4") leaves "dp/4 tp". ConfigError when `used` is
/// not among them. Parts of one rank are left out.
AxisNames without(const Mesh& mesh, const AxisNames& axes, const std::string& used);

}  // namespace trireme::layout
