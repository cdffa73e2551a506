// science/robot_arm.h -- a four-joint robot arm's forward dynamics: the experiment of Jordan and Jacobs (1994), section
// "simulations", with an arm of our own.
//
// Joint 1 turns about the vertical, joints 2 and 3 lift, joint 4 turns the last link sideways. Links are thin rods;
// every joint has a motor with some inertia. Torques follow from motion by the recursive Newton-Euler method; forward
// dynamics solves M(q) a = torque - bias(q, velocity).
// Depends on: matrix, table.
#pragma once

#include <array>
#include <cstdint>

#include "trireme/science/table.h"

namespace trireme::science {

using Joints = std::array<double, 4>;

struct ArmState {
  Joints angles{}, velocities{};
};

/// In metres, kilograms and kg m^2.
inline constexpr Joints kLinkLengths = {0.30, 0.40, 0.35, 0.25};
inline constexpr Joints kLinkMasses = {4.0, 3.0, 2.0, 1.0};
inline constexpr double kMotorInertia = 0.05, kGravity = 9.81;

/// The torques that this motion takes.
Joints arm_torques(const ArmState& state, const Joints& accelerations);
/// The motion that these torques make.
Joints arm_accelerations(const ArmState& state, const Joints& torques);

/// `rows` random states and torques (12 inputs) with the accelerations of the joints (4 targets: a1 to a4).
Table arm_table(std::size_t rows, std::uint64_t seed);

}  // namespace trireme::science
