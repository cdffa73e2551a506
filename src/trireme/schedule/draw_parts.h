// schedule/draw_parts.h -- what the ways of drawing share. Only they use it.
//
// Depends on: draw.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/draw.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

/// One colour of the legend.
enum class Paint { kForward, kBackward, kInput, kWeight, kRecompute, kUpdate, kOther };

/// One box: half of a span where it is an overlapped pair.
struct DrawnBox {
  Paint paint;
  int chunk, micro;            // -1 where there is none
  int micros = 1;              // from `micro` on
  int turn = 0;                // which of the chunks of its rank it is: a shade of the colour
  bool is_upper_half = false;  // of a pair; the other half is the lower one
  bool is_lower_half = false;
  double start, end;
  std::optional<int> version = {};  // of the weights it computes with, where that says something
};

/// A drawing of a given scale, in pixels for a unit of time, and its size.
struct Picture {
  std::string svg;
  double width = 0, height = 0;
};
Picture draw_scaled(const Drawing& drawing, double scale);

std::string_view name_of(Paint paint);
/// "3", of a doubled forward "4,5".
std::string micros_of(const DrawnBox& box);
/// The boxes of every rank, in order of time.
std::vector<std::vector<DrawnBox>> boxes_of(const Drawing& drawing);
/// "gpipe, 4 ranks, 8 micros".
std::string title_of(const Drawing& drawing);
/// "takes 33, idle 27.3 %".
std::string summary_of(const Drawing& drawing);

}  // namespace trireme::schedule
