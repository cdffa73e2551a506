// base/wall_clock.h -- the time of day, for what people read. Whatever waits or measures goes by a steady clock.
//
// Depends on: std.
#pragma once

namespace trireme {

/// Since 1970.
double wall_seconds();
/// From now on this process sees a clock that is off by so much more, as when somebody sets it: for drills.
void jump_wall_clock(double seconds);

}  // namespace trireme
