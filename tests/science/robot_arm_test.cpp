#include "trireme/science/robot_arm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/random.h"
#include "trireme/science/hme_fit.h"

namespace trireme::science {
namespace {

/// Where a point of a link is, in the room: plain rotations, link by link, written apart from the recursive method.
std::array<double, 3> place(const Joints& q, std::size_t link, double along) {
  const auto about_z = [](std::array<double, 3> v, double a) -> std::array<double, 3> {
    return {std::cos(a) * v[0] - std::sin(a) * v[1], std::sin(a) * v[0] + std::cos(a) * v[1], v[2]};
  };
  const auto about_y = [](std::array<double, 3> v, double a) -> std::array<double, 3> {
    return {std::cos(a) * v[0] + std::sin(a) * v[2], v[1], -std::sin(a) * v[0] + std::cos(a) * v[2]};
  };
  std::array<double, 3> v{};
  for (std::size_t i = link + 1; i-- > 0;) {
    const double reach = kLinkLengths[i] * (i == link ? along : 1);
    v[i == 0 ? 2 : 0] += reach;
    v = i == 0 || i == 3 ? about_z(v, q[i]) : about_y(v, q[i]);
  }
  return v;
}

/// Kinetic and potential energy. A rod moves as three points with 1/6, 4/6 and 1/6 of its mass (Simpson's rule is exact
/// for squares of linear functions); velocities by differences.
double energy(const ArmState& state) {
  constexpr double kStep = 1e-5;
  double sum = 0;
  for (std::size_t link = 0; link < 4; ++link) {
    for (const auto& [along, share] : {std::pair{0.0, 1 / 6.0}, {0.5, 4 / 6.0}, {1.0, 1 / 6.0}}) {
      Joints before = state.angles, after = state.angles;
      for (std::size_t i = 0; i < 4; ++i)
        before[i] -= kStep * state.velocities[i], after[i] += kStep * state.velocities[i];
      const auto a = place(before, link, along), b = place(after, link, along);
      double squares = 0;
      for (std::size_t i = 0; i < 3; ++i) squares += std::pow((b[i] - a[i]) / (2 * kStep), 2);
      const double mass = share * kLinkMasses[link];
      sum += 0.5 * mass * squares + mass * kGravity * place(state.angles, link, along)[2];
    }
    sum += 0.5 * kMotorInertia * state.velocities[link] * state.velocities[link];
  }
  return sum;
}

ArmState random_state(std::uint64_t seed) {
  const Random random(seed, "state");
  ArmState state;
  for (std::size_t i = 0; i < 4; ++i) state.angles[i] = random.normal(i), state.velocities[i] = random.normal(4 + i);
  return state;
}

TEST(RobotArm, PowerOfTheTorquesIsTheChangeOfEnergy) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const ArmState state = random_state(seed);
    const Random random(seed, "torque");
    Joints torques;
    for (std::size_t i = 0; i < 4; ++i) torques[i] = 5 * random.normal(i);
    const Joints acceleration = arm_accelerations(state, torques);
    constexpr double kStep = 1e-4;
    ArmState before = state, after = state;
    double power = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      for (auto [other, time] : {std::pair{&before, -kStep}, {&after, kStep}}) {
        other->angles[i] += time * state.velocities[i] + 0.5 * time * time * acceleration[i];
        other->velocities[i] += time * acceleration[i];
      }
      power += torques[i] * state.velocities[i];
    }
    EXPECT_NEAR((energy(after) - energy(before)) / (2 * kStep), power, 1e-3 * (1 + std::abs(power))) << seed;
  }
}

TEST(RobotArm, TorquesAndAccelerationsUndoEachOther) {
  const ArmState state = random_state(99);
  const Joints acceleration = {1, -2, 3, 0.5};
  const Joints again = arm_accelerations(state, arm_torques(state, acceleration));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(again[i], acceleration[i], 1e-10);
}

TEST(RobotArm, AtRestTheMotorsHoldTheWeightOfTheLinks) {
  // Stretched out level: the lift of joint 2 carries links 2 to 4, that of joint 3 links 3 and 4.
  const Joints torques = arm_torques({}, {});
  const double about3 = kGravity * (2.0 * 0.175 + 1.0 * (0.35 + 0.125));
  const double about2 = kGravity * (3.0 * 0.2 + 2.0 * (0.4 + 0.175) + 1.0 * (0.4 + 0.35 + 0.125));
  EXPECT_NEAR(torques[0], 0, 1e-12);
  EXPECT_NEAR(std::abs(torques[1]), about2, 1e-12);
  EXPECT_NEAR(std::abs(torques[2]), about3, 1e-12);
  EXPECT_NEAR(torques[3], 0, 1e-12);
}

TEST(RobotArm, AMixtureOfExpertsLearnsItsForwardDynamicsBetterThanALinearFit) {
  const Table table = arm_table(1500, 1);
  const Columns columns = choose_columns(table, {.targets = {"a1", "a2", "a3", "a4"}, .inputs = {}});
  const Samples all = to_samples(table, columns);
  std::vector<std::size_t> training, held_out;
  for (std::size_t t = 0; t < all.count(); ++t) (t < 1200 ? training : held_out).push_back(t);
  const Samples train = pick(all, training), test = pick(all, held_out);
  const EmOptions options{.iterations = 30, .tolerance = 1e-4, .restarts = 1};
  const double linear = evaluate(fit_by_em(columns, {}, train, options), test).error;
  const double mixture = evaluate(fit_by_em(columns, {2, 2, 2}, train, options), test).error;
  EXPECT_GT(linear, 0.2);
  EXPECT_LT(mixture, 0.7 * linear) << "relative error: " << mixture << " beside " << linear;
}

}  // namespace
}  // namespace trireme::science
