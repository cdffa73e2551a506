#include "trireme/science/robot_arm.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "trireme/base/random.h"
#include "trireme/science/matrix.h"

namespace trireme::science {
namespace {

struct Vec {
  double x = 0, y = 0, z = 0;
};
Vec operator+(const Vec& a, const Vec& b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
Vec operator*(double s, const Vec& a) { return {s * a.x, s * a.y, s * a.z}; }
Vec cross(const Vec& a, const Vec& b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
double inner(const Vec& a, const Vec& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

/// Turned about a unit axis.
Vec rotated(const Vec& a, const Vec& axis, double angle) {
  const double c = std::cos(angle), s = std::sin(angle);
  return c * a + s * cross(axis, a) + ((1 - c) * inner(axis, a)) * axis;
}

constexpr std::array<Vec, 4> kAxes = {Vec{0, 0, 1}, Vec{0, 1, 0}, Vec{0, 1, 0}, Vec{0, 0, 1}};
/// Along its rod, in a link's own frame: the first stands, the others reach out.
constexpr std::array<Vec, 4> kDirections = {Vec{0, 0, 1}, Vec{1, 0, 0}, Vec{1, 0, 0}, Vec{1, 0, 0}};

/// A thin rod about its centre: m l^2 / 12 across it, nothing along it.
Vec rod_inertia(std::size_t link, const Vec& rate) {
  const double across = kLinkMasses[link] * kLinkLengths[link] * kLinkLengths[link] / 12;
  const Vec& along = kDirections[link];
  return across * (rate + (-inner(along, rate)) * along);
}

}  // namespace

Joints arm_torques(const ArmState& state, const Joints& accelerations) {
  struct Motion {
    Vec rate, turning, origin, force, moment;  // in the link's frame; force and moment of its own mass
  };
  std::array<Motion, 4> links;
  // Gravity is an upward acceleration of the base.
  Vec rate, turning, origin{0, 0, kGravity};
  for (std::size_t i = 0; i < 4; ++i) {
    const Vec &axis = kAxes[i], arm = kLinkLengths[i] * kDirections[i], centre = 0.5 * arm;
    const auto into = [&](const Vec& a) { return rotated(a, axis, -state.angles[i]); };
    Motion& link = links[i];
    const Vec before = into(rate);
    link.rate = before + state.velocities[i] * axis;
    link.turning = into(turning) + accelerations[i] * axis + state.velocities[i] * cross(before, axis);
    link.origin = into(origin);
    const auto at = [&](const Vec& place) {
      return link.origin + cross(link.turning, place) + cross(link.rate, cross(link.rate, place));
    };
    link.force = kLinkMasses[i] * at(centre);
    link.moment =
        rod_inertia(i, link.turning) + cross(link.rate, rod_inertia(i, link.rate)) + cross(centre, link.force);
    rate = link.rate, turning = link.turning, origin = at(arm);
  }
  Joints torques{};
  Vec force, moment;  // what the next link asks for, in this link's frame
  for (std::size_t i = 4; i-- > 0;) {
    const Vec arm = kLinkLengths[i] * kDirections[i];
    moment = links[i].moment + moment + cross(arm, force);
    force = links[i].force + force;
    torques[i] = inner(kAxes[i], moment) + kMotorInertia * accelerations[i];
    moment = rotated(moment, kAxes[i], state.angles[i]);
    force = rotated(force, kAxes[i], state.angles[i]);
  }
  return torques;
}

Joints arm_accelerations(const ArmState& state, const Joints& torques) {
  const Joints bias = arm_torques(state, {});
  Matrix mass(4, 4);
  for (std::size_t j = 0; j < 4; ++j) {
    Joints unit{};
    unit[j] = 1;
    const Joints column = arm_torques(state, unit);
    for (std::size_t i = 0; i < 4; ++i) mass(i, j) = column[i] - bias[i];
  }
  Joints out;
  for (std::size_t i = 0; i < 4; ++i) out[i] = torques[i] - bias[i];
  Cholesky(std::move(mass)).solve(out);
  return out;
}

Table arm_table(std::size_t rows, std::uint64_t seed) {
  constexpr double kAngle = std::numbers::pi / 2, kVelocity = 2;  // radians, radians a second: either way
  constexpr Joints kTorques = {10, 30, 15, 3};  // newton metres: enough to hold the arm and to move it
  Table table{.source = "robot arm", .names = {}, .cells = {}};
  for (const char* kind : {"angle", "velocity", "torque", "a"}) {
    for (int joint = 1; joint <= 4; ++joint) table.names.push_back(fmt::format("{}{}", kind, joint));
  }
  const Random random(seed, "robot arm");
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<double> values;
    const auto either_way = [&](double most) {
      values.push_back(most * (2 * random.uniform(row * 12 + values.size()) - 1));
      return values.back();
    };
    ArmState state;
    Joints torques{};
    for (double& angle : state.angles) angle = either_way(kAngle);
    for (double& velocity : state.velocities) velocity = either_way(kVelocity);
    for (std::size_t i = 0; i < 4; ++i) torques[i] = either_way(kTorques[i]);
    for (const double acceleration : arm_accelerations(state, torques)) values.push_back(acceleration);
    auto& cells = table.cells.emplace_back();
    for (const double value : values) cells.push_back(fmt::format("{}", value));
  }
  return table;
}

}  // namespace trireme::science
